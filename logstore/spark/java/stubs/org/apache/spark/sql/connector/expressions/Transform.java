package org.apache.spark.sql.connector.expressions;

public interface Transform extends Expression {}
