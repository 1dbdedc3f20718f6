"""Encode records as a magic 2 batch (F-71…F-97).

New batches are built by the kernels. A batch that compaction rebuilds, with gaps between its
offsets or a delete horizon, is encoded in plain Python.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias, TypedDict, Unpack

from logstore.common.bounds import UNPACKED_MAX
from logstore.common.errors import InvalidRecordError, RecordTooLargeError
from logstore.common.types import (
    NO_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    Buffer,
    Record,
)
from logstore.format import attributes as bits
from logstore.format.attributes import TimestampType
from logstore.format.codecs.compression import Compression, compress
from logstore.format.control import ControlType, encode_control_key, encode_marker_value
from logstore.format.header import HEADER_SIZE, BatchHeader
from logstore.kernels import (
    Encoded,
    encode_columns,
    encode_lists,
    encode_records,
    encode_varint,
    encode_varlong,
    seal_batch,
)

ArrowStrings: TypeAlias = tuple[Buffer | None, Buffer | None, Buffer | None]


class BatchFields(TypedDict, total=False):
    """The fields of a batch besides its records, all optional.

    ``log_append_time`` makes the batch one of LogAppendTime; record timestamps are still stored
    (F-94). ``level`` is the codec's own, by default Kafka's default.
    """

    base_offset: int
    leader_epoch: int
    compression: Compression
    level: int | None
    log_append_time: int | None
    producer_id: int
    producer_epoch: int
    base_sequence: int
    transactional: bool
    control: bool


def encode_batch(
    records: Iterable[Any],
    *,
    default_timestamp: Any = NO_TIMESTAMP,
    keys_required: bool = False,
    **fields: Unpack[BatchFields],
) -> bytearray:
    """One sealed batch with consecutive offsets from ``base_offset`` on.

    ``records`` are what the kernel ``encode_records`` takes, in any iterable, which is walked
    once; ``default_timestamp`` stands in where a record has none. ``keys_required`` refuses
    records without a key, as a compacted topic does. No records give no bytes.

    Raises:
        InvalidRecordError: a record or a field breaks F-75; ``record_errors`` has the index of
            the record and what is wrong with it.
    """
    encoded = encode_records(records, default_timestamp, keys_required=keys_required)
    return _sealed(encoded, **fields)


def encode_batch_lists(
    keys: Any,
    values: Any,
    timestamps: Any = None,
    headers: Any = None,
    *,
    default_timestamp: Any = NO_TIMESTAMP,
    keys_required: bool = False,
    **fields: Unpack[BatchFields],
) -> bytearray:
    """As ``encode_batch``, from one iterable for each field."""
    encoded = encode_lists(
        keys, values, timestamps, headers, default_timestamp, keys_required=keys_required
    )
    return _sealed(encoded, **fields)


def encode_batch_columns(
    start: int,
    stop: int,
    keys: ArrowStrings,
    values: ArrowStrings,
    timestamps: Any = None,
    headers: tuple[Any, ...] | None = None,
    *,
    default_timestamp: Any = NO_TIMESTAMP,
    **fields: Unpack[BatchFields],
) -> bytearray:
    """As ``encode_batch``, from rows ``[start, stop)`` of Arrow columns.

    ``keys`` and ``values`` are ``(offsets, data, validity)``, buffers or ``None`` as Arrow has
    them, with 4-byte offsets; ``timestamps`` is a buffer of int64 or one number for all;
    ``headers`` are the buffers that the kernel ``encode_columns`` takes.
    """
    try:
        encoded = encode_columns(
            start, stop, *keys, *values, timestamps, default_timestamp, headers=headers
        )
    except ValueError as error:
        raise InvalidRecordError(str(error)) from None
    return _sealed(encoded, **fields)


def end_transaction_marker(
    control_type: ControlType,
    *,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    timestamp: int,
    base_offset: int = 0,
    leader_epoch: int = NO_EPOCH,
) -> bytearray:
    """The batch of one record that ends a transaction (F-81): 78 bytes."""
    if control_type not in (ControlType.COMMIT, ControlType.ABORT):
        raise InvalidRecordError(f"{control_type.name} does not end a transaction")
    key, value = encode_control_key(control_type), encode_marker_value(coordinator_epoch)
    return encode_batch(
        [Record(base_offset, timestamp, key, value)],
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )


def _sealed(
    encoded: Encoded,
    *,
    base_offset: int = 0,
    leader_epoch: int = NO_EPOCH,
    compression: Compression = Compression.NONE,
    level: int | None = None,
    log_append_time: int | None = None,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
    control: bool = False,
) -> bytearray:
    """Compress the records where asked, and put the header before them.

    Raises:
        InvalidRecordError: a field does not fit into the header, or contradicts another.
    """
    if not encoded.count:
        return bytearray()  # without records there is no batch (F-75)
    _check_producer(producer_id, producer_epoch, base_sequence, transactional, control)
    attributes = int(compression)
    attributes |= bits.TRANSACTIONAL if transactional else 0
    attributes |= bits.CONTROL if control else 0
    max_timestamp = encoded.max_timestamp
    if log_append_time is not None:
        attributes |= bits.LOG_APPEND_TIME
        max_timestamp = log_append_time
    buffer: bytearray = encoded.buffer
    try:
        if compression is not Compression.NONE:
            buffer = _compressed(buffer, compression, level)
        seal_batch(
            buffer,
            base_offset=base_offset,
            leader_epoch=leader_epoch,
            attributes=attributes,
            last_offset_delta=encoded.count - 1,
            base_timestamp=encoded.base_timestamp,
            max_timestamp=max_timestamp,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            record_count=encoded.count,
        )
    except (OverflowError, ValueError) as error:
        raise InvalidRecordError(str(error)) from None
    return buffer


def _compressed(buffer: bytearray, compression: Compression, level: int | None) -> bytearray:
    """
    Raises:
        RecordTooLargeError: no reader would unpack so much.
    """
    size = len(buffer) - HEADER_SIZE
    if size > UNPACKED_MAX:
        raise RecordTooLargeError(
            f"{size} bytes of records in a compressed batch, at most {UNPACKED_MAX} are possible"
        )
    with memoryview(buffer) as view:
        return bytearray(HEADER_SIZE) + compress(compression, view[HEADER_SIZE:], level)


def _check_producer(
    producer_id: int, producer_epoch: int, base_sequence: int, transactional: bool, control: bool
) -> None:
    """The rules between the producer fields (F-75)."""
    if producer_id >= 0:
        if producer_epoch < 0:
            raise InvalidRecordError(f"producer {producer_id} without an epoch")
        if base_sequence < 0 and not control:
            raise InvalidRecordError(f"producer {producer_id} without a base sequence")
    elif transactional:
        raise InvalidRecordError("a transactional batch needs a producer id")
    if control and base_sequence != NO_SEQUENCE:
        raise InvalidRecordError(f"a control batch has no sequence, not {base_sequence}")


def empty_batch(header: BatchHeader) -> bytearray:
    """The 61 bytes that compaction keeps of a batch without remaining records (F-92)."""
    kept = bits.LOG_APPEND_TIME | bits.TRANSACTIONAL | bits.CONTROL
    return seal_as(bytearray(HEADER_SIZE), header, header.attributes & kept, NO_TIMESTAMP)


def rebuild_batch(
    header: BatchHeader,
    records: Sequence[Record],
    *,
    delete_horizon: int | None = None,
    level: int | None = None,
) -> bytearray:
    """The batch of ``header`` with its remaining records (F-95, F-304).

    Codec, offsets, producer fields, epoch and sequence are kept; base and largest timestamp follow
    the records. A horizon that is set already is never moved (F-96).

    Raises:
        InvalidRecordError: offsets do not ascend or lie outside the batch; a negative timestamp
            other than −1.
    """
    if not records:
        return empty_batch(header)
    if header.delete_horizon is not None:
        delete_horizon = header.delete_horizon
    base_timestamp = records[0].timestamp if delete_horizon is None else delete_horizon
    for record in records:
        if record.timestamp < NO_TIMESTAMP:
            raise InvalidRecordError(f"timestamp {record.timestamp} of offset {record.offset}")
    if records[-1].offset > header.last_offset:
        raise InvalidRecordError(f"offset {records[-1].offset} after {header.last_offset}")
    buffer = bytearray(HEADER_SIZE)
    buffer += encode_section(records, header.base_offset, base_timestamp)
    if header.compression is not Compression.NONE:
        buffer = _compressed(buffer, header.compression, level)
    attributes = header.attributes & ~bits.DELETE_HORIZON
    attributes |= 0 if delete_horizon is None else bits.DELETE_HORIZON
    max_timestamp = max(record.timestamp for record in records)
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        max_timestamp = header.max_timestamp
    return seal_as(buffer, header, attributes, base_timestamp, max_timestamp, len(records))


def seal_as(
    buffer: bytearray,
    header: BatchHeader,
    attributes: int,
    base_timestamp: int,
    max_timestamp: int | None = None,
    record_count: int = 0,
) -> bytearray:
    """Write the other fields of ``header``, for a batch that compaction rebuilds."""
    seal_batch(
        buffer,
        base_offset=header.base_offset,
        leader_epoch=header.leader_epoch,
        attributes=attributes,
        last_offset_delta=header.last_offset_delta,
        base_timestamp=base_timestamp,
        max_timestamp=header.max_timestamp if max_timestamp is None else max_timestamp,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        record_count=record_count,
    )
    return buffer


def encode_section(records: Iterable[Record], base_offset: int, base_timestamp: int) -> bytearray:
    """The records part of a batch, uncompressed, with the offsets that the records have (F-71).

    Raises:
        InvalidRecordError: offsets do not ascend from ``base_offset`` on.
    """
    section = bytearray()
    last = base_offset - 1
    for record in records:
        if record.offset <= last:
            raise InvalidRecordError(f"offset {record.offset} after {last}")
        last = record.offset
        _append_record(section, record, base_offset, base_timestamp)
    return section


def _append_record(
    buffer: bytearray, record: Record, base_offset: int, base_timestamp: int
) -> None:
    """One record in the layout of F-71."""
    body = bytearray(1)  # attributes: unused
    body += encode_varlong(record.timestamp - base_timestamp)
    body += encode_varint(record.offset - base_offset)
    for field in (record.key, record.value):
        _append_bytes(body, field)
    body += encode_varint(len(record.headers))
    for name, content in record.headers:
        _append_bytes(body, name.encode())
        _append_bytes(body, content)
    buffer += encode_varint(len(body))
    buffer += body


def _append_bytes(body: bytearray, field: bytes | None) -> None:
    body += encode_varint(-1 if field is None else len(field))
    if field is not None:
        body += field
