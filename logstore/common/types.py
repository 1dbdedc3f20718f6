"""Basic types: offsets count records, positions count bytes in a file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, NewType, TypeAlias

from checkpoints.types import TopicPartition

Offset = NewType("Offset", int)
"""Number of a record in a partition's log; ``last_`` offsets are inclusive, ``end_`` exclusive."""

Position = NewType("Position", int)
"""Byte in a ``.log`` file."""

LeaderEpoch = NewType("LeaderEpoch", int)
"""Number of a leadership; −1 when unknown."""

Header: TypeAlias = tuple[str, bytes | None]
Buffer: TypeAlias = bytes | bytearray | memoryview

NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_EPOCH = LeaderEpoch(-1)


class Record(NamedTuple):
    """One record as read from a log. ``timestamp`` is in ms; null keys and values are ``None``."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[Header] = ()


__all__ = [
    "NO_EPOCH",
    "NO_PRODUCER_EPOCH",
    "NO_PRODUCER_ID",
    "NO_SEQUENCE",
    "NO_TIMESTAMP",
    "Buffer",
    "Header",
    "LeaderEpoch",
    "Offset",
    "Position",
    "Record",
    "TopicPartition",
]
