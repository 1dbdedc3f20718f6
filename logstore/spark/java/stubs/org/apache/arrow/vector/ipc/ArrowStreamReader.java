package org.apache.arrow.vector.ipc;

import java.io.IOException;
import java.nio.channels.ReadableByteChannel;
import org.apache.arrow.memory.BufferAllocator;

public class ArrowStreamReader extends ArrowReader {
    public ArrowStreamReader(ReadableByteChannel in, BufferAllocator allocator) {}

    public native boolean loadNextBatch() throws IOException;
}
