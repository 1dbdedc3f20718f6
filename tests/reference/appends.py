"""Plain twin of ``_append``: the definition of what an append does to a segment."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from logstore.common.errors import CorruptBatchError
from logstore.common.types import Buffer
from tests.reference.records import analyse_batches

_PREFIX = struct.Struct(">qii")
_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")
_OFFSET_ENTRY = struct.Struct(">ii")
_TIME_ENTRY = struct.Struct(">qi")
MAX_INT = 2**31 - 1


@dataclass(frozen=True, slots=True)
class AppendInfo:
    first_offset: int
    last_offset: int
    max_timestamp: int
    log_append_time: int
    log_start_offset: int
    record_count: int
    size: int
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class LogSnapshot:
    sealed: tuple[Any, ...]
    active: Any
    size: int
    offset_entries: int
    time_entries: int
    max_timestamp: int
    offset_of_max_timestamp: int
    log_start_offset: int
    log_end_offset: int
    high_watermark: int
    last_stable_offset: int
    version: int


class SegmentState:
    __slots__ = (
        "_file",
        "_offset_map",
        "_time_map",
        "base_offset",
        "bytes_since_index_entry",
        "created_ms",
        "cut_pending",
        "index_interval_bytes",
        "last_time_entry",
        "max_segment_ms",
        "max_timestamp",
        "next_offset",
        "offset_entries",
        "offset_entries_max",
        "offset_of_max_timestamp",
        "rolling_timestamp",
        "segment_bytes",
        "size",
        "time_entries",
        "time_entries_max",
    )

    def __init__(self, base_offset: int) -> None:
        self.base_offset = self.next_offset = base_offset
        self.max_timestamp = self.offset_of_max_timestamp = -1
        self.rolling_timestamp = self.last_time_entry = -1
        self.size = self.created_ms = self.index_interval_bytes = 0
        self.bytes_since_index_entry = self.offset_entries = self.time_entries = 0
        self.segment_bytes = self.max_segment_ms = 0
        self.offset_entries_max = self.time_entries_max = 0
        self.cut_pending = False
        self._file: Any = None
        self._offset_map: Any = None
        self._time_map: Any = None

    @property
    def attached(self) -> bool:
        return self._file is not None

    def attach(self, file: Any, offset_map: Any, time_map: Any) -> None:
        self._file, self._offset_map, self._time_map = file, offset_map, time_map
        self.offset_entries_max = len(offset_map.buffer) // 8
        self.time_entries_max = len(time_map.buffer) // 12

    def detach(self) -> None:
        self._file = self._offset_map = self._time_map = None

    def snapshot(
        self,
        sealed: tuple[Any, ...],
        active: Any,
        log_start_offset: int,
        high_watermark: int,
        first_unstable_offset: int,
        version: int,
    ) -> LogSnapshot:
        committed = self.next_offset if high_watermark < 0 else high_watermark
        stable = committed if first_unstable_offset < 0 else min(first_unstable_offset, committed)
        return LogSnapshot(
            sealed,
            active,
            self.size,
            self.offset_entries,
            self.time_entries,
            self.max_timestamp,
            self.offset_of_max_timestamp,
            log_start_offset,
            self.next_offset,
            committed,
            stable,
            version,
        )

    def must_roll(self, size: int, last_offset: int, max_timestamp: int, now_ms: int) -> bool:
        if self.size > self.segment_bytes - size:
            return True
        if not self._has_room_for(last_offset):
            return True
        if self.size > 0:
            if self.rolling_timestamp >= 0:
                waited = max_timestamp - self.rolling_timestamp
            else:
                waited = now_ms - self.created_ms
            if waited > self.max_segment_ms:
                return True
        return (
            self.offset_entries >= self.offset_entries_max
            or self.time_entries >= self.time_entries_max - 1
        )

    def _has_room_for(self, offset: int) -> bool:
        """Whether the offset fits the indexes, and one more may follow it."""
        return 0 <= offset - self.base_offset <= MAX_INT and offset < 2**63 - 1

    def append(self, data: Buffer, size: int, first_offset: int, leader_epoch: int) -> int:
        if not self.attached or self.cut_pending:
            raise ValueError("the segment is not open for appends")
        if size <= 0 or size > len(data):
            raise ValueError("size is outside the buffer")
        placed = bytearray(memoryview(data)[:size])
        batches: list[tuple[int, int, int]] = []  # (last offset, max timestamp, length)
        position, next_offset, since, due = 0, first_offset, self.bytes_since_index_entry, 0
        last_offset = -1
        while position < size:
            if size - position < 17:
                raise ValueError("not whole batches")
            length = 12 + _INT.unpack_from(placed, position + 8)[0]
            magic = placed[position + 16]
            if length > size - position or length < (61 if magic >= 2 else 34 if magic else 26):
                raise ValueError("not whole batches")
            if magic < 2 and first_offset >= 0:
                raise ValueError("offsets are placed in magic 2 batches only")
            last_offset = _LONG.unpack_from(placed, position)[0]
            if magic >= 2:
                if first_offset >= 0:
                    last_offset = next_offset
                    _PREFIX.pack_into(placed, position, next_offset, length - 12, leader_epoch)
                last_offset += _INT.unpack_from(placed, position + 23)[0]
                batch_max = _LONG.unpack_from(placed, position + 35)[0]
            else:
                batch_max = _LONG.unpack_from(placed, position + 18)[0] if magic == 1 else -1
            if not self._has_room_for(last_offset):
                raise ValueError("an offset does not fit the segment")
            batches.append((last_offset, batch_max, length))
            if since > self.index_interval_bytes:
                due, since = due + 1, 0
            since += length
            next_offset = last_offset + 1
            position += length
        if due:
            self._reserve(due, due)

        self._file.write_at(self.size, placed)

        for batch_last, batch_max, length in batches:
            if batch_max > self.max_timestamp:
                self.max_timestamp, self.offset_of_max_timestamp = batch_max, batch_last
            if self.bytes_since_index_entry > self.index_interval_bytes:
                self._add_entries(batch_last)
            self.bytes_since_index_entry += length
            self.size += length
        if self.rolling_timestamp < 0:
            self.rolling_timestamp = max(-1, *(batch_max for _, batch_max, _ in batches))
        self.next_offset = last_offset + 1
        return last_offset

    def _add_entries(self, last_offset: int) -> None:
        if self.offset_entries < self.offset_entries_max:
            _OFFSET_ENTRY.pack_into(
                self._offset_map.buffer,
                8 * self.offset_entries,
                last_offset - self.base_offset,
                self.size,
            )
            self.offset_entries += 1
        if self.time_entries + 1 < self.time_entries_max:  # the last one is for the roll (F-119)
            self.add_time_entry()
        self.bytes_since_index_entry = 0

    def _reserve(self, offsets_due: int, times_due: int) -> None:
        for mapping, entries, due, width in (
            (self._offset_map, self.offset_entries, offsets_due, 8),
            (self._time_map, self.time_entries, times_due, 12),
        ):
            if due:
                mapping.reserve(min(width * (entries + due), len(mapping.buffer)))

    def reserve(self) -> None:
        self._reserve(0, 1)

    def add_time_entry(self) -> bool:
        if not self.attached or self.max_timestamp <= self.last_time_entry:
            return False
        if self.time_entries >= self.time_entries_max or self.max_timestamp < 0:
            return False
        _TIME_ENTRY.pack_into(
            self._time_map.buffer,
            12 * self.time_entries,
            self.max_timestamp,
            self.offset_of_max_timestamp - self.base_offset,
        )
        self.time_entries += 1
        self.last_time_entry = self.max_timestamp
        return True


class AppendState:
    def __init__(self, core: Any, listeners: Any, lock: Any) -> None:
        self.core, self.lock, self._listeners = core, lock, listeners
        self.epochs: Any = None
        self.truncation: Any = None
        self.recent: Any = None
        self.led_epoch = self.followed_epoch = None
        self.sealed: tuple[Any, ...] = ()
        self.log_start_offset = self.high_watermark = self.version = 0
        self.first_unstable = -1
        self.timestamp_limit = self.flush_at = self.max_batch_size = 0
        self.replicated = self.is_plain = self.largest_decides = False
        self.upkeep_due = self.epochs_due = self.keys_required = False

    def append_plain_as_leader(
        self, data: Buffer, leader_epoch: int, deep: bool
    ) -> AppendInfo | None:
        if not self.is_plain or self.led_epoch not in (None, leader_epoch):
            return None
        found = self._found(data, self.max_batch_size, True, deep=deep)
        if found is None or not found.plain:
            return None
        if deep and (
            (self.keys_required and found.has_null_key)
            or any(
                each.max_timestamp != each.record_max_timestamp or each.min_timestamp < -1
                for each in (analyse_batches(b, deep=True) for b in _batches(data, found.size))
            )
        ):
            return None
        return self._append(data, found, leader_epoch)

    def append_plain_own(self, data: Buffer, leader_epoch: int | None) -> AppendInfo | None:
        if not self.largest_decides:
            return None
        found = self._found(data, self.max_batch_size, True, check_crc=False)
        epoch = max(self.epochs.latest_epoch, 0) if leader_epoch is None else leader_epoch
        return None if found is None else self._append(data, found, epoch)

    def append_plain_as_follower(self, leader_epoch: int | None, data: Buffer) -> AppendInfo | None:
        found = self._found(data, MAX_INT, False)
        above = MAX_INT if leader_epoch is None else leader_epoch
        if (
            found is None
            or (leader_epoch is not None and self.followed_epoch not in (None, leader_epoch))
            or not found.ascending
            or found.first_offset < self._segment.next_offset
            or found.last_offset - self._segment.next_offset > MAX_INT
            or not 0 <= found.min_epoch == found.max_epoch <= above
            or found.min_epoch != self.epochs.latest_epoch
        ):
            return None
        return self._place(data, found, found.first_offset, found.last_offset, -1)

    def forget_recent_locked(self) -> None:
        self.recent.clear()

    @property
    def _segment(self) -> SegmentState:
        active: SegmentState = self.core.snapshot.active
        return active

    def _found(self, data: Buffer, largest: int, dense: bool, **how: bool) -> Any:
        if self.core.failure or self.truncation or self.epochs_due or self.upkeep_due:
            return None
        try:
            found = analyse_batches(data, max_batch_size=largest, **how)
        except CorruptBatchError:
            return None
        sound = found.batch_count and found.magic_min == 2 and not found.has_producer
        return found if sound and found.too_large_position < 0 and dense <= found.dense else None

    def _append(self, data: Buffer, found: Any, leader_epoch: int) -> AppendInfo | None:
        first = self._segment.next_offset
        last = first + found.record_count - 1
        if (
            leader_epoch != self.epochs.latest_epoch
            or not 0 <= leader_epoch <= MAX_INT
            or found.max_timestamp > self.timestamp_limit
            or found.size > self._segment.segment_bytes
        ):
            return None
        return self._place(data, found, first, last, leader_epoch)

    def _place(
        self, data: Buffer, found: Any, first: int, last: int, leader_epoch: int
    ) -> AppendInfo | None:
        segment, shown = self._segment, self.core.snapshot
        if (
            not segment.attached
            or segment.cut_pending
            or segment.rolling_timestamp < 0
            or last >= self.flush_at
            or segment.must_roll(found.size, last, found.max_timestamp, 0)
        ):
            return None
        start, count, size = self.log_start_offset, found.record_count, found.size
        try:
            segment.append(data, size, first if leader_epoch >= 0 else -1, leader_epoch)
        except OSError as error:
            raise self.core.fail("append", error) from error
        self.core.snapshot = segment.snapshot(
            self.sealed,
            shown.active,
            start,
            self.high_watermark if self.replicated else -1,
            self.first_unstable,
            self.version,
        )
        try:
            if leader_epoch >= 0 and self.recent is not None:
                self.recent.add(data, size, first, last + 1, leader_epoch, segment.base_offset)
        except BaseException:
            self.forget_recent_locked()
            raise
        finally:
            if self._listeners.waiting:
                self._listeners.wake_all()
        return AppendInfo(first, last, found.max_timestamp, -1, start, count, size)


def _batches(data: Buffer, size: int) -> Iterator[Buffer]:
    at = 0
    while at < size:
        end = at + 12 + _INT.unpack_from(data, at + 8)[0]
        yield memoryview(data)[at:end]
        at = end
