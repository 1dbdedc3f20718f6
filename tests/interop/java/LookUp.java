package logstore.interop;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;

import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ListOffsetsResult;
import org.apache.kafka.clients.admin.ListOffsetsResult.ListOffsetsResultInfo;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicPartition;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;

/**
 * Asks a broker for offsets by timestamp: one JSON object with topic, partition and timestamp a
 * line on standard input; one with the offset and the timestamp found, in the same order, on
 * standard output. The timestamps -1, -2 and -3 mean what they do in the protocol: the end, the
 * start, and the record with the largest timestamp.
 */
public final class LookUp {
    private static final ObjectMapper JSON = new ObjectMapper();

    private LookUp() {
    }

    public static void main(String[] args) throws Exception {
        List<KafkaFuture<ListOffsetsResultInfo>> answers = new ArrayList<>();
        BufferedReader questions =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", args[0]))) {
            for (String line = questions.readLine(); line != null; line = questions.readLine()) {
                JsonNode question = JSON.readTree(line);
                TopicPartition partition = new TopicPartition(
                    question.get("topic").asText(), question.get("partition").asInt());
                ListOffsetsResult result = admin.listOffsets(
                    Map.of(partition, spec(question.get("timestamp").asLong())));
                answers.add(result.partitionResult(partition));
            }
            for (KafkaFuture<ListOffsetsResultInfo> answer : answers) {
                ListOffsetsResultInfo info = answer.get(60, TimeUnit.SECONDS);
                System.out.println(JSON.writeValueAsString(
                    Map.of("offset", info.offset(), "timestamp", info.timestamp())));
            }
        }
        System.out.flush();
    }

    private static OffsetSpec spec(long timestamp) throws IOException {
        if (timestamp >= 0) {
            return OffsetSpec.forTimestamp(timestamp);
        }
        return switch ((int) timestamp) {
            case -1 -> OffsetSpec.latest();
            case -2 -> OffsetSpec.earliest();
            case -3 -> OffsetSpec.maxTimestamp();
            default -> throw new IOException("no such timestamp: " + timestamp);
        };
    }
}
