package logstore;

import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Set;
import logstore.NativePlan.Split;
import org.apache.arrow.memory.ArrowBuf;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.ipc.message.ArrowFieldNode;
import org.apache.arrow.vector.types.pojo.Field;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.ArrowUtils;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;

/**
 * Columns that the library fills with records, and what becomes of them in Spark. The blocks of the
 * library are the buffers of Arrow's vectors; nothing is copied.
 */
final class NativeColumns extends NativeRecords {
    private static final Set<String> OF_RECORDS =
        Set.of("key", "value", "offset", "timestamp", "headers");
    private static final Set<String> OF_SPLITS = Set.of("topic", "partition", "broker", "segment");

    private final StructField[] fields;
    private final List<Field> arrowFields;
    private final BufferAllocator allocator;
    private final boolean hasRuns;

    NativeColumns(StructType schema, BufferAllocator allocator) {
        super(columnsOf(schema), false, 0);
        fields = schema.fields();
        arrowFields = ArrowUtils.toArrowSchema(schema, "UTC", false).getFields();
        this.allocator = allocator;
        hasRuns = (columnsOf(schema) & Native.RUNS) != 0;
    }

    private static int columnsOf(StructType schema) {
        int columns = 0;
        for (StructField field : schema.fields()) {
            columns |= columnOf(field.name());
        }
        return columns;
    }

    private static int columnOf(String name) {
        switch (name) {
            case "key":
                return Native.KEYS;
            case "value":
                return Native.VALUES;
            case "timestamp":
                return Native.TIMESTAMPS;
            case "headers":
                return Native.HEADERS;
            default:
                return OF_RECORDS.contains(name) || OF_SPLITS.contains(name) ? 0 : Native.RUNS;
        }
    }

    @Override
    ColumnVector[] columns(Split split, int rows) {
        BatchRuns runs = hasRuns ? new BatchRuns(reader()) : null;
        List<ColumnVector> columns = new ArrayList<>();
        try (Blocks blocks = finish()) {
            for (int i = 0; i < fields.length; i++) {
                ColumnVector column = column(i, rows, split, blocks, runs);
                if (column == null) {
                    columns.forEach(ColumnVector::close);
                    return null;
                }
                columns.add(column);
            }
            return columns.toArray(new ColumnVector[0]);
        } catch (RuntimeException | Error error) {
            columns.forEach(ColumnVector::close);
            throw error;
        }
    }

    private Blocks finish() {
        state[ROWS] = 0;
        long[] numbers = new long[Blocks.NUMBERS];
        if (!Native.finish(reader(), numbers)) {
            throw new LogstoreException(NO_MEMORY);
        }
        return new Blocks(allocator, numbers);
    }

    private ColumnVector column(int i, int rows, Split split, Blocks blocks, BatchRuns runs) {
        Field field = arrowFields.get(i);
        switch (field.getName()) {
            case "offset":
                return numbers(field, rows, 0, null, blocks.offsets());
            case "timestamp":
                return timestamps(field, rows, blocks.timestamps());
            case "key":
                return new ArrowColumnVector(strings(field, rows, blocks.keys()));
            case "value":
                return new ArrowColumnVector(strings(field, rows, blocks.values()));
            case "headers":
                return headers(field, rows, blocks);
            case "topic":
                return Constants.text(rows, split.topic());
            case "broker":
                return Constants.text(rows, split.broker());
            case "partition":
                return Constants.number(rows, fields[i].dataType(), split.partition());
            case "segment":
                return Constants.number(rows, fields[i].dataType(), split.segment());
            default:
                return runs.column(field, fields[i].dataType(), rows, blocks.offsets(), allocator);
        }
    }

    private ColumnVector numbers(
            Field field, int rows, long nulls, ArrowBuf valid, ArrowBuf numbers) {
        FieldVector vector = field.createVector(allocator);
        vector.loadFieldBuffers(new ArrowFieldNode(rows, nulls), Arrays.asList(valid, numbers));
        return new ArrowColumnVector(vector);
    }

    private ColumnVector timestamps(Field field, int rows, ArrowBuf milliseconds) {
        try (ArrowBuf valid = bits(rows)) {
            long nulls =
                Native.micros(milliseconds.memoryAddress(), rows, valid.memoryAddress());
            return numbers(field, rows, nulls, valid, milliseconds);
        }
    }

    private FieldVector strings(Field field, int rows, Blocks.Strings strings) {
        FieldVector vector = field.createVector(allocator);
        load(vector, rows, strings);
        return vector;
    }

    private static void load(FieldVector vector, int rows, Blocks.Strings strings) {
        vector.loadFieldBuffers(
            new ArrowFieldNode(rows, strings.nulls()),
            Arrays.asList(strings.valid(), strings.offsets(), strings.data()));
    }

    /** As in Spark's source: null for a record without headers. Null for names that are no UTF-8. */
    private ColumnVector headers(Field field, int rows, Blocks blocks) {
        if (!areTexts(blocks.headerNames())) {
            return null;
        }
        int count = (int) blocks.headerNames().count();
        FieldVector lists = field.createVector(allocator);
        try (ArrowBuf valid = bits(rows)) {
            long nulls = Native.emptyLists(
                blocks.headerLists().memoryAddress(), rows, valid.memoryAddress());
            lists.loadFieldBuffers(
                new ArrowFieldNode(rows, nulls), Arrays.asList(valid, blocks.headerLists()));
            FieldVector pairs = lists.getChildrenFromFields().get(0);
            pairs.loadFieldBuffers(new ArrowFieldNode(count, 0), Arrays.asList((ArrowBuf) null));
            for (FieldVector part : pairs.getChildrenFromFields()) {
                boolean isName = part.getName().equals("key");
                load(part, count, isName ? blocks.headerNames() : blocks.headerValues());
            }
            return new ArrowColumnVector(lists);
        } catch (RuntimeException | Error error) {
            lists.close();
            throw error;
        }
    }

    private static boolean areTexts(Blocks.Strings names) {
        ArrowBuf data = names.data();
        if (Native.isAscii(data.memoryAddress(), data.capacity())) {
            return true;
        }
        try {
            for (long i = 0; i < names.count(); i++) {
                int start = names.offsets().getInt(4 * i);
                int size = names.offsets().getInt(4 * i + 4) - start;
                StandardCharsets.UTF_8.newDecoder().decode(data.nioBuffer(start, size));
            }
            return true;
        } catch (CharacterCodingException error) {
            return false;
        }
    }

    private ArrowBuf bits(int rows) {
        return allocator.buffer((rows + 7) / 8);
    }
}
