package logstore;

import java.nio.charset.StandardCharsets;
import org.apache.arrow.memory.ArrowBuf;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.BigIntVector;
import org.apache.arrow.vector.BitVector;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.IntVector;
import org.apache.arrow.vector.VarCharVector;
import org.apache.arrow.vector.types.pojo.Field;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;

/** Columns with one value in the header of a batch, from the batches that gave rows. */
final class BatchRuns {
    private static final int FIELDS = 9;
    private static final int END = 0, POSITION = 1, BASE_OFFSET = 2, PRODUCER = 3, LEADER_EPOCH = 4;
    private static final int BASE_SEQUENCE = 5, PRODUCER_EPOCH = 6, ATTRIBUTES = 7, MAGIC = 8;
    private static final int CODEC = 7, LOG_APPEND_TIME = 8, TRANSACTIONAL = 0x10, CONTROL = 0x20;
    private static final String[] CODECS = {"none", "gzip", "snappy", "lz4", "zstd"};

    private final int count;
    private final long[] numbers;

    BatchRuns(long builder) {
        count = Native.runs(builder, new long[0]);
        numbers = new long[FIELDS * count];
        Native.runs(builder, numbers);
    }

    private long field(int run, int field) {
        return numbers[FIELDS * run + field];
    }

    ColumnVector column(
            Field field, DataType type, int rows, ArrowBuf offsets, BufferAllocator allocator) {
        String name = field.getName();
        long[] values = new long[count];
        boolean isOne = true;
        for (int run = 0; run < count; run++) {
            values[run] = value(name, run);
            isOne &= values[run] == values[0];
        }
        boolean isSequence = name.equals("sequence");
        if (isOne && !(isSequence && values[0] >= 0)) {
            return name.equals("compression")
                ? Constants.text(rows, CODECS[(int) values[0]])
                : Constants.number(rows, type, values[0]);
        }
        FieldVector vector = field.createVector(allocator);
        try {
            vector.setInitialCapacity(rows);
            vector.allocateNew();
            int row = 0;
            for (int run = 0; run < count; run++) {
                for (int end = (int) Math.min(field(run, END), rows); row < end; row++) {
                    long value = values[run];
                    if (isSequence && value >= 0) { // counts offsets, and wraps
                        long delta = offsets.getLong(8L * row) - field(run, BASE_OFFSET);
                        value = value + delta & Integer.MAX_VALUE;
                    }
                    set(vector, row, value);
                }
            }
            vector.setValueCount(rows);
            return new ArrowColumnVector(vector);
        } catch (RuntimeException | Error error) {
            vector.close();
            throw error;
        }
    }

    private static void set(FieldVector vector, int row, long value) {
        if (vector instanceof IntVector numbers) {
            numbers.set(row, (int) value);
        } else if (vector instanceof BigIntVector numbers) {
            numbers.set(row, value);
        } else if (vector instanceof BitVector bits) {
            bits.set(row, (int) value);
        } else {
            byte[] text = CODECS[(int) value].getBytes(StandardCharsets.US_ASCII);
            ((VarCharVector) vector).setSafe(row, text);
        }
    }

    private long value(String column, int run) {
        long attributes = field(run, ATTRIBUTES);
        switch (column) {
            case "position":
                return field(run, POSITION);
            case "timestampType":
                return field(run, MAGIC) == 0 ? -1 : (attributes & LOG_APPEND_TIME) != 0 ? 1 : 0;
            case "leaderEpoch":
                return field(run, LEADER_EPOCH);
            case "producerId":
                return field(run, PRODUCER);
            case "producerEpoch":
                return field(run, PRODUCER_EPOCH);
            case "sequence":
                return field(run, BASE_SEQUENCE);
            case "isTransactional":
                return (attributes & TRANSACTIONAL) != 0 ? 1 : 0;
            case "isControl":
                return (attributes & CONTROL) != 0 ? 1 : 0;
            case "compression":
                return attributes & CODEC;
            default:
                throw new LogstoreException("no column " + column);
        }
    }
}
