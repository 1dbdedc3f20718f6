"""librdkafka with brokers that are served: their faults, their groups, their end."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka

from checkpoints.types import TopicPartition
from logstore.pytest_plugin import (
    logstore_kafka,
    logstore_kafka_session,
    logstore_topic,
    make_logstore_kafka,
)
from replication import ErrorCode, ServedCluster, serve
from replication.admin import AdminClient, cluster_status
from replication.protocol import ApiKey
from replication.security.config import ClientConfig
from replication.server.serving import HttpListener
from tests.support.until import patience, until

__all__ = ["logstore_kafka", "logstore_kafka_session", "logstore_topic", "make_logstore_kafka"]


def producer(kafka: ServedCluster, **options: Any) -> confluent_kafka.Producer:
    return confluent_kafka.Producer(
        {"bootstrap.servers": kafka.bootstrap_servers, "retry.backoff.ms": 10, **options}
    )


def send(kafka: ServedCluster, topic: str, value: bytes, **options: Any) -> int:
    """The offset of one record."""
    acknowledged: list[tuple[object, Any]] = []
    sender = producer(kafka, **options)
    sender.produce(topic, value, on_delivery=lambda *done: acknowledged.append(done))
    assert sender.flush(patience()) == 0
    ((error, message),) = acknowledged
    assert error is None
    offset: int = message.offset()
    return offset


def values(kafka: ServedCluster, topic: str) -> list[bytes | None]:
    return [record.value for record in kafka.read_all(topic)[0]]


def consume(kafka: ServedCluster, topic: str, group: str, count: int) -> confluent_kafka.Consumer:
    """A member of the group that has committed ``count`` records of the topic."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    for _ in range(count):
        message = until(lambda: consumer.poll(0.05), "a record")
        assert message.error() is None
        consumer.commit(message, asynchronous=False)
    return consumer


def test_a_producer_outlives_the_leader(make_logstore_kafka: Callable[..., ServedCluster]) -> None:
    kafka = make_logstore_kafka(3)
    kafka.create_topic("orders", 1, 3)
    before = kafka.bootstrap_servers
    assert before.count(",") == 2
    leader = kafka.leader(TopicPartition("orders", 0))
    assert leader is not None
    acknowledged: list[object] = []
    sender = producer(kafka, **{"enable.idempotence": True})
    for number in range(100):
        if number == 50:
            sender.flush(patience())
            kafka.crash(leader)
        sender.produce(
            "orders", b"%d" % number, on_delivery=lambda error, _: acknowledged.append(error)
        )
        sender.poll(0)
    assert sender.flush(patience()) == 0
    assert acknowledged == [None] * 100
    kafka.start(leader)
    assert kafka.bootstrap_servers == before
    assert values(kafka, "orders") == [b"%d" % number for number in range(100)]


def test_the_address_is_known_while_nobody_is_there(logstore_kafka: ServedCluster) -> None:
    """A client may start first."""
    address = logstore_kafka.bootstrap_servers
    logstore_kafka.crash(0)
    assert logstore_kafka.bootstrap_servers == address
    sender = producer(logstore_kafka)
    sender.produce("orders", b"early")
    logstore_kafka.start(0)
    assert sender.flush(patience()) == 0
    assert values(logstore_kafka, "orders") == [b"early"]


def test_an_error_of_the_servers_is_retried(logstore_kafka: ServedCluster) -> None:
    logstore_kafka.create_topic("orders")
    fault = logstore_kafka.faults.fail(
        ApiKey.PRODUCE, error=ErrorCode.NOT_LEADER_OR_FOLLOWER, times=2
    )
    assert send(logstore_kafka, "orders", b"value") == 0
    assert fault.met == 2
    assert values(logstore_kafka, "orders") == [b"value"]


def test_an_answer_that_is_lost_is_no_second_record(logstore_kafka: ServedCluster) -> None:
    logstore_kafka.create_topic("orders")
    fault = logstore_kafka.faults.lose_answer(ApiKey.PRODUCE)
    assert send(logstore_kafka, "orders", b"value", **{"enable.idempotence": True}) == 0
    assert fault.met == 1
    assert values(logstore_kafka, "orders") == [b"value"]


def test_groups_and_their_lag_are_on_the_page_and_in_status(tmp_path: Path) -> None:
    with serve(tmp_path, brokers=2, http=HttpListener()) as kafka:
        kafka.create_topic("orders", 1, 2)
        for number in range(3):
            send(kafka, "orders", b"%d" % number)
        consumer = consume(kafka, "orders", "billing", 2)
        assert kafka.http is not None
        url = "http://{}:{}/state".format(*kafka.http.address)
        with urllib.request.urlopen(url, timeout=patience()) as answer:
            state = json.load(answer)
        with AdminClient(ClientConfig(bootstrap_servers=(kafka.bootstrap_servers,))) as client:
            status = cluster_status(client)
        consumer.close()
    (group,) = state["groups"]
    assert (group["group"], group["state"], group["members"]) == ("billing", "Stable", 1)
    assert group["offsets"] == [
        {"topic": "orders", "partition": 0, "committed": 2, "high_watermark": 3, "lag": 1}
    ]
    (told,) = status.groups
    assert (told.group_id, told.state) == ("billing", "Stable")
    assert [member.assigned for member in told.members] == [(TopicPartition("orders", 0),)]
    assert [tuple(offset) for offset in told.offsets] == [(TopicPartition("orders", 0), 2, 3, 1)]
    assert [broker.problem for broker in status.brokers] == ["", ""]
