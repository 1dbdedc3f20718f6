"""Read a range again in which two replicas differ, and find the batch and the record.

A range is a few megabytes, and few ranges differ. So its batches may become Python objects here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import mmh3

from logstore.common.bounds import WHOLE_BATCH_MAX
from logstore.common.errors import CorruptBatchError
from logstore.common.types import Record
from logstore.format.header import CRC_FROM, MAGIC, PREFIX_SIZE
from logstore.format.reader import batch_records, parse_batch
from logstore.kernels import SCAN_INCOMPLETE, SCAN_TAIL
from logstore.storage.base import File, Storage
from logstore.verify.common.batch_rules import Row
from logstore.verify.common.header_table import HeaderTable
from logstore.verify.common.report import UNKNOWN
from logstore.verify.segment.diagnosis import diagnose
from logstore.verify.segment.segment_check import open_log

_WINDOW = 4 << 20


class DiffBounds(NamedTuple):
    """The batches to compare: inside offsets ``[start, end)``, and beginning below ``bound``."""

    start: int
    end: int
    bound: int


class RangeStart(NamedTuple):
    """The place in one segment where the batches of a range begin. A range may lie in several."""

    storage: Storage
    path: str
    position: int


class DiffRange(NamedTuple):
    """The content of one replica at an offset, up to ``last_offset``, and how to show it."""

    path: str
    position: int
    last_offset: int
    epoch: int
    text: str


@dataclass(frozen=True, slots=True)
class Difference:
    """Offsets ``[offset, end_offset)`` differ.

    ``mine`` and ``theirs`` are what the replica and its reference have at ``offset``, None for
    nothing. ``from_start`` and ``to_end`` say that the range that was read has no equal batch
    before, or after, the difference.
    """

    offset: int
    end_offset: int
    mine: DiffRange | None
    theirs: DiffRange | None
    note: str = ""
    from_start: bool = False
    to_end: bool = False


class _DiffBatch(NamedTuple):
    """A batch that was read: its header, the hash of what is under its checksum, and where from."""

    row: Row
    content: int
    source: RangeStart

    def same(self, other: _DiffBatch) -> bool:
        """Whether offsets and content are equal, wherever the batches lie."""
        mine, theirs = (
            (batch.row.base_offset, batch.row.last_offset, batch.content) for batch in (self, other)
        )
        return mine == theirs


class _UnmatchedRange(NamedTuple):
    """The batches of each side between two batches that both sides have, or an end of the range."""

    mine: list[_DiffBatch]
    theirs: list[_DiffBatch]
    from_start: bool
    to_end: bool = False


def narrow(
    mine: Sequence[RangeStart], theirs: Sequence[RangeStart], bounds: DiffBounds, unpacked_max: int
) -> list[Difference]:
    """Find where two replicas differ inside a range, in order.

    Takes memory for the headers of one range, and for the records of two batches at a time, each of
    at most ``unpacked_max`` bytes when unpacked.

    Raises:
        OSError: the medium refused.
    """
    unmatched_ranges = _unmatched_ranges(list(_read(mine, bounds)), list(_read(theirs, bounds)))
    return [_difference(unmatched, unpacked_max) for unmatched in unmatched_ranges]


def _difference(unmatched: _UnmatchedRange, unpacked_max: int) -> Difference:
    batches = [*unmatched.mine, *unmatched.theirs]
    offset = min(batch.row.base_offset for batch in batches)
    end_offset = max(batch.row.last_offset for batch in batches) + 1
    one, other = (
        side[0] if side and side[0].row.base_offset == offset else None
        for side in (unmatched.mine, unmatched.theirs)
    )
    note = ""
    if one and other:
        offset, note = _first_record(one, other, unpacked_max)
    mine, theirs = (_shown(batch) if batch else None for batch in (one, other))
    return Difference(offset, end_offset, mine, theirs, note, *unmatched[2:])


def _unmatched_ranges(
    mine: list[_DiffBatch], theirs: list[_DiffBatch]
) -> Iterator[_UnmatchedRange]:
    at, there = 0, 0
    unmatched = _UnmatchedRange([], [], True)
    while at < len(mine) or there < len(theirs):
        one = mine[at] if at < len(mine) else None
        other = theirs[there] if there < len(theirs) else None
        if one and other and one.same(other):
            if unmatched.mine or unmatched.theirs:
                yield unmatched
            unmatched = _UnmatchedRange([], [], False)
            at, there = at + 1, there + 1
            continue
        # No later batch of the other side can equal the one that ends first.
        if one and (not other or one.row.last_offset <= other.row.last_offset):
            unmatched.mine.append(one)
            at += 1
        if other and (not one or other.row.last_offset <= one.row.last_offset):
            unmatched.theirs.append(other)
            there += 1
    if unmatched.mine or unmatched.theirs:
        yield unmatched._replace(to_end=True)


# -- reading -----------------------------------------------------------------------------------


def _read(sources: Sequence[RangeStart], bounds: DiffBounds) -> Iterator[_DiffBatch]:
    for source in sources:
        file = open_log(source.storage, source.path)
        try:
            for batch in _batches(file, source):
                if batch.row.base_offset >= bounds.bound:
                    break
                if batch.row.base_offset >= bounds.start and batch.row.last_offset < bounds.end:
                    yield batch
        finally:
            file.close()


def _batches(file: File, source: RangeStart) -> Iterator[_DiffBatch]:
    """The readable batches from ``source`` on.

    Unreadable ones are skipped; they are reported already. What follows one is searched as the
    check of the segment does it, so that both see the same batches.
    """
    expected = UNKNOWN
    size, position, window = file.size(), source.position, _WINDOW
    table = HeaderTable()
    while position < size:
        with file.view(position, min(window, size - position)) as view:
            done, status = table.fill(view, 0, position)
            for row in table.rows():
                covered = view[row.position - position + CRC_FROM : row.end - position]
                yield _DiffBatch(row, mmh3.mmh3_x64_128_uintdigest(covered), source)
                expected = row.last_offset + 1
        position += done
        if done:
            window = _WINDOW
            continue
        framed = PREFIX_SIZE + int.from_bytes(file.read_at(position + 8, 4), "big", signed=True)
        if status in (SCAN_TAIL, SCAN_INCOMPLETE) and window < framed <= WHOLE_BATCH_MAX:
            window = framed
            continue
        position = diagnose(file, size, position, status, expected).resume
        if position < 0:
            return


def _bytes(batch: _DiffBatch, size: int) -> bytes:
    file = open_log(batch.source.storage, batch.source.path)
    try:
        return file.read_at(batch.row.position, min(size, batch.row.size))
    finally:
        file.close()


def _shown(batch: _DiffBatch) -> DiffRange:
    head = _bytes(batch, CRC_FROM)
    crc = int.from_bytes(head[17:21] if head[16] == MAGIC else head[12:16], "big")
    row = batch.row
    text = f"epoch {row.leader_epoch}, offsets {row.base_offset}…{row.last_offset}, "
    text += f"{row.record_count} records in {row.size} bytes, checksum {crc:#010x}"
    return DiffRange(batch.source.path, row.position, row.last_offset, row.leader_epoch, text)


def _first_record(one: _DiffBatch, other: _DiffBatch, unpacked_max: int) -> tuple[int, str]:
    """The first offset at which two batches with the same base offset differ, and how."""
    try:
        mine, theirs = (_records(batch, unpacked_max) for batch in (one, other))
    except CorruptBatchError as failure:
        return one.row.base_offset, f"not decoded: {failure.reason}"
    for record, counterpart in zip(mine, theirs, strict=False):
        if record != counterpart:
            fields = zip(Record._fields, record, counterpart, strict=True)
            differing = ", ".join(name for name, a, b in fields if a != b)
            return min(record.offset, counterpart.offset), f"records differ in {differing}"
    if len(mine) != len(theirs):
        longer = max(mine, theirs, key=len)
        return longer[min(len(mine), len(theirs))].offset, "one has more records"
    return one.row.base_offset, "the records are the same, their batches are not"


def _records(batch: _DiffBatch, unpacked_max: int) -> list[Record]:
    data = _bytes(batch, batch.row.size)
    parsed = parse_batch(data)
    if parsed is None:
        raise CorruptBatchError(batch.source.path, batch.row.position, "cut during the check")
    return batch_records(data, parsed, check_crc=False, decompressed_limit=unpacked_max)
