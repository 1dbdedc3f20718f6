package org.apache.spark.sql.util;

import java.util.AbstractMap;
import java.util.Map;
import java.util.Set;

public class CaseInsensitiveStringMap extends AbstractMap<String, String> {
    @Override
    public native Set<Map.Entry<String, String>> entrySet();
}
