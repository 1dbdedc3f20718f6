package logstore.interop;

import com.fasterxml.jackson.databind.ObjectMapper;

import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

import java.io.BufferedWriter;
import java.io.IOException;
import java.io.OutputStreamWriter;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * Reads topics to their end with a real consumer and prints one JSON object a record.
 *
 * <p>Arguments: bootstrap address, isolation level, seconds, consumer group, topics. The end is the
 * one of the isolation level: the high watermark, or the last stable offset. A group, unless empty,
 * commits what was read.
 */
public final class Consume {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Duration POLL = Duration.ofMillis(500);

    private Consume() {
    }

    public static void main(String[] args) throws IOException {
        Map<String, Object> config = new HashMap<>(Map.of(
            ConsumerConfig.BOOTSTRAP_SERVERS_CONFIG, args[0],
            ConsumerConfig.ISOLATION_LEVEL_CONFIG, args[1],
            ConsumerConfig.CHECK_CRCS_CONFIG, true,
            // A log that starts above the offset which was asked for is a fault to be told.
            ConsumerConfig.AUTO_OFFSET_RESET_CONFIG, "none",
            ConsumerConfig.ENABLE_AUTO_COMMIT_CONFIG, false));
        if (!args[3].isEmpty()) {
            config.put(ConsumerConfig.GROUP_ID_CONFIG, args[3]);
        }
        long deadlineNs = System.nanoTime() + Long.parseLong(args[2]) * 1_000_000_000L;
        BufferedWriter out =
            new BufferedWriter(new OutputStreamWriter(System.out, StandardCharsets.UTF_8));
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(
                config, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            List<TopicPartition> partitions = new ArrayList<>();
            for (String topic : Arrays.asList(args).subList(4, args.length)) {
                consumer.partitionsFor(topic).forEach(
                    p -> partitions.add(new TopicPartition(topic, p.partition())));
            }
            consumer.assign(partitions);
            consumer.beginningOffsets(partitions).forEach(consumer::seek);
            Map<TopicPartition, Long> ends = consumer.endOffsets(partitions);
            while (ends.entrySet().stream()
                    .anyMatch(end -> consumer.position(end.getKey()) < end.getValue())) {
                if (System.nanoTime() > deadlineNs) {
                    throw new IOException("not at the end in time, wanted " + ends);
                }
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(POLL)) {
                    out.write(JSON.writeValueAsString(describe(record)));
                    out.write('\n');
                }
            }
            if (!args[3].isEmpty()) {
                consumer.commitSync(Duration.ofSeconds(30));
            }
        }
        out.flush();
    }

    private static Map<String, Object> describe(ConsumerRecord<byte[], byte[]> record) {
        List<List<String>> headers = new ArrayList<>();
        for (Header header : record.headers()) {
            headers.add(Arrays.asList(header.key(), base64(header.value())));
        }
        Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("topic", record.topic());
        fields.put("partition", record.partition());
        fields.put("offset", record.offset());
        fields.put("timestamp", record.timestamp());
        fields.put("timestampType", record.timestampType().name);
        fields.put("key", base64(record.key()));
        fields.put("value", base64(record.value()));
        fields.put("headers", headers);
        fields.put("leaderEpoch", record.leaderEpoch().orElse(null));
        return fields;
    }

    private static String base64(byte[] bytes) {
        return bytes == null ? null : Base64.getEncoder().encodeToString(bytes);
    }
}
