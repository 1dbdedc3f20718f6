package org.apache.spark.sql.connector.expressions.aggregate;

import org.apache.spark.sql.connector.expressions.Expression;

public final class CountStar implements AggregateFunc {
    public native Expression[] children();
}
