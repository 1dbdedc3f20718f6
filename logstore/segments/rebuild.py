"""Rebuild indexes, epochs and producer state from the batches of a segment.

Recovery uses this, and so does a running log that truncates or finds a misleading index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Protocol

from logstore.common.config import LogConfig
from logstore.common.errors import CorruptBatchError
from logstore.format.control import parse_end_transaction_marker
from logstore.format.index_entry import AbortedTxn
from logstore.kernels import (
    SCAN_COLUMNS,
    SCAN_END,
    SCAN_FULL,
    SCAN_INCOMPLETE,
    SCAN_TAIL,
    RecoveryScan,
)
from logstore.segments.producer_state import AppendOrigin, ProducerBatch, ProducerStateManager
from logstore.segments.segment import Segment
from logstore.segments.segment_view import WINDOW
from logstore.storage.base import File

_TRANSACTIONAL = 0x10
_CONTROL = 0x20
_COLUMN = {name: index for index, name in enumerate(SCAN_COLUMNS)}
_PRODUCER, _BASE, _LAST = (_COLUMN[n] for n in ("producer_id", "base_offset", "last_offset"))
_POSITION, _SIZE = _COLUMN["position"], _COLUMN["size"]
_REPLAYED = [
    _COLUMN[name]
    for name in (
        "producer_id",
        "producer_epoch",
        "base_sequence",
        "base_offset",
        "last_offset",
        "max_timestamp",
        "attributes",
        "record_count",
        "size",
    )
]


class AbortedTxns(Protocol):
    """Takes aborted transactions, as a transaction index does."""

    def append(self, *txns: AbortedTxn) -> None: ...


class ScannedLog(Protocol):
    """What a scan needs of a segment: its ``.log``, and where aborted transactions go."""

    @property
    def base_offset(self) -> int: ...

    @property
    def config(self) -> LogConfig: ...

    @property
    def size(self) -> int: ...

    @property
    def log(self) -> File: ...

    @property
    def log_path(self) -> str: ...

    @property
    def txn_index(self) -> AbortedTxns: ...

    def view(self, position: int, size: int) -> AbstractContextManager[memoryview]: ...


def rebuild_indexes(segment: Segment) -> None:
    """Write both sparse indexes again from the ``.log``, which stays untouched (I-15).

    The caller holds the locks of the log.
    """
    scan = scan_segment(segment)
    segment.install_indexes(scan.offset_index, scan.time_index + scan.final_time_entry())


def scan_segment(
    segment: ScannedLog,
    *,
    base_offset: int = -1,
    start: int = 0,
    end: int | None = None,
    last_epoch: int = -1,
    contiguous: bool = False,
    producers: ProducerStateManager | None = None,
    progress: Callable[[int], None] | None = None,
) -> RecoveryScan:
    """Scan a segment: structure, CRC, indexes, epochs; replays producers when given.

    Scans bytes ``start`` to ``end`` as if they were a segment with ``base_offset``; the whole
    segment by default. Takes the memory of one window and one batch, whatever the segment's size.
    Writes nothing except aborted transactions, to the segment's transaction index.
    """
    scan = RecoveryScan(
        segment.base_offset if base_offset < 0 else base_offset,
        segment.config.index_interval_bytes,
        last_epoch=last_epoch,
        contiguous=contiguous,
    )
    position, size, window = start, segment.size if end is None else end, WINDOW
    while position < size:
        want = min(window, size - position)
        at_end = position + want == size
        with segment.view(position, want) as view:
            done = scan.feed(view, position, at_end)
        if producers is not None:
            _replay(segment, scan, producers)
        else:
            scan.take_producer_batches()
        position += done
        if progress is not None:
            progress(done)
        if scan.status == SCAN_FULL:
            continue
        if at_end or scan.status not in (SCAN_END, SCAN_TAIL, SCAN_INCOMPLETE):
            break
        window = max(window, WINDOW + scan.needed_bytes)  # for a batch that is longer, and the next
    return scan


def _replay(segment: ScannedLog, scan: RecoveryScan, producers: ProducerStateManager) -> None:
    for row in scan.take_producer_batches():
        producer_id, epoch, sequence, delta, base, stamp, attributes, position, size, count = row
        if producer_id >= 0:
            last = base + delta
            row = (producer_id, epoch, sequence, base, last, stamp, attributes, count, size)
            apply_batch(producers, _batch(segment, position, row), segment)


def _batch(segment: ScannedLog, position: int, row: Iterable[int]) -> ProducerBatch:
    """The batch at ``position`` of the segment; ``row`` has the columns of ``_REPLAYED``."""
    producer_id, epoch, sequence, base, last, stamp, attributes, count, size = row
    control, marker = bool(attributes & _CONTROL), None
    if control and count:
        try:
            marker = parse_end_transaction_marker(segment.log.read_at(position, size))
        except CorruptBatchError as error:
            raise error.located(segment.log_path, position) from None
    transactional = bool(attributes & _TRANSACTIONAL)
    return ProducerBatch(
        producer_id, epoch, sequence, base, last, stamp, transactional, marker, control
    )


def apply_batch(
    producers: ProducerStateManager, batch: ProducerBatch, segment: ScannedLog | None
) -> None:
    """Replay one batch. Aborts go to the transaction index of ``segment``, if given (F-196)."""
    append = producers.prepare(batch.producer_id, AppendOrigin.REPLICATION)
    completed = append.append(batch)
    producers.update(append)
    if completed is not None:
        stable = producers.last_stable_offset(completed)
        if segment is not None and completed.is_aborted:
            segment.txn_index.append(
                AbortedTxn(
                    completed.producer_id, completed.first_offset, completed.last_offset, stable
                )
            )
        producers.complete(completed)


def rebuild_producers(
    producers: ProducerStateManager,
    segments: tuple[Segment, ...],
    log_start_offset: int,
    end_offset: int,
    now_ms: int,
) -> None:
    """Rebuild the state at ``end_offset`` from the newest snapshot and a replay (F-201).

    A log that is cut below its log start begins at its end (``end_offset``). Otherwise no snapshot
    would be due before the log has grown past the old log start (F-130).
    """
    log_start_offset = min(log_start_offset, end_offset)
    if producers.empty and producers.map_end_offset >= end_offset:
        # Nothing to load, to replay or to keep: a fail-over cuts thousands of such logs.
        producers.cut_empty(log_start_offset, end_offset)
        return
    producers.truncate_and_reload(log_start_offset, end_offset, now_ms)
    if end_offset > producers.map_end_offset:
        active = segments[-1]
        # A truncation calls this while the segments after the new end still exist.
        segments = tuple(s for s in segments if s.base_offset <= end_offset)
        recent = {s.base_offset for s in segments[-2:]}
        for segment in segments:
            end = segment.state.next_offset if segment is active else None
            if end is not None and end <= producers.map_end_offset:
                continue
            if segment.base_offset in recent and segment.base_offset > producers.map_end_offset:
                producers.map_end_offset = segment.base_offset
                producers.take_snapshot(sync=False)
            replay_from(producers, segment, producers.map_end_offset, end_offset)
    producers.map_end_offset = end_offset
    producers.take_snapshot(sync=False)


def replay_from(producers: ProducerStateManager, segment: Segment, start: int, end: int) -> None:
    """Replay the producer batches of ``[start, end)`` from headers, without checking the CRC.

    A header that cannot be read ends the replay. Nothing below the recovery point is cut for that.
    """
    if segment.size == 0 or segment.base_offset >= end:
        return
    try:
        first = segment.live().find(start)
    except CorruptBatchError:
        base = 0
    else:
        if first is None:
            return
        base = first.position
    for rows, columns, capacity in segment.live().scan(base, check_crc=False):
        at = _PRODUCER * capacity
        ids = columns[at : at + rows]
        if max(ids) >= 0:
            for row in range(rows):
                if ids[row] < 0 or columns[_BASE * capacity + row] >= end:
                    continue
                if columns[_LAST * capacity + row] < start:
                    continue
                position = base + columns[_POSITION * capacity + row]
                cells = (columns[column * capacity + row] for column in _REPLAYED)
                batch = _batch(segment, position, cells)
                apply_batch(producers, batch, None)
        last = columns[_LAST * capacity + rows - 1]
        base += columns[_POSITION * capacity + rows - 1] + columns[_SIZE * capacity + rows - 1]
        if last + 1 >= end:
            return
