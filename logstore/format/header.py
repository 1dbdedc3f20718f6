"""The header of a magic 2 batch as a value, and patches of it in place (F-49…F-70).

Kafka: ``DefaultRecordBatch``.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from logstore.common.errors import CorruptBatchError
from logstore.common.types import NO_SEQUENCE, Buffer
from logstore.format import attributes as bits
from logstore.format.attributes import TimestampType
from logstore.format.codecs.compression import Compression
from logstore.kernels import crc32c

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_SIZE = 61
PREFIX_SIZE = 12
"""Bytes of base offset and length, which the length does not count (F-50)."""
MAGIC = 2
CRC_POSITION = 17
CRC_FROM = 21
"""First byte under the checksum: offset, length, leader epoch and magic are outside (F-62)."""
MAX_SEQUENCE = 2**31 - 1

_CRC = struct.Struct(">I")
_ATTRIBUTES = struct.Struct(">h")
_ATTRIBUTES_POSITION = 21
_MAX_TIMESTAMP = struct.Struct(">q")
_MAX_TIMESTAMP_POSITION = 35
_PRODUCER = struct.Struct(">qhi")
_PRODUCER_POSITION = 43

assert HEADER.size == HEADER_SIZE
assert struct.calcsize(">qiib") == CRC_POSITION
assert struct.calcsize(">qiibIhiq") == _MAX_TIMESTAMP_POSITION


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """The 61 bytes of a header in the order of the file, and ``position``, where they were read."""

    position: int
    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """Bytes of the whole batch (F-50)."""
        return PREFIX_SIZE + self.batch_length

    @property
    def payload_position(self) -> int:
        return self.position + HEADER_SIZE

    @property
    def end_position(self) -> int:
        return self.position + self.size

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """One past the last offset, also when records at the end were compacted away (F-64)."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """Counts offsets, not surviving records, and wraps (F-63)."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return add_sequence(self.base_sequence, self.last_offset_delta)

    @property
    def compression(self) -> Compression:
        """
        Raises:
            CorruptBatchError: codec 5, 6 or 7.
        """
        return bits.codec_of(self.attributes, self.position)

    @property
    def timestamp_type(self) -> TimestampType:
        return TimestampType(bool(self.attributes & bits.LOG_APPEND_TIME))

    @property
    def log_append_time(self) -> int | None:
        """The timestamp of every record when bit 3 is set (F-74), else ``None``."""
        return self.max_timestamp if self.attributes & bits.LOG_APPEND_TIME else None

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.attributes & bits.LOG_APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & bits.TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & bits.CONTROL)

    @property
    def delete_horizon(self) -> int | None:
        """The time from which tombstones and markers may go, if it was set (F-95)."""
        return self.base_timestamp if self.attributes & bits.DELETE_HORIZON else None

    @property
    def has_producer_id(self) -> bool:
        return self.producer_id >= 0


def add_sequence(sequence: int, increment: int) -> int:
    """After 2³¹−1 comes 0 (F-63)."""
    total = sequence + increment
    return total if total <= MAX_SEQUENCE else total - MAX_SEQUENCE - 1


def parse_header(data: Buffer, position: int = 0) -> BatchHeader:
    """The header at ``position``. The batch need not be whole, and the checksum is not looked at.

    Raises:
        CorruptBatchError: fewer than 61 bytes, another magic, or a length below a header's.
    """
    if len(data) - position < HEADER_SIZE:
        raise CorruptBatchError("", position, "data ends inside a batch header")
    header = BatchHeader(position, *HEADER.unpack_from(data, position))
    if header.magic != MAGIC:
        raise CorruptBatchError("", position, f"magic {header.magic} is not 2")
    if header.size < HEADER_SIZE:
        raise CorruptBatchError("", position, f"batch length {header.batch_length} below 49")
    return header


def batch_crc(data: Buffer, header: BatchHeader) -> int:
    """CRC-32C of the bytes that the stored checksum covers (F-53)."""
    crc: int = crc32c(memoryview(data)[header.position + CRC_FROM : header.end_position])
    return crc


def check_batch_crc(data: Buffer, header: BatchHeader) -> None:
    """
    Raises:
        CorruptBatchError: the checksum is wrong, or the batch runs past ``data``.
    """
    if header.end_position > len(data):
        raise CorruptBatchError(
            "", header.position, f"batch of {header.size} bytes runs past the data"
        )
    actual = batch_crc(data, header)
    if actual != header.crc:
        raise CorruptBatchError(
            "", header.position, f"checksum {header.crc:#010x}, the bytes give {actual:#010x}"
        )


def set_log_append_time(batch: bytearray | memoryview, timestamp: int, position: int = 0) -> None:
    """Rewrite the batch at ``position`` to LogAppendTime in place (F-94).

    Base timestamp and record deltas stay, so a compressed payload is not touched.
    """
    header = parse_header(batch, position)
    _set_times(batch, header, header.attributes | bits.LOG_APPEND_TIME, timestamp)


def set_create_time(batch: bytearray | memoryview, max_timestamp: int, position: int = 0) -> None:
    """Rewrite the batch at ``position`` to CreateTime in place; ``max_timestamp`` is the largest of
    its records (F-173, F-179)."""
    header = parse_header(batch, position)
    _set_times(batch, header, header.attributes & ~bits.LOG_APPEND_TIME, max_timestamp)


def _set_times(
    batch: bytearray | memoryview, header: BatchHeader, attributes: int, max_timestamp: int
) -> None:
    view, position = memoryview(batch), header.position
    _ATTRIBUTES.pack_into(view, position + _ATTRIBUTES_POSITION, attributes)
    _MAX_TIMESTAMP.pack_into(view, position + _MAX_TIMESTAMP_POSITION, max_timestamp)
    _CRC.pack_into(view, position + CRC_POSITION, batch_crc(view, header))


def set_producer(
    batch: bytearray | memoryview,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    position: int = 0,
) -> None:
    """Name the producer of the batch at ``position``, in place."""
    header = parse_header(batch, position)
    view = memoryview(batch)
    _PRODUCER.pack_into(
        view, position + _PRODUCER_POSITION, producer_id, producer_epoch, base_sequence
    )
    _CRC.pack_into(view, position + CRC_POSITION, batch_crc(view, header))
