package logstore.bench;

import com.fasterxml.jackson.databind.ObjectMapper;

import kafka.log.LogManager;
import kafka.server.builders.LogManagerBuilder;

import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.record.TimestampType;
import org.apache.kafka.common.record.internal.DefaultRecordBatch;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MemoryRecordsBuilder;
import org.apache.kafka.common.record.internal.MutableRecordBatch;
import org.apache.kafka.common.record.internal.RecordBatch;
import org.apache.kafka.common.utils.AppInfoParser;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.server.util.KafkaScheduler;
import org.apache.kafka.storage.internals.checkpoint.CleanShutdownFileHandler;
import org.apache.kafka.storage.internals.checkpoint.LeaderEpochCheckpointFile;
import org.apache.kafka.storage.internals.checkpoint.OffsetCheckpointFile;
import org.apache.kafka.storage.internals.epoch.LeaderEpochFileCache;
import org.apache.kafka.storage.internals.log.Cleaner;
import org.apache.kafka.storage.internals.log.CleanerConfig;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.LogOffsetsListener;
import org.apache.kafka.storage.internals.log.LogSegment;
import org.apache.kafka.storage.internals.log.LogToClean;
import org.apache.kafka.storage.internals.log.ProducerStateManager;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;
import org.apache.kafka.storage.internals.log.SkimpyOffsetMap;
import org.apache.kafka.storage.internals.log.UnifiedLog;
import org.apache.kafka.storage.internals.utils.Throttler;
import org.apache.kafka.storage.log.metrics.BrokerTopicStats;

import java.io.File;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.Random;
import java.util.concurrent.ConcurrentHashMap;
import java.util.stream.Stream;

/**
 * Times Apache Kafka's own storage classes: one JSON object a line is one result.
 *
 * <p>Usage: {@code KafkaBench WORKLOAD --name value ...}; harness.py is the front that documents
 * the workloads. All of them run warm, in the page cache and after warm-up rounds, and work in
 * {@code --scratch}, never on the files they are given. Rates are decimal: 1 MB is 1,000,000 bytes.
 */
public final class KafkaBench {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final TopicPartition PARTITION = new TopicPartition("bench", 0);
    private static final int KEY_BYTES = 16;
    private static final int VALUE_BYTES = 100;
    private static final int RECORD_BYTES_MAX = KEY_BYTES + VALUE_BYTES + 24;
    private static final int TRUNCATED_BYTES = 10_000_000;
    private static final int TRANSACTION_TIMEOUT_MAX_MS = 900_000;
    private static final int PRODUCER_CHECK_MS = 600_000;
    private static final ProducerStateManagerConfig PRODUCERS =
        new ProducerStateManagerConfig(86_400_000, true);
    private static final LogConfig LOG_CONFIG = new LogConfig(Map.of());

    private final Map<String, String> options;
    private final Path scratch;

    private KafkaBench(Map<String, String> options) throws IOException {
        this.options = options;
        this.scratch = Files.createDirectories(Path.of(options.get("scratch")));
    }

    public static void main(String[] args) throws Exception {
        Map<String, String> options = new HashMap<>();
        for (int i = 1; i < args.length; i += 2) {
            options.put(args[i].substring(2), args[i + 1]);
        }
        KafkaBench bench = new KafkaBench(options);
        switch (args[0]) {
            case "generate" -> bench.generate();
            case "recover" -> bench.recover();
            case "append" -> bench.append();
            case "append-leader" -> bench.appendAsLeader();
            case "rawwrite" -> bench.rawWrite();
            case "truncate" -> bench.truncate();
            case "checkpoint" -> bench.checkpoint();
            case "load" -> bench.load();
            case "offset-map" -> bench.offsetMap();
            case "compact" -> bench.compact();
            default -> throw new IllegalArgumentException(args[0]);
        }
        // A scheduler or cleaner thread that is left over must not keep the process.
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    private int option(String name) {
        return Integer.parseInt(options.get(name));
    }

    // --- input -----------------------------------------------------------------------------

    /** Batches of {@code records} each, of {@code bytes} altogether, in arrays of their own. */
    private static List<MemoryRecords> batches(int records, long bytes, boolean equalTimestamps,
                                               boolean idempotent) {
        List<MemoryRecords> batches = new ArrayList<>();
        Random random = new Random(1);
        byte[] key = new byte[KEY_BYTES];
        byte[] value = new byte[VALUE_BYTES];
        long offset = 0;
        for (long size = 0; size < bytes; ) {
            ByteBuffer buffer = ByteBuffer.allocate(
                DefaultRecordBatch.RECORD_BATCH_OVERHEAD + records * RECORD_BYTES_MAX);
            MemoryRecordsBuilder builder = MemoryRecords.builder(
                buffer, RecordBatch.CURRENT_MAGIC_VALUE, Compression.NONE,
                TimestampType.CREATE_TIME, offset, RecordBatch.NO_TIMESTAMP,
                idempotent ? 1000L : RecordBatch.NO_PRODUCER_ID,
                idempotent ? (short) 0 : RecordBatch.NO_PRODUCER_EPOCH,
                idempotent ? (int) (offset & Integer.MAX_VALUE) : RecordBatch.NO_SEQUENCE);
            for (int i = 0; i < records; i++, offset++) {
                random.nextBytes(key);
                random.nextBytes(value);
                builder.append(1_700_000_000_000L + (equalTimestamps ? 0 : offset), key, value);
            }
            MemoryRecords built = builder.build();
            batches.add(built);
            size += built.sizeInBytes();
        }
        return batches;
    }

    private List<MemoryRecords> batches() {
        return batches(option("batch-records"), Long.parseLong(options.get("bytes")),
            flag("equal-timestamps"), flag("idempotent"));
    }

    private boolean flag(String name) {
        return Boolean.parseBoolean(options.getOrDefault(name, "false"));
    }

    private static long size(List<MemoryRecords> batches) {
        return batches.stream().mapToLong(MemoryRecords::sizeInBytes).sum();
    }

    /** Write a .log file as a leader leaves it: consecutive offsets, leader epoch 0. */
    private void generate() throws IOException {
        List<MemoryRecords> batches = batches();
        try (FileChannel out = FileChannel.open(Path.of(options.get("path")),
                StandardOpenOption.CREATE_NEW, StandardOpenOption.WRITE)) {
            for (MemoryRecords records : batches) {
                for (MutableRecordBatch batch : records.batches()) {
                    batch.setPartitionLeaderEpoch(0);
                }
                records.writeFullyTo(out);
            }
        }
        print("generate", Map.of("bytes", size(batches), "batches", batches.size()));
    }

    // --- recovery --------------------------------------------------------------------------

    private void recover() throws Exception {
        Path given = Path.of(options.get("path"));
        List<Path> logs = Files.isDirectory(given) ? logFiles(given) : List.of(given);
        long bytes = 0;
        List<Path> copies = new ArrayList<>();
        for (int i = 0; i < logs.size(); i++) {
            // Recovery may truncate, and the input is not ours: it works on copies.
            Path directory = Files.createDirectories(scratch.resolve("bench-" + i));
            copies.add(Files.copy(logs.get(i), directory.resolve(logs.get(i).getFileName())));
            bytes += Files.size(logs.get(i));
        }
        double[] seconds = measure(() -> {
            double total = 0;
            for (Path log : copies) {
                total += recoverOnce(log);
            }
            return total;
        });
        print("recover", rates(bytes, seconds, Map.of("segments", logs.size())));
    }

    /** What LogLoader does with a segment above the recovery point, without the files' opening. */
    private double recoverOnce(Path log) throws Exception {
        File directory = log.getParent().toFile();
        long base = Long.parseLong(log.getFileName().toString().replace(".log", ""));
        for (File old : directory.listFiles()) {
            if (!old.getName().endsWith(".log")) {
                Files.delete(old.toPath());
            }
        }
        KafkaScheduler scheduler = new KafkaScheduler(1);
        scheduler.startup();
        LeaderEpochFileCache epochs = new LeaderEpochFileCache(PARTITION,
            new LeaderEpochCheckpointFile(LeaderEpochCheckpointFile.newFile(directory),
                new LogDirFailureChannel(1)), scheduler);
        ProducerStateManager producers = new ProducerStateManager(
            PARTITION, directory, TRANSACTION_TIMEOUT_MAX_MS, PRODUCERS, Time.SYSTEM);
        try (LogSegment segment = LogSegment.open(
                directory, base, LOG_CONFIG, Time.SYSTEM, true, 0, false, "")) {
            segment.offsetIndex();
            segment.timeIndex();
            long begin = System.nanoTime();
            segment.recover(producers, epochs);
            return secondsSince(begin);
        } finally {
            scheduler.shutdown();
        }
    }

    // --- appends ---------------------------------------------------------------------------

    private static LogSegment newSegment(Path directory) throws IOException {
        return LogSegment.open(
            Files.createDirectories(directory).toFile(), 0, LOG_CONFIG, Time.SYSTEM, 0, false);
    }

    /** Check the CRC, set offset and leader epoch as a leader does, and append. */
    private static long appendOne(LogSegment segment, MemoryRecords records, long offset)
            throws IOException {
        long last = offset;
        for (MutableRecordBatch batch : records.batches()) {
            batch.ensureValid();
            last = offset + batch.lastOffset() - batch.baseOffset();
            batch.setLastOffset(last);
            batch.setPartitionLeaderEpoch(0);
        }
        segment.append(last, records);
        return last + 1;
    }

    private void append() throws Exception {
        List<MemoryRecords> batches = batches();
        Path directory = scratch.resolve("bench-0");
        double[] seconds = measure(() -> {
            LogSegment segment = newSegment(directory);
            segment.offsetIndex();
            segment.timeIndex();
            long begin = System.nanoTime();
            long offset = 0;
            for (MemoryRecords records : batches) {
                offset = appendOne(segment, records, offset);
            }
            double elapsed = secondsSince(begin);
            segment.close();
            delete(directory);
            return elapsed;
        });
        print("append", rates(size(batches), seconds, Map.of("calls", batches.size())));
    }

    /** The whole append of a leader: UnifiedLog with validation, locks and producer state. */
    private void appendAsLeader() throws Exception {
        List<MemoryRecords> batches = batches();
        Path directory = scratch.resolve("bench-0");
        KafkaScheduler scheduler = new KafkaScheduler(1);
        scheduler.startup();
        double[] seconds = measure(() -> {
            for (MemoryRecords records : batches) {
                for (MutableRecordBatch batch : records.batches()) {
                    batch.setLastOffset(batch.lastOffset() - batch.baseOffset()); // as producers do
                }
            }
            UnifiedLog log = UnifiedLog.create(
                directory.toFile(), LOG_CONFIG, 0, 0, scheduler, new BrokerTopicStats(),
                Time.SYSTEM, TRANSACTION_TIMEOUT_MAX_MS, PRODUCERS, PRODUCER_CHECK_MS,
                new LogDirFailureChannel(1), true, Optional.empty(), new ConcurrentHashMap<>(),
                false, LogOffsetsListener.NO_OP_OFFSETS_LISTENER);
            long begin = System.nanoTime();
            for (MemoryRecords records : batches) {
                log.appendAsLeader(records, 0);
            }
            double elapsed = secondsSince(begin);
            log.close();
            delete(directory);
            return elapsed;
        });
        scheduler.shutdown();
        print("append-leader", rates(size(batches), seconds, Map.of("calls", batches.size())));
    }

    /** The same bytes in the same calls to FileChannel.write, which is what the medium allows. */
    private void rawWrite() throws Exception {
        List<MemoryRecords> batches = batches();
        Path file = scratch.resolve("raw");
        double[] seconds = measure(() -> {
            try (FileChannel out = FileChannel.open(
                    file, StandardOpenOption.CREATE_NEW, StandardOpenOption.WRITE)) {
                long begin = System.nanoTime();
                for (MemoryRecords records : batches) {
                    ByteBuffer bytes = records.buffer();
                    while (bytes.hasRemaining()) {
                        out.write(bytes);
                    }
                }
                return secondsSince(begin);
            } finally {
                Files.delete(file);
            }
        });
        print("rawwrite", rates(size(batches), seconds, Map.of("calls", batches.size())));
    }

    // --- truncation, checkpoints -----------------------------------------------------------

    private void truncate() throws Exception {
        List<MemoryRecords> batches = batches();
        LogSegment segment = newSegment(scratch.resolve("bench-0"));
        long offset = 0;
        for (MemoryRecords records : batches) {
            offset = appendOne(segment, records, offset);
        }
        int first = batches.size();
        for (long size = 0; size < TRUNCATED_BYTES; ) {
            size += batches.get(--first).sizeInBytes();
        }
        long target = batches.get(first).batches().iterator().next().baseOffset();
        List<MemoryRecords> tail = batches.subList(first, batches.size());
        double[] seconds = measure(() -> {
            long begin = System.nanoTime();
            segment.truncateTo(target);
            double elapsed = secondsSince(begin);
            long next = target;
            for (MemoryRecords records : tail) {
                next = appendOne(segment, records, next);
            }
            return elapsed;
        });
        segment.close();
        print("truncate", times(seconds, Map.of(
            "bytes", size(batches), "truncated_bytes", size(tail),
            "equal_timestamps", flag("equal-timestamps"))));
    }

    private void checkpoint() throws Exception {
        Map<TopicPartition, Long> offsets = new HashMap<>();
        for (int i = 0; i < option("partitions"); i++) {
            offsets.put(new TopicPartition("topic-" + i % 50, i / 50), 1_000_000L + i);
        }
        OffsetCheckpointFile file = new OffsetCheckpointFile(
            scratch.resolve("recovery-point-offset-checkpoint").toFile(),
            new LogDirFailureChannel(1));
        double[] seconds = measure(() -> {
            long begin = System.nanoTime();
            file.write(offsets);
            return secondsSince(begin);
        });
        print("checkpoint", times(seconds, Map.of("partitions", offsets.size())));
    }

    // --- a whole log directory -------------------------------------------------------------

    /** Open all partitions as a broker does after a crash: LogManager, without its background. */
    private void load() throws Exception {
        Path given = Path.of(options.get("path"));
        Path directory = scratch.resolve("load");
        List<Integer> logs = new ArrayList<>();
        double[] seconds = measure(() -> {
            boolean clean = "true".equals(options.get("clean"));
            if (!clean || !Files.exists(directory)) {
                copy(given, directory);
            }
            if (!clean) {
                new CleanShutdownFileHandler(directory.toString()).delete();
            }
            KafkaScheduler scheduler = new KafkaScheduler(1);
            LogManager manager = new LogManagerBuilder()
                .setLogDirs(List.of(directory.toFile()))
                .setConfigRepository(resource -> new Properties())
                .setInitialDefaultConfig(LOG_CONFIG)
                .setCleanerConfig(new CleanerConfig(false))
                .setRecoveryThreadsPerDataDir(option("threads"))
                .setScheduler(scheduler)
                .setBrokerTopicStats(new BrokerTopicStats())
                .setLogDirFailureChannel(new LogDirFailureChannel(1))
                .build();
            scheduler.startup();
            long begin = System.nanoTime();
            manager.loadLogs(
                LOG_CONFIG, scala.collection.immutable.Map$.MODULE$.empty(), log -> false);
            double elapsed = secondsSince(begin);
            logs.add(manager.allLogs().size());
            manager.shutdown(-1);
            scheduler.shutdown();
            if (!clean) { // after a clean stop the next start finds the same
                delete(directory);
            }
            return elapsed;
        });
        long bytes = 0;
        for (Path log : logFiles(given)) {
            bytes += Files.size(log);
        }
        print("load", rates(bytes, seconds, Map.of(
            "logs", logs.get(0), "threads", option("threads"))));
    }

    // --- compaction ------------------------------------------------------------------------

    /** Put keys into the cleaner's map and look each up, as the two halves of a pass do. */
    private void offsetMap() throws Exception {
        int keys = option("keys");
        ByteBuffer bytes = ByteBuffer.allocate(keys * KEY_BYTES);
        new Random(1).nextBytes(bytes.array());
        SkimpyOffsetMap map = new SkimpyOffsetMap(option("map-bytes"));
        List<double[]> halves = new ArrayList<>();
        measure(() -> {
            map.clear();
            long begin = System.nanoTime();
            for (int i = 0; i < keys; i++) {
                map.put(keyAt(bytes, i), i);
            }
            double put = secondsSince(begin);
            begin = System.nanoTime();
            long found = 0;
            for (int i = 0; i < keys; i++) {
                found += map.get(keyAt(bytes, i)) == i ? 1 : 0;
            }
            if (found != keys) {
                throw new IllegalStateException(found + " of " + keys + " keys found");
            }
            halves.add(new double[] {put, secondsSince(begin)});
            return put;
        });
        List<double[]> counted = halves.subList(option("warmups"), halves.size());
        print("offset-map", Map.of(
            "keys", keys,
            "bytes_per_key", (double) map.bytesPerEntry,
            "put_m_keys_per_s", keys / 1e6 / best(counted, 0),
            "get_m_keys_per_s", keys / 1e6 / best(counted, 1)));
    }

    private static ByteBuffer keyAt(ByteBuffer bytes, int index) {
        return bytes.slice(index * KEY_BYTES, KEY_BYTES);
    }

    private static double best(List<double[]> times, int half) {
        return times.stream().mapToDouble(each -> each[half]).min().orElseThrow();
    }

    /** One pass of Kafka's cleaner over a copy of a partition directory, without the opening. */
    private void compact() throws Exception {
        File given = new File(options.get("path")).getCanonicalFile();
        TopicPartition partition = UnifiedLog.parseTopicPartitionName(given);
        Path parent = scratch.resolve("data");
        Path directory = parent.resolve(given.getName());
        long[] sizes = new long[2];
        double[] seconds = measure(() -> {
            Files.createDirectories(parent);
            copy(given.toPath(), directory);
            KafkaScheduler scheduler = new KafkaScheduler(1);
            scheduler.startup();
            UnifiedLog log = UnifiedLog.create(
                directory.toFile(),
                new LogConfig(Map.of("cleanup.policy", "compact", "min.cleanable.dirty.ratio", 0,
                    "segment.bytes", option("segment-bytes"))),
                0, 0, scheduler, new BrokerTopicStats(), Time.SYSTEM, TRANSACTION_TIMEOUT_MAX_MS,
                PRODUCERS, PRODUCER_CHECK_MS, new LogDirFailureChannel(1), true, Optional.empty(),
                new ConcurrentHashMap<>(), false, LogOffsetsListener.NO_OP_OFFSETS_LISTENER);
            log.updateHighWatermark(log.logEndOffset());
            Cleaner cleaner = new Cleaner(
                0, new SkimpyOffsetMap(option("map-bytes")), option("io-bytes"),
                log.config().maxMessageSize(), 0.9,
                new Throttler(Double.MAX_VALUE, 300, "cleaner-io", "bytes", Time.SYSTEM),
                Time.SYSTEM, each -> { });
            LogToClean all =
                new LogToClean(log, 0, log.activeSegment().baseOffset(), false);
            sizes[0] = log.size();
            long begin = System.nanoTime();
            long end = cleaner.clean(all).getKey();
            double elapsed = secondsSince(begin);
            if (end != log.activeSegment().baseOffset()) {
                throw new IllegalStateException("the offset map was full at " + end);
            }
            sizes[1] = log.size();
            log.close();
            scheduler.shutdown();
            delete(parent);
            return elapsed;
        });
        print("compact", rates(sizes[0], seconds, Map.of("bytes_after", sizes[1])));
    }

    /** The .log files below {@code directory}, without the controller's, which is never loaded. */
    private static List<Path> logFiles(Path directory) throws IOException {
        try (Stream<Path> files = Files.walk(directory)) {
            return files.filter(f -> f.toString().endsWith(".log")
                && !f.getParent().endsWith("__cluster_metadata-0")).sorted().toList();
        }
    }

    private static void copy(Path from, Path to) throws IOException {
        try (Stream<Path> paths = Files.walk(from)) {
            for (Path path : (Iterable<Path>) paths::iterator) {
                Path target = to.resolve(from.relativize(path));
                if (Files.isDirectory(path)) {
                    Files.createDirectories(target);
                } else {
                    Files.copy(path, target, StandardCopyOption.COPY_ATTRIBUTES);
                }
            }
        }
    }

    private static void delete(Path directory) throws IOException {
        try (Stream<Path> paths = Files.walk(directory)) {
            for (Path path : (Iterable<Path>) paths.sorted(Comparator.reverseOrder())::iterator) {
                Files.delete(path);
            }
        }
    }

    // --- results ---------------------------------------------------------------------------

    /** One round; returns the seconds of what counts, without preparing and clearing away. */
    private interface Round {
        double run() throws Exception;
    }

    private double[] measure(Round round) throws Exception {
        for (int run = 0; run < option("warmups"); run++) {
            round.run();
        }
        double[] seconds = new double[option("runs")];
        for (int run = 0; run < seconds.length; run++) {
            seconds[run] = round.run();
        }
        return seconds;
    }

    private static double secondsSince(long beginNs) {
        return (System.nanoTime() - beginNs) / 1e9;
    }

    private static Map<String, Object> rates(long bytes, double[] seconds, Map<String, ?> more) {
        double[] sorted = seconds.clone();
        Arrays.sort(sorted);
        Map<String, Object> result = new LinkedHashMap<>(more);
        result.put("bytes", bytes);
        result.put("seconds", seconds);
        result.put("best_mb_per_s", bytes / 1e6 / sorted[0]);
        result.put("median_mb_per_s", bytes / 1e6 / sorted[sorted.length / 2]);
        return result;
    }

    private static Map<String, Object> times(double[] seconds, Map<String, ?> more) {
        double[] sorted = Arrays.stream(seconds).map(each -> each * 1e3).sorted().toArray();
        Map<String, Object> result = new LinkedHashMap<>(more);
        result.put("runs", sorted.length);
        result.put("best_ms", sorted[0]);
        result.put("p50_ms", sorted[sorted.length / 2]);
        result.put("worst_ms", sorted[sorted.length - 1]);
        return result;
    }

    private void print(String workload, Map<String, ?> fields) throws IOException {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("engine", "kafka " + AppInfoParser.getVersion());
        line.put("java", System.getProperty("java.version"));
        line.put("workload", workload);
        if (options.containsKey("batch-records")) {
            line.put("batch_records", option("batch-records"));
        }
        line.putAll(fields);
        System.out.println(JSON.writeValueAsString(line));
    }
}
