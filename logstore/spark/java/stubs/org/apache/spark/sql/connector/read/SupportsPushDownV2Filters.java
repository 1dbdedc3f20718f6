package org.apache.spark.sql.connector.read;

import org.apache.spark.sql.connector.expressions.filter.Predicate;

public interface SupportsPushDownV2Filters extends ScanBuilder {
    Predicate[] pushPredicates(Predicate[] predicates);

    Predicate[] pushedPredicates();
}
