"""In which partition of its topic a group or a transactional id lies, in a cluster of any age."""

from __future__ import annotations

import logging
import random
import uuid

import pytest

from checkpoints.types import TopicPartition
from logstore.storage.memory import MemoryStorage
from logstore.testing import ManualClock
from replication.broker.identity import settle_masked_topics
from replication.common.internal_topics import (
    GROUP_METADATA,
    TRANSACTION_STATE,
    java_hash,
    masked_partition_for,
    partition_for,
)
from replication.common.messages import PartitionChange, UpdateMetadataRequest
from replication.common.state import PartitionRegistration, TopicAssignment
from replication.coordination import Coordinator, CorruptNodeError, nodes
from replication.coordination.embedded import CoordinatorStore
from replication.replica_manager.metadata_cache import MetadataCache

OLD, NEW = uuid.UUID(int=1), uuid.UUID(int=2)
SMALLEST = "polygenelubricants"  # a known one: its hash is the smallest of 32 bits


def session() -> Coordinator:
    return CoordinatorStore("/c", MemoryStorage(), ManualClock(), 6000).connect()


def put_topic(tree: Coordinator, name: str, partitions: int, topic_id: uuid.UUID = OLD) -> None:
    topic = TopicAssignment(topic_id, dict.fromkeys(range(partitions), (0,)))
    tree.create(nodes.topic_path(name), nodes.encode_topic(topic), parents=True)


def put_broker(tree: Coordinator) -> None:
    """A controller of ours has processed one."""
    tree.create(nodes.broker_epoch_path(0), nodes.encode_number(5), parents=True)


# What Utils.abs(name.hashCode()) % n of a real Kafka 4.3.1 says for n = 50, 4, 3.
KAFKA = {
    "group-0": (48, 2, 1),
    "simple": (26, 2, 2),
    "members": (39, 1, 1),
    "orders": (31, 3, 0),
    "käse": (11, 3, 2),
    "": (0, 0, 0),
    SMALLEST: (0, 0, 0),
}


@pytest.mark.parametrize("name", KAFKA)
def test_a_key_lies_where_kafka_looks_for_it(name: str) -> None:
    """W-100."""
    assert tuple(partition_for(name, count) for count in (50, 4, 3)) == KAFKA[name]


def test_the_earlier_rule_agrees_for_few_partitions_and_for_hashes_from_0_on() -> None:
    source = random.Random(1)
    names = [f"name-{source.getrandbits(40)}" for _ in range(300)]
    assert {java_hash(name) < 0 for name in names} == {True, False}
    for name in names:
        for count in (1, 2, 3, 4, 50):
            same = masked_partition_for(name, count) == partition_for(name, count)
            assert same or (java_hash(name) < 0 and count > 2)


def test_a_new_tree_has_kafkas_rule_from_now_on(caplog: pytest.LogCaptureFixture) -> None:
    """Brokers that come later find the answer, and topics that come later do not change it."""
    tree = session()
    assert settle_masked_topics(tree) == frozenset()
    put_broker(tree)
    put_topic(tree, GROUP_METADATA, 50)
    assert settle_masked_topics(tree) == frozenset()
    assert not caplog.records


def test_topics_that_an_earlier_version_filled_keep_its_rule(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Said once."""
    tree = session()
    put_broker(tree)
    put_topic(tree, GROUP_METADATA, 50, OLD)
    put_topic(tree, TRANSACTION_STATE, 3, NEW)
    put_topic(tree, "orders", 50, uuid.UUID(int=3))
    for _ in range(2):
        assert settle_masked_topics(tree) == {OLD, NEW}
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert [GROUP_METADATA in each for each in warnings] == [True, False]


def test_topics_with_few_partitions_need_no_earlier_rule() -> None:
    tree = session()
    put_broker(tree)
    put_topic(tree, GROUP_METADATA, 2)
    assert settle_masked_topics(tree) == frozenset()


def test_a_tree_in_which_no_broker_of_ours_was_is_kafkas() -> None:
    tree = session()
    put_topic(tree, GROUP_METADATA, 50)
    assert settle_masked_topics(tree) == frozenset()


@pytest.mark.parametrize("path", [nodes.MASKED_TOPICS, nodes.topic_path(GROUP_METADATA)])
def test_what_cannot_be_read_is_not_guessed(path: str) -> None:
    tree = session()
    put_broker(tree)
    tree.create(path, b"{", parents=True)
    with pytest.raises(CorruptNodeError):
        settle_masked_topics(tree)


def test_the_rule_goes_with_the_topic_and_not_with_its_name() -> None:
    """A topic that is created anew has Kafka's."""
    metadata, tp = MetadataCache(0), TopicPartition(GROUP_METADATA, 0)
    assert metadata.coordinator_partition(GROUP_METADATA, "orders") is None
    metadata.masked_topics = frozenset({OLD})
    found = []
    for at, topic_id in enumerate((OLD, NEW)):
        known = PartitionRegistration((0,), (0,), 0, at, at)
        change = PartitionChange(tp, known, topic_id=topic_id, partition_count=50)
        metadata.update(UpdateMetadataRequest(0, 1, 1, (change,), ()))
        place = metadata.coordinator_partition(GROUP_METADATA, "orders")
        assert place is not None
        found.append(place.partition)
    assert found == [masked_partition_for("orders", 50), 31]
    assert found[0] != found[1]
