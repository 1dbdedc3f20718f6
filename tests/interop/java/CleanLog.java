package logstore.interop;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;

import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.message.FetchResponseData.AbortedTransaction;
import org.apache.kafka.common.record.internal.ControlRecordType;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.storage.log.FetchIsolation;
import org.apache.kafka.server.util.KafkaScheduler;
import org.apache.kafka.storage.internals.log.AbortedTxn;
import org.apache.kafka.storage.internals.log.Cleaner;
import org.apache.kafka.storage.internals.log.CleanerStats;
import org.apache.kafka.storage.internals.log.FetchDataInfo;
import org.apache.kafka.storage.internals.log.LogCleanerManager;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogOffsetsListener;
import org.apache.kafka.storage.internals.log.LogSegment;
import org.apache.kafka.storage.internals.log.LogToClean;
import org.apache.kafka.storage.internals.log.PreCleanStats;
import org.apache.kafka.storage.internals.log.ProducerStateEntry;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.SkimpyOffsetMap;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.internals.utils.Throttler;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

import java.io.BufferedReader;
import java.io.File;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.Comparator;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Queue;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;

/**
 * Cleans logs with Kafka's own cleaner and tells what a consumer reads of them: one JSON object a
 * line on standard input is one request, one JSON object a line on standard output its answer.
 * kafka_cleaner.py builds the requests and says what their fields mean.
 *
 * <p>What to clean is chosen by LogCleanerManager from the directory's cleaner-offset-checkpoint,
 * as in a broker. The time is that of the request and stands still. A request that fails is
 * answered with {@code error}; the process serves on.
 */
public final class CleanLog {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final int TRANSACTION_TIMEOUT_MAX_MS = 900_000;
    private static final int PRODUCER_CHECK_MS = 600_000;

    private CleanLog() {
    }

    public static void main(String[] args) throws Exception {
        PrintStream out = System.out;
        System.setOut(System.err); // whatever a library may print is no answer
        BufferedReader requests =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            out.println(JSON.writeValueAsString(answer(JSON.readTree(line))));
            out.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    private static Map<String, Object> answer(JsonNode request) {
        try (Opened opened = new Opened(request)) {
            return switch (request.get("op").asText()) {
                case "clean" -> clean(request, opened);
                case "read" -> read(opened.log);
                default -> throw new IOException("unknown operation: " + request);
            };
        } catch (Exception | LinkageError e) {
            StringBuilder chain = new StringBuilder();
            for (Throwable cause = e; cause != null; cause = cause.getCause()) {
                chain.append(chain.isEmpty() ? "" : " <- ").append(cause);
                if (cause.getStackTrace().length > 0) {
                    chain.append(" at ").append(cause.getStackTrace()[0]);
                }
            }
            return Map.of("error", chain.toString());
        }
    }

    /** A clock that stands still. */
    private record FixedTime(long ms) implements Time {
        @Override
        public long milliseconds() {
            return ms;
        }

        @Override
        public long nanoseconds() {
            return TimeUnit.MILLISECONDS.toNanos(ms);
        }

        @Override
        public void sleep(long unused) {
            throw new UnsupportedOperationException("the time stands still");
        }

        @Override
        public void waitObject(Object object, Supplier<Boolean> condition, long deadlineMs) {
            throw new UnsupportedOperationException("the time stands still");
        }
    }

    /** One partition of a log directory, open. Closing leaves no file that waits for deletion. */
    private static final class Opened implements AutoCloseable {
        private final KafkaScheduler scheduler = new KafkaScheduler(1);
        private final LogDirFailureChannel failures = new LogDirFailureChannel(1);
        private final TopicPartition partition;
        private final Time time;
        private final File directory;
        private final UnifiedLog log;

        Opened(JsonNode request) throws IOException {
            directory = new File(request.get("directory").asText());
            partition = UnifiedLog.parseTopicPartitionName(directory);
            time = new FixedTime(request.get("nowMs").asLong());
            Map<String, String> config = new HashMap<>();
            request.get("config").properties()
                .forEach(each -> config.put(each.getKey(), each.getValue().asText()));
            config.put("file.delete.delay.ms", "0");
            scheduler.startup();
            log = UnifiedLog.create(
                directory, new LogConfig(config), request.get("logStartOffset").asLong(),
                request.get("recoveryPoint").asLong(), scheduler, new BrokerTopicStats(), time,
                TRANSACTION_TIMEOUT_MAX_MS,
                new ProducerStateManagerConfig(request.get("producerExpirationMs").asInt(), false),
                PRODUCER_CHECK_MS, failures, request.get("cleanShutdown").asBoolean(),
                Optional.empty(), new ConcurrentHashMap<>(), false,
                LogOffsetsListener.NO_OP_OFFSETS_LISTENER);
            long highWatermark = request.get("highWatermark").asLong();
            log.updateHighWatermark(highWatermark < 0 ? log.logEndOffset() : highWatermark);
        }

        @Override
        public void close() throws IOException {
            log.close();
            try {
                scheduler.shutdown();
            } catch (InterruptedException e) {
                throw new IOException(e);
            }
            for (File file : directory.listFiles()) {
                if (file.getName().endsWith(".deleted") && !file.delete()) {
                    throw new IOException("cannot delete " + file);
                }
            }
        }
    }

    // --- clean ----------------------------------------------------------------------------------

    private static Map<String, Object> clean(JsonNode request, Opened opened) throws Exception {
        Time time = opened.time;
        UnifiedLog log = opened.log;
        ConcurrentMap<TopicPartition, UnifiedLog> logs = new ConcurrentHashMap<>();
        logs.put(opened.partition, log);
        File logDir = opened.directory.getAbsoluteFile().getParentFile();
        LogCleanerManager manager =
            new LogCleanerManager(List.of(logDir), logs, opened.failures);
        Throttler throttler = new Throttler(Double.MAX_VALUE, 300, "cleaner-io", "bytes", time);
        Cleaner cleaner = new Cleaner(
            0, new SkimpyOffsetMap(request.get("dedupeBufferSize").asInt()),
            request.get("ioBufferSize").asInt(), log.config().maxMessageSize(),
            request.get("loadFactor").asDouble(), throttler, time, manager::checkCleaningAborted);
        List<Map<String, Object>> passes = new ArrayList<>();
        int most = request.get("passes").asInt();
        while (passes.size() < most) {
            Optional<LogToClean> next = manager.grabFilthiestCompactedLog(time, new PreCleanStats());
            if (next.isEmpty()) {
                break;
            }
            LogToClean chosen = next.get();
            Map.Entry<Long, CleanerStats> cleaned = cleaner.clean(chosen);
            manager.doneCleaning(opened.partition, logDir, cleaned.getKey());
            CleanerStats stats = cleaned.getValue();
            Map<String, Object> pass = new LinkedHashMap<>();
            pass.put("firstDirtyOffset", chosen.firstDirtyOffset());
            pass.put("firstUncleanableOffset", chosen.firstUncleanableOffset());
            pass.put("endOffset", cleaned.getKey());
            pass.put("messagesRead", stats.messagesRead());
            pass.put("messagesWritten", stats.messagesWritten());
            pass.put("bytesRead", stats.bytesRead());
            pass.put("bytesWritten", stats.bytesWritten());
            pass.put("invalidMessagesRead", stats.invalidMessagesRead());
            pass.put("bufferUtilization", stats.bufferUtilization());
            passes.add(pass);
        }
        manager.removeMetrics();
        if (opened.failures.hasOfflineLogDir(logDir.getPath())) {
            throw new IOException(logDir + " went offline");
        }
        return Map.of("passes", passes);
    }

    // --- read -----------------------------------------------------------------------------------

    private static Map<String, Object> read(UnifiedLog log) throws IOException {
        Map<String, Object> answer = new LinkedHashMap<>();
        answer.put("logStartOffset", log.logStartOffset());
        answer.put("logEndOffset", log.logEndOffset());
        answer.put("lastStableOffset", log.lastStableOffset());
        answer.put("batches", batches(log));
        answer.put("committed", committed(log));
        List<Map<String, Object>> segments = new ArrayList<>();
        for (LogSegment segment : log.logSegments()) {
            List<List<Long>> aborted = new ArrayList<>();
            for (AbortedTxn each : segment.txnIndex().allAbortedTxns()) {
                aborted.add(List.of(each.producerId(), each.firstOffset(), each.lastOffset(),
                    each.lastStableOffset()));
            }
            segments.add(Map.of("baseOffset", segment.baseOffset(),
                "largestTimestamp", segment.largestTimestamp(), "aborted", aborted));
        }
        answer.put("segments", segments);
        answer.put("producers", producers(log));
        return answer;
    }

    private static List<Map<String, Object>> producers(UnifiedLog log) {
        List<Map<String, Object>> producers = new ArrayList<>();
        for (ProducerStateEntry entry : log.producerStateManager().activeProducers().values()) {
            Map<String, Object> producer = new LinkedHashMap<>();
            producer.put("producerId", entry.producerId());
            producer.put("producerEpoch", entry.producerEpoch());
            producer.put("coordinatorEpoch", entry.coordinatorEpoch());
            producer.put("lastTimestamp", entry.lastTimestamp());
            producer.put("lastDataOffset", entry.lastDataOffset());
            producer.put("batches", entry.batchMetadata().stream()
                .map(each -> List.of((long) each.firstSeq(), (long) each.lastSeq(),
                    each.lastOffset(), each.timestamp())).toList());
            producer.put("currentTxnFirstOffset",
                entry.currentTxnFirstOffset().isPresent()
                    ? entry.currentTxnFirstOffset().getAsLong() : null);
            producers.add(producer);
        }
        producers.sort(Comparator.comparingLong(each -> (Long) each.get("producerId")));
        return producers;
    }

    /** All that is in the files, also below the log start offset. */
    private static List<Map<String, Object>> batches(UnifiedLog log) {
        List<Map<String, Object>> batches = new ArrayList<>();
        for (LogSegment segment : log.logSegments()) {
            for (RecordBatch batch : segment.log().batches()) {
                batch.ensureValid();
                batches.add(describe(batch));
            }
        }
        return batches;
    }

    /** The offsets of the records that a consumer with read_committed hands to its application. */
    private static List<Long> committed(UnifiedLog log) throws IOException {
        List<Long> offsets = new ArrayList<>();
        Queue<AbortedTransaction> coming = new ArrayDeque<>();
        Set<Long> aborting = new HashSet<>();
        long offset = log.logStartOffset();
        while (offset < log.lastStableOffset()) { // one fetch after the other, each of one segment
            FetchDataInfo fetched =
                log.read(offset, Integer.MAX_VALUE, FetchIsolation.TXN_COMMITTED, true);
            coming.clear(); // the answer to each fetch stands alone
            aborting.clear();
            fetched.abortedTransactions.orElse(List.of()).stream()
                .sorted(Comparator.comparingLong(AbortedTransaction::firstOffset))
                .forEach(coming::add);
            long start = offset;
            for (RecordBatch batch : fetched.records.batches()) {
                offset = batch.nextOffset();
                while (!coming.isEmpty() && coming.peek().firstOffset() <= batch.lastOffset()) {
                    aborting.add(coming.poll().producerId());
                }
                if (batch.isControlBatch()) {
                    for (Record record : batch) {
                        if (ControlRecordType.parse(record.key()) == ControlRecordType.ABORT) {
                            aborting.remove(batch.producerId());
                        }
                    }
                } else if (!(batch.isTransactional() && aborting.contains(batch.producerId()))) {
                    for (Record record : batch) {
                        if (record.offset() >= start) {
                            offsets.add(record.offset());
                        }
                    }
                }
            }
            if (offset == start) {
                break; // only offsets without batches are left
            }
        }
        return offsets;
    }

    private static Map<String, Object> describe(RecordBatch batch) {
        Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("magic", batch.magic());
        fields.put("baseOffset", batch.baseOffset());
        fields.put("lastOffset", batch.lastOffset());
        fields.put("leaderEpoch", batch.partitionLeaderEpoch());
        fields.put("compression", batch.compressionType().name);
        fields.put("timestampType", batch.timestampType().name);
        fields.put("maxTimestamp", batch.maxTimestamp());
        fields.put("producerId", batch.producerId());
        fields.put("producerEpoch", batch.producerEpoch());
        fields.put("baseSequence", batch.baseSequence());
        fields.put("lastSequence", batch.lastSequence());
        fields.put("transactional", batch.isTransactional());
        fields.put("control", batch.isControlBatch());
        fields.put("deleteHorizonMs",
            batch.deleteHorizonMs().isPresent() ? batch.deleteHorizonMs().getAsLong() : null);
        List<List<Object>> records = new ArrayList<>();
        for (Record record : batch) {
            List<List<String>> headers = new ArrayList<>();
            for (Header header : record.headers()) {
                headers.add(Arrays.asList(header.key(), base64(header.value())));
            }
            records.add(Arrays.asList(record.offset(), record.timestamp(), base64(record.key()),
                base64(record.value()), headers));
        }
        fields.put("records", records);
        return fields;
    }

    private static String base64(ByteBuffer bytes) {
        if (bytes == null) {
            return null;
        }
        byte[] copy = new byte[bytes.remaining()];
        bytes.duplicate().get(copy);
        return base64(copy);
    }

    private static String base64(byte[] bytes) {
        return bytes == null ? null : Base64.getEncoder().encodeToString(bytes);
    }
}
