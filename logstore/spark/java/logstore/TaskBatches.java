package logstore;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.Iterator;
import java.util.List;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.types.pojo.Field;
import org.apache.spark.TaskContext;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.ArrowUtils;
import org.apache.spark.sql.vectorized.ArrowColumnVector;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.util.TaskCompletionListener;

/**
 * The batches that one task was given, and the memory that they lie in. Spark may still hold some
 * of them when it asks for the next one, and after it has closed the reader: those that it does not
 * close are freed at the end of the task.
 */
final class TaskBatches {
    private final String[] names;
    private final String[] types;
    private final BufferAllocator allocator;
    private final Deque<List<FieldVector>> held = new ArrayDeque<>();
    private final boolean hasTask;

    TaskBatches(StructType schema) {
        names = schema.fieldNames();
        types = new String[names.length];
        for (int i = 0; i < types.length; i++) {
            types[i] = schema.fields()[i].dataType().catalogString();
        }
        allocator = ArrowUtils.rootAllocator().newChildAllocator("logstore", 0, Long.MAX_VALUE);
        TaskContext task = TaskContext.get();
        hasTask = task != null;
        if (hasTask) {
            task.addTaskCompletionListener((TaskCompletionListener) ended -> free());
        }
    }

    BufferAllocator allocator() {
        return allocator;
    }

    /** Takes the vectors over: the caller is rid of them, also by an exception. */
    ColumnarBatch batch(List<FieldVector> vectors, int rows) {
        held.removeIf(TaskBatches::isClosed);
        held.add(vectors);
        check(vectors);
        ColumnVector[] columns = new ColumnVector[vectors.size()];
        for (int i = 0; i < columns.length; i++) {
            columns[i] = new ArrowColumnVector(vectors.get(i));
        }
        if (columns.length > 0) {
            columns[0] = new OpaqueVector(columns[0]);
        }
        return new ColumnarBatch(columns, rows);
    }

    /** With other columns than Spark was promised it would read one as another. */
    private void check(List<FieldVector> vectors) {
        boolean same = vectors.size() == names.length;
        for (int i = 0; same && i < names.length; i++) {
            Field field = vectors.get(i).getField();
            same = field.getName().equals(names[i])
                && ArrowUtils.fromArrowField(field).catalogString().equals(types[i]);
        }
        if (!same) {
            List<String> expected = new ArrayList<>();
            for (int i = 0; i < names.length; i++) {
                expected.add(names[i] + " " + types[i]);
            }
            List<String> found = new ArrayList<>();
            for (FieldVector vector : vectors) {
                Field field = vector.getField();
                found.add(field.getName() + " " + ArrowUtils.fromArrowField(field).catalogString());
            }
            throw new LogstoreException(
                "a batch with the columns " + found + " in place of " + expected);
        }
    }

    private static boolean isClosed(List<FieldVector> vectors) {
        for (FieldVector vector : vectors) {
            if (vector.getBufferSize() > 0) {
                return false;
            }
        }
        return true;
    }

    /** The reader is done. Without a task nobody else says when. */
    void close() {
        if (!hasTask) {
            free();
        }
    }

    private void free() {
        for (Iterator<List<FieldVector>> each = held.iterator(); each.hasNext(); each.remove()) {
            each.next().forEach(FieldVector::close);
        }
        allocator.close();
    }
}
