package logstore.interop;

import org.apache.kafka.common.record.internal.ControlRecordType;
import org.apache.kafka.common.record.internal.FileLogInputStream.FileChannelRecordBatch;
import org.apache.kafka.common.record.internal.FileRecords;
import org.apache.kafka.common.record.internal.Record;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.storage.internals.log.AbortedTxn;
import org.apache.kafka.storage.internals.log.LazyIndex;
import org.apache.kafka.storage.internals.log.LogSegment;
import org.apache.kafka.storage.internals.log.ProducerStateManager;
import org.apache.kafka.storage.internals.log.TransactionIndex;
import org.apache.kafka.tools.DumpLogSegments;

import java.io.ByteArrayOutputStream;
import java.io.File;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Stream;

/**
 * Asks Kafka's own classes whether they accept segment files: one finding a line on standard
 * output and exit status 1, or nothing and 0.
 *
 * <p>Each .log file is checked with the indexes beside it: the sanity checks that decide at start
 * whether an index is rebuilt, the dump tool's comparison of every entry with the log, and the
 * answers of a LogSegment to look-ups by offset and by time against a scan of the log. An entry of
 * the transaction index must have its abort marker in the segment; that none is missing cannot be
 * told from one segment. An argument that ends in .snapshot is read as a producer snapshot.
 *
 * <p>Opening an index may create or resize it, so all of this happens on a copy.
 */
public final class CheckIndexes {
    private static final int MAX_INDEX_BYTES = 10 * 1024 * 1024;
    private static final int ABORTED_TXN_BYTES = 34;
    private static final int TIME_TARGETS_MAX = 200;

    private final PrintStream out;

    private CheckIndexes(PrintStream out) {
        this.out = out;
    }

    public static void main(String[] args) throws IOException {
        CheckIndexes check = new CheckIndexes(System.out);
        int findings = 0;
        for (String arg : args) {
            for (String finding : check.check(Path.of(arg).toAbsolutePath())) {
                check.out.println(arg + ": " + finding.replace('\n', ' '));
                findings++;
            }
        }
        check.out.flush();
        System.exit(findings == 0 ? 0 : 1);
    }

    private List<String> check(Path file) throws IOException {
        List<String> findings = new ArrayList<>();
        if (file.toString().endsWith(".snapshot")) {
            attempt(findings, "snapshot", () -> ProducerStateManager.readSnapshot(file.toFile()));
            return findings;
        }
        Path scratch = Files.createTempDirectory("check-indexes");
        try {
            String stem = file.getFileName().toString().replaceFirst("\\.log$", "");
            Path log = Files.createSymbolicLink(scratch.resolve(stem + ".log"), file);
            List<String> indexes = new ArrayList<>();
            for (String suffix : List.of(".index", ".timeindex", ".txnindex")) {
                Path index = file.resolveSibling(stem + suffix);
                if (Files.exists(index)) {
                    Path copy = scratch.resolve(stem + suffix);
                    Files.copy(index, copy, StandardCopyOption.COPY_ATTRIBUTES);
                    indexes.add(copy.toString());
                } else if (!suffix.equals(".txnindex")) {
                    findings.add("no " + stem + suffix);
                }
            }
            dump(findings, "--files", log.toString(), "--deep-iteration");
            if (findings.isEmpty()) { // the tool stumbles over one index when the other is missing
                String list = String.join(",", indexes);
                dump(findings, "--files", list, "--index-sanity-check");
                dump(findings, "--files", list, "--verify-index-only");
            }
            attempt(findings, "batches", () -> checkBatches(log));
            if (findings.isEmpty()) {
                attempt(findings, "look-ups", () -> checkLookups(findings, log, stem));
            }
        } finally {
            delete(scratch);
        }
        return findings;
    }

    private interface Action {
        void run() throws IOException;
    }

    private static void attempt(List<String> findings, String what, Action action) {
        try {
            action.run();
        } catch (IOException | RuntimeException e) {
            findings.add(what + ": " + e);
        }
    }

    /** Run the dump tool, which tells of mismatches in words and ends with status 0 anyway. */
    private void dump(List<String> findings, String... args) {
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        ByteArrayOutputStream complaints = new ByteArrayOutputStream();
        PrintStream err = System.err;
        System.setOut(new PrintStream(printed, false, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(complaints, false, StandardCharsets.UTF_8));
        try {
            attempt(findings, "dump " + args[2], () -> DumpLogSegments.main(args));
        } finally {
            System.out.flush();
            System.err.flush();
            System.setOut(out);
            System.setErr(err);
        }
        boolean offsetGaps = false;
        for (String line : complaints.toString(StandardCharsets.UTF_8).lines().toList()) {
            // Gaps are what compaction and aborted appends leave; they are no index mismatch. The
            // tool also counts the first record of any segment whose base is not 0 as a gap.
            if (line.startsWith("Non-consecutive offsets in ")) {
                offsetGaps = true;
            } else if (!(offsetGaps && line.startsWith("  "))) {
                offsetGaps = false;
                findings.add(line.strip());
            }
        }
        for (String line : printed.toString(StandardCharsets.UTF_8).lines().toList()) {
            if (line.contains("isvalid: false") || line.matches("Found \\d+ invalid bytes .*")) {
                findings.add(line);
            }
        }
    }

    private static void checkBatches(Path log) throws IOException {
        try (FileRecords records = FileRecords.open(log.toFile(), false)) {
            for (FileChannelRecordBatch batch : records.batches()) {
                batch.ensureValid();
            }
        }
    }

    private static void checkLookups(List<String> findings, Path log, String stem)
            throws IOException {
        long base = Long.parseLong(stem);
        File directory = log.getParent().toFile();
        File txnIndex = new File(directory, stem + ".txnindex");
        FileRecords records = FileRecords.open(log.toFile(), false);
        LogSegment segment = new LogSegment(
            records,
            LazyIndex.forOffset(new File(directory, stem + ".index"), base, MAX_INDEX_BYTES),
            LazyIndex.forTime(new File(directory, stem + ".timeindex"), base, MAX_INDEX_BYTES),
            new TransactionIndex(base, txnIndex),
            base, 4096, 0, Time.SYSTEM);
        segment.offsetIndex().sanityCheck();
        segment.timeIndex().sanityCheck();
        segment.sanityCheck(false);

        List<long[]> times = new ArrayList<>(); // {timestamp so far at most, offset}, ascending
        Map<Long, Long> abortMarkers = new HashMap<>(); // offset -> producer id
        for (FileChannelRecordBatch batch : records.batches()) {
            for (long offset : new long[] {batch.baseOffset(), batch.lastOffset()}) {
                var found = segment.translateOffset(offset);
                if (found == null || found.position != batch.position()) {
                    findings.add("offset " + offset + " is at " + batch.position()
                        + ", the look-up answers " + found);
                }
            }
            for (Record record : batch) {
                if (batch.isControlBatch()
                        && ControlRecordType.parse(record.key()) == ControlRecordType.ABORT) {
                    abortMarkers.put(record.offset(), batch.producerId());
                }
                if (times.isEmpty() || record.timestamp() > times.get(times.size() - 1)[0]) {
                    times.add(new long[] {record.timestamp(), record.offset()});
                }
            }
        }
        int step = Math.max(1, times.size() / TIME_TARGETS_MAX);
        for (int i = 0; i < times.size(); i += step) {
            long timestamp = times.get(i)[0];
            var found = segment.findOffsetByTimestamp(timestamp, base);
            if (found.isEmpty() || found.get().offset != times.get(i)[1]) {
                findings.add("timestamp " + timestamp + " is first reached at offset "
                    + times.get(i)[1] + ", the look-up answers " + found);
            }
        }
        for (AbortedTxn aborted : segment.txnIndex().allAbortedTxns()) {
            Long producerId = abortMarkers.get(aborted.lastOffset());
            if (producerId == null || producerId != aborted.producerId()
                    || aborted.firstOffset() >= aborted.lastOffset()
                    || aborted.lastStableOffset() > aborted.lastOffset() + 1) {
                findings.add(aborted + " belongs to no abort marker in the segment");
            }
        }
        if (txnIndex.length() % ABORTED_TXN_BYTES != 0) {
            findings.add("the transaction index ends within an entry");
        }
        long largest = times.isEmpty() ? -1 : times.get(times.size() - 1)[0];
        if (largest >= 0 && segment.timeIndex().lastEntry().timestamp() > largest) {
            findings.add("the time index ends at " + segment.timeIndex().lastEntry().timestamp()
                + ", above every timestamp in the log");
        }
        segment.offsetIndex().closeHandler();
        segment.timeIndex().closeHandler();
        segment.txnIndex().close();
        records.closeHandlers();
    }

    private static void delete(Path directory) throws IOException {
        try (Stream<Path> paths = Files.walk(directory)) {
            for (Path path : (Iterable<Path>) paths.sorted(Comparator.reverseOrder())::iterator) {
                Files.delete(path);
            }
        }
    }
}
