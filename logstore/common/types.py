"""Basic types. Offsets count records, ``last_`` inclusive and ``end_`` exclusive; positions count
bytes in a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from checkpoints.types import TopicPartition

Header: TypeAlias = tuple[str, bytes | None]
Buffer: TypeAlias = bytes | bytearray | memoryview

NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_EPOCH = -1


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
    "Record",
    "TopicPartition",
]
