"""The limits and buffers of unpacking, and the errors that ``compression`` turns into
``CorruptBatchError``.
"""

from __future__ import annotations

import mmap

from logstore.common.types import Buffer


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


SCRATCH_BYTES = 128 << 10
"""Content up to this size is copied out of a reused buffer: to allocate and zero a new one would
cost as much as unpacking.
"""

EAGER_BYTES = 16 << 20
"""Content up to this size is unpacked at once; above it the size is measured first.

A hostile batch of 1 MiB may stand for gigabytes. Measuring runs in constant memory, so a batch
that is refused never costs more than this, while normal batches (a few MiB) are unpacked once.
"""

_free: list[memoryview] = []  # one for each thread that ever was at it together with the others


def borrow() -> memoryview:
    """A buffer of ``SCRATCH_BYTES``. If it is not given back, as after an error, it is freed."""
    try:
        return _free.pop()
    except IndexError:
        return memoryview(bytearray(SCRATCH_BYTES))


def give_back(room: memoryview, size: int) -> bytes:
    """A copy of the first ``size`` bytes, which the next borrower overwrites."""
    content = bytes(room[:size])
    _free.append(room)
    return content


def room_for_claim(size: int) -> memoryview:
    """A buffer for a size that only a header claims. It takes memory only where it is written.

    Raises:
        MemoryError: the address space is too small.
    """
    try:
        pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"no room for {size} bytes") from error
    return memoryview(pages)


def without_slack(room: memoryview, size: int) -> Buffer:
    """The first ``size`` bytes, without keeping much more than them alive."""
    return room[:size] if 2 * size >= len(room) else bytes(room[:size])
