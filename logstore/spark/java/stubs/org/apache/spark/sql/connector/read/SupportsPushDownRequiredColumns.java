package org.apache.spark.sql.connector.read;

import org.apache.spark.sql.types.StructType;

public interface SupportsPushDownRequiredColumns extends ScanBuilder {
    void pruneColumns(StructType requiredSchema);
}
