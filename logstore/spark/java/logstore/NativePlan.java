package logstore;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;

/** What {@code native_plan.py} says of a task that may be read without Python. */
record NativePlan(Settings settings, List<Split> splits) {
    static final ObjectMapper JSON = new ObjectMapper();

    /** As {@code ReadSettings}; the bounds of time are in ms. */
    record Settings(
            long startTimestamp,
            long endTimestamp,
            boolean includeControl,
            boolean checkCrcs,
            boolean readCommitted,
            long unpackedMax,
            long batchMax,
            int limit,
            List<String> aggregates) {}

    /** As {@code Split} and {@code FileProof}. {@code aborted} has three numbers for each. */
    record Split(
            List<byte[]> paths,
            String uri,
            String topic,
            int partition,
            String broker,
            long segment,
            long position,
            long endPosition,
            long fromOffset,
            long endOffset,
            boolean openEnd,
            long above,
            long below,
            long[] aborted,
            Proof proof) {}

    record Proof(
            long inode, long size, long changedMs, boolean mayGrow, List<Header> headers) {}

    record Header(long position, byte[] bytes) {}

    static NativePlan of(String json) {
        try {
            JsonNode plan = JSON.readTree(json);
            JsonNode s = plan.get("settings");
            Settings settings = new Settings(
                s.get("start").asLong(),
                s.get("end").asLong(),
                s.get("include_control").asBoolean(),
                s.get("check_crcs").asBoolean(),
                s.get("read_committed").asBoolean(),
                s.get("unpacked_max").asLong(),
                s.get("batch_max").asLong(),
                s.get("limit").asInt(),
                texts(s.get("aggregates")));
            List<Split> splits = new ArrayList<>();
            for (JsonNode split : plan.get("splits")) {
                splits.add(split(split));
            }
            return new NativePlan(settings, splits);
        } catch (IOException error) {
            throw new LogstoreException("a plan that is no JSON: " + error, error);
        }
    }

    private static Split split(JsonNode s) throws IOException {
        List<byte[]> paths = new ArrayList<>();
        for (JsonNode path : s.get("paths")) {
            paths.add(path.binaryValue());
        }
        return new Split(
            paths,
            s.get("uri").asText(),
            s.get("topic").asText(),
            s.get("partition").asInt(),
            s.get("broker").asText(),
            s.get("segment").asLong(),
            s.get("position").asLong(),
            s.get("end_position").asLong(),
            s.get("from_offset").asLong(),
            s.get("end_offset").asLong(),
            s.get("open_end").asBoolean(),
            s.get("above").asLong(),
            s.get("below").asLong(),
            longs(s.get("aborted")),
            proof(s.get("proof")));
    }

    private static Proof proof(JsonNode p) throws IOException {
        long[] file = longs(p.get("file"));
        List<Header> headers = new ArrayList<>();
        for (JsonNode header : p.get("headers")) {
            headers.add(new Header(header.get(0).asLong(), header.get(1).binaryValue()));
        }
        return new Proof(file[0], file[1], file[2], p.get("may_grow").asBoolean(), headers);
    }

    private static List<String> texts(JsonNode texts) {
        List<String> found = new ArrayList<>();
        texts.forEach(text -> found.add(text.asText()));
        return found;
    }

    private static long[] longs(JsonNode numbers) {
        long[] found = new long[numbers.size()];
        for (int i = 0; i < found.length; i++) {
            found[i] = numbers.get(i).asLong();
        }
        return found;
    }
}
