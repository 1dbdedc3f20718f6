"""The messages between members of a classic consumer group: Kafka's ``ConsumerProtocol``."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from checkpoints.types import TopicPartition
from replication.admin.admin_client import by_topic
from replication.protocol import MalformedMessageError
from replication.protocol import messages as wire
from replication.protocol.coordinator_records import (
    ASSIGNMENT,
    SUBSCRIPTION,
    decode_of_member,
    encode_of_member,
)
from replication.protocol.partitions import partitions_of

CONSUMER = "consumer"  # the protocol of groups whose members are assigned partitions


def encode_subscription(topics: Collection[str]) -> bytes:
    return encode_of_member(wire.ConsumerProtocolSubscription(tuple(topics)))


def decode_subscription(data: bytes) -> frozenset[str]:
    """The topics. A member whose words cannot be read subscribes to nothing."""
    try:
        return frozenset(decode_of_member(SUBSCRIPTION, data).topics)
    except MalformedMessageError:
        return frozenset()


def encode_assignment(tps: Iterable[TopicPartition]) -> bytes:
    kind = wire.ConsumerProtocolAssignment
    topics = (kind.TopicPartition(name, tuple(each)) for name, each in by_topic(tps).items())
    return encode_of_member(kind(tuple(topics)))


def decode_assignment(data: bytes) -> tuple[TopicPartition, ...]:
    """In order. Nothing of a member that gets nothing.

    Raises:
        MalformedMessageError
    """
    if not data:
        return ()
    return tuple(sorted(partitions_of(decode_of_member(ASSIGNMENT, data).assigned_partitions)))


def range_assignment(
    subscriptions: Mapping[str, Collection[str]], counts: Mapping[str, int]
) -> dict[str, list[TopicPartition]]:
    """Kafka's ``RangeAssignor``: of each topic a range to each of its members, in their order.

    Args:
        subscriptions: topics by member.
        counts: of partitions by topic.
    """
    assigned: dict[str, list[TopicPartition]] = {member: [] for member in subscriptions}
    for topic in sorted({topic for topics in subscriptions.values() for topic in topics}):
        members = sorted(member for member, topics in subscriptions.items() if topic in topics)
        share, rest = divmod(counts.get(topic, 0), len(members))
        start = 0
        for at, member in enumerate(members):
            end = start + share + (at < rest)
            assigned[member] += (TopicPartition(topic, number) for number in range(start, end))
            start = end
    return assigned


__all__ = [
    "CONSUMER",
    "decode_assignment",
    "decode_subscription",
    "encode_assignment",
    "encode_subscription",
    "range_assignment",
]
