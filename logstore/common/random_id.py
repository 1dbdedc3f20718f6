"""Randomness as a seam: ids that cannot be guessed, and that a simulation can repeat."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import TypeAlias

from checkpoints.partition_metadata import random_topic_id

RandomId: TypeAlias = Callable[[], str]
"""Returns 32 new hex digits at each call."""


def random_id() -> str:
    """A random id from the operating system."""
    return uuid.uuid4().hex


def new_uuid(source: RandomId) -> uuid.UUID:
    """An id for a topic, a directory or a cluster that is not reserved (F-45)."""
    return random_topic_id(lambda size: bytes.fromhex(source())[:size])
