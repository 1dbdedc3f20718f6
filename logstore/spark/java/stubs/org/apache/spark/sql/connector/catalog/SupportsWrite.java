package org.apache.spark.sql.connector.catalog;

import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;

public interface SupportsWrite extends Table {
    WriteBuilder newWriteBuilder(LogicalWriteInfo info);
}
