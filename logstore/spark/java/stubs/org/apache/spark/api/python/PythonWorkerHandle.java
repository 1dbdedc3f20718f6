package org.apache.spark.api.python;

public class PythonWorkerHandle {}
