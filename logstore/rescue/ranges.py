"""What a survey of damaged files finds, as plain values: runs of good batches, and damage."""

from __future__ import annotations

import struct
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


class Hole(NamedTuple):
    """Offsets ``[first, next)`` that one replica should have and lacks, and why."""

    first: int
    next: int
    reason: str


def mended_head(piece: RescuedRange, head: bytes) -> bytes:
    """The first bytes of a mended batch, with the right values in place of the damaged ones."""
    length = piece.end - piece.start - _LEGACY_PREFIX.size
    if piece.magic < 2:  # the stored offset is that of the last message
        return _LEGACY_PREFIX.pack(piece.next - 1, length) + head[_LEGACY_PREFIX.size :]
    fields = _PREFIX.pack(piece.first, length, piece.epoch, piece.magic)
    return fields + head[_PREFIX.size :]
