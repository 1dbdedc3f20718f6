package org.apache.arrow.vector;

public interface ValueVector {}
