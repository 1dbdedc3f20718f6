package logstore;

import java.util.Map;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * {@code format("logstore")}: Spark looks for a class of this name before it asks for a data source
 * in Python. Queries are answered here, by column; writes by the Python source.
 */
public final class DefaultSource implements TableProvider {
    private final PythonDataSourceV2 python = pythonSource();

    @Override
    public StructType inferSchema(CaseInsensitiveStringMap options) {
        return new Requests(Python.ofSession()).schema(options);
    }

    @Override
    public Table getTable(
            StructType schema, Transform[] partitioning, Map<String, String> properties) {
        return new LogstoreTable(python.getTable(schema, partitioning, properties), schema);
    }

    @Override
    public boolean supportsExternalMetadata() {
        return true;
    }

    /** By the name that {@code register} gives it, or by that which an installation has. */
    private static PythonDataSourceV2 pythonSource() {
        PythonDataSourceV2 registered = new PythonDataSourceV2();
        registered.setShortName("logstore-python");
        try {
            registered.source();
            return registered;
        } catch (Exception notRegistered) {
            PythonDataSourceV2 installed = new PythonDataSourceV2();
            installed.setShortName("logstore");
            return installed;
        }
    }
}
