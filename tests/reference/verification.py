"""Plain twin of ``_verify``: what a verification asks of a whole table of batches at once.

``columns`` is always the table of ``scan_batches``, filled from ``data`` by a scan that stops at
bad batches; ``rows`` of it are in use. The answers say only where a closer look is worth while:
which rules there are, and what breaks them, is told by ``logstore.verify``.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import mmh3

from logstore.common.errors import CorruptBatchError
from logstore.common.types import Buffer
from logstore.kernels._constants import HEADER_SIZE, SCAN_COLUMNS, BatchSurvey
from tests.reference.records import decode_records

_CODEC_MASK, _ZSTD = 0x07, 4
_LOG_APPEND_TIME, _TRANSACTIONAL, _CONTROL, _DELETE_HORIZON = 0x08, 0x10, 0x20, 0x40
_KNOWN_BITS = 0x7F
_INT32_MAX = 2**31 - 1
_MASK = 2**128 - 1
_OFFSET_ENTRY, _TIME_ENTRY = struct.Struct(">ii"), struct.Struct(">qi")


class _Row(NamedTuple):
    """The columns of ``SCAN_COLUMNS`` by name."""

    position: int
    size: int
    base_offset: int
    last_offset: int
    base_timestamp: int
    max_timestamp: int
    leader_epoch: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    attributes: int
    record_count: int
    magic: int
    crc: int
    valid: int

    @property
    def span(self) -> int:
        return self.last_offset - self.base_offset + 1

    @property
    def is_hole(self) -> bool:
        return self.record_count != self.span

    @property
    def is_odd(self) -> bool:
        """Whether ``batch_rules.check_header`` has something to say."""
        codec = self.attributes & _CODEC_MASK
        if self.magic < 2:
            return codec >= _ZSTD
        control = bool(self.attributes & _CONTROL)
        has_producer = self.producer_id >= 0
        return (
            codec > _ZSTD
            or bool(self.attributes & ~_KNOWN_BITS)
            or self.record_count > self.span
            or (not self.record_count and self.size > HEADER_SIZE)
            or (control and self.base_sequence != -1)
            or (has_producer and self.producer_epoch < 0)
            or (has_producer and self.base_sequence < 0 and not control)
            or (has_producer and control and not self.attributes & _TRANSACTIONAL)
            or (not has_producer and bool(self.attributes & _TRANSACTIONAL))
            or (not has_producer and self.producer_id != -1)
            or (not has_producer and self.producer_epoch not in (-1, 0))
            or (not has_producer and self.base_sequence not in (-1, 0))
            or (
                self.max_timestamp < self.base_timestamp
                and not self.attributes & (_LOG_APPEND_TIME | _DELETE_HORIZON)
                and not self.is_hole
            )
        )


def _rows(columns: Buffer, rows: int) -> list[_Row]:
    cells = memoryview(columns).cast("B").cast("q")
    capacity = len(cells) // len(SCAN_COLUMNS)
    if not 0 <= rows <= capacity:
        raise ValueError(f"{rows} rows of a table with room for {capacity}")
    return [_Row(*cells[row : capacity * len(SCAN_COLUMNS) : capacity]) for row in range(rows)]


def survey_batches(
    columns: Buffer, rows: int, expected: int, segment_base: int, next_base: int
) -> BatchSurvey:
    table = _rows(columns, rows)
    if not table:
        raise ValueError("a table without rows")
    last = table[-1].last_offset
    ordered = (
        table[0].base_offset >= segment_base
        and last - segment_base <= _INT32_MAX
        and (next_base < 0 or last < next_base)
    )
    gaps, stamps = [], []
    for number, row in enumerate(table):
        if 0 <= expected != row.base_offset:
            if row.base_offset < expected:
                ordered = False
            elif row.magic == 2 or row.record_count >= 0:  # else its first offset is unknown
                gaps.append(number)
        expected = row.last_offset + 1
        plain_times = not row.attributes & (_LOG_APPEND_TIME | _DELETE_HORIZON)
        first = row.base_timestamp if row.magic == 2 and plain_times else row.max_timestamp
        stamps.append(min(first, row.max_timestamp))
    modern = [row for row in table if row.magic == 2]
    return BatchSurvey(
        records=sum(max(row.record_count, 0) for row in table),
        holes=any(row.is_hole for row in modern),
        horizons=any(row.attributes & _DELETE_HORIZON for row in modern),
        odd=[number for number, row in enumerate(table) if row.is_odd],
        gaps=gaps if ordered else None,
        epochs=[
            number
            for number, row in enumerate(table)
            if not number or row.leader_epoch != table[number - 1].leader_epoch
        ],
        controls=[
            number
            for number, row in enumerate(table)
            if row.magic == 2 and row.attributes & _CONTROL
        ],
        producers=any(row.producer_id >= 0 for row in modern),
        transactional=any(row.attributes & _TRANSACTIONAL for row in modern),
        min_timestamp=min((stamp for stamp in stamps if stamp >= 0), default=-1),
        max_timestamp=max(row.max_timestamp for row in table),
    )


def ascending_offset_entries(data: Buffer, log_size: int) -> int:
    before: tuple[int, int] | None = None
    count = 0
    for offset, position in _entries(data, _OFFSET_ENTRY):
        if not 0 <= position < log_size:
            break
        if before is not None and not (before[0] < offset and before[1] < position):
            break
        before, count = (offset, position), count + 1
    return count


def ascending_time_entries(data: Buffer) -> int:
    before: tuple[int, int] | None = None
    count = 0
    for timestamp, offset in _entries(data, _TIME_ENTRY):
        if before is not None and not (before[0] < timestamp and before[1] <= offset):
            break
        before, count = (timestamp, offset), count + 1
    return count


def match_offset_entries(
    data: Buffer,
    first: int,
    end: int,
    columns: Buffer,
    rows: int,
    start: int,
    segment_base: int,
    largest: int,
    covered: int,
) -> tuple[int, int, list[tuple[int, int]]]:
    table = _rows(columns, rows)
    starts = {row.position + start: number for number, row in enumerate(table)}
    several: list[tuple[int, int]] = []
    for number, (relative, position) in _some(data, _OFFSET_ENTRY, first, end):
        row = starts.get(position, rows)
        ends = (n for n in range(row, rows) if table[n].last_offset == segment_base + relative)
        at = next(ends, None)
        if at is None or position <= covered or not position:
            return number, covered, several
        if at > row:
            several.append((number, max([largest, *(r.max_timestamp for r in table[: at + 1])])))
        covered = table[at].position + start
    return end, covered, several


def match_time_entries(
    data: Buffer,
    first: int,
    end: int,
    columns: Buffer,
    rows: int,
    segment_base: int,
    trusted: bool,
    done: int,
    largest: int,
) -> tuple[int, int, int]:
    table = _rows(columns, rows)
    if done < 0:
        raise ValueError(f"{done} rows done")
    for number, (timestamp, relative) in _some(data, _TIME_ENTRY, first, end):
        offset = segment_base + relative
        at = next((n for n, row in enumerate(table) if row.last_offset >= offset), rows)
        if at == rows:
            return number, done, largest
        before = max([largest, *(row.max_timestamp for row in table[done:at])])
        reached = before < timestamp == table[at].max_timestamp
        if trusted and not (reached and table[at].last_offset == offset):
            return number, done, largest
        done, largest = (
            max(done, at + 1),
            max([before, *(r.max_timestamp for r in table[done : at + 1])]),
        )
    return end, done, largest


class _Due(NamedTuple):
    """``sequence`` is None for any; ``only_marker``: no batch was seen yet."""

    epoch: int
    sequence: int | None
    last_offset: int
    only_marker: bool


class SequenceWatch:
    def __init__(self, most: int) -> None:
        if most < 1:
            raise ValueError(f"{most} producers")
        self._most = most
        self._due: dict[int, _Due] = {}

    @property
    def full(self) -> bool:
        return len(self._due) >= self._most

    def take(self, columns: Buffer, rows: int) -> tuple[list[int], list[tuple[int, int, int]]]:
        firsts: list[int] = []
        jumps: list[tuple[int, int, int]] = []
        for number, row in enumerate(_rows(columns, rows)):
            control = bool(row.attributes & _CONTROL)
            if row.magic != 2 or row.producer_id < 0 or (control and not row.record_count):
                continue
            known = self._due.get(row.producer_id)
            if known is None and self.full:
                continue
            if known is not None and 0 <= row.producer_epoch < known.epoch:
                jumps.append((number, -1, known.last_offset))
                if control:
                    continue
                known = _Due(-1, None, 0, False)
            elif control:
                if known is None:
                    known = _Due(row.producer_epoch, None, row.last_offset, True)
                elif known.epoch != row.producer_epoch:
                    known = _Due(row.producer_epoch, 0, row.last_offset, False)
                self._due[row.producer_id] = known
                continue
            same = known is not None and known.epoch == row.producer_epoch
            if known is None or (known.only_marker and same):
                firsts.append(number)
            elif known.sequence is not None or known.only_marker:
                due = known.sequence or 0 if same else 0
                if row.base_sequence >= 0 and row.base_sequence != due:
                    jumps.append((number, due, known.last_offset))
            following = (row.base_sequence + row.span) & _INT32_MAX
            self._due[row.producer_id] = _Due(
                row.producer_epoch,
                None if row.base_sequence < 0 else following,
                row.last_offset,
                False,
            )
        return firsts, jumps


def irregular_batches(data: Buffer, columns: Buffer, rows: int) -> list[int]:
    view = memoryview(data).cast("B")
    found = []
    for number, row in enumerate(_rows(columns, rows)):
        section = view[row.position + HEADER_SIZE : row.position + row.size]
        plain = row.magic == 2 and not row.attributes & (_CODEC_MASK | _CONTROL)
        whole = row.position >= 0 and len(section) == row.size - HEADER_SIZE
        if not (plain and whole and fits_in_section(section, columns, number)):
            found.append(number)
    return found


def fits_in_section(payload: Buffer, columns: Buffer, row: int) -> bool:
    header = _rows(columns, row + 1)[row]
    log_append = bool(header.attributes & _LOG_APPEND_TIME)
    try:
        records = decode_records(
            payload,
            0,
            header.base_timestamp,
            header.record_count,
            header.max_timestamp if log_append else None,
            -(2**63),
        )
    except CorruptBatchError:
        return False
    if not records:
        return True
    times = [record.timestamp for record in records]
    return (
        records[-1].offset < header.span and max(times) == header.max_timestamp and min(times) >= 0
    )


def fold_batches(
    data: Buffer,
    columns: Buffer,
    offsets: Sequence[int],
    first: int,
    end: int,
    factor: int,
    offset_factor: int,
    heads: bool = False,
) -> tuple[int, int]:
    view = memoryview(data).cast("B")
    value, scale = 0, 1
    if not 0 <= first <= end <= len(offsets):
        raise ValueError(f"batches {first}…{end} of {len(offsets)}")
    for row, offset in zip(_rows(columns, end)[first:], offsets[first:], strict=False):
        start = row.position + (21 if row.magic == 2 else 16)
        stop = row.position + row.size
        if not 0 <= row.position <= start <= len(view) or stop > len(view):
            raise ValueError(f"a batch at {row.position} is outside 0…{len(view)}")
        if heads:
            start, stop = start - 4, min(stop, row.position + HEADER_SIZE)
        hashed = mmh3.mmh3_x64_128_uintdigest(view[start : max(start, stop)])
        value = (value * factor + hashed + offset * offset_factor) & _MASK
        scale = scale * factor & _MASK
    return value, scale


def _entries(data: Buffer, layout: struct.Struct) -> list[tuple[int, int]]:
    view = memoryview(data).cast("B")
    return list(layout.iter_unpack(view[: len(view) // layout.size * layout.size]))


def _some(
    data: Buffer, layout: struct.Struct, first: int, end: int
) -> Sequence[tuple[int, tuple[int, int]]]:
    entries = _entries(data, layout)
    if not 0 <= first <= end <= len(entries):
        raise ValueError(f"entries {first}…{end} of {len(entries)}")
    return list(enumerate(entries))[first:end]
