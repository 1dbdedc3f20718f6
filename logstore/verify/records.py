"""The deep part: records decoded and compared with the headers of their batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from threading import Lock

from logstore.errors import CorruptBatchError
from logstore.format import attributes as bits
from logstore.format.compression import decompress
from logstore.format.control import parse_control_key, parse_marker
from logstore.format.header import HEADER_SIZE, parse_header
from logstore.format.legacy import legacy_records, parse_legacy
from logstore.format.reader import batch_records
from logstore.kernels import DECODE_END, ColumnBuilder
from logstore.verify.report import Problem, error, warning
from logstore.verify.rules import MAGIC, Row, check_header, check_records

_ROWS_MAX = 65_536
_ALL = 2**63 - 1
_SMALL_BYTES = 4 << 20
_big_batch = Lock()
"""Held while a large batch is unpacked: several threads share one bound on memory."""


def check_content(
    view: memoryview, start: int, rows: Sequence[Row], limit: int
) -> Iterator[Problem]:
    """Decode every record of ``rows``, whose bytes lie in ``view`` from file position ``start``.

    Runs of plain batches are decoded in one call, without making Python objects of records.
    ``limit`` bounds what one compressed batch may unpack to.
    """
    builder = ColumnBuilder(keys=False, values=False, timestamps=True)
    at = 0
    while at < len(rows):
        if _is_plain(rows[at]):
            end = next((i for i in range(at, len(rows)) if not _is_plain(rows[i])), len(rows))
            yield from _check_plain(builder, view, start, rows[at:end])
            at = end
        else:
            yield from _check_special(builder, view, start, rows[at], limit)
            at += 1


def _is_plain(row: Row) -> bool:
    return row.magic == MAGIC and not row.attributes & (bits.CODEC_MASK | bits.CONTROL)


def _check_plain(
    builder: ColumnBuilder, view: memoryview, start: int, rows: Sequence[Row]
) -> Iterator[Problem]:
    """``rows`` follow each other; one that cannot be decoded does not hide the next."""
    done = 0
    while done < len(rows):
        first = position = rows[done].position - start
        end = rows[-1].end - start
        failure = None
        try:
            position, _ = builder.add_run(view[:end], first, _ROWS_MAX, _ALL, 0, _ALL, False)
        except CorruptBatchError as found:
            failure, position = found, found.position
        columns = builder.finish()
        offsets, timestamps = memoryview(columns["offsets"]), memoryview(columns["timestamps"])
        used, before = 0, done
        none_negative = not len(timestamps) or min(timestamps) >= 0
        while done < len(rows) and rows[done].end - start <= position:
            row = rows[done]
            stop = used + row.record_count
            times = timestamps[used:stop]
            good = (  # what nearly every batch is, at a third of the cost of saying why not
                stop > used
                and none_negative
                and max(times) == row.max_timestamp
                and offsets[used] >= row.base_offset
                and offsets[stop - 1] <= row.last_offset
            )
            if not good:
                yield from check_records(row, offsets[used:stop], times)
            used, done = stop, done + 1
        if failure is not None:
            row = rows[done]
            yield error("F-73", row.position, row.base_offset, _inside(failure, row, start))
            done += 1
        elif done == before:  # the kernels and this loop disagree about what is plain
            row = rows[done]
            yield warning("F-73", row.position, row.base_offset, "records were not decoded")
            done += 1


def _inside(failure: CorruptBatchError, row: Row, start: int) -> str:
    return f"byte {failure.position + start - row.position} of the batch: {failure.reason}"


def _check_special(
    builder: ColumnBuilder, view: memoryview, start: int, row: Row, limit: int
) -> Iterator[Problem]:
    """A batch that is compressed, holds control records or is of an older format."""
    at = row.position, row.base_offset
    if any(check.rule == "F-65" for check in check_header(row)):
        return  # no such codec, told of already
    batch = view[row.position - start : row.end - start]
    try:
        if row.magic < MAGIC:
            yield from _check_legacy(batch, row, limit)
        elif row.is_control:
            for record in batch_records(batch, parse_header(batch), check_crc=False):
                parse_control_key(record.key)
                parse_marker(record.key, record.value)
        elif row.size > _SMALL_BYTES:
            with _big_batch:
                yield from _check_compressed(builder, batch, row, limit)
        else:
            yield from _check_compressed(builder, batch, row, limit)
    except CorruptBatchError as failure:
        if "above limit" in failure.reason:
            yield warning("S-50", *at, f"not decoded: {failure.reason}")
        else:
            rule = "F-80" if row.is_control else "F-100" if row.magic < MAGIC else "F-82"
            yield error(rule, *at, failure.reason)


def _check_compressed(
    builder: ColumnBuilder, batch: memoryview, row: Row, limit: int
) -> Iterator[Problem]:
    header = parse_header(batch)
    payload = decompress(header.compression, batch[HEADER_SIZE:], limit)
    status = builder.add_payload(
        payload, row.base_offset, row.base_timestamp, row.record_count, header.log_append_time,
        0, _ALL,
    )  # fmt: skip
    assert status == DECODE_END
    columns = builder.finish()
    yield from check_records(row, memoryview(columns["offsets"]), memoryview(columns["timestamps"]))


def _check_legacy(batch: memoryview, row: Row, limit: int) -> Iterator[Problem]:
    records = legacy_records(batch, parse_legacy(batch), check_crc=False, limit=limit)
    if records[-1].offset != row.last_offset and row.last_offset:
        message = f"last message has offset {records[-1].offset}, its wrapper {row.last_offset}"
        yield error("F-101", row.position, row.base_offset, message)
    largest = max(record.timestamp for record in records)
    create_time = row.magic == 1 and not row.attributes & bits.LOG_APPEND_TIME
    if create_time and largest != row.max_timestamp:
        message = f"timestamp {row.max_timestamp}, the messages have {largest} at most"
        yield warning("F-102", row.position, row.base_offset, message)
