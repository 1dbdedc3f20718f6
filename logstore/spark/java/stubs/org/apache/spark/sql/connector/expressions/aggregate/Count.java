package org.apache.spark.sql.connector.expressions.aggregate;

import org.apache.spark.sql.connector.expressions.Expression;

public final class Count implements AggregateFunc {
    public native Expression column();

    public native boolean isDistinct();

    public native Expression[] children();
}
