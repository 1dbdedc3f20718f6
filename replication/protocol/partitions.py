"""Messages name partitions below their topics; what works with partitions wants them one by one.

In every message the name of a topic is the first field of its structure, and its partitions are
the last: their numbers, or structures that begin with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Any, TypeVar

from checkpoints.types import TopicPartition

P = TypeVar("P")
T = TypeVar("T")


def by_partition(topics: Iterable[Any] | None) -> list[tuple[TopicPartition, Any]]:
    """The partitions of a message's topics in their order, each with its own part."""
    return [
        (TopicPartition(topic[0], part if isinstance(part, int) else part[0]), part)
        for topic in topics or ()
        for part in topic[-1]
    ]


def partitions_of(topics: Iterable[Any] | None) -> list[TopicPartition]:
    return [tp for tp, _ in by_partition(topics)]


def by_topic(
    parts: Iterable[tuple[TopicPartition, P]], make: Callable[[str, tuple[P, ...]], T]
) -> tuple[T, ...]:
    """Structures of topics around parts; neighbours of one topic are in one structure."""
    topics = groupby(parts, key=lambda part: part[0].topic)
    return tuple(make(topic, tuple(part for _, part in found)) for topic, found in topics)
