"""The records that ``read_committed`` leaves out: those of aborted and of open transactions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType

from checkpoints.files import UnusableFileError
from checkpoints.loggers import get_logger
from logstore.common.errors import CorruptBatchError, CorruptIndexError, CorruptSnapshotError
from logstore.directory.listing import MISSING, PartitionLayout
from logstore.directory.segment_index import SegmentIndex, log_end_offset
from logstore.directory.splits import AbortedRange, Split
from logstore.directory.windows import BatchTable
from logstore.format import attributes as bits
from logstore.format import filenames
from logstore.format.control import parse_end_transaction_marker
from logstore.format.index_entry import TXN_ENTRY, decode_aborted
from logstore.format.producer_snapshot import SIZE_MAX, decode_snapshot
from logstore.format.reader import MAX_OFFSET
from logstore.storage.uri import join_uri, open_storage, shown

logger = get_logger(__name__)


def aborted_transactions(layout: PartitionLayout) -> list[AbortedRange]:
    """The aborted transactions of the transaction indexes, and those whose marker was found in the
    log while it was walked for ``last_stable_offset``: a marker is in the log before its entry is
    in the index.

    Of an index that is torn or has another version only whole entries are used, and the whole log
    is walked.

    Raises:
        CorruptBatchError: a header or a marker that cannot be read.
        OSError: the medium refused.
    """
    found: set[AbortedRange] = set()
    torn = False
    for segment in layout.segments:
        # The index of the last segment may have been created since the listing.
        if segment.txn_index_size == MISSING and segment is not layout.segments[-1]:
            continue
        entries, whole = _indexed(layout.path_of(segment.base_offset, filenames.TXN_INDEX_SUFFIX))
        found.update(entries)
        torn = torn or not whole
    end = log_end_offset(layout)
    found.update(_followed(layout, end, torn).aborted)
    return sorted(found)


def _indexed(uri: str) -> tuple[list[AbortedRange], bool]:
    """The whole entries of a transaction index, and whether it has no others.

    Empty without the file.
    """
    storage, path = open_storage(uri)
    try:
        data = storage.read_file(path)
        entries = decode_aborted(data, uri)
    except FileNotFoundError:
        return [], True
    except (CorruptIndexError, UnusableFileError) as error:
        logger.warning("not used, the log is walked instead: %s", error)
        return [], False
    whole = len(data) % TXN_ENTRY.size == 0
    if not whole:
        logger.warning("%s: its last entry is torn: the log is walked instead", shown(uri))
    return [(e.producer_id, e.first_offset, e.last_offset) for e in entries], whole


def overlapping(
    aborted: Iterable[AbortedRange], from_offset: int, end_offset: int
) -> tuple[AbortedRange, ...]:
    """The transactions with records or the marker in ``[from_offset, end_offset)``."""
    return tuple(
        (producer_id, first, marker)
        for producer_id, first, marker in aborted
        if first < end_offset and marker >= from_offset
    )


def last_stable_offset(layout: PartitionLayout, end: int) -> int:
    """The first offset of the earliest transaction that is open at ``end``, or ``end``.

    ``end`` is at most the end of the log; a snapshot above it belongs to an earlier log. Headers
    are walked from the newest usable producer snapshot on, or from the start without one.

    Raises:
        CorruptBatchError: a header or a marker that cannot be read.
        OSError: the medium refused.
    """
    return min(_followed(layout, end).open_since.values(), default=end)


@dataclass(slots=True)
class FollowedTransactions:
    """``open_since``: first offsets of open transactions, by producer id.

    ``lenient``: skip a marker that cannot be read.
    """

    open_since: dict[int, int] = field(default_factory=dict)
    aborted: list[AbortedRange] = field(default_factory=list)
    lenient: bool = False

    def _marker(self, batch: memoryview) -> tuple[bool, int] | None:
        try:
            return parse_end_transaction_marker(batch)
        except CorruptBatchError:
            if self.lenient:
                return None
            raise

    def add_batches(self, window: memoryview, table: BatchTable, start: int, end: int) -> None:
        """Add the batches of ``table`` with offsets in ``[start, end)``."""
        if not any(value & bits.TRANSACTIONAL for value in set(table.cells("attributes"))):
            return
        columns = (table.cells(n) for n in ("base_offset", "attributes", "producer_id"))
        for row, (offset, attributes, producer) in enumerate(zip(*columns, strict=True)):
            if not attributes & bits.TRANSACTIONAL or not start <= offset < end:
                continue
            if not attributes & bits.CONTROL:
                self.open_since.setdefault(producer, offset)
            elif marker := self._marker(window[table.span(row, row + 1)]):
                first = self.open_since.pop(producer, offset)
                if first < offset and not marker[0]:
                    self.aborted.append((producer, first, offset))


def follow_transactions(
    layout: PartitionLayout, end: int, *, whole_log: bool
) -> FollowedTransactions:
    """The transactions below ``end`` by headers and markers alone.

    Headers are walked from the newest usable producer snapshot on, or from the start with
    ``whole_log``.

    Raises:
        CorruptBatchError: a header or a marker that cannot be read.
        OSError: the medium refused.
    """
    start, open_since = (0, {}) if whole_log else _snapshot(layout, end)
    transactions = FollowedTransactions(open_since, lenient=layout.drop_malformed)
    for segment, next_base in layout.bounded():
        if next_base > start and segment.base_offset < end:
            index = SegmentIndex(layout, segment)
            with index.windows(start, open_end=next_base == MAX_OFFSET) as windows:
                for window, _, table in windows.tables(BatchTable):
                    transactions.add_batches(window, table, start, end)
                    if table.cells("base_offset")[-1] >= end:
                        break
    return transactions


@lru_cache(maxsize=64)  # a listing is asked for its last stable offset, then for what was aborted
def _followed(layout: PartitionLayout, end: int, whole_log: bool = False) -> FollowedTransactions:
    return follow_transactions(layout, end, whole_log=whole_log)


def _snapshot(layout: PartitionLayout, end: int) -> tuple[int, dict[int, int]]:
    """The offset of the newest sound snapshot, and the first offsets of its open transactions."""
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


class MarkerCheck:
    """Checks, in the order of the log, the ABORT markers of what one task reads.

    If the data before a marker was not known to be aborted, an entry is missing in a transaction
    index. ``open_since`` has the first offsets of transactions that were begun before, by producer.
    """

    def __init__(self, open_since: Mapping[int, int] = MappingProxyType({})) -> None:
        self._open_since = dict(open_since)

    def check(self, split: Split, window: memoryview, table: BatchTable) -> None:
        """
        Raises:
            CorruptIndexError: records of an aborted transaction were returned as committed.
        """
        transactions = FollowedTransactions(self._open_since, lenient=True)
        transactions.add_batches(window, table, split.from_offset, split.end_offset)
        unknown = set(transactions.aborted) - set(split.aborted)
        markers = {(producer, last) for producer, _, last in split.aborted}
        for producer, first, last in sorted(unknown):
            if (producer, last) not in markers:
                path = join_uri(
                    split.uri,
                    filenames.segment_file_name(split.segment_base, filenames.TXN_INDEX_SUFFIX),
                )
                reason = (
                    f"it lacks the transaction of producer {producer} that began at offset {first} "
                    f"and was aborted at {last}: rebuild it, or read uncommitted"
                )
                raise CorruptIndexError(shown(path), 0, reason)


__all__ = ["MarkerCheck", "aborted_transactions", "last_stable_offset", "overlapping"]
