"""What a survey of damaged files finds, as plain values: runs of good batches, and damage."""

from __future__ import annotations

import struct
from typing import NamedTuple

_PREFIX = struct.Struct(">qiib")  # base offset, length, leader epoch, magic: under no checksum
_LEGACY_PREFIX = struct.Struct(">qi")


class Piece(NamedTuple):
    """Good batches that follow each other in one file, in one leader epoch, offsets ascending.

    ``start`` and ``end`` are bytes of ``file`` (its number in the replica), ``first`` and ``next``
    offsets, the last one exclusive. A ``mended`` piece is one batch with a damaged header field
    that no checksum covers; its right values are those here.
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
    """It begins where the piece before it in the file ends, or the file begins."""
    hidden: int = 0
    """Bytes of damage right before it."""
    behind: int = -1
    """The offset up to which the log was known right before it, −1 where damage hides that."""
    first_crc: int = 0
    """The stored checksum of the first batch; ``last_crc`` that of the last."""
    last_crc: int = 0
    mended: bool = False
    sure: bool = True
    """Something beside its own header vouches for its epoch."""
    alone: bool = False
    """Nothing beside its own header vouches for its offsets."""
    homeless: bool = False
    """Its offsets contradict the file around it, and nothing says what they were."""

    @property
    def span(self) -> int:
        return self.next - self.first


class Damage(NamedTuple):
    """Bytes that are no good batch. ``claimed``: the offset behind what they claim, or −1."""

    file: int
    start: int
    end: int
    reason: str
    claimed: int = -1


class Hole(NamedTuple):
    """Offsets ``[first, next)`` that one replica should have and cannot give, and why."""

    first: int
    next: int
    reason: str


def mended_head(piece: Piece, head: bytes) -> bytes:
    """The first bytes of a mended batch, with the right values in place of the damaged ones."""
    length = piece.end - piece.start - _LEGACY_PREFIX.size
    if piece.magic < 2:  # the stored offset is that of the last message
        return _LEGACY_PREFIX.pack(piece.next - 1, length) + head[_LEGACY_PREFIX.size :]
    fields = _PREFIX.pack(piece.first, length, piece.epoch, piece.magic)
    return fields + head[_PREFIX.size :]
