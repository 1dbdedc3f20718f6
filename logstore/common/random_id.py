"""Randomness as a seam: names and ids that nobody may guess, and that a simulation repeats."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import TypeAlias

from checkpoints.partition_metadata import random_topic_id

RandomId: TypeAlias = Callable[[], str]
"""Gives 32 hex digits, other ones at each call."""


def random_id() -> str:
    """From the operating system's source."""
    return uuid.uuid4().hex


def new_uuid(source: RandomId) -> uuid.UUID:
    """An id for a topic, a directory or a cluster: none of the reserved ones (F-45)."""
    return random_topic_id(lambda size: bytes.fromhex(source())[:size])
