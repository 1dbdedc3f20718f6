package logstore;

import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** Log directories; {@code python} is the same table as the Python source has it. */
final class LogstoreTable implements SupportsRead, SupportsWrite {
    private final Table python;
    private final StructType schema;

    LogstoreTable(Table python, StructType schema) {
        this.python = python;
        this.schema = schema;
    }

    @Override
    public String name() {
        return python.name();
    }

    @Override
    public StructType schema() {
        return schema;
    }

    @Override
    public Set<TableCapability> capabilities() {
        return python.capabilities();
    }

    @Override
    public Map<String, String> properties() {
        return python.properties();
    }

    /** A new one for each query: nothing that one of them wants stays for the next. */
    @Override
    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
        return new LogstoreScanBuilder(schema, options);
    }

    @Override
    public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
        return ((SupportsWrite) python).newWriteBuilder(info);
    }
}
