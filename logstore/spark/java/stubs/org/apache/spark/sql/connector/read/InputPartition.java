package org.apache.spark.sql.connector.read;

import java.io.Serializable;

public interface InputPartition extends Serializable {}
