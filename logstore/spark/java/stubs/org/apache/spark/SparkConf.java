package org.apache.spark;

import scala.Tuple2;

public class SparkConf {
    public native String get(String key, String defaultValue);

    public native Tuple2<String, String>[] getAllWithPrefix(String prefix);
}
