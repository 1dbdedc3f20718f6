package org.apache.spark.sql.vectorized;

public class ColumnarBatch {
    public ColumnarBatch(ColumnVector[] columns) {}

    public ColumnarBatch(ColumnVector[] columns, int numRows) {}

    public native void setNumRows(int numRows);
}
