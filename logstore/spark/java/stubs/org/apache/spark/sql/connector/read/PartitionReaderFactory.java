package org.apache.spark.sql.connector.read;

import java.io.Serializable;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.vectorized.ColumnarBatch;

public interface PartitionReaderFactory extends Serializable {
    PartitionReader<InternalRow> createReader(InputPartition partition);

    default PartitionReader<ColumnarBatch> createColumnarReader(InputPartition partition) {
        throw new UnsupportedOperationException();
    }

    default boolean supportColumnarReads(InputPartition partition) {
        throw new UnsupportedOperationException();
    }
}
