"""Zstandard frames (rule F-86).

The writer follows Kafka's streams: no content size, no checksum, an empty last block. The reader
accepts all frames, one after the other, skippable ones too. The library refuses windows above 128
MiB, the window of level 22. Besides its content a frame takes as much memory as it fills of its
window.

A batch is nearly always one frame, and to set up a context costs as much as to unpack 100 records.
So contexts are kept, each for one thread at a time, and unpack a small frame in one call. What they
do not take, malformed frames too, is unpacked in bounded steps by the standard library, which says
what is right.
"""

from __future__ import annotations

import struct
import sys

from logstore.common.types import Buffer
from logstore.format.codecs import members as codec_members
from logstore.format.codecs.limits import SCRATCH_BYTES, borrow, give_back

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
_BLOCKS_MAX = 4
_MAGIC_BYTE = 0x28  # the first; that of a frame to be skipped is another
_DESCRIPTOR_AT, _CHECKSUM_BIT, _CHECKSUM_BYTES = 4, 4, 4
_BLOCK = struct.Struct("<HB")  # the header of a block: last or not, its kind, its size
_LAST_BIT, _KIND_BITS, _RUN = 1, 6, 2  # a run stores one byte
_LEVELS_KEPT = range(1, 9)
"""Of compressors that are kept, at most 8 MiB each; higher levels take up to 90, and their time."""

KEPT_MAX = 4
"""Contexts of a kind that are kept. What a crowd of threads needed for a moment is freed."""

unpackers: list[zstandard.ZstdDecompressor] = []
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
    if len(kept) < KEPT_MAX:
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
    """The content of a small frame; ``ZstdError`` if it is none, is not alone, or is too large."""
    _check_small(data)
    try:
        unpacker = unpackers.pop()
    except IndexError:
        unpacker = zstandard.ZstdDecompressor(max_window_size=_WINDOW_BYTES)
    try:
        scratch = borrow()
        size = unpacker.stream_reader(data).readinto(scratch)
        if size == SCRATCH_BYTES or size > limit:  # the frame may go on
            raise zstandard.ZstdError
        return give_back(scratch, size)
    finally:
        if len(unpackers) < KEPT_MAX:
            unpackers.append(unpacker)


def _check_small(data: Buffer) -> None:
    """Check that a frame with one block, and perhaps empty ones, is all that there is.

    The library does not say where a frame ends. A block holds at most 128 KiB, and what is smaller
    comes in one.
    """
    position = zstandard.frame_header_size(data)
    end = len(data) - (_CHECKSUM_BYTES if data[_DESCRIPTOR_AT] & _CHECKSUM_BIT else 0)
    filled = 0
    for _ in range(_BLOCKS_MAX):
        if position > end - _BLOCK.size or data[0] != _MAGIC_BYTE:
            break
        low, high = _BLOCK.unpack_from(data, position)
        size = high << 13 | low >> 3
        position += _BLOCK.size + (1 if low & _KIND_BITS == _RUN else size)
        filled += size > 0
        if low & _LAST_BIT:
            if position == end and filled <= 1:
                return
            break
    raise zstandard.ZstdError
