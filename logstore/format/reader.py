"""Decode batches of any magic and codec to records.

The kernels decode plain magic 2 batches, thousands of records in one call. They leave compressed,
control and legacy batches, which are unpacked here.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from logstore.common.bounds import UNPACKED_MAX
from logstore.common.errors import CorruptBatchError
from logstore.common.types import Buffer, Record
from logstore.format.batch import encode_section
from logstore.format.codecs.compression import Compression, decompress
from logstore.format.header import PREFIX_SIZE, BatchHeader, check_batch_crc, parse_header
from logstore.format.legacy import MIN_SIZE, LegacyBatch, legacy_records, parse_legacy
from logstore.kernels import (
    DECODE_FULL,
    DECODE_LIMIT,
    DECODE_SPECIAL,
    ColumnBuilder,
    ReadBounds,
    RecordCount,
    decode_records,
    decode_run,
)

Batch: TypeAlias = BatchHeader | LegacyBatch

MAX_OFFSET = 2**63 - 1
HEADER_UP_TO_MAGIC = 17
_LENGTH_AND_MAGIC = struct.Struct(">8xi4xb")

assert _LENGTH_AND_MAGIC.size == HEADER_UP_TO_MAGIC


def parse_batch(data: Buffer, position: int = 0) -> Batch | None:
    """The batch or message at ``position``; ``None`` where the scan of F-106 stops silently.

    Raises:
        CorruptBatchError: a size below the smallest one, or a magic that is not 0, 1 or 2.
    """
    if position >= len(data) - HEADER_UP_TO_MAGIC:
        return None
    length, magic = _LENGTH_AND_MAGIC.unpack_from(data, position)
    if length < MIN_SIZE[0]:
        raise CorruptBatchError("", position, f"batch size {length} is below {MIN_SIZE[0]}")
    if not 0 <= magic <= 2:
        raise CorruptBatchError("", position, f"magic {magic} is not 0, 1 or 2")
    if position + PREFIX_SIZE + length > len(data):
        return None
    return parse_header(data, position) if magic == 2 else parse_legacy(data, position)


def iter_batches(data: Buffer, position: int = 0) -> Iterator[Batch]:
    """The whole batches from ``position`` on; a torn tail is not seen (F-107).

    Checksums are not checked. Stricter than Kafka's file scan in one point: a magic above 2 is an
    error (F-108), since no checksum covers it and such a batch cannot be read.

    Raises:
        CorruptBatchError: as ``parse_batch``. The batches before it were yielded.
    """
    while (batch := parse_batch(data, position)) is not None:
        yield batch
        position = batch.end_position


def batch_records(
    data: Buffer,
    batch: Batch,
    *,
    check_crc: bool = True,
    from_offset: int = 0,
    decompressed_limit: int = UNPACKED_MAX,
) -> list[Record]:
    """The records of one batch of ``data`` from ``from_offset`` on, control records too.

    All or nothing: a fault anywhere in the batch is an error, not a shorter list.

    Raises:
        CorruptBatchError: in a plain batch at the record, in a compressed one at the batch.
    """
    if isinstance(batch, LegacyBatch):
        records = legacy_records(data, batch, check_crc=check_crc, limit=decompressed_limit)
        return [record for record in records if record.offset >= from_offset]
    if check_crc:
        check_batch_crc(data, batch)
    payload = payload_of(data, batch, decompressed_limit)
    try:
        decoded: list[Record] = decode_records(
            payload,
            batch.base_offset,
            batch.base_timestamp,
            batch.record_count,
            batch.log_append_time,
            from_offset,
        )
    except CorruptBatchError as error:
        raise _in_batch(batch, error) from None
    return decoded


def payload_of(data: Buffer, batch: BatchHeader, limit: int = UNPACKED_MAX) -> Buffer:
    """The records part of a batch, unpacked."""
    stored = memoryview(data)[batch.payload_position : batch.end_position]
    try:
        return decompress(batch.compression, stored, limit)
    except CorruptBatchError as error:
        raise CorruptBatchError("", batch.position, error.reason) from None


def _in_batch(batch: BatchHeader, error: CorruptBatchError) -> CorruptBatchError:
    """An error inside the payload, seen from the file."""
    if batch.compression is Compression.NONE:
        return error.located("", batch.payload_position)
    return CorruptBatchError("", batch.position, error.reason)


ALL = ReadBounds()


def read_records(
    data: Buffer,
    *,
    from_offset: int = 0,
    end_offset: int = MAX_OFFSET,
    max_records: int = 2**31 - 1,
    check_crc: bool = True,
    include_control: bool = False,
    decompressed_limit: int = UNPACKED_MAX,
    aborted: Sequence[tuple[int, int, int]] = (),
    path: str = "",
    base_position: int = 0,
) -> list[Record]:
    """At most ``max_records`` records of the batches in ``data``; see ``ReadBounds``.

    ``decompressed_limit`` bounds, in bytes, what one batch may unpack to.

    The torn tail that a read of a fixed size leaves is dropped (F-158). ``path`` and
    ``base_position`` say where ``data`` comes from, for errors only.

    Raises:
        CorruptBatchError: a batch is damaged; nothing is returned.
    """
    bounds = ReadBounds(from_offset, end_offset, check_crc, include_control, aborted)
    out: list[Record] = []
    try:
        fill_records(data, 0, out, max_records, bounds, decompressed_limit)
    except CorruptBatchError as error:
        raise error.located(path, base_position) from None
    del out[max_records:]
    return out


def fill_records(
    data: Buffer,
    position: int,
    out: list[Record],
    max_records: int,
    bounds: ReadBounds = ALL,
    decompressed_limit: int = UNPACKED_MAX,
) -> tuple[int, int]:
    """Append records to ``out`` until ``max_records`` or more were added: whole batches only.

    Returns:
        The position to continue from, and ``DECODE_END`` if no whole batch is left there,
        ``DECODE_FULL``, or at ``end_offset`` ``DECODE_LIMIT``.
    Raises:
        CorruptBatchError: with the position in ``data``; ``out`` has the records before it.
    """
    wanted = len(out) + max_records
    while len(out) < wanted:
        position, status = decode_run(data, position, out, wanted - len(out), bounds)
        special = _special(data, position, status)
        if special is None:
            return position, status
        for record in _special_records(data, special, bounds, decompressed_limit):
            if record.offset >= bounds.end_offset:
                return position, DECODE_LIMIT
            if bounds.is_in_time(record.timestamp):
                out.append(record)
        position = special.end_position
    return position, DECODE_FULL


def fill_columns(
    data: Buffer,
    position: int,
    builder: ColumnBuilder,
    max_rows: int,
    max_bytes: int,
    bounds: ReadBounds = ALL,
    decompressed_limit: int = UNPACKED_MAX,
) -> tuple[int, int]:
    """As ``fill_records``, into Arrow columns; full at ``max_rows`` or ``max_bytes`` of them."""
    while builder.rows < max_rows:
        position, status = builder.add_run(data, position, max_rows, max_bytes, bounds)
        special = _special(data, position, status)
        if special is None:
            return position, status
        if not _add_special(data, special, builder, bounds, decompressed_limit):
            return position, DECODE_FULL
        if special.last_offset >= bounds.end_offset:
            return position, DECODE_LIMIT
        position = special.end_position
    return position, DECODE_FULL


def count_records(
    data: Buffer,
    position: int,
    count: RecordCount,
    bounds: ReadBounds = ALL,
    decompressed_limit: int = UNPACKED_MAX,
) -> tuple[int, int]:
    """Add the records of all batches from ``position`` on to ``count``; as ``fill_columns``."""
    while True:
        position, status = count.add_run(data, position, bounds)
        special = _special(data, position, status)
        if special is None:
            return position, status
        _add_special(data, special, count, bounds, decompressed_limit)
        if special.last_offset >= bounds.end_offset:
            return position, DECODE_LIMIT
        position = special.end_position


def _special(data: Buffer, position: int, status: int) -> Batch | None:
    """The batch on which a kernel stopped because it needs unpacking.

    A legacy wrapper has the offset of its last message (F-101): a kernel that stops before it for
    the sake of the end offset may leave out messages below that.
    """
    if status == DECODE_SPECIAL:
        return parse_batch(data, position)
    if status == DECODE_LIMIT:
        batch = parse_batch(data, position)
        if isinstance(batch, LegacyBatch) and batch.compression is not Compression.NONE:
            return batch
    return None


def _special_records(
    data: Buffer, batch: Batch, bounds: ReadBounds, decompressed_limit: int
) -> list[Record]:
    return batch_records(
        data,
        batch,
        check_crc=bounds.check_crc,
        from_offset=bounds.from_offset,
        decompressed_limit=decompressed_limit,
    )


def _add_special(
    data: Buffer,
    batch: Batch,
    builder: ColumnBuilder | RecordCount,
    bounds: ReadBounds,
    decompressed_limit: int,
) -> bool:
    """Add the records of one batch; false when the builder has no room, and nothing was added."""
    if isinstance(batch, LegacyBatch):
        records = _special_records(data, batch, bounds, decompressed_limit)
        if not records:
            return True
        base_offset, base_timestamp = records[0].offset, 0  # a delta against 0 cannot overflow
        payload: Buffer = encode_section(records, base_offset, base_timestamp)
        count, log_append_time = len(records), None
    else:
        if bounds.check_crc:
            check_batch_crc(data, batch)
        payload = payload_of(data, batch, decompressed_limit)
        base_offset, base_timestamp = batch.base_offset, batch.base_timestamp
        count, log_append_time = batch.record_count, batch.log_append_time
    try:
        status: int = builder.add_payload(
            payload,
            base_offset,
            base_timestamp,
            count,
            log_append_time,
            bounds,
            batch.position,
        )
    except CorruptBatchError as error:
        if isinstance(batch, LegacyBatch):
            raise CorruptBatchError("", batch.position, error.reason) from None
        raise _in_batch(batch, error) from None
    return status != DECODE_FULL
