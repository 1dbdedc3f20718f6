"""The attribute bits of a batch or legacy message (F-65…F-70) and what they stand for."""

from __future__ import annotations

from enum import IntEnum

from logstore.common.errors import CorruptBatchError
from logstore.format.codecs.compression import Compression

CODEC_MASK = 0x07
_CODECS = tuple(Compression)  # an index costs a fifth of a call to the enum
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40


class TimestampType(IntEnum):
    """``str`` gives the name that Kafka prints; ``NONE`` is that of magic 0."""

    NONE = -1
    CREATE_TIME = 0
    LOG_APPEND_TIME = 1

    def __str__(self) -> str:
        return ("CreateTime", "LogAppendTime", "NoTimestampType")[self]


def codec_of(attributes: int, position: int) -> Compression:
    """
    Raises:
        CorruptBatchError: codec 5, 6 or 7; zstd is for magic 2 only, which callers check.
    """
    codec = attributes & CODEC_MASK
    if codec > Compression.ZSTD:
        raise CorruptBatchError("", position, f"unknown compression codec {codec}")
    return _CODECS[codec]
