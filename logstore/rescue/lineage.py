"""The history of a partition by leader epochs: which epoch wrote which offsets.

An epoch has one leader, and the leader's log decides what its epoch contains: a follower truncates
to the point where the leader's epoch begins. So the replica with the latest epoch, and the longest
of several such replicas, has the committed history. A tail of an older epoch on another replica was
truncated, or would have been. All here is pure.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from logstore.rescue.placing import RescuedRange


class LineageRun(NamedTuple):
    """Offsets ``[first, next)`` of one epoch. A part of them may be lost."""

    first: int
    next: int
    epoch: int


class History(NamedTuple):
    """The history that one replica knows: ``runs`` from its batches, ``entries`` from its epoch
    file as ``(epoch, start offset)``; both ascend by offset."""

    runs: tuple[LineageRun, ...]
    entries: tuple[tuple[int, int], ...]

    @property
    def end(self) -> int:
        return self.runs[-1].next if self.runs else 0

    @property
    def rank(self) -> tuple[int, int]:
        """The latest epoch and the log end: the higher, the closer to the committed history."""
        later = [epoch for epoch, start in self.entries if start >= self.end]
        return max([run.epoch for run in self.runs] + later, default=-1), self.end


class Lineage:
    """Which epoch each offset belongs to.

    ``undecided`` are ranges in which one epoch ends and a later one begins, at an unknown offset.
    """

    def __init__(self, steps: Sequence[tuple[int, int]], undecided: Sequence[tuple[int, int]]):
        """``steps``: ``(start offset, epoch)``, ascending by offset."""
        self.steps = tuple(steps)
        self.undecided = tuple(undecided)
        self._starts = [start for start, _ in steps]

    def epoch_at(self, offset: int) -> int | None:
        """The epoch at an offset. None below the first step, and where no batch has an epoch."""
        at = bisect_right(self._starts, offset) - 1
        return self.steps[at][1] if at >= 0 else None

    def end_of_step(self, offset: int) -> int:
        """Return where the epoch at ``offset`` ends; 2**63 if it is the last one."""
        at = bisect_right(self._starts, offset)
        return self._starts[at] if at < len(self._starts) else 2**63

    def left_by(self, epoch: int) -> int:
        """Up to which offset a replica counts whose latest epoch is this one; 2**63 for the latest
        of all.
        """
        return min((start for start, later in self.steps if later > epoch), default=2**63)

    def limit_of(self, piece: RescuedRange, high_watermark: int) -> int:
        """The offset up to which a piece is part of this history: its own ``next``, or less.

        A replica that leaves the history in an undecided range is trusted in that range only up to
        its high watermark.
        """
        if piece.epoch < 0 or not self.steps:
            return piece.next
        epoch = self.epoch_at(piece.first)
        if epoch is not None and epoch > piece.epoch:
            return piece.first
        end = self.end_of_step(piece.first)
        if epoch is None or epoch < piece.epoch or piece.next <= end:
            return piece.next
        for low, high in self.undecided:
            if high == end:
                return min(end, max(low, piece.first, high_watermark))
        return end


def sane_entries(entries: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """The entries of an epoch file, or none if they do not ascend, because it is damaged then."""
    found = tuple(entries)
    ascending = all(a[0] < b[0] and a[1] <= b[1] for a, b in pairwise(found))
    return found if ascending else ()


def agreeing_entries(
    entries: Sequence[tuple[int, int]], runs: Iterable[LineageRun]
) -> tuple[tuple[int, int], ...]:
    """``entries``, or none if they contradict the batches and so belong to another log.

    An epoch file may lack the latest epochs.
    """
    lineage = Lineage([(start, epoch) for epoch, start in entries], ())
    latest = entries[-1][0] if entries else -1
    for run in runs:
        ends = {lineage.epoch_at(run.first), lineage.epoch_at(run.next - 1)}
        if run.epoch <= latest and ends != {run.epoch}:
            return ()
    return tuple(entries)


def runs_of(pieces: Iterable[RescuedRange]) -> tuple[LineageRun, ...]:
    """Epoch runs of a replica, by offset. Only confirmed epochs count.

    If one directory has files of two histories, the later epoch counts.
    """
    runs: list[LineageRun] = []
    known = (p for p in pieces if p.sure and not (p.alone or p.mended) and p.epoch >= 0)
    for piece in sorted(known, key=lambda p: p.first):
        while runs and runs[-1].next > piece.first and runs[-1].epoch < piece.epoch:
            cut = runs.pop()
            if cut.first < piece.first:
                runs.append(cut._replace(next=piece.first))
        if runs and runs[-1].epoch == piece.epoch:
            runs[-1] = runs[-1]._replace(next=max(runs[-1].next, piece.next))
        elif not runs or piece.first >= runs[-1].next:
            runs.append(LineageRun(piece.first, piece.next, piece.epoch))
    return tuple(runs)


def lineage_of(histories: Sequence[History]) -> Lineage:
    """The committed history, from what all replicas know about it."""
    ranked = sorted(histories, key=lambda history: history.rank, reverse=True)
    entries = sorted({entry for history in ranked for entry in history.entries})
    runs: list[LineageRun] = []
    everywhere = [run for history in ranked for run in history.runs]
    for history in ranked:
        own = history.runs if runs else tuple(_without_later(history.runs, everywhere))
        runs = _filled(runs, _begun_earlier(own, entries))
    steps: list[tuple[int, int]] = []
    undecided: list[tuple[int, int]] = []
    for one, other in pairwise([None, *runs]):
        assert other is not None
        between = list(_entries_between(entries, one, other))
        steps += between
        begins = between[-1][0] if between and between[-1][1] == other.epoch else other.first
        if one is None or one.epoch != other.epoch:
            if begins == other.first:
                steps.append((other.first, other.epoch))
            on_file = bool(between) or (other.epoch, begins) in entries
            rises = one is not None and one.epoch < other.epoch
            if one is not None and rises and not on_file and one.next < begins:
                undecided.append((one.next, begins))
    steps += _last_steps(ranked, runs)
    return Lineage(steps, undecided)


def _without_later(
    runs: Iterable[LineageRun], everywhere: Sequence[LineageRun]
) -> Iterator[LineageRun]:
    """Runs up to where a replica has a later epoch.

    Beyond that their file belongs to another history.
    """
    for run in runs:
        later = [r for r in everywhere if r.epoch > run.epoch and r.first < run.next]
        starts = [r.first for r in later if run.first < r.first]
        covered = any(r.first <= run.first < r.next for r in later)
        if not covered:
            yield run._replace(next=min([run.next, *starts]))


def _begun_earlier(
    runs: Iterable[LineageRun], entries: Sequence[tuple[int, int]]
) -> Iterator[LineageRun]:
    """Runs, extended to where epoch files say that they began, if their first batches are lost.

    Behind that there is nothing of an earlier epoch: what lies there is of another history, like a
    batch that came from another replica.
    """
    before: LineageRun | None = None
    for run in runs:
        behind = 0 if before is None else before.first + 1
        known = [s for epoch, s in entries if epoch == run.epoch and behind <= s < run.first]
        run = run._replace(first=min(known, default=run.first))
        if before is not None:
            yield before._replace(next=min(before.next, run.first))
        before = run
    if before is not None:
        yield before


def _filled(runs: list[LineageRun], others: Iterable[LineageRun]) -> list[LineageRun]:
    """``runs``, with holes between and before them filled from a replica of lower rank.

    The end is extended only in the same epoch.
    """
    if not runs:
        return list(others)
    found: list[LineageRun] = []
    for run in others:
        found += _in_holes(runs, run)
    merged: list[LineageRun] = []
    for run in sorted([*runs, *found]):
        if merged and merged[-1].epoch == run.epoch:
            merged[-1] = merged[-1]._replace(next=max(merged[-1].next, run.next))
        else:
            merged.append(run)
    return merged


def _in_holes(runs: Sequence[LineageRun], other: LineageRun) -> Iterator[LineageRun]:
    """The parts of ``other`` where ``runs`` know nothing, and whose epoch fits there."""
    bounds: list[LineageRun | None] = [None, *runs, None]
    for left, right in pairwise(bounds):
        low = 0 if left is None else left.next
        high = 2**63 if right is None else right.first
        first, end = max(low, other.first), min(high, other.next)
        left_it = right is not None and other.next > high and other.epoch != right.epoch
        if first >= end or left_it:  # a replica that is wrong after the hole may be wrong inside it
            continue
        above = left is None or left.epoch <= other.epoch
        below = right is None or other.epoch <= right.epoch
        if above and below and (right is not None or left is None or left.epoch == other.epoch):
            yield LineageRun(first, end, other.epoch)


def _entries_between(
    entries: Iterable[tuple[int, int]], one: LineageRun | None, other: LineageRun
) -> Iterator[tuple[int, int]]:
    """Steps between two runs that only epoch files show, because no batch is left."""
    low, low_epoch = (-1, -1) if one is None else (one.next, one.epoch)
    last = low_epoch
    for epoch, start in entries:
        if low <= start < other.first and last < epoch <= other.epoch:
            last = epoch
            yield start, epoch


def _last_steps(ranked: Sequence[History], runs: Sequence[LineageRun]) -> Iterator[tuple[int, int]]:
    """Epochs that began at the end and have no batch yet, or none any more."""
    if not ranked or not runs:
        return
    epoch = runs[-1].epoch
    for later, start in ranked[0].entries:
        if later > epoch and start >= ranked[0].end:
            yield start, later
            epoch = later
