"""Message sets of magic 0 and 1, for reading only (F-98…F-104).

An entry is one message, or a compressed wrapper around a message set. ``LegacyBatch`` describes
either; it plays the part of ``BatchHeader``, with the fields that these formats lack at −1.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import ClassVar

from logstore.common.bounds import UNPACKED_MAX
from logstore.common.errors import CorruptBatchError
from logstore.common.types import NO_EPOCH, NO_TIMESTAMP, Buffer, Record
from logstore.format import attributes as bits
from logstore.format.attributes import TimestampType
from logstore.format.codecs.compression import Compression, decompress
from logstore.kernels import crc32

_ENTRY = struct.Struct(">qiIbB")
_TIMESTAMP = struct.Struct(">q")
_LENGTH = struct.Struct(">i")
_PREFIX_BYTES = 12  # offset and size: what the size field does not count
_CRC_FROM = 16
_MAX_SPAN = 2**31 - 1  # the offsets of one wrapper: a segment spans no more
MIN_SIZE = (14, 22)
"""Smallest size field of magic 0 and 1 (F-99)."""

assert _ENTRY.size == 18


@dataclass(frozen=True, slots=True)
class LegacyBatch:
    """One entry. ``offset`` is that of its **last** message (F-101, F-103)."""

    position: int
    offset: int
    batch_length: int
    crc: int
    magic: int
    attributes: int
    timestamp: int

    leader_epoch: ClassVar[int] = NO_EPOCH
    is_control: ClassVar[bool] = False
    is_transactional: ClassVar[bool] = False

    @property
    def size(self) -> int:
        return _PREFIX_BYTES + self.batch_length

    @property
    def end_position(self) -> int:
        return self.position + self.size

    @property
    def base_offset(self) -> int:
        """The base offset.

        A wrapper has its last offset, as in Kafka, since the base is unknown without unpacking.
        """
        return self.offset

    @property
    def last_offset(self) -> int:
        return self.offset

    @property
    def next_offset(self) -> int:
        return self.offset + 1

    @property
    def compression(self) -> Compression:
        return bits.codec_of(self.attributes, self.position)

    @property
    def timestamp_type(self) -> TimestampType:
        if self.magic == 0:
            return TimestampType.NONE
        return TimestampType(bool(self.attributes & bits.LOG_APPEND_TIME))

    @property
    def max_timestamp(self) -> int:
        return self.timestamp


def parse_legacy(data: Buffer, position: int = 0) -> LegacyBatch:
    """The fixed fields of the entry at ``position``; the checksum is not looked at.

    Raises:
        CorruptBatchError: it is no entry of magic 0 or 1, is smaller than one, or is not whole.
    """
    if len(data) - position < _ENTRY.size:
        raise CorruptBatchError("", position, "data ends inside a message header")
    offset, length, crc, magic, attributes = _ENTRY.unpack_from(data, position)
    if magic not in (0, 1):
        raise CorruptBatchError("", position, f"magic {magic} is not that of a legacy message")
    if length < MIN_SIZE[magic]:
        raise CorruptBatchError("", position, f"message size {length} below {MIN_SIZE[magic]}")
    if length > len(data) - position - _PREFIX_BYTES:
        raise CorruptBatchError("", position, f"message size {length} runs past the data")
    timestamp = NO_TIMESTAMP
    if magic == 1:
        (timestamp,) = _TIMESTAMP.unpack_from(data, position + _ENTRY.size)
    return LegacyBatch(position, offset, length, crc, magic, attributes, timestamp)


def legacy_crc(data: Buffer, batch: LegacyBatch) -> int:
    """CRC-32 of the bytes that the stored checksum covers."""
    crc: int = crc32(memoryview(data)[batch.position + _CRC_FROM : batch.end_position])
    return crc


def legacy_records(
    data: Buffer,
    batch: LegacyBatch,
    *,
    check_crc: bool = True,
    limit: int = UNPACKED_MAX,
) -> list[Record]:
    """The messages of one entry with absolute offsets; a wrapper is unpacked.

    ``check_crc`` is about the entry. The messages in a wrapper are always checked, since no earlier
    check covers them.

    Raises:
        CorruptBatchError: at the position of the entry, for every fault in it or inside it.
    """
    view = memoryview(data)
    codec = batch.compression
    key, value = _check_and_split(view, batch, check_crc)
    if codec is Compression.NONE:
        return [Record(batch.offset, batch.timestamp, _copy(key), _copy(value))]
    if codec is Compression.ZSTD:
        raise CorruptBatchError("", batch.position, "zstd in a legacy message")
    if value is None:
        raise CorruptBatchError("", batch.position, "compressed wrapper with a null value")
    try:
        inner = memoryview(decompress(codec, value, limit, batch.magic))
        return _unwrap(batch, inner)
    except CorruptBatchError as error:
        raise CorruptBatchError("", batch.position, f"in a wrapper: {error.reason}") from None


def _unwrap(wrapper: LegacyBatch, inner: memoryview) -> list[Record]:
    records: list[Record] = []
    position = 0
    while position < len(inner):
        entry = parse_legacy(inner, position)
        if entry.magic != wrapper.magic:
            raise CorruptBatchError("", position, f"magic {entry.magic} inside {wrapper.magic}")
        if entry.compression is not Compression.NONE:
            raise CorruptBatchError("", position, "compressed message inside a wrapper")
        key, value = _check_and_split(inner, entry, True)
        timestamp = entry.timestamp
        if wrapper.timestamp_type is TimestampType.LOG_APPEND_TIME:
            timestamp = wrapper.timestamp
        if records and not records[-1].offset < entry.offset <= records[0].offset + _MAX_SPAN:
            raise CorruptBatchError(
                "", position, f"offset {entry.offset} after {records[-1].offset}"
            )
        records.append(Record(entry.offset, timestamp, _copy(key), _copy(value)))
        position = entry.end_position
    if not records:
        raise CorruptBatchError("", 0, "empty message set")
    shift = _offset_shift(wrapper, records[-1].offset)
    if shift:
        records = [record._replace(offset=record.offset + shift) for record in records]
    return records


def _offset_shift(wrapper: LegacyBatch, last_inner: int) -> int:
    """Return the number that turns inner offsets into absolute ones (F-101)."""
    if wrapper.magic == 0 or wrapper.offset == 0:
        return 0
    if wrapper.offset < last_inner:
        raise CorruptBatchError(
            "", 0, f"last inner offset {last_inner} above that of the wrapper, {wrapper.offset}"
        )
    return wrapper.offset - last_inner


def _check_and_split(
    view: memoryview, batch: LegacyBatch, check_crc: bool
) -> tuple[memoryview | None, memoryview | None]:
    if check_crc:
        actual = legacy_crc(view, batch)
        if actual != batch.crc:
            raise CorruptBatchError(
                "", batch.position, f"checksum {batch.crc:#010x}, the bytes give {actual:#010x}"
            )
    start = batch.position + _ENTRY.size + (_TIMESTAMP.size if batch.magic else 0)
    key, start = _field(view, start, batch)
    value, start = _field(view, start, batch)
    if start != batch.end_position:
        raise CorruptBatchError("", batch.position, "bytes remain after the value of a message")
    return key, value


def _field(view: memoryview, start: int, batch: LegacyBatch) -> tuple[memoryview | None, int]:
    left = batch.end_position - start - _LENGTH.size
    if left < 0:
        raise CorruptBatchError("", batch.position, "message ends inside a field length")
    (length,) = _LENGTH.unpack_from(view, start)
    start += _LENGTH.size
    if length < 0:  # only −1 is written, and any is read, as Kafka does
        return None, start
    if length > left:
        raise CorruptBatchError("", batch.position, f"field of {length} bytes, {left} left")
    return view[start : start + length], start + length


def _copy(field: memoryview | None) -> bytes | None:
    return None if field is None else bytes(field)
