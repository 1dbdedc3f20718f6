"""Groups of both signs of hash, over several partitions, in clusters old and new."""

from __future__ import annotations

from typing import Any

import pytest

from logstore.storage.memory import MemoryStorage
from replication.broker import broker
from replication.common.internal_topics import GROUP_METADATA, java_hash, masked_partition_for
from replication.coordination import nodes
from replication.protocol import ApiKey
from replication.protocol import messages as wire
from replication.replica_manager import metadata_cache
from replication.server.serving import ServedCluster, serve
from tests.support.served import connect
from tests.support.until import until

GROUPS = ["audit", "billing", "members", "orders", "payments", "shipping", "simple", "stock"]
COMMIT, FETCH = wire.OffsetCommitRequest, wire.OffsetFetchRequest
CONFIG = {"offsets.topic.num.partitions": 4}


def _served(storage: MemoryStorage) -> ServedCluster:
    return serve("/served", config=CONFIG, storage=storage)


def _ask(kafka: ServedCluster, key: ApiKey, version: int, request: Any, code: Any) -> Any:
    """Again while the coordinator loads."""
    with connect(kafka) as client:
        return until(
            lambda: (answer := client.ask(key, version, request)) and not code(answer) and [answer],
            "an answer without an error",
        )[0]


def _commit(kafka: ServedCluster, group: str, offset: int) -> None:
    kind = COMMIT.OffsetCommitRequestTopic
    topic = kind("t", partitions=(COMMIT.OffsetCommitRequestPartition(0, offset),))
    _ask(
        kafka,
        ApiKey.FIND_COORDINATOR,
        1,
        wire.FindCoordinatorRequest(group),
        lambda answer: answer.error_code,
    )
    _ask(
        kafka,
        ApiKey.OFFSET_COMMIT,
        8,
        COMMIT(group, topics=(topic,)),
        lambda answer: answer.topics[0].partitions[0].error_code,
    )


def _offset(kafka: ServedCluster, group: str) -> int:
    topics = (FETCH.OffsetFetchRequestTopic("t", (0,)),)
    answer = _ask(kafka, ApiKey.OFFSET_FETCH, 7, FETCH(group, topics), lambda a: a.error_code)
    offset: int = answer.topics[0].partitions[0].committed_offset
    return offset


def _listed(kafka: ServedCluster) -> list[str]:
    found = _ask(kafka, ApiKey.LIST_GROUPS, 4, wire.ListGroupsRequest(), lambda a: a.error_code)
    return sorted(each.group_id for each in found.groups)


@pytest.mark.slow
def test_the_groups_of_an_earlier_version_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """W-100: what it wrote is read, and goes on where it is; each group is listed once."""
    assert {java_hash(group) < 0 for group in GROUPS} == {True, False}
    storage = MemoryStorage()
    with monkeypatch.context() as earlier:
        earlier.setattr(metadata_cache, "partition_for", masked_partition_for)
        earlier.setattr(nodes, "KAFKAS_PLACEMENT", "not said")
        earlier.setattr(broker, "settle_masked_topics", lambda session: frozenset())
        with _served(storage) as kafka:
            kafka.create_topic("t")
            for at, group in enumerate(GROUPS):
                _commit(kafka, group, 10 + at)
    for round_ in range(2):
        with _served(storage) as kafka:
            assert kafka.broker(0).metadata.topic_id(GROUP_METADATA) is not None
            offsets = [_offset(kafka, group) for group in GROUPS]
            assert offsets == [10 + 10 * round_ + at for at in range(len(GROUPS))]
            assert _listed(kafka) == GROUPS
            for at, group in enumerate(GROUPS):
                _commit(kafka, group, 20 + at)


@pytest.mark.slow
def test_a_new_cluster_keeps_kafkas_places() -> None:
    """Also once its brokers were registered, which is how an earlier version is known."""
    storage = MemoryStorage()
    for offset in (1, 2):
        with _served(storage) as kafka:
            kafka.create_topic("t") if offset == 1 else None
            for group in GROUPS:
                _commit(kafka, group, offset)
            assert kafka.broker(0).metadata.masked_topics == frozenset()
            assert _listed(kafka) == GROUPS
