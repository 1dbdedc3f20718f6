"""Zstandard frames (rule F-86).

Written as Kafka's streams are: no content size, no checksum, an empty last block. Any frames are
read, one after the other, skippable ones too. The library refuses windows above 128 MiB, which is
level 22's. A frame costs as much memory beside its content as it fills of its window.
"""

from __future__ import annotations

import sys

import cramjam

from logstore.common.types import Buffer
from logstore.format.codecs import members as codec_members

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_FORMAT = codec_members.MemberFormat("zstd", zstd.ZstdDecompressor, zstd.ZstdError)


def compress(data: Buffer, level: int) -> bytes:
    compressor = cramjam.zstd.Compressor(level=level)
    compressor.compress(bytes(data))  # the streaming interface takes nothing else
    # A flush before the end gives the shape that Java's output stream gives: an empty last block.
    return bytes(compressor.flush()) + bytes(compressor.finish())


def decompress(data: Buffer, limit: int) -> Buffer:
    return codec_members.decompress(_FORMAT, data, limit)
