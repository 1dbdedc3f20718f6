package org.apache.spark.sql.connector.read;

public interface Batch {
    InputPartition[] planInputPartitions();

    PartitionReaderFactory createReaderFactory();
}
