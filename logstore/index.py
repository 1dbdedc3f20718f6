"""Offset, time and transaction index of one segment, each over one file.

An index is a hint: it is rebuilt from the ``.log`` whenever it is missing or wrong, and whoever
uses an entry checks that it leads to a batch (docs/format.md, "Indexes"). Entry counts live in the
segment's ``SegmentState``, which writes new entries in native code; this module opens, searches,
cuts and trims. Matches Kafka's ``OffsetIndex``, ``TimeIndex`` and ``TransactionIndex``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import NamedTuple

from logstore.errors import CorruptIndexError
from logstore.storage.base import File, Mapping, Storage

OFFSET_ENTRY = struct.Struct(">ii")
TIME_ENTRY = struct.Struct(">qi")
TXN_ENTRY = struct.Struct(">hqqqq")
assert (OFFSET_ENTRY.size, TIME_ENTRY.size, TXN_ENTRY.size) == (8, 12, 34)


class OffsetPosition(NamedTuple):
    """``offset`` absolute, ``position`` in bytes of the ``.log``."""

    offset: int
    position: int


class TimestampOffset(NamedTuple):
    timestamp: int
    offset: int


class AbortedTxn(NamedTuple):
    """One aborted transaction: its first record, its ABORT marker, and the LSO after it (F-121)."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class _SparseIndex:
    """A file of fixed-width, ascending entries; mapped while the segment is active."""

    entry: struct.Struct

    def __init__(self, storage: Storage, path: str, base_offset: int) -> None:
        self.path = path
        self.base_offset = base_offset
        self._storage = storage
        self._file: File | None = None
        self.map: Mapping | None = None

    def open_file(self) -> File:
        if self._file is None:
            self._file = self._storage.open(self.path, create=True)
        return self._file

    def activate(self, max_bytes: int) -> Mapping:
        """Extend to ``max_bytes`` rounded down to whole entries and map for appends (F-136)."""
        if self.map is None:
            self.map = self.open_file().map(max_bytes // self.entry.size * self.entry.size)
        return self.map

    def trim(self, count: int) -> None:
        """Unmap and cut to ``count`` entries, as on roll and clean close (F-137)."""
        if self.map is not None:
            self.map.close()
            self.map = None
        file = self.open_file()
        if file.size() != count * self.entry.size:
            file.truncate(count * self.entry.size)

    def read_entry(self, index: int) -> tuple[int, int]:
        """Raw entry: its big-endian fields as stored."""
        width = self.entry.size
        if self.map is not None:
            return self.entry.unpack_from(self.map.buffer, index * width)  # type: ignore[return-value]
        data = self.open_file().read_at(index * width, width)
        if len(data) < width:
            raise CorruptIndexError(self.path, index * width, "the file ends inside an entry")
        return self.entry.unpack(data)  # type: ignore[return-value]

    def clear_from(self, count: int, old_count: int) -> None:
        """Zero the slots of dropped entries, so that a reader of the live file stops there."""
        width = self.entry.size
        if self.map is not None:
            self.map.buffer[count * width : old_count * width] = bytes((old_count - count) * width)
        else:
            self.open_file().truncate(count * width)

    def replace(self, data: bytes) -> None:
        """Put a rebuilt index in place of the file's content (not mapped)."""
        file = self.open_file()
        file.truncate(0)
        if data:
            file.write_at(0, data)

    def bisect(self, count: int, above: Callable[[tuple[int, int]], bool]) -> int:
        """Number of leading entries for which ``above`` is false; O(log n) reads."""
        low, high = 0, count
        while low < high:
            middle = (low + high) // 2
            if above(self.read_entry(middle)):
                high = middle
            else:
                low = middle + 1
        return low

    def sync(self) -> None:
        if self._file is not None:
            self._file.sync()

    def close(self) -> None:
        if self.map is not None:
            self.map.close()
            self.map = None
        if self._file is not None:
            self._file.close()
            self._file = None


class OffsetIndex(_SparseIndex):
    """Relative offset -> position (F-112 … F-115)."""

    entry = OFFSET_ENTRY

    def lookup(self, target: int, count: int) -> OffsetPosition:
        """The last entry at or before ``target``, else ``(base_offset, 0)`` (F-114)."""
        relative = target - self.base_offset
        index = self.bisect(count, lambda e: e[0] > relative)
        if index == 0:
            return OffsetPosition(self.base_offset, 0)
        offset, position = self.read_entry(index - 1)
        return OffsetPosition(self.base_offset + offset, position)

    def upper_bound(self, position: int, count: int) -> OffsetPosition | None:
        """The first entry at or after ``position``, for a byte budget (F-114)."""
        index = self.bisect(count, lambda e: e[1] >= position)
        if index == count:
            return None
        offset, entry_position = self.read_entry(index)
        return OffsetPosition(self.base_offset + offset, entry_position)

    def count_below(self, offset: int, count: int) -> int:
        """Entries that stay when the log is cut at ``offset`` (F-115)."""
        relative = offset - self.base_offset
        return self.bisect(count, lambda e: e[0] >= relative)


class TimeIndex(_SparseIndex):
    """Largest timestamp so far -> relative offset (F-116 … F-120)."""

    entry = TIME_ENTRY

    def lookup(self, timestamp: int, count: int) -> TimestampOffset:
        """The last entry at or before ``timestamp``, else ``(-1, base_offset)``."""
        index = self.bisect(count, lambda e: e[0] > timestamp)
        return self.entry_at(index - 1)

    def entry_at(self, index: int) -> TimestampOffset:
        if index < 0:
            return TimestampOffset(-1, self.base_offset)
        timestamp, relative = self.read_entry(index)
        return TimestampOffset(timestamp, self.base_offset + relative)

    def count_below(self, offset: int, count: int) -> int:
        relative = offset - self.base_offset
        return self.bisect(count, lambda e: e[1] >= relative)


class TransactionIndex:
    """Aborted transactions whose marker lies in the segment (F-121 … F-125).

    The file exists only once there is an entry. Entries are few: they are read whole.
    """

    def __init__(self, storage: Storage, path: str, base_offset: int, size: int = 0) -> None:
        self.path = path
        self.base_offset = base_offset
        self._storage = storage
        self._count = size // TXN_ENTRY.size
        self._entries: list[AbortedTxn] | None = None if size else []
        self._dirty = False

    def entries(self) -> list[AbortedTxn]:
        """All entries.

        Raises:
            CorruptIndexError: an unknown version, or last offsets that do not ascend from base.
        """
        if self._entries is None:
            self._entries = self._parse(self._storage.read_file(self.path))
        return self._entries

    def _parse(self, data: bytes) -> list[AbortedTxn]:
        entries: list[AbortedTxn] = []
        previous = self.base_offset - 1
        for position in range(0, len(data) - TXN_ENTRY.size + 1, TXN_ENTRY.size):
            version, *values = TXN_ENTRY.unpack_from(data, position)
            if version != 0:
                raise CorruptIndexError(self.path, position, f"unknown version {version}")
            txn = AbortedTxn(*values)
            if txn.last_offset <= previous or txn.first_offset > txn.last_offset:
                raise CorruptIndexError(
                    self.path,
                    position,
                    f"last offset {txn.last_offset} does not ascend above {previous}",
                )
            previous = txn.last_offset
            entries.append(txn)
        return entries

    def append(self, txn: AbortedTxn) -> None:
        """Add an entry; its last offset must be above the previous one (F-122)."""
        entries = self.entries()
        if entries and txn.last_offset <= entries[-1].last_offset:
            raise ValueError(
                f"{self.path}: last offset {txn.last_offset} is not above "
                f"{entries[-1].last_offset}"
            )
        file = self._storage.open(self.path, create=True)
        try:
            file.write_at(len(entries) * TXN_ENTRY.size, TXN_ENTRY.pack(0, *txn))
        finally:
            file.close()
        entries.append(txn)
        self._dirty = True

    def truncate_to(self, offset: int) -> None:
        """Drop entries whose marker is at or after ``offset`` (F-124)."""
        entries = self.entries()
        keep = next((i for i, t in enumerate(entries) if t.last_offset >= offset), len(entries))
        if keep < len(entries):
            del entries[keep:]
            self._cut(keep)

    def reset(self) -> None:
        """Forget all entries, whatever the file holds; recovery writes them anew."""
        had_file = self._entries is None or bool(self._entries)
        self._entries = []
        if had_file:
            self._cut(0)

    def _cut(self, count: int) -> None:
        try:
            file = self._storage.open(self.path)
        except FileNotFoundError:
            return
        try:
            file.truncate(count * TXN_ENTRY.size)
        finally:
            file.close()
        self._dirty = True

    def collect(
        self, fetch_offset: int, upper_bound: int, into: list[AbortedTxn]
    ) -> bool:
        """Add the transactions that overlap the range; True when the search is over (F-125)."""
        for txn in self.entries():
            if txn.last_offset >= fetch_offset and txn.first_offset < upper_bound:
                into.append(txn)
            if txn.last_stable_offset >= upper_bound:
                return True
        return False

    def sync(self) -> None:
        if self._dirty:
            file = self._storage.open(self.path, create=True)
            try:
                file.sync()
            finally:
                file.close()
            self._dirty = False
