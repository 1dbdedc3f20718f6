"""Runs of good batches, and where they belong if a flipped bit changed an offset or an epoch.

No checksum covers base offset and leader epoch. A batch confirms its neighbour in the file: if one
begins exactly where the other ends, both are right. A batch that follows neither is *loose*, and is
judged by the hole that its neighbours or the names of the segments leave for it. All here is pure.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

_PREFIX = struct.Struct(">qiib")  # base offset, length, leader epoch, magic: without checksum
_LEGACY_PREFIX = struct.Struct(">qi")


class RescuedRange(NamedTuple):
    """Consecutive good batches of one file, in one leader epoch, with ascending offsets.

    They are bytes ``[start, end)`` of ``file`` (its number in the replica) and offsets ``[first,
    next)``. A ``mended`` piece is one batch with a damaged header field that no checksum covers;
    the piece has the right values.
    """

    file: int
    start: int
    end: int
    first: int
    next: int
    epoch: int
    batches: int = 1
    magic: int = 2
    joined: bool = True
    """It begins where the piece before it in the file ends, or at the start of the file."""
    hidden: int = 0
    """How many damaged bytes lie right before it."""
    behind: int = -1
    """The offset up to which the log was known right before it, −1 if damage hides that."""
    first_crc: int = 0
    """The stored checksum of the first batch; ``last_crc`` that of the last."""
    last_crc: int = 0
    mended: bool = False
    sure: bool = True
    """Whether something besides its own header confirms its epoch."""
    alone: bool = False
    """Whether only its own header gives its offsets."""
    homeless: bool = False
    """Whether its offsets contradict the file around it, so that the right ones are unknown."""

    @property
    def span(self) -> int:
        return self.next - self.first


class Damage(NamedTuple):
    """Bytes that are no good batch. ``claimed`` is the offset after what they claim, or −1."""

    file: int
    start: int
    end: int
    reason: str
    claimed: int = -1


def mended_head(piece: RescuedRange, head: bytes) -> bytes:
    """The first bytes of a mended batch, with the right values in place of the damaged ones."""
    length = piece.end - piece.start - _LEGACY_PREFIX.size
    if piece.magic < 2:  # the stored offset is that of the last message
        return _LEGACY_PREFIX.pack(piece.next - 1, length) + head[_LEGACY_PREFIX.size :]
    fields = _PREFIX.pack(piece.first, length, piece.epoch, piece.magic)
    return fields + head[_PREFIX.size :]


LOOSE_MAX = 1024
"""How many loose batches in a row are judged together."""

_OFFSETS_PER_BYTE = 16
"""An upper bound for the offsets in damaged bytes, however well they were compressed."""

EpochAt = Callable[[int], int | None]


@dataclass(frozen=True, slots=True)
class FileFrame:
    """The facts about a file besides its bytes.

    Args:
        base: the offset in its name.
        next_base: the offset in the name of the next file, −1 if this is the last.
        bases: the offsets in the names of all files of the replica.
        behind: the offset where the files before it end, −1 if that end is damaged.
        sparse: the log is compacted, so that gaps between batches are normal.
    """

    base: int
    next_base: int
    bases: frozenset[int]
    behind: int
    sparse: bool

    @property
    def proves_gaps(self) -> bool:
        """Whether a gap without damage in it is one that compaction left. A file that an earlier
        recovery kept (no ``bases``) has batches from several places.
        """
        return self.sparse and bool(self.bases)


# -- leader epochs -------------------------------------------------------------------------------


def mend_epochs(
    pieces: Iterable[RescuedRange], on_file: EpochAt, others: Sequence[EpochAt] = ()
) -> Iterator[RescuedRange]:
    """Restore the epochs that neighbours or the epoch file prove.

    ``others`` are the epoch files of other replicas, which may confirm an epoch too.
    """
    before: int | None = None
    last = -1
    for piece, following in _with_next(pieces):
        after = None if following is None else following.epoch
        vouched = {epoch_at(piece.first) for epoch_at in (on_file, *others)}
        if last != piece.first:  # otherwise it is a copy of this batch
            vouched.add(before)
        if following is not None and following.first != piece.first:
            vouched.add(after)
        epoch, sure = believed_epoch(piece, before, after, on_file(piece.first), vouched)
        if epoch != piece.epoch:
            piece = piece._replace(epoch=epoch, mended=True)
        yield piece if sure else piece._replace(sure=False)
        before = epoch if sure else before
        last = piece.first


def believed_epoch(
    piece: RescuedRange,
    before: int | None,
    after: int | None,
    on_file: int | None,
    vouched: Collection[int | None],
) -> tuple[int, bool]:
    """The epoch of a piece, and whether anything besides its own header confirms it.

    ``before`` and ``after`` are the epochs of its neighbours in the file, ``on_file`` what
    leader-epoch-checkpoint says; None if unknown. ``vouched`` are the epochs of everything that may
    confirm it, which a copy of the batch may not. An epoch does not rise for a single batch between
    two of one epoch.
    """
    own = piece.epoch
    if piece.magic < 2 or piece.batches > 1 or own in vouched:
        return own, True
    if before is not None and before == after:
        return before, True
    if on_file is not None:
        return on_file, True
    if before is not None and after is not None:
        return (own, True) if before < own < after else (before, True)
    if before is not None:
        return (own, False) if own > before else (before, True)
    return (own, True) if after is None or own < after else (after, True)


# -- base offsets --------------------------------------------------------------------------------


def place(pieces: Iterable[RescuedRange], frame: FileFrame) -> Iterator[RescuedRange]:
    """The pieces of a file with the offsets that their neighbours prove, in the order of the file.

    A mended piece is one batch. A batch that fits nowhere is homeless, and not part of the log.
    """
    return _with_behind(_placed(pieces, frame), frame)


def _placed(pieces: Iterable[RescuedRange], frame: FileFrame) -> Iterator[RescuedRange]:
    left, loose = frame.base, list[RescuedRange]()
    before: RescuedRange | None = None
    for piece, following in _with_next(pieces):
        if len(loose) < LOOSE_MAX and _is_loose(before, piece, following, frame):
            loose.append(piece)
        else:
            yield from place_loose(loose, left, piece, frame)
            yield piece._replace(joined=piece.joined and (frame.sparse or not loose))
            left, loose = piece.next, []
        before = piece
    yield from place_loose(loose, left, None, frame)


def _is_loose(
    before: RescuedRange | None,
    piece: RescuedRange,
    following: RescuedRange | None,
    frame: FileFrame,
) -> bool:
    if piece.batches > 1:
        return False
    follows = frame.base if before is None else before.next
    leads = frame.next_base if following is None else following.first
    joined = following is None or following.joined
    return not ((piece.joined and piece.first == follows) or (joined and piece.next == leads))


def place_loose(
    loose: Sequence[RescuedRange], left: int, right: RescuedRange | None, frame: FileFrame
) -> Iterator[RescuedRange]:
    """Place loose batches between the offset ``left`` and the piece ``right``."""
    end = right.first if right is not None else frame.next_base
    hole = _Hole(left, -1 if end < left else end, right, frame)
    if len(loose) == 1 and hole.is_filled_by(loose):
        yield moved(loose[0], left)  # it fits nowhere else
    else:
        yield from hole.each(loose)


@dataclass(frozen=True, slots=True)
class _Hole:
    """The hole with loose batches: between the offsets ``left`` and ``end`` (−1: unknown)."""

    left: int
    end: int
    right: RescuedRange | None
    frame: FileFrame

    def is_filled_by(self, loose: Sequence[RescuedRange]) -> bool:
        closed = self.end >= 0 and (self.right is None or self.right.joined)
        joined = all(piece.joined for piece in loose)
        return closed and joined and sum(p.span for p in loose) == self.end - self.left

    def each(self, loose: Sequence[RescuedRange]) -> Iterator[RescuedRange]:
        known, byte = self.left, loose[0].start - loose[0].hidden if loose else 0
        spare = sum(piece.span for piece in loose)
        linked = self._linked(loose)
        for piece, expected in zip(loose, self._expected(loose), strict=True):
            room = known + spare + _OFFSETS_PER_BYTE * (piece.start - byte)
            room = self.end if self.end >= 0 else room
            placed = piece if piece in linked else self._one(piece, expected, known, room)
            if not self.frame.sparse and placed.first != known:
                placed = placed._replace(joined=False)  # what is missing there may be lost
            yield placed
            if not placed.homeless:
                known, byte = max(known, placed.next), piece.end

    def _linked(self, loose: Sequence[RescuedRange]) -> set[RescuedRange]:
        """The batches that begin exactly where another one ends, or end at the end of the hole.

        Two claims that agree are right, in whatever order the batches lie.
        """
        firsts = {piece.first for piece in loose} | {self.end}
        nexts = {piece.next for piece in loose} | {self.left}
        inside = (p for p in loose if p.first >= self.left and (self.end < 0 or p.next <= self.end))
        return {p for p in inside if p.first in nexts or p.next in firsts}

    def _expected(self, loose: Sequence[RescuedRange]) -> list[tuple[int, int]]:
        """For each batch where it begins if nothing is missing on its left, and where if nothing is
        missing on its right; −1 if damage lies between.
        """
        lefts, at = list[int](), self.left
        for piece in loose:
            at = at if piece.joined else -1
            lefts.append(at)
            at = at + piece.span if at >= 0 else -1
        rights, at = list[int](), self.end if self.right is None or self.right.joined else -1
        for piece in reversed(loose):
            at = at - piece.span if at >= piece.span else -1
            rights.append(at)
            at = at if piece.joined else -1
        return list(zip(lefts, reversed(rights), strict=True))

    def _one(
        self, piece: RescuedRange, expected: tuple[int, int], known: int, room: int
    ) -> RescuedRange:
        """Place a single loose batch.

        In a log that is not compacted no offset is missing between adjacent batches. A claim that
        fits is accepted; another one is mended if one flipped bit explains it.
        """
        fits = known <= piece.first and piece.next <= room
        if piece.start == 0 and piece.first in self.frame.bases:
            return piece  # a file with another name
        if self.frame.sparse:
            return piece if fits else piece._replace(homeless=True)
        if piece.first in expected and fits:
            return piece
        certain = 0 <= expected[0] == expected[1] and is_flip(piece.first, expected[0])
        if fits and not certain:
            return piece._replace(alone=True)
        for first in expected:
            if self.left <= first <= room - piece.span and is_flip(piece.first, first):
                return moved(piece, first)
        return piece._replace(homeless=True)


def is_flip(claim: int, right: int) -> bool:
    """Whether at most one bit of an offset is wrong."""
    return (claim ^ right).bit_count() <= 1


def copies(pieces: Iterable[RescuedRange]) -> set[RescuedRange]:
    """Mended batches that also lie at the edge of another piece: misplaced copies. Of several that
    are all mended the first one in the file is the original."""
    known = list(pieces)
    single = {p for p in known if p.mended and p.batches == 1}
    seen = {crc for p in known if p not in single for crc in (p.first_crc, p.last_crc)}
    found: set[RescuedRange] = set()
    for piece in (p for p in known if p in single):
        if piece.first_crc in seen:
            found.add(piece)
        seen.add(piece.first_crc)
    return found


def housed(
    homeless: Iterable[RescuedRange], pieces: Iterable[RescuedRange], end: int
) -> set[RescuedRange]:
    """The homeless batches whose claims point into holes between the pieces of their replica, or
    behind them below ``end``, up to where it was flushed: a batch, or a copy of it, away from its
    place.
    """
    taken = sorted((p.first, p.next) for p in pieces)
    if taken and taken[-1][1] < end:
        taken.append((end, end))
    found: set[RescuedRange] = set()
    for piece in homeless:
        at = bisect_right(taken, (piece.first, 2**63))
        inside = 0 < at < len(taken)
        if inside and taken[at - 1][1] <= piece.first and piece.next <= taken[at][0]:
            found.add(piece)
    return found


def moved(piece: RescuedRange, first: int) -> RescuedRange:
    if first == piece.first:
        return piece
    return piece._replace(first=first, next=first + piece.span, mended=True)


# -- pieces that belong together ------------------------------------------------------------------


def _with_behind(pieces: Iterable[RescuedRange], frame: FileFrame) -> Iterator[RescuedRange]:
    """Note up to which offset the log was known right before each piece.

    Only compaction leaves gaps. In any other log a gap is a loss, even if no damage is seen there:
    batches may have been swapped, and one of them damaged later.
    """
    behind = frame.behind
    for piece in pieces:
        known = frame.proves_gaps and piece.joined and not piece.alone
        yield piece._replace(behind=behind) if known else piece._replace(behind=-1, joined=False)
        behind = -1 if piece.homeless or piece.alone else piece.next


def coalesce(pieces: Iterable[RescuedRange]) -> Iterator[RescuedRange]:
    """Join neighbours of one epoch whose offsets ascend, whatever gaps compaction left."""
    joined: RescuedRange | None = None
    for piece in pieces:
        if joined is not None and _continues(joined, piece):
            joined = joined._replace(
                end=piece.end,
                next=piece.next,
                batches=joined.batches + piece.batches,
                last_crc=piece.last_crc,
            )
            continue
        if joined is not None:
            yield joined
        joined = piece
    if joined is not None:
        yield joined


def _continues(one: RescuedRange, other: RescuedRange) -> bool:
    plain = not any(p.mended or p.homeless or p.alone for p in (one, other))
    alike = (one.file, one.epoch, one.magic, one.end, one.sure) == (
        other.file,
        other.epoch,
        other.magic,
        other.start,
        other.sure,
    )
    follows = one.next == other.first or (other.joined and one.next < other.first)
    return plain and alike and follows


def _with_next(
    pieces: Iterable[RescuedRange],
) -> Iterator[tuple[RescuedRange, RescuedRange | None]]:
    ends: list[RescuedRange | None] = [None]
    walk = chain(pieces, ends)
    piece = next(walk)
    while piece is not None:
        following = next(walk)
        yield piece, following
        piece = following
