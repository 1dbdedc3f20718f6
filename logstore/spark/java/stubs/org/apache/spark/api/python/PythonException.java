package org.apache.spark.api.python;

import org.apache.spark.QueryContext;
import scala.collection.immutable.Map;

public class PythonException extends RuntimeException {
    public PythonException(
            String errorClass, Map<String, String> parameters, Throwable cause,
            QueryContext[] context, String summary) {
    }
}
