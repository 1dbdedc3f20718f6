"""A range in which two replicas differ, read again: from a digest to the batch and the record.

A range is a few megabytes, and few ranges differ: that is what makes it affordable to look at the
batches of one as objects.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import mmh3

from logstore.common.errors import CorruptBatchError
from logstore.common.types import Record
from logstore.format.header import CRC_FROM, MAGIC, PREFIX_SIZE
from logstore.format.reader import batch_records, parse_batch
from logstore.kernels import SCAN_COLUMNS, SCAN_INCOMPLETE, SCAN_TAIL, scan_batches
from logstore.segments.batch_search import WHOLE_BATCH_MAX
from logstore.storage.base import File, Storage
from logstore.verify.segment.diagnosis import diagnose
from logstore.verify.segment.segment_check import open_log

_WINDOW = 4 << 20
_ROWS = 4096
_COLUMNS = [
    SCAN_COLUMNS.index(name)
    for name in ("base_offset", "last_offset", "position", "size", "leader_epoch", "record_count")
]


class Extent(NamedTuple):
    """Which batches are meant: inside offsets ``[start, end)``, and beginning below ``bound``."""

    start: int
    end: int
    bound: int


class Piece(NamedTuple):
    """Where the batches of a range begin in one segment; a range may lie in several."""

    storage: Storage
    path: str
    position: int


class Place(NamedTuple):
    """What one replica has at offsets ``[first_offset, last_offset]``, and how to show it."""

    path: str
    position: int
    first_offset: int
    last_offset: int
    epoch: int
    text: str


@dataclass(frozen=True, slots=True)
class Difference:
    """Offsets ``[offset, end_offset)`` differ. ``mine`` and ``theirs`` are what the replica and its
    reference have at ``offset``, None for nothing. ``from_start``, ``to_end``: the range that was
    read has no equal batch before, or behind.
    """

    offset: int
    end_offset: int
    mine: Place | None
    theirs: Place | None
    note: str = ""
    from_start: bool = False
    to_end: bool = False


class _Batch(NamedTuple):
    base_offset: int
    last_offset: int
    position: int
    size: int
    epoch: int
    records: int
    content: int
    piece: Piece

    def same(self, other: _Batch) -> bool:
        return self[:2] == other[:2] and self.content == other.content


class _Stretch(NamedTuple):
    """Batches of each side between two that both have, or the start or end of the range."""

    mine: list[_Batch]
    theirs: list[_Batch]
    from_start: bool
    to_end: bool = False


def narrow(
    mine: Sequence[Piece], theirs: Sequence[Piece], extent: Extent, unpacked_max: int
) -> list[Difference]:
    """The stretches of a range in which two replicas differ, in order.

    Memory: the headers of one range, and for each stretch the records of two batches, each of
    which may unpack to ``unpacked_max`` bytes.

    Raises:
        OSError: the medium refused.
    """
    stretches = _stretches(list(_read(mine, extent)), list(_read(theirs, extent)))
    return [_difference(stretch, unpacked_max) for stretch in stretches]


def _difference(stretch: _Stretch, unpacked_max: int) -> Difference:
    batches = [*stretch.mine, *stretch.theirs]
    offset = min(batch.base_offset for batch in batches)
    end_offset = max(batch.last_offset for batch in batches) + 1
    one, other = (
        side[0] if side and side[0].base_offset == offset else None
        for side in (stretch.mine, stretch.theirs)
    )
    note = ""
    if one and other:
        offset, note = _first_record(one, other, unpacked_max)
    mine, theirs = (_place(batch) if batch else None for batch in (one, other))
    return Difference(offset, end_offset, mine, theirs, note, *stretch[2:])


def _stretches(mine: list[_Batch], theirs: list[_Batch]) -> Iterator[_Stretch]:
    at, there = 0, 0
    stretch = _Stretch([], [], True)
    while at < len(mine) or there < len(theirs):
        one = mine[at] if at < len(mine) else None
        other = theirs[there] if there < len(theirs) else None
        if one and other and one.same(other):
            if stretch.mine or stretch.theirs:
                yield stretch
            stretch = _Stretch([], [], False)
            at, there = at + 1, there + 1
            continue
        # The one that ends first cannot have its like any more.
        if one and (not other or one.last_offset <= other.last_offset):
            stretch.mine.append(one)
            at += 1
        if other and (not one or other.last_offset <= one.last_offset):
            stretch.theirs.append(other)
            there += 1
    if stretch.mine or stretch.theirs:
        yield stretch._replace(to_end=True)


# -- reading -----------------------------------------------------------------------------------


def _read(pieces: Sequence[Piece], extent: Extent) -> Iterator[_Batch]:
    for piece in pieces:
        file = open_log(piece.storage, piece.path)
        try:
            for batch in _batches(file, piece):
                if batch.base_offset >= extent.bound:
                    break
                if batch.base_offset >= extent.start and batch.last_offset < extent.end:
                    yield batch
        finally:
            file.close()


def _batches(file: File, piece: Piece) -> Iterator[_Batch]:
    """The readable batches from ``piece`` on; one that is not is left out, and was told of."""
    size, position, window = file.size(), piece.position, _WINDOW
    columns = array("q", bytes(8 * len(SCAN_COLUMNS) * _ROWS))
    while position < size:
        with file.view(position, min(window, size - position)) as view:
            rows, done, status = scan_batches(view, 0, columns)
            table = [columns[c * _ROWS : c * _ROWS + rows].tolist() for c in _COLUMNS]
            for base, last, start, length, epoch, records in zip(*table, strict=True):
                content = mmh3.mmh3_x64_128_uintdigest(view[start + CRC_FROM : start + length])
                yield _Batch(base, last, position + start, length, epoch, records, content, piece)
        position += done
        if done:
            window = _WINDOW
            continue
        framed = PREFIX_SIZE + int.from_bytes(file.read_at(position + 8, 4), "big", signed=True)
        if status in (SCAN_TAIL, SCAN_INCOMPLETE) and window < framed <= WHOLE_BATCH_MAX:
            window = framed
            continue
        position = diagnose(file, size, position, status, -1).resume
        if position < 0:
            return


def _bytes(batch: _Batch, size: int) -> bytes:
    file = open_log(batch.piece.storage, batch.piece.path)
    try:
        return file.read_at(batch.position, min(size, batch.size))
    finally:
        file.close()


def _place(batch: _Batch) -> Place:
    head = _bytes(batch, CRC_FROM)
    crc = int.from_bytes(head[17:21] if head[16] == MAGIC else head[12:16], "big")
    text = f"epoch {batch.epoch}, offsets {batch.base_offset}…{batch.last_offset}, "
    text += f"{batch.records} records in {batch.size} bytes, checksum {crc:#010x}"
    return Place(
        batch.piece.path, batch.position, batch.base_offset, batch.last_offset, batch.epoch, text
    )


def _first_record(one: _Batch, other: _Batch, unpacked_max: int) -> tuple[int, str]:
    """The first offset at which two batches with one base offset differ, and in what."""
    try:
        mine, theirs = (_records(batch, unpacked_max) for batch in (one, other))
    except CorruptBatchError as failure:
        return one.base_offset, f"not decoded: {failure.reason}"
    for record, counterpart in zip(mine, theirs, strict=False):
        if record != counterpart:
            fields = zip(Record._fields, record, counterpart, strict=True)
            differing = ", ".join(name for name, a, b in fields if a != b)
            return min(record.offset, counterpart.offset), f"records differ in {differing}"
    if len(mine) != len(theirs):
        longer = max(mine, theirs, key=len)
        return longer[min(len(mine), len(theirs))].offset, "one has more records"
    return one.base_offset, "the records are the same, their batches are not"


def _records(batch: _Batch, unpacked_max: int) -> list[Record]:
    data = _bytes(batch, batch.size)
    parsed = parse_batch(data)
    if parsed is None:
        raise CorruptBatchError(batch.piece.path, batch.position, "cut meanwhile")
    return batch_records(data, parsed, check_crc=False, decompressed_limit=unpacked_max)
