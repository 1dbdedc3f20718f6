"""Zstandard frames (rule F-86).

The writer follows Kafka's streams: no content size, no checksum, an empty last block. The reader
accepts all frames, one after the other, skippable ones too. The library refuses windows above 128
MiB, the window of level 22. Besides its content a frame takes as much memory as it fills of its
window.

A batch is nearly always one frame, and to set up a context costs as much as to unpack 100 records.
So contexts are kept, each for one thread at a time, and unpack such a frame in one call. What they
do not take, malformed frames too, is unpacked in bounded steps by the standard library, which says
what is right.
"""

from __future__ import annotations

import struct
import sys

from logstore.common.types import Buffer
from logstore.format.codecs import members as codec_members
from logstore.format.codecs.limits import EAGER_BYTES

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

try:
    import zstandard
except ImportError:  # no wheel: a context for each frame
    zstandard = None  # type: ignore[assignment]

_FORMAT = codec_members.MemberFormat("zstd", zstd.ZstdDecompressor, zstd.ZstdError)

_WINDOW_BYTES = 8 << 20
"""Of frames that a kept context takes: the window of level 19. It bounds what each keeps."""
_BLOCK_BYTES = 128 << 10
"""The most that a block holds."""
_DESCRIPTOR_AT, _CHECKSUM_BIT, _CHECKSUM_BYTES = 4, 4, 4
_BLOCK = struct.Struct("<HB")  # the header of a block: last or not, its kind, its size
_LAST_BIT, _KIND_BITS, _RUN = 1, 6, 2  # a run stores one byte
_LEVELS_KEPT = range(1, 9)
"""Of compressors that are kept, at most 8 MiB each; higher levels take up to 90, and their time."""

unpackers: list[zstandard.ZstdDecompressor] = []  # at most one for each thread at a time
_packers: dict[int, list[zstandard.ZstdCompressor]] = {level: [] for level in _LEVELS_KEPT}


def compress(data: Buffer, level: int) -> bytes:
    # A flush before the end gives the shape that Java's output stream gives: an empty last block.
    if zstandard is None:
        once = zstd.ZstdCompressor(level)
        return once.compress(data, once.FLUSH_BLOCK) + once.flush()
    kept = _packers.get(level, [])
    try:
        packer = kept.pop()
    except IndexError:
        packer = zstandard.ZstdCompressor(level=level, write_content_size=False)
    stream = packer.compressobj()
    head = stream.compress(data) + stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    frame = head + stream.flush()
    kept.append(packer)
    return frame


def decompress(data: Buffer, limit: int) -> Buffer:
    if zstandard is not None:
        try:
            return _at_once(data, limit)
        except zstandard.ZstdError:
            pass  # not in one go, or not at all
    return codec_members.decompress(_FORMAT, data, limit)


def _at_once(data: Buffer, limit: int) -> bytes:
    """The content of a single frame; ``ZstdError`` if it is none, or may be too large."""
    room = min(limit, _most(data))
    claim = zstandard.frame_content_size(data)
    if claim > room or not claim:  # room would be taken; for 0 nothing would be looked at
        raise zstandard.ZstdError
    try:
        unpacker = unpackers.pop()
    except IndexError:
        unpacker = zstandard.ZstdDecompressor(max_window_size=_WINDOW_BYTES)
    try:
        return unpacker.decompress(data, max_output_size=room)
    finally:
        unpackers.append(unpacker)


def _most(data: Buffer) -> int:
    """The bytes that a frame holds at most, by its blocks; ``ZstdError`` if more than it follows.

    The library does not say where a frame ends.
    """
    position = zstandard.frame_header_size(data)
    end = len(data) - (_CHECKSUM_BYTES if data[_DESCRIPTOR_AT] & _CHECKSUM_BIT else 0)
    for most in range(_BLOCK_BYTES, EAGER_BYTES, _BLOCK_BYTES):
        if position > end - _BLOCK.size:
            break
        low, high = _BLOCK.unpack_from(data, position)
        position += _BLOCK.size + (1 if low & _KIND_BITS == _RUN else high << 13 | low >> 3)
        if low & _LAST_BIT:
            if position == end:
                return most
            break
    raise zstandard.ZstdError
