package logstore;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.List;
import java.util.Map;
import logstore.NativePlan.Settings;
import logstore.NativePlan.Split;
import org.apache.arrow.memory.ArrowBuf;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/**
 * Reads the segments of one task without Python, as {@code logstore/directory} does. Where anything
 * is not as it should be, or is nothing for it, a Python worker goes on from that very byte: it has
 * the rules of recovery, and the words.
 */
final class NativeReader implements PartitionReader<ColumnarBatch> {
    private static final int ROWS_MAX = 32_768;
    private static final int BYTES_MAX = 4 << 20; // of keys and values
    private static final int WINDOW = 1 << 20; // with the columns that come of it, in the cache
    private static final int WINDOW_MAX = 16 << 20; // a larger batch has one of its own
    private static final long BATCH_MAX = 1 << 30; // a larger one is for Python
    private static final int HEADER = 61, PREFIX = 12, LENGTH_AT = 8, MAGIC_AT = 16;
    private static final int ATTRIBUTES_AT = 21, CODEC = 7;

    /** Why decoding has stopped. */
    private enum Stop {
        FULL,
        SPLIT_ENDS,
        PYTHON
    }

    /** Makes the reader that goes on where this one ends. */
    interface Rest {
        ColumnReader from(Position position, TaskBatches batches);
    }

    /**
     * The next batch is at byte {@code position} of a split, and its offsets are above
     * {@code above}; {@code rows} are still wanted.
     */
    record Position(int split, long position, long above, int rows, Markers markers) {
        String json() {
            try {
                return NativePlan.JSON.writeValueAsString(Map.of(
                    "split", split,
                    "position", position,
                    "above", above,
                    "limit", rows,
                    "open_since", markers.openSince()));
            } catch (IOException error) {
                throw new LogstoreException(error.toString(), error);
            }
        }
    }

    private final Rest rest;
    private final Settings settings;
    private final List<Split> splits;
    private final TaskContext task = TaskContext.get();
    private final TaskBatches batches;
    private final NativeRecords records;
    private final Unpacker unpacker;
    private final Markers markers = new Markers();

    private int index = -1;
    private Split split;
    private Markers.OfSplit check;
    private SegmentFile file;
    private long position;
    private ArrowBuf window; // begins with byte `origin` of the file; `filled` bytes of it are read,
    private long origin, filled, checked; // markers of the batches before byte `checked` are known
    private boolean isSuspicious; // the one there is not
    private long above, last, ordered; // offsets before the window, and before its byte `ordered`
    private int size = WINDOW;

    private int left;
    private Stop stop = Stop.SPLIT_ENDS;
    private volatile ColumnReader python;
    private ColumnarBatch batch;
    private boolean isClosed;

    NativeReader(NativePlan plan, StructType schema, TaskBatches batches, Rest rest) {
        this.rest = rest;
        this.batches = batches;
        settings = plan.settings();
        splits = plan.splits();
        left = settings.limit();
        unpacker = new Unpacker(batches.allocator(), settings.unpackedMax());
        List<String> aggregates = settings.aggregates();
        records = aggregates.isEmpty()
            ? new NativeColumns(schema, batches.allocator())
            : new NativeSummaries(schema, aggregates, batches.allocator());
        batches.closeFirst(this::close);
    }

    /** Not while another thread closes it: a Python UDF may read ahead in one of its own. */
    @Override
    public synchronized boolean next() throws IOException {
        while (!isClosed) {
            if (task != null) {
                task.killTaskIfInterrupted();
            }
            if (python != null) {
                return python.next();
            }
            if (left == 0 || stop == Stop.SPLIT_ENDS && !begin()) {
                records.end();
                boolean isLast = records.rows() > 0 && give();
                release();
                return isLast;
            }
            if (stop == Stop.FULL && decode()) {
                return true;
            }
            if (stop == Stop.PYTHON) {
                handOver();
            }
        }
        return false;
    }

    @Override
    public ColumnarBatch get() {
        return python == null ? batch : python.get();
    }

    /** Begin the next split; false if there is none. */
    private boolean begin() {
        if (file != null) {
            boolean isRead = file.isProven(batches.allocator()) && records.end(split);
            closeFile();
            if (!isRead) {
                position = split.endPosition(); // Python says why
                stop = Stop.PYTHON;
                return true;
            }
        }
        if (index + 1 >= splits.size()) {
            return false;
        }
        split = splits.get(++index);
        position = checked = split.position();
        above = last = split.above();
        origin = filled = 0;
        isSuspicious = false;
        check = settings.readCommitted() ? markers.new OfSplit(split) : null;
        records.bound(split, settings);
        file = SegmentFile.find(split);
        stop = file != null && file.isProven(batches.allocator()) ? Stop.FULL : Stop.PYTHON;
        return true;
    }

    /** Whether that made a batch. */
    private boolean decode() {
        long first = position;
        stop = fill();
        if (records.rows() == 0) {
            if (stop == Stop.FULL) {
                stop = Stop.PYTHON; // not even one batch fits
            }
            return false;
        }
        if (!give()) {
            position = first;
            stop = Stop.PYTHON;
            return false;
        }
        return true;
    }

    /** Makes a batch of the rows that are there; false if Python has to. */
    private boolean give() {
        int rows = (int) (left < 0 ? records.rows() : Math.min(records.rows(), left));
        ColumnVector[] made = records.columns(split, rows);
        if (made == null) {
            return false;
        }
        batch = batches.batch(made, rows);
        left -= left < 0 ? 0 : rows;
        return true;
    }

    private Stop fill() {
        Stop stopped = filled == 0 ? read() : null;
        while (stopped == null) {
            long end = isSuspicious ? checked - origin : filled;
            int status =
                records.run(window, end, position - origin, origin, ROWS_MAX, BYTES_MAX);
            long before = position;
            position = origin + records.at();
            switch (status) {
                case Native.FULL:
                    return Stop.FULL;
                case Native.END:
                    stopped = isSuspicious ? Stop.PYTHON : read();
                    break;
                case Native.SPECIAL:
                    stopped = unpack();
                    break;
                case Native.LIMIT:
                    // A wrapper of an older format has its last offset, and smaller ones inside.
                    boolean isOld = position + MAGIC_AT < origin + filled && magic(position) < 2;
                    return isOld ? Stop.PYTHON : readToEnd();
                default:
                    position = startOfBatch(before, position);
                    return Stop.PYTHON;
            }
        }
        return stopped;
    }

    /** No record there is wanted, unless an offset is wrong: then they do not ascend. */
    private Stop readToEnd() {
        Stop stopped = null;
        while (stopped == null) {
            position = origin + ordered;
            stopped = read();
        }
        return stopped;
    }

    /** Of the batches from {@code first} on, the one that byte {@code bad} is in. */
    private long startOfBatch(long first, long bad) {
        long at = first;
        while (isWhole(at) && at + sizeAt(at) <= bad) {
            at += sizeAt(at);
        }
        return at;
    }

    // -- what is compressed ------------------------------------------------------------------

    /** Adds the batch at the position; null if decoding can go on behind it. */
    private Stop unpack() {
        int at = (int) (position - origin);
        long batchSize = sizeAt(position);
        long address = window.memoryAddress() + at;
        boolean isGood = magic(position) == 2
            && (!settings.checkCrcs() || Native.isSound(address, batchSize));
        if (!isGood) {
            return Stop.PYTHON;
        }
        int codec = window.nioBuffer(at, HEADER).getShort(ATTRIBUTES_AT) & CODEC;
        int content = unpacker.unpack(
            codec, window.nioBuffer(at + HEADER, (int) batchSize - HEADER));
        if (content < 0) {
            return Stop.PYTHON;
        }
        switch (records.section(address, batchSize, unpacker.address(), content, position)) {
            case Native.END:
                position += batchSize;
                return null;
            case Native.FULL:
                return Stop.FULL;
            default:
                return Stop.PYTHON;
        }
    }

    // -- windows -----------------------------------------------------------------------------

    /** Reads on, from the position; null if there is something. */
    private Stop read() {
        long remaining = split.endPosition() - position;
        long count = Math.min(size, remaining);
        if (remaining <= 0) { // below it where the bounds of a query leave nothing between them
            return Stop.SPLIT_ENDS;
        }
        if (position == origin && filled > 0) { // the batch is larger than the window
            if (filled == remaining) {
                // Still being written, if another process writes it; otherwise damage.
                return split.openEnd() ? Stop.SPLIT_ENDS : Stop.PYTHON;
            }
            long wanted = filled < HEADER ? WINDOW : sizeAt(position);
            long most = Math.max(WINDOW_MAX, Math.min(settings.batchMax(), BATCH_MAX));
            if (wanted > most || wanted <= filled) {
                return Stop.PYTHON;
            }
            count = Math.min(wanted, remaining);
            size = (int) Math.min(Math.max(wanted, size), WINDOW_MAX);
        }
        if (task != null) {
            task.killTaskIfInterrupted();
        }
        long there = window == null ? 0 : window.capacity();
        if (there < count || there > WINDOW_MAX && count <= WINDOW_MAX) {
            closeWindow();
            window = batches.allocator().buffer(count);
        }
        filled = 0;
        if (!file.read(window, count, position)) {
            return Stop.PYTHON;
        }
        origin = position;
        filled = count;
        above = last;
        long[] offset = {above};
        ordered = Native.order(window.memoryAddress(), filled, split.below(), offset);
        if (ordered < 0) {
            return Stop.PYTHON;
        }
        last = offset[0];
        if (check != null) {
            checkMarkers();
        }
        return null;
    }

    /** Of each batch once. */
    private void checkMarkers() {
        ByteBuffer data = window.nioBuffer(0, (int) filled);
        while (!isSuspicious && isWhole(checked)) {
            long size = sizeAt(checked);
            isSuspicious = !check.add(data, (int) (checked - origin), (int) size);
            checked += isSuspicious ? 0 : size;
        }
    }

    private boolean isWhole(long at) {
        long there = origin + filled - at;
        return there > MAGIC_AT && sizeAt(at) > MAGIC_AT && sizeAt(at) <= there;
    }

    private long sizeAt(long at) {
        return PREFIX + (long) Integer.reverseBytes(window.getInt(at - origin + LENGTH_AT));
    }

    private int magic(long at) {
        return window.getByte(at - origin + MAGIC_AT);
    }

    // -- the end -----------------------------------------------------------------------------

    private void handOver() {
        Position here = settings.aggregates().isEmpty()
            ? new Position(index, position, offsetBefore(position), left, markers)
            : null; // nothing was given yet
        release();
        python = rest.from(here, batches);
    }

    /** Of the batches before that byte, as far as the window shows. */
    private long offsetBefore(long at) {
        if (window == null || at < origin) {
            return split.above();
        }
        long[] offset = {above};
        long end = Math.min(at - origin, filled);
        Native.order(window.memoryAddress(), end, split.below(), offset);
        return offset[0];
    }

    private void closeFile() {
        if (file != null) {
            file.close();
            file = null;
        }
    }

    private void closeWindow() {
        if (window != null) {
            window.close();
            window = null;
        }
    }

    private void release() {
        closeFile();
        closeWindow();
        unpacker.close();
        records.close();
    }

    @Override
    public void close() {
        ColumnReader waiting = python;
        if (waiting != null) {
            waiting.stop();
        }
        synchronized (this) {
            if (isClosed) {
                return;
            }
            isClosed = true;
            release();
            if (python != null) {
                python.close();
            }
            batches.close();
        }
    }
}
