"""LZ4 frames, written block by block as Kafka's ``Lz4BlockOutputStream`` does (F-85…F-88).

The frame is built by hand over the block functions: that is faster than the library's own frame
writer, and Kafka's reader insists on independent blocks.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import cramjam
from xxhash import xxh32_intdigest

from logstore.common.types import Buffer
from logstore.format.codecs.blocks import Block, unpack
from logstore.format.codecs.limits import CodecError

_MAGIC = bytes.fromhex("04224d18")
_HEADER = _MAGIC + bytes.fromhex("604082")
_U32 = struct.Struct("<I")  # little-endian inside a big-endian file (rule F-331)
_END_MARK = _U32.pack(0)
_RAW_BIT = 1 << 31
_BLOCK_BYTES = 64 << 10
_MAX_RATIO = 255

_INDEPENDENT, _BLOCK_CHECKSUM, _CONTENT_SIZE, _CONTENT_CHECKSUM, _RESERVED = 0x20, 0x10, 8, 4, 3


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
    view = memoryview(data)
    return unpack("lz4", lambda: _blocks(view, check_header), limit)


def _blocks(view: memoryview, check_header: bool) -> Iterator[Block]:
    position = 0
    while position < len(view) or not position:
        flags, max_size, position = _frame_header(view, position, check_header)
        while True:
            length = _read_u32(view, position)
            position += 4
            size = length & ~_RAW_BIT
            if not size:  # the end mark, for Kafka even with the bit
                break
            if size > max_size or size > len(view) - position:
                raise CodecError(f"lz4: block of {size} bytes, {len(view) - position} left")
            data = view[position : position + size]
            position += size
            if flags & _BLOCK_CHECKSUM:
                if _read_u32(view, position) != xxh32_intdigest(data):
                    raise CodecError("lz4: wrong block checksum")
                position += 4
            if length & _RAW_BIT:
                yield data, size, _copy
            else:
                yield data, min(max_size, size * _MAX_RATIO), _decompress
        if flags & _CONTENT_CHECKSUM:  # skipped, as Kafka does
            _read_u32(view, position)
            position += 4
        if position < len(view):
            yield view[:0], 0, _copy


def _copy(data: memoryview, out: memoryview) -> int:
    out[:] = data
    return len(out)


def _decompress(data: memoryview, out: memoryview) -> int:
    # Without the last argument it takes the first bytes for a size where they look like one.
    return int(cramjam.lz4.decompress_block_into(data, out, len(out)))


def _frame_header(view: memoryview, start: int, check_header: bool) -> tuple[int, int, int]:
    """The flags of the frame at ``start``, its largest block in bytes, and where blocks begin."""
    if view[start : start + 4] != _MAGIC or len(view) - start < len(_HEADER):
        raise CodecError("lz4: no frame header")
    flags, descriptor = view[start + 4], view[start + 5]
    if flags >> 6 != 1 or not flags & _INDEPENDENT or flags & _RESERVED:
        raise CodecError(f"lz4: unsupported frame flags {flags:#04x}")
    if descriptor & 0x8F or descriptor < 0x40:
        raise CodecError(f"lz4: unsupported block descriptor {descriptor:#04x}")
    checksum_at = start + 6 + (8 if flags & _CONTENT_SIZE else 0)
    if checksum_at >= len(view):
        raise CodecError("lz4: the stream ends inside a frame header")
    if check_header:
        header_checksum = xxh32_intdigest(view[start + 4 : checksum_at]) >> 8 & 0xFF
        if header_checksum != view[checksum_at]:
            raise CodecError("lz4: wrong header checksum")
    max_size = 1 << (8 + 2 * (descriptor >> 4))  # 4…7: 64 KiB, 256 KiB, 1 MiB, 4 MiB
    return flags, max_size, checksum_at + 1


def _read_u32(view: memoryview, position: int) -> int:
    if len(view) - position < 4:
        raise CodecError("lz4: the stream ends early")
    return int(_U32.unpack_from(view, position)[0])
