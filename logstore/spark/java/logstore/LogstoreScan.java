package logstore;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.internal.SQLConf;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** One query: planned by Python when it runs, read by Python where its tasks run. */
final class LogstoreScan implements Scan, Batch {
    private final Query query;
    private final Python interpreter = Python.ofSession();
    private Plan plan;

    LogstoreScan(Query query) {
        this.query = query;
    }

    @Override
    public StructType readSchema() {
        return query.required();
    }

    @Override
    public String description() {
        List<String> words = new ArrayList<>();
        words.add("logstore " + Arrays.toString(query.required().fieldNames()));
        List<Predicate> exact = new ArrayList<>(List.of(query.predicates()));
        exact.removeAll(List.of(query.left()));
        words.add("PushedPredicates: " + exact);
        if (query.left().length > 0) {
            words.add("left to Spark: " + Arrays.toString(query.left()));
        }
        if (!query.aggregates().isEmpty()) {
            words.add("PushedAggregates: " + query.aggregates());
        }
        if (query.limit() != Query.NO_LIMIT) {
            words.add(query.order().words + query.limit());
        }
        return String.join(", ", words);
    }

    @Override
    public Batch toBatch() {
        return this;
    }

    @Override
    public MicroBatchStream toMicroBatchStream(String checkpoint) {
        return new LogstoreStream(interpreter, query);
    }

    @Override
    public InputPartition[] planInputPartitions() {
        return plan().tasks();
    }

    @Override
    public PartitionReaderFactory createReaderFactory() {
        return new Factory(interpreter, plan().reader(), query.required(), isByColumn());
    }

    /** Spark 4.3 makes columns of rows for Python functions; without a limit it never ends there. */
    static boolean isByColumn() {
        SQLConf conf = SQLConf.get();
        return conf.arrowMaxRecordsPerBatch() > 0 || !conf.arrowPySparkUDFColumnarInputEnabled();
    }

    private synchronized Plan plan() {
        if (plan == null) {
            plan = new Requests(interpreter).plan(query);
        }
        return plan;
    }

    /**
     * What one query wants: columns {@code required} of a table with {@code schema}, where the {@code
     * predicates} hold; Spark itself sees to those {@code left}. The last columns are {@code
     * aggregates}, if there are any, for each value of the columns before. {@code limit} rows are
     * enough: of each task, or those that {@code order} says.
     */
    record Query(
            CaseInsensitiveStringMap options,
            StructType schema,
            StructType required,
            Predicate[] predicates,
            Predicate[] left,
            List<String> aggregates,
            int limit,
            Order order) {
        static final int NO_LIMIT = -1;
    }

    enum Order {
        ANY("limit "),
        LOWEST_OFFSETS("PushedTopN: offset ASC limit "),
        HIGHEST_OFFSETS("PushedTopN: offset DESC limit ");

        final String words;

        Order(String words) {
            this.words = words;
        }
    }

    /** How tasks are read, and what each of them reads, in Python's words. */
    record Plan(byte[] reader, Task[] tasks) {}

    /** {@code plan} is what the JVM needs to read it; "" if only Python can. */
    record Task(byte[] splits, String plan) implements InputPartition {
        static Task[] readAll(Worker worker) {
            Task[] tasks = new Task[worker.readInt()];
            Arrays.setAll(tasks, i -> new Task(worker.readBytes(), worker.readText()));
            return tasks;
        }
    }

    record Factory(Python python, byte[] reader, StructType schema, boolean isByColumn)
            implements PartitionReaderFactory {
        @Override
        public PartitionReader<InternalRow> createReader(InputPartition partition) {
            return new RowReader(createColumnarReader(partition));
        }

        @Override
        public PartitionReader<ColumnarBatch> createColumnarReader(InputPartition partition) {
            Task task = (Task) partition;
            NativeReader.Rest rest = (position, batches) ->
                new ColumnReader(python, reader, task.splits(), position, batches);
            TaskBatches batches = new TaskBatches(schema);
            if (task.plan().isEmpty() || !Native.isThere()) {
                return rest.from(null, batches);
            }
            return new NativeReader(NativePlan.of(task.plan()), schema, batches, rest);
        }

        @Override
        public boolean supportColumnarReads(InputPartition partition) {
            return isByColumn;
        }
    }
}
