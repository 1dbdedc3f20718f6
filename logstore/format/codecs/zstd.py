"""Zstandard frames (rule F-86).

The writer follows Kafka's streams: no content size, no checksum, an empty last block. The reader
accepts all frames, one after the other, skippable ones too. The library refuses windows above 128
MiB, the window of level 22. Besides its content a frame takes as much memory as it fills of its
window.
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
