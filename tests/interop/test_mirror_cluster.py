"""A mirror of three brokers of a real Kafka, whose leaders are killed under a transactional load,
and one of which loses its tail in an unclean election (X-177)."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka as confluent
import kafka_cluster
import pytest
from confluent_kafka import admin
from kafka_cluster import ClusterNode
from mirroring import compare, mirroring, partitions_in

from checkpoints.types import TopicPartition
from tests.support.mirrored import batches_of, check_is_run_of, check_verifies, reported
from tests.support.mirrors import caught_up
from tests.support.scripted_source import header_of
from tests.support.until import patience, until

pytestmark = pytest.mark.slow

ORDERS, PAYMENTS, UNCLEAN = "orders", "payments", "unclean"
TAIL = 50


def _create(bootstrap: str) -> None:
    client = admin.AdminClient({"bootstrap.servers": bootstrap})
    config = {"unclean.leader.election.enable": "true"}
    topics = [
        admin.NewTopic(ORDERS, 4, 3),
        admin.NewTopic(PAYMENTS, 2, 3),
        admin.NewTopic(UNCLEAN, 1, replica_assignment=[[2, 3]], config=config),
    ]
    for made in client.create_topics(topics).values():
        made.result(patience())


class Load:
    """Transactions, every third aborted, over two topics, until it is stopped."""

    def __init__(self, bootstrap: str, number: int) -> None:
        self.done = 0
        self._bootstrap, self._number = bootstrap, number
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._stopping.is_set():
            with contextlib.suppress(confluent.KafkaException):
                self._transactions()

    def _transactions(self) -> None:
        producer = confluent.Producer(
            {
                "bootstrap.servers": self._bootstrap,
                "transactional.id": f"load-{self._number}",
                "linger.ms": 0,
                "compression.type": ("none", "zstd")[self._number % 2],
                "message.timeout.ms": 10_000,
                "log_level": 0,
                "log.connection.close": False,
            }
        )
        producer.init_transactions(patience())
        while not self._stopping.is_set():
            producer.begin_transaction()
            for at in range(20):
                value = f"{self._number} {self.done} {at}".encode() * 9
                producer.produce((ORDERS, PAYMENTS)[at % 2], value, str(at), partition=at % 2)
            if self.done % 3 == 2:
                producer.flush(patience())
                producer.abort_transaction(patience())
            else:
                producer.commit_transaction(patience())
            self.done += 1

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stopping.set()
        self._thread.join(patience())


def _produce(bootstrap: str, word: str, count: int) -> None:
    """One batch a record; each is in sync replicas when this returns."""
    producer = confluent.Producer(
        {"bootstrap.servers": bootstrap, "acks": "all", "batch.num.messages": 1, "log_level": 0}
    )
    for at in range(count):
        producer.produce(UNCLEAN, f"{word} {at}".encode(), partition=0)
    assert producer.flush(patience()) == 0


def _leader(bootstrap: str, topic: str, partition: int = 0) -> int:
    client = admin.AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    try:
        found = client.list_topics(topic, timeout=5).topics[topic].partitions
    except (confluent.KafkaException, KeyError):
        return -1
    return int(found[partition].leader) if partition in found else -1


def _in_sync(bootstrap: str, topic: str) -> list[int]:
    client = admin.AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    try:
        return sorted(client.list_topics(topic, timeout=5).topics[topic].partitions[0].isrs)
    except (confluent.KafkaException, KeyError):
        return []


@contextlib.contextmanager
def _loads(bootstrap: str) -> Iterator[list[Load]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Load(bootstrap, number)) for number in range(2)]


def _go_on(loads: list[Load], count: int = 5) -> None:
    before = [load.done for load in loads]
    until(
        lambda: all(load.done >= was + count for load, was in zip(loads, before, strict=True)),
        "transactions go on",
    )


def _restart(node: ClusterNode, loads: list[Load]) -> None:
    node.kill()
    _go_on(loads)
    node.start()
    _go_on(loads)


def _lose_a_tail(nodes: list[ClusterNode], mirror_dir: Path) -> None:
    """Broker 3 is away while broker 2 takes records, and leads without them."""
    first, second, third = nodes
    until(lambda: _leader(first.bootstrap, UNCLEAN) == 2, "broker 2 leads")
    until(lambda: _in_sync(first.bootstrap, UNCLEAN) == [2, 3], "broker 3 has all")
    _produce(first.bootstrap, "both", 100)
    third.kill()
    until(lambda: _has(mirror_dir, 100), "what both have is mirrored")
    _produce(first.bootstrap, "lost", TAIL)
    until(lambda: _has(mirror_dir, 100 + TAIL), "the tail is mirrored")
    second.kill()
    third.start()
    until(lambda: _leader(first.bootstrap, UNCLEAN) == 3, "broker 3 leads without it")
    _produce(first.bootstrap, "new", 30)
    second.start()


def _has(mirror_dir: Path, end: int) -> bool:
    found = batches_of(mirror_dir, TopicPartition(UNCLEAN, 0))
    return bool(found) and header_of(found[-1]).last + 1 >= end


def test_batches_are_those_of_each_broker(kafka: str, tmp_path: Path) -> None:
    mirror_dir = tmp_path / "mirror"
    with kafka_cluster.running(tmp_path / "kafka") as nodes:
        first, second, third = nodes
        bootstrap = ",".join(node.bootstrap for node in nodes)
        _create(bootstrap)
        with mirroring(bootstrap, mirror_dir) as mirror:
            with _loads(bootstrap) as loads:
                _go_on(loads)
                _restart(third, loads)
                _restart(second, loads)
                third.stop()
                third.start()
                _go_on(loads)
            _lose_a_tail(nodes, mirror_dir)
            caught_up(mirror)
        with mirroring(bootstrap, mirror_dir) as mirror:
            caught_up(mirror)
        for node in (third, second, first):
            node.stop()
    for node in nodes:
        counts = compare(mirror_dir, node.log_dir)
        assert counts
    check_verifies(mirror_dir)
    assert {tp.topic for tp in partitions_in(mirror_dir)} >= {
        ORDERS,
        PAYMENTS,
        UNCLEAN,
        "__transaction_state",
    }
    cuts = reported(mirror_dir, TopicPartition(UNCLEAN, 0))
    found = [(each["kind"], each["from"], each["to"]) for each in cuts]
    assert found == [("cut", 100, 100 + TAIL)], cuts
    check_is_run_of(
        batches_of(mirror_dir, TopicPartition(UNCLEAN, 0)),
        batches_of(third.log_dir, TopicPartition(UNCLEAN, 0)),
    )
