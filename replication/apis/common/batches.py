"""What a request handler reads of a batch: size, format, attributes. The log checks the rest."""

from __future__ import annotations

from struct import Struct

from logstore.common.types import Buffer

_FRONT = Struct(">8xi4xB5xB")  # batch length, magic, low byte of the attributes
_OVERHEAD = 12  # base offset and length, which the length does not count
_LENGTH_AT = 8
_LENGTH_MIN = 14  # of a message of magic 0
_MAGIC_AT = 16

LEAST_SIZE = _FRONT.size  # bytes
MAGIC = 2  # the last one there is


def front_of(records: Buffer) -> tuple[int, int, int]:
    """Size in bytes, magic and attributes of the first batch, as it says itself. The size is
    negative if it lies. At least ``LEAST_SIZE`` bytes must be there.
    """
    length, magic, attributes = _FRONT.unpack_from(records)
    return _OVERHEAD + length, magic, attributes


def is_unreadable(records: Buffer) -> bool:
    """Whether a batch of no format begins there. False if there are too few bytes to tell."""
    if len(records) < _OVERHEAD:
        return False
    length = int.from_bytes(records[_LENGTH_AT:_OVERHEAD], "big", signed=True)
    return length < _LENGTH_MIN or (len(records) > _MAGIC_AT and records[_MAGIC_AT] > MAGIC)
