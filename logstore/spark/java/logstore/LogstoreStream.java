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
import org.apache.spark.sql.connector.read.streaming.ReadMaxRows;
import org.apache.spark.sql.connector.read.streaming.ReportsSourceMetrics;
import org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow;

/**
 * One streaming query. A Python worker of its own decides what each micro-batch reads, and knows from
 * one trigger to the next what it saw of the logs. Tasks are those of a batch query.
 */
final class LogstoreStream
        implements MicroBatchStream, SupportsTriggerAvailableNow, ReportsSourceMetrics {
    private final Python python;
    private final LogstoreScan.Query query;
    private final Worker worker;
    private final byte[] reader;
    private final String maxOffsets;
    private Offset latest;
    private boolean ended;

    LogstoreStream(Python python, LogstoreScan.Query query) {
        this.python = python;
        this.query = query;
        worker = start(python);
        Request open = new Request("stream").options(query.options()).text(query.required().json());
        reader = ask(open, Worker::readBytes);
        maxOffsets = worker.readText();
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
        return maxOffsets.isEmpty()
            ? ReadLimit.allAvailable()
            : ReadLimit.maxRows(Long.parseLong(maxOffsets));
    }

    @Override
    public Offset latestOffset() {
        throw new UnsupportedOperationException("asked with a limit");
    }

    @Override
    public Offset latestOffset(Offset start, ReadLimit limit) {
        String most = limit instanceof ReadMaxRows rows ? Long.toString(rows.maxRows()) : "";
        Request next = new Request("next").text(start.json()).text(most);
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
        ask(new Request("available now"), worker -> null);
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
        worker.destroyUnlessReleased();
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
            worker.send(request);
            worker.answer();
            return content.of(worker);
        } catch (RuntimeException error) {
            stop();
            throw orStopped(error);
        }
    }

    /** A query that is stopped interrupts its thread, and has not failed if it is told so. */
    private static RuntimeException orStopped(RuntimeException error) {
        if (!Thread.currentThread().isInterrupted()) {
            return error;
        }
        ClosedByInterruptException stopped = new ClosedByInterruptException();
        stopped.initCause(error);
        return new UncheckedIOException(stopped);
    }

    private static Worker start(Python python) {
        try {
            return Worker.start(python);
        } catch (LogstoreException error) {
            throw orStopped(error);
        }
    }

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
