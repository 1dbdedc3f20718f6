package logstore;

import java.io.UncheckedIOException;
import java.nio.channels.ClosedByInterruptException;
import java.util.Map;
import java.util.Optional;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.ReadLimit;
import org.apache.spark.sql.connector.read.streaming.ReportsSourceMetrics;
import org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow;

/**
 * One streaming query. A Python worker of its own decides what each micro-batch reads, and knows from
 * one trigger to the next what it saw of the logs. Tasks are those of a batch query. The worker starts
 * at the first question, as Spark stops no source of a query until it has prepared all of them.
 */
final class LogstoreStream
        implements MicroBatchStream, SupportsTriggerAvailableNow, ReportsSourceMetrics {
    private final Python python;
    private final LogstoreScan.Query query;
    private Worker worker;
    private byte[] reader;
    private Offset latest;
    private boolean isAvailableNow;
    private boolean ended;

    LogstoreStream(Python python, LogstoreScan.Query query) {
        this.python = python;
        this.query = query;
    }

    @Override
    public Offset initialOffset() {
        return ask(new Request("initial"), Position::read);
    }

    @Override
    public Offset deserializeOffset(String json) {
        return new Position(json);
    }

    @Override
    public ReadLimit getDefaultReadLimit() {
        return new OwnLimit();
    }

    @Override
    public Offset latestOffset() {
        throw new UnsupportedOperationException("asked with a limit");
    }

    @Override
    public Offset latestOffset(Offset start, ReadLimit limit) {
        Request next = new Request("next")
            .text(start.json())
            .number(limit instanceof OwnLimit ? 1 : 0);
        return ask(next, worker -> {
            Offset end = Position.read(worker);
            latest = Position.read(worker);
            return end;
        });
    }

    @Override
    public Offset reportLatestOffset() {
        return latest;
    }

    @Override
    public void prepareForTriggerAvailableNow() {
        isAvailableNow = true;
    }

    @Override
    public InputPartition[] planInputPartitions(Offset start, Offset end) {
        Request plan = new Request("plan")
            .text(start.json())
            .text(end.json())
            .number(Native.isWanted() ? 1 : 0);
        return ask(plan, LogstoreScan.Task::readAll);
    }

    @Override
    public PartitionReaderFactory createReaderFactory() {
        return new LogstoreScan.Factory(
            python, reader, query.required(), LogstoreScan.isByColumn());
    }

    @Override
    public Map<String, String> metrics(Optional<Offset> consumed) {
        if (consumed.isEmpty() || latest == null || ended) {
            return Map.of();
        }
        return ask(new Request("behind").text(consumed.get().json()), Worker::readOptions);
    }

    @Override
    public void commit(Offset end) {}

    @Override
    public void stop() {
        ended = true;
        if (worker != null) {
            worker.destroyUnlessReleased();
        }
    }

    @Override
    public String toString() {
        return "logstore[" + query.options().getOrDefault("path", query.options().get("paths")) + "]";
    }

    /** An error ends the conversation: Python has left it, and the query fails. */
    private <T> T ask(Request request, Requests.Content<T> content) {
        if (ended) {
            throw new LogstoreException("the stream has ended");
        }
        try {
            if (worker == null) {
                open();
            }
            return answer(request, content);
        } catch (RuntimeException error) {
            stop();
            throw orStopped(error);
        }
    }

    private void open() {
        worker = Worker.start(python);
        Request open = new Request("stream").options(query.options()).text(query.required().json());
        reader = answer(open.number(isAvailableNow ? 1 : 0), Worker::readBytes);
    }

    private <T> T answer(Request request, Requests.Content<T> content) {
        worker.send(request);
        worker.answer();
        return content.of(worker);
    }

    /** A query that is stopped interrupts its thread, and has not failed if it is told so. */
    private static RuntimeException orStopped(RuntimeException error) {
        boolean isStopped = error.getCause() instanceof InterruptedException;
        if (!isStopped && !Thread.currentThread().isInterrupted()) {
            return error;
        }
        ClosedByInterruptException stopped = new ClosedByInterruptException();
        stopped.initCause(error);
        return new UncheckedIOException(stopped);
    }

    /** What the options of the query say. */
    private record OwnLimit() implements ReadLimit {}

    /** Where a stream is, in the text that Python makes and reads. */
    private static final class Position extends Offset {
        private final String json;

        Position(String json) {
            this.json = json;
        }

        static Offset read(Worker worker) {
            return new Position(worker.readText());
        }

        @Override
        public String json() {
            return json;
        }
    }
}
