"""Streams of blocks that a library unpacks one at a time into a given buffer: lz4, snappy.

Every pass walks the blocks again. They are never listed, because tiny ones would cost an object
each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import TypeAlias

import cramjam

from logstore.common.types import Buffer
from logstore.format.codecs.limits import (
    BLOCKS_FREE,
    EAGER_BYTES,
    SCRATCH_BYTES,
    CodecError,
    TooLargeError,
    borrow,
    check_blocks,
    give_back,
    room_for_claim,
    without_slack,
)

Unpack: TypeAlias = Callable[[memoryview, memoryview], int]
"""Unpacks a block into a buffer, and returns the size of the content in bytes."""

Block: TypeAlias = tuple[memoryview, int, Unpack]
"""A block, an upper bound of its content in bytes, and the function that unpacks it.

A block without bytes stands for a header or an end mark: it counts as a block.
"""

Blocks: TypeAlias = Callable[[], Iterator[Block]]
"""Walks a stream from its beginning."""

_FEW = 256


def unpack(name: str, walk: Blocks, limit: int) -> Buffer:
    """The content of all blocks; ``CodecError`` if they are malformed or exceed ``limit``."""
    try:
        few = list(islice(walk(), _FEW))
        return _unpack(walk if len(few) == _FEW else few.__iter__, limit)
    except CodecError:
        raise
    except (cramjam.DecompressionError, ValueError) as error:
        raise CodecError(f"{name}: {error}") from None


def _unpack(walk: Blocks, limit: int) -> Buffer:
    most = min(limit, EAGER_BYTES)
    bound = _bound(walk, most)
    if bound > most:
        bound = _measure(walk, limit)
    if bound <= SCRATCH_BYTES:
        scratch = borrow()
        return give_back(scratch, _fill(walk, scratch[:bound]))
    out = memoryview(bytearray(bound))
    return without_slack(out, _fill(walk, out))


def _bound(walk: Blocks, most: int) -> int:
    """An upper bound of the content in bytes, or any size above ``most``."""
    total = 0
    for blocks, (_, bound, _) in enumerate(walk(), 1):
        total += bound
        if total > most:
            break
        if blocks > BLOCKS_FREE:
            check_blocks(blocks, total)
    return total


def _measure(walk: Blocks, limit: int) -> int:
    """The exact size of the content, in the memory of one block."""
    room = memoryview(bytearray(SCRATCH_BYTES))
    size = 0
    for blocks, (data, bound, unpack) in enumerate(walk(), 1):
        if bound > len(room):
            room = room_for_claim(bound)
        if data:
            size += unpack(data, room[:bound])
        if size > limit:
            raise TooLargeError(limit)
        if blocks > BLOCKS_FREE:
            check_blocks(blocks, size)
    return size


def _fill(walk: Blocks, out: memoryview) -> int:
    size = 0
    for blocks, (data, bound, unpack) in enumerate(walk(), 1):
        if data:
            size += unpack(data, out[size : size + bound])
        if blocks > BLOCKS_FREE:
            check_blocks(blocks, size)
    return size
