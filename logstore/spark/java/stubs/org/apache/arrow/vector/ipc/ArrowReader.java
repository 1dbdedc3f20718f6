package org.apache.arrow.vector.ipc;

import java.io.IOException;
import org.apache.arrow.vector.VectorSchemaRoot;

public abstract class ArrowReader {
    public native VectorSchemaRoot getVectorSchemaRoot() throws IOException;

    public abstract boolean loadNextBatch() throws IOException;

    public native void close(boolean closeReadSource) throws IOException;
}
