package logstore;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.ipc.ArrowStreamReader;
import org.apache.arrow.vector.util.TransferPair;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** The record batches of one task, as a Python worker sends them. */
final class ColumnReader implements PartitionReader<ColumnarBatch> {
    private final Worker worker;
    private final TaskBatches batches;
    private final ArrowStreamReader stream;
    private ColumnarBatch batch;
    private boolean ended, isClosed;

    /** Where {@code position} is not null, the reader before this one came as far as that. */
    ColumnReader(
            Python python, byte[] reader, byte[] splits, NativeReader.Position position,
            TaskBatches batches) {
        this.batches = batches;
        worker = Worker.start(python);
        stream = new ArrowStreamReader(worker.channel(), batches.allocator());
        batches.closeFirst(this::close);
        try {
            worker.send(new Request("read")
                .bytes(reader)
                .bytes(splits)
                .text(position == null ? "" : position.json()));
        } catch (RuntimeException | Error error) {
            close();
            throw error;
        }
    }

    @Override
    public synchronized boolean next() throws IOException {
        if (ended) {
            return false;
        }
        switch (worker.answer()) {
            case BATCH:
                stream.loadNextBatch();
                batch = taken(stream.getVectorSchemaRoot());
                return true;
            case ROWS:
                batch = new ColumnarBatch(new ColumnVector[0], worker.readInt());
                return true;
            default:
                ended = true;
                worker.release();
                return false;
        }
    }

    /** The stream fills the vectors of one root again and again; a batch keeps its own. */
    private ColumnarBatch taken(VectorSchemaRoot root) {
        List<ColumnVector> columns = new ArrayList<>();
        for (FieldVector vector : root.getFieldVectors()) {
            TransferPair pair = vector.getTransferPair(batches.allocator());
            pair.transfer();
            columns.add(new ArrowColumnVector(pair.getTo()));
        }
        return batches.batch(columns.toArray(new ColumnVector[0]), root.getRowCount());
    }

    @Override
    public ColumnarBatch get() {
        return batch;
    }

    /** End a worker that is in the midst of something, and with it the wait of another thread. */
    void stop() {
        worker.destroyUnlessReleased();
    }

    @Override
    public void close() {
        stop();
        synchronized (this) {
            if (!isClosed) {
                ended = isClosed = true;
                closeStream();
                batches.close();
            }
        }
    }

    private void closeStream() {
        try {
            stream.close(false);
        } catch (IOException error) {
            throw new LogstoreException(error.toString(), error);
        }
    }
}
