"""``partition.metadata``: the topic id of a partition directory (rules F-35 … F-37).

Two lines, and no newline after the second (Kafka ``PartitionMetadataFile``)::

    version: 0
    topic_id: AQIDBAUGBwgJCgsMDQ4PEA

The text of an id is URL-safe base64 of its 16 bytes without padding: 22 characters.
"""

from __future__ import annotations

import base64
import os
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from checkpoints.checkpoint_file import MAX_I32, CheckpointFile, parse_number

PARTITION_METADATA = "partition.metadata"
_ID_TEXT_LENGTH = 22
_RESERVED_BELOW = 100  # as one 128-bit number: upper half 0, lower half below 100 (F-45)
_SEPARATOR = re.compile(rb":\s+")


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """The content of the file. ``version`` is kept when the file is rewritten."""

    topic_id: uuid.UUID
    version: int = 0

    def encode(self) -> bytes:
        """The bytes of the file.

        Raises:
            ValueError: the zero id or a negative version.
        """
        if self.topic_id.int == 0 or not 0 <= self.version <= MAX_I32:
            raise ValueError(f"{self} has no place in {PARTITION_METADATA}")
        text = f"version: {self.version}\ntopic_id: {topic_id_to_text(self.topic_id)}"
        return text.encode("ascii")


def topic_id_to_text(topic_id: uuid.UUID) -> str:
    """22 URL-safe base64 characters, most significant byte first."""
    return base64.urlsafe_b64encode(topic_id.bytes).decode("ascii")[:_ID_TEXT_LENGTH]


@lru_cache(256)  # all partitions of a topic have the same
def topic_id_from_text(text: str) -> uuid.UUID:
    """The id of ``text``.

    Raises:
        ValueError: not the text of any id. Stricter than Kafka, which ignores the 4 spare bits of
            the last character: two texts for one id would hide a damaged one.
    """
    if len(text) == _ID_TEXT_LENGTH and text.isascii():
        try:
            topic_id = uuid.UUID(bytes=base64.b64decode(text + "==", altchars=b"-_", validate=True))
        except ValueError:
            pass
        else:
            if topic_id_to_text(topic_id) == text:
                return topic_id
    raise ValueError(f"{text[:80]!r} is not a topic id")


def is_reserved_id(topic_id: uuid.UUID) -> bool:
    """Whether an id is reserved, such as zero, and cannot name a topic (F-45)."""
    return topic_id.int < _RESERVED_BELOW


def random_topic_id(random_bytes: Callable[[int], bytes] = os.urandom) -> uuid.UUID:
    """A new id that is not reserved, and whose text does not begin with ``-`` as an option does
    (F-45).
    """
    while True:
        topic_id = uuid.UUID(bytes=random_bytes(16), version=4)
        if not is_reserved_id(topic_id) and not topic_id_to_text(topic_id).startswith("-"):
            return topic_id


class PartitionMetadataFile(CheckpointFile):
    """The file of one partition directory; it must be on disk before the first record (F-37)."""

    __slots__ = ()

    size_max = 64 << 10  # 43 bytes, and room for lines that a later version may add

    def read(self) -> PartitionMetadata | None:
        """The content, or ``None`` if the file is missing. Key names are not checked.

        Raises:
            MalformedCheckpointError: also for an empty file, which Kafka never leaves.
            CheckpointFailedError: the medium refused.
        """
        data = self._load()
        if data is None:
            return None
        lines = data.split(b"\n", 2)[:2]  # further lines are ignored
        if len(lines) < 2:
            raise self._fault(0, b"", "expected two lines")
        version = parse_number(self._value(1, lines[0]), MAX_I32)
        if version is None:
            raise self._fault(1, lines[0], "the version is not an i32 >= 0")
        try:
            topic_id = topic_id_from_text(self._value(2, lines[1]).decode("latin-1"))
        except ValueError:
            raise self._fault(2, lines[1], "is not a topic id") from None
        if topic_id.int == 0:
            raise self._fault(2, lines[1], "the zero topic id names no topic")
        return PartitionMetadata(topic_id, version)

    def write(self, metadata: PartitionMetadata) -> None:
        """Replace the file atomically and durably.

        Raises:
            ValueError: as ``encode``.
            CheckpointFailedError: the medium refused.
        """
        self._store(metadata.encode())

    def _value(self, line_number: int, line: bytes) -> bytes:
        parts = _SEPARATOR.split(line.removesuffix(b"\r"))
        if len(parts) != 2:
            raise self._fault(line_number, line, "expected 'key: value'")
        return parts[1]
