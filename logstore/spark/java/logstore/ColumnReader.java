package logstore;

import java.io.IOException;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.memory.RootAllocator;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.ipc.ArrowStreamReader;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** The record batches of one task, as a Python worker sends them. */
final class ColumnReader implements PartitionReader<ColumnarBatch> {
    private final Worker worker;
    private final BufferAllocator allocator = new RootAllocator();
    private final ArrowStreamReader stream;
    private ColumnarBatch batch;

    ColumnReader(Python python, byte[] reader, byte[] splits) {
        worker = Worker.start(python);
        stream = new ArrowStreamReader(worker.channel(), allocator);
        try {
            worker.send(new Request("read").bytes(reader).bytes(splits));
        } catch (RuntimeException | Error error) {
            close();
            throw error;
        }
    }

    @Override
    public boolean next() throws IOException {
        switch (worker.answer()) {
            case BATCH:
                stream.loadNextBatch();
                show(stream.getVectorSchemaRoot());
                return true;
            case ROWS:
                batch = new ColumnarBatch(new ColumnVector[0], worker.readInt());
                return true;
            default:
                worker.release();
                return false;
        }
    }

    private void show(VectorSchemaRoot root) {
        if (batch == null) {
            ColumnVector[] columns = root.getFieldVectors().stream()
                .map(ArrowColumnVector::new)
                .toArray(ColumnVector[]::new);
            batch = new ColumnarBatch(columns);
        }
        batch.setNumRows(root.getRowCount());
    }

    @Override
    public ColumnarBatch get() {
        return batch;
    }

    /** A worker that has not said its last word is in the midst of something: it ends. */
    @Override
    public void close() {
        worker.destroyUnlessReleased();
        try {
            stream.close(false);
        } catch (IOException error) {
            throw new LogstoreException(error.toString(), error);
        } finally {
            allocator.close();
        }
    }
}
