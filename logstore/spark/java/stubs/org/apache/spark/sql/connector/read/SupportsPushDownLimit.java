package org.apache.spark.sql.connector.read;

public interface SupportsPushDownLimit extends ScanBuilder {
    boolean pushLimit(int limit);
}
