"""Errors of codecs, which ``compression`` turns into ``CorruptBatchError``."""

from __future__ import annotations


class CodecError(ValueError):
    """The compressed bytes are malformed."""


ABOVE_LIMIT = "above limit"


class TooLargeError(CodecError):
    """The content is larger than the caller allows; nothing near that size was allocated."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"decompressed size {ABOVE_LIMIT} of {limit} bytes")


BLOCKS_FREE, BLOCK_BYTES = 1 << 16, 7
"""A stream may have ``BLOCKS_FREE`` blocks, and one more for every ``BLOCK_BYTES`` of content.

A block takes time of its own, and millions of empty ones would take seconds. An encoder ends a
block when it is full or flushed, and its caller flushes at most after each record, which has at
least 7 bytes.
"""
MEMBERS_FREE, MEMBER_BYTES = 1 << 14, 1 << 10
"""The same for members. An encoder ends a member when its caller closes it, once for a batch.

A member costs ten times as much as a block, because its state is set up again.
"""


def check_blocks(blocks: int, content: int) -> None:
    """Refuse so many blocks that hold only ``content`` bytes together."""
    if blocks > BLOCKS_FREE + content // BLOCK_BYTES:
        raise CodecError(f"{blocks} blocks for {content} bytes of content")


def check_members(members: int, content: int) -> None:
    """Refuse so many members that hold only ``content`` bytes together."""
    if members > MEMBERS_FREE + content // MEMBER_BYTES:
        raise CodecError(f"{members} members for {content} bytes of content")
