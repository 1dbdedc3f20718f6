"""Where good batches belong: base offsets and leader epochs that a flipped bit made wrong.

No checksum covers these two fields. A batch vouches for its neighbour in the file: two that follow
each other exactly are both right. A batch that follows neither is *loose*, and is judged by the
hole that its neighbours, or the names of the segments, leave for it. All here is pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

from logstore.rescue.pieces import Piece

LOOSE_MAX = 1024
"""Loose batches in a row that are judged together."""

OffsetOfEpoch = Callable[[int], int | None]


@dataclass(frozen=True, slots=True)
class FileFrame:
    """What is known of a file beside its bytes.

    Args:
        base: the offset in its name.
        next_base: that in the name of the next file, −1 if it is the last.
        bases: those of all files of the replica.
        behind: up to where the files before it go, −1 if their end is damaged.
        sparse: the log is compacted, so that gaps between batches are normal.
    """

    base: int
    next_base: int
    bases: frozenset[int]
    behind: int
    sparse: bool


# -- leader epochs -------------------------------------------------------------------------------


def mend_epochs(pieces: Iterable[Piece], on_file: OffsetOfEpoch) -> Iterator[Piece]:
    """Give batches back the epoch that their neighbours, or the epoch file, prove."""
    before: int | None = None
    for piece, following in _with_next(pieces):
        after = None if following is None else following.epoch
        epoch, sure = believed_epoch(piece, before, after, on_file(piece.first))
        if epoch != piece.epoch:
            piece = piece._replace(epoch=epoch, mended=True)
        yield piece if sure else piece._replace(sure=False)
        before = epoch if sure else before


def believed_epoch(
    piece: Piece, before: int | None, after: int | None, on_file: int | None
) -> tuple[int, bool]:
    """The epoch of a piece, and whether anything but its own header vouches for it.

    ``before`` and ``after`` are the epochs of its neighbours in the file, ``on_file`` what
    leader-epoch-checkpoint says; None if unknown. Two batches of one epoch vouch for each other,
    and epochs do not rise for one batch between two of one epoch.
    """
    own = piece.epoch
    if piece.magic < 2 or piece.batches > 1 or own in (before, after, on_file):
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


def place(pieces: Iterable[Piece], frame: FileFrame) -> Iterator[Piece]:
    """The pieces of a file with the offsets that their neighbours prove, in the order of the file.

    A mended piece is one batch. A batch that fits nowhere is homeless: it is no part of the log.
    """
    return _with_behind(_placed(pieces, frame), frame)


def _placed(pieces: Iterable[Piece], frame: FileFrame) -> Iterator[Piece]:
    left, loose = frame.base, list[Piece]()
    before: Piece | None = None
    for piece, following in _with_next(pieces):
        if len(loose) < LOOSE_MAX and _is_loose(before, piece, following, frame):
            loose.append(piece)
        else:
            yield from settle(loose, left, piece, frame)
            yield piece
            left, loose = piece.next, []
        before = piece
    yield from settle(loose, left, None, frame)


def _is_loose(
    before: Piece | None, piece: Piece, following: Piece | None, frame: FileFrame
) -> bool:
    if piece.batches > 1:
        return False
    follows = frame.base if before is None else before.next
    leads = frame.next_base if following is None else following.first
    joined = following is None or following.joined
    return not ((piece.joined and piece.first == follows) or (joined and piece.next == leads))


def settle(
    loose: Sequence[Piece], left: int, right: Piece | None, frame: FileFrame
) -> Iterator[Piece]:
    """Place loose batches between the offset ``left`` and the piece ``right``."""
    end = right.first if right is not None else frame.next_base
    closed = end >= 0 and (right is None or right.joined) and all(p.joined for p in loose)
    claims_order = all(a.next <= b.first for a, b in pairwise(loose))
    inside = bool(loose) and loose[0].first >= left and (end < 0 or loose[-1].next <= end)
    if claims_order and inside and frame.sparse:
        yield from loose
    elif closed and sum(piece.span for piece in loose) == end - left:
        yield from loose if _tiles(loose, left) else _one_after_the_other(loose, left)
    else:
        yield from _each(loose, left, right, end, frame)


def _tiles(loose: Sequence[Piece], left: int) -> bool:
    """Whether the claims fill the hole in another order: batches were swapped, not damaged."""
    for piece in sorted(loose, key=lambda p: p.first):
        if piece.first != left:
            return False
        left = piece.next
    return True


def _one_after_the_other(loose: Sequence[Piece], left: int) -> Iterator[Piece]:
    for piece in loose:
        yield moved(piece, left)
        left += piece.span


def _each(
    loose: Sequence[Piece], left: int, right: Piece | None, end: int, frame: FileFrame
) -> Iterator[Piece]:
    for piece, following in _with_next(loose):
        beyond = following if following is not None else right
        placed = _one(piece, left, end, beyond, frame)
        yield placed
        if not placed.homeless:
            left = max(left, placed.next)


def _one(piece: Piece, left: int, end: int, beyond: Piece | None, frame: FileFrame) -> Piece:
    """A loose batch by itself. In a log that is not compacted no offset is missing between two
    batches with nothing between them; behind damage the claim is as good as any."""
    if piece.first in frame.bases and piece.start == 0:
        return piece  # the file of another name
    fits = left <= piece.first and (end < 0 or piece.next <= end)
    touches_right = beyond is not None and beyond.joined
    if fits and (frame.sparse or not (piece.joined or touches_right)):
        return piece
    if piece.joined and (end < 0 or left + piece.span <= end) and not frame.sparse:
        return moved(piece, left)
    before_right = -1 if beyond is None or not beyond.joined else beyond.first - piece.span
    if before_right >= left and not frame.sparse:
        return moved(piece, before_right)
    return piece if fits else piece._replace(homeless=True)


def moved(piece: Piece, first: int) -> Piece:
    if first == piece.first:
        return piece
    return piece._replace(first=first, next=first + piece.span, mended=True)


# -- pieces that belong together ------------------------------------------------------------------


def _with_behind(pieces: Iterable[Piece], frame: FileFrame) -> Iterator[Piece]:
    """Note up to where the log was known right before each piece. The name of a file tells that
    only where compaction removes what is at its front."""
    behind = frame.behind if frame.sparse or frame.behind == frame.base else -1
    for piece in pieces:
        yield piece._replace(behind=behind if piece.joined else -1)
        behind = -1 if piece.homeless else piece.next


def coalesce(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Join neighbours of one epoch whose offsets ascend, whatever gaps compaction left."""
    joined: Piece | None = None
    for piece in pieces:
        if joined is not None and _continues(joined, piece):
            joined = joined._replace(
                end=piece.end, next=piece.next, batches=joined.batches + piece.batches
            )
            continue
        if joined is not None:
            yield joined
        joined = piece
    if joined is not None:
        yield joined


def _continues(one: Piece, other: Piece) -> bool:
    plain = not (one.mended or other.mended or one.homeless or other.homeless)
    alike = (one.file, one.epoch, one.magic, one.end, one.sure) == (
        other.file, other.epoch, other.magic, other.start, other.sure,
    )  # fmt: skip
    return plain and alike and one.next <= other.first


def _with_next(pieces: Iterable[Piece]) -> Iterator[tuple[Piece, Piece | None]]:
    ends: list[Piece | None] = [None]
    walk = chain(pieces, ends)
    piece = next(walk)
    while piece is not None:
        following = next(walk)
        yield piece, following
        piece = following
