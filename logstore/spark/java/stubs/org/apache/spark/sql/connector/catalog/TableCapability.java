package org.apache.spark.sql.connector.catalog;

public enum TableCapability {}
