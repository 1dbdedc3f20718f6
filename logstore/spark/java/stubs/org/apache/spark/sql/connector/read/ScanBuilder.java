package org.apache.spark.sql.connector.read;

public interface ScanBuilder {
    Scan build();
}
