"""Named positions in a log that survive the process: how far a service has read.

A cursor is one small file ``<name>.cursor`` in the partition's directory. Kafka ignores it, and it
is deleted with the log. It holds one line in the frame of the checkpoint files::

    position  topic id  base offset and crc of the batch before the position

with ``-`` for what is not known. The last two show whether the log was cut since: another batch at
that place tells, unless a compaction has been there, which leaves a gap, a batch with fewer records
than offsets, or one with a delete horizon.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from checkpoints.checkpoint_file import (
    MAX_I64,
    frame,
    load_file,
    parse_entries,
    parse_number,
    store_file,
)
from checkpoints.errors import CheckpointFailedError, MalformedCheckpointError
from checkpoints.partition_metadata import topic_id_to_text
from logstore.common.errors import (
    CursorError,
    LogTruncatedError,
    OffsetOutOfRangeError,
)
from logstore.common.locks import Rank, make_lock
from logstore.common.shield import shielded
from logstore.common.types import Record
from logstore.format.header import parse_header
from logstore.log.core import LogCore, medium_error
from logstore.log.reading.following import Follower, LogSource
from logstore.log.reading.snapshot_reader import LogReader
from logstore.log.snapshot import LogView

CURSOR_SUFFIX = ".cursor"
_NAME = re.compile(r"[a-zA-Z0-9._-]{1,200}")
_UNKNOWN = "-"
_FIELDS = 4
_SIZE_MAX = 4096  # bytes


class OnOutOfRange(Enum):
    """The action of a cursor if the records at its position were deleted."""

    ERROR = "error"
    EARLIEST = "earliest"
    LATEST = "latest"

    @classmethod
    def of(cls, name: str) -> OnOutOfRange:
        try:
            return cls(name)
        except ValueError:
            choices = ", ".join(choice.value for choice in cls)
            raise CursorError(f"on_out_of_range is {name!r}, not one of {choices}") from None


class CursorMark(NamedTuple):
    """The identity of the batch before a position."""

    base_offset: int
    crc: int


class Commit(NamedTuple):
    """The content of the file of a cursor."""

    position: int
    topic_id: str
    mark: CursorMark | None

    def encode(self) -> bytes:
        mark = self.mark or (_UNKNOWN, _UNKNOWN)
        return frame(f"{self.position} {self.topic_id} {mark[0]} {mark[1]}\n", 1)


def parse_commit(path: str, data: bytes) -> Commit:
    """
    Raises:
        MalformedCheckpointError: the file is not a cursor.
    """
    entries = list(parse_entries(path, data, _FIELDS))
    if len(entries) != 1:
        raise MalformedCheckpointError(path, 0, "", f"{len(entries)} entries instead of one")
    _, (position, topic_id, base, crc) = entries[0]
    numbers = [parse_number(field, MAX_I64) for field in (position, base, crc)]
    known = base != _UNKNOWN.encode()
    if numbers[0] is None or (known and None in numbers):
        raise MalformedCheckpointError(path, 3, "", "not the position of a cursor")
    mark = CursorMark(numbers[1], numbers[2]) if known else None  # type: ignore[arg-type]
    return Commit(numbers[0], topic_id.decode("ascii", "replace"), mark)


def mark_before(log: LogView, position: int) -> CursorMark | None:
    """The batch of the record before ``position``; None if it is gone, or was compacted."""
    if not log.snapshot.log_start_offset < position <= log.snapshot.log_end_offset:
        return None
    segment = log[log.floor(position - 1)]
    span = segment.find(position - 1)
    if span is None or span.base_offset >= position or span.magic < 2:
        return None
    header = parse_header(segment.read_at(span.position, span.size))
    compacted = header.record_count <= header.last_offset_delta or header.delete_horizon is not None
    return None if compacted else CursorMark(header.base_offset, header.crc)


class Cursor:
    """The position of one named reader. For one thread at a time.

    ``commit`` makes the position durable. Records read after the last commit are read again after a
    crash. Two cursors of one name do not know each other: the last commit counts.
    """

    def __init__(
        self,
        core: LogCore,
        reader: LogReader,
        flush: Callable[[int], None],
        name: str,
        *,
        start: int | None,
        on_out_of_range: OnOutOfRange,
        committed: bool,
    ) -> None:
        if not _NAME.fullmatch(name):
            raise CursorError(f"cursor name {name!r}: use 1 to 200 of [a-zA-Z0-9._-]")
        self.name = name
        self.path = os.path.join(core.directory, name + CURSOR_SUFFIX)
        self._core = core
        self._lock = core.cursor_locks.setdefault(name, make_lock(Rank.CURSOR))
        self._reader = reader
        self._flush = flush
        self._on_out_of_range = on_out_of_range
        reader.current()
        stored = self._load()
        self.committed: int | None = None if stored is None else stored.position
        source = LogSource(core, reader, core.name, committed)
        self._follower = Follower(source, start if stored is None else stored.position, None)
        self._truncated: LogTruncatedError | None = None
        if stored is not None:
            self._check_topic(stored)
            self._truncated = self._find_truncation(stored)

    def __repr__(self) -> str:
        return f"Cursor({self.name!r} of {self._core.name}, position={self.position})"

    @property
    def position(self) -> int:
        """Offset of the next record."""
        return self._follower.position

    def seek(self, offset: int) -> None:
        """Continue at ``offset``, which is checked at the next read."""
        self._truncated = None
        self._follower.seek(offset)

    def __iter__(self) -> Cursor:
        return self

    def __next__(self) -> Record:
        """The next record. The iteration ends at the present log end."""
        records = self.poll(1)
        if not records:
            raise StopIteration
        return records[0]

    def poll(self, max_records: int | None = None, timeout: float | None = 0.0) -> list[Record]:
        """The next records, at most ``max_records`` (None: all of one read).

        If there is none, waits up to ``timeout`` seconds (None: forever), and may return an empty
        list.

        Raises:
            OffsetOutOfRangeError: the next records were deleted, and ``on_out_of_range`` is
            "error".
            LogTruncatedError: the log was cut below the position; ``seek`` continues.
            LogClosedError: the log was closed, perhaps during the wait.
        """
        if self._truncated is not None:
            raise self._truncated
        try:
            return self._follower.poll(max_records, timeout)
        except LogTruncatedError as error:
            self._truncated = error
            raise
        except OffsetOutOfRangeError as error:
            if self._on_out_of_range is OnOutOfRange.ERROR:
                raise
            earliest = self._on_out_of_range is OnOutOfRange.EARLIEST
            self.seek(error.start if earliest else self._reader.current().high_watermark)
            return self._follower.poll(max_records, timeout)

    @shielded
    def commit(self, position: int | None = None) -> None:
        """Make ``position`` durable (default: after the last returned record), and the records
        before it.

        Raises:
            LogTruncatedError: the log ends before the position.
            StorageFailedError: a write failed.
        """
        place = self.position if position is None else position
        snapshot = self._reader.current()
        if not 0 <= place <= snapshot.log_end_offset:
            raise LogTruncatedError(
                self._core.name, place, snapshot.log_start_offset, snapshot.log_end_offset
            )
        # A position must not survive the records before it.
        self._flush(place)
        mark = self._reader.run(lambda log: mark_before(log, place))
        data = Commit(place, self._life(), mark).encode()
        with self._lock, self._core.doing("commit a cursor"):
            store_file(self._core.storage, self.path, data)
        self.committed = place

    def _life(self) -> str:
        topic_id = self._core.topic_id
        return _UNKNOWN if topic_id is None else topic_id_to_text(topic_id)

    def _load(self) -> Commit | None:
        try:
            data = load_file(self._core.storage, self.path, _SIZE_MAX)
            return None if data is None else parse_commit(self.path, data)
        except CheckpointFailedError as error:
            raise medium_error(self.path, "read", error) from error
        except MalformedCheckpointError as error:
            raise CursorError(f"cursor {self.name!r}: {error}") from error

    def _check_topic(self, stored: Commit) -> None:
        life = self._life()
        if _UNKNOWN not in (stored.topic_id, life) and stored.topic_id != life:
            raise CursorError(
                f"cursor {self.name!r} is of topic id {stored.topic_id}, the log of {life}"
            )

    def _find_truncation(self, stored: Commit) -> LogTruncatedError | None:
        """The error if the records before the position are not those that were read."""
        snapshot = self._reader.current()
        start, end = snapshot.log_start_offset, snapshot.log_end_offset
        if stored.position > end:
            return LogTruncatedError(self._core.name, stored.position, start, end)
        mark = stored.mark
        if mark is None or stored.position <= start:
            return None
        if self._reader.run(lambda log: mark_before(log, stored.position)) in (None, mark):
            return None
        return LogTruncatedError(self._core.name, stored.position, start, mark.base_offset)


__all__ = ["CURSOR_SUFFIX", "Cursor", "OnOutOfRange"]
