"""What a codec says about bytes it refuses; ``compression`` turns it into ``CorruptBatchError``."""

from __future__ import annotations


class CodecError(ValueError):
    """The compressed bytes are malformed."""


class TooLargeError(CodecError):
    """The content is larger than the caller allows; nothing near that size was allocated."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"decompressed size above limit of {limit} bytes")


PIECES_FREE = 1 << 16
"""A stream may have so many blocks or members, whatever they hold.

What is beyond must hold what an encoder's would: each piece takes time of its own, and empty ones
by the million would take seconds for nothing.
"""
BLOCK_BYTES = 7
"""An encoder ends a block when it is full or flushed, and its caller flushes at most after each
record, which takes 7 bytes at least."""
MEMBER_BYTES = 1 << 10
"""An encoder ends a member when its caller closes it, which is once for a batch. A member costs ten
times as much time as a block: its state is set up anew."""


def check_blocks(blocks: int, content: int) -> None:
    """Refuse so many blocks that hold only ``content`` bytes together."""
    if blocks > PIECES_FREE + content // BLOCK_BYTES:
        raise CodecError(f"{blocks} blocks for {content} bytes of content")


def check_members(members: int, content: int) -> None:
    """Refuse so many members that hold only ``content`` bytes together."""
    if members > PIECES_FREE + content // MEMBER_BYTES:
        raise CodecError(f"{members} members for {content} bytes of content")
