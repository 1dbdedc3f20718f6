package org.apache.arrow.vector;

import java.util.List;

public class VectorSchemaRoot {
    public native List<FieldVector> getFieldVectors();

    public native int getRowCount();
}
