"""What members of type "consumer" say in their metadata: which topics they read (W-172).

The bytes are a client's, and only the expiry of offsets wants to know. So they are read leniently:
what cannot be read says nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

CONSUMER_PROTOCOL = "consumer"
_HEAD = struct.Struct(">hi")  # version, number of topics
_LENGTH = struct.Struct(">h")


def topics_of(metadata: bytes) -> frozenset[str] | None:
    """The topics of one subscription; None where it cannot be read."""
    try:
        version, count = _HEAD.unpack_from(metadata)
        if version < 0 or count < 0:
            return None
        at, topics = _HEAD.size, []
        for _ in range(count):
            (length,) = _LENGTH.unpack_from(metadata, at)
            at += _LENGTH.size
            name = metadata[at : at + length] if length >= 0 else b""
            if len(name) != length:
                return None
            topics.append(name.decode())
            at += length
    except (struct.error, UnicodeDecodeError):
        return None
    return frozenset(topics)


def topics_of_all(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """The topics of all members; None where one cannot be read."""
    topics: frozenset[str] = frozenset()
    for metadata in subscriptions:
        found = topics_of(metadata)
        if found is None:
            return None
        topics |= found
    return topics
