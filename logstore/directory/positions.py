"""Find where a partition's log ends, and where a time begins in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from checkpoints.loggers import get_logger
from checkpoints.printable import printable
from logstore.common.errors import ConfigError, CorruptBatchError
from logstore.directory.listing import UNKNOWN, ListedSegment, PartitionLayout
from logstore.directory.segment_index import SegmentIndex, log_end_offset
from logstore.directory.transactions import last_stable_offset
from logstore.directory.windows import BatchTable
from logstore.format import attributes as bits
from logstore.format.filenames import SWAP_SUFFIX
from logstore.format.reader import MAX_OFFSET, batch_records, parse_batch
from logstore.storage.uri import shown

logger = get_logger(__name__)


def with_rolls(
    layout: PartitionLayout, note: Callable[[str], None] = logger.warning
) -> PartitionLayout:
    """The layout with the rolled segments that a start would keep, each following the one before.

    ``note`` is called with each that does not.

    Raises as ``log_end_offset``.
    """
    for segment in layout.rolled:
        end = log_end_offset(layout)
        if segment.base_offset != end:
            place = printable(shown(layout.path_of(segment.base_offset, transition=SWAP_SUFFIX)))
            note(
                f"{place}: does not follow what is before it, which ends at {end}; left out, as by "
                "the next start"
            )
            break
        layout = replace(layout, segments=(*layout.segments, segment))
    return replace(layout, rolled=())


def readable_end(
    layout: PartitionLayout, *, read_committed: bool, up_to_high_watermark: bool
) -> int:
    """The offset at which a reader has to stop; ``MAX_OFFSET`` for the whole log.

    Raises:
        ConfigError: no high watermark is known.
        CorruptDataError: a record of a transaction is damaged.
        OSError: the medium refused.
    """
    end = MAX_OFFSET
    if up_to_high_watermark:
        if layout.high_watermark == UNKNOWN:
            raise ConfigError(
                f"{shown(layout.uri)}: replication-offset-checkpoint has no high watermark of "
                f"{layout.name}; upTo=logEnd reads to the end of the log"
            )
        end = layout.high_watermark
    if not read_committed:
        return end
    known = min(end, log_end_offset(layout))
    stable = last_stable_offset(layout, known)
    return end if stable == known else stable


def offset_for_timestamp(layout: PartitionLayout, timestamp: int) -> int | None:
    """The first offset whose record is not earlier than ``timestamp``, in ms; ``None`` if none is.

    As in Kafka's ListOffsets, records at later offsets may be earlier in time.

    Raises:
        CorruptBatchError: a batch on the way is damaged.
        OSError: the medium refused.
    """
    for segment, next_base in layout.bounded():
        if next_base > layout.log_start_offset and not segment.is_before(timestamp):
            found = _first_in(layout, segment, timestamp, next_base == MAX_OFFSET)
            if found is not None:
                return found
    return None


def _first_in(
    layout: PartitionLayout, segment: ListedSegment, timestamp: int, is_last: bool
) -> int | None:
    index = SegmentIndex(layout, segment)
    first = max(index.first_offset_from(timestamp), layout.log_start_offset)
    with index.windows(first, open_end=is_last) as windows:
        for window, position, table in windows.tables(BatchTable):
            names = ("max_timestamp", "last_offset", "attributes")
            for row, (latest, last, attributes) in enumerate(
                zip(*(table.cells(name) for name in names), strict=True)
            ):
                if latest < timestamp or last < first or attributes & bits.CONTROL:
                    continue
                data = window[table.span(row, row + 1)]
                batch = parse_batch(data)
                assert batch is not None  # a row of the table is a whole batch
                try:
                    records = batch_records(data, batch, from_offset=first)
                except CorruptBatchError as error:
                    located = error.located(index.path, position + table.cells("position")[row])
                    if not layout.drop_malformed:
                        raise located from None
                    logger.warning("passed over a batch: %s", located)
                    continue
                for record in records:
                    if record.timestamp >= timestamp:
                        return record.offset
    return None
