"""LZ4 frames, written block by block as Kafka's ``Lz4BlockOutputStream`` does (F-85…F-88).

The frame is built by hand over the block functions: that is faster than the library's own frame
writer, and Kafka's reader insists on independent blocks.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Any, NamedTuple

import cramjam

from logstore.format.codec_errors import EAGER_BYTES, CodecError, TooLargeError
from logstore.format.scratch import SCRATCH_BYTES, borrow, give_back
from logstore.format.xxhash import xxh32
from logstore.types import Buffer

_MAGIC = bytes.fromhex("04224d18")
_HEADER = _MAGIC + bytes.fromhex("604082")
_U32 = struct.Struct("<I")  # little-endian inside a big-endian file (rule F-331)
_END_MARK = _U32.pack(0)
_RAW_BIT = 1 << 31
_BLOCK_BYTES = 64 << 10
_MAX_RATIO = 255

_INDEPENDENT, _BLOCK_CHECKSUM, _CONTENT_SIZE, _CONTENT_CHECKSUM, _RESERVED = 0x20, 0x10, 8, 4, 3


class _Block(NamedTuple):
    data: memoryview
    raw: bool
    bound: int  # of its content, in bytes


_FAST_LEVEL = 9
"""Kafka's default level, at which it keeps the fast compressor; others take the thorough one."""


def compress(data: Buffer, level: int) -> bytes:
    """Level 9 is the fast compressor, as for Kafka; others are levels of the thorough one."""
    view = memoryview(data)
    if level != _FAST_LEVEL:
        return _compress_thoroughly(view, level)
    parts: list[Any] = [_HEADER]  # bytes, views and the library's own buffers
    for start in range(0, len(view), _BLOCK_BYTES):
        content = view[start : start + _BLOCK_BYTES]
        block = cramjam.lz4.compress_block(content, store_size=False)
        if len(block) < len(content):
            parts.extend((_U32.pack(len(block)), block))
        else:
            parts.extend((_U32.pack(len(content) | _RAW_BIT), content))
    parts.append(_END_MARK)
    return b"".join(parts)


def _compress_thoroughly(view: memoryview, level: int) -> bytes:
    """The blocks of the library's frame, which alone obeys a level, in a frame as Kafka's.

    Its blocks are independent and of 64 KiB too; a checksum follows each, which Kafka leaves out.
    """
    compressor = cramjam.lz4.Compressor(level=level, content_checksum=False, block_linked=False)
    compressor.compress(bytes(view))  # the streaming interface takes nothing else
    frame = memoryview(bytes(compressor.finish()))
    parts: list[Any] = [_HEADER]
    position = len(_HEADER)
    while length := _read_u32(frame, position):
        end = position + 4 + (length & ~_RAW_BIT)
        parts.append(frame[position:end])
        position = end + (4 if frame[4] & _BLOCK_CHECKSUM else 0)
    parts.append(_END_MARK)
    return b"".join(parts)


def decompress(data: Buffer, limit: int, check_header: bool = True) -> Buffer:
    """``check_header=False`` for magic 0, whose header checksum is computed wrongly (F-88)."""
    blocks = _parse_frames(memoryview(data), check_header)
    bound = sum([block.bound for block in blocks])
    if bound > min(limit, EAGER_BYTES):
        bound = _measure(blocks, limit)
    if bound <= SCRATCH_BYTES:
        scratch = borrow()
        return give_back(scratch, _unpack_all(blocks, scratch[:bound]))
    out = memoryview(bytearray(bound))
    return out[: _unpack_all(blocks, out)]


def _unpack_all(blocks: list[_Block], out: memoryview) -> int:
    size = 0
    for block in blocks:
        size += _unpack(block, out[size : size + block.bound])
    return size


def _measure(blocks: list[_Block], limit: int) -> int:
    """The exact size of the content, in the memory of one block."""
    scratch = memoryview(bytearray(max(block.bound for block in blocks)))
    total = 0
    for block in blocks:
        total += len(block.data) if block.raw else _unpack(block, scratch[: block.bound])
        if total > limit:
            raise TooLargeError(limit)
    return total


def _unpack(block: _Block, out: memoryview) -> int:
    if block.raw:
        out[:] = block.data
        return len(out)
    try:
        return int(cramjam.lz4.decompress_block_into(block.data, out))
    except (cramjam.DecompressionError, ValueError) as error:
        raise CodecError(f"lz4: {error}") from None


def _parse_frames(view: memoryview, check_header: bool) -> list[_Block]:
    blocks: list[_Block] = []
    position = 0
    while position < len(view) or not position:
        position = _parse_frame(view, position, check_header, blocks)
    return blocks


def _parse_frame(view: memoryview, start: int, check_header: bool, blocks: list[_Block]) -> int:
    """Add the blocks of the frame at ``start``; returns where it ends."""
    if view[start : start + 4] != _MAGIC or len(view) - start < len(_HEADER):
        raise CodecError("lz4: no frame header")
    flags, descriptor = view[start + 4], view[start + 5]
    if flags >> 6 != 1 or not flags & _INDEPENDENT or flags & _RESERVED:
        raise CodecError(f"lz4: unsupported frame flags {flags:#04x}")
    if descriptor & 0x8F or descriptor < 0x40:
        raise CodecError(f"lz4: unsupported block descriptor {descriptor:#04x}")
    max_size = 1 << (8 + 2 * (descriptor >> 4))  # 4…7: 64 KiB, 256 KiB, 1 MiB, 4 MiB
    checksum_at = start + 6 + (8 if flags & _CONTENT_SIZE else 0)
    if checksum_at >= len(view):
        raise CodecError("lz4: the stream ends inside a frame header")
    if check_header and _header_checksum(bytes(view[start + 4 : checksum_at])) != view[checksum_at]:
        raise CodecError("lz4: wrong header checksum")
    position = checksum_at + 1
    while length := _read_u32(view, position):
        size = length & ~_RAW_BIT
        position += 4
        if size > max_size or size > len(view) - position:
            raise CodecError(f"lz4: block of {size} bytes, {len(view) - position} left")
        data = view[position : position + size]
        position += size
        if flags & _BLOCK_CHECKSUM:
            if _read_u32(view, position) != xxh32(data):
                raise CodecError("lz4: wrong block checksum")
            position += 4
        if length & _RAW_BIT:
            blocks.append(_Block(data, True, size))
        else:
            blocks.append(_Block(data, False, min(max_size, size * _MAX_RATIO)))
    position += 4
    if flags & _CONTENT_CHECKSUM:  # skipped, as Kafka does
        _read_u32(view, position)
        position += 4
    return position


@lru_cache(maxsize=64)
def _header_checksum(descriptor: bytes) -> int:
    """Remembered: a writer's frames mostly have one and the same header."""
    return xxh32(descriptor) >> 8 & 0xFF


def _read_u32(view: memoryview, position: int) -> int:
    if len(view) - position < 4:
        raise CodecError("lz4: the stream ends early")
    return int(_U32.unpack_from(view, position)[0])
