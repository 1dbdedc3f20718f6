package org.apache.spark.sql.connector.expressions.aggregate;

import org.apache.spark.sql.connector.expressions.Expression;

public final class Aggregation {
    public native AggregateFunc[] aggregateExpressions();

    public native Expression[] groupByExpressions();
}
