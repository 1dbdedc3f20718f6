package org.apache.spark.sql.types;

public class StructType extends DataType {
    public static native StructType fromDDL(String ddl);

    public native String[] fieldNames();

    public native StructField apply(String name);

    public native StructType add(StructField field);

    public native StructType add(String name, DataType dataType);
}
