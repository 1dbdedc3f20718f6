"""Entries of the offset, time and transaction index (F-112, F-116, F-121).

No entry has a checksum: an index is derived from its ``.log`` and rebuilt when in doubt.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import NamedTuple

from logstore.common.errors import CorruptIndexError
from logstore.common.types import Buffer

OFFSET_ENTRY = struct.Struct(">ii")
TIME_ENTRY = struct.Struct(">qi")
TXN_ENTRY = struct.Struct(">hqqqq")
TXN_INDEX_VERSION = 0

assert (OFFSET_ENTRY.size, TIME_ENTRY.size, TXN_ENTRY.size) == (8, 12, 34)


class OffsetIndexEntry(NamedTuple):
    """``offset`` is the last of an append call, ``position`` the byte where it began (F-113)."""

    offset: int
    position: int


class TimeIndexEntry(NamedTuple):
    """No record up to and including ``offset`` is younger than ``timestamp`` (F-117)."""

    timestamp: int
    offset: int


class AbortedTransaction(NamedTuple):
    """``last_offset`` is that of the ABORT marker (F-121)."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def encode_offset_entries(entries: Iterable[OffsetIndexEntry], base_offset: int) -> bytes:
    return b"".join(OFFSET_ENTRY.pack(e.offset - base_offset, e.position) for e in entries)


def decode_offset_entries(data: Buffer, base_offset: int) -> list[OffsetIndexEntry]:
    """Absolute offsets; a tail shorter than an entry is left out, zero slots are not (F-137)."""
    return [
        OffsetIndexEntry(base_offset + relative, position)
        for relative, position in OFFSET_ENTRY.iter_unpack(_whole(data, OFFSET_ENTRY.size))
    ]


def encode_time_entries(entries: Iterable[TimeIndexEntry], base_offset: int) -> bytes:
    return b"".join(TIME_ENTRY.pack(e.timestamp, e.offset - base_offset) for e in entries)


def decode_time_entries(data: Buffer, base_offset: int) -> list[TimeIndexEntry]:
    return [
        TimeIndexEntry(timestamp, base_offset + relative)
        for timestamp, relative in TIME_ENTRY.iter_unpack(_whole(data, TIME_ENTRY.size))
    ]


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


def encode_aborted(entries: Iterable[AbortedTransaction]) -> bytes:
    return b"".join(TXN_ENTRY.pack(TXN_INDEX_VERSION, *entry) for entry in entries)


def decode_aborted(data: Buffer, path: str = "") -> list[AbortedTransaction]:
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
        entries.append(AbortedTransaction(*fields))
    return entries


def _whole(data: Buffer, width: int) -> memoryview:
    return memoryview(data)[: len(data) // width * width]
