package org.apache.spark.api.python;

import scala.collection.immutable.Map;

public final class PythonUtils {
    public static native <K, V> Map<K, V> toScalaMap(java.util.Map<K, V> map);
}
