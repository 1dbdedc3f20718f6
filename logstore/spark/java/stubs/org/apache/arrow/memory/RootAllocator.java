package org.apache.arrow.memory;

public class RootAllocator implements BufferAllocator {
    public native void close();
}
