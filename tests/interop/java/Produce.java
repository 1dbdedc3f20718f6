package logstore.interop;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;

import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.ByteArraySerializer;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;

/**
 * Creates topics, writes records with a real producer and deletes them: one JSON object a line on
 * standard input is one step, one JSON object a line on standard output is its result.
 * kafka_tools.py builds the steps and says what their fields mean.
 *
 * <p>The records follow from the step alone, so a test can be run again with the same bytes.
 */
public final class Produce {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Duration CLOSE_TIMEOUT = Duration.ofSeconds(30);

    private final String bootstrap;

    private Produce(String bootstrap) {
        this.bootstrap = bootstrap;
    }

    public static void main(String[] args) throws Exception {
        Produce produce = new Produce(args[0]);
        BufferedReader steps =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = steps.readLine(); line != null; line = steps.readLine()) {
            JsonNode step = JSON.readTree(line);
            Map<String, Object> result = switch (step.get("op").asText()) {
                case "create" -> produce.create(step);
                case "produce" -> produce.produce(step);
                case "deleteRecords" -> produce.deleteRecords(step);
                default -> throw new IOException("unknown step: " + line);
            };
            System.out.println(JSON.writeValueAsString(result));
        }
        System.out.flush();
        // A transaction that was to stay open would be aborted by an orderly end.
        Runtime.getRuntime().halt(0);
    }

    private Map<String, Object> create(JsonNode step) throws Exception {
        String topic = step.get("topic").asText();
        Map<String, String> configs = new HashMap<>();
        step.get("configs").properties()
            .forEach(config -> configs.put(config.getKey(), config.getValue().asText()));
        NewTopic newTopic = new NewTopic(
            topic, step.get("partitions").asInt(), (short) step.get("replicas").asInt());
        newTopic.configs(configs);
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            var created = admin.createTopics(List.of(newTopic));
            created.all().get(60, TimeUnit.SECONDS);
            Map<String, Object> result = new LinkedHashMap<>();
            result.put("topic", topic);
            result.put("topicId", created.topicId(topic).get().toString());
            return result;
        }
    }

    private Map<String, Object> deleteRecords(JsonNode step) throws Exception {
        String topic = step.get("topic").asText();
        TopicPartition partition = new TopicPartition(topic, step.get("partition").asInt());
        RecordsToDelete below = RecordsToDelete.beforeOffset(step.get("beforeOffset").asLong());
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", bootstrap))) {
            var deleted = admin.deleteRecords(Map.of(partition, below)).lowWatermarks();
            Map<String, Object> result = new LinkedHashMap<>();
            result.put("topic", topic);
            result.put("partition", partition.partition());
            result.put("logStartOffset",
                deleted.get(partition).get(60, TimeUnit.SECONDS).lowWatermark());
            return result;
        }
    }

    private Map<String, Object> produce(JsonNode step) throws Exception {
        String outcomes = step.get("outcomes").asText();
        KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(
            config(step), new ByteArraySerializer(), new ByteArraySerializer());
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        boolean leaveOpen = outcomes.endsWith("O");
        try {
            int count = step.get("count").asInt();
            if (outcomes.isEmpty()) {
                send(producer, step, 0, count, sent);
                producer.flush();
            } else {
                producer.initTransactions();
                for (int i = 0; i < outcomes.length(); i++) {
                    producer.beginTransaction();
                    int first = chunk(i, count, outcomes);
                    send(producer, step, first, chunk(i + 1, count, outcomes), sent);
                    // An abort drops batches that are not yet sent; here they must reach the log.
                    producer.flush();
                    switch (outcomes.charAt(i)) {
                        case 'C' -> producer.commitTransaction();
                        case 'A' -> producer.abortTransaction();
                        case 'O' -> { }
                        default -> throw new IOException("unknown outcome in " + outcomes);
                    }
                }
            }
        } finally {
            producer.close(leaveOpen ? Duration.ZERO : CLOSE_TIMEOUT);
        }
        return summary(step, sent);
    }

    private static int chunk(int index, int count, String outcomes) {
        return (int) ((long) count * index / outcomes.length());
    }

    private Map<String, Object> config(JsonNode step) {
        Map<String, Object> config = new HashMap<>();
        config.put(ProducerConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap);
        config.put(ProducerConfig.COMPRESSION_TYPE_CONFIG, step.get("codec").asText());
        config.put(ProducerConfig.BATCH_SIZE_CONFIG, step.get("batchBytes").asInt());
        config.put(ProducerConfig.LINGER_MS_CONFIG, 20);
        config.put(ProducerConfig.ACKS_CONFIG, "all");
        config.put(ProducerConfig.ENABLE_IDEMPOTENCE_CONFIG, step.get("idempotent").asBoolean());
        // Without sequence numbers only one request in flight keeps the records in order.
        config.put(ProducerConfig.MAX_IN_FLIGHT_REQUESTS_PER_CONNECTION, 1);
        if (!step.get("outcomes").asText().isEmpty()) {
            config.put(
                ProducerConfig.TRANSACTIONAL_ID_CONFIG, step.get("transactionalId").asText());
            // The longest that a broker allows, so that an open transaction stays open.
            config.put(ProducerConfig.TRANSACTION_TIMEOUT_CONFIG, 900_000);
        }
        return config;
    }

    private static void send(KafkaProducer<byte[], byte[]> producer, JsonNode step, int first,
                             int end, List<Future<RecordMetadata>> sent) {
        String topic = step.get("topic").asText();
        int partition = step.get("partition").asInt();
        for (int i = first; i < end; i++) {
            Random random = new Random(step.get("seed").asLong() * 1_000_003L + i);
            long timestamp = step.get("timestampStart").asLong()
                + i * step.get("timestampStep").asLong()
                - random.nextInt(step.get("timestampJitter").asInt() + 1);
            byte[] key = step.get("nullKeys").asBoolean() && i % 5 == 0
                ? null : ("key-" + random.nextInt(1000)).getBytes(StandardCharsets.UTF_8);
            byte[] value = step.get("nullValues").asBoolean() && i % 7 == 0
                ? null : value(random, step.get("valueBytes").asInt());
            List<Header> headers =
                step.get("headers").asBoolean() ? headers(random, i) : List.of();
            sent.add(producer.send(
                new ProducerRecord<>(topic, partition, timestamp, key, value, headers)));
        }
    }

    /** Half noise, half repetition, so that every codec has something to do; may be empty. */
    private static byte[] value(Random random, int bytesMax) {
        byte[] value = new byte[random.nextInt(bytesMax + 1)];
        random.nextBytes(value);
        for (int i = value.length / 2; i < value.length; i++) {
            value[i] = (byte) ('a' + i % 3);
        }
        return value;
    }

    /** None to three headers, among them null and empty values and the same name twice. */
    private static List<Header> headers(Random random, int i) {
        List<Header> headers = new ArrayList<>();
        for (int n = 0; n < i % 4; n++) {
            byte[] value = switch ((i + n) % 3) {
                case 0 -> null;
                case 1 -> new byte[0];
                default -> value(random, 20);
            };
            headers.add(new RecordHeader(n == 1 ? "naïve-ключ" : "h", value));
        }
        return headers;
    }

    private static Map<String, Object> summary(JsonNode step, List<Future<RecordMetadata>> sent)
            throws ExecutionException, InterruptedException {
        Map<String, Object> result = new LinkedHashMap<>();
        result.put("topic", step.get("topic").asText());
        result.put("partition", step.get("partition").asInt());
        result.put("count", sent.size());
        long first = Long.MAX_VALUE;
        long last = -1;
        for (Future<RecordMetadata> future : sent) {
            long offset = future.get().offset();
            first = Math.min(first, offset);
            last = Math.max(last, offset);
        }
        result.put("firstOffset", sent.isEmpty() ? -1 : first);
        result.put("lastOffset", last);
        return result;
    }
}
