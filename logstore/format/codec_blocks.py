"""Streams of blocks, each of which a library unpacks at once into given room: lz4, snappy.

The blocks are walked, never listed: a stream of tiny ones would cost an object each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

import cramjam

from logstore.format.codec_errors import CodecError, TooLargeError, check_blocks
from logstore.format.scratch import (
    EAGER_BYTES,
    SCRATCH_BYTES,
    borrow,
    give_back,
    room_for,
    without_slack,
)
from logstore.types import Buffer

Unpack: TypeAlias = Callable[[memoryview, memoryview], int]
"""Unpacks a block into room; gives how much of it, in bytes, the content took."""

Block: TypeAlias = tuple[memoryview, int, Unpack]
"""A block, the size of its content at most, and what unpacks it.

One without bytes stands for a header or an end mark: nothing to unpack, but a piece that counts.
"""


class BlockStream(NamedTuple):
    name: str
    blocks: Callable[[], Iterator[Block]]
    exact: bool  # the sizes are not bounds: a block whose content has another one is malformed


def unpack(stream: BlockStream, limit: int) -> Buffer:
    """The content of all blocks; ``CodecError`` if they are malformed or exceed ``limit``."""
    scratch = out = borrow()
    size = 0
    for pieces, block in enumerate(stream.blocks(), 1):
        if out is scratch and size + block[1] > SCRATCH_BYTES:
            out = _room(stream, limit)
            out[:size] = scratch[:size]
        size += _unpack(stream, block, out[size : size + block[1]])
        if size > limit:
            raise TooLargeError(limit)
        check_blocks(pieces, size)
    return give_back(scratch, size) if out is scratch else without_slack(out, size)


def _unpack(stream: BlockStream, block: Block, out: memoryview) -> int:
    data, bound, unpack = block
    if not len(data):
        return 0
    try:
        size = unpack(data, out)
    except (cramjam.DecompressionError, ValueError) as error:
        raise CodecError(f"{stream.name}: {error}") from None
    if stream.exact and size != bound:
        raise CodecError(f"{stream.name}: a block of {bound} bytes unpacks to {size}")
    return size


def _room(stream: BlockStream, limit: int) -> memoryview:
    """Room for the content of all blocks."""
    most = limit if stream.exact else min(limit, EAGER_BYTES)
    bound = 0
    for pieces, block in enumerate(stream.blocks(), 1):
        bound += block[1]
        if bound > most:
            break
        check_blocks(pieces, bound)
    if bound <= most:
        return room_for(bound)
    if stream.exact:
        raise TooLargeError(limit)
    return room_for(_measure(stream, limit))


def _measure(stream: BlockStream, limit: int) -> int:
    """The exact size of the content, in the memory of one block."""
    room = memoryview(bytearray(SCRATCH_BYTES))
    size = 0
    for pieces, block in enumerate(stream.blocks(), 1):
        if block[1] > len(room):
            room = memoryview(bytearray(block[1]))
        size += _unpack(stream, block, room[: block[1]])
        if size > limit:
            raise TooLargeError(limit)
        check_blocks(pieces, size)
    return size
