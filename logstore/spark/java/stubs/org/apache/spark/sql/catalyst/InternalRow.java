package org.apache.spark.sql.catalyst;

public abstract class InternalRow {}
