package org.apache.spark.sql.connector.write;

public interface WriteBuilder {}
