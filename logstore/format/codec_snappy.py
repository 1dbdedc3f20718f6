"""snappy in the *xerial* framing of snappy-java (rule F-84), and bare snappy for reading.

snappy-java's reader, and with it Kafka, takes input that does not begin with the xerial magic for
one bare block, and accepts several framed streams one after the other.
"""

from __future__ import annotations

import struct
from typing import Any

import cramjam

from logstore.format.codec_errors import CodecError, TooLargeError
from logstore.types import Buffer

_MAGIC = b"\x82SNAPPY\x00"
_VERSIONS = struct.Struct(">ii")
_LENGTH = struct.Struct(">i")
_HEADER = _MAGIC + _VERSIONS.pack(1, 1)
_HEADER_MARK = int.from_bytes(_MAGIC[:4], "big", signed=True)  # where a block length would stand
_BLOCK_BYTES = 32 << 10

_MAX_RATIO = 22
"""A copy element turns 3 bytes into at most 64: a block that claims more than this lies."""

assert len(_HEADER) == 16


def compress(data: Buffer, level: int) -> bytes:
    """``level`` is ignored: snappy has none (rule F-90)."""
    view = memoryview(data)
    parts: list[Any] = [_HEADER]  # bytes, views and the library's own buffers
    for start in range(0, len(view), _BLOCK_BYTES):
        block = cramjam.snappy.compress_raw(view[start : start + _BLOCK_BYTES])
        parts.extend((_LENGTH.pack(len(block)), block))
    return b"".join(parts)


def decompress(data: Buffer, limit: int) -> memoryview:
    view = memoryview(data)
    if not len(view):
        raise CodecError("snappy: the stream is empty")
    framed = len(view) >= len(_HEADER) and view[: len(_MAGIC)] == _MAGIC
    blocks = _blocks(view) if framed else [view]
    sizes = [_content_size(block) for block in blocks]
    total = sum(sizes)  # exact: a block that does not unpack to its claim is refused below
    if total > limit:
        raise TooLargeError(limit)
    out = memoryview(bytearray(total))
    start = 0
    for block, size in zip(blocks, sizes, strict=True):
        try:
            written = cramjam.snappy.decompress_raw_into(block, out[start : start + size])
        except cramjam.DecompressionError as error:
            raise CodecError(f"snappy: {error}") from None
        if written != size:
            raise CodecError(f"snappy: a block of {size} bytes unpacks to {written}")
        start += size
    return out


def _blocks(view: memoryview) -> list[memoryview]:
    blocks = []
    position = 0
    while position < len(view):
        if len(view) - position < _LENGTH.size:
            raise CodecError("snappy: the stream ends inside a block length")
        (length,) = _LENGTH.unpack_from(view, position)
        if length == _HEADER_MARK:
            _check_header(view[position : position + len(_HEADER)])
            position += len(_HEADER)
            continue
        position += _LENGTH.size
        if not 0 < length <= len(view) - position:
            raise CodecError(f"snappy: block length {length}, {len(view) - position} bytes left")
        blocks.append(view[position : position + length])
        position += length
    return blocks


def _check_header(header: memoryview) -> None:
    if len(header) < len(_HEADER) or header[: len(_MAGIC)] != _MAGIC:
        raise CodecError("snappy: malformed stream header")
    version, compatible = _VERSIONS.unpack_from(header, len(_MAGIC))
    if version < 1:
        raise CodecError(f"snappy: unknown stream version {version}, compatible {compatible}")


def _content_size(block: memoryview) -> int:
    """The size that a bare block claims in its first bytes, a varint of at most 5."""
    size = 0
    for index, byte in enumerate(block[:5]):
        size |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            if size > _MAX_RATIO * len(block):
                raise CodecError(f"snappy: {len(block)} bytes claim to hold {size}")
            return size
    raise CodecError("snappy: malformed content size")
