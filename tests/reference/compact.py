"""The kernels of the log cleaner in plain Python: the definition of right, and the fall-back.

The native ones do runs of plain batches in one call; here every batch is handed back, so that the
caller unpacks it and comes with its section.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from mmh3 import mmh3_x64_128_digest

from logstore.common.errors import CorruptBatchError
from logstore.common.types import Buffer
from logstore.kernels._constants import (
    RUN_END,
    RUN_FULL,
    RUN_SPECIAL,
    SCAN_BAD_SIZE,
    SCAN_COLUMNS,
    batch_error,
)
from tests.reference.records import (
    decode_varint,
    decode_varlong,
    encode_varint,
    encode_varlong,
    scan_batches,
)

STATUSES = (RUN_END, RUN_SPECIAL, RUN_FULL)

SLOT_SIZE = 24  # a digest of 16 bytes and an offset: the same in native memory
_MAX_OFFSET = 2**63 - 1
_LOG_APPEND_TIME, _DELETE_HORIZON = 0x08, 0x40


class OffsetMap:
    def __init__(self, memory: int, load_factor: float) -> None:
        if not 0 < load_factor <= 1:
            raise ValueError(f"load factor {load_factor} is outside 0…1")
        self.slots = memory // SLOT_SIZE
        if self.slots < 2:
            raise ValueError(f"{memory} bytes have no room for two keys")
        self.limit = min(int(self.slots * load_factor), self.slots - 1)
        if self.limit < 1:
            raise ValueError(f"load factor {load_factor} leaves no key in {memory} bytes")
        self._offsets: dict[bytes, int] = {}
        self.latest_offset = -1

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def size(self) -> int:
        return len(self._offsets)

    @property
    def full(self) -> bool:
        return self.size >= self.limit

    def clear(self) -> None:
        self._offsets.clear()
        self.latest_offset = -1

    def put(self, key: Buffer, offset: int) -> bool:
        if offset < 0:
            raise ValueError(f"offset {offset} is negative")
        if self.full:
            return False
        self._offsets[mmh3_x64_128_digest(bytes(key))] = offset
        self.latest_offset = offset
        return True

    def get(self, key: Buffer) -> int:
        return self._offsets.get(mmh3_x64_128_digest(bytes(key)), -1)

    def update_latest_offset(self, offset: int) -> None:
        self.latest_offset = max(self.latest_offset, offset)

    def add_section(
        self,
        payload: Buffer,
        base_offset: int,
        last_offset_delta: int,
        record_count: int,
        start_offset: int,
    ) -> bool:
        _check_range(base_offset, last_offset_delta, record_count)
        for record in _records(payload, last_offset_delta, record_count):
            offset = base_offset + record.offset_delta
            if (
                record.key is not None
                and offset >= start_offset
                and not self.put(record.key, offset)
            ):
                return True
        return False

    def add_run(self, data: Buffer, position: int, start_offset: int) -> tuple[int, int, int]:
        return (*_next(data, position), 0)


class RecordSieve:
    def __init__(
        self,
        offset_map: OffsetMap,
        now_ms: int,
        delete_retention_ms: int,
        upper_bound: int,
        last_offsets: Iterable[int],
    ) -> None:
        self._map = offset_map
        self.now_ms = now_ms
        self.delete_retention_ms = delete_retention_ms
        self.upper_bound = upper_bound
        self.batches_read = self.batches_kept = self.batches_copied = self.batches_emptied = 0
        self.records_read = self.records_kept = self.records_without_key = 0
        self.tombstones_kept = 0
        self._out = bytearray()
        self.set_last_offsets(last_offsets)

    def set_last_offsets(self, offsets: Iterable[int]) -> None:
        self._last_offsets = frozenset(offsets)

    @property
    def pending(self) -> int:
        return len(self._out)

    def run(self, data: Buffer, position: int, limit: int) -> tuple[int, int]:
        if self.pending >= limit:
            return position, RUN_FULL
        return _next(data, position)

    def sift_section(
        self,
        payload: Buffer,
        base_offset: int,
        last_offset_delta: int,
        record_count: int,
        attributes: int,
        base_timestamp: int,
        max_timestamp: int,
    ) -> tuple[int, int, bytes | None, int, int]:
        _check_range(base_offset, last_offset_delta, record_count)
        has_horizon = bool(attributes & _DELETE_HORIZON)
        drop_tombstones = has_horizon and base_timestamp <= self.now_ms
        kept: list[tuple[_Raw, int]] = []
        tombstones = 0
        for record in _records(payload, last_offset_delta, record_count):
            self.records_without_key += record.key is None
            if not self._stays(record, base_offset + record.offset_delta, drop_tombstones):
                continue
            stamp = _wrapped(base_timestamp + record.timestamp_delta)
            if attributes & _LOG_APPEND_TIME:
                stamp = max_timestamp
            kept.append((record, stamp))
            tombstones += not record.has_value
        self.records_read += record_count
        self.records_kept += len(kept)
        self.tombstones_kept += tombstones
        largest = max((stamp for _, stamp in kept), default=-1)
        largest = max(largest, -1)
        set_horizon = tombstones > 0 and not has_horizon
        if not kept or (len(kept) == record_count and not set_horizon):
            return len(kept), tombstones, None, -1, largest
        base = kept[0][1]
        if set_horizon:
            base = min(self.now_ms + self.delete_retention_ms, _MAX_OFFSET)
        elif has_horizon:
            base = base_timestamp
        section = bytearray()
        for record, stamp in kept:
            body = bytes([record.attributes]) + encode_varlong(_wrapped(stamp - base))
            body += encode_varint(record.offset_delta) + record.rest
            section += encode_varint(len(body)) + body
        return len(kept), tombstones, bytes(section), base, largest

    def _stays(self, record: _Raw, offset: int, drop_tombstones: bool) -> bool:
        if offset > self._map.latest_offset:
            return True
        if record.key is None or offset < self._map.get(record.key):
            return False
        return record.has_value or not drop_tombstones

    def put(self, data: Buffer) -> None:
        self._out += data

    def reset(self) -> None:
        self._out = bytearray()

    def view(self) -> memoryview:
        return memoryview(self._out)


class _Raw(NamedTuple):
    """One record as it lies there; ``rest`` is all behind the offset delta."""

    attributes: int
    timestamp_delta: int
    offset_delta: int
    key: bytes | None
    has_value: bool
    rest: bytes


def _next(data: Buffer, position: int) -> tuple[int, int]:
    """The batch at ``position`` is the caller's, where a whole one is there."""
    columns = array("q", [0]) * len(SCAN_COLUMNS)
    rows, _, status = scan_batches(data, position, columns, True)
    if rows:
        return position, RUN_SPECIAL
    if status >= SCAN_BAD_SIZE:  # and all behind it
        raise batch_error(status, memoryview(data), position)
    return position, RUN_END


def _records(payload: Buffer, last_offset_delta: int, count: int) -> Iterator[_Raw]:
    data, position, last = bytes(payload), 0, -1
    for _ in range(count):
        start = position
        if position >= len(data):
            raise CorruptBatchError("", position, "the section is too short for its records")
        try:
            length, position = decode_varint(data, position)
            end = position + length
            if length < 1 or end > len(data):
                raise ValueError
            body = data[:end]
            attributes = body[position]
            timestamp_delta, at = decode_varlong(body, position + 1)
            offset_delta, rest = decode_varint(body, at)
            key, at = _field(body, rest)
            value, at = _field(body, at)
            headers, at = decode_varint(body, at)
            if headers < 0:
                raise ValueError
            for _ in range(headers):
                name, at = _field(body, at)
                if name is None:
                    raise ValueError
                _, at = _field(body, at)
            if at != end:
                raise ValueError
        except (ValueError, IndexError, CorruptBatchError):
            raise CorruptBatchError("", start, "a record is malformed") from None
        if not last < offset_delta <= last_offset_delta:
            raise CorruptBatchError("", start, f"offset delta {offset_delta} after {last}")
        last, position = offset_delta, end
        yield _Raw(attributes, timestamp_delta, offset_delta, key, value is not None, body[rest:])
    if position != len(data):
        raise CorruptBatchError("", position, "bytes remain after the last record")


def _field(body: bytes, at: int) -> tuple[bytes | None, int]:
    size, at = decode_varint(body, at)
    if size < 0:
        return None, at
    if size > len(body) - at:
        raise ValueError
    return body[at : at + size], at + size


def _wrapped(value: int) -> int:
    """As a sum of Java's longs."""
    return (value + 2**63) % 2**64 - 2**63


def _check_range(base_offset: int, last_offset_delta: int, record_count: int) -> None:
    if min(base_offset, last_offset_delta, record_count) < 0:
        raise ValueError("a batch has no negative offset, delta or count")
    if base_offset + last_offset_delta > _MAX_OFFSET - 1:
        raise ValueError("the offsets of the batch leave the range of offsets")
