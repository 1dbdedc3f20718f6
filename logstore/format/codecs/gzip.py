"""gzip as Kafka frames it (rule F-83), packed by zlib and unpacked by zlib-ng.

zlib-ng is zlib's inflate with vector instructions: twice as fast, and it refuses what zlib and
Kafka refuse, in the same words. (ISA-L is a third faster yet, and takes incomplete Huffman codes,
so that a verification would call sound what no client can read.) Where there is no wheel of it,
zlib does the work. Either bounds the output of a step natively.
"""

from __future__ import annotations

import zlib
from typing import Any

from logstore.common.types import Buffer
from logstore.format.codecs import members as codec_members

library: Any = zlib
try:
    from zlib_ng import zlib_ng

    library = zlib_ng
except ImportError:
    pass

_GZIP_WINDOW = 31  # 15 bits, plus 16: gzip header and trailer instead of zlib's
_HEADER = bytes.fromhex("1f8b08000000000000ff")  # flags 0, no time, OS "unknown": as JDK 16+


class _Member:
    """``zlib``'s decompressor, which hands input back, as one that keeps it."""

    __slots__ = ("_inflater", "_kept")

    def __init__(self) -> None:
        self._inflater = library.decompressobj(_GZIP_WINDOW)
        self._kept = b""

    @property
    def eof(self) -> bool:
        return bool(self._inflater.eof)

    @property
    def needs_input(self) -> bool:
        return not self._kept

    @property
    def unused_data(self) -> bytes:
        return bytes(self._inflater.unused_data)

    def decompress(self, data: Buffer, max_length: int) -> bytes:
        chunk: bytes = self._inflater.decompress(self._kept or data, max_length)
        self._kept = self._inflater.unconsumed_tail
        return chunk


_FORMAT = codec_members.MemberFormat("gzip", _Member, library.error)


def compress(data: Buffer, level: int) -> bytes:
    # zlib-ng makes other bytes than Kafka does, if in less time.
    return _HEADER + zlib.compress(data, level, _GZIP_WINDOW)[len(_HEADER) :]


def decompress(data: Buffer, limit: int) -> Buffer:
    return codec_members.decompress(_FORMAT, data, limit)
