package org.apache.spark.sql.connector.catalog;

import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

public interface SupportsRead extends Table {
    ScanBuilder newScanBuilder(CaseInsensitiveStringMap options);
}
