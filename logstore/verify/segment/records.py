"""The deep check: decode records and compare them with the headers of their batches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from threading import Lock

from logstore.common.errors import CorruptBatchError
from logstore.format import attributes as bits
from logstore.format.codecs.compression import Compression, decompress, is_above_limit
from logstore.format.control import parse_marker
from logstore.format.header import HEADER_SIZE, parse_header
from logstore.format.legacy import legacy_records, parse_legacy
from logstore.format.reader import batch_records
from logstore.kernels import (
    DECODE_END,
    ColumnBuilder,
    ReadBounds,
    fits_in_section,
    irregular_batches,
)
from logstore.verify.common.batch_rules import MAGIC, Row, check_records
from logstore.verify.common.header_table import ATTRIBUTES, POSITION, SIZE, HeaderTable
from logstore.verify.common.header_table import MAGIC as MAGIC_AT
from logstore.verify.common.report import Problem, error, warning

_PLAIN_BITS = bits.CODEC_MASK | bits.CONTROL
_CODECS = {int(codec): codec for codec in Compression if codec is not Compression.NONE}
_ROWS_MAX = 65_536
_ALL = 2**63 - 1
_SMALL_BYTES = 4 << 20
_UNPACKED_SMALL = 16 << 20
_big_batch = Lock()
"""Held while a batch is unpacked that is large or becomes large, so that threads share one bound on
memory.
"""


def check_content(
    view: memoryview, table: HeaderTable, limit: int, wrapped: list[int] | None = None
) -> Iterator[Problem]:
    """Decode every record of the batches in ``table``, whose bytes lie in ``view``.

    A kernel checks all plain batches at once, without a Python object for each record. What it
    cannot judge is checked here. ``limit`` bounds the unpacked bytes of one compressed batch.
    ``wrapped`` gets how many messages each wrapper of an older format holds: no header counts them.
    """
    for number in _unsound(view, table, limit):
        row = table.row(number)
        batch = view[row.position - table.start : row.end - table.start]
        if row.magic == MAGIC and not row.attributes & _PLAIN_BITS:
            yield from _check_plain(batch, row)
        else:
            yield from _check_special(batch, table, number, row, limit, wrapped)


def _unsound(view: memoryview, table: HeaderTable, limit: int) -> Iterator[int]:
    """The batches that want a closer look: compressed ones, which are the usual case, are unpacked
    here in little time, and left out if they are small and without a fault.
    """
    small = min(limit, _UNPACKED_SMALL)
    positions, sizes = table.column(POSITION), table.column(SIZE)
    attributes, magics = table.column(ATTRIBUTES), table.column(MAGIC_AT)
    for number in irregular_batches(view, table.columns, table.count):
        codec = _CODECS.get(attributes[number] & _PLAIN_BITS)
        size = sizes[number]
        if codec is not None and size <= _SMALL_BYTES and magics[number] == MAGIC:
            at = positions[number]
            with suppress(CorruptBatchError):
                payload = decompress(codec, view[at + HEADER_SIZE : at + size], small)
                if fits_in_section(payload, table.columns, number):
                    continue
        yield number


def check_horizons(view: memoryview, table: HeaderTable, limit: int) -> Iterator[Problem]:
    """A cleaner sets a delete horizon for what is to go later, tombstones and markers, and they
    are there until it takes them out (F-95).
    """
    for row in table.rows():
        if row.has_horizon and not row.has_hole and not row.is_control:
            batch = view[row.position - table.start : row.end - table.start]
            try:
                parsed = parse_header(batch)
                records = batch_records(batch, parsed, check_crc=False, decompressed_limit=limit)
            except CorruptBatchError:
                continue  # which has its own finding
            if all(record.value is not None for record in records):
                message = "a delete horizon, but nothing to delete and nothing deleted"
                yield warning("log-attributes", message, row.position, row.base_offset)


def _check_plain(batch: memoryview, row: Row) -> Iterator[Problem]:
    builder = ColumnBuilder(keys=False, values=False, timestamps=True)
    try:
        end, _ = builder.add_run(batch, 0, _ROWS_MAX, _ALL, ReadBounds(check_crc=False))
    except CorruptBatchError as failure:
        message = f"byte {failure.position} of the batch: {failure.reason}"
        yield error("log-records", message, row.position, row.base_offset)
        return
    if end < row.size:
        yield warning("log-records", "records were not decoded", row.position, row.base_offset)
        return
    yield from _check_columns(builder, row)


def _check_columns(builder: ColumnBuilder, row: Row) -> Iterator[Problem]:
    columns = builder.finish()
    yield from check_records(row, memoryview(columns["offsets"]), memoryview(columns["timestamps"]))


def _check_special(
    batch: memoryview,
    table: HeaderTable,
    number: int,
    row: Row,
    limit: int,
    wrapped: list[int] | None,
) -> Iterator[Problem]:
    """Check a batch that is compressed, holds control records or has an older format."""
    at = row.position, row.base_offset
    codec = row.attributes & bits.CODEC_MASK
    if codec > Compression.ZSTD or (row.magic < MAGIC and codec == Compression.ZSTD):
        return  # no such codec; reported already (F-65)
    try:
        if row.magic < MAGIC:
            yield from _check_legacy(batch, row, limit, wrapped)
        elif row.is_control:
            yield from _check_control(batch, row)
        else:
            yield from _check_compressed(batch, table, number, row, limit)
    except CorruptBatchError as failure:
        if is_above_limit(failure):
            yield warning("unpacks-too-much", f"not decoded: {failure.reason}", *at)
        else:
            rule = (
                "log-control-record"
                if row.is_control
                else "log-legacy-message"
                if row.magic < MAGIC
                else "log-compression"
            )
            yield error(rule, failure.reason, *at)


def _check_control(batch: memoryview, row: Row) -> Iterator[Problem]:
    at = row.position, row.base_offset
    records = batch_records(batch, parse_header(batch), check_crc=False)
    markers = [parse_marker(record.key, record.value) for record in records]
    if any(markers) and row.producer_id < 0:
        yield warning("log-transactional", "the end of a transaction of no producer", *at)
    if any(markers) and len(markers) > 1:
        message = f"{len(markers)} records in the batch of a marker: readers see the first"
        yield error("log-control-record", message, *at)


def _check_compressed(
    batch: memoryview, table: HeaderTable, number: int, row: Row, limit: int
) -> Iterator[Problem]:
    small = min(limit, _UNPACKED_SMALL)
    if row.size <= _SMALL_BYTES:
        try:
            yield from _check_unpacked(batch, table, number, row, small)
            return
        except CorruptBatchError as failure:
            if small == limit or not is_above_limit(failure):
                raise
    with _big_batch:
        problems = list(_check_unpacked(batch, table, number, row, limit))
    yield from problems


def _check_unpacked(
    batch: memoryview, table: HeaderTable, number: int, row: Row, limit: int
) -> Iterator[Problem]:
    codec = bits.codec_of(row.attributes, row.position)
    payload = decompress(codec, batch[HEADER_SIZE:], limit)
    if fits_in_section(payload, table.columns, number):
        return
    builder = ColumnBuilder(keys=False, values=False, timestamps=True)
    log_append_time = row.max_timestamp if row.attributes & bits.LOG_APPEND_TIME else None
    status = builder.add_payload(
        payload,
        row.base_offset,
        row.base_timestamp,
        row.record_count,
        log_append_time,
        ReadBounds(),
    )
    assert status == DECODE_END
    yield from _check_columns(builder, row)


def _check_legacy(
    batch: memoryview, row: Row, limit: int, wrapped: list[int] | None
) -> Iterator[Problem]:
    records = legacy_records(batch, parse_legacy(batch), check_crc=False, limit=limit)
    if wrapped is not None and row.record_count < 0:
        wrapped.append(len(records))
    if records[-1].offset != row.last_offset and row.last_offset:
        message = f"last message has offset {records[-1].offset}, its wrapper {row.last_offset}"
        yield error("log-wrapper-offset", message, row.position, row.base_offset)
    largest = max(record.timestamp for record in records)
    create_time = row.magic == 1 and not row.attributes & bits.LOG_APPEND_TIME
    if create_time and largest != row.max_timestamp:
        message = f"timestamp {row.max_timestamp}, the messages have {largest} at most"
        yield warning("log-wrapper-timestamp", message, row.position, row.base_offset)
