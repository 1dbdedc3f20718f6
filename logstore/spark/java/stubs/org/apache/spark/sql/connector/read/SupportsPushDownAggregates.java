package org.apache.spark.sql.connector.read;

import org.apache.spark.sql.connector.expressions.aggregate.Aggregation;

public interface SupportsPushDownAggregates extends ScanBuilder {
    boolean pushAggregation(Aggregation aggregation);
}
