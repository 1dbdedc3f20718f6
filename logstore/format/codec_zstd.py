"""Zstandard frames (rule F-86).

Written as Kafka's streams are: no content size, no checksum, an empty last block. Any frames are
read, one after the other, skippable ones too. The library unpacks into a buffer of fixed size, so
the block headers, which say how large the content may be, are walked first.
"""

from __future__ import annotations

import os
from typing import NamedTuple

import cramjam

from logstore.format.codec_errors import EAGER_BYTES, CodecError, TooLargeError
from logstore.format.scratch import SCRATCH_BYTES, borrow, give_back
from logstore.types import Buffer

_MAGIC = 0xFD2FB528
_SKIPPABLE = 0x184D2A50  # the low four bits are free
_BLOCK_MAX = 128 << 10
_WINDOW_MAX = 128 << 20
"""Level 22's; the library refuses larger ones too. Measuring a frame with this window may take as
much memory: the one case in which ``EAGER_BYTES`` is no bound for refused content."""
_RAW, _RLE, _COMPRESSED = 0, 1, 2
_FRAME_MIN = 9  # magic, descriptor, window or content size, and the header of a block
_DOUBT = 4


class _Frame(NamedTuple):
    end: int
    content_max: int
    exact: bool


def compress(data: Buffer, level: int) -> bytes:
    compressor = cramjam.zstd.Compressor(level=level)
    compressor.compress(bytes(data))  # the streaming interface takes nothing else
    # A flush before the end gives the shape that Java's output stream gives: an empty last block.
    return bytes(compressor.flush()) + bytes(compressor.finish())


def decompress(data: Buffer, limit: int) -> Buffer:
    view = memoryview(data)
    bound, exact = _bound(view)
    if exact and bound > limit:
        raise TooLargeError(limit)
    if exact or bound <= min(limit, EAGER_BYTES):
        return _decompress_into(view, bound)
    try:
        return _decompress_into(view, min(limit, EAGER_BYTES))
    except _DoesNotFitError:
        if limit <= EAGER_BYTES:
            raise TooLargeError(limit) from None
    return _decompress_into(view, _measure(view, bound, limit))


class _DoesNotFitError(CodecError):
    pass


def _decompress_into(view: memoryview, capacity: int) -> Buffer:
    if capacity <= SCRATCH_BYTES:
        scratch = borrow()
        return give_back(scratch, _unpack(view, scratch[:capacity]))
    out = memoryview(bytearray(capacity))
    size = _unpack(view, out)
    # Most blocks are far from full: do not keep their room alive as long as the content.
    return out[:size] if size > capacity // 2 else bytes(out[:size])


def _unpack(view: memoryview, out: memoryview) -> int:
    try:
        return int(cramjam.zstd.decompress_into(view, out))
    except cramjam.DecompressionError as error:
        if "whole buffer" in str(error):
            raise _DoesNotFitError("zstd: more content than the block headers allow") from None
        raise CodecError(f"zstd: {error}") from None


def _measure(view: memoryview, bound: int, limit: int) -> int:
    """The exact size of the content, found in constant memory by writing it to nowhere.

    That takes time in proportion to the content, so blocks which together may hold several times
    the limit are refused unseen. A writer's blocks are full (128 KiB) but for the last one.
    """
    if bound > _DOUBT * limit:
        raise TooLargeError(limit)
    try:
        nowhere = cramjam.File(os.devnull, read=False, write=True)
        size = int(cramjam.zstd.decompress_into(view, nowhere))
    except (cramjam.DecompressionError, OSError) as error:
        raise CodecError(f"zstd: {error}") from None
    if size > limit:
        raise TooLargeError(limit)
    return size


def _bound(view: memoryview) -> tuple[int, bool]:
    """Upper bound of the content of all frames, and whether it is the exact size."""
    position, total, exact = 0, 0, True
    while position < len(view) or not position:
        frame = _parse_frame(view, position)
        position = frame.end
        total += frame.content_max
        exact = exact and frame.exact
    return total, exact


def _parse_frame(view: memoryview, start: int) -> _Frame:
    magic = _read(view, start, 4)
    if magic & ~0xF == _SKIPPABLE:
        end = start + 8 + _read(view, start + 4, 4)
        return _Frame(_inside(view, end), 0, True)
    if magic != _MAGIC:
        raise CodecError(f"zstd: no frame at byte {start}")
    _inside(view, start + _FRAME_MIN)
    descriptor = view[start + 4]
    single_segment = descriptor & 0x20
    position = start + 5
    if not single_segment:
        window = view[position]
        base = 1 << (10 + (window >> 3))
        if base + (base >> 3) * (window & 7) > _WINDOW_MAX:
            raise CodecError("zstd: window above 128 MiB")
        position += 1
    position += (0, 1, 2, 4)[descriptor & 3]  # dictionary id
    size_bytes = (1 if single_segment else 0, 2, 4, 8)[descriptor >> 6]
    end, blocks_max = _walk_blocks(view, position + size_bytes)
    if descriptor & 4:
        end = _inside(view, end + 4)  # content checksum: the library verifies it
    if not size_bytes:
        return _Frame(end, blocks_max, False)
    content_size = _read(view, position, size_bytes) + (256 if size_bytes == 2 else 0)
    if content_size > blocks_max:
        raise CodecError(f"zstd: content size {content_size} in blocks of at most {blocks_max}")
    return _Frame(end, content_size, True)


def _walk_blocks(view: memoryview, position: int) -> tuple[int, int]:
    """Where the blocks end, and how much they can hold."""
    total, last, length = 0, 0, len(view)
    while not last:
        if position + 3 > length:
            raise CodecError("zstd: the stream ends early")
        header = view[position] | view[position + 1] << 8 | view[position + 2] << 16
        last, kind, size = header & 1, header >> 1 & 3, header >> 3
        if kind > _COMPRESSED or size > _BLOCK_MAX:
            raise CodecError(f"zstd: block of kind {kind} and {size} bytes at byte {position}")
        total += _BLOCK_MAX if kind == _COMPRESSED else size
        position += 3 + (1 if kind == _RLE else size)
    return _inside(view, position), total


def _read(view: memoryview, position: int, size: int) -> int:
    return int.from_bytes(view[position : _inside(view, position + size)], "little")


def _inside(view: memoryview, end: int) -> int:
    if end > len(view):
        raise CodecError("zstd: the stream ends early")
    return end
