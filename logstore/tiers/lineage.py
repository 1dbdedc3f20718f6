"""Which stored segments make up a log: pure functions over offsets and leader epochs.

Two leaders may have copied the same offsets, with other borders, and an unclean election leaves
segments whose records were never part of the history that went on. So segments are taken by what
their epochs say, and each offset comes from one of them (L-12).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import Generic, NamedTuple, Protocol, TypeVar

from logstore.tiers.manifest import Epochs


class Stored(Protocol):
    """What is asked of a segment. Its offsets are ``[base_offset, end_offset)``.

    ``leader_epochs`` are those of its records; the first may have begun below the base.
    """

    @property
    def base_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    @property
    def leader_epochs(self) -> Epochs: ...


S = TypeVar("S", bound=Stored)


class NotShown(Enum):
    """Why a stored segment is no part of the log that is shown."""

    OTHER_LINEAGE = "its epochs are not those of the history that went on"
    COVERED = "other segments have its offsets"


class Piece(NamedTuple, Generic[S]):
    """Offsets ``[segment.base_offset, end)`` of a segment, which is cut where the next begins."""

    segment: S
    end: int

    @property
    def is_cut(self) -> bool:
        return self.end < self.segment.end_offset


class Hole(NamedTuple):
    """Offsets ``[start, end)`` that no segment has."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Choice(Generic[S]):
    """A log made of stored segments.

    ``pieces`` and the ``holes`` between them ascend; ``left`` are the other segments.
    """

    pieces: tuple[Piece[S], ...] = ()
    holes: tuple[Hole, ...] = ()
    left: tuple[tuple[S, NotShown], ...] = ()


def rank(segment: Stored) -> tuple[int, int, int]:
    """The higher, the closer to the history that went on: a leader of a later epoch decides what
    came before it, and of one epoch the longest copy has most of it."""
    epochs = segment.leader_epochs
    return (epochs[-1][0] if epochs else -1), segment.end_offset, segment.base_offset


def is_within(segment: Stored, history: Epochs) -> bool:
    """Whether the records of a segment are those of the history.

    Each epoch of the segment is one of the history and lies where it lies there. Only of its first
    epoch the segment may have but the later part, and of its last one the earlier part. The first
    epoch of the history may have begun before the history does, as a log start cuts it.
    """
    if not history or not segment.leader_epochs:
        return True  # batches of magic 0 and 1 have no epoch: nothing tells them apart
    starts = dict(history)
    ends = {epoch: start for (epoch, _), (_, start) in pairwise(history)}
    runs = _runs(segment)
    for number, (epoch, start, end) in enumerate(runs):
        if epoch not in starts:
            return False
        is_later_part = number == 0 and (start >= starts[epoch] or epoch == history[0][0])
        is_earlier_part = number == len(runs) - 1 and end <= ends.get(epoch, end)
        if not (is_later_part or start == starts[epoch]):
            return False
        if not (is_earlier_part or end == ends.get(epoch)):
            return False
    return True


def _runs(segment: Stored) -> list[tuple[int, int, int]]:
    """The epochs of a segment that have offsets there: epoch, first offset, end."""
    base, end = segment.base_offset, segment.end_offset
    borders = [*segment.leader_epochs, (-1, end)]
    found = [(e, max(first, base), min(after, end)) for (e, first), (_, after) in pairwise(borders)]
    return [(epoch, first, after) for epoch, first, after in found if first < after]


def choose(segments: Iterable[S], history: Epochs = (), log_start: int | None = None) -> Choice[S]:
    """The log from ``log_start`` on, or from its first offset, out of as few segments as cover it.

    Every piece begins where its segment begins, so positions in its indexes hold. Of segments that
    reach an offset the one that leads furthest follows.
    """
    left: list[tuple[S, NotShown]] = []
    within: list[S] = []
    for segment in segments:
        if not is_within(segment, history):
            left.append((segment, NotShown.OTHER_LINEAGE))
        elif segment.end_offset > max(segment.base_offset, log_start or 0):
            within.append(segment)
    within.sort(key=lambda each: (each.base_offset, each.end_offset))
    chosen: list[S] = []
    holes: list[Hole] = []
    at = within[0].base_offset if within else 0
    if within and log_start is not None:
        at = log_start
    rest = iter(within)
    waiting = next(rest, None)
    best: S | None = None
    while True:
        while waiting is not None and waiting.base_offset <= at:
            if best is None or waiting.end_offset >= best.end_offset:
                best = waiting
            waiting = next(rest, None)
        if best is not None and best.end_offset > at:
            chosen.append(best)
            at = best.end_offset
        elif waiting is not None:
            holes.append(Hole(at, waiting.base_offset))
            at = waiting.base_offset
        else:
            break
    used = set(map(id, chosen))
    left += [(each, NotShown.COVERED) for each in within if id(each) not in used]
    ends = [min(a.end_offset, b.base_offset) for a, b in pairwise(chosen)]
    ends += [each.end_offset for each in chosen[-1:]]
    return Choice(tuple(map(Piece, chosen, ends)), tuple(holes), tuple(left))


__all__ = ["Choice", "Hole", "NotShown", "Piece", "Stored", "choose", "is_within", "rank"]
