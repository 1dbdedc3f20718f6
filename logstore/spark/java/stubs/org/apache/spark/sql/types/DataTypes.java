package org.apache.spark.sql.types;

public class DataTypes {
    public static final DataType LongType = null;
}
