"""A partition's log as a stream looks at it between two reads: where it ends, what it holds there.

Everything is found by way of the files, as a process that is not the writer sees them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

from checkpoints.errors import MalformedCheckpointError
from checkpoints.leader_epoch_checkpoint import LEADER_EPOCH, LeaderEpochCheckpoint
from checkpoints.loggers import get_logger
from logstore.format import attributes as bits
from logstore.spark.batch_table import BatchTable
from logstore.spark.errors import DataLossError
from logstore.spark.layout import PartitionLayout
from logstore.spark.options import ReadOptions
from logstore.spark.positions import log_end_offset, readable_end, with_rolls
from logstore.spark.segment_index import SegmentIndex
from logstore.spark.stream_offsets import NO_CRC, Epochs, Mark, common_end
from logstore.storage.uri import join_uri, open_storage, shown

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch by its header. ``sound``: its checksum is right. ``compacted``: it is not as it was
    appended, since records were taken out or a delete horizon was set (F-95)."""

    base_offset: int
    leader_epoch: int
    crc: int
    sound: bool
    compacted: bool


def batch_with(layout: PartitionLayout, offset: int) -> Batch | None:
    """The batch that holds ``offset``; ``None`` where there is none, as after compaction.

    Raises:
        CorruptBatchError: no batch can be found on the way to it.
        OSError: the medium refused.
    """
    at = bisect_right(layout.segments, offset, key=lambda segment: segment.base_offset) - 1
    if at < 0:
        return None
    segment = layout.segments[at]
    index = SegmentIndex(layout, segment)
    end = index.ceiling(offset + 1)
    with index.windows(offset, end, open_end=end == segment.size) as windows:
        for window, _, table in windows.tables():
            row = bisect_left(table.cells("last_offset"), offset)
            if row < table.rows:
                return _batch(window, table, row, offset)
    return None


def _batch(window: memoryview, table: BatchTable, row: int, offset: int) -> Batch | None:
    def cell(name: str) -> int:
        return table.cells(name)[row]

    base_offset = cell("base_offset")
    if base_offset > offset:
        return None
    whole = cell("last_offset") - base_offset + 1
    sound = BatchTable(window[table.span(row, row + 1)], check_crc=True).rows == 1
    return Batch(
        base_offset,
        cell("leader_epoch"),
        cell("crc"),
        sound,
        cell("record_count") < whole or bool(cell("attributes") & bits.DELETE_HORIZON),
    )


@dataclass(frozen=True, slots=True)
class LogView:
    """A log as it was listed.

    ``end`` is one past its last sound batch, ``readable_end`` the first offset that must not be
    read yet: that, the high watermark or the last stable offset. The view is ``settled`` unless the
    bytes of the last batch are still to come: then the same listing may show more the next time.
    """

    layout: PartitionLayout
    end: int
    readable_end: int
    epochs: Epochs
    settled: bool

    @classmethod
    def of(cls, layout: PartitionLayout, options: ReadOptions) -> LogView:
        """
        Raises:
            ConfigError: no high watermark is known, and ``options`` stop there.
            CorruptDataError: what lies at the end, or its transactions, make no sense.
            OSError: the medium refused; ``FileNotFoundError`` where the files changed meanwhile.
        """
        layout = with_rolls(layout)
        end = log_end_offset(layout)
        last = batch_with(layout, end - 1) if end > layout.log_start_offset else None
        settled = last is None or last.sound
        if last is not None and not settled:
            # As over a network file system, where a size may come before the bytes.
            logger.warning(
                "%s: the last batch, at offset %d, is not complete or damaged: left for later",
                shown(layout.uri),
                last.base_offset,
            )
            end = max(last.base_offset, layout.log_start_offset)
        # A cut does not rewrite the file at once (F-205): what starts past the end is of before.
        epochs = tuple(entry for entry in _epochs(layout) if entry[1] < end)
        limit = readable_end(
            layout,
            read_committed=options.read_committed,
            up_to_high_watermark=options.up_to_high_watermark,
        )
        return cls(layout, end, min(limit, end), epochs, settled)

    def mark(self, offset: int) -> Mark:
        """``offset`` with what proves later that the log before it is the same."""
        batch = batch_with(self.layout, offset - 1)
        if offset <= self.layout.log_start_offset or batch is None:
            return Mark(offset)
        epochs = [entry for entry in self.epochs if entry[0] < batch.leader_epoch]
        starts = dict(self.epochs)
        epochs.append((batch.leader_epoch, starts.get(batch.leader_epoch, batch.base_offset)))
        return Mark.of(offset, batch.crc, epochs)

    def resume(self, mark: Mark) -> tuple[int, DataLossError | None]:
        """Where to go on after ``mark``, and what is lost if that is not where it ended."""
        start = self.layout.log_start_offset
        if mark.offset < start:
            reason = f"deleted before they were read: the log starts at {start}"
            return start, DataLossError(self.layout.uri, mark.offset, start, reason)
        if mark.offset == start or (mark.crc == NO_CRC and mark.offset <= self.end):
            return mark.offset, None
        batch = batch_with(self.layout, mark.offset - 1) if mark.offset <= self.end else None
        epoch = mark.epochs[-1][0] if mark.epochs else -1
        if (
            batch is not None
            and batch.leader_epoch == epoch
            and (batch.crc == mark.crc or batch.compacted)
        ):
            return mark.offset, None
        if batch is None and mark.offset <= self.end:
            return mark.offset, None  # compacted away
        parted = common_end(mark.epochs, mark.offset, self.epochs, self.end)
        if parted >= mark.offset and batch is not None:
            parted = batch.base_offset  # of one epoch: how much more was cut cannot be told
        parted = max(min(parted, self.end), start)
        reason = f"cut meanwhile: the log ends at {self.end}, the same up to {parted}"
        return parted, DataLossError(self.layout.uri, parted, mark.offset, reason)


def _epochs(layout: PartitionLayout) -> Epochs:
    """As ``leader-epoch-checkpoint`` has them, as far as they ascend; none without the file."""
    storage, path = open_storage(join_uri(layout.uri, LEADER_EPOCH))
    try:
        entries = LeaderEpochCheckpoint(path, storage).read()
    except MalformedCheckpointError as error:
        logger.warning("taken as missing: %s", error)
        return ()
    ascending: list[tuple[int, int]] = []
    for epoch, start in entries:
        if not ascending or (epoch > ascending[-1][0] and start >= ascending[-1][1]):
            ascending.append((epoch, start))
    return tuple(ascending)


__all__ = ["Batch", "LogView", "batch_with"]
