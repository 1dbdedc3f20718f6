"""Reads on a snapshot of the log: decisions and file reads, without a lock.

Every function works on a ``LogView``. Its records may be cut or removed during the read;
``LogReader`` runs it again then.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, TypeAlias

from logstore.common.errors import CorruptBatchError, InvalidTimestampError
from logstore.common.types import Record
from logstore.format.index_entry import AbortedTxn
from logstore.format.reader import read_records
from logstore.kernels import timestamp_ms
from logstore.log.snapshot import LogView
from logstore.segments.index import TimestampOffset
from logstore.segments.segment_view import BatchSpan, SegmentView, Slice

if TYPE_CHECKING:
    import pyarrow

    from logstore.storage.file_slice import FileSlice

Timestamp: TypeAlias = int | datetime
"""Ms since the epoch, or a ``datetime`` with its time zone."""

EARLIEST = -2
LATEST = -1
MAX_TIMESTAMP = -3

SLICE_MIN = 16 << 10
"""Fewer bytes are read: to send a file beside a header takes more time than to copy them."""


@dataclass(slots=True, frozen=True)
class FetchData:
    """The result of ``PartitionLog.read``; the offsets are those at the time of the read.

    ``data`` begins at the boundary of the batch that holds ``start_offset`` (so its first records
    may lie below it) and may end inside a batch, as a Kafka fetch response does (F-158).
    ``aborted`` lists the aborted transactions a read_committed reader must skip (F-160).
    ``file_slice`` stands in place of ``data`` where a read was allowed to leave it in its file.
    """

    start_offset: int
    end_offset: int  # this reader must not see records at or after it
    log_start_offset: int
    high_watermark: int
    last_stable_offset: int
    log_end_offset: int
    slice: Slice | None = None
    data: bytes = b""
    aborted: tuple[AbortedTxn, ...] = ()
    file_slice: FileSlice | None = None

    def __len__(self) -> int:
        return len(self.data if self.file_slice is None else self.file_slice)

    @property
    def has_whole_batch(self) -> bool:
        """Whether it has one: the first may be above the limit of the read."""
        found = self.slice
        return found is not None and found.size >= found.first_batch.size

    def records(self) -> list[Record]:
        """The records in ``[start_offset, end_offset)`` of the whole batches; CRCs are checked.

        Control batches and records of aborted transactions in ``aborted`` are left out.

        Raises:
            CorruptBatchError: a batch is damaged; names the file and the byte.
        """
        return read_records(
            self.data,
            from_offset=self.start_offset,
            end_offset=self.end_offset,
            aborted=[(t.producer_id, t.first_offset, t.last_offset) for t in self.aborted],
            path=self.slice.view.log_path if self.slice else "",
            base_position=self.slice.position if self.slice else 0,
        )

    def to_arrow(self, *, headers: bool = False) -> pyarrow.RecordBatch:
        """The same records as Arrow columns (see ``logstore.format.arrow``)."""
        from logstore.format.arrow import read_columns

        return read_columns(
            self.data,
            from_offset=self.start_offset,
            end_offset=self.end_offset,
            headers=headers,
            aborted=[(t.producer_id, t.first_offset, t.last_offset) for t in self.aborted],
        )


def fetch(
    log: LogView,
    start_offset: int,
    limit: int,
    max_bytes: int,
    *,
    minimum_one: bool,
    committed: bool,
    by_slice: bool = False,
) -> FetchData:
    """Read from the first segment that holds anything in ``[start_offset, limit)`` (F-157).

    ``by_slice``: leave many bytes in the file, where the storage can.
    """
    snapshot = log.snapshot
    seen = (
        start_offset,
        limit,
        snapshot.log_start_offset,
        snapshot.high_watermark,
        snapshot.last_stable_offset,
        snapshot.log_end_offset,
    )
    if start_offset >= limit:
        return FetchData(*seen)
    for at in range(log.floor(start_offset), len(log)):
        if log.base_of(at) >= limit:
            break
        segment = log[at]
        end_position = _end_position(segment, limit, log.end_of(at))
        found = segment.read(start_offset, max_bytes, end_position, minimum_one)
        if found is None:
            continue  # nothing at or after it here, so take the next segment
        file_slice = None
        if by_slice and found.size >= SLICE_MIN:
            file_slice = segment.slice_at(found.position, found.size)
        data = b"" if file_slice is not None else segment.read_at(found.position, found.size)
        aborted: tuple[AbortedTxn, ...] = ()
        if committed:
            bound = segment.offset_behind(found.position + found.size)
            upper = log.end_of(at) if bound is None else bound
            aborted = collect_aborted(log, start_offset, upper)
        return FetchData(*seen, found, data, aborted, file_slice)
    return FetchData(*seen)


def _end_position(segment: SegmentView, limit: int, segment_end: int) -> int:
    """Return the end of the bytes up to ``limit``. A batch with the limit inside counts."""
    if limit >= segment_end:
        return segment.size
    span = segment.find(limit)
    if span is None:
        return segment.size
    return span.position + (span.size if span.base_offset < limit else 0)


def count_bytes(log: LogView, start_offset: int, limit: int) -> int:
    """Bytes of the batches that hold ``[start_offset, limit)``."""
    total = 0
    for at in range(log.floor(start_offset), len(log)):
        if log.base_of(at) >= limit:
            break
        segment = log[at]
        first = segment.find(start_offset)
        if first is not None:
            total += max(0, _end_position(segment, limit, log.end_of(at)) - first.position)
    return total


def collect_aborted(log: LogView, start_offset: int, end_offset: int) -> tuple[AbortedTxn, ...]:
    """Aborted transactions that overlap ``[start_offset, end_offset)`` (F-125), below the log start
    too."""
    into: list[AbortedTxn] = []
    for at in range(log.floor(start_offset), len(log)):
        if log[at].segment.txn_index.collect(start_offset, end_offset, into):
            break
    return tuple(into)


def timestamp_to_find(timestamp: Timestamp) -> int:
    """The timestamp in ms, or EARLIEST, LATEST, MAX_TIMESTAMP.

    Raises:
        InvalidTimestampError: a ``datetime`` without a time zone or before 1970, or not a number.
    """
    try:
        found = timestamp_ms(timestamp)
    except (TypeError, ValueError) as error:
        raise InvalidTimestampError(str(error)) from None
    if found < MAX_TIMESTAMP:
        raise InvalidTimestampError(f"timestamp {timestamp} has no meaning")
    return found


def find_timestamp(log: LogView, timestamp: int) -> TimestampOffset | None:
    """Find a record as `PartitionLog.offset_for_timestamp`."""
    start = log.snapshot.log_start_offset
    if timestamp == EARLIEST:
        return TimestampOffset(-1, start)
    if timestamp == LATEST:
        return TimestampOffset(-1, log.snapshot.log_end_offset)
    if timestamp == MAX_TIMESTAMP:
        return _find_max_timestamp(log)
    for at in range(log.floor(start), len(log)):
        segment = log[at]
        if segment.largest_timestamp < timestamp:
            continue
        found = _first_at(segment, timestamp, start)
        if found is not None:
            return found
    return None


def _find_max_timestamp(log: LogView) -> TimestampOffset | None:
    segments = [log[at] for at in range(len(log))]
    best = max(segments, key=lambda s: s.largest.timestamp)
    if best.largest.timestamp < 0:
        return None
    return _first_at(best, best.largest.timestamp, log.snapshot.log_start_offset)


def _first_at(segment: SegmentView, timestamp: int, start: int) -> TimestampOffset | None:
    for span in segment.find_timestamp(timestamp, start):
        for record in _records_of(segment, span, start):
            if record.timestamp >= timestamp:
                return TimestampOffset(record.timestamp, record.offset)
    return None


def _records_of(segment: SegmentView, span: BatchSpan, start: int) -> list[Record]:
    data = segment.read_at(span.position, span.size)
    try:
        return read_records(data, from_offset=start, include_control=True)
    except CorruptBatchError as error:
        raise error.located(segment.log_path, span.position) from None
