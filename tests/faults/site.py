"""Log directories of one or several brokers, as the planter sees them: replicas, files, batches.

A file is replaced, never written in place, so that a copy made of hard links leaves the original
alone. What is known here comes from the files: which checkpoints bound a log, whether it was
compacted, whether its broker stopped cleanly.
"""

from __future__ import annotations

import os
import random
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from checkpoints import clean_shutdown
from checkpoints.leader_epoch_checkpoint import LEADER_EPOCH, LeaderEpochCheckpoint
from checkpoints.offset_checkpoint import (
    CLEANER,
    HIGH_WATERMARK,
    LOG_START,
    RECOVERY_POINT,
    OffsetCheckpoint,
)
from checkpoints.partition_metadata import PARTITION_METADATA, topic_id_to_text
from checkpoints.types import TopicPartition
from logstore.common.errors import InvalidTopicError
from logstore.format import filenames
from logstore.format.reader import Batch, iter_batches
from logstore.storage.base import Storage
from logstore.storage.local import LocalStorage

UNKNOWN = -1
_INTERNAL = "__cluster_metadata"  # the controller's Raft log is no partition of this format alone


@dataclass(frozen=True)
class LogDir:
    """One log directory. Its files are read when they are asked for, and planted over later."""

    storage: Storage
    path: str

    def file(self, name: str) -> str:
        return os.path.join(self.path, name)

    @cached_property
    def clean(self) -> bool:
        return clean_shutdown.exists(self.file(clean_shutdown.CLEAN_SHUTDOWN), self.storage)

    def exists(self, name: str) -> bool:
        return self.storage.info(self.file(name)) is not None

    def offsets(self, name: str) -> dict[TopicPartition, int]:
        return OffsetCheckpoint(self.file(name), self.storage).read()

    def write_offsets(self, name: str, offsets: dict[TopicPartition, int]) -> None:
        """As ``OffsetCheckpoint.write``, into a new file."""
        lines = [f"{tp.topic} {tp.partition} {offset}\n" for tp, offset in offsets.items()]
        text = f"0\n{len(offsets)}\n" + "".join(lines)
        replace(self.storage, self.file(name), text.encode())


class Segment(NamedTuple):
    """``next_base`` is −1 for the active one."""

    replica: Replica
    base: int
    next_base: int

    @property
    def active(self) -> bool:
        return self.next_base < 0

    @property
    def closed(self) -> bool:
        """Rolled, or cleanly shut down: its indexes have their final size."""
        return not self.active or self.replica.log_dir.clean

    @property
    def settled(self) -> bool:
        """Its indexes are believed by the next start, which does not scan it."""
        return self.replica.is_settled(self.next_base)

    def file(self, suffix: str) -> str:
        return self.replica.file(filenames.segment_file_name(self.base, suffix))

    def has(self, suffix: str) -> bool:
        found = self.replica.storage.info(self.file(suffix))
        return found is not None and found.size > 0

    def read(self, suffix: str) -> bytes:
        return self.replica.storage.read_file(self.file(suffix))

    def batches(self) -> list[Batch]:
        return list(iter_batches(self.read(filenames.LOG_SUFFIX)))


@dataclass(frozen=True)
class Replica:
    """One partition directory of one broker."""

    log_dir: LogDir
    tp: TopicPartition
    path: str

    @property
    def storage(self) -> Storage:
        return self.log_dir.storage

    def file(self, name: str) -> str:
        return os.path.join(self.path, name)

    @cached_property
    def segments(self) -> list[Segment]:
        names = (entry.name for entry in self.storage.scan_dir(self.path))
        parsed = (filenames.parse_segment_file(name) for name in names)
        bases = [
            file.offset
            for file in parsed
            if file and file.suffix == filenames.LOG_SUFFIX and not file.transition
        ]
        following = [*bases[1:], UNKNOWN]
        return [Segment(self, *pair) for pair in zip(bases, following, strict=True)]

    @cached_property
    def batches(self) -> list[Spot]:
        """All batches in order of offsets, with their segments."""
        return [Spot(segment, batch) for segment in self.segments for batch in segment.batches()]

    @cached_property
    def end_offset(self) -> int:
        return self.batches[-1].batch.next_offset if self.batches else 0

    def checkpointed(self, name: str) -> int:
        return self.log_dir.offsets(name).get(self.tp, UNKNOWN)

    @cached_property
    def high_watermark(self) -> int:
        return self.checkpointed(HIGH_WATERMARK)

    @cached_property
    def kept_below(self) -> int:
        """Offsets below are missed when they are gone: below a recovery point or high watermark."""
        return max(self.high_watermark, self.checkpointed(RECOVERY_POINT))

    def is_settled(self, end: int) -> bool:
        """Whether a clean stop or the recovery point covers what is below ``end``."""
        return self.log_dir.clean or 0 <= end <= self.checkpointed(RECOVERY_POINT)

    @cached_property
    def log_start(self) -> int:
        return max(self.segments[0].base, self.checkpointed(LOG_START))

    @cached_property
    def compacted(self) -> bool:
        """Gaps are normal in it, so that a missing batch is none that could be told."""
        in_checkpoint = self.checkpointed(CLEANER) >= 0
        return in_checkpoint or any(
            one.batch.record_count != one.batch.last_offset_delta + 1 for one in self.batches
        )

    @cached_property
    def epochs(self) -> list[tuple[int, int]]:
        file = LeaderEpochCheckpoint(self.file(LEADER_EPOCH), self.storage)
        return [(int(epoch), int(start)) for epoch, start in file.read()]


class Spot(NamedTuple):
    """One batch in its segment; ``batch.position`` is a byte of the ``.log``."""

    segment: Segment
    batch: Batch

    @property
    def replica(self) -> Replica:
        return self.segment.replica

    @property
    def log(self) -> str:
        return self.segment.file(filenames.LOG_SUFFIX)

    @property
    def end(self) -> int:
        return self.batch.end_position


class Site:
    """Several brokers' log directories; with more than one, partitions have replicas."""

    def __init__(self, paths: Iterable[str | os.PathLike[str]]) -> None:
        self.storage = LocalStorage()
        self.log_dirs = [LogDir(self.storage, os.fspath(path)) for path in paths]
        self.replicas = [replica for log_dir in self.log_dirs for replica in _replicas(log_dir)]

    @property
    def paths(self) -> list[str]:
        return [log_dir.path for log_dir in self.log_dirs]

    def filled(self) -> list[Replica]:
        return [replica for replica in self.replicas if replica.batches]

    def segments(self) -> list[Segment]:
        return [segment for replica in self.replicas for segment in replica.segments]

    def spots(self) -> list[Spot]:
        return [spot for replica in self.replicas for spot in replica.batches]

    def peers(self, replica: Replica) -> list[Replica]:
        """The other replicas of its partition."""
        return [one for one in self.replicas if one.tp == replica.tp and one is not replica]

    def committed_below(self, tp: TopicPartition) -> int:
        """The lowest high watermark of its replicas: below it all must be equal."""
        return min(one.high_watermark for one in self.replicas if one.tp == tp)


def _replicas(log_dir: LogDir) -> Iterable[Replica]:
    for entry in log_dir.storage.scan_dir(log_dir.path):
        if not entry.is_dir or entry.name.startswith(_INTERNAL):
            continue
        try:
            found = filenames.parse_partition_dir(entry.name)
        except InvalidTopicError:
            continue
        if not found.suffix:
            yield Replica(log_dir, found.topic_partition, log_dir.file(entry.name))


def replace(storage: Storage, path: str, data: bytes) -> None:
    """A new file in the place of ``path``."""
    if storage.info(path) is not None:
        storage.remove(path)
    storage.write_file(path, data)


def patched(data: bytes, position: int, new: bytes) -> bytes:
    return data[:position] + new + data[position + len(new) :]


def flipped(rng: random.Random, data: bytes, start: int, end: int) -> tuple[bytes, int]:
    """``data`` with one bit of the bytes ``[start, end)`` flipped, and which byte."""
    at = rng.randrange(start, end)
    return patched(data, at, bytes([data[at] ^ 1 << rng.randrange(8)])), at


def copied(paths: Sequence[str], target: str, rename: Callable[[str], str] = str) -> list[str]:
    """Copies of log directories below ``target``, of hard links; ``rename`` names their topics.

    Checkpoints name topics too, so those are written anew, and another topic has another id. The
    controller's own log stays behind: it has one name only.
    """
    out = []
    for number, path in enumerate(paths, 1):
        copy = os.path.join(target, f"broker-{number}")
        for folder, _, names in os.walk(path):
            relative = os.path.relpath(folder, path)
            if relative.startswith(_INTERNAL):
                continue
            into = copy if relative == "." else os.path.join(copy, _renamed(relative, rename))
            os.makedirs(into)
            for name in names:
                os.link(os.path.join(folder, name), os.path.join(into, name))
            topic_id = os.path.join(into, PARTITION_METADATA)
            topic = _renamed(relative, rename).rpartition("-")[0]
            if os.path.exists(topic_id) and topic != relative.rpartition("-")[0]:
                text = topic_id_to_text(uuid.uuid5(uuid.NAMESPACE_DNS, topic))
                replace(LocalStorage(), topic_id, f"version: 0\ntopic_id: {text}".encode())
        log_dir = LogDir(LocalStorage(), copy)
        for name in (RECOVERY_POINT, LOG_START, HIGH_WATERMARK, CLEANER):
            if os.path.exists(log_dir.file(name)):
                offsets = log_dir.offsets(name).items()
                log_dir.write_offsets(
                    name, {TopicPartition(rename(tp.topic), tp.partition): o for tp, o in offsets}
                )
        out.append(copy)
    return out


def _renamed(directory: str, rename: Callable[[str], str]) -> str:
    topic, _, partition = directory.rpartition("-")
    return f"{rename(topic)}-{partition}"


__all__ = [
    "LogDir",
    "Replica",
    "Segment",
    "Site",
    "Spot",
    "copied",
    "flipped",
    "patched",
    "replace",
]
