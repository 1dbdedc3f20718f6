"""Real clients of Kafka, unchanged, against brokers of one process: a topic is made, written, read
by assignment, and asked for its offsets. Groups and transactions have tests of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from replication.server.serving import ServedCluster
from tests.support.served import new_name, served
from tests.support.until import patience

confluent_kafka = pytest.importorskip("confluent_kafka")
kafka_python = pytest.importorskip("kafka")
aiokafka = pytest.importorskip("aiokafka")

COUNT = 300
PARTITIONS = 3
VALUES = {b"value-%d" % number for number in range(COUNT)}


@pytest.fixture(scope="module", params=[1, 3], ids=["one broker", "three brokers"])
def kafka(request: pytest.FixtureRequest) -> Iterator[ServedCluster]:
    config = {"default.replication.factor": request.param, "num.partitions": PARTITIONS}
    with served(request.param, config) as brokers:
        yield brokers


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_confluent_kafka(kafka: ServedCluster, codec: str) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    servers = {"bootstrap.servers": kafka.bootstrap_servers}
    name = new_name()
    admin = AdminClient(servers)  # its requests end with it
    (created,) = admin.create_topics([NewTopic(name, PARTITIONS)]).values()
    created.result(patience())
    producer = confluent_kafka.Producer(
        {
            **servers,
            "compression.type": codec,
            "linger.ms": 5,
            "enable.idempotence": codec == "none",
        }
    )
    failures: list[Any] = []
    for value in VALUES:
        producer.produce(name, value, on_delivery=lambda error, _: error and failures.append(error))
    assert producer.flush(patience()) == 0
    assert not failures
    consumer = confluent_kafka.Consumer(
        {**servers, "group.id": name, "check.crcs": True, "fetch.wait.max.ms": 20}
    )
    with closing(consumer):
        consumer.assign([confluent_kafka.TopicPartition(name, p, 0) for p in range(PARTITIONS)])
        found: list[bytes] = []
        while len(found) < COUNT:
            messages = consumer.consume(COUNT, patience())
            assert messages
            assert not [each.error() for each in messages if each.error()]
            found += [each.value() for each in messages]
        ends = [
            consumer.get_watermark_offsets(confluent_kafka.TopicPartition(name, p), patience())
            for p in range(PARTITIONS)
        ]
    assert set(found) == VALUES
    assert [low for low, _ in ends] == [0] * PARTITIONS
    assert sum(high for _, high in ends) == COUNT


@pytest.mark.slow
def test_kafka_python(kafka: ServedCluster) -> None:
    name = new_name()
    servers = kafka.bootstrap_servers.split(",")
    with closing(kafka_python.KafkaAdminClient(bootstrap_servers=servers)) as admin:
        admin.create_topics([kafka_python.admin.NewTopic(name, PARTITIONS, 1)])
    with closing(kafka_python.KafkaProducer(bootstrap_servers=servers, acks="all")) as producer:
        sent = [producer.send(name, value) for value in VALUES]
        producer.flush(patience())
        assert {each.get(patience()).topic for each in sent} == {name}
    tps = [kafka_python.TopicPartition(name, p) for p in range(PARTITIONS)]
    consumer = kafka_python.KafkaConsumer(bootstrap_servers=servers, check_crcs=True)
    with closing(consumer):
        consumer.assign(tps)
        assert set(consumer.beginning_offsets(tps).values()) == {0}
        assert sum(consumer.end_offsets(tps).values()) == COUNT
        consumer.seek_to_beginning(*tps)
        found: list[bytes] = []
        while len(found) < COUNT:
            batches = consumer.poll(30_000).values()
            assert batches
            found += [each.value for records in batches for each in records]
    assert set(found) == VALUES


@pytest.mark.slow
def test_aiokafka(kafka: ServedCluster) -> None:
    """It asks for the topic in Metadata 0, and so has it made."""
    name = new_name()

    async def run() -> list[bytes]:
        servers = kafka.bootstrap_servers
        async with aiokafka.AIOKafkaProducer(
            bootstrap_servers=servers, enable_idempotence=True
        ) as producer:
            await asyncio.gather(*[producer.send_and_wait(name, value) for value in VALUES])
        async with aiokafka.AIOKafkaConsumer(
            bootstrap_servers=servers, auto_offset_reset="earliest"
        ) as consumer:
            tps = [aiokafka.TopicPartition(name, p) for p in range(PARTITIONS)]
            consumer.assign(tps)
            ends = await consumer.end_offsets(tps)
            assert sum(ends.values()) == COUNT
            found: list[bytes] = []
            while len(found) < COUNT:
                batches = await consumer.getmany(timeout_ms=30_000)
                assert batches
                found += [each.value for records in batches.values() for each in records]
            return found

    assert set(asyncio.run(run())) == VALUES
