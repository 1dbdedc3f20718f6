"""confluent-kafka, which is librdkafka."""

from __future__ import annotations

import common
import confluent_kafka
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

TIMEOUT_S = 60


def produce(bootstrap: str, step: common.Step) -> None:
    config = {
        "bootstrap.servers": bootstrap,
        "compression.type": step.get("codec", "none"),
        "acks": step.get("acks", "all"),
        "enable.idempotence": step.get("idempotent", False),
        "delivery.timeout.ms": TIMEOUT_S * 1000,
        "linger.ms": 2,
    }
    if "transactional_id" in step:
        own = {"enable.idempotence": True, "transactional.id": step["transactional_id"]}
        _transact(Producer({**config, **own}), step)
        return
    producer = Producer(config)
    for key, value, partition, timestamp in common.records(step):

        def delivered(error: object, message: object, value: str = value) -> None:
            if error is None:
                common.answer(acked=value)
            else:
                common.answer(failed=value, error=str(error))

        _send(producer, step["topic"], key, value, partition, timestamp, delivered)
        producer.poll(0)
    producer.flush(TIMEOUT_S)


def _send(producer, topic, key, value, partition, timestamp, delivered=None) -> None:
    when = {} if timestamp is None else {"timestamp": timestamp}
    producer.produce(topic, value.encode(), key.encode(), partition, on_delivery=delivered, **when)


def _transact(producer: Producer, step: common.Step) -> None:
    producer.init_transactions(TIMEOUT_S)
    for commit, records in common.transactions(step):
        values = [record[1] for record in records]
        try:
            producer.begin_transaction()
            for record in records:
                _send(producer, step["topic"], *record)
            if not commit:
                producer.flush(TIMEOUT_S)
                producer.abort_transaction(TIMEOUT_S)
                common.answer(aborted=values)
                continue
            while True:
                try:
                    producer.commit_transaction(TIMEOUT_S)
                    break
                except KafkaException as error:
                    if not error.args[0].retriable():
                        raise
            common.answer(committed=values)
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                common.answer(unknown=values, error=str(error))
                raise
            producer.abort_transaction(TIMEOUT_S)
            common.answer(aborted=values)


def _consumer(bootstrap: str, step: common.Step) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": step.get("group", "unused"),
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": step.get("isolation", "read_uncommitted"),
            "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 300,
        }
    )


def _take(consumer: Consumer, until: common.Until) -> bool:
    message = consumer.poll(0.1)
    if message is None:
        return False
    if message.error():
        if message.error().retriable() or message.error().code() in _PASSING:
            return False
        raise KafkaException(message.error())
    common.read(
        message.value(),
        message.key(),
        message.partition(),
        message.offset(),
        message.timestamp()[1],
    )
    until.took(1)
    return True


_PASSING = (
    confluent_kafka.KafkaError._ALL_BROKERS_DOWN,
    confluent_kafka.KafkaError._TRANSPORT,
    confluent_kafka.KafkaError.UNKNOWN_TOPIC_OR_PART,
)


def read(bootstrap: str, step: common.Step) -> None:
    consumer = _consumer(bootstrap, step)
    topic = step["topic"]
    since = step.get("since_ms", confluent_kafka.OFFSET_BEGINNING)
    wanted = [TopicPartition(topic, p, since) for p in range(step["partitions"])]
    if "since_ms" in step:
        wanted = consumer.offsets_for_times(wanted, TIMEOUT_S)
    consumer.assign(wanted)
    until = common.Until(step)
    while until.goes_on:
        _take(consumer, until)
    consumer.close()


def group(bootstrap: str, step: common.Step) -> None:
    consumer = _consumer(bootstrap, step)

    def assigned(consumer: Consumer, partitions: list[TopicPartition]) -> None:
        common.answer(assigned=[each.partition for each in partitions])

    def revoked(consumer: Consumer, partitions: list[TopicPartition]) -> None:
        _commit(consumer)

    consumer.subscribe([step["topic"]], on_assign=assigned, on_revoke=revoked)
    until = common.Until(step)
    while until.goes_on:
        if _take(consumer, until):
            _commit(consumer)
    consumer.close()


def _commit(consumer: Consumer) -> None:
    try:
        consumer.commit(asynchronous=False)
    except KafkaException as error:
        if error.args[0].code() not in (
            confluent_kafka.KafkaError._NO_OFFSET,
            confluent_kafka.KafkaError.ILLEGAL_GENERATION,
            confluent_kafka.KafkaError.REBALANCE_IN_PROGRESS,
            confluent_kafka.KafkaError.UNKNOWN_MEMBER_ID,
        ):
            raise


def admin(bootstrap: str, step: common.Step) -> None:
    client = AdminClient({"bootstrap.servers": bootstrap})
    topic = step["topic"]
    new = NewTopic(topic, 3, config={"retention.ms": "123456"})
    client.create_topics([new])[topic].result(TIMEOUT_S)
    described = client.list_topics(topic, timeout=TIMEOUT_S).topics[topic]
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    config = client.describe_configs([resource])[resource].result(TIMEOUT_S)
    common.answer(
        partitions=len(described.partitions),
        retention_ms=config["retention.ms"].value,
        listed=topic in client.list_topics(timeout=TIMEOUT_S).topics,
    )
    client.delete_topics([topic])[topic].result(TIMEOUT_S)
    fresh = AdminClient({"bootstrap.servers": bootstrap})
    common.answer(listed_after=topic in fresh.list_topics(timeout=TIMEOUT_S).topics)


common.main({"produce": produce, "read": read, "group": group, "admin": admin})
