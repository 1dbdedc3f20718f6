"""The codecs of a batch: id, name, levels, compression and bounded decompression."""

from __future__ import annotations

from enum import IntEnum

from logstore.common.bounds import UNPACKED_MAX
from logstore.common.errors import CorruptBatchError
from logstore.common.types import Buffer
from logstore.format.codecs import gzip as codec_gzip
from logstore.format.codecs import lz4 as codec_lz4
from logstore.format.codecs import snappy as codec_snappy
from logstore.format.codecs import zstd as codec_zstd
from logstore.format.codecs.limits import ABOVE_LIMIT, CodecError


class Compression(IntEnum):
    """The three lowest attribute bits (rule F-65). ``str`` gives the name that Kafka prints."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    def __str__(self) -> str:
        return self.name.lower()

    @classmethod
    def of(cls, name: str) -> Compression:
        """The codec with Kafka's name, as in ``compression.type``; ``ValueError`` if none has."""
        try:
            return cls[name.upper()]
        except KeyError:
            raise ValueError(f"unknown compression {name!r}") from None


DEFAULT_LEVEL = {Compression.GZIP: -1, Compression.LZ4: 9, Compression.ZSTD: 3}
LEVELS = {
    Compression.GZIP: (-1, 9),  # 0, "stored", is refused as Kafka refuses it
    Compression.LZ4: (1, 17),
    Compression.ZSTD: (-131072, 22),
}
"""Smallest and largest level (rule F-90). Snappy has none."""

_COMPRESS = {
    Compression.GZIP: codec_gzip.compress,
    Compression.SNAPPY: codec_snappy.compress,
    Compression.LZ4: codec_lz4.compress,
    Compression.ZSTD: codec_zstd.compress,
}


def compress(codec: Compression, data: Buffer, level: int | None = None) -> Buffer:
    """``data`` as one stream in the frame that Kafka writes (F-83…F-86).

    Raises:
        ValueError: a level outside ``LEVELS``.
    """
    if codec is Compression.NONE:
        return data
    if level is None:
        level = DEFAULT_LEVEL.get(codec, 0)
    elif codec in LEVELS:
        low, high = LEVELS[codec]
        if not low <= level <= high or (codec is Compression.GZIP and level == 0):
            raise ValueError(f"{codec} level {level} is outside {low}…{high}")
    return _COMPRESS[codec](data, level)


def decompress(
    codec: Compression, data: Buffer, limit: int = UNPACKED_MAX, magic: int = 2
) -> Buffer:
    """The content of one or several concatenated streams; ``NONE`` gives ``data`` itself.

    Time is linear in the input and the content. Memory is that of the content, of ``EAGER_BYTES``
    and of one block; a zstd frame adds what it fills of its window, at most 128 MiB.

    Raises:
        CorruptBatchError: any fault of the input, at position 0 with an empty path: it is
            malformed, it holds more than ``limit`` bytes, or it is cut into more blocks or members
            than an encoder makes.
    """
    try:
        match codec:
            case Compression.GZIP:
                return codec_gzip.decompress(data, limit)
            case Compression.SNAPPY:
                return codec_snappy.decompress(data, limit)
            case Compression.LZ4:
                return codec_lz4.decompress(data, limit, check_header=magic > 0)
            case Compression.ZSTD:
                return codec_zstd.decompress(data, limit)
        return data
    except CodecError as error:
        raise CorruptBatchError("", 0, str(error)) from None


def is_above_limit(error: CorruptBatchError) -> bool:
    """Whether content was refused for its size alone."""
    return ABOVE_LIMIT in error.reason
