package org.apache.spark;

public abstract class TaskContext {
    public static native TaskContext get();

    public abstract void killTaskIfInterrupted();
}
