"""Brokers that are served, as a user of the library and of its fixtures has them.

Real clients of theirs are in ``tests/clients/test_serving.py``.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from checkpoints.types import TopicPartition
from logstore.common.clock import SystemClock
from logstore.common.errors import ConfigError, LogDirLockedError
from logstore.pytest_plugin import (
    logstore_kafka,
    logstore_kafka_session,
    logstore_topic,
    make_logstore_kafka,
)
from replication import ServedCluster, serve, serve_async
from replication.network import Listener, SecurityProtocol, UserCredentials
from replication.protocol import ApiKey
from replication.protocol import messages as wire
from replication.server.kafka_server import Exposure
from replication.server.serving import HttpListener
from tests.support.leftovers import nothing_left
from tests.support.served import batch, connect, produce
from tests.support.until import until
from tests.support.wire_client import WireClient

__all__ = ["logstore_kafka", "logstore_kafka_session", "logstore_topic", "make_logstore_kafka"]


def send(kafka: ServedCluster, topic: str, value: bytes) -> int:
    """The offset of one record, over the wire."""
    asked = wire.MetadataRequest((wire.MetadataRequest.MetadataRequestTopic(name=topic),))
    with connect(kafka) as client:
        until(lambda: client.ask(ApiKey.METADATA, 9, asked).topics[0].error_code == 0)
        answer = produce(client, TopicPartition(topic, 0), batch(value), acks=1)
    assert answer.error_code == 0
    return answer.base_offset


def values(kafka: ServedCluster, topic: str) -> list[bytes | None]:
    return [record.value for record in kafka.read_all(topic)[0]]


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


def test_a_late_answer_is_late(logstore_kafka: ServedCluster) -> None:
    logstore_kafka.create_topic("orders")
    logstore_kafka.faults.delay(ApiKey.PRODUCE, ms=200)
    began_ns = SystemClock.monotonic_ns()
    send(logstore_kafka, "orders", b"value")
    assert SystemClock.monotonic_ns() - began_ns > 199e6  # the server counts whole milliseconds


def test_a_page_that_cannot_be_served_leaves_nothing_behind(tmp_path: Path) -> None:
    with nothing_left(tmp_path):
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
                await asyncio.sleep(0)

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

    async def cancelled(turns: int) -> None:
        async def use() -> None:
            async with serve_async(tmp_path):
                await asyncio.Event().wait()

        task = asyncio.create_task(use())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    for turns in (1, 1000):
        with nothing_left(tmp_path):
            asyncio.run(cancelled(turns))


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


def test_an_ipv6_address_stands_in_brackets(tmp_path: Path) -> None:
    """Else clients take a part of it for the port."""
    with serve(tmp_path, exposure=Exposure(advertised_host="2001:db8::1")) as kafka:
        port = kafka.broker(0).endpoints[0].port
        assert kafka.bootstrap_servers == f"[2001:db8::1]:{port}"


def test_old_clients_find_the_handshake_that_they_look_for(tmp_path: Path) -> None:
    """librdkafka before 2.1 logs in where version 0 is there, and then asks for version 1."""
    listener = Listener("INSIDE", "127.0.0.1", 0, SecurityProtocol.SASL_PLAINTEXT)
    exposure = Exposure(credentials=UserCredentials({"alice": "secret"}))
    with serve(tmp_path, listeners=[listener], exposure=exposure) as kafka:
        endpoint = kafka.broker(0).endpoints[0]
        with WireClient(endpoint.host, endpoint.port) as client:
            found = client.ask(ApiKey.API_VERSIONS, 0, wire.ApiVersionsRequest()).api_keys
        (handshake,) = (each for each in found if each.api_key == ApiKey.SASL_HANDSHAKE)
    assert handshake.min_version == 0
    assert handshake.max_version >= 1


@pytest.mark.slow
def test_what_few_need_is_not_imported_with_it() -> None:
    """A test that serves waits for the import. These would take a fifth of it."""
    code = (
        "import sys, replication.server.serving\n"
        "print([m for m in ('asyncio', 'ssl', 'http.server') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_broker_of_another_id_does_not_begin_beside_the_one_that_is_there(tmp_path: Path) -> None:
    with serve(tmp_path, config={"node.id": 1}) as kafka:
        assert kafka.broker_ids == [1]
        with connect(kafka, 1) as client:
            found = client.ask(ApiKey.METADATA, 9, wire.MetadataRequest(()))
        assert [each.node_id for each in found.brokers] == [found.controller_id] == [1]
    with pytest.raises(ConfigError, match=r"broker-1.*node\.id"):
        serve(tmp_path)
    assert sorted(path.name for path in tmp_path.glob("broker-*")) == ["broker-1"]
    with serve(tmp_path, config={"broker.id": 1}) as kafka:
        assert kafka.broker_ids == [1]
