"""gzip as Kafka frames it (rule F-83), on the standard library.

Its ``decompressobj`` bounds the output natively, and it compresses faster than the alternatives.
"""

from __future__ import annotations

import zlib

from logstore.common.types import Buffer
from logstore.format.codecs import members as codec_members

_GZIP_WINDOW = 31  # 15 bits, plus 16: gzip header and trailer instead of zlib's
_HEADER = bytes.fromhex("1f8b08000000000000ff")  # flags 0, no time, OS "unknown": as JDK 16+


class _Member:
    """``zlib``'s decompressor, which hands input back, as one that keeps it."""

    __slots__ = ("_inflater", "_kept")

    def __init__(self) -> None:
        self._inflater = zlib.decompressobj(_GZIP_WINDOW)
        self._kept = b""

    @property
    def eof(self) -> bool:
        return self._inflater.eof

    @property
    def needs_input(self) -> bool:
        return not self._kept

    @property
    def unused_data(self) -> bytes:
        return self._inflater.unused_data

    def decompress(self, data: Buffer, max_length: int) -> bytes:
        chunk = self._inflater.decompress(self._kept or data, max_length)
        self._kept = self._inflater.unconsumed_tail
        return chunk


_FORMAT = codec_members.MemberFormat("gzip", _Member, zlib.error)


def compress(data: Buffer, level: int) -> bytes:
    return _HEADER + zlib.compress(data, level, _GZIP_WINDOW)[len(_HEADER) :]


def decompress(data: Buffer, limit: int) -> Buffer:
    return codec_members.decompress(_FORMAT, data, limit)
