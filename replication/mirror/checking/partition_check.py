"""One partition of a mirror beside the same of its source, byte for byte.

The bytes of the source come in chunks of a few megabytes. As long as the files go on with the same
bytes, nothing is decoded. Where they do not, that range is read again from both sides, for a mirror
may have cut or deleted it meanwhile, and `range_diff` finds the batch and the record.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass

from checkpoints.types import TopicPartition
from logstore.common.bounds import UNPACKED_MAX
from logstore.common.errors import CorruptBatchError
from logstore.common.types import Buffer, Record
from logstore.directory.windows import BatchTable
from logstore.format.reader import batch_records, parse_batch
from logstore.storage.memory import MemoryStorage
from logstore.verify.replicas import range_diff
from replication.mirror.checking.local_batches import LocalBatches, LocalExtent
from replication.mirror.checking.report import (
    DifferenceKind,
    PartitionComparison,
    UncomparedReason,
)
from replication.mirror.checking.source_batches import (
    OutOfRangeError,
    SourceBatches,
    SourceBounds,
    SourceChunk,
    SourceRefusalError,
)

_EXACT_MAX = 16
"""How many chunks with differences are read down to the record; others are reported as ranges."""
_LOOKS = 3
"""How often a range is read before a difference counts."""
_PAUSE_S = 0.2
"""Before a high watermark below the end of the files is asked for again."""
_AT_SOURCE = "/source"

OnBytes = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class CheckedPartition:
    """
    Attributes:
        topic_id: of both sides, as text; None of a source before Kafka 2.8.
        look: lists the files again; None if there are none any more.
        is_compacted: the source may lack records that the mirror has kept.
    """

    tp: TopicPartition
    topic_id: str | None
    local: LocalExtent
    look: Callable[[], LocalExtent | None]
    is_compacted: bool


class MirroredPartitionCheck:
    """Compares one partition; ``run`` once."""

    def __init__(
        self,
        checked: CheckedPartition,
        source: SourceBatches,
        bounds: SourceBounds,
        on_bytes: OnBytes,
    ) -> None:
        self._checked, self._source, self._bounds = checked, source, bounds
        self._on_bytes = on_bytes
        self._extent, self._end = checked.local, checked.local.end
        self._local = LocalBatches(checked.local)
        self._exact = 0
        self.found = PartitionComparison(checked.tp)

    def run(self) -> PartitionComparison:
        """
        Raises:
            OSError: the files cannot be read.
        """
        with closing(self._local):
            at = self._begin()
            self.found.start = self.found.end = at
            if at < self._end:
                self._seek(at)
            while at < self._end:
                at = self._step(at)
                self.found.end = min(at, self._end)
        return self.found

    def _begin(self) -> int:
        """Where what both sides have begins, and notes on what only one has."""
        mine, theirs, found = self._extent, self._settled(), self.found
        had = max(mine.end, min(mine.layout.high_watermark, theirs.end))
        if had > max(mine.end, theirs.start):
            message = "below the high watermark on file here, and in no file"
            found.add(DifferenceKind.MISSING, max(mine.end, theirs.start), had, message)
        if mine.start == mine.end:  # nothing is kept: it may begin anywhere
            found.leave_out(UncomparedReason.BEHIND, max(theirs.start, had), theirs.end)
            return mine.end
        found.leave_out(UncomparedReason.EXPIRED, mine.start, min(mine.end, theirs.start))
        if theirs.start < mine.start:
            message = "the log begins above that of the source"
            found.add(DifferenceKind.MISSING, theirs.start, min(mine.start, theirs.end), message)
        if mine.end > theirs.end:
            message = "above the high watermark of the source"
            found.add(DifferenceKind.EXTRA, max(mine.start, theirs.end), mine.end, message)
        found.leave_out(UncomparedReason.BEHIND, max(had, theirs.start), theirs.end)
        self._end = min(mine.end, theirs.end)
        return max(mine.start, theirs.start)

    def _settled(self) -> SourceBounds:
        """The bounds of the source. A leader that is new may not know yet what was committed."""
        for _ in range(_LOOKS):
            if self._extent.end <= self._bounds.end:
                break
            threading.Event().wait(_PAUSE_S)
            now = self._source.bounds([self._checked.tp])[self._checked.tp]
            if now.failure is None:
                self._bounds = now
        return self._bounds

    # -- a chunk -------------------------------------------------------------------------------

    def _step(self, at: int) -> int:
        """Compare the next chunk; returns where to go on."""
        chunk = self._chunk(at)
        if isinstance(chunk, int):
            return chunk
        if self._equals(chunk):
            self._local.skip(len(chunk.data))
            self._count(chunk)
            return chunk.next_offset
        return self._look_again(at, chunk)

    def _chunk(self, at: int) -> SourceChunk | int:
        """The next chunk, or where to go on without."""
        checked = self._checked
        try:
            chunk = self._source.chunk(checked.tp, checked.topic_id, at, self._end)
        except SourceRefusalError as error:
            return self._stop(at, str(error))
        except OutOfRangeError:
            return self._out_of_range(at)
        if chunk.problem and not chunk.batches:
            self.found.add(DifferenceKind.DIFFERS, at, self._end, chunk.problem)
            self._end = at
            return at
        return chunk

    def _out_of_range(self, at: int) -> int:
        """The source has deleted or lost these offsets since they were asked for."""
        now = self._source.bounds([self._checked.tp])[self._checked.tp]
        if now.failure is not None:
            return self._stop(at, str(now.failure))
        if now.start > at:
            self.found.leave_out(UncomparedReason.EXPIRED, at, min(now.start, self._end))
            self._seek(now.start)
            return now.start
        if now.end >= self._end:
            return self._stop(at, f"OFFSET_OUT_OF_RANGE, though it has {now.start}…{now.end}")
        lost, end = max(at, now.end), self._end
        self._list_again()  # has the mirror cut it, too?
        if lost < (mine := min(self._extent.end, end)):
            message = "the source has lost these offsets"
            self.found.add(DifferenceKind.EXTRA, lost, mine, message)
        self._end = lost
        return at

    def _stop(self, at: int, reason: str) -> int:
        self.found.leave_out(UncomparedReason.NOT_ASKED, at, self._end, reason)
        self._end = at
        return at

    def _seek(self, offset: int) -> None:
        try:
            self._local.seek(offset)
        except FileNotFoundError:
            self._list_again()
            self._local.seek(offset)

    def _equals(self, chunk: SourceChunk) -> bool:
        """Whether the files go on with the same bytes."""
        try:
            # A view would be compared byte by byte, at a twentieth of the speed.
            return bool(chunk.batches) and self._local.read(len(chunk.data)) == bytes(chunk.data)
        except FileNotFoundError:  # deleted since: the next look says so
            return False

    def _count(self, chunk: SourceChunk) -> None:
        self.found.batches += chunk.batches
        self.found.bytes += len(chunk.data)
        self._on_bytes(len(chunk.data))

    # -- what is not the same ------------------------------------------------------------------

    def _look_again(self, at: int, chunk: SourceChunk) -> int:
        """Read the range again from both sides before anything is said of it."""
        for _ in range(_LOOKS - 1):
            self._list_again()
            start = min(self._extent.start, self._end)
            if at < start:
                self.found.leave_out(UncomparedReason.EXPIRED, at, start)
                self._seek(start)
                return start
            if self._extent.end < self._end:  # cut meanwhile; what is missing comes again
                cut = max(at, self._extent.end)
                self.found.leave_out(UncomparedReason.BEHIND, cut, self._end)
                self._end = cut
                if cut == at:
                    return at
            again = self._chunk(at)
            if isinstance(again, int):
                return again
            chunk = again
            self._seek(at)
            if self._equals(chunk):
                break
        else:
            self._differing(at, chunk)
        self._count(chunk)
        self._seek(chunk.next_offset)
        return chunk.next_offset

    def _list_again(self) -> None:
        now = self._checked.look()
        if now is not None:
            self._local.close()
            self._extent, self._local = now, LocalBatches(now)

    def _differing(self, at: int, chunk: SourceChunk) -> None:
        end = chunk.next_offset
        if self._checked.is_compacted and self._is_compacted_since(at, chunk):
            self.found.leave_out(UncomparedReason.COMPACTED, at, end)
            return
        self._exact += 1
        if self._exact > _EXACT_MAX:
            message = "something in this range; run it again on this partition alone"
            self.found.add(DifferenceKind.DIFFERS, at, end, message)
            return
        theirs = self._at_source(chunk.data)
        mine = self._local.range_starts(at, end)
        bounds = range_diff.DiffBounds(self._first_offset(at, chunk), end, end)
        there = [theirs] if len(chunk.data) else []
        differences = range_diff.narrow(mine, there, bounds, UNPACKED_MAX)
        for each in differences:
            self._add(each)
        if not differences and len(chunk.data):
            self._header(at, chunk)

    def _first_offset(self, at: int, chunk: SourceChunk) -> int:
        """A source whose log begins inside a batch sends all of it; the mirror may have it."""
        if not chunk.batches:
            return at
        return min(at, BatchTable(chunk.data).cells("base_offset")[0])

    @staticmethod
    def _at_source(data: Buffer) -> range_diff.RangeStart:
        storage = MemoryStorage()
        with closing(storage.open(_AT_SOURCE, create=True)) as file:
            file.write_at(0, data)
        return range_diff.RangeStart(storage, _AT_SOURCE, 0)

    def _add(self, each: range_diff.Difference) -> None:
        mine, theirs = each.mine, each.theirs
        if mine is not None and theirs is not None:
            kind = DifferenceKind.DIFFERS
            message = f"here {mine.text}; at the source {theirs.text}"
        elif mine is not None:
            kind, message = DifferenceKind.EXTRA, f"only here: {mine.text}"
        else:
            kind = DifferenceKind.MISSING
            text = "" if theirs is None else f": {theirs.text}"
            message = f"not here, or damaged{text}"
        note = f"; {each.note}" if each.note else ""
        self.found.add(kind, each.offset, each.end_offset, message + note)

    def _header(self, at: int, chunk: SourceChunk) -> None:
        """The content is the same, so it is what no checksum covers: the epoch of a leader."""
        theirs = BatchTable(chunk.data)
        rows = zip(
            *(theirs.cells(name) for name in ("base_offset", "last_offset", "leader_epoch")),
            strict=True,
        )
        for (base, last, epoch), data in zip(
            rows, self._local.batches(at, chunk.next_offset), strict=False
        ):
            mine = BatchTable(data).cells("leader_epoch")[0]
            if mine != epoch:
                message = f"leader epoch {mine} here, {epoch} at the source"
                self.found.add(DifferenceKind.DIFFERS, base, last + 1, message)
                return
        message = "the bytes differ, their content does not"
        self.found.add(DifferenceKind.DIFFERS, at, chunk.next_offset, message)

    # -- compaction ----------------------------------------------------------------------------

    def _is_compacted_since(self, at: int, chunk: SourceChunk) -> bool:
        """Whether all records that the source still has are in the files, as they are there."""
        try:
            left = {each.offset: each for each in _records(_split(chunk.data))}
            mine = _records(self._local.batches(at, chunk.next_offset))
            for record in mine:
                if record.offset in left and left[record.offset] == record:
                    del left[record.offset]
        except (CorruptBatchError, OSError):
            return False
        return not left


def _split(data: Buffer) -> Iterable[Buffer]:
    if not len(data):
        return
    table, view = BatchTable(data), memoryview(data)
    for row in range(table.rows):
        yield view[table.span(row, row + 1)]


def _records(batches: Iterable[Buffer]) -> Iterable[Record]:
    """
    Raises:
        CorruptBatchError: a batch is damaged.
    """
    for data in batches:
        batch = parse_batch(data)
        if batch is None:
            raise CorruptBatchError("", 0, "no whole batch")
        yield from batch_records(data, batch)
