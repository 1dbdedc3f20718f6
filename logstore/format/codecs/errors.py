"""What a codec says about bytes it refuses; ``compression`` turns it into ``CorruptBatchError``."""

from __future__ import annotations


class CodecError(ValueError):
    """The compressed bytes are malformed."""


class TooLargeError(CodecError):
    """The content is larger than the caller allows; nothing near that size was allocated."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"decompressed size above limit of {limit} bytes")


BLOCKS_FREE, BLOCK_BYTES = 1 << 16, 7
"""Blocks that a stream may have, whatever they hold; one more for each so many bytes of content.

Each takes time of its own: empty ones by the million would take seconds for nothing. An encoder
ends a block when it is full or flushed, and its caller flushes at most after each record, which
takes 7 bytes at least.
"""
MEMBERS_FREE, MEMBER_BYTES = 1 << 14, 1 << 10
"""The same for members. An encoder ends one when its caller closes it, once for a batch. It
costs ten times as much as a block, because its state is set up anew."""


def check_blocks(blocks: int, content: int) -> None:
    """Refuse so many blocks that hold only ``content`` bytes together."""
    if blocks > BLOCKS_FREE + content // BLOCK_BYTES:
        raise CodecError(f"{blocks} blocks for {content} bytes of content")


def check_members(members: int, content: int) -> None:
    """Refuse so many members that hold only ``content`` bytes together."""
    if members > MEMBERS_FREE + content // MEMBER_BYTES:
        raise CodecError(f"{members} members for {content} bytes of content")
