"""All files of one replica: where its batches belong, what is missing, and why."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from checkpoints.printable import printable
from logstore.rescue.lineage import History, Lineage, agreeing_entries, runs_of, sane_entries
from logstore.rescue.placing import (
    Damage,
    EpochAt,
    FileFrame,
    RescuedRange,
    coalesce,
    copies,
    housed,
    mend_epochs,
    place,
)
from logstore.rescue.report import Gap
from logstore.rescue.sources import DataFile, SourceReplica
from logstore.rescue.survey import FilePool, Found, PatchyFile, Survey

_REASONS = 3  # how many reasons one hole names; the others are counted
_END = 2**63


@dataclass(slots=True)
class Surveyed:
    """One surveyed replica. ``pieces`` and ``holes`` are sorted by offset.

    ``claimed`` is the offset after a damaged last batch according to its header, or −1.
    """

    replica: SourceReplica
    files: list[PatchyFile]
    pieces: list[RescuedRange]
    homeless: list[RescuedRange]
    holes: list[Gap]
    history: History
    claimed: int = -1
    damages: list[Damage] = field(default_factory=list)

    def reasons(self, first: int, end: int) -> list[str]:
        """Say why this replica lacks offsets ``[first, end)``."""
        at = max(bisect_right([hole.first for hole in self.holes], first) - 1, 0)
        found = [hole for hole in self.holes[at:] if hole.first < end and first < hole.next]
        return [hole.reason for hole in found[:_REASONS]]


def survey_replica(
    replica: SourceReplica,
    pool: FilePool,
    on_bytes: Callable[[int], None],
    others: Iterable[SourceReplica] = (),
) -> Surveyed:
    """Read all files of a replica, and place the good batches.

    ``others`` are replicas of the same partition. If the log turns out to be compacted, the files
    are read once more.
    """
    epochs = [_epochs_on_file(each) for each in (replica, *others)]
    walk = _Walk(replica, pool, replica.compacted, on_bytes, epochs)
    walk.run()
    if walk.has_holes and not walk.sparse:
        walk = _Walk(replica, pool, True, lambda _: None, epochs)
        walk.run()
    return walk.result()


def _epochs_on_file(replica: SourceReplica) -> EpochAt:
    entries = sane_entries(replica.epochs)
    return Lineage([(start, epoch) for epoch, start in entries], ()).epoch_at


class _Walk:
    def __init__(
        self,
        replica: SourceReplica,
        pool: FilePool,
        sparse: bool,
        on_bytes: Callable[[int], None],
        epochs: list[EpochAt],
    ) -> None:
        self.replica, self.sparse, self._on_bytes = replica, sparse, on_bytes
        self.data = sorted(replica.files, key=lambda f: (f.base, not f.is_segment, f.name))
        self.files = [PatchyFile(pool, os.path.join(replica.path, f.name)) for f in self.data]
        self.bases = frozenset(f.base for f in self.data if f.is_segment)
        self._ascending = sorted(self.bases)
        self.pieces: list[RescuedRange] = []
        self.damages: list[Damage] = []
        self.has_holes = False
        self.behind = -1
        self._epochs = epochs

    def run(self) -> None:
        for number, (data, file) in enumerate(zip(self.data, self.files, strict=True)):
            survey = Survey(file, number, self._on_bytes)
            frame = self._frame(data)
            good = mend_epochs(self._pieces_of(survey.run()), self._epochs[0], self._epochs[1:])
            before = len(self.pieces)
            self.pieces += coalesce(place(good, frame))
            self.has_holes = self.has_holes or survey.has_holes
            self.behind = self._behind(number, before)

    def _frame(self, data: DataFile) -> FileFrame:
        """The frame of a file. A kept cut does not begin at the offset in its name."""
        if not data.is_segment:
            return FileFrame(data.base, -1, frozenset(), -1, True)
        at = bisect_right(self._ascending, data.base)
        following = self._ascending[at] if at < len(self._ascending) else -1
        return FileFrame(data.base, following, self.bases, self.behind, self.sparse)

    def _pieces_of(self, found: Iterable[Found]) -> Iterator[RescuedRange]:
        for one in found:
            if isinstance(one, RescuedRange):
                yield one
            else:
                self.damages.append(one)

    def _behind(self, number: int, before: int) -> int:
        """The offset up to which the log is known at the end of a file."""
        pieces = self.pieces[before:]
        if not pieces:
            return -1
        last = pieces[-1]
        damaged = [d for d in self.damages if d.file == number and d.start >= last.end]
        return -1 if last.homeless or any(d.reason != "zeros" for d in damaged) else last.next

    # -- the result ------------------------------------------------------------------------------

    def result(self) -> Surveyed:
        doubled = copies(self.pieces)
        placed = [p for p in self.pieces if not p.homeless and p not in doubled]
        found = housed((p for p in self.pieces if p.homeless), placed, self.replica.recovery_point)
        homeless = [
            p._replace(homeless=True)
            for p in self.pieces
            if p in doubled or (p.homeless and p not in found)
        ]
        pieces = placed + [p._replace(homeless=False, alone=True, behind=-1) for p in found]
        pieces.sort(key=lambda p: p.first)
        runs = runs_of(pieces)
        entries = agreeing_entries(sane_entries(self.replica.epochs), runs)
        return Surveyed(
            self.replica,
            self.files,
            pieces,
            homeless,
            list(self._holes(pieces)),
            History(runs, entries),
            self._claimed(pieces),
            self.damages,
        )

    def _claimed(self, pieces: list[RescuedRange]) -> int:
        end = max((p.next for p in pieces), default=0)
        return max((d.claimed for d in self.damages if d.claimed > end), default=-1)

    def _holes(self, pieces: list[RescuedRange]) -> Iterator[Gap]:
        bounds: list[RescuedRange | None] = [None, *pieces, None]
        reached = 0
        for one, other in pairwise(bounds):
            reached = max(reached, one.next if one is not None else 0)
            end = _END if other is None else other.first
            if end > reached:
                yield Gap(reached, end, self._why(one, other))

    def _why(self, one: RescuedRange | None, other: RescuedRange | None) -> str:
        """Say what lies between two pieces that are neighbours by offset."""
        low = (-1, 0) if one is None else (one.file, one.start)
        high = (len(self.data), 0) if other is None else (other.file, other.start)
        between = [d for d in self.damages if low < (d.file, d.start) < high]
        parts = [self._shown_damage(damage) for damage in between[:_REASONS]]
        if len(between) > _REASONS:
            parts.append(f"{len(between) - _REASONS} more places")
        first = 0 if one is None else one.next
        end = _END if other is None else other.first
        parts += [
            f"{name} without its .log"
            for base, name in self.replica.orphans.items()
            if first <= base < end
        ][:_REASONS]
        return "; ".join(parts) or self._plain_reason(one, other)

    def _shown_damage(self, damage: Damage) -> str:
        name = printable(self.data[damage.file].name)
        return f"{name} at byte {damage.start}: {damage.reason}, {damage.end - damage.start} bytes"

    def _plain_reason(self, one: RescuedRange | None, other: RescuedRange | None) -> str:
        if other is None:
            return "it has no batches" if one is None else f"it ends at {one.next}"
        if one is None:
            return f"it begins at {other.first}"
        names = (printable(self.data[p.file].name) for p in (one, other))
        ends, begins = names
        return f"{ends} ends at {one.next}, {begins} goes on at {other.first}"
