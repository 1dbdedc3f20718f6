import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeSet;
import java.util.concurrent.Future;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.RebalanceInProgressException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** The Java client, of the version that is on the class path. Steps: one {@code name=value,…} each. */
public final class JavaDriver {
    private static final int TIMEOUT_MS = 60_000;

    private final String bootstrap;
    private final Map<String, String> step;

    private JavaDriver(String bootstrap, Map<String, String> step) {
        this.bootstrap = bootstrap;
        this.step = step;
    }

    public static void main(String[] arguments) throws Exception {
        for (int index = 1; index < arguments.length; index++) {
            Map<String, String> step = new HashMap<>();
            for (String pair : arguments[index].split(",")) {
                int equals = pair.indexOf('=');
                step.put(pair.substring(0, equals), pair.substring(equals + 1));
            }
            JavaDriver driver = new JavaDriver(arguments[0], step);
            switch (step.get("do")) {
                case "produce": driver.produce(); break;
                case "read": driver.read(); break;
                case "group": driver.group(); break;
                case "admin": driver.admin(); break;
                default: throw new IllegalArgumentException(step.get("do"));
            }
        }
    }

    private int number(String name) {
        return Integer.parseInt(step.get(name));
    }

    private static synchronized void answer(String line) {
        System.out.println(line);
        System.out.flush();
    }

    private static String quoted(Object value) {
        return '"' + String.valueOf(value).replace("\\", "\\\\").replace("\"", "'") + '"';
    }

    private static String quoted(Collection<?> values) {
        return values.stream().map(JavaDriver::quoted).collect(Collectors.joining(",", "[", "]"));
    }

    private Properties common() {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        return properties;
    }

    private void produce() throws Exception {
        Properties properties = common();
        properties.put("compression.type", step.getOrDefault("codec", "none"));
        properties.put("acks", step.getOrDefault("acks", "all"));
        boolean transactional = step.containsKey("transactional_id");
        properties.put("enable.idempotence", transactional ? "true" : step.getOrDefault("idempotent", "false"));
        properties.put("delivery.timeout.ms", TIMEOUT_MS);
        properties.put("request.timeout.ms", 10_000);
        properties.put("linger.ms", 2);
        if (transactional) {
            properties.put("transactional.id", step.get("transactional_id"));
        }
        try (KafkaProducer<String, String> producer =
                new KafkaProducer<>(properties, new StringSerializer(), new StringSerializer())) {
            if (transactional) {
                producer.initTransactions();
                transact(producer);
                return;
            }
            Until until = new Until();
            for (int index = 0; until.goesOn(); index++, until.left--) {
                ProducerRecord<String, String> record = record(index);
                long began = System.nanoTime();
                producer.send(record, (metadata, error) -> {
                    if (error == null) {
                        answer("{\"acked\":" + quoted(record.value()) + ",\"offset\":" + metadata.offset()
                            + ",\"began_ns\":" + began + ",\"ended_ns\":" + System.nanoTime() + "}");
                    } else {
                        answer("{\"failed\":" + quoted(record.value()) + ",\"error\":" + quoted(error) + "}");
                    }
                });
            }
            producer.flush();
        }
    }

    private ProducerRecord<String, String> record(int index) throws InterruptedException {
        if (step.containsKey("pause_ms")) {
            Thread.sleep(number("pause_ms"));
        }
        Long timestamp = step.containsKey("timestamp_ms")
            ? Long.valueOf(Long.parseLong(step.get("timestamp_ms")) + index) : null;
        return new ProducerRecord<>(
            step.get("topic"), index % number("partitions"), timestamp, "k" + index, step.get("prefix") + index);
    }

    private void transact(KafkaProducer<String, String> producer) throws Exception {
        int size = number("transaction_size");
        boolean commit = true;
        Until until = new Until();
        for (int first = 0; until.goesOn(); first += size, until.left -= size, commit = !commit) {
            List<String> values = new ArrayList<>();
            try {
                producer.beginTransaction();
                List<Future<?>> sent = new ArrayList<>();
                for (int index = first; index < first + Math.min(size, until.left); index++) {
                    ProducerRecord<String, String> record = record(index);
                    values.add(record.value());
                    sent.add(producer.send(record));
                }
                for (Future<?> each : sent) {
                    each.get();
                }
                if (commit) {
                    commit(producer);
                    answer("{\"committed\":" + quoted(values) + "}");
                    continue;
                }
            } catch (KafkaException | java.util.concurrent.ExecutionException error) {
                answer("{\"unknown\":" + quoted(values) + ",\"error\":" + quoted(error) + "}");
            }
            producer.abortTransaction();
            answer("{\"aborted\":" + quoted(values) + "}");
        }
    }

    private static void commit(KafkaProducer<String, String> producer) {
        for (int attempt = 1; ; attempt++) {
            try {
                producer.commitTransaction();
                return;
            } catch (TimeoutException error) {
                if (attempt == 3) {
                    throw error;
                }
            }
        }
    }

    private KafkaConsumer<String, String> consumer() {
        Properties properties = common();
        if (step.containsKey("group")) {
            properties.put("group.id", step.get("group"));
        }
        properties.put("enable.auto.commit", "false");
        properties.put("auto.offset.reset", "earliest");
        properties.put("isolation.level", step.getOrDefault("isolation", "read_uncommitted"));
        properties.put("session.timeout.ms", 6000);
        properties.put("heartbeat.interval.ms", 300);
        properties.put("max.poll.records", 25);
        return new KafkaConsumer<>(properties, new StringDeserializer(), new StringDeserializer());
    }

    private final class Until {
        private final long deadline = System.nanoTime() + Long.parseLong(step.getOrDefault("timeout_s", "120")) * 1_000_000_000L;
        private final boolean counted = step.containsKey("count");
        private long left = counted ? number("count") : Long.MAX_VALUE;

        private volatile boolean closed;

        Until() {
            if (!counted) {
                Thread reader = new Thread(this::awaitEndOfInput);
                reader.setDaemon(true);
                reader.start();
            }
        }

        private void awaitEndOfInput() {
            try {
                while (System.in.read() >= 0) {
                    // Nothing is ever written there.
                }
            } catch (IOException error) {
                // The same as its end.
            }
            closed = true;
        }

        boolean goesOn() {
            return left > 0 && !closed && System.nanoTime() < deadline;
        }
    }

    private static int take(KafkaConsumer<String, String> consumer, Until until) {
        ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(100));
        for (ConsumerRecord<String, String> record : records) {
            answer("{\"read\":" + quoted(record.value()) + ",\"key\":" + quoted(record.key())
                + ",\"partition\":" + record.partition() + ",\"offset\":" + record.offset()
                + ",\"timestamp\":" + record.timestamp() + "}");
        }
        until.left -= records.count();
        return records.count();
    }

    private void read() {
        List<TopicPartition> partitions = IntStream.range(0, number("partitions"))
            .mapToObj(partition -> new TopicPartition(step.get("topic"), partition))
            .collect(Collectors.toList());
        try (KafkaConsumer<String, String> consumer = consumer()) {
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            if (step.containsKey("since_ms")) {
                Map<TopicPartition, Long> wanted = new HashMap<>();
                partitions.forEach(each -> wanted.put(each, Long.parseLong(step.get("since_ms"))));
                for (Map.Entry<TopicPartition, OffsetAndTimestamp> found : consumer.offsetsForTimes(wanted).entrySet()) {
                    if (found.getValue() == null) {
                        consumer.seekToEnd(List.of(found.getKey()));
                    } else {
                        consumer.seek(found.getKey(), found.getValue().offset());
                    }
                }
            }
            Until until = new Until();
            while (until.goesOn()) {
                take(consumer, until);
            }
        }
    }

    private void group() {
        try (KafkaConsumer<String, String> consumer = consumer()) {
            consumer.subscribe(List.of(step.get("topic")), new ConsumerRebalanceListener() {
                @Override
                public void onPartitionsAssigned(Collection<TopicPartition> added) {
                    TreeSet<Integer> all = new TreeSet<>();
                    consumer.assignment().forEach(each -> all.add(each.partition()));
                    added.forEach(each -> all.add(each.partition()));
                    answer("{\"assigned\":" + all + "}");
                }

                @Override
                public void onPartitionsRevoked(Collection<TopicPartition> revoked) {
                    // What was read is committed already.
                }
            });
            Until until = new Until();
            while (until.goesOn()) {
                if (take(consumer, until) > 0) {
                    try {
                        consumer.commitSync();
                    } catch (CommitFailedException | RebalanceInProgressException error) {
                        // Another member has the partitions now, and reads on from the last commit.
                    }
                }
            }
        }
    }

    private void admin() throws Exception {
        String topic = step.get("topic");
        try (Admin admin = Admin.create(common())) {
            NewTopic wanted = new NewTopic(topic, 3, (short) 1).configs(Map.of("retention.ms", "123456"));
            admin.createTopics(List.of(wanted)).all().get();
            int partitions = admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions().size();
            ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
            String retention = admin.describeConfigs(List.of(resource)).all().get().get(resource)
                .get("retention.ms").value();
            answer("{\"partitions\":" + partitions + ",\"retention_ms\":" + quoted(retention)
                + ",\"listed\":" + admin.listTopics().names().get().contains(topic) + "}");
            admin.deleteTopics(List.of(topic)).all().get();
            answer("{\"listed_after\":" + admin.listTopics().names().get().contains(topic) + "}");
        }
    }
}
