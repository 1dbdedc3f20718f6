"""Brokers that are served, as a user of the library and of its fixtures has them."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from checkpoints.types import TopicPartition
from logstore.common.errors import ConfigError, LogDirLockedError
from logstore.pytest_plugin import (
    logstore_kafka,
    logstore_kafka_session,
    logstore_topic,
    make_logstore_kafka,
)
from replication import ErrorCode, ServedCluster, serve, serve_async
from replication.admin import WireConnection, cluster_status
from replication.network import Listener, SecurityProtocol, UserCredentials
from replication.protocol import ApiKey
from replication.server.kafka_server import Exposure
from replication.server.serving import HttpListener
from tests.support.leftovers import nothing_left

__all__ = ["logstore_kafka", "logstore_kafka_session", "logstore_topic", "make_logstore_kafka"]

TIMEOUT_S = 60


def producer(kafka: ServedCluster, **options: Any) -> confluent_kafka.Producer:
    return confluent_kafka.Producer(
        {"bootstrap.servers": kafka.bootstrap_servers, "retry.backoff.ms": 10, **options}
    )


def send(kafka: ServedCluster, topic: str, value: bytes, **options: Any) -> int:
    """The offset of one record."""
    acknowledged: list[tuple[object, Any]] = []
    sender = producer(kafka, **options)
    sender.produce(topic, value, on_delivery=lambda *done: acknowledged.append(done))
    assert sender.flush(TIMEOUT_S) == 0
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
    end = time.monotonic() + TIMEOUT_S
    read = 0
    while read < count:
        assert time.monotonic() < end
        message = consumer.poll(1)
        if message is not None:
            assert message.error() is None
            consumer.commit(message, asynchronous=False)
            read += 1
    return consumer


def test_the_fixture_is_a_kafka(logstore_kafka: ServedCluster) -> None:
    assert send(logstore_kafka, "made-when-it-is-asked-for", b"value") == 0
    assert values(logstore_kafka, "made-when-it-is-asked-for") == [b"value"]


@pytest.mark.parametrize("life", [1, 2])
def test_a_topic_of_ones_own(
    logstore_kafka_session: ServedCluster, logstore_topic: str, life: int
) -> None:
    assert send(logstore_kafka_session, logstore_topic, b"%d" % life) == 0


def test_files_are_there_again_after_a_restart(tmp_path: Path) -> None:
    with serve(tmp_path) as kafka:
        send(kafka, "orders", b"first")
    with serve(tmp_path) as kafka:
        assert send(kafka, "orders", b"second") == 1
        assert values(kafka, "orders") == [b"first", b"second"]


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
            sender.flush(TIMEOUT_S)
            kafka.crash(leader)
        sender.produce(
            "orders", b"%d" % number, on_delivery=lambda error, _: acknowledged.append(error)
        )
        sender.poll(0)
    assert sender.flush(TIMEOUT_S) == 0
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
    assert sender.flush(TIMEOUT_S) == 0
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


def test_a_late_answer_is_late(logstore_kafka: ServedCluster) -> None:
    logstore_kafka.create_topic("orders")
    logstore_kafka.faults.delay(ApiKey.PRODUCE, ms=200)
    started = time.monotonic()
    send(logstore_kafka, "orders", b"value")
    assert time.monotonic() - started > 0.199  # the server counts whole milliseconds


def test_groups_and_their_lag_are_on_the_page_and_in_status(tmp_path: Path) -> None:
    with serve(tmp_path, brokers=2, http=HttpListener()) as kafka:
        kafka.create_topic("orders", 1, 2)
        for number in range(3):
            send(kafka, "orders", b"%d" % number)
        consumer = consume(kafka, "orders", "billing", 2)
        assert kafka.http is not None
        url = "http://{}:{}/state".format(*kafka.http.address)
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
            state = json.load(answer)
        status = cluster_status([kafka.broker(0).endpoints[0][1:3]])
        consumer.close()
    (group,) = state["groups"]
    assert (group["group"], group["state"], group["members"]) == ("billing", "Stable", 1)
    assert group["offsets"] == [
        {"topic": "orders", "partition": 0, "committed": 2, "high_watermark": 3, "lag": 1}
    ]
    (told,) = status.groups
    assert (told.group_id, told.state, told.members) == ("billing", "Stable", 1)
    assert [tuple(offset) for offset in told.offsets] == [(TopicPartition("orders", 0), 2, 3, 1)]
    assert [broker.problem for broker in status.brokers] == ["", ""]


def test_a_page_that_cannot_be_served_leaves_nothing_behind(tmp_path: Path) -> None:
    with nothing_left():
        with pytest.raises(ConfigError, match="no login"):
            serve(tmp_path, http=HttpListener("0.0.0.0"))
        with serve(tmp_path):  # its lock is free again
            pass


def test_an_event_loop_goes_on_while_brokers_start(tmp_path: Path) -> None:
    async def run() -> list[bytes | None]:
        turns = 0

        async def turn() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0.001)

        turning = asyncio.create_task(turn())
        async with serve_async(tmp_path) as kafka:
            assert turns > 1
            await asyncio.to_thread(send, kafka, "orders", b"value")
            found = await asyncio.to_thread(values, kafka, "orders")
        turning.cancel()
        return found

    assert asyncio.run(run()) == [b"value"]


def test_a_start_that_is_cancelled_leaves_nothing_behind(tmp_path: Path) -> None:
    """The task ends once the brokers are closed: their directory is free for the next ones."""

    async def cancelled(after_s: float) -> None:
        async def use() -> None:
            async with serve_async(tmp_path):
                await asyncio.sleep(TIMEOUT_S)

        task = asyncio.create_task(use())
        await asyncio.sleep(after_s)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    for after_s in (0.001, 0.02):
        with nothing_left():
            asyncio.run(cancelled(after_s))


@pytest.mark.parametrize(
    ("options", "words"),
    [({"brokers": 0}, "0 brokers"), ({"listeners": ()}, "0 listeners")],
)
def test_nobody_to_serve(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        serve(**options).close()


def test_a_directory_that_is_locked_leaves_nothing_behind(tmp_path: Path) -> None:
    with serve(tmp_path), nothing_left(), pytest.raises(LogDirLockedError):
        serve(tmp_path)


def test_old_clients_find_the_handshake_that_they_look_for(tmp_path: Path) -> None:
    """librdkafka before 2.1 logs in where version 0 is there, and then asks for version 1."""
    listener = Listener("INSIDE", "127.0.0.1", 0, SecurityProtocol.SASL_PLAINTEXT)
    exposure = Exposure(credentials=UserCredentials({"alice": "secret"}))
    with serve(tmp_path, listeners=[listener], exposure=exposure) as kafka:
        endpoint = kafka.broker(0).endpoints[0]
        with WireConnection(endpoint.host, endpoint.port) as connection:
            versions = connection.versions[ApiKey.SASL_HANDSHAKE]
    assert 0 in versions
    assert 1 in versions


@pytest.mark.slow
def test_what_few_need_is_not_imported_with_it() -> None:
    """A test that serves waits for the import. These would take a fifth of it."""
    code = (
        "import sys, replication.server.serving\n"
        "print([m for m in ('asyncio', 'ssl', 'http.server') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
