"""A partition's log for a stream: where it ends, and whether what was read is still there.

Everything comes from the files, as a process that is not the writer sees them.
"""

from __future__ import annotations

import enum
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

from checkpoints.loggers import get_logger
from logstore.directory.errors import DataLossError
from logstore.directory.listing import PartitionLayout
from logstore.directory.positions import readable_end, with_rolls
from logstore.directory.segment_index import SegmentIndex, log_end_offset, segment_of
from logstore.directory.tiered import epochs_of
from logstore.directory.windows import BatchTable
from logstore.format import attributes as bits
from logstore.spark.options import SourceOptions
from logstore.spark.stream.stream_offsets import NO_CRC, Epochs, Proof, StreamMark, common_end
from logstore.storage.uri import shown

logger = get_logger(__name__)


class Verdict(enum.Enum):
    """Whether the log still has a batch that was read."""

    SAME = "same"
    OTHER = "other"
    UNKNOWN = "unknown"
    """Compaction removed or rewrote the batch."""


@dataclass(frozen=True, slots=True)
class StreamBatch:
    """A batch by its header. ``sound``: its checksum is right.

    ``compacted``: records were removed or a delete horizon was set since the append (F-95).
    """

    base_offset: int
    last_offset: int
    leader_epoch: int
    crc: int
    sound: bool
    compacted: bool


def batch_with(layout: PartitionLayout, offset: int) -> StreamBatch | None:
    """The batch that holds ``offset``; ``None`` where there is none, as after compaction.

    Raises:
        CorruptBatchError: a batch on the way to it is damaged.
        OSError: the medium refused.
    """
    at = segment_of(layout.segments, offset)
    if at < 0:
        return None
    segment = layout.segments[at]
    index = SegmentIndex(layout, segment)
    end = index.ceiling(offset + 1)
    with index.windows(offset, end, open_end=end == segment.size) as windows:
        for window, _, table in windows.tables(BatchTable):
            row = bisect_left(table.cells("last_offset"), offset)
            if row < table.rows:
                return _batch(window, table, row, offset)
    return None


def _batch(window: memoryview, table: BatchTable, row: int, offset: int) -> StreamBatch | None:
    def cell(name: str) -> int:
        return table.cells(name)[row]

    base_offset, last_offset = cell("base_offset"), cell("last_offset")
    if base_offset > offset:
        return None
    whole = last_offset - base_offset + 1
    sound = BatchTable(window[table.span(row, row + 1)], check_crc=True).rows == 1
    return StreamBatch(
        base_offset,
        last_offset,
        cell("leader_epoch"),
        cell("crc"),
        sound,
        cell("record_count") < whole or bool(cell("attributes") & bits.DELETE_HORIZON),
    )


@dataclass(frozen=True, slots=True)
class Resumption:
    """The place to continue after a mark, and what is lost if that is not where the mark ended.

    ``remade``: the log belongs to another topic of the same name.
    """

    offset: int
    loss: DataLossError | None = None
    remade: bool = False


@dataclass(frozen=True, slots=True)
class StreamLogView:
    """A log as it was listed.

    ``end`` is one past its last sound batch. ``readable_end`` is the first offset that must not be
    read yet: ``end``, the high watermark or the last stable offset. The view is ``settled`` unless
    bytes of the last batch are still missing: then the same listing may show more later.
    ``topic_id`` is "" where ``partition.metadata`` is missing or malformed.
    """

    layout: PartitionLayout
    topic_id: str
    end: int
    readable_end: int
    epochs: Epochs
    settled: bool

    @classmethod
    def of(cls, layout: PartitionLayout, topic_id: str, options: SourceOptions) -> StreamLogView:
        """
        Raises:
            ConfigError: no high watermark is known, and ``options`` stop there.
            CorruptDataError: the end of the log or its transactions are damaged.
            OSError: a file cannot be read; ``FileNotFoundError`` if the files changed.
        """
        layout = with_rolls(layout)
        end = log_end_offset(layout)
        last = batch_with(layout, end - 1) if end > layout.log_start_offset else None
        settled = last is None or last.sound
        if last is not None and not settled:
            # On a network file system a size may become visible before the bytes.
            logger.warning(
                "%s: the last batch, at offset %d, is not complete or damaged: left for later",
                shown(layout.uri),
                last.base_offset,
            )
            end = max(last.base_offset, layout.log_start_offset)
        # A cut does not rewrite the file at once (F-205), so entries past the end are from before
        # it.
        epochs = tuple(entry for entry in epochs_of(layout) if entry[1] < end)
        limit = readable_end(
            layout,
            read_committed=options.read_committed,
            up_to_high_watermark=options.up_to_high_watermark,
        )
        return cls(layout, topic_id, end, min(limit, end), epochs, settled)

    # -- what is stored about a log
    # -----------------------------------------------------------------

    def mark(self, offset: int, since: int, before: StreamMark | None = None) -> StreamMark:
        """``offset`` with proofs that show later whether the log before it is the same.

        ``before`` is the mark from which reading continued, at ``since``; ``None`` if there is none
        for this log.
        """
        earlier = list(self._sampled(offset, max(since, self.layout.log_start_offset)))
        if before is not None and self.is_of(before):
            known = (*before.earlier, before.proof)
            earlier += (p for p in known if p.offset <= since and p.crc != NO_CRC)
        batch = batch_with(self.layout, offset - 1)
        if offset <= self.layout.log_start_offset or batch is None:
            return StreamMark.of(Proof(offset, NO_CRC), self.epochs, self.topic_id, earlier)
        epochs = [entry for entry in self.epochs if entry[0] < batch.leader_epoch]
        starts = dict(self.epochs)
        epochs.append((batch.leader_epoch, starts.get(batch.leader_epoch, batch.base_offset)))
        return StreamMark.of(Proof(offset, batch.crc), epochs, self.topic_id, earlier)

    def _sampled(self, offset: int, lowest: int) -> Iterator[Proof]:
        """Proofs of batches that end 1, 2, 4 … offsets before ``offset``, down to ``lowest``."""
        at, distance = offset - 1, 1
        while at > lowest:
            batch = batch_with(self.layout, at - 1)
            if batch is not None and batch.last_offset < offset:
                yield Proof(batch.last_offset + 1, batch.crc)
                at = min(at, batch.base_offset + 1)
            distance *= 2
            at = min(at - 1, offset - distance)

    # -- whether it is still the same ----------------------------------------------------------

    def resume(self, mark: StreamMark) -> Resumption:
        """Find where to continue after ``mark``."""
        start = self.layout.log_start_offset
        if not self.is_of(mark):
            return self._remade(mark, start)
        if mark.offset < start:
            reason = f"deleted before they were read: the log starts at {start}"
            if self._may_be_truncated_below(mark):
                reason += "; a leader since may have replaced, and lost, records before them, too"
            return Resumption(start, DataLossError(self.layout.uri, mark.offset, start, reason))
        parted = self._parted(mark)
        if parted == mark.offset:
            return Resumption(parted)
        reason = f"cut meanwhile: the log ends at {self.end}, the same up to {parted}"
        if parted < start:  # what replaced the rest below the log start was deleted unread
            reason += f", and starts at {start}"
        loss = DataLossError(self.layout.uri, parted, mark.offset, reason)
        return Resumption(max(parted, start), loss)

    def _may_be_truncated_below(self, mark: StreamMark) -> bool:
        """Whether the log, which starts past ``mark``, has had another leader since.

        Retention takes the entries of epochs that began before the log start: where such a leader
        began to write cannot be known any more.
        """
        read = mark.epoch_before(mark.offset)
        return read is not None and bool(self.epochs) and self.epochs[0][0] > read

    def is_of(self, mark: StreamMark) -> bool:
        """Whether ``mark`` may belong to this log. It may if either side has no id."""
        return not (mark.topic_id and self.topic_id) or mark.topic_id == self.topic_id

    def _remade(self, mark: StreamMark, start: int) -> Resumption:
        reason = (
            f"the topic was deleted and created again (its id was {mark.topic_id}, and is "
            f"{self.topic_id}): what the former one had from there on is lost, this one is read "
            f"from its first offset, {start}"
        )
        loss = DataLossError(self.layout.uri, mark.offset, mark.offset, reason)
        return Resumption(start, loss, remade=True)

    def _parted(self, mark: StreamMark) -> int:
        """The offset up to which the log is known to equal what was read below ``mark``.

        It may be below the log start, and is 0 if nothing is known.
        """
        verdict = self._verdict(mark, mark.proof)
        if verdict is Verdict.SAME:
            return mark.offset
        parted, known = common_end(mark.epochs, mark.offset, self.epochs, self.end)
        parted = min(parted, self.end)
        start = self.layout.log_start_offset
        proofs = [p for p in reversed(mark.earlier) if start < p.offset <= parted]
        if verdict is Verdict.UNKNOWN and parted == mark.offset:
            proofs.insert(0, mark.proof)
        elif parted in (mark.offset, self.end):
            known = False  # cut within one epoch at an unknown offset; the log may have grown since
        for proof in proofs:
            match self._verdict(mark, proof):
                case Verdict.SAME:
                    return parted if known else proof.offset
                case Verdict.OTHER:
                    known = False
        return parted if known else 0

    def _verdict(self, mark: StreamMark, proof: Proof) -> Verdict:
        if proof.offset <= self.layout.log_start_offset:
            return Verdict.SAME  # nothing below it exists any more
        if proof.offset > self.end:
            return Verdict.OTHER
        batch = batch_with(self.layout, proof.offset - 1)
        if batch is None or proof.crc == NO_CRC:
            return Verdict.UNKNOWN
        epoch = mark.epoch_before(proof.offset)
        if epoch is not None and batch.leader_epoch != epoch:
            return Verdict.OTHER
        if batch.crc == proof.crc:
            return Verdict.SAME
        return Verdict.UNKNOWN if batch.compacted else Verdict.OTHER


__all__ = ["Resumption", "StreamBatch", "StreamLogView", "batch_with"]
