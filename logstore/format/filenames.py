"""Names of partition directories and of the files in them (F-1…F-6, F-16…F-24).

Kafka: ``LogFileUtils``, ``LocalLog.parseTopicPartitionName``, ``Topic.validate``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from checkpoints.types import TopicPartition
from logstore.common.errors import InvalidTopicError

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TXN_INDEX_SUFFIX = ".txnindex"
SNAPSHOT_SUFFIX = ".snapshot"
SEGMENT_SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)

DELETED_SUFFIX = ".deleted"
CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
TEMPORARY_SUFFIX = ".tmp"
UNFINISHED_SUFFIX = ".cut.tmp"  # a copy of a file whose end is cut off; a start removes it
PLAIN_SUFFIXES = frozenset((*SEGMENT_SUFFIXES, SNAPSHOT_SUFFIX))
TRANSITIONAL_SUFFIXES = (DELETED_SUFFIX, CLEANED_SUFFIX, SWAP_SUFFIX)

DELETE_DIR_SUFFIX = "-delete"
FUTURE_DIR_SUFFIX = "-future"
STRAY_DIR_SUFFIX = "-stray"
DIR_SUFFIXES = (DELETE_DIR_SUFFIX, FUTURE_DIR_SUFFIX, STRAY_DIR_SUFFIX)

REMOTE_LOG_INDEX_CACHE = "remote-log-index-cache"
CLUSTER_METADATA = "__cluster_metadata"  # the quorum of KRaft keeps its log here; no topic
CLUSTER_METADATA_DIR = f"{CLUSTER_METADATA}-0"
LEADER_EPOCH_CHECKPOINT = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"
CLEAN_STOP = "clean-stop"  # our own, as the next one; Kafka ignores them
MOVED_FROM = "moved-from"
BACKUPS = "logstore-backup"  # of a store of backups: the folder that lists them

MAX_DIR_NAME = 255
MAX_TOPIC_NAME = 249
MAX_OFFSET = 2**63 - 1
_MAX_PARTITION = 2**31 - 1
_OFFSET_DIGITS = 20

_TOPIC = re.compile(r"[a-zA-Z0-9._-]+")
_PARTITION = re.compile(r"0|[1-9][0-9]{0,9}")  # as it is written: one name for each partition
_SUFFIXED = re.compile(r"(.+)\.([a-zA-Z0-9_-]+)(-delete|-future|-stray)")


class PartitionDir(NamedTuple):
    """A parsed directory name; ``suffix`` and ``unique_id`` are empty for a plain log."""

    topic_partition: TopicPartition
    suffix: str = ""
    unique_id: str = ""


class SegmentFile(NamedTuple):
    """A parsed file name: ``….log.swap`` has suffix ``.log`` and transition ``.swap``."""

    offset: int
    suffix: str
    transition: str = ""


def validate_topic(topic: str) -> None:
    """Raise ``InvalidTopicError`` unless ``topic`` follows F-2."""
    if topic in ("", ".", ".."):
        raise InvalidTopicError(f"topic name {topic!r} is not allowed")
    if len(topic) > MAX_TOPIC_NAME:
        raise InvalidTopicError(
            f"topic name of {len(topic)} characters, at most {MAX_TOPIC_NAME} are allowed: "
            f"{topic!r}"
        )
    if not _TOPIC.fullmatch(topic):
        raise InvalidTopicError(f"topic name {topic!r} has characters outside [a-zA-Z0-9._-]")


def check_dir_name(name: str) -> None:
    """Raise ``InvalidTopicError`` if no file system takes a directory of that name."""
    if len(name) > MAX_DIR_NAME:
        raise InvalidTopicError(
            f"a directory name of {len(name)} characters, at most {MAX_DIR_NAME} are possible: "
            f"{name!r}"
        )


def topics_collide(one: str, other: str) -> bool:
    """Whether two names differ at most by ``.`` versus ``_`` (F-2)."""
    return one.replace(".", "_") == other.replace(".", "_")


def partition_dir_name(tp: TopicPartition) -> str:
    return f"{tp.topic}-{tp.partition}"


def delete_dir_name(tp: TopicPartition, unique_id: str) -> str:
    """``unique_id``: a random UUID as 32 hex digits (F-3). Cuts the topic to fit (F-5)."""
    return _capped(tp, unique_id, DELETE_DIR_SUFFIX)


def future_dir_name(tp: TopicPartition, unique_id: str) -> str:
    """Of a copy that will replace the log of the partition in another log directory.

    Raises:
        InvalidTopicError: it would be too long, since it is not cut.
    """
    name = f"{partition_dir_name(tp)}.{unique_id}{FUTURE_DIR_SUFFIX}"
    check_dir_name(name)
    return name


def stray_dir_name(tp: TopicPartition, unique_id: str) -> str:
    return _capped(tp, unique_id, STRAY_DIR_SUFFIX)


def _capped(tp: TopicPartition, unique_id: str, suffix: str) -> str:
    tail = f"-{tp.partition}.{unique_id}{suffix}"
    return tp.topic[: MAX_DIR_NAME - len(tail)] + tail


def parse_partition_dir(name: str) -> PartitionDir:
    """Parse the name of a sub-directory of a log directory (F-1, F-3, F-4).

    The topic of a ``-delete`` or ``-stray`` directory may be cut (F-5). Stricter than Kafka, which
    also accepts ``t-00``, ``t-+0`` and topics that it would not create. The partition of such a
    directory would have another directory name, or a name that a checkpoint cannot hold.

    Raises:
        InvalidTopicError: no log has such a name (F-6).
    """
    check_dir_name(name)
    plain, suffix, unique_id = name, "", ""
    if name.endswith(DIR_SUFFIXES):
        match = _SUFFIXED.fullmatch(name)
        if not match:
            raise _not_a_partition(name)
        plain, unique_id, suffix = match.groups()
    topic, _, number = plain.rpartition("-")
    if not _PARTITION.fullmatch(number) or int(number) > _MAX_PARTITION or not _is_topic(topic):
        raise _not_a_partition(name)
    return PartitionDir(TopicPartition(topic, int(number)), suffix, unique_id)


def partition_dir(name: str) -> PartitionDir | None:
    """As ``parse_partition_dir``; ``None`` if no log has such a name."""
    try:
        return parse_partition_dir(name)
    except InvalidTopicError:
        return None


def _is_topic(topic: str) -> bool:
    plain = _TOPIC.fullmatch(topic) is not None and topic not in (".", "..")
    return plain and len(topic) <= MAX_TOPIC_NAME


def _not_a_partition(name: str) -> InvalidTopicError:
    return InvalidTopicError(
        f"directory {name!r} is not named topic-partition, with an optional "
        "unique id and -delete, -future or -stray"
    )


def offset_name(offset: int) -> str:
    """20 digits, zero-padded (F-16)."""
    return f"{offset:0{_OFFSET_DIGITS}d}"


def segment_file_name(offset: int, suffix: str, transition: str = "") -> str:
    return f"{offset:0{_OFFSET_DIGITS}d}{suffix}{transition}"


def parse_segment_file(name: str) -> SegmentFile | None:
    """``None`` for a file that does not belong to a segment or a snapshot.

    The offset has 20 digits and is below 2⁶³. Kafka also reads ``5.log``, but opens another file.
    """
    number, suffix, transition = name[:_OFFSET_DIGITS], name[_OFFSET_DIGITS:], ""
    if suffix not in PLAIN_SUFFIXES:  # true for hardly any file
        transition = next((end for end in TRANSITIONAL_SUFFIXES if suffix.endswith(end)), "")
        suffix = suffix.removesuffix(transition)
        if suffix not in PLAIN_SUFFIXES:
            return None
    if not (number.isdecimal() and number.isascii()) or len(number) < _OFFSET_DIGITS:
        return None
    offset = int(number)
    return SegmentFile(offset, suffix, transition) if offset <= MAX_OFFSET else None


def roll_marks(names: Iterable[str], recovery_point: int) -> list[int]:
    """Bases of the segments that wait for the one before them, ascending.

    A roll has no ``.swap`` or ``.cleaned`` index of its base, and no final segment lies at or above
    it, because rolls are settled from the oldest on. A roll cannot lie below the recovery point. A
    ``.log.cleaned`` beside it comes from a truncation.
    """
    swaps: dict[int, set[str]] = {}
    unfinished: set[int] = set()
    newest = -1
    for name in names:
        p = parse_segment_file(name)
        if p is None:
            continue
        if p.transition == SWAP_SUFFIX and name[:20].isdecimal():
            swaps.setdefault(p.offset, set()).add(p.suffix)
        elif p.transition == CLEANED_SUFFIX and p.suffix != LOG_SUFFIX:
            unfinished.add(p.offset)
        elif not p.transition and p.suffix == LOG_SUFFIX:
            newest = max(newest, p.offset)
    return sorted(
        base
        for base, suffixes in swaps.items()
        if suffixes == {LOG_SUFFIX}
        and base not in unfinished
        and base > newest
        and base >= recovery_point
    )
