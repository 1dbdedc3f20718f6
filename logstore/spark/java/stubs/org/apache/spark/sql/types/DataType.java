package org.apache.spark.sql.types;

public abstract class DataType {
    public native String json();

    public native String simpleString();
}
