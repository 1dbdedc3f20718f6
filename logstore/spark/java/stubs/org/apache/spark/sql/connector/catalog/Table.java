package org.apache.spark.sql.connector.catalog;

import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.types.StructType;

public interface Table {
    String name();

    @Deprecated
    default StructType schema() {
        throw new UnsupportedOperationException();
    }

    default Map<String, String> properties() {
        throw new UnsupportedOperationException();
    }

    Set<TableCapability> capabilities();
}
