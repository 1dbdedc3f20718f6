"""Reading a whole log in mapped windows, portion by portion, without a copy of the batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from logstore.arrow import to_record_batch
from logstore.errors import CorruptBatchError
from logstore.fetch import LogSnapshot
from logstore.format.reader import ReadOptions, fill_columns, fill_records
from logstore.gate import ReaderGate
from logstore.kernels import DECODE_END, DECODE_FULL, DECODE_LIMIT, ColumnBuilder
from logstore.segment import BatchSpan, Segment
from logstore.types import Record

if TYPE_CHECKING:
    import pyarrow

WINDOW = 4 << 20  # bytes mapped at a time
CHUNK = 4096  # records in a list: their memory is reused while it is still in cache

_BATCH_BYTES = 16 << 20  # of keys and values in a record batch, where few bytes unpack to many
_ALL = 2**62

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Source(NamedTuple):
    """A log as its readers see it.

    ``take_snapshot`` gives the log as it is now, and raises when it can no longer be read;
    ``gate`` keeps its files open under a look at them.
    """

    take_snapshot: Callable[[], LogSnapshot]
    gate: ReaderGate


class Fill(Protocol[T_co]):
    """Decodes a part of a window: whole batches from ``position`` on."""

    def __call__(
        self, window: memoryview, position: int, options: ReadOptions
    ) -> tuple[int, int, tuple[T_co, int] | None]:
        """Position to go on from, a ``DECODE_`` status, and a portion with the offset after it."""
        ...


def portions(
    source: Source, start_offset: int, end_offset: int | None, fill: Fill[T]
) -> Iterator[T]:
    """What ``fill`` makes of the records of ``[start_offset, end_offset)``, in order.

    Ends at ``end_offset``, or at the log's end as it is when it gets there.

    Raises:
        CorruptBatchError: a batch is damaged; the portions before it were given.
    """
    offset = start_offset
    while True:
        snapshot = source.take_snapshot()
        limit = snapshot.log_end_offset
        if end_offset is not None:
            limit = min(limit, end_offset)
        if offset >= limit:
            return
        at = snapshot.floor(offset)
        segment = snapshot.segments[at]
        with source.gate.reading():
            span = segment.find(offset)
        if span is None:  # nothing at or after it here: a gap up to the next segment
            if at + 1 == len(snapshot.segments):
                return
            offset = snapshot.segments[at + 1].base_offset
            continue
        options = ReadOptions(from_offset=offset, end_offset=limit)
        for portion, next_offset in _segment_portions(segment, span, options, fill):
            if source.take_snapshot().cuts != snapshot.cuts:
                break  # what was removed may have been under us: find the place anew
            offset = next_offset
            yield portion
        else:
            offset = max(offset, min(snapshot.end_of(at), limit))


def _segment_portions(
    segment: Segment, span: BatchSpan, options: ReadOptions, fill: Fill[T]
) -> Iterator[tuple[T, int]]:
    position, size, window_size = span.position, segment.size, max(WINDOW, span.size)
    while position < size:
        want = min(window_size, size - position)
        done, status = 0, DECODE_FULL
        with segment.view(position, want) as window:
            while status == DECODE_FULL:
                try:
                    done, status, portion = fill(window, done, options)
                except CorruptBatchError as error:
                    raise error.located(segment.log_path, position) from None
                if portion is not None:
                    yield portion
        if status == DECODE_LIMIT or (want == size - position and status == DECODE_END):
            return
        window_size = WINDOW if done else window_size * 2  # a batch longer than the window
        position += done


def fill_chunk(
    window: memoryview, position: int, options: ReadOptions
) -> tuple[int, int, tuple[list[Record], int] | None]:
    """``Fill`` of ``PartitionLog.record_chunks``."""
    chunk: list[Record] = []
    position, status = fill_records(window, position, chunk, CHUNK, options)
    return position, status, (chunk, chunk[-1].offset + 1) if chunk else None


def column_portions(
    source: Source,
    start_offset: int,
    end_offset: int | None,
    *,
    headers: bool,
) -> Iterator[pyarrow.RecordBatch]:
    """``portions`` as Arrow record batches, one for a few MiB read.

    Memory stays bounded by one window and one record batch.
    """
    builder = ColumnBuilder(headers=headers)

    def fill(
        window: memoryview, position: int, options: ReadOptions
    ) -> tuple[int, int, tuple[pyarrow.RecordBatch, int] | None]:
        position, status = fill_columns(window, position, builder, _ALL, _BATCH_BYTES, options)
        if not builder.rows:
            return position, status, None
        batch = to_record_batch(builder, True, True, True, headers)
        return position, status, (batch, batch.column(0)[-1].as_py() + 1)

    return portions(source, start_offset, end_offset, fill)
