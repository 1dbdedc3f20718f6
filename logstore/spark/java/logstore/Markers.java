package logstore;

import java.nio.ByteBuffer;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import logstore.NativePlan.Split;

/**
 * Looks, as {@code MarkerCheck} does, whether each ABORT marker of what a task reads was known when
 * the task was planned. What is suspicious is left to Python, with the transactions that are open.
 */
final class Markers {
    private static final int HEADER = 61;
    private static final int CODEC = 7, TRANSACTIONAL = 0x10, CONTROL = 0x20;

    private final Map<String, Map<Long, Long>> openSince = new TreeMap<>();

    /** For each partition's directory the first offsets of open transactions, by producer. */
    Map<String, Map<Long, Long>> openSince() {
        return openSince;
    }

    /** For the batches of one split, in the order of the log. */
    final class OfSplit {
        private final Split split;
        private final Map<Long, Long> open;
        private final Set<List<Long>> known = new HashSet<>();

        OfSplit(Split split) {
            this.split = split;
            open = openSince.computeIfAbsent(split.uri(), uri -> new HashMap<>());
            for (int i = 0; i < split.aborted().length; i += 3) {
                known.add(List.of(split.aborted()[i], split.aborted()[i + 2]));
            }
        }

        /** Whether Python need not look at the whole batch at {@code at}. */
        boolean add(ByteBuffer data, int at, int size) {
            if (size < HEADER || data.get(at + 16) != 2) {
                return false;
            }
            int attributes = data.getShort(at + 21);
            long offset = data.getLong(at);
            if ((attributes & TRANSACTIONAL) == 0
                    || offset < split.fromOffset() || offset >= split.endOffset()) {
                return true;
            }
            long producer = data.getLong(at + 43);
            if ((attributes & CONTROL) == 0) {
                open.putIfAbsent(producer, offset);
                return true;
            }
            int type = (attributes & CODEC) == 0 ? typeOf(data, at, size) : UNKNOWN;
            if (type == UNKNOWN || type == ABORT && open.containsKey(producer)
                    && !known.contains(List.of(producer, offset))) {
                return false;
            }
            open.remove(producer);
            return true;
        }
    }

    private static final int UNKNOWN = -1, ABORT = 0, COMMIT = 1;
    private static final int RECORD = 16, KEY = 4, VALUE = 6; // bytes

    /** Of the control record as brokers write it, with deltas of 0 and numbers of one byte. */
    private static int typeOf(ByteBuffer data, int at, int size) {
        int record = at + HEADER;
        boolean isUsual = size == HEADER + 1 + RECORD
            && data.getInt(at + 57) == 1
            && data.get(record) == 2 * RECORD
            && data.getShort(record + 2) == 0
            && data.get(record + 4) == 2 * KEY
            && data.getShort(record + 5) == 0
            && data.get(record + 9) == 2 * VALUE
            && data.getShort(record + 10) >= 0;
        int type = isUsual ? data.getShort(record + 7) : UNKNOWN;
        return type == ABORT || type == COMMIT ? type : UNKNOWN;
    }
}
