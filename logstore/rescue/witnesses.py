"""Batches with doubtful offsets, placed by copies of them that have a proven place.

No checksum covers a base offset, and the neighbours in a damaged file may be wrong too. But a batch
is known by its size and checksum wherever it lies. The cost is one more pass over the headers, and
only if there are doubtful batches.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from logstore.rescue.merging import read_batches
from logstore.rescue.placing import RescuedRange, moved
from logstore.rescue.replica import Surveyed


class BatchContent(NamedTuple):
    """The identity of a batch: its size in bytes, its stored checksum, its count of offsets."""

    size: int
    crc: int
    span: int


FirstOffsets: TypeAlias = dict[BatchContent, set[int]]
"""Where each content is, once or more."""


def place_by_copies(surveyed: Sequence[Surveyed]) -> None:
    """Place the doubtful batches of each replica where a copy of them has its proven place."""
    doubtful = {
        _content(piece)
        for each in surveyed
        for piece in (*each.pieces, *each.homeless)
        if _is_doubtful(piece)
    }
    if not doubtful:
        return
    proven = [_proven_in(each, doubtful) for each in surveyed]
    everywhere: FirstOffsets = defaultdict(set)
    for places in proven:
        for content, firsts in places.items():
            everywhere[content] |= firsts
    for each, own in zip(surveyed, proven, strict=True):
        doubted = (*each.pieces, *each.homeless)
        placed = [placed_by_copies(piece, everywhere, own) for piece in doubted]
        each.pieces = sorted((p for p in placed if not p.homeless), key=lambda p: p.first)
        each.homeless = [p for p in placed if p.homeless]


def placed_by_copies(
    piece: RescuedRange,
    proven: Mapping[BatchContent, set[int]],
    own: Mapping[BatchContent, set[int]],
) -> RescuedRange:
    """The piece at the offset where the batch is proven, if there is exactly one such offset.

    A batch that is proven at several other offsets is homeless. ``own`` is what the piece's replica
    proves. A log has a batch once: what it has there is another one with equal bytes.
    """
    content = _content(piece)
    firsts = proven.get(content, set()) if _is_doubtful(piece) else set()
    if piece.first in firsts:
        return piece._replace(alone=False, homeless=False)
    firsts = firsts - own.get(content, set())
    if not firsts:
        return piece
    if len(firsts) > 1:
        return piece._replace(homeless=True)
    return moved(piece, *firsts)._replace(alone=False, homeless=False, behind=-1)


def _is_doubtful(piece: RescuedRange) -> bool:
    return piece.batches == 1 and (piece.mended or piece.alone or piece.homeless)


def _content(piece: RescuedRange) -> BatchContent:
    return BatchContent(piece.end - piece.start, piece.first_crc, piece.span)


def _proven_in(each: Surveyed, wanted: Container[BatchContent]) -> FirstOffsets:
    """Find where the replica has batches of the ``wanted`` contents beyond doubt."""
    places: FirstOffsets = defaultdict(set)
    for piece in each.pieces:
        if not _is_doubtful(piece):
            for first, last, size, crc in read_batches(piece, each.files[piece.file]):
                content = BatchContent(size, crc, last + 1 - first)
                if content in wanted:
                    places[content].add(first)
    return places
