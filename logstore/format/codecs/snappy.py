"""snappy in the *xerial* framing of snappy-java (rule F-84), and bare snappy for reading.

snappy-java's reader, and with it Kafka, takes input that does not begin with the xerial magic for
one bare block, and accepts several framed streams one after the other.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import cramjam

from logstore.common.types import Buffer
from logstore.format.codecs.blocks import Block, unpack
from logstore.format.codecs.limits import CodecError, TooLargeError

_MAGIC = b"\x82SNAPPY\x00"
_VERSIONS = struct.Struct(">ii")
_LENGTH = struct.Struct(">i")
_HEADER = _MAGIC + _VERSIONS.pack(1, 1)
_HEADER_MARK = int.from_bytes(_MAGIC[:4], "big", signed=True)  # in place of a block length
_BLOCK_BYTES = 32 << 10

_MAX_RATIO = 22
"""A copy element turns 3 bytes into at most 64, so a block that claims more is malformed."""

assert len(_HEADER) == 16


def compress(data: Buffer, level: int) -> bytes:
    """``level`` is ignored: snappy has none (rule F-90)."""
    view = memoryview(data)
    parts: list[Any] = [_HEADER]  # bytes, views and the library's own buffers
    for start in range(0, len(view), _BLOCK_BYTES):
        block = cramjam.snappy.compress_raw(view[start : start + _BLOCK_BYTES])
        parts.extend((_LENGTH.pack(len(block)), block))
    return b"".join(parts)


def decompress(data: Buffer, limit: int) -> Buffer:
    view = memoryview(data)
    return unpack("snappy", lambda: _blocks(view, limit), limit)


def _blocks(view: memoryview, limit: int) -> Iterator[Block]:
    if not len(view):
        raise CodecError("snappy: the stream is empty")
    if len(view) < len(_HEADER) or view[: len(_MAGIC)] != _MAGIC:
        yield view, _content_size(view, limit), _decompress
        return
    position = 0
    while position < len(view):
        if len(view) - position < _LENGTH.size:
            raise CodecError("snappy: the stream ends inside a block length")
        (length,) = _LENGTH.unpack_from(view, position)
        if length == _HEADER_MARK:
            _check_header(view[position : position + len(_HEADER)])
            if position:
                yield view[:0], 0, _decompress
            position += len(_HEADER)
            continue
        position += _LENGTH.size
        if not 0 < length <= len(view) - position:
            raise CodecError(f"snappy: block length {length}, {len(view) - position} bytes left")
        block = view[position : position + length]
        yield block, _content_size(block, limit), _decompress
        position += length


def _check_header(header: memoryview) -> None:
    if header == _HEADER:
        return
    if len(header) < len(_HEADER) or header[: len(_MAGIC)] != _MAGIC:
        raise CodecError("snappy: malformed stream header")
    version, compatible = _VERSIONS.unpack_from(header, len(_MAGIC))
    if version < 1:
        raise CodecError(f"snappy: unknown stream version {version}, compatible {compatible}")


def _decompress(block: memoryview, out: memoryview) -> int:
    size = int(cramjam.snappy.decompress_raw_into(block, out))
    if size != len(out):
        raise CodecError(f"snappy: a block of {len(out)} bytes unpacks to {size}")
    return size


def _content_size(block: memoryview, limit: int) -> int:
    """The size that a bare block claims in its first bytes, a varint of at most 5."""
    size = shift = 0
    for byte in block[:5]:
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            if size > _MAX_RATIO * len(block):
                raise CodecError(f"snappy: {len(block)} bytes claim to hold {size}")
            if size > limit:
                raise TooLargeError(limit)
            return size
        shift += 7
    raise CodecError("snappy: malformed content size")
