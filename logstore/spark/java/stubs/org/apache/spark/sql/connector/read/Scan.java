package org.apache.spark.sql.connector.read;

import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.types.StructType;

public interface Scan {
    StructType readSchema();

    default String description() {
        throw new UnsupportedOperationException();
    }

    default Batch toBatch() {
        throw new UnsupportedOperationException();
    }

    default MicroBatchStream toMicroBatchStream(String checkpointLocation) {
        throw new UnsupportedOperationException();
    }
}
