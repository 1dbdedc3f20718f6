package org.apache.spark.sql.vectorized;

import org.apache.arrow.vector.ValueVector;

public class ArrowColumnVector extends ColumnVector {
    public ArrowColumnVector(ValueVector vector) {}
}
