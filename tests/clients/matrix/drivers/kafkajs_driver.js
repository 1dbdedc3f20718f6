// kafkajs: no zstd, and of the other codecs only gzip without further packages.
"use strict";
const { Kafka, CompressionTypes, logLevel } = require("kafkajs");

const ACKS = { 0: 0, 1: 1, all: -1 };
const RETRY = { retries: 30, initialRetryTime: 100, maxRetryTime: 1000 };

function answer(fields) {
  process.stdout.write(JSON.stringify(fields) + "\n");
}

function pause(milliseconds) {
  return new Promise((resolve) => setTimeout(resolve, milliseconds));
}

function message(step, number) {
  const record = {
    key: `k${number}`,
    value: `${step.prefix}${number}`,
    partition: number % step.partitions,
  };
  if (step.timestamp_ms !== undefined) record.timestamp = String(step.timestamp_ms + number);
  return record;
}

async function produce(kafka, step) {
  const producer = kafka.producer({
    idempotent: Boolean(step.idempotent || step.transactional_id),
    transactionalId: step.transactional_id,
    maxInFlightRequests: step.idempotent || step.transactional_id ? 1 : undefined,
    retry: RETRY,
  });
  await producer.connect();
  const compression = { none: CompressionTypes.None, gzip: CompressionTypes.GZIP }[step.codec || "none"];
  const size = step.transaction_size || 20;
  let commit = true;
  let closed = false;
  if (step.count === undefined) process.stdin.on("end", () => (closed = true)).resume();
  const count = step.count === undefined ? Infinity : step.count;
  for (let first = 0; first < count && !closed; first += size) {
    const messages = [];
    for (let number = first; number < Math.min(first + size, count); number++) {
      if (step.pause_ms) await pause(step.pause_ms);
      messages.push(message(step, number));
    }
    const values = messages.map((each) => each.value);
    const batch = { topic: step.topic, messages, acks: ACKS[step.acks || "all"], compression };
    if (!step.transactional_id) {
      try {
        await producer.send(batch);
        for (const value of values) answer({ acked: value });
      } catch (error) {
        for (const value of values) answer({ failed: value, error: String(error) });
      }
      continue;
    }
    const transaction = await producer.transaction();
    await transaction.send(batch);
    if (commit) {
      await transaction.commit();
      answer({ committed: values });
    } else {
      await transaction.abort();
      answer({ aborted: values });
    }
    commit = !commit;
  }
  await producer.disconnect();
}

function shown(partition, record) {
  answer({
    read: record.value.toString(),
    key: record.key === null ? null : record.key.toString(),
    partition,
    offset: Number(record.offset),
    timestamp: Number(record.timestamp),
  });
}

async function consume(kafka, step, group, ready) {
  const consumer = kafka.consumer({
    groupId: group,
    sessionTimeout: 6000,
    heartbeatInterval: 300,
    maxWaitTimeInMs: 100,
    readUncommitted: step.isolation !== "read_committed",
    retry: RETRY,
  });
  consumer.on(consumer.events.GROUP_JOIN, (event) => {
    answer({ assigned: (event.payload.memberAssignment[step.topic] || []).sort() });
  });
  await consumer.connect();
  await consumer.subscribe({ topics: [step.topic], fromBeginning: true });
  let left = step.count === undefined ? Infinity : step.count;
  let sought = !ready; // what comes before the seek comes again after it
  let finish;
  const finished = new Promise((resolve) => (finish = resolve));
  if (step.count === undefined) process.stdin.on("end", finish).resume();
  setTimeout(finish, step.timeout_s * 1000).unref();
  await consumer.run({
    autoCommit: false,
    eachMessage: async ({ topic, partition, message }) => {
      if (left <= 0 || !sought) return;
      left -= 1;
      shown(partition, message);
      if (step.group) {
        const offset = String(Number(message.offset) + 1);
        try {
          await consumer.commitOffsets([{ topic, partition, offset }]);
        } catch (error) {
          // Another member has the partition now, and reads on from the last commit.
          if (!/rebalanc|generation|member/i.test(String(error))) throw error;
        }
      }
      if (left <= 0) finish();
    },
  });
  if (ready) {
    await ready(consumer);
    sought = true;
  }
  await finished;
  await consumer.disconnect();
}

// Without a group kafkajs does not read: one of its own for each step.
async function read(kafka, step) {
  const name = `read-${process.pid}-${step.topic}`;
  if (step.since_ms === undefined) return consume(kafka, step, name);
  return consume(kafka, step, name, async (consumer) => {
    const admin = kafka.admin();
    await admin.connect();
    const found = await admin.fetchTopicOffsetsByTimestamp(step.topic, step.since_ms);
    await admin.disconnect();
    for (const { partition, offset } of found) consumer.seek({ topic: step.topic, partition, offset });
  });
}

async function group(kafka, step) {
  await consume(kafka, step, step.group);
}

async function admin(kafka, step) {
  const client = kafka.admin();
  await client.connect();
  const configEntries = [{ name: "retention.ms", value: "123456" }];
  await client.createTopics({ topics: [{ topic: step.topic, numPartitions: 3, configEntries }] });
  const { topics } = await client.fetchTopicMetadata({ topics: [step.topic] });
  const { resources } = await client.describeConfigs({
    includeSynonyms: false,
    resources: [{ type: 2, name: step.topic }],
  });
  const retention = resources[0].configEntries.find((each) => each.configName === "retention.ms");
  answer({
    partitions: topics[0].partitions.length,
    retention_ms: retention.configValue,
    listed: (await client.listTopics()).includes(step.topic),
  });
  await client.deleteTopics({ topics: [step.topic] });
  answer({ listed_after: (await client.listTopics()).includes(step.topic) });
  await client.disconnect();
}

async function main() {
  const [bootstrap, steps] = process.argv.slice(2);
  const kafka = new Kafka({ brokers: bootstrap.split(","), logLevel: logLevel.NOTHING, retry: RETRY });
  for (const step of JSON.parse(steps)) await { produce, read, group, admin }[step.do](kafka, step);
}

main().then(
  () => process.exit(0),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
