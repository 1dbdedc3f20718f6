"""A broker joins only the tree of its own cluster, and looks before it changes anything (R-178)."""

from __future__ import annotations

import json
import uuid

import pytest

from checkpoints.types import TopicPartition
from logstore.common.errors import ConfigError
from logstore.storage.memory import MemoryStorage
from logstore.testing import ManualClock
from replication.broker.identity import BrokerHome, check_cluster_id, settle_identity
from replication.common.errors import InconsistentClusterIdError
from replication.common.state import TopicAssignment
from replication.coordination import CorruptNodeError, nodes
from replication.coordination.embedded import CoordinatorStore, EmbeddedCoordinator
from tests.support.cases import for_each

ID, OTHER_ID = uuid.UUID(int=1 << 100), uuid.UUID(int=2 << 100)
TP = TopicPartition("orders", 0)
LOGS = {TP: ID}


def session() -> EmbeddedCoordinator:
    return CoordinatorStore("/c", MemoryStorage(), ManualClock()).connect()


def with_topic(name: str, topic_id: uuid.UUID) -> EmbeddedCoordinator:
    tree = session()
    data = nodes.encode_topic(TopicAssignment(topic_id, {0: (1,)}))
    tree.create(nodes.topic_path(name), data, parents=True)
    return tree


def stored(tree: EmbeddedCoordinator) -> bytes | None:
    node = tree.get(nodes.CLUSTER_ID)
    return None if node is None else node.data


def test_kafkas_form() -> None:
    data = b'{"version":"1","id":"AQIDBAUGBwgJCgsMDQ4PEA"}'
    assert not nodes.has_kafkas_placement(data)  # it does not say so
    ours = nodes.encode_cluster_id("AQIDBAUGBwgJCgsMDQ4PEA")
    assert nodes.has_kafkas_placement(ours)
    assert json.loads(data).items() < json.loads(ours).items()
    assert nodes.decode_cluster_id(data) == "AQIDBAUGBwgJCgsMDQ4PEA"


@for_each(
    "data", [b"", b"{}", b'{"id":""}', b'{"id":7}', b'{"id":"a\\n"}', b'{"id":"%s"}' % (b"x" * 201)]
)
def test_no_cluster_id(data: bytes) -> None:
    with pytest.raises(CorruptNodeError, match="/cluster/id"):
        nodes.decode_cluster_id(data)
    tree = session()
    tree.create(nodes.CLUSTER_ID, data, parents=True)
    with pytest.raises(InconsistentClusterIdError, match="/cluster/id"):
        settle_identity(tree, [BrokerHome("/d", "c", {})], "new")


@for_each("own", ["c", None])
def test_an_empty_tree_takes_the_id_of_a_broker_without_logs(own: str | None) -> None:
    tree = session()
    assert settle_identity(tree, [BrokerHome("/d", own, {})], "new").cluster_id == (own or "new")
    assert stored(tree) == nodes.encode_cluster_id(own or "new")
    check_cluster_id(tree, BrokerHome("/d", own, LOGS))


def test_a_tree_of_another_cluster_is_refused() -> None:
    tree = with_topic("orders", ID)
    settle_identity(tree, [], "theirs")
    with pytest.raises(InconsistentClusterIdError) as refused:
        settle_identity(tree, [BrokerHome("/d", "ours", LOGS)], "new")
    assert isinstance(refused.value, ConfigError)
    assert (refused.value.directory, refused.value.cluster_id, refused.value.tree_id) == (
        "/d",
        "ours",
        "theirs",
    )
    assert "ours" in str(refused.value)
    assert "theirs" in str(refused.value)
    with pytest.raises(InconsistentClusterIdError):
        check_cluster_id(tree, BrokerHome("/d", "ours", {}))


@for_each("tree_id", ["ours", None])
@for_each("topic", ["orders", "others"])
def test_a_tree_that_knows_no_log_is_refused_and_stays_as_it_is(
    tree_id: str | None, topic: str
) -> None:
    """Another topic of that name is no proof: the tree may be another cluster's."""
    tree = with_topic(topic, OTHER_ID)
    if tree_id is not None:
        settle_identity(tree, [], tree_id)
    before = stored(tree)
    with pytest.raises(InconsistentClusterIdError, match=r"none of the topics .*\(orders-0\)"):
        settle_identity(tree, [BrokerHome("/e", None, {}), BrokerHome("/d", "ours", LOGS)], "new")
    assert stored(tree) == before


@for_each("name", ["orders", "renamed"])
def test_a_tree_without_an_id_that_knows_a_topic_takes_that_of_the_broker(name: str) -> None:
    tree = with_topic(name, ID)
    logs = {TP: ID, TopicPartition("left over", 0): OTHER_ID}
    assert settle_identity(tree, [BrokerHome("/d", "ours", logs)], "new").cluster_id == "ours"


def test_a_log_without_an_id_is_known_by_its_name() -> None:
    assert (
        settle_identity(
            with_topic("orders", ID), [BrokerHome("/d", None, {TP: None})], "n"
        ).cluster_id
        == "n"
    )
    with pytest.raises(InconsistentClusterIdError):
        settle_identity(with_topic("others", ID), [BrokerHome("/d", None, {TP: None})], "n")


def test_a_deletion_that_the_tree_remembers_is_known() -> None:
    """One log, whose topic was deleted while the broker was down."""
    tree = session()
    tree.create(nodes.DELETED_TOPICS, nodes.encode_topic_ids([OTHER_ID, ID]), parents=True)
    assert settle_identity(tree, [BrokerHome("/d", "ours", LOGS)], "new").cluster_id == "ours"


def test_directories_of_two_clusters_are_refused() -> None:
    tree = session()
    with pytest.raises(InconsistentClusterIdError, match=r"belongs to cluster b, .* to a"):
        settle_identity(tree, [BrokerHome("/d", "a", {}), BrokerHome("/e", "b", {})], "new")
    assert stored(tree) is None
