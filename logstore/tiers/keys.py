"""The keys of objects: ``orders-<topic id>/0/00000000000000001234-<segment id>.log`` (L-8).

Keys are relative to the base of a store. What a listing shows was written by others, so a key that
is not exactly as it would be written names nothing here.
"""

from __future__ import annotations

import re
import uuid
from typing import Final, NamedTuple

from checkpoints.partition_metadata import topic_id_from_text, topic_id_to_text
from checkpoints.types import TopicPartition
from logstore.common.errors import InvalidTopicError
from logstore.format import filenames

LOG: Final = ".log"
INDEXES: Final = ".indexes"
FACTS: Final = ".logstore"
MANIFEST: Final = ".rsm-manifest"
SEGMENT_SUFFIXES: Final = (LOG, INDEXES, FACTS, MANIFEST)
"""In the order in which they are put: the manifest is the commit of the segment."""

COMMITS: Final = filenames.BACKUPS
"""The folder of commits, one for each whole backup."""

COMMIT_NUMBER_MAX: Final = 10**12 - 1
"""Numbers beyond are none of a backup: views of other stores have times there, in ms."""

_ID_LENGTH: Final = 22
_NAME: Final = re.compile(r"(\d{20})-([A-Za-z0-9_-]{22})(\.[a-z-]+)", re.ASCII)
_COMMIT: Final = re.compile(rf"{COMMITS}/(\d{{20}})\.json", re.ASCII)
_PARTITION: Final = re.compile(r"0|[1-9]\d{0,9}", re.ASCII)
KEY_SIZE_MAX: Final = 1024
"""S3's bound, in bytes."""


class TopicDir(NamedTuple):
    """The folder of a topic: ``orders-MWJ6FHTfRYy67jzwZdeqSQ``."""

    topic: str
    topic_id: uuid.UUID

    @property
    def name(self) -> str:
        return f"{self.topic}-{topic_id_to_text(self.topic_id)}"


class SegmentKey(NamedTuple):
    """A segment in a store. Its objects are named ``key(LOG)``, ``key(MANIFEST)`` and so on."""

    topic: str
    topic_id: uuid.UUID
    partition: int
    base_offset: int
    segment_id: uuid.UUID

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    @property
    def directory(self) -> str:
        """The folder of the partition."""
        return f"{TopicDir(self.topic, self.topic_id).name}/{self.partition}"

    @property
    def stem(self) -> str:
        """The common beginning of its objects' names, in the folder."""
        return f"{self.base_offset:020d}-{topic_id_to_text(self.segment_id)}"

    def key(self, suffix: str) -> str:
        return f"{self.directory}/{self.stem}{suffix}"


def parse_topic_dir(name: str) -> TopicDir | None:
    """``None`` if no topic's folder has such a name."""
    topic, dash, text = name[: -_ID_LENGTH - 1], name[-_ID_LENGTH - 1 : -_ID_LENGTH], name
    if dash != "-":
        return None
    try:
        filenames.validate_topic(topic)
        topic_id = topic_id_from_text(text[-_ID_LENGTH:])
    except (InvalidTopicError, ValueError):
        return None
    return TopicDir(topic, topic_id) if topic_id.int else None


def parse_partition(name: str) -> int | None:
    """The number of a partition's folder; ``None`` if it is none."""
    if not _PARTITION.fullmatch(name):
        return None
    number = int(name)
    return number if number < 2**31 else None


def parse_segment_name(name: str) -> tuple[int, uuid.UUID, str] | None:
    """Base offset, segment id and suffix of an object's name; ``None`` for other names."""
    match = _NAME.fullmatch(name)
    if match is None or int(match[1]) > filenames.MAX_OFFSET:
        return None
    try:
        return int(match[1]), topic_id_from_text(match[2]), match[3]
    except ValueError:
        return None


def parse_key(key: str) -> tuple[SegmentKey, str] | None:
    """The segment of an object's key, and the suffix; ``None`` for other keys."""
    parts = key.split("/")
    if len(parts) != 3:
        return None
    topic, partition, found = (
        parse_topic_dir(parts[0]),
        parse_partition(parts[1]),
        parse_segment_name(parts[2]),
    )
    if topic is None or partition is None or found is None or found[2] not in SEGMENT_SUFFIXES:
        return None
    return SegmentKey(topic.topic, topic.topic_id, partition, found[0], found[1]), found[2]


def commit_key(number: int) -> str:
    """The key of the commit with this number, from 1 on."""
    return f"{COMMITS}/{number:020d}.json"


def parse_commit_key(key: str) -> int | None:
    match = _COMMIT.fullmatch(key)
    number = int(match[1]) if match else 0
    return number if 0 < number <= COMMIT_NUMBER_MAX else None


def is_key(key: str) -> bool:
    """Whether a key may name an object: no way out of the base, nothing that cannot be shown."""
    return (
        0 < len(key.encode("utf-8", "surrogateescape")) <= KEY_SIZE_MAX
        and key.isprintable()
        and all(part not in ("", ".", "..") for part in key.split("/"))
    )


__all__ = [
    "COMMITS",
    "COMMIT_NUMBER_MAX",
    "FACTS",
    "INDEXES",
    "LOG",
    "MANIFEST",
    "SEGMENT_SUFFIXES",
    "SegmentKey",
    "TopicDir",
    "commit_key",
    "is_key",
    "parse_commit_key",
    "parse_key",
    "parse_partition",
    "parse_segment_name",
    "parse_topic_dir",
]
