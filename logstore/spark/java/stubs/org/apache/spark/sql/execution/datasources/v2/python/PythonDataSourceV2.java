package org.apache.spark.sql.execution.datasources.v2.python;

import java.util.Map;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

public class PythonDataSourceV2 implements TableProvider {
    public native void setShortName(String name);

    public native UserDefinedPythonDataSource source();

    public native StructType inferSchema(CaseInsensitiveStringMap options);

    public native Table getTable(
        StructType schema, Transform[] partitioning, Map<String, String> properties);
}
