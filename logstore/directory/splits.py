"""Parts of segments to read, planned in one process and opened in another.

A split has the identity of the file that it was planned from, and no other file is read. A rolled
segment never changes, so file, size and time of change must be the same. The last segment grows, so
the file and some batch headers, the last one among them, must be the same. An inode number may be
reused, so it alone does not identify a file.

Another process may be on another machine. One where the log directory is not mounted has lost no
record, so this is an error in any case.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

from checkpoints.loggers import get_logger
from logstore.common.bounds import SPARK_BATCH_MAX
from logstore.directory.errors import DataLossError, NotALogDirectoryError
from logstore.directory.listing import topic_id
from logstore.format import filenames
from logstore.format.filenames import LOG_SUFFIX, segment_file_name
from logstore.format.reader import MAX_OFFSET
from logstore.storage.base import File, Storage
from logstore.storage.identity import FileIdentity, identity_of
from logstore.storage.uri import join_uri, open_storage, shown

HEADER = 61
"""The size of a batch header: offsets, leader epoch, checksum of the rest, producer."""


@dataclass(frozen=True, slots=True)
class FileProof:
    """``headers`` lists positions in the file with the bytes there.

    ``may_grow``: the last segment.
    """

    file: FileIdentity
    may_grow: bool
    headers: tuple[tuple[int, bytes], ...] = ()

    def is_of(self, file: File, storage: Storage) -> bool:
        """Whether ``file`` is the same file, even if its content has changed."""
        return identity_of(file, storage).same_file(self.file)

    def broken(self, file: File, storage: Storage) -> str:
        """Say why ``file`` is no longer what it was; "" if it still is.

        Raises:
            OSError: the medium refused.
        """
        now = identity_of(file, storage)
        if not now.same_file(self.file):
            return "the segment was replaced meanwhile"
        if now.size < self.file.size:
            return f"the segment was cut from {self.file.size} to {now.size} bytes meanwhile"
        if not self.may_grow and (now.size, now.mtime_ms) != (self.file.size, self.file.mtime_ms):
            return "the segment was written to meanwhile, though another one follows it"
        for position, header in self.headers:
            if file.read_at(position, len(header)) != header:
                return f"the batch at byte {position} was replaced by another one meanwhile"
        return ""


def prove(file: File, storage: Storage, positions: tuple[int, ...], may_grow: bool) -> FileProof:
    """
    Raises:
        OSError: the medium refused.
    """
    headers = tuple((at, file.read_at(at, HEADER)) for at in positions)
    return FileProof(identity_of(file, storage), may_grow, headers)


@dataclass(frozen=True, slots=True)
class Spare:
    """Where the records of a split are when retention has deleted its segment: in a tier.

    ``uri`` is the partition's directory there, ``header`` that of the first batch, and ``end`` one
    past the last offset.
    """

    uri: str
    header: bytes
    end: int


AbortedRange: TypeAlias = tuple[int, int, int]
"""Producer id, first offset, and offset of the ABORT marker."""


@dataclass(frozen=True, slots=True)
class Split:
    """A part of one segment: bytes ``[position, end_position)``, both at starts of batches.

    Only records with offsets in ``[from_offset, end_offset)`` count. All batches begin above
    ``above`` and end below ``below``, offsets of what is around them. ``uri`` is the partition's
    directory. ``open_end``: the split ends where the last segment ended when it was listed, perhaps
    inside a batch that was being written.
    """

    uri: str
    broker: str
    topic: str
    partition: int
    segment_base: int
    position: int
    end_position: int
    proof: FileProof
    """The identity of the file when the split was planned, so that no other file is read."""
    from_offset: int = 0
    end_offset: int = MAX_OFFSET
    open_end: bool = False
    aborted: tuple[AbortedRange, ...] = ()
    topic_id: str = ""
    above: int = -1
    below: int = MAX_OFFSET
    log_uri: str = ""
    """The directory that stands for the whole log, of which a part may be in a tier."""
    spare: Spare | None = None
    file: str = ""
    """The ``.log``, where ``uri`` only shows it: whatever is shown there later, this is read."""

    @property
    def path(self) -> str:
        """The ``.log`` file, for messages."""
        name = segment_file_name(self.segment_base, LOG_SUFFIX)
        return shown(self.file or join_uri(self.uri, name))

    @property
    def size(self) -> int:
        """Bytes to read."""
        return self.end_position - self.position


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """The settings by which the splits of a query are read.

    Only records with times in ``[start_timestamp, end_timestamp)``, in ms, count. ``check_crcs``
    and ``max_batch_bytes``, the size of a batch stored or unpacked, are as in docs/spark.md;
    ``max_unpacked_bytes`` sets another limit for the second.
    """

    granularity: str = "record"
    start_timestamp: int | None = None
    end_timestamp: int | None = None
    include_control: bool = False
    check_crcs: bool = True
    max_batch_bytes: int = SPARK_BATCH_MAX
    max_unpacked_bytes: int | None = None
    fail_on_data_loss: bool = True
    drop_malformed: bool = False
    read_committed: bool = False


_NAMES = ("", filenames.SWAP_SUFFIX, "", filenames.DELETED_SUFFIX)
"""Suffixes that a segment may have.

Retention and compaction rename what they remove, and delete it a minute later; until then it can be
read. A rolled segment gets its final name when all before it is durable.
"""

logger = get_logger(__name__)


@dataclass(slots=True)
class OpenedSegment:
    split: Split
    settings: ReadSettings
    file: File
    storage: Storage
    _reported: bool = False

    def check(self) -> bool:
        """Whether the file is the one that the split was planned from.

        Raises:
            DataLossError: it is not, and failOnDataLoss is on.
        """
        reason = "" if self._reported else self.split.proof.broken(self.file, self.storage)
        if reason:
            self._reported = True
            lost(self.split, self.settings, reason)
        return not self._reported


def lost(split: Split, settings: ReadSettings, reason: str) -> None:
    loss = DataLossError(split.path, split.from_offset, split.end_offset, reason)
    if settings.fail_on_data_loss:
        raise loss
    logger.warning("%s", loss)


@contextmanager
def opened(split: Split, settings: ReadSettings) -> Iterator[OpenedSegment | None]:
    """The segment; ``None`` if it is gone and failOnDataLoss is off, or its spare is to be read.

    Raises:
        DataLossError: it was deleted, cut or replaced.
        NotALogDirectoryError: this machine does not have the log directory.
        OSError: the medium refused.
    """
    segment, reason = _find(split, settings)
    try:
        if segment is None:
            _check_mounted(split)
            if split.spare is None:
                lost(split, settings, _other_topic(split) or reason)
        else:
            segment.check()
        yield segment
    finally:
        if segment is not None:
            segment.file.close()


def segment_uris(split: Split) -> Iterator[str]:
    """The names under which the segment may be found, in the order in which to try them."""
    if split.file:
        yield split.file
        return
    for transition in _NAMES:
        name = filenames.segment_file_name(split.segment_base, LOG_SUFFIX, transition)
        yield join_uri(split.uri, name)


def _find(split: Split, settings: ReadSettings) -> tuple[OpenedSegment | None, str]:
    """The file under one of its names, or why there is none."""
    reason = "the segment was deleted meanwhile"
    for uri in segment_uris(split):
        storage, path = open_storage(uri)
        try:
            file = storage.open(path, writable=False)
        except FileNotFoundError:
            continue
        try:
            segment = OpenedSegment(split, settings, file, storage)
            if split.proof.is_of(file, storage):
                return segment, ""
        except BaseException:
            file.close()
            raise
        file.close()
        reason = "the segment was replaced by another one meanwhile: run the query again"
    return None, reason


def _check_mounted(split: Split) -> None:
    """A mount point without its file system is an empty directory, which no log directory is."""
    storage, directory = open_storage(os.path.dirname(split.file) or split.uri)
    above = os.path.dirname(directory)
    try:
        entries = storage.scan_dir(above)
    except FileNotFoundError:
        entries = []
    if not entries:
        reason = (
            f"it is not there on {platform.node()}, where a task runs; a path must mean the same "
            "on all machines"
        )
        raise NotALogDirectoryError(above, reason)


def _other_topic(split: Split) -> str:
    found = topic_id(split.uri)
    if not split.topic_id or found in ("", split.topic_id):
        return ""
    return f"the topic was deleted and created again: its id was {split.topic_id}, and is {found}"
