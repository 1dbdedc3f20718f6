package org.apache.spark.sql.execution.datasources.v2.python;

public class UserDefinedPythonDataSource {}
