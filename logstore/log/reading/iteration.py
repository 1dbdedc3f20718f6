"""Reading a whole log in mapped windows, portion by portion, without a copy of the batches."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from operator import index
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

from logstore.common.errors import CorruptBatchError, CorruptDataError
from logstore.common.types import Record
from logstore.format.arrow import load_pyarrow, to_record_batch
from logstore.format.reader import fill_columns, fill_records
from logstore.kernels import DECODE_END, DECODE_FULL, DECODE_LIMIT, ColumnBuilder, ReadBounds
from logstore.log.reading.snapshot_reader import LogReader
from logstore.log.snapshot import LogView
from logstore.segments.segment_view import SegmentView, no_whole_batch

if TYPE_CHECKING:
    import pyarrow

WINDOW = 4 << 20  # bytes mapped at a time
CHUNK = 4096  # records in a list, whose memory is reused while it is still in cache

_BATCH_BYTES = 16 << 20  # bytes of keys and values: few bytes may unpack to many
_ALL = 2**62

T = TypeVar("T")


class Portion(NamedTuple, Generic[T]):
    """The result for some records, their number, the first offset and the one after the last."""

    records: T
    rows: int
    first: int
    end: int


class Fill(Protocol[T]):
    """Decodes a part of a window: whole batches from ``position`` on."""

    def __call__(
        self, window: memoryview, position: int, bounds: ReadBounds
    ) -> tuple[int, int, Portion[T] | None]:
        """Position to go on from, a ``DECODE_`` status, and a portion."""
        ...


class _SegmentRest(NamedTuple):
    """The part still to read: ``[position, segment.size)`` of a segment, up to ``limit``."""

    log: LogView
    segment: SegmentView
    position: int
    batch_size: int
    limit: int
    segment_end: int  # first offset after the segment, at most ``limit``
    is_whole: bool  # wanted to its end


def portions(
    reader: LogReader, start_offset: int | None, end_offset: int | None, fill: Fill[T]
) -> Iterator[T]:
    """Yield what ``fill`` makes of the records of ``[start_offset, end_offset)``, in order.

    Begins at the log start by default. Ends at ``end_offset``, or at the log end at that time. The
    start is checked at once and not at the first portion.

    Raises:
        OffsetOutOfRangeError: the start lies outside the log, or the next records were deleted or
            cut off during the iteration.
        CorruptBatchError: a batch is damaged. The portions before it were yielded.
    """
    snapshot = reader.current()
    start = snapshot.log_start_offset if start_offset is None else start_offset
    reader.check_range(snapshot, start)
    end = None if end_offset is None else index(end_offset)
    return _portions(reader, start, end, fill, at_start=start_offset is None)


def _portions(
    reader: LogReader, offset: int, end_offset: int | None, fill: Fill[T], at_start: bool
) -> Iterator[T]:
    while True:
        wanted = None if at_start else offset
        place = reader.run(partial(_find, reader, wanted, end_offset))
        if place is None:
            return
        if at_start:
            offset, at_start = place.log.snapshot.log_start_offset, False
        bounds = ReadBounds(offset, place.limit)
        try:
            for portion in _segment_portions(place, bounds, fill):
                if reader.moved(place.log):
                    break  # removed records may include ours, so find the place again
                if offset < reader.current().log_start_offset:
                    break
                offset = portion.end
                yield portion.records
            else:
                if not reader.moved(place.log):
                    offset = max(offset, place.segment_end)
        except (OSError, CorruptDataError) as error:
            reader.explain_failure(error, place.log)


def _find(
    reader: LogReader, wanted: int | None, end_offset: int | None, log: LogView
) -> _SegmentRest | None:
    """The place of the first batch at or after ``wanted``; None at the end of the range."""
    snapshot = log.snapshot
    offset = snapshot.log_start_offset if wanted is None else wanted
    reader.check_range(snapshot, offset)
    limit = snapshot.log_end_offset
    if end_offset is not None:
        limit = min(limit, end_offset)
    if offset >= limit:
        return None
    for at in range(log.floor(offset), len(log)):
        if log.base_of(at) >= limit:
            return None
        segment = log[at]
        span = segment.find(offset)
        begins = span is not None and not span.position and span.base_offset >= offset
        if offset == segment.base_offset and segment.size and not begins:
            # The segment before was read to its end, which only the name of this one shows.
            reason = f"the segment does not begin at its base offset {offset}"
            raise CorruptBatchError(segment.log_path, 0, reason)
        if span is not None:
            end = log.end_of(at)
            if span.last_offset >= end:
                raise _out_of_order(segment, span.position, 0, end)
            return _SegmentRest(
                log, segment, span.position, span.size, limit, min(end, limit), end <= limit
            )
    return None


def _segment_portions(
    place: _SegmentRest, bounds: ReadBounds, fill: Fill[T]
) -> Iterator[Portion[T]]:
    segment, position, size = place.segment, place.position, place.segment.size
    window_size = max(WINDOW, place.batch_size)
    low, high = 0, place.segment_end
    while position < size:
        want = min(window_size, size - position)
        done, status, before = 0, DECODE_FULL, low
        with segment.window(position, want) as window:
            while status == DECODE_FULL:
                begin = done
                try:
                    done, status, portion = fill(window, done, bounds)
                except CorruptDataError as error:
                    raise error.located(segment.log_path, position) from None
                if portion is None:
                    continue
                if not low <= portion.first <= portion.end - portion.rows <= high - portion.rows:
                    fault = _out_of_order(segment, position, before, high)
                    with window[: max(fault.position - position, begin)] as good:
                        _, _, portion = fill(good, begin, bounds)
                    if portion is not None:
                        yield portion
                    raise fault
                low = portion.end
                yield portion
        if status == DECODE_LIMIT:
            behind = next(segment.walk(position + done), None) if place.is_whole else None
            if behind is not None and behind.last_offset >= high:
                raise _out_of_order(segment, behind.position, 0, high)
            return
        if want == size - position and status == DECODE_END:
            if done < want:
                raise no_whole_batch(segment.log_path, position + done, size)
            return
        window_size = WINDOW if done else window_size * 2  # a batch longer than the window
        position += done


def _out_of_order(segment: SegmentView, position: int, low: int, high: int) -> CorruptBatchError:
    """The error for the first batch from ``position`` on whose offsets are not in ``[low, high)``.

    A clean start does not check offsets, and a valid batch may lie anywhere.
    """
    path = segment.log_path
    for span in segment.walk(position):
        if span.last_offset < low:
            reason = f"offset {span.last_offset} follows offset {low - 1}"
            return CorruptBatchError(path, span.position, reason)
        if span.last_offset >= high:
            reason = f"offset {span.last_offset}, the segment ends below {high}"
            return CorruptBatchError(path, span.position, reason)
        low = span.last_offset + 1
    return CorruptBatchError(path, position, "the offsets of the records do not ascend")


def fill_chunk(
    window: memoryview, position: int, bounds: ReadBounds
) -> tuple[int, int, Portion[list[Record]] | None]:
    """``Fill`` of ``PartitionLog.record_chunks``."""
    chunk: list[Record] = []
    position, status = fill_records(window, position, chunk, CHUNK, bounds)
    if not chunk:
        return position, status, None
    return position, status, Portion(chunk, len(chunk), chunk[0].offset, chunk[-1].offset + 1)


def column_portions(
    reader: LogReader, start_offset: int | None, end_offset: int | None, *, headers: bool
) -> Iterator[pyarrow.RecordBatch]:
    """``portions`` as Arrow record batches, one for a few MiB read.

    Memory stays bounded by one window and one record batch.
    """
    load_pyarrow()  # so that a missing library is reported now, even for an empty log
    builder = ColumnBuilder(headers=headers)

    def fill(
        window: memoryview, position: int, bounds: ReadBounds
    ) -> tuple[int, int, Portion[pyarrow.RecordBatch] | None]:
        nonlocal builder
        try:
            position, status = fill_columns(window, position, builder, _ALL, _BATCH_BYTES, bounds)
        except CorruptDataError:
            builder = ColumnBuilder(headers=headers)  # leave nothing half done for the next attempt
            raise
        if not builder.rows:
            return position, status, None
        batch = to_record_batch(builder, True, True, True, headers)
        offsets = batch.column(0)
        first, last = offsets[0].as_py(), offsets[-1].as_py()
        return position, status, Portion(batch, batch.num_rows, first, last + 1)

    return portions(reader, start_offset, end_offset, fill)


__all__ = ["column_portions", "fill_chunk", "portions"]
