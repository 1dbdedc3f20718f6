package org.apache.spark.sql.connector.read;

import java.io.Closeable;
import java.io.IOException;

public interface PartitionReader<T> extends Closeable {
    boolean next() throws IOException;

    T get();
}
