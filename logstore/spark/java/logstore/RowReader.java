package logstore;

import java.io.IOException;
import java.util.Collections;
import java.util.Iterator;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** The rows of batches, one after the other; a batch is closed behind its last row. */
final class RowReader implements PartitionReader<InternalRow> {
    private final PartitionReader<ColumnarBatch> batches;
    private ColumnarBatch batch;
    private Iterator<InternalRow> rows = Collections.emptyIterator();
    private InternalRow row;

    RowReader(PartitionReader<ColumnarBatch> batches) {
        this.batches = batches;
    }

    @Override
    public boolean next() throws IOException {
        while (!rows.hasNext()) {
            if (batch != null) {
                batch.closeIfFreeable();
                batch = null;
            }
            if (!batches.next()) {
                return false;
            }
            batch = batches.get();
            rows = batch.rowIterator();
        }
        row = rows.next();
        return true;
    }

    @Override
    public InternalRow get() {
        return row;
    }

    @Override
    public void close() throws IOException {
        batches.close();
    }
}
