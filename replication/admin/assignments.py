"""What members of a classic consumer group tell each other: Kafka's ``ConsumerProtocol``."""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from checkpoints.types import TopicPartition
from replication.admin.admin_client import by_topic
from replication.protocol import MalformedMessageError

CONSUMER = "consumer"  # the protocol of groups whose members are assigned partitions
_VERSION = 0  # later ones add what range does not need
_NO_USER_DATA = struct.pack(">i", -1)


def encode_subscription(topics: Collection[str]) -> bytes:
    head = struct.pack(">hi", _VERSION, len(topics))
    return b"".join((head, *map(_text, topics), _NO_USER_DATA))


def decode_subscription(data: bytes) -> frozenset[str]:
    """The topics. A member whose words cannot be read subscribes to nothing."""
    try:
        reader = _Reader("ConsumerProtocolSubscription", data)
        return frozenset(reader.text() for _ in range(reader.head()))
    except MalformedMessageError:
        return frozenset()


def encode_assignment(tps: Iterable[TopicPartition]) -> bytes:
    topics = by_topic(tps)
    parts = [
        _text(topic) + struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)
        for topic, numbers in topics.items()
    ]
    return b"".join((struct.pack(">hi", _VERSION, len(topics)), *parts, _NO_USER_DATA))


def decode_assignment(data: bytes) -> tuple[TopicPartition, ...]:
    """In order. Nothing of a member that gets nothing.

    Raises:
        MalformedMessageError
    """
    found: list[TopicPartition] = []
    if data:
        reader = _Reader("ConsumerProtocolAssignment", data)
        for _ in range(reader.head()):
            topic = reader.text()
            found += (TopicPartition(topic, number) for number in reader.numbers())
    return tuple(sorted(found))


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


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">h", len(data)) + data


class _Reader:
    def __init__(self, name: str, data: bytes) -> None:
        self._name, self._data, self._at = name, bytes(data), 0

    def head(self) -> int:
        """The count of topics."""
        self._take(">h")  # any version: later ones add at the end
        (count,) = self._take(">i")
        return int(count)

    def text(self) -> str:
        (size,) = self._take(">h")
        (data,) = self._take(f">{self._checked(size)}s")
        try:
            return bytes(data).decode()
        except UnicodeDecodeError as error:
            raise self._malformed(str(error)) from None

    def numbers(self) -> tuple[int, ...]:
        (count,) = self._take(">i")
        return self._take(f">{self._checked(count)}i")

    def _checked(self, size: int) -> int:
        if not 0 <= size <= len(self._data):
            raise self._malformed(f"size {size}")
        return size

    def _take(self, form: str) -> tuple[Any, ...]:
        try:
            found = struct.unpack_from(form, self._data, self._at)
        except struct.error as error:
            raise self._malformed(str(error)) from None
        self._at += struct.calcsize(form)
        return found

    def _malformed(self, reason: str) -> MalformedMessageError:
        return MalformedMessageError(self._name, _VERSION, self._at, reason)
