"""kafka-python, which speaks the protocol in Python."""

from __future__ import annotations

import contextlib

import common
from kafka import (
    ConsumerRebalanceListener,
    KafkaAdminClient,
    KafkaConsumer,
    KafkaProducer,
    TopicPartition,
)
from kafka.admin import ConfigResource, ConfigResourceType, NewTopic
from kafka.errors import (
    CommitFailedError,
    IllegalGenerationError,
    KafkaError,
    RebalanceInProgressError,
    UnknownBrokerIdError,
)

TIMEOUT_S = 60
_REBALANCED = (CommitFailedError, IllegalGenerationError, RebalanceInProgressError)


def produce(bootstrap: str, step: common.Step) -> None:
    acks = step.get("acks", "all")
    codec = step.get("codec", "none")
    config = {
        "bootstrap_servers": bootstrap,
        "acks": acks if acks == "all" else int(acks),
        "compression_type": None if codec == "none" else codec,
        "enable_idempotence": step.get("idempotent", False),
        "delivery_timeout_ms": TIMEOUT_S * 1000,
        "linger_ms": 2,
    }
    if "transactional_id" in step:
        config |= {"enable_idempotence": True, "transactional_id": step["transactional_id"]}
        with KafkaProducer(**config) as producer:
            _transact(producer, step)
        return
    with KafkaProducer(**config) as producer:
        for key, value, partition, timestamp in common.records(step):
            future = _send(producer, step["topic"], key, value, partition, timestamp)
            future.add_callback(lambda _, value=value: common.answer(acked=value))
            future.add_errback(lambda e, value=value: common.answer(failed=value, error=str(e)))
        producer.flush(TIMEOUT_S)


def _send(producer, topic, key, value, partition, timestamp):
    return producer.send(
        topic,
        value=value.encode(),
        key=key.encode(),
        partition=partition,
        timestamp_ms=timestamp,
    )


def _transact(producer: KafkaProducer, step: common.Step) -> None:
    producer.init_transactions()
    for commit, records in common.transactions(step):
        values = [record[1] for record in records]
        producer.begin_transaction()
        try:
            for future in [_send(producer, step["topic"], *record) for record in records]:
                future.get(TIMEOUT_S)
            if commit:
                producer.commit_transaction()
                common.answer(committed=values)
                continue
        except KafkaError as error:
            common.answer(unknown=values, error=repr(error))
            raise
        producer.abort_transaction()
        common.answer(aborted=values)


def _consumer(bootstrap: str, step: common.Step) -> KafkaConsumer:
    return KafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=step.get("group"),
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level=step.get("isolation", "read_uncommitted"),
        session_timeout_ms=6000,
        heartbeat_interval_ms=300,
    )


def _take(consumer: KafkaConsumer, until: common.Until) -> bool:
    try:
        batches = consumer.poll(timeout_ms=100)
    except UnknownBrokerIdError:  # Metadata dropped the broker just now; the next poll knows
        return False
    for batch in batches.values():
        for each in batch:
            common.read(each.value, each.key, each.partition, each.offset, each.timestamp)
        until.took(len(batch))
    return bool(batches)


def read(bootstrap: str, step: common.Step) -> None:
    consumer = _consumer(bootstrap, step)
    partitions = [TopicPartition(step["topic"], p) for p in range(step["partitions"])]
    consumer.assign(partitions)
    if "since_ms" in step:
        found = consumer.offsets_for_times(dict.fromkeys(partitions, step["since_ms"]))
        for partition, offset in found.items():
            if offset is None:
                consumer.seek_to_end(partition)
            else:
                consumer.seek(partition, offset.offset)
    else:
        consumer.seek_to_beginning()
    until = common.Until(step)
    while until.goes_on:
        _take(consumer, until)
    consumer.close()


def group(bootstrap: str, step: common.Step) -> None:
    consumer = _consumer(bootstrap, step)

    class Listener(ConsumerRebalanceListener):
        def on_partitions_assigned(self, assigned):
            common.answer(assigned=sorted(each.partition for each in assigned))

        def on_partitions_revoked(self, revoked):
            pass  # what was read is committed already

    consumer.subscribe([step["topic"]], listener=Listener())
    until = common.Until(step)
    while until.goes_on:
        if _take(consumer, until):
            # Another member has the partitions now, and reads on from the last commit.
            with contextlib.suppress(*_REBALANCED):
                consumer.commit()
    consumer.close()


def admin(bootstrap: str, step: common.Step) -> None:
    client = KafkaAdminClient(bootstrap_servers=bootstrap)
    topic = step["topic"]
    new = NewTopic(topic, 3, 1, topic_configs={"retention.ms": "123456"})
    client.create_topics([new])
    (described,) = client.describe_topics([topic])
    config = client.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
    common.answer(
        partitions=len(described["partitions"]),
        retention_ms=_retention(config),
        listed=topic in client.list_topics(),
    )
    client.delete_topics([topic])
    common.answer(listed_after=topic in client.list_topics())


def _retention(config: object) -> object:
    """Find the value whatever form this version's answer has."""
    if isinstance(config, dict):
        if "retention.ms" in config:
            found = config["retention.ms"]
            return found["value"] if isinstance(found, dict) else found
        return next(filter(None, map(_retention, config.values())), None)
    if isinstance(config, (list, tuple)):
        return next(filter(None, map(_retention, config)), None)
    return None


common.main({"produce": produce, "read": read, "group": group, "admin": admin})
