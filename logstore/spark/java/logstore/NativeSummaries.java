package logstore;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import logstore.NativePlan.Split;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.BigIntVector;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.IntVector;
import org.apache.arrow.vector.TimeStampMicroTZVector;
import org.apache.arrow.vector.VarCharVector;
import org.apache.arrow.vector.types.pojo.Field;
import org.apache.arrow.vector.util.Text;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.ArrowUtils;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;

/**
 * A row of aggregates for each value of the columns before them, as {@code aggregated} of {@code
 * columnar.py} makes it: at the end of the task, so Python can still read all of it.
 */
final class NativeSummaries extends NativeRecords {
    private static final long TIME_MAX = Long.MAX_VALUE / 1000; // beyond it there is null in Spark

    private static final Map<String, Integer> EXTREMES = Map.of(
        "count(*)", 0,
        "min(offset)", Native.MIN_OFFSET,
        "max(offset)", Native.MAX_OFFSET,
        "min(timestamp)", Native.MIN_TIMESTAMP,
        "max(timestamp)", Native.MAX_TIMESTAMP);

    /** As {@code ls_summary}. */
    private record Summary(
            long rows, long minOffset, long maxOffset, long minTimestamp, long maxTimestamp) {
        static final Summary NONE =
            new Summary(0, Long.MAX_VALUE, Long.MIN_VALUE, Long.MAX_VALUE, Long.MIN_VALUE);

        Summary and(Summary other) {
            return new Summary(
                rows + other.rows,
                Math.min(minOffset, other.minOffset),
                Math.max(maxOffset, other.maxOffset),
                Math.min(minTimestamp, other.minTimestamp),
                Math.max(maxTimestamp, other.maxTimestamp));
        }

        /** In Spark's units; null for an extreme of no row. */
        Long value(int extreme) {
            if (extreme == 0) {
                return rows;
            }
            if (rows == 0) {
                return null;
            }
            switch (extreme) {
                case Native.MIN_OFFSET:
                    return minOffset;
                case Native.MAX_OFFSET:
                    return maxOffset;
                case Native.MIN_TIMESTAMP:
                    return 1000 * minTimestamp;
                default:
                    return 1000 * maxTimestamp;
            }
        }
    }

    private final BufferAllocator allocator;
    private final List<Field> fields;
    private final int groupColumns;
    private final int[] extremes;
    private final Map<List<Object>, Summary> found = new LinkedHashMap<>();

    /** The last columns of {@code schema} are the aggregates. */
    NativeSummaries(StructType schema, List<String> aggregates, BufferAllocator allocator) {
        super(0, true, aggregates.stream().mapToInt(EXTREMES::get).reduce(0, (a, b) -> a | b));
        this.allocator = allocator;
        fields = ArrowUtils.toArrowSchema(schema, "UTC", false).getFields();
        extremes = aggregates.stream().mapToInt(EXTREMES::get).toArray();
        groupColumns = fields.size() - extremes.length;
        if (groupColumns == 0) {
            found.put(List.of(), Summary.NONE);
        }
    }

    @Override
    boolean end(Split split) {
        long[] n = new long[5];
        Native.summary(reader(), n);
        if (n[0] == 0) {
            return true;
        }
        List<Object> group = new ArrayList<>();
        fields.subList(0, groupColumns).forEach(field -> group.add(valueOf(field, split)));
        found.merge(group, new Summary(n[0], n[1], n[2], n[3], n[4]), Summary::and);
        return isTime(n[3], Native.MIN_TIMESTAMP) && isTime(n[4], Native.MAX_TIMESTAMP);
    }

    private boolean isTime(long value, int extreme) {
        boolean isWanted = Arrays.stream(extremes).anyMatch(each -> each == extreme);
        return !isWanted || value >= -TIME_MAX && value <= TIME_MAX;
    }

    private static Object valueOf(Field field, Split split) {
        switch (field.getName()) {
            case "topic":
                return split.topic();
            case "broker":
                return split.broker();
            case "partition":
                return (long) split.partition();
            case "segment":
                return split.segment();
            default:
                throw new LogstoreException("no groups by " + field.getName());
        }
    }

    @Override
    void end() {
        state[ROWS] = found.size();
    }

    @Override
    ColumnVector[] columns(Split split, int rows) {
        List<FieldVector> vectors = new ArrayList<>();
        try {
            for (Field field : fields) {
                FieldVector vector = field.createVector(allocator);
                vectors.add(vector);
                vector.setInitialCapacity(rows);
                vector.allocateNew();
            }
            int row = 0;
            for (Map.Entry<List<Object>, Summary> each : found.entrySet()) {
                for (int i = 0; i < fields.size(); i++) {
                    Object value = i < groupColumns
                        ? each.getKey().get(i)
                        : each.getValue().value(extremes[i - groupColumns]);
                    set(vectors.get(i), row, value);
                }
                row++;
            }
            vectors.forEach(vector -> vector.setValueCount(rows));
        } catch (RuntimeException | Error error) {
            vectors.forEach(FieldVector::close);
            throw error;
        }
        found.clear();
        state[ROWS] = 0;
        return vectors.stream().map(ArrowColumnVector::new).toArray(ColumnVector[]::new);
    }

    private static void set(FieldVector vector, int row, Object value) {
        if (value == null) {
            vector.setNull(row);
        } else if (vector instanceof VarCharVector texts) {
            texts.setSafe(row, new Text((String) value));
        } else if (vector instanceof IntVector numbers) {
            numbers.set(row, ((Long) value).intValue());
        } else if (vector instanceof TimeStampMicroTZVector times) {
            times.set(row, (Long) value);
        } else {
            ((BigIntVector) vector).set(row, (Long) value);
        }
    }
}
