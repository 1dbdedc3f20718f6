package org.apache.spark.sql.vectorized;

public abstract class ColumnVector {}
