package logstore;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.Iterator;
import java.util.List;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.vector.FieldVector;
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
    private final Deque<Runnable> users = new ArrayDeque<>();
    private volatile boolean isFreed;

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

    /** Run {@code close} before the memory is gone: a task that ends early closes its reader late. */
    void closeFirst(Runnable close) {
        users.push(close);
    }

    /** Takes the columns over: the caller is rid of them, also by an exception. */
    synchronized ColumnarBatch batch(ColumnVector[] columns, int rows) {
        List<FieldVector> vectors = new ArrayList<>();
        for (ColumnVector column : columns) {
            if (column instanceof ArrowColumnVector arrow) {
                vectors.add((FieldVector) arrow.getValueVector());
            }
        }
        held.removeIf(TaskBatches::isClosed);
        if (isFreed) {
            vectors.forEach(FieldVector::close);
            throw new LogstoreException("the task has ended");
        }
        held.add(vectors);
        check(columns);
        if (columns.length > 0 && columns[0] instanceof ArrowColumnVector) {
            columns[0] = new OpaqueVector(columns[0]);
        }
        return new ColumnarBatch(columns, rows);
    }

    /** With other columns than Spark was promised it would read one as another. */
    private void check(ColumnVector[] columns) {
        boolean isSame = columns.length == names.length;
        for (int i = 0; isSame && i < names.length; i++) {
            boolean isNamed = !(columns[i] instanceof ArrowColumnVector)
                || nameOf(columns[i]).equals(names[i]);
            isSame = isNamed && columns[i].dataType().catalogString().equals(types[i]);
        }
        if (!isSame) {
            List<String> expected = new ArrayList<>();
            for (int i = 0; i < names.length; i++) {
                expected.add(names[i] + " " + types[i]);
            }
            List<String> found = new ArrayList<>();
            for (ColumnVector column : columns) {
                found.add(nameOf(column) + " " + column.dataType().catalogString());
            }
            throw new LogstoreException(
                "a batch with the columns " + found + " in place of " + expected);
        }
    }

    private static String nameOf(ColumnVector column) {
        return column instanceof ArrowColumnVector arrow
            ? ((FieldVector) arrow.getValueVector()).getField().getName()
            : "a constant";
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
        if (isFreed) {
            return;
        }
        users.forEach(Runnable::run); // without the lock: a reader waits for its own, and then for it
        synchronized (this) {
            isFreed = true;
            for (Iterator<List<FieldVector>> each = held.iterator(); each.hasNext(); each.remove()) {
                each.next().forEach(FieldVector::close);
            }
            allocator.close();
        }
    }
}
