package org.apache.spark.sql.connector.expressions.aggregate;

import org.apache.spark.sql.connector.expressions.Expression;

public interface AggregateFunc extends Expression {}
