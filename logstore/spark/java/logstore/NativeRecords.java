package logstore;

import logstore.NativePlan.Settings;
import logstore.NativePlan.Split;
import org.apache.arrow.memory.ArrowBuf;
import org.apache.spark.sql.vectorized.ColumnVector;

/** What the library makes of the records of a task, and what becomes of it in Spark. */
abstract class NativeRecords implements AutoCloseable {
    static final String NO_MEMORY = "not enough memory for the columns of a batch";

    private static final int AT = 0;
    static final int ROWS = 1;

    final long[] state = new long[3];
    private long reader;

    NativeRecords(int columns, boolean isSummary, int extremes) {
        reader = Native.create(columns, isSummary, extremes);
        if (reader == 0) {
            throw new LogstoreException(NO_MEMORY);
        }
    }

    long reader() {
        return reader;
    }

    /** For the records of the next split. */
    void bound(Split split, Settings settings) {
        long[] bounds = {
            split.fromOffset(), split.endOffset(),
            settings.startTimestamp(), settings.endTimestamp(),
            settings.checkCrcs() ? 1 : 0, settings.includeControl() ? 1 : 0,
        };
        if (!Native.bound(reader, bounds, split.aborted())) {
            throw new LogstoreException(NO_MEMORY);
        }
    }

    /** As {@code ls_builder_run}, from byte {@code at} on; {@code origin} is that of byte 0. */
    int run(ArrowBuf data, long size, long at, long origin, long maxRows, long maxBytes) {
        state[AT] = at;
        return Native.run(reader, data.memoryAddress(), size, origin, maxRows, maxBytes, state);
    }

    /** Where the last run ended. */
    long at() {
        return state[AT];
    }

    /** As {@code ls_builder_section}. */
    int section(long batch, long size, long payload, long payloadSize, long position) {
        return Native.section(reader, batch, size, payload, payloadSize, position, state);
    }

    /** All of the split was read; false if Python has to read the task. */
    boolean end(Split split) {
        return true;
    }

    /** So was all of the task. */
    void end() {}

    /** How many rows Spark may be given now. */
    long rows() {
        return state[ROWS];
    }

    /**
     * The columns of the first {@code rows} of them, which are those of {@code split}; null if
     * Python has to make them. The others are gone.
     */
    abstract ColumnVector[] columns(Split split, int rows);

    @Override
    public void close() {
        if (reader != 0) {
            Native.destroy(reader);
            reader = 0;
        }
    }
}
