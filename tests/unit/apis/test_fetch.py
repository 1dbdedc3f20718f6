"""Fetch over the wire: what is waited for (R-92)."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from checkpoints.types import TopicPartition
from replication.common.error_codes import ErrorCode
from replication.protocol import ApiKey
from replication.protocol import messages as wire
from replication.server.serving import ServedCluster
from tests.support.served import batch, connect, leader_client, new_name, produce

NEVER_MS = 2**31 - 1


def request(version: int, *topics: tuple[str, uuid.UUID | None], **fields: Any) -> Any:
    """Of the first partition of each, with a wait that only a record ends."""
    kind = wire.FetchRequest
    parts = (kind.FetchPartition(0, partition_max_bytes=1 << 20),)
    asked = tuple(
        kind.FetchTopic(name, partitions=parts)
        if version < 13
        else kind.FetchTopic(topic_id=topic_id or uuid.UUID(int=9), partitions=parts)
        for name, topic_id in topics
    )
    defaults = {"replica_id": -1, "max_wait_ms": NEVER_MS, "min_bytes": 1, "max_bytes": 1 << 20}
    return kind(topics=asked, **{**defaults, **fields})


@pytest.mark.parametrize("version", [4, 11, 12, 13, 17])
@pytest.mark.parametrize("unknown_first", [True, False])
def test_an_unknown_topic_does_not_end_the_wait(
    kafka: ServedCluster, version: int, unknown_first: bool
) -> None:
    """R-92. Had it been answered at once, the record would not be there."""
    (tp,) = kafka.create_topic(new_name())
    kafka.wait_until(lambda: kafka.broker(0).metadata.topic_id(tp.topic) is not None, "known")
    known = tp.topic, kafka.broker(0).metadata.topic_id(tp.topic)
    missing = new_name(), None
    both = (missing, known) if unknown_first else (known, missing)
    with leader_client(kafka, tp) as consumer, leader_client(kafka, tp) as producer:
        consumer.send(ApiKey.FETCH, version, request(version, *both))
        assert produce(producer, tp, batch(b"x")).error_code == ErrorCode.NONE
        response = consumer.receive(ApiKey.FETCH, version)
    found = [part for topic in response.responses for part in topic.partitions]
    if not unknown_first:
        found.reverse()
    code = ErrorCode.UNKNOWN_TOPIC_ID if version >= 13 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert [part.error_code for part in found] == [code, ErrorCode.NONE]
    assert found[1].records


@pytest.mark.parametrize("version", [4, 12, 13])
def test_nothing_known_is_answered_at_once(kafka: ServedCluster, version: int) -> None:
    """R-92."""
    with connect(kafka) as client:
        asked = request(version, (new_name(), None), (new_name(), uuid.UUID(int=7)))
        response = client.ask(ApiKey.FETCH, version, asked)
    assert [len(topic.partitions) for topic in response.responses] == [1, 1]


def test_a_partition_that_another_broker_leads_ends_the_wait(kafka: ServedCluster) -> None:
    """R-92: the client has to learn of the leader."""
    here = kafka.create_topic(new_name(), assignment=[(0,)])[0]
    there = kafka.create_topic(new_name(), assignment=[(1,)])[0]
    _known_at(kafka, 0, there)
    with connect(kafka, 0) as client:
        asked = request(12, (here.topic, None), (there.topic, None))
        response = client.ask(ApiKey.FETCH, 12, asked)
    codes = [part.error_code for topic in response.responses for part in topic.partitions]
    assert codes == [ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER]


def _known_at(kafka: ServedCluster, broker_id: int, tp: TopicPartition) -> None:
    metadata = kafka.broker(broker_id).metadata
    kafka.wait_until(lambda: metadata.registration(tp) is not None, f"{tp} is known")
