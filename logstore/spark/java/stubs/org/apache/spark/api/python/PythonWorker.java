package org.apache.spark.api.python;

import java.nio.channels.SelectionKey;
import java.nio.channels.Selector;
import java.nio.channels.SocketChannel;

public class PythonWorker {
    public native SocketChannel channel();

    public native Selector selector();

    public native SelectionKey selectionKey();

    public native PythonWorker refresh();

    public native PythonWorker refreshNonBlocking();
}
