"""Entries of the offset and time index, and aborted transactions, as bytes and as values."""

from __future__ import annotations

from collections.abc import Iterable

from logstore.format.index_entry import OFFSET_ENTRY, TIME_ENTRY, TXN_ENTRY, AbortedTxn
from logstore.segments.index import OffsetPosition, TimestampOffset


def encode_offset_entries(entries: Iterable[OffsetPosition], base_offset: int) -> bytes:
    return b"".join(OFFSET_ENTRY.pack(e.offset - base_offset, e.position) for e in entries)


def decode_offset_entries(data: bytes, base_offset: int) -> list[OffsetPosition]:
    """Absolute offsets; a tail shorter than an entry is left out, zero slots are not (F-137)."""
    return [
        OffsetPosition(base_offset + relative, position)
        for relative, position in OFFSET_ENTRY.iter_unpack(data[: len(data) // 8 * 8])
    ]


def encode_time_entries(entries: Iterable[TimestampOffset], base_offset: int) -> bytes:
    return b"".join(TIME_ENTRY.pack(e.timestamp, e.offset - base_offset) for e in entries)


def decode_time_entries(data: bytes, base_offset: int) -> list[TimestampOffset]:
    return [
        TimestampOffset(timestamp, base_offset + relative)
        for timestamp, relative in TIME_ENTRY.iter_unpack(data[: len(data) // 12 * 12])
    ]


def encode_aborted(entries: Iterable[AbortedTxn]) -> bytes:
    return b"".join(TXN_ENTRY.pack(0, *entry) for entry in entries)
