package org.apache.arrow.vector;

public interface FieldVector extends ValueVector {}
