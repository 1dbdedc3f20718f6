"""Reading a whole log in mapped windows: records in chunks, without a copy of the batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from logstore.errors import CorruptBatchError
from logstore.fetch import LogSnapshot
from logstore.format.reader import ReadOptions, fill_records
from logstore.gate import ReaderGate
from logstore.kernels import DECODE_END, DECODE_LIMIT
from logstore.segment import BatchSpan, Segment
from logstore.types import Record

WINDOW = 4 << 20  # bytes mapped at a time
CHUNK = 4096  # records in a list: their memory is reused while it is still in cache

TakeSnapshot = Callable[[], LogSnapshot]


def record_chunks(
    take_snapshot: TakeSnapshot, gate: ReaderGate, start_offset: int, end_offset: int | None
) -> Iterator[list[Record]]:
    """Lists of records of ``[start_offset, end_offset)``; see ``PartitionLog.record_chunks``.

    Args:
        take_snapshot: the log as it is now; raises when it can no longer be read.
        gate: of the log; no file is closed under a look at it.
    Raises:
        CorruptBatchError: a batch is damaged; the records before it were given.
    """
    offset = start_offset
    while True:
        snapshot = take_snapshot()
        limit = snapshot.log_end_offset
        if end_offset is not None:
            limit = min(limit, end_offset)
        if offset >= limit:
            return
        at = snapshot.floor(offset)
        segment = snapshot.segments[at]
        with gate.reading():
            span = segment.find(offset)
        if span is None:  # nothing at or after it here: a gap up to the next segment
            if at + 1 == len(snapshot.segments):
                return
            offset = snapshot.segments[at + 1].base_offset
            continue
        for chunk in _segment_chunks(segment, span, offset, limit):
            if take_snapshot().cuts != snapshot.cuts:
                break  # what was removed may have been under us: find the place anew
            offset = chunk[-1].offset + 1
            yield chunk
        else:
            offset = max(offset, min(snapshot.end_of(at), limit))


def _segment_chunks(
    segment: Segment, span: BatchSpan, start: int, limit: int
) -> Iterator[list[Record]]:
    options = ReadOptions(from_offset=start, end_offset=limit)
    position, size, window_size = span.position, segment.size, max(WINDOW, span.size)
    while position < size:
        want = min(window_size, size - position)
        done = 0
        with segment.view(position, want) as window:
            status = -1
            while status not in (DECODE_END, DECODE_LIMIT):
                chunk: list[Record] = []
                try:
                    done, status = fill_records(window, done, chunk, CHUNK, options)
                except CorruptBatchError as error:
                    raise error.located(segment.log_path, position) from None
                if chunk:
                    yield chunk
        if status == DECODE_LIMIT or (want == size - position and status == DECODE_END):
            return
        window_size = WINDOW if done else window_size * 2  # a batch longer than the window
        position += done
