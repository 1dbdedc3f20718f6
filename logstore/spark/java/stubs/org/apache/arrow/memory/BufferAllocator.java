package org.apache.arrow.memory;

public interface BufferAllocator extends AutoCloseable {
    @Override
    void close();
}
