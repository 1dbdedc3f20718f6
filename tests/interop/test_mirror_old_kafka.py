"""A mirror of releases of Kafka, the oldest too: no topic ids before 2.8, no session that compares
epochs before 2.7."""

from __future__ import annotations

from pathlib import Path

import confluent_kafka as confluent
import kafka_jars
import kafka_tools
import pytest
from kafka_tools import ProduceRecords
from mirroring import compare, create, mirroring

from checkpoints.types import TopicPartition
from tests.adopt import kafkas
from tests.adopt.kafkas import Node, Release
from tests.support.mirrored import check_verifies
from tests.support.mirrors import caught_up

pytestmark = pytest.mark.slow

RELEASES = {"2.1": Release(kafka_jars.BROKER_2_1, has_zookeeper=True)}
SMALL = {"offsets.topic.num.partitions": 3, "transaction.state.log.num.partitions": 3}


def _commit(bootstrap: str, topic: str, offset: int) -> None:
    consumer = confluent.Consumer({"bootstrap.servers": bootstrap, "group.id": "readers"})
    place = confluent.TopicPartition(topic, 0, offset)
    consumer.commit(offsets=[place], asynchronous=False)
    consumer.close()


def _write(bootstrap: str, seed: int) -> None:
    kafka_tools.produce(
        bootstrap,
        ProduceRecords("orders", 200, partition=seed % 2, codec="lz4", seed=seed),
        ProduceRecords("orders", 50, partition=0, idempotent=True, seed=seed),
        ProduceRecords(
            "payments",
            60,
            idempotent=True,
            outcomes="CAC",
            transactional_id=f"t-{seed}",
            seed=seed,
        ),
    )
    _commit(bootstrap, "orders", 10 * seed)


@pytest.mark.parametrize(
    "release",
    [
        pytest.param("2.1", marks=pytest.mark.essential),
        "2.8",
        "3.9-zookeeper",
        "3.9",
    ],
)
def test_batches_are_equal(
    kafka: str, release: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mirror is closed and goes on, and this Kafka is stopped and goes on."""
    monkeypatch.setattr(kafkas, "RELEASES", {**kafkas.RELEASES, **RELEASES})
    mirror_dir = tmp_path / "mirror"
    node = Node(release, tmp_path / "node", SMALL)
    try:
        node.__enter__()
        create(node.bootstrap, "orders", 2, segment_bytes=20_000)
        create(node.bootstrap, "payments")
        _write(node.bootstrap, 1)
        with mirroring(node.bootstrap, mirror_dir) as mirror:
            caught_up(mirror)
            _write(node.bootstrap, 2)
            caught_up(mirror)
        _write(node.bootstrap, 3)
        node.stop()
        node.start()
        _write(node.bootstrap, 4)
        with mirroring(node.bootstrap, mirror_dir) as mirror:
            caught_up(mirror)
        node.stop()
    finally:
        node.end()
    counts = compare(mirror_dir, node.log_dir)
    assert counts[TopicPartition("orders", 0)] > 10
    assert counts[TopicPartition("payments", 0)] > 10
    assert sum(n for tp, n in counts.items() if tp.topic == "__consumer_offsets") >= 4
    assert sum(n for tp, n in counts.items() if tp.topic == "__transaction_state") >= 4
    check_verifies(mirror_dir)
