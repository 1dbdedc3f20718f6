"""Which records ``read_committed`` leaves out: data of aborted transactions, and what is open."""

from __future__ import annotations

from collections.abc import Iterable

from checkpoints.files import UnusableFileError
from checkpoints.loggers import get_logger
from logstore.errors import CorruptSnapshotError
from logstore.format import attributes as bits
from logstore.format import filenames
from logstore.format.control import parse_end_transaction_marker
from logstore.format.index_entry import decode_aborted
from logstore.format.producer_snapshot import SIZE_MAX, decode_snapshot
from logstore.format.reader import MAX_OFFSET
from logstore.spark.layout import PartitionLayout
from logstore.spark.segment_index import SegmentIndex
from logstore.spark.splits import AbortedTransaction
from logstore.storage.uri import open_storage

logger = get_logger(__name__)


def aborted_transactions(layout: PartitionLayout) -> list[AbortedTransaction]:
    """All that the transaction indexes list; see ``overlapping``.

    Raises:
        CorruptIndexError: an index of another version.
        OSError: the medium refused.
    """
    found: list[AbortedTransaction] = []
    for segment in layout.segments:
        if segment.txn_index_size > 0:
            uri = layout.path_of(segment.base_offset, filenames.TXN_INDEX_SUFFIX)
            storage, path = open_storage(uri)
            entries = decode_aborted(storage.read_file(path), uri)
            found.extend((e.producer_id, e.first_offset, e.last_offset) for e in entries)
    return found


def overlapping(
    aborted: Iterable[AbortedTransaction], from_offset: int, end_offset: int
) -> tuple[AbortedTransaction, ...]:
    """Those with records in ``[from_offset, end_offset)``."""
    return tuple(
        (producer_id, first, marker)
        for producer_id, first, marker in aborted
        if first < end_offset and marker > from_offset
    )


def last_stable_offset(layout: PartitionLayout, end: int) -> int:
    """The first offset of the earliest transaction that is open at ``end``; ``end`` without one.

    From the newest usable producer snapshot on the headers are walked; without one, all of them.

    Raises:
        CorruptBatchError: a header or a marker that cannot be read.
        OSError: the medium refused.
    """
    start, open_since = _snapshot(layout, end)
    for segment, next_base in layout.bounded():
        if next_base > start and segment.base_offset < end:
            _walk(SegmentIndex(layout, segment), start, end, open_since, next_base == MAX_OFFSET)
    return min(open_since.values(), default=end)


def _snapshot(layout: PartitionLayout, end: int) -> tuple[int, dict[int, int]]:
    """Where the newest sound snapshot stands, and the first offsets of what is open there."""
    for offset in reversed(layout.snapshots):
        if offset > end:
            continue
        uri = layout.path_of(offset, filenames.SNAPSHOT_SUFFIX)
        storage, path = open_storage(uri)
        try:
            entries = decode_snapshot(storage.read_file(path, SIZE_MAX), uri)
        except FileNotFoundError:
            continue
        except (CorruptSnapshotError, UnusableFileError) as error:
            logger.warning("the snapshot is not used: %s", error)
            continue
        first_offsets = {e.producer_id: e.current_txn_first_offset for e in entries}
        return offset, {pid: first for pid, first in first_offsets.items() if first >= 0}
    return 0, {}


def _walk(
    index: SegmentIndex, start: int, end: int, open_since: dict[int, int], is_last: bool
) -> None:
    """Follow the transactions of the batches of a segment with offsets in ``[start, end)``."""
    with index.windows(start, open_end=is_last) as windows:
        for window, _, table in windows.tables():
            if table.has_any(bits.TRANSACTIONAL):
                columns = (table.cells(n) for n in ("base_offset", "attributes", "producer_id"))
                for row, (offset, attributes, producer) in enumerate(zip(*columns, strict=True)):
                    if not attributes & bits.TRANSACTIONAL or not start <= offset < end:
                        continue
                    if not attributes & bits.CONTROL:
                        open_since.setdefault(producer, offset)
                    elif parse_end_transaction_marker(window[table.span(row, row + 1)]):
                        open_since.pop(producer, None)
            if table.cells("base_offset")[-1] >= end:
                return
