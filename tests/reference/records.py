"""The kernels in plain Python, as the oracle of their tests.

The stubs of the kernels say what each function promises. One suite
(``tests/contract/test_kernels.py``) runs over both, and properties compare them on mutated bytes.
"""

from __future__ import annotations

import operator
import struct
import zlib
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

import crcmod

from logstore.common.errors import CorruptBatchError, InvalidRecordError
from logstore.common.types import Buffer, Header, Record
from logstore.kernels._codec import ReadBounds
from logstore.kernels._constants import (
    DECODE_END,
    DECODE_FULL,
    DECODE_LIMIT,
    DECODE_SPECIAL,
    HEADER_SIZE,
    PRODUCER_ROWS_MAX,
    RECORD_COUNT,
    RECORD_EXCESS,
    RECORD_FIELD,
    RECORD_LENGTH,
    RECORD_OFFSET,
    RECORD_SIZE_MIN,
    RECORD_TRAILING,
    RECORDS_SIZE_MAX,
    SCAN_BAD_CRC,
    SCAN_BAD_HEADER,
    SCAN_BAD_MAGIC,
    SCAN_BAD_OFFSET,
    SCAN_BAD_SIZE,
    SCAN_COLUMNS,
    SCAN_END,
    SCAN_FULL,
    SCAN_INCOMPLETE,
    SCAN_TAIL,
    TIMESTAMPS_KIND,
    batch_error,
    lengths_differ,
    record_error,
    record_refused,
    records_lack_keys,
    take_sequence,
    timestamp_ms,
)

_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1
_OK = -1

_HEADER = struct.Struct(">qiibIhiqqqhii")  # its fields: F-49 … F-61
assert _HEADER.size == HEADER_SIZE

_crc32c = crcmod.mkCrcFun(0x1_1EDC_6F41, initCrc=0, rev=True, xorOut=0xFFFF_FFFF)


def _bytes_of(data: Buffer) -> memoryview:
    view = memoryview(data)
    if not view.c_contiguous:
        raise BufferError("the buffer must be contiguous")
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def _wrap(n: int, bits: int) -> int:
    """``n`` as a two's complement number: Java's sums wrap."""
    half = 1 << (bits - 1)
    return (n + half) % (half << 1) - half


def _fit(n: int, bits: int) -> int:
    n = operator.index(n)
    if _wrap(n, bits) != n:
        raise OverflowError(f"{n} does not fit an i{bits}")
    return n


# ---- checksums ----


def crc32c(data: Buffer, value: int = 0) -> int:
    return cast(int, _crc32c(_bytes_of(data), value))


def crc32(data: Buffer, value: int = 0) -> int:
    return zlib.crc32(data, value)


# ---- varints ----


def _put_groups(zigzag: int) -> bytes:
    groups = bytearray()
    while zigzag >= 0x80:
        groups.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    groups.append(zigzag)
    return bytes(groups)


def _get_groups(data: memoryview, position: int, end: int, bits: int) -> tuple[int, int] | None:
    """Value and next position, or None when the number is cut short or has too many groups.

    Bits that the last group has too many are dropped, as Kafka's reader does.
    """
    value = 0
    for i in range(5 if bits == 32 else 10):
        if not 0 <= position + i < end:
            return None
        byte = data[position + i]
        value |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            value &= (1 << bits) - 1
            return (value >> 1) ^ -(value & 1), position + i + 1
    return None


def encode_varint(n: int) -> bytes:
    n = _fit(n, 32)
    return _put_groups((n << 1) ^ (n >> 31))


def encode_varlong(n: int) -> bytes:
    n = _fit(n, 64)
    return _put_groups((n << 1) ^ (n >> 63))


def decode_varint(data: Buffer, position: int) -> tuple[int, int]:
    view = _bytes_of(data)
    result = _get_groups(view, position, len(view), 32)
    if result is None:
        raise CorruptBatchError("", position, "malformed varint")
    return result


def decode_varlong(data: Buffer, position: int) -> tuple[int, int]:
    view = _bytes_of(data)
    result = _get_groups(view, position, len(view), 64)
    if result is None:
        raise CorruptBatchError("", position, "malformed varlong")
    return result


# ---- batch headers ----


@dataclass(slots=True)
class _Batch:
    """Header of the batch at ``position``; what its format lacks is −1."""

    position: int
    size: int
    base_offset: int
    magic: int
    last_offset: int
    base_timestamp: int = -1
    max_timestamp: int = -1
    leader_epoch: int = -1
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    attributes: int = -1
    record_count: int = -1
    crc: int = 0
    last_offset_delta: int = 0

    @property
    def end(self) -> int:
        return self.position + self.size


def _frame(data: memoryview, position: int) -> int | _Batch:
    """The batch at ``position``, or why there is none (F-106).

    Kafka's file scan also stops silently at exactly 17 bytes, which cannot hold a batch either.
    """
    left = len(data) - position
    if left < 17:
        return SCAN_END if left == 0 else SCAN_TAIL
    base_offset, size = struct.unpack_from(">qi", data, position)
    if size < 14:
        return SCAN_BAD_SIZE
    if size + 12 > left:
        return SCAN_INCOMPLETE
    magic = _wrap(data[position + 16], 8)
    return _Batch(position, size + 12, base_offset, magic, last_offset=base_offset)


def _fields(data: memoryview, b: _Batch) -> int:
    """Read the other fields, if the magic is known and the header is all there (F-99, F-109)."""
    if b.magic == 2 and b.size >= HEADER_SIZE:
        (
            _,
            _,
            b.leader_epoch,
            _,
            b.crc,
            b.attributes,
            b.last_offset_delta,
            b.base_timestamp,
            b.max_timestamp,
            b.producer_id,
            b.producer_epoch,
            b.base_sequence,
            b.record_count,
        ) = _HEADER.unpack_from(data, b.position)
        b.last_offset = _wrap(b.base_offset + b.last_offset_delta, 64)
        return _OK
    if not 0 <= b.magic <= 2:
        return SCAN_BAD_MAGIC  # stricter than Kafka's file scan (F-108): no crc covers the magic
    if b.magic == 2 or b.size < (34 if b.magic else 26):
        return SCAN_BAD_HEADER
    b.crc, _, b.attributes = struct.unpack_from(">Ibb", data, b.position + 12)
    if b.magic == 1:
        (b.base_timestamp,) = struct.unpack_from(">q", data, b.position + 18)
        b.max_timestamp = b.base_timestamp
    b.record_count = -1 if b.attributes & 7 else 1
    return _OK


def _crc_ok(data: memoryview, b: _Batch) -> bool:
    if b.magic == 2:
        return crc32c(data[b.position + 21 : b.end]) == b.crc
    return crc32(data[b.position + 16 : b.end]) == b.crc


def _values(b: _Batch) -> int:
    """Values that no writer makes; checked after the crc, so that damage is called damage."""
    if b.magic == 2 and (b.record_count < 0 or b.last_offset_delta < 0):
        return SCAN_BAD_HEADER
    if b.base_offset < 0 or b.base_offset + b.last_offset_delta >= _INT64_MAX:
        return SCAN_BAD_OFFSET
    return _OK


def _check(data: memoryview, b: _Batch, check_crc: bool) -> int:
    status = _fields(data, b)
    if status == _OK and check_crc and not _crc_ok(data, b):
        return SCAN_BAD_CRC
    return _values(b) if status == _OK else status


def scan_batches(
    data: Buffer, start: int, columns: Any, check_crc: bool = True, stop_on_bad: bool = True
) -> tuple[int, int, int]:
    view = _bytes_of(data)
    if not 0 <= start <= len(view):
        raise ValueError(f"start {start} is outside 0…{len(view)}")
    table = memoryview(columns)
    if table.readonly or not table.c_contiguous:
        raise BufferError("columns must be writable and contiguous")
    capacity = table.nbytes // 8 // len(SCAN_COLUMNS)
    cells = (table.cast("B") if table.nbytes else table)[: capacity * 8 * len(SCAN_COLUMNS)]
    cells = cells.cast("q") if capacity else cells
    position, rows = start, 0
    while True:
        if position == len(view):
            return rows, position, SCAN_END
        if rows == capacity:
            return rows, position, SCAN_FULL
        b = _frame(view, position)
        if isinstance(b, int):
            return rows, position, b
        status = _check(view, b, check_crc)
        if status != _OK and stop_on_bad:
            return rows, position, status
        for column, name in enumerate(SCAN_COLUMNS[:-1]):
            cells[column * capacity + rows] = getattr(b, name)
        cells[(len(SCAN_COLUMNS) - 1) * capacity + rows] = status == _OK
        rows += 1
        position = b.end


# ---- recovery ----


class RecoveryScan:
    def __init__(
        self,
        base_offset: int,
        index_interval_bytes: int,
        *,
        expected_offset: int = -1,
        last_epoch: int = -1,
        strict: bool = True,
        contiguous: bool = False,
    ) -> None:
        if base_offset < 0:
            raise ValueError(f"base_offset {base_offset} is negative")
        self.base_offset, self.index_interval_bytes = base_offset, index_interval_bytes
        self.strict, self.contiguous = bool(strict), bool(contiguous)
        self.status = SCAN_END
        self.valid_bytes = 0
        """Position in the file behind the last good batch."""
        self.needed_bytes = 0
        """With SCAN_INCOMPLETE: size of the window that the next batch needs, else 0."""
        self.next_offset = expected_offset if expected_offset >= 0 else base_offset
        self.max_timestamp = self.offset_of_max_timestamp = self.first_batch_max_timestamp = -1
        self.batch_count = 0
        self.record_count = 0
        """Records present; those inside compressed legacy entries are not counted."""
        self.epochs: list[tuple[int, int]] = []
        self.epoch_falls = 0
        """Batches whose leader epoch is below that of the batch before: kept, as in Kafka."""
        self.first_fall_offset = -1
        """Base offset of the first of them, −1 when there is none."""
        self._expected, self._started = expected_offset, False
        self._latest_epoch = self._epoch_before = last_epoch
        self._last_index_position = 0
        self._last_indexed_offset = self._last_indexed_timestamp = self._last_timed_offset = -1
        self._offset_index, self._time_index = bytearray(), bytearray()
        self._producer_rows: list[tuple[int, ...]] = []

    @property
    def offset_index(self) -> bytes:
        return bytes(self._offset_index)

    @property
    def time_index(self) -> bytes:
        return bytes(self._time_index)

    def final_time_entry(self) -> bytes:
        if self.max_timestamp <= self._last_indexed_timestamp:
            return b""
        return struct.pack(
            ">qi", self.max_timestamp, self.offset_of_max_timestamp - self.base_offset
        )

    def take_producer_batches(self) -> list[tuple[int, ...]]:
        rows, self._producer_rows = self._producer_rows, []
        return rows

    def feed(self, data: Buffer, position: int, end_of_file: bool) -> int:
        view = _bytes_of(data)
        if self._started and position != self.valid_bytes:
            raise ValueError(f"position {position} does not follow {self.valid_bytes}")
        if position < 0:
            raise ValueError(f"position {position} is negative")
        if position > 2**63 - 1 - len(view):
            raise ValueError(f"position {position} leaves no room for the window")
        self._started, self.valid_bytes, self.needed_bytes = True, position, 0
        while True:
            consumed = self.valid_bytes - position
            b = _frame(view, consumed)
            if isinstance(b, int):
                self.status = b
                if b == SCAN_INCOMPLETE:
                    self.needed_bytes = struct.unpack_from(">i", view, consumed + 8)[0] + 12
                elif b == SCAN_TAIL and not end_of_file:
                    self.status, self.needed_bytes = SCAN_INCOMPLETE, 17
                return consumed
            if position + b.end > _INT32_MAX:
                self.status = SCAN_BAD_SIZE  # no segment reaches there (F-110)
                return consumed
            status = _check(view, b, check_crc=True)
            if status == _OK:
                status = self._offsets_fit(b)
            if status == _OK:
                status = self._accept(b, position + b.position)
            if status != _OK:
                self.status = status
                return consumed

    def _offsets_fit(self, b: _Batch) -> int:
        if not 0 <= b.last_offset - self.base_offset <= _INT32_MAX:
            return SCAN_BAD_OFFSET
        if self.contiguous:
            # The first offset of a compressed legacy batch is not in its header (F-103).
            if b.magic == 2 or b.record_count == 1:
                if self._expected >= 0 and b.base_offset != self._expected:
                    return SCAN_BAD_OFFSET
            elif b.last_offset < self.next_offset:
                return SCAN_BAD_OFFSET
        if self.strict and b.base_offset < self.next_offset:
            return SCAN_BAD_OFFSET
        return _OK

    def _accept(self, b: _Batch, position: int) -> int:
        has_producer = b.magic == 2 and (b.producer_id >= 0 or b.attributes & 0x20 != 0)
        if has_producer and len(self._producer_rows) >= PRODUCER_ROWS_MAX:
            return SCAN_FULL
        before = self.max_timestamp, self.offset_of_max_timestamp
        if b.max_timestamp > self.max_timestamp:
            self.max_timestamp, self.offset_of_max_timestamp = b.max_timestamp, b.last_offset
        if position - self._last_index_position > self.index_interval_bytes:
            status = self._add_index_entries(b, position)
            if status != _OK:
                self.max_timestamp, self.offset_of_max_timestamp = before
                return status
        if b.magic == 2:
            if b.leader_epoch > self._latest_epoch:
                self.epochs = [*self.epochs, (b.leader_epoch, b.base_offset)]
                self._latest_epoch = b.leader_epoch
            if 0 <= b.leader_epoch < self._epoch_before:
                if not self.epoch_falls:
                    self.first_fall_offset = b.base_offset
                self.epoch_falls += 1
            self._epoch_before = b.leader_epoch
        if has_producer:
            self._producer_rows.append(
                (
                    b.producer_id,
                    b.producer_epoch,
                    b.base_sequence,
                    b.last_offset_delta,
                    b.base_offset,
                    b.max_timestamp,
                    b.attributes,
                    position,
                    b.size,
                    b.record_count,
                )
            )
        if self.batch_count == 0:
            self.first_batch_max_timestamp = b.max_timestamp
        self.batch_count += 1
        self.record_count += max(b.record_count, 0)
        self.next_offset = self._expected = b.last_offset + 1
        self.valid_bytes = position + b.size
        return _OK

    def _add_index_entries(self, b: _Batch, position: int) -> int:
        """An entry for each interval (F-133), of times only where they grow (F-118). Kafka's
        indexes refuse what descends (F-114)."""
        if b.last_offset <= self._last_indexed_offset:
            return SCAN_BAD_OFFSET
        if self.max_timestamp > self._last_indexed_timestamp:
            if self.offset_of_max_timestamp < self._last_timed_offset:
                return SCAN_BAD_OFFSET
            self._time_index += self.final_time_entry()
            self._last_indexed_timestamp = self.max_timestamp
            self._last_timed_offset = self.offset_of_max_timestamp
        self._offset_index += struct.pack(">ii", b.last_offset - self.base_offset, position)
        self._last_indexed_offset, self._last_index_position = b.last_offset, position
        return _OK


# ---- appends ----


@dataclass(slots=True)
class BatchAnalysis:
    batch_count: int = 0
    record_count: int = 0
    size: int = 0
    first_offset: int = -1
    last_offset: int = -1
    base_timestamp: int = -1
    max_timestamp: int = -1
    offset_of_max_timestamp: int = -1
    first_batch_max_timestamp: int = -1
    min_epoch: int = -1
    max_epoch: int = -1
    last_epoch: int = -1
    magic_min: int = -1
    magic_max: int = -1
    largest_batch_size: int = 0
    attributes_or: int = 0
    attributes_and: int = 0
    codec_mask: int = 0
    ascending: bool = True
    dense: bool = True
    has_producer: bool = False
    all_base_zero: bool = True
    too_large_position: int = -1
    offsets_dense: bool = True
    has_null_key: bool = False
    min_timestamp: int = -1
    record_max_timestamp: int = -1

    @property
    def plain(self) -> bool:
        """Whether a leader may store the batches as they are, offsets and epoch apart.

        Magic 2, uncompressed, CreateTime, no producer, and shaped as clients send them.
        """
        return (
            self.magic_min == 2
            and self.attributes_or == 0
            and self.dense
            and self.all_base_zero
            and self.offsets_dense
            and not self.has_producer
        )


def analyse_batches(
    data: Buffer, *, max_batch_size: int = _INT32_MAX, check_crc: bool = True, deep: bool = False
) -> BatchAnalysis:
    view = _bytes_of(data)
    result = BatchAnalysis()
    times: list[int] = []
    position = 0
    while True:
        b = _frame(view, position)
        if isinstance(b, int):
            if b == SCAN_BAD_SIZE:
                raise batch_error(b, view, position)
            break
        status = _check(view, b, check_crc)
        if status != _OK:
            raise batch_error(status, view, position)
        if deep and b.magic == 2 and b.attributes & 7 == 0:
            _analyse_records(view, b, result, times)
        _add_batch(result, b, max_batch_size)
        position = b.end
    if times:
        result.min_timestamp, result.record_max_timestamp = min(times), max(times)
    return result


def _add_batch(result: BatchAnalysis, b: _Batch, max_batch_size: int) -> None:
    if result.batch_count == 0:
        result.first_offset, result.base_timestamp = b.base_offset, b.base_timestamp
        result.first_batch_max_timestamp = b.max_timestamp
        result.min_epoch = result.max_epoch = b.leader_epoch
        result.magic_min = result.magic_max = b.magic
        result.attributes_and = b.attributes
    elif b.base_offset <= result.last_offset:
        result.ascending = False
    result.batch_count += 1
    result.min_epoch = min(result.min_epoch, b.leader_epoch)
    result.max_epoch = max(result.max_epoch, b.leader_epoch)
    result.magic_min = min(result.magic_min, b.magic)
    result.magic_max = max(result.magic_max, b.magic)
    result.attributes_and &= b.attributes
    result.attributes_or |= b.attributes
    result.codec_mask |= 1 << (b.attributes & 7)
    result.last_offset, result.last_epoch = b.last_offset, b.leader_epoch
    if b.max_timestamp > result.max_timestamp:
        result.max_timestamp, result.offset_of_max_timestamp = b.max_timestamp, b.last_offset
    known = b.record_count >= 0 and result.record_count >= 0
    result.record_count = result.record_count + b.record_count if known else -1
    result.largest_batch_size = max(result.largest_batch_size, b.size)
    if b.size > max_batch_size and result.too_large_position < 0:
        result.too_large_position = b.position
    if b.magic == 2 and not b.record_count == b.last_offset_delta + 1 >= 1:
        result.dense = False
    result.has_producer = result.has_producer or b.producer_id >= 0
    result.all_base_zero = result.all_base_zero and b.base_offset == 0
    result.size = b.end


def _analyse_records(view: memoryview, b: _Batch, result: BatchAnalysis, times: list[int]) -> None:
    position, end = b.position + HEADER_SIZE, b.end
    if b.record_count > (end - position) // RECORD_SIZE_MIN:
        raise record_error(RECORD_COUNT, position)
    for i in range(b.record_count):
        delta, offset_delta, key, _, _, position = _read_record(view, position, end)
        result.offsets_dense = result.offsets_dense and offset_delta == i
        result.has_null_key = result.has_null_key or key is None
        times.append(b.max_timestamp if b.attributes & 8 else _wrap(b.base_timestamp + delta, 64))
    if position != end:
        raise record_error(RECORD_TRAILING, position)


# ---- encoding ----


@dataclass(slots=True)
class Encoded:
    buffer: bytearray
    base_timestamp: int
    max_timestamp: int
    offset_of_max: int
    count: int


_Row = tuple[bytes | None, bytes | None, int, bytes]


def _take_bytes(data: Any, field: str) -> bytes | None:
    if data is None:
        return None
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise TypeError(f"{field} must be bytes or None, not {type(data).__name__}")
    size = memoryview(data).nbytes
    if size > _INT32_MAX:
        raise ValueError(f"{field} has {size} bytes: a field holds at most {_INT32_MAX}")
    return bytes(data)


def _take_timestamp(timestamp: Any, default: int) -> int:
    if timestamp is None:
        return default
    milliseconds = timestamp_ms(timestamp)
    if not -1 <= milliseconds <= _INT64_MAX:
        raise ValueError(f"timestamp {timestamp} is outside -1…2^63-1")
    return int(milliseconds)


def _take_default(timestamp: Any) -> int:
    """The timestamp of records without one."""
    try:
        return _take_timestamp(timestamp, -1)
    except (TypeError, ValueError) as error:
        raise InvalidRecordError(str(error)) from None


def _take_headers(headers: Any) -> bytes:
    """The header section of a record, with its count (F-71)."""
    if headers is None:
        return b"\0"
    if not isinstance(headers, (tuple, list)):
        raise TypeError(f"headers must be a tuple or list, not {type(headers).__name__}")
    section = bytearray(encode_varint(len(headers)))
    for item in headers:
        if not isinstance(item, (tuple, list)):
            raise TypeError(f"a header must be a pair, not {type(item).__name__}")
        if len(item) != 2:
            raise ValueError(f"a header must be a pair, not {len(item)} items")
        if not isinstance(item[0], str):
            raise TypeError(f"a header key must be str, not {type(item[0]).__name__}")
        section += _sized(item[0].encode()) + _sized(_take_bytes(item[1], "a header value"))
    return bytes(section)


def _sized(data: bytes | None) -> bytes:
    return encode_varint(-1) if data is None else encode_varint(len(data)) + data


def _encode(rows: Sequence[_Row]) -> Encoded:
    buffer = bytearray(HEADER_SIZE)
    for delta, (key, value, timestamp, headers) in enumerate(rows):
        body = (
            b"\0"
            + encode_varlong(_wrap(timestamp - rows[0][2], 64))
            + encode_varint(delta)
            + _sized(key)
            + _sized(value)
            + headers
        )
        if len(body) > _INT32_MAX or len(buffer) + len(body) + 5 > _INT32_MAX:
            raise InvalidRecordError(f"the records need more than {RECORDS_SIZE_MAX} bytes")
        buffer += encode_varint(len(body)) + body
    times = [row[2] for row in rows]
    if not times:
        return Encoded(buffer, -1, -1, -1, 0)
    return Encoded(buffer, times[0], max(times), times.index(max(times)), len(times))


def _take_row(row: Any, default: int) -> _Row:
    timestamp, headers = None, None
    if type(row) is Record:
        _, timestamp, key, value, headers = row
    elif not isinstance(row, tuple):
        raise TypeError(
            "a record must be a tuple (key, value, timestamp, headers) or a "
            f"Record, not {type(row).__name__}"
        )
    elif not 2 <= len(row) <= 4:
        raise ValueError(f"a record has two to four fields, not {len(row)}")
    else:
        key, value = row[:2]
        timestamp = row[2] if len(row) > 2 else None
        headers = row[3] if len(row) > 3 else None
    return _take_fields(key, value, timestamp, headers, default)


def _take_fields(key: Any, value: Any, timestamp: Any, headers: Any, default: int) -> _Row:
    return (
        _take_bytes(key, "a key"),
        _take_bytes(value, "a value"),
        _take_timestamp(timestamp, default),
        _take_headers(headers),
    )


def _take_all(take: Callable[..., _Row], arguments: Iterable[tuple[Any, ...]]) -> list[_Row]:
    rows: list[_Row] = []
    try:
        for each in arguments:
            rows.append(take(*each))
    except (TypeError, ValueError) as error:
        raise record_refused(len(rows), error) from None
    return rows


def _check_keys(rows: Sequence[_Row]) -> None:
    missing = [i for i, row in enumerate(rows) if row[0] is None]
    if missing:
        raise records_lack_keys(missing)


def encode_records(
    records: Iterable[Any], default_timestamp: Any = -1, *, keys_required: bool = False
) -> Encoded:
    every = take_sequence(records, "records")
    default = _take_default(default_timestamp)
    rows = _take_all(_take_row, ((row, default) for row in every))
    if keys_required:
        _check_keys(rows)
    return _encode(rows)


def encode_lists(
    keys: Iterable[Any] | None,
    values: Iterable[Any],
    timestamps: Any = None,
    headers: Iterable[Any] | None = None,
    default_timestamp: Any = -1,
    *,
    keys_required: bool = False,
) -> Encoded:
    value_row = take_sequence(values, "values")
    count = len(value_row)
    default = _take_default(default_timestamp)
    key_row = (None,) * count if keys is None else take_sequence(keys, "keys")
    header_row = (None,) * count if headers is None else take_sequence(headers, "headers")
    time_row: Sequence[Any] = (None,) * count
    if isinstance(timestamps, (int, datetime)):
        default = _take_default(timestamps)
    elif isinstance(timestamps, (list, tuple)):
        time_row = timestamps
    elif timestamps is not None:
        time_row = _int64s(timestamps)
    if not len(key_row) == len(header_row) == len(time_row) == count:
        raise lengths_differ(len(key_row), count, len(time_row), len(header_row))
    defaults = (default,) * count
    rows = _take_all(
        _take_fields, zip(key_row, value_row, time_row, header_row, defaults, strict=True)
    )
    if keys_required:
        _check_keys(rows)
    return _encode(rows)


def _int64s(data: Any) -> memoryview:
    """A buffer of int64; plain bytes, as pyarrow's buffers are, are taken as such."""
    try:
        view = memoryview(data)
    except TypeError:
        raise InvalidRecordError(TIMESTAMPS_KIND % type(data).__name__) from None
    kind = (view.format or "B").lstrip("@=<")
    if view.nbytes % 8 or (view.itemsize, kind) not in {
        (8, "q"),
        (8, "l"),
        (1, "b"),
        (1, "B"),
        (1, "c"),
    }:
        raise InvalidRecordError(TIMESTAMPS_KIND % type(data).__name__)
    return view.cast("B").cast("q") if view.nbytes else memoryview(array("q"))


def _column(
    start: int, stop: int, offsets: Any, data: Any, validity: Any, offset_size: int
) -> list[bytes | None]:
    """Values ``start`` to ``stop`` of an Arrow column of binary values."""
    if offsets is None:
        return [None] * (stop - start)
    view = memoryview(offsets)
    width = view.itemsize if view.itemsize in (4, 8) else offset_size
    if width not in (4, 8):
        raise ValueError(f"offsets of {offset_size} bytes: 4 or 8 are possible")
    if stop > start and view.nbytes // width < stop + 1:
        raise ValueError("the offsets end before stop")
    places = view.cast("B")[: view.nbytes // width * width] if view.nbytes else view
    places = places.cast("i" if width == 4 else "q") if view.nbytes else view
    content = b"" if data is None else bytes(data)
    if validity is not None and memoryview(validity).nbytes < (stop + 7) // 8:
        raise ValueError("the validity bitmap ends before stop")
    bits = None if validity is None else bytes(validity)
    values: list[bytes | None] = []
    for i in range(start, stop):
        if bits is not None and not bits[i >> 3] >> (i & 7) & 1:
            values.append(None)
            continue
        low, high = places[i], places[i + 1]
        if not 0 <= low <= high <= len(content) or high - low > _INT32_MAX:
            raise ValueError(f"offsets of row {i} descend or run past the data")
        values.append(content[low:high])
    return values


def encode_columns(
    start: int,
    stop: int,
    key_offsets: Any,
    key_data: Any,
    key_validity: Any,
    value_offsets: Any,
    value_data: Any,
    value_validity: Any,
    timestamps: Any = None,
    default_timestamp: Any = -1,
    *,
    headers: tuple[Any, ...] | None = None,
    key_offset_size: int = 4,
    value_offset_size: int = 4,
) -> Encoded:
    default = _take_default(default_timestamp)
    if not 0 <= start <= stop:
        raise ValueError(f"rows {start}…{stop} are no range")
    keys = _column(start, stop, key_offsets, key_data, key_validity, key_offset_size)
    values = _column(start, stop, value_offsets, value_data, value_validity, value_offset_size)
    if isinstance(timestamps, (int, datetime)):
        default = _take_default(timestamps)
        times: Sequence[int] = [default] * (stop - start)
    elif timestamps is None:
        times = [default] * (stop - start)
    else:
        every = _int64s(timestamps)
        if len(every) < stop:
            raise ValueError("the timestamps end before stop")
        times = every[start:stop].tolist()
    sections = [b"\0"] * (stop - start) if headers is None else _header_column(headers, start, stop)
    return _encode(
        [
            (key, value, _take_timestamp(time, default), section)
            for key, value, time, section in zip(keys, values, times, sections, strict=True)
        ]
    )


def _header_column(headers: tuple[Any, ...], start: int, stop: int) -> list[bytes]:
    """Header sections (F-71) of rows ``start`` to ``stop`` of an Arrow column."""
    list_offsets, list_validity, count, *strings = headers
    name_offsets, name_data, name_validity, value_offsets, value_data, value_validity = strings
    names = _column(0, count, name_offsets, name_data, name_validity, 4)
    values = _column(0, count, value_offsets, value_data, value_validity, 4)
    ends = memoryview(list_offsets).cast("B").cast("i")
    bits = None if list_validity is None else bytes(list_validity)
    sections: list[bytes] = []
    for i in range(start, stop):
        if bits is not None and not bits[i >> 3] >> (i & 7) & 1:
            sections.append(b"\0")
            continue
        first, end = ends[i], ends[i + 1]
        if not 0 <= first <= end <= count:
            raise ValueError(f"header offsets of row {i} descend or run past the data")
        section = encode_varint(end - first)
        for name, value in zip(names[first:end], values[first:end], strict=True):
            if name is None:
                raise ValueError(f"row {i} has a header without a key")
            section += _sized(name) + _sized(value)
        sections.append(section)
    return sections


def seal_batch(
    buffer: Any,
    *,
    base_offset: int,
    leader_epoch: int,
    attributes: int,
    last_offset_delta: int,
    base_timestamp: int,
    max_timestamp: int,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    record_count: int,
) -> None:
    leader_epoch, attributes = _fit(leader_epoch, 32), _fit(attributes, 16)
    last_offset_delta, record_count = _fit(last_offset_delta, 32), _fit(record_count, 32)
    producer_epoch, base_sequence = _fit(producer_epoch, 16), _fit(base_sequence, 32)
    for wide in (base_offset, base_timestamp, max_timestamp, producer_id):
        _fit(wide, 64)
    view = memoryview(buffer)
    if view.readonly or not view.c_contiguous:
        raise BufferError("the batch must be writable and contiguous")
    size = view.nbytes
    if size < HEADER_SIZE:
        raise ValueError(f"{size} bytes have no room for a batch header")
    if size - 12 > _INT32_MAX:
        raise ValueError(f"{size} bytes are too many for one batch")
    view = view.cast("B")
    _HEADER.pack_into(
        view,
        0,
        base_offset,
        size - 12,
        leader_epoch,
        2,
        0,
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
    )
    struct.pack_into(">I", view, 17, crc32c(view[21:]))


# ---- decoding ----

_Field = bytes | None
_Headers = tuple[tuple[str, _Field], ...]
_Fields = tuple[int, int, _Field, _Field, _Headers, int]


class _FieldError(Exception):
    pass


def _number(data: memoryview, position: int, end: int, bits: int = 32) -> tuple[int, int]:
    result = _get_groups(data, position, end, bits)
    if result is None:
        raise _FieldError
    return result


def _field(data: memoryview, position: int, end: int) -> tuple[_Field, int]:
    """A length and its bytes; a negative length is null, as for Kafka."""
    size, position = _number(data, position, end)
    if size < 0:
        return None, position
    if size > end - position:
        raise _FieldError
    return bytes(data[position : position + size]), position + size


def _read_record(data: memoryview, start: int, end: int) -> _Fields:
    """Timestamp delta, offset delta, key, value, headers and end of the record at ``start``."""
    head = _get_groups(data, start, end, 32)
    if head is None or not 0 <= head[0] <= end - head[1]:
        raise record_error(RECORD_LENGTH, start)
    length, position = head
    record_end = position + length
    try:
        if length == 0:
            raise _FieldError
        position += 1  # attributes: unused
        timestamp_delta, position = _number(data, position, record_end, 64)
        offset_delta, position = _number(data, position, record_end)
        key, position = _field(data, position, record_end)
        value, position = _field(data, position, record_end)
        count, position = _number(data, position, record_end)
        if count < 0:
            raise _FieldError
        headers = []
        for _ in range(count):
            name, position = _field(data, position, record_end)
            if name is None:
                raise _FieldError
            content, position = _field(data, position, record_end)
            # Kafka's reader replaces what is not UTF-8 instead of refusing the record.
            headers.append((name.decode(errors="replace"), content))
    except _FieldError:
        raise record_error(RECORD_FIELD, start) from None
    if position != record_end:
        raise record_error(RECORD_EXCESS, start)
    return timestamp_delta, offset_delta, key, value, tuple(headers), position


def _skim_record(data: memoryview, start: int, end: int) -> tuple[int, int, int]:
    """Timestamp delta, offset delta and end of the record at ``start``; the rest is not checked."""
    head = _get_groups(data, start, end, 32)
    if head is None or not 0 <= head[0] <= end - head[1]:
        raise record_error(RECORD_LENGTH, start)
    length, position = head
    record_end = position + length
    try:
        if length == 0:
            raise _FieldError
        timestamp_delta, position = _number(data, position + 1, record_end, 64)
        offset_delta, _ = _number(data, position, record_end)
    except _FieldError:
        raise record_error(RECORD_FIELD, start) from None
    return timestamp_delta, offset_delta, record_end


def _is_timed(bounds: ReadBounds) -> bool:
    return bounds.start_timestamp != -_INT64_MAX - 1 or bounds.end_timestamp != _INT64_MAX


def _is_in_time(bounds: ReadBounds, timestamp: int) -> bool:
    before_end = timestamp < bounds.end_timestamp or bounds.end_timestamp == _INT64_MAX
    return bounds.start_timestamp <= timestamp and before_end


def _decode_section(
    data: memoryview,
    start: int,
    end: int,
    base_offset: int,
    base_timestamp: int,
    record_count: int,
    log_append_time: int | None,
    bounds: ReadBounds,
) -> list[Record]:
    if not 0 <= record_count <= (end - start) // RECORD_SIZE_MIN:
        raise record_error(RECORD_COUNT, start)
    records, position, previous = [], start, -1
    timed = log_append_time is None and _is_timed(bounds)
    for _ in range(record_count):
        place, wanted = position, True
        if timed:
            delta, offset_delta, position = _skim_record(data, place, end)
            wanted = _is_in_time(bounds, _wrap(base_timestamp + delta, 64))
        if wanted:
            delta, offset_delta, key, value, headers, position = _read_record(data, place, end)
        if offset_delta <= previous:
            raise record_error(RECORD_OFFSET, place)
        previous = offset_delta
        timestamp = log_append_time
        if timestamp is None:
            timestamp = _wrap(base_timestamp + delta, 64)
        offset = _wrap(base_offset + offset_delta, 64)
        if wanted and bounds.from_offset <= offset < bounds.end_offset:
            records.append(Record(offset, timestamp, key, value, headers))
    if position != end:
        raise record_error(RECORD_TRAILING, position)
    return records


def decode_records(
    payload: Buffer,
    base_offset: int,
    base_timestamp: int,
    record_count: int,
    log_append_time: int | None = None,
    from_offset: int = 0,
) -> list[Record]:
    view = _bytes_of(payload)
    return _decode_section(
        view,
        0,
        len(view),
        base_offset,
        base_timestamp,
        record_count,
        log_append_time,
        ReadBounds(from_offset),
    )


_TAKE, _PASS, _PASS_CHECKED = -1, -2, -3


def _is_out_of_time(bounds: ReadBounds, attributes: int, max_timestamp: int) -> bool:
    """Whether a header of magic 2 shows that no record is in time."""
    return max_timestamp < bounds.start_timestamp or bool(
        attributes & 8 and not _is_in_time(bounds, max_timestamp)
    )


def _is_aborted(b: _Batch, bounds: ReadBounds) -> bool:
    if b.attributes & 0x30 != 0x10:
        return False
    begun = [a for a in bounds.aborted if a[:2] <= (b.producer_id, b.base_offset)]
    return bool(begun) and begun[-1][0] == b.producer_id and b.base_offset < begun[-1][2]


def _next_batch(view: memoryview, position: int, bounds: ReadBounds) -> tuple[_Batch | None, int]:
    """The batch at ``position`` and what to do with it, or the status that ends the walk."""
    b = _frame(view, position)
    if isinstance(b, int):
        if b == SCAN_BAD_SIZE:
            raise batch_error(b, view, position)
        return None, DECODE_END
    status = _fields(view, b)
    if status == _OK:
        status = _values(b)
    if status != _OK:
        raise batch_error(status, view, position)
    if b.last_offset < bounds.from_offset:
        return b, _PASS
    if b.base_offset >= bounds.end_offset:
        return b, DECODE_LIMIT
    if b.magic != 2:
        return b, DECODE_SPECIAL
    if _is_out_of_time(bounds, b.attributes, b.max_timestamp):
        return b, _PASS
    if (b.attributes & 0x20 and not bounds.include_control) or _is_aborted(b, bounds):
        return b, _PASS_CHECKED
    return b, DECODE_SPECIAL if b.attributes & 7 else _TAKE


def _decode_batch(view: memoryview, b: _Batch, bounds: ReadBounds) -> list[Record]:
    return _decode_section(
        view,
        b.position + HEADER_SIZE,
        b.end,
        b.base_offset,
        b.base_timestamp,
        b.record_count,
        b.max_timestamp if b.attributes & 8 else None,
        bounds,
    )


def decode_run(
    data: Buffer, position: int, out: list[Record], max_records: int, bounds: ReadBounds
) -> tuple[int, int]:
    view = _bytes_of(data)
    if not 0 <= position <= len(view):
        raise ValueError(f"position {position} is outside 0…{len(view)}")
    first = len(out)
    while len(out) - first < max_records:
        b, step = _next_batch(view, position, bounds)
        if b is None or step >= 0:
            return position, step
        if step != _PASS and bounds.check_crc and not _crc_ok(view, b):
            raise batch_error(SCAN_BAD_CRC, view, position)
        if step == _TAKE:
            out.extend(_decode_batch(view, b, bounds))
            if b.last_offset >= bounds.end_offset:
                return position, DECODE_LIMIT
        position = b.end
        if step == _TAKE and b.last_offset + 1 == bounds.end_offset:
            return position, DECODE_LIMIT
    return position, DECODE_FULL


class ColumnBuilder:
    def __init__(
        self,
        keys: bool = True,
        values: bool = True,
        timestamps: bool = True,
        headers: bool = False,
        column_bytes_max: int = _INT32_MAX,
        runs: bool = False,
    ) -> None:
        if not 0 <= column_bytes_max <= _INT32_MAX:
            raise ValueError(
                f"columns of {column_bytes_max} bytes: up to {_INT32_MAX} are possible"
            )
        self._column_bytes_max = column_bytes_max
        self._keys, self._values = keys, values
        self._timestamps, self._headers = timestamps, headers
        self._records: list[Record] = []
        self._size = [0, 0, 0]
        self._with_runs, self._runs = runs, list[tuple[int, int]]()

    @property
    def rows(self) -> int:
        return len(self._records)

    def add_run(
        self, data: Buffer, position: int, max_rows: int, max_bytes: int, bounds: ReadBounds
    ) -> tuple[int, int]:
        view = _bytes_of(data)
        if not 0 <= position <= len(view):
            raise ValueError(f"position {position} is outside 0…{len(view)}")
        while self.rows < max_rows and sum(self._size[:2]) < max_bytes:
            b, step = _next_batch(view, position, bounds)
            if b is None or step >= 0:
                return position, step
            if step != _PASS and bounds.check_crc and not _crc_ok(view, b):
                raise batch_error(SCAN_BAD_CRC, view, position)
            if step == _TAKE:
                if max(self._size) + b.size > self._column_bytes_max:
                    return position, DECODE_FULL
                self._add(_decode_batch(view, b, bounds), position)
                if b.last_offset >= bounds.end_offset:
                    return position, DECODE_LIMIT
            position = b.end
            if step == _TAKE and b.last_offset + 1 == bounds.end_offset:
                return position, DECODE_LIMIT
        return position, DECODE_FULL

    def add_payload(
        self,
        payload: Buffer,
        base_offset: int,
        base_timestamp: int,
        record_count: int,
        log_append_time: int | None,
        bounds: ReadBounds,
        batch_position: int = 0,
    ) -> int:
        view = _bytes_of(payload)
        if len(view) > _INT32_MAX:
            raise ValueError(f"{len(view)} bytes are too many for one section")
        if log_append_time is not None and _is_out_of_time(bounds, 8, log_append_time):
            return DECODE_END
        if max(self._size) + len(view) > self._column_bytes_max:
            return DECODE_FULL
        records = _decode_section(
            view,
            0,
            len(view),
            base_offset,
            base_timestamp,
            record_count,
            log_append_time,
            bounds,
        )
        self._add(records, batch_position)
        return DECODE_END

    def runs(self) -> tuple[array[int], array[int]]:
        ends, positions = zip(*self._runs, strict=True) if self._runs else ((), ())
        return array("q", ends), array("q", positions)

    def _add(self, records: list[Record], position: int) -> None:
        self._records += records
        if records and self._with_runs:
            self._runs.append((self.rows, position))
        if self._keys:
            self._size[0] += sum(len(r.key or b"") for r in records)
        if self._values:
            self._size[1] += sum(len(r.value or b"") for r in records)
        if self._headers:  # in bytes of names and values, at least the number of either
            self._size[2] += sum(
                len(name) * 4 + len(value or b"") + 2 for r in records for name, value in r.headers
            )

    def finish(self) -> dict[str, Any]:
        records, self._records, self._size = self._records, [], [0, 0, 0]
        self._runs = []
        result: dict[str, Any] = {"offsets": array("q", [r.offset for r in records])}
        if self._timestamps:
            result["timestamps"] = array("q", [r.timestamp for r in records])
        if self._keys:
            result |= _strings("key", [r.key for r in records])
        if self._values:
            result |= _strings("value", [r.value for r in records])
        if self._headers:
            lists = array("i", [0])
            headers: list[Header] = []
            for record in records:
                headers += record.headers
                lists.append(len(headers))
            result["header_list_offsets"] = lists
            result |= _strings("header_name", [name.encode() for name, _ in headers])
            result |= _strings("header_value", [value for _, value in headers])
            del result["header_name_validity"]
        return result


class RecordCount:
    def __init__(
        self,
        min_offset: bool = False,
        max_offset: bool = False,
        min_timestamp: bool = False,
        max_timestamp: bool = False,
    ) -> None:
        self._min_offset, self._max_offset = min_offset, max_offset
        self._min_timestamp, self._max_timestamp = min_timestamp, max_timestamp
        self.rows = 0
        self.min_offset: int | None = None
        self.max_offset: int | None = None
        self.min_timestamp: int | None = None
        self.max_timestamp: int | None = None

    def add_run(self, data: Buffer, position: int, bounds: ReadBounds) -> tuple[int, int]:
        view = _bytes_of(data)
        if not 0 <= position <= len(view):
            raise ValueError(f"position {position} is outside 0…{len(view)}")
        while True:
            b, step = _next_batch(view, position, bounds)
            if b is None:
                return position, step
            wanted = step == _TAKE or (step == DECODE_SPECIAL and b.magic == 2)
            decided = wanted and self._is_decided(b, bounds)
            if step >= 0 and not decided:
                return position, step
            if step != _PASS and bounds.check_crc and not _crc_ok(view, b):
                raise batch_error(SCAN_BAD_CRC, view, position)
            if decided and b.record_count:
                offsets, times = (b.base_offset, b.last_offset), (b.max_timestamp,) * 2
                self._include(b.record_count, offsets, times)
            elif step == _TAKE and not decided:
                time = b.max_timestamp if b.attributes & 8 else None
                first = b.position + HEADER_SIZE, b.end, b.base_offset, b.base_timestamp
                self._walk(view, *first, b.record_count, time, bounds)
                if b.last_offset >= bounds.end_offset:
                    return position, DECODE_LIMIT
            position = b.end
            if (decided or step == _TAKE) and b.last_offset + 1 == bounds.end_offset:
                return position, DECODE_LIMIT

    def add_payload(
        self,
        payload: Buffer,
        base_offset: int,
        base_timestamp: int,
        record_count: int,
        log_append_time: int | None,
        bounds: ReadBounds,
        batch_position: int = 0,
    ) -> int:
        view = _bytes_of(payload)
        first = 0, len(view), base_offset, base_timestamp
        self._walk(view, *first, record_count, log_append_time, bounds)
        return DECODE_END

    def _is_decided(self, b: _Batch, bounds: ReadBounds) -> bool:
        """Whether a header says all that is asked."""
        span, one_time = b.last_offset_delta + 1, bool(b.attributes & 8)
        if b.record_count > span:
            return False
        if b.base_offset < bounds.from_offset or b.last_offset >= bounds.end_offset:
            return False
        open_start = bounds.start_timestamp == -_INT64_MAX - 1
        before_end = b.max_timestamp < bounds.end_timestamp or bounds.end_timestamp == _INT64_MAX
        if not one_time and not (open_start and before_end):
            return False
        if b.record_count == 0:
            return True
        least_known = self.min_offset is not None and self.min_offset <= b.base_offset
        if b.record_count < span and (self._max_offset or (self._min_offset and not least_known)):
            return False
        return one_time or not self._min_timestamp

    def _walk(
        self,
        data: memoryview,
        start: int,
        end: int,
        base_offset: int,
        base_timestamp: int,
        record_count: int,
        log_append_time: int | None,
        bounds: ReadBounds,
    ) -> None:
        if not 0 <= record_count <= (end - start) // RECORD_SIZE_MIN:
            raise record_error(RECORD_COUNT, start)
        if log_append_time is not None and _is_out_of_time(bounds, 8, log_append_time):
            return
        found, position, previous = list[tuple[int, int]](), start, -1
        for _ in range(record_count):
            place = position
            delta, offset_delta, position = _skim_record(data, place, end)
            if offset_delta <= previous:
                raise record_error(RECORD_OFFSET, place)
            previous = offset_delta
            offset, time = _wrap(base_offset + offset_delta, 64), log_append_time
            if time is None:
                time = _wrap(base_timestamp + delta, 64)
            in_time = log_append_time is not None or _is_in_time(bounds, time)
            if in_time and bounds.from_offset <= offset < bounds.end_offset:
                found.append((offset, time))
        if position != end:
            raise record_error(RECORD_TRAILING, position)
        if found:
            offsets, times = zip(*found, strict=True)
            self._include(len(found), offsets, times)

    def _include(self, rows: int, offsets: Sequence[int], times: Sequence[int]) -> None:
        self.rows += rows
        for name, choose, values in (
            ("min_offset", min, offsets),
            ("max_offset", max, offsets),
            ("min_timestamp", min, times),
            ("max_timestamp", max, times),
        ):
            if getattr(self, f"_{name}"):
                known = getattr(self, name)
                best = choose(values)
                setattr(self, name, best if known is None else choose(known, best))


def _strings(name: str, values: Sequence[bytes | None]) -> dict[str, Any]:
    offsets = array("i", [0])
    for value in values:
        offsets.append(offsets[-1] + len(value or b""))
    bits = bytearray((len(values) + 7) // 8)
    for i, value in enumerate(values):
        bits[i >> 3] |= (value is not None) << (i & 7)
    return {
        f"{name}_offsets": offsets,
        f"{name}_data": b"".join(value or b"" for value in values),
        f"{name}_validity": bytes(bits) if None in values else None,
    }
