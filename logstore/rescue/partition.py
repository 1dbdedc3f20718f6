"""One partition: from its replicas to one log, and the new segments of it.

The segments have nothing but batches. Recovery builds the indexes and the rest.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence

from checkpoints.printable import printable
from checkpoints.types import TopicPartition
from logstore.format import filenames
from logstore.format.header import HEADER_SIZE
from logstore.rescue.lineage import lineage_of
from logstore.rescue.merging import BatchFate, Merge, MergedRange, MergeSource, Missing
from logstore.rescue.placing import RescuedRange, mended_head
from logstore.rescue.replica import Surveyed, survey_replica
from logstore.rescue.report import Gap, PartitionRescue, SetAside
from logstore.rescue.sources import SourceReplica
from logstore.rescue.survey import FilePool, PatchyFile
from logstore.rescue.witnesses import place_by_copies
from logstore.storage.base import File, Storage

_PIECE = 1 << 20
_RELATIVE_MAX = 2**31 - 1


class RescueWriter:
    """Writes batches of one partition into new segments.

    Args:
        bases: where segments of the sources begin; new ones begin there too.
        segment_bytes: the largest size of a segment that holds more than one stretch.
    """

    def __init__(
        self, storage: Storage, directory: str, bases: Sequence[int], segment_bytes: int
    ) -> None:
        self._storage, self._directory = storage, directory
        self._bases, self._segment_bytes = sorted(bases), segment_bytes
        self._file: File | None = None
        self._base = self._size = 0
        self._aside: dict[str, int] = {}

    def add(self, stretch: MergedRange, file: PatchyFile) -> None:
        """Append the batches of ``stretch``, which lie in ``file``."""
        if self._file is None or self._is_full(stretch):
            self._roll(stretch.first)
        assert self._file is not None
        for data in bytes_of(stretch.source.piece, stretch.start, stretch.end, file):
            self._file.write_at(self._size, data)
            self._size += len(data)

    def _is_full(self, stretch: MergedRange) -> bool:
        return (
            self._size + stretch.end - stretch.start > self._segment_bytes
            or stretch.next - 1 - self._base > _RELATIVE_MAX
            or (bool(self._bases) and self._bases[0] <= stretch.first)
        )

    def _roll(self, base: int) -> None:
        self.finish()
        name = filenames.segment_file_name(base, filenames.LOG_SUFFIX)
        self._file = self._storage.open(os.path.join(self._directory, name), create=True)
        self._base, self._size = base, 0
        while self._bases and self._bases[0] <= base:
            self._bases.pop(0)

    def start_empty(self, base: int) -> None:
        """Begin a log without batches that continues at ``base``."""
        self._roll(base)

    def finish(self) -> None:
        if self._file is not None:
            self._file.sync()
            self._file.close()
            self._file = None

    def keep_aside(
        self, name: str, piece: RescuedRange, start: int, end: int, file: PatchyFile
    ) -> None:
        """Append batches of ``piece`` to a file that is not part of the log."""
        aside = self._storage.open(os.path.join(self._directory, name), create=True)
        try:
            position = self._aside.get(name, 0)
            for data in bytes_of(piece, start, end, file):
                aside.write_at(position, data)
                position += len(data)
            self._aside[name] = position
            aside.sync()
        finally:
            aside.close()


def bytes_of(piece: RescuedRange, start: int, end: int, file: PatchyFile) -> Iterator[bytes]:
    """Bytes ``[start, end)`` of a piece, in parts. A mended batch has its right header."""
    if piece.mended:
        head = file.read_at(start, min(HEADER_SIZE, end - start))
        yield mended_head(piece, head)
        start += len(head)
    for at in range(start, end, _PIECE):
        yield file.read_at(at, min(_PIECE, end - at))


_WHY = {
    BatchFate.DIVERGENT: "of a tail that a later leader epoch replaced, never committed",
    BatchFate.OUTVOTED: "more replicas, or a later epoch, have other batches there",
    BatchFate.CONTRADICTS: "another replica has other batches there, and neither is proven right",
    BatchFate.COMPACTED: "the same batches, compacted further",
}
_KEPT = (BatchFate.DIVERGENT, BatchFate.OUTVOTED, BatchFate.CONTRADICTS)


class PartitionMerge:
    """Surveys the replicas of a partition, and merges them when it is run."""

    def __init__(
        self,
        tp: TopicPartition,
        replicas: Sequence[SourceReplica],
        pool: FilePool,
        on_bytes: Callable[[int], None],
    ) -> None:
        self.surveyed = [survey_replica(replica, pool, on_bytes, replicas) for replica in replicas]
        place_by_copies(self.surveyed)
        self.report = PartitionRescue(tp.topic, tp.partition, [r.path for r in replicas])
        ranked = sorted(self.surveyed, key=lambda s: s.history.rank, reverse=True)
        self._leaders = {id(s): number for number, s in enumerate(ranked)}
        self.lineage = lineage_of([s.history for s in self.surveyed])
        self.log_start = self._agreed_log_start(replicas)
        self._open: dict[tuple[int, BatchFate], tuple[MergedRange, str]] = {}
        self._next = -1

    @property
    def bases(self) -> list[int]:
        """The bases of the segments of the replica closest to the committed history."""
        first = min(self.surveyed, key=lambda s: self._leaders[id(s)])
        return sorted({f.base for f in first.replica.files if f.is_segment})

    def _agreed_log_start(self, replicas: Iterable[SourceReplica]) -> int:
        """The highest log start on file that lies in the log. Records below it were deleted."""
        end = max((p.next for s in self.surveyed for p in s.pieces), default=0)
        starts = {r.log_start for r in replicas if r.log_start >= 0}
        for start in sorted(start for start in starts if start > end):
            self._note(f"log start {start} on file is above the end of every replica: not believed")
        believed = max((start for start in starts if start <= end), default=0)
        if believed:
            self._note(f"offsets below the log start {believed} were deleted")
        return believed

    def _note(self, text: str) -> None:
        self.report.add(self.report.notes, text)

    # -- merging -----------------------------------------------------------------------------------

    def run(self, writer: RescueWriter | None) -> PartitionRescue:
        """Write the log, and return what it lacks. ``writer`` is None for a dry run."""
        merge = Merge(self._sources(), self._file)
        for event in merge.run():
            if isinstance(event, Missing):
                self._missing(event)
            elif event.fate is BatchFate.TAKEN:
                self._doubt(event, merge.agreed)
                self._taken(event, writer)
            else:
                self._lost(event, writer)
        self._homeless(writer)
        self._report_set_aside()
        self.report.copies = merge.copies
        self._ends(writer)
        if writer is not None:
            writer.finish()
        return self.report

    def _sources(self) -> list[MergeSource]:
        return [
            self._source(number, surveyed, piece)
            for number, surveyed in enumerate(self.surveyed)
            for piece in surveyed.pieces
        ]

    def _source(self, number: int, surveyed: Surveyed, piece: RescuedRange) -> MergeSource:
        limit = self.lineage.limit_of(piece, surveyed.replica.high_watermark)
        epoch = self.lineage.epoch_at(piece.first)
        fits = piece.epoch < 0 or epoch in (None, piece.epoch)
        return MergeSource(number, self._leaders[id(surveyed)], piece, limit, fits)

    def _file(self, replica: int, number: int) -> PatchyFile:
        return self.surveyed[replica].files[number]

    def _file_of(self, stretch: MergedRange) -> PatchyFile:
        return self._file(stretch.source.replica, stretch.source.piece.file)

    def _doubt(self, stretch: MergedRange, agreed: bool) -> None:
        if stretch.source.piece.alone and not agreed:
            where = f"{printable(self._file_of(stretch).path)} at byte {stretch.start}"
            why = "nothing beside its header vouches for its base offset"
            self.report.add(
                self.report.doubts, f"offsets [{stretch.first}, {stretch.next}): {where}: {why}"
            )

    def _taken(self, stretch: MergedRange, writer: RescueWriter | None) -> None:
        if stretch.next <= self.log_start:
            return  # deleted
        report = self.report
        if self._next < 0:
            self._begins(stretch)
            report.start = max(stretch.first, self.log_start)
        self._next = report.end = stretch.next
        report.batches += stretch.batches
        report.records += stretch.records
        report.bytes += stretch.end - stretch.start
        report.mended += stretch.source.piece.mended
        if writer is not None:
            writer.add(stretch, self._file_of(stretch))

    # -- what is missing ---------------------------------------------------------------------------

    def _missing(self, missing: Missing) -> None:
        first = max(missing.first, self.log_start)
        if first >= missing.next:
            return
        if missing.history:
            self.report.history_gaps += missing.next - first
        else:
            self._gap(first, missing.next)

    def _gap(self, first: int, end: int, why: str = "") -> None:
        parts = [why] if why else []
        for surveyed in self.surveyed:
            reasons = surveyed.reasons(first, end) or ["what it has there is not taken"]
            parts.append(f"{printable(surveyed.replica.path)}: {', '.join(reasons)}")
        self.report.add(self.report.gaps, Gap(first, end, "; ".join(parts)))

    def _begins(self, stretch: MergedRange) -> None:
        """Note what a replica should have before the first batch."""
        began = [base for s in self.surveyed for base in _beginnings(s)]
        first = max(min(began, default=stretch.first), self.log_start)
        if first >= stretch.first:
            return
        history = any(
            0 <= p.behind <= first and p.first >= stretch.first
            for s in self.surveyed
            for p in s.pieces[:1]
        )
        self._missing(Missing(first, stretch.first, history))

    def _ends(self, writer: RescueWriter | None) -> None:
        """Note what the log had at its end according to the files of a replica."""
        end = max(self._next, self.log_start)
        if self._next < 0:
            self._is_empty(writer)
            began = [base for s in self.surveyed for base in _beginnings(s)]
            end = max(end, min(began, default=0))
        reached, why = max((self._reached(s) for s in self.surveyed), default=(0, ""))
        if reached > end:
            self._gap(end, reached, why)

    def _is_empty(self, writer: RescueWriter | None) -> None:
        """No batch is left. The empty log continues where the newest segment begins."""
        bases = [f.base for s in self.surveyed for f in s.replica.files if f.is_segment]
        start = max([self.log_start, *bases])
        self.report.start = self.report.end = start
        if writer is not None:
            writer.start_empty(start)

    def _reached(self, surveyed: Surveyed) -> tuple[int, str]:
        """The log end according to a replica, as far as the replica was in the history."""
        replica = surveyed.replica
        said = {
            "the recovery point on file": replica.recovery_point,
            "the high watermark on file": replica.high_watermark,
            "the name of a file": replica.reached,
            "the header of a damaged batch": surveyed.claimed,
        }
        what, offset = max(said.items(), key=lambda item: item[1])
        if surveyed.history.entries:  # otherwise its last epochs may be lost, and it may be right
            offset = min(offset, self.lineage.left_by(surveyed.history.rank[0]))
        return offset, f"{what} of {printable(replica.path)} is {offset}"

    # -- what is set aside -------------------------------------------------------------------------

    def _lost(self, stretch: MergedRange, writer: RescueWriter | None) -> None:
        """Keep a stretch that is not taken, joined with its neighbour."""
        key = stretch.source.replica, stretch.fate
        before = self._open.get(key)
        if before is not None and _continues(before[0], stretch):
            name = before[1]
            whole = before[0]._replace(
                end=stretch.end, next=stretch.next, batches=before[0].batches + stretch.batches
            )
        else:
            self._report_one(key)
            name = f"{filenames.offset_name(stretch.first)}.{stretch.fate.value}-{key[0]}.cut"
            whole = stretch
        self._open[key] = whole, name
        if writer is not None and stretch.fate in _KEPT:
            piece, file = stretch.source.piece, self._file_of(stretch)
            writer.keep_aside(name, piece, stretch.start, stretch.end, file)

    def _report_set_aside(self) -> None:
        for key in list(self._open):
            self._report_one(key)

    def _report_one(self, key: tuple[int, BatchFate]) -> None:
        if key not in self._open:
            return
        stretch, name = self._open.pop(key)
        path = self._file_of(stretch).path
        kept = name if stretch.fate in _KEPT else ""
        why = _WHY[stretch.fate]
        if stretch.fate is BatchFate.DIVERGENT:
            mark = self.surveyed[key[0]].replica.high_watermark
            if mark > stretch.first:
                why += f"; yet below the high watermark {mark} of this replica"
        aside = SetAside(path, stretch.first, stretch.next, stretch.batches, why, kept)
        self.report.add(self.report.set_aside, aside)
        if stretch.fate is BatchFate.CONTRADICTS:
            self.report.add(self.report.doubts, str(aside))

    def _homeless(self, writer: RescueWriter | None) -> None:
        for number, surveyed in enumerate(self.surveyed):
            for piece in surveyed.homeless:
                path = surveyed.files[piece.file].path
                aside = SetAside(
                    path,
                    piece.first,
                    piece.next,
                    piece.batches,
                    f"at byte {piece.start}: its base offset contradicts what is around it",
                    f"{filenames.offset_name(max(piece.first, 0))}.homeless-{number}.cut",
                )
                self.report.add(self.report.set_aside, aside)
                if writer is not None:
                    file = surveyed.files[piece.file]
                    writer.keep_aside(aside.file, piece, piece.start, piece.end, file)


def _continues(one: MergedRange, other: MergedRange) -> bool:
    same = one.source.piece.file == other.source.piece.file
    return same and one.end == other.start and one.next <= other.first


def _beginnings(surveyed: Surveyed) -> list[int]:
    """Offsets at which a replica says that its log begins, or began."""
    entries = [start for _, start in surveyed.history.entries[:1]]
    segments = [f.base for f in surveyed.replica.files if f.is_segment]
    return [*entries, *segments, *surveyed.replica.orphans]
