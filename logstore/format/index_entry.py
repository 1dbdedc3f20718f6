"""Entries of the offset, time and transaction index (F-112, F-116, F-121).

No entry has a checksum: an index is derived from its ``.log`` and rebuilt when in doubt.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from logstore.common.errors import CorruptIndexError
from logstore.common.types import Buffer

OFFSET_ENTRY = struct.Struct(">ii")
TIME_ENTRY = struct.Struct(">qi")
TXN_ENTRY = struct.Struct(">hqqqq")
TXN_INDEX_VERSION = 0

assert (OFFSET_ENTRY.size, TIME_ENTRY.size, TXN_ENTRY.size) == (8, 12, 34)


class AbortedTxn(NamedTuple):
    """One aborted transaction: its first record, its ABORT marker, and the LSO after it (F-121)."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def used_offset_entries(data: Buffer) -> int:
    """Entries before the zero tail of an active index: no real one is all zeros (F-137)."""
    return _used(_whole(data, OFFSET_ENTRY.size), OFFSET_ENTRY, 0)


def used_time_entries(data: Buffer) -> int:
    """Entries before the zero tail; a zero entry in the first slot may be real (F-137).

    Before another zero entry it is not: only a larger timestamp could follow it (F-118).
    """
    whole = _whole(data, TIME_ENTRY.size)
    used = _used(whole, TIME_ENTRY, 1)
    return 0 if used == 1 < len(whole) // TIME_ENTRY.size and not any(whole[:12]) else used


def _used(whole: memoryview, layout: struct.Struct, first: int) -> int:
    """The number of the first entry from ``first`` on that is all zeros; how many if none is.

    An active index has room for a million entries: the zeros are searched for, not looked at.
    """
    width, data = layout.size, whole.tobytes()
    zeros = bytes(width)
    at = first * width
    while (at := data.find(zeros, at)) >= 0:
        if at % width == 0:
            return at // width
        at += width - at % width  # zeros from inside one entry into the next
        if data.startswith(zeros, at):
            return at // width
    return len(data) // width


def decode_aborted(data: Buffer, path: str = "") -> list[AbortedTxn]:
    """Whole entries only (F-124).

    Raises:
        CorruptIndexError: an entry of another version.
    """
    entries = []
    for index, (version, *fields) in enumerate(TXN_ENTRY.iter_unpack(_whole(data, TXN_ENTRY.size))):
        if version != TXN_INDEX_VERSION:
            raise CorruptIndexError(
                path, index * TXN_ENTRY.size, f"unknown version {version} of an aborted transaction"
            )
        entries.append(AbortedTxn(*fields))
    return entries


def _whole(data: Buffer, width: int) -> memoryview:
    return memoryview(data)[: len(data) // width * width]
