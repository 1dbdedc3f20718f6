"""Offset, time and transaction index of one segment, each over one file.

An index is a hint: it is rebuilt from the ``.log`` whenever it is missing or wrong, and a reader of
an entry checks that it points to a batch (docs/format.md, "Indexes"). Entry counts live in the
segment's ``SegmentState``, which writes new entries in native code; this module opens, searches,
cuts and trims. Matches Kafka's ``OffsetIndex``, ``TimeIndex`` and ``TransactionIndex``.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable
from contextlib import closing
from operator import attrgetter
from typing import NamedTuple, TypeAlias

from checkpoints.files import UnusableFileError
from checkpoints.loggers import get_logger
from logstore.common.errors import CorruptIndexError
from logstore.common.locks import Rank, make_lock
from logstore.format.index_entry import (
    OFFSET_ENTRY,
    TIME_ENTRY,
    TXN_ENTRY,
    AbortedTxn,
    decode_aborted,
)
from logstore.storage.aside import move_aside
from logstore.storage.base import File, Mapping, Storage

logger = get_logger(__name__)

Entry: TypeAlias = tuple[int, int]
_LAST_OFFSET = attrgetter("last_offset")


class OffsetPosition(NamedTuple):
    """``offset`` absolute, ``position`` in bytes of the ``.log``."""

    offset: int
    position: int


class TimestampOffset(NamedTuple):
    timestamp: int
    offset: int


class _SparseIndex:
    """A file of fixed-width, ascending entries; mapped while the segment is active."""

    entry: struct.Struct

    def __init__(self, storage: Storage, path: str, base_offset: int) -> None:
        self.path = path
        self.base_offset = base_offset
        self._storage = storage
        # Open while the segment is active. A lookup in another segment opens the file for itself,
        # because a broker has more segments than descriptors.
        self._file: File | None = None
        self._map: Mapping | None = None
        # Lookups run beside the writer, which maps and trims. They must never use a released
        # mapping.
        self._lock = make_lock(Rank.INDEX)

    def create(self) -> None:
        self._create().close()

    def _create(self) -> File:
        return self._storage.open(self.path, create=True)

    def activate(self, max_bytes: int) -> Mapping:
        """Extend to ``max_bytes`` rounded down to whole entries and map for appends (F-136)."""
        with self._lock:
            if self._map is None:
                self._file = self._create()
                self._map = self._file.map(max_bytes // self.entry.size * self.entry.size)
            return self._map

    def trim(self, count: int) -> None:
        """Unmap and cut to ``count`` entries, as on roll and clean close (F-137)."""
        with self._lock, closing(self._taken_file() or self._create()) as file:
            if file.size() != count * self.entry.size:
                file.truncate(count * self.entry.size)

    def rename(self, target: str) -> bool:
        """Rename the file; lookups then use the new name. False if there is no file."""
        with self._lock:
            return _renamed(self, self._storage, target)

    def clear_from(self, count: int, old_count: int) -> None:
        """Zero the slots of dropped entries, so that a reader of the live file stops there."""
        width = self.entry.size
        with self._lock:
            if self._map is not None:
                self._map.buffer[count * width : old_count * width] = bytes(
                    (old_count - count) * width
                )
                return
            with closing(self._storage.open(self.path)) as file:
                file.truncate(count * width)

    def replace(self, data: bytes) -> None:
        """Put a rebuilt index in place of the file's content, unmapping it first."""
        with self._lock:
            self._unmap()
            try:
                file = self._create()
            except UnusableFileError as error:
                logger.warning("%s; it becomes %s", error, move_aside(self._storage, self.path))
                file = self._create()
            with closing(file):
                # Never cut to nothing: ext4 writes such a file to the disk when it is closed.
                if file.size() > len(data):
                    file.truncate(len(data))
                if data:
                    file.write_at(0, data)

    def sync(self) -> None:
        with closing(self._create()) as file:
            file.sync()

    def close(self) -> None:
        with self._lock:
            self._unmap()

    def _unmap(self) -> None:
        file = self._taken_file()
        if file is not None:
            file.close()

    def _taken_file(self) -> File | None:
        """Unmap. Returns the file, which the caller closes."""
        if self._map is not None:
            self._map.close()
        file, self._map, self._file = self._file, None, None
        return file

    def _opened(self) -> closing[File]:
        """The file for a lookup. A missing or irregular file counts like a wrong entry."""
        return closing(_open_to_read(self._storage, self.path))

    def entries_at(
        self, count: int, above: Callable[[Entry], bool]
    ) -> tuple[int, Entry | None, Entry | None]:
        """Split ``count`` ascending entries where ``above`` turns true.

        Returns the number of leading entries for which it is false, the last of these, and the
        first for which it is true. Takes O(log n) reads of one entry.
        """
        with self._lock:
            if self._map is not None:
                return self._split(self._mapped_entry, count, above)
            with self._opened() as file:
                return self._split(lambda index: self._file_entry(file, index), count, above)

    def entries(self, count: int) -> list[Entry]:
        """The first ``count`` entries as stored, for checks."""
        size = count * self.entry.size
        with self._lock:
            if self._map is not None:
                data = bytes(self._map.buffer[:size])
            else:
                with self._opened() as file:
                    data = file.read_at(0, size)
        return list(self.entry.iter_unpack(data))

    def _split(
        self, read: Callable[[int], Entry], count: int, above: Callable[[Entry], bool]
    ) -> tuple[int, Entry | None, Entry | None]:
        low, high = 0, count
        before: Entry | None = None
        after: Entry | None = None
        while low < high:
            middle = (low + high) // 2
            entry = read(middle)
            if above(entry):
                high, after = middle, entry
            else:
                low, before = middle + 1, entry
        return low, before, after

    def _mapped_entry(self, index: int) -> Entry:
        assert self._map is not None
        try:
            return self.entry.unpack_from(self._map.buffer, index * self.entry.size)
        except struct.error:
            raise self._short(index) from None

    def _file_entry(self, file: File, index: int) -> Entry:
        data = file.read_at(index * self.entry.size, self.entry.size)
        if len(data) < self.entry.size:
            raise self._short(index)
        return self.entry.unpack(data)

    def _short(self, index: int) -> CorruptIndexError:
        return CorruptIndexError(
            self.path, index * self.entry.size, "the file ends inside an entry"
        )


class OffsetIndex(_SparseIndex):
    """Relative offset -> position (F-112 … F-115)."""

    entry = OFFSET_ENTRY

    def lookup(self, target: int, count: int) -> OffsetPosition:
        """The last entry at or before ``target``, else ``(base_offset, 0)`` (F-114)."""
        relative = target - self.base_offset
        _, entry, _ = self.entries_at(count, lambda e: e[0] > relative)
        if entry is None:
            return OffsetPosition(self.base_offset, 0)
        return OffsetPosition(self.base_offset + entry[0], entry[1])

    def last_two(self, count: int) -> tuple[OffsetPosition, OffsetPosition]:
        """The last two of ``count`` entries; ``count`` is at least 2."""
        size = 2 * self.entry.size
        with self._lock, closing(self._storage.open(self.path)) as file:
            data = file.read_at((count - 2) * self.entry.size, size)
        if len(data) < size:
            raise self._short(count - 2)
        before, last = (
            OffsetPosition(self.base_offset + relative, position)
            for relative, position in self.entry.iter_unpack(data)
        )
        return before, last

    def upper_bound(self, position: int, count: int) -> OffsetPosition | None:
        """The first entry at or after ``position``, for a byte budget (F-114)."""
        _, _, entry = self.entries_at(count, lambda e: e[1] >= position)
        return None if entry is None else OffsetPosition(self.base_offset + entry[0], entry[1])

    def count_below(self, offset: int, count: int) -> int:
        """Count the entries that remain when the log is truncated to ``offset`` (F-115)."""
        relative = offset - self.base_offset
        return self.entries_at(count, lambda e: e[0] >= relative)[0]


class TimeIndex(_SparseIndex):
    """Largest timestamp so far -> relative offset (F-116 … F-120)."""

    entry = TIME_ENTRY

    def lookup(self, timestamp: int, count: int) -> TimestampOffset:
        """The last entry at or before ``timestamp``, else ``(-1, base_offset)``."""
        return self._absolute(self.entries_at(count, lambda e: e[0] > timestamp)[1])

    def last(self, count: int) -> TimestampOffset:
        """The last of ``count`` entries, else ``(-1, base_offset)``."""
        if not count:
            return self._absolute(None)
        with self._lock:
            if self._map is not None:
                return self._absolute(self._mapped_entry(count - 1))
            with self._opened() as file:
                return self._absolute(self._file_entry(file, count - 1))

    def count_below(self, offset: int, count: int) -> int:
        relative = offset - self.base_offset
        return self.entries_at(count, lambda e: e[1] >= relative)[0]

    def _absolute(self, entry: Entry | None) -> TimestampOffset:
        if entry is None:
            return TimestampOffset(-1, self.base_offset)
        return TimestampOffset(entry[0], self.base_offset + entry[1])


class TransactionIndex:
    """Aborted transactions whose marker lies in the segment (F-121 … F-125).

    The file exists only once there is an entry. Entries are few, so all are read at once.
    """

    def __init__(self, storage: Storage, path: str, base_offset: int, size: int = 0) -> None:
        self.path = path
        self.base_offset = base_offset
        self._storage = storage
        self._count = size // TXN_ENTRY.size
        self._entries: list[AbortedTxn] | None = None if size else []
        self._dirty = False
        # Readers load the list while the writer appends to it. It only grows; a cut replaces it.
        self._lock = make_lock(Rank.INDEX)

    def entries(self) -> list[AbortedTxn]:
        """All entries.

        Raises:
            CorruptIndexError: an unknown version, or last offsets that do not ascend from base.
        """
        entries = self._entries
        if entries is not None:
            return entries
        with self._lock:
            return self._load()

    def _load(self) -> list[AbortedTxn]:
        if self._entries is None:
            self._entries = self._parse(self._read())
        return self._entries

    def _read(self) -> bytes:
        """The entries that the file had when the log was opened. Later ones are in memory."""
        with closing(_open_to_read(self._storage, self.path)) as file:
            return file.read_at(0, self._count * TXN_ENTRY.size)

    def _parse(self, data: bytes) -> list[AbortedTxn]:
        entries = decode_aborted(data, self.path)
        previous = self.base_offset - 1
        for number, txn in enumerate(entries):
            if txn.last_offset <= previous or txn.first_offset > txn.last_offset:
                raise CorruptIndexError(
                    self.path,
                    number * TXN_ENTRY.size,
                    f"last offset {txn.last_offset} does not ascend above {previous}",
                )
            previous = txn.last_offset
        return entries

    def append(self, *txns: AbortedTxn) -> None:
        """Add entries in one write; their last offsets must ascend above the previous (F-122)."""
        with self._lock:
            entries = self._load()
            last = entries[-1].last_offset if entries else -1
            for txn in txns:
                if txn.last_offset <= last:
                    raise ValueError(
                        f"{self.path}: last offset {txn.last_offset} is not above {last}"
                    )
                last = txn.last_offset
            with closing(self._storage.open(self.path, create=True)) as file:
                data = b"".join(TXN_ENTRY.pack(0, *txn) for txn in txns)
                file.write_at(len(entries) * TXN_ENTRY.size, data)
            entries.extend(txns)
            self._dirty = True

    def rename(self, target: str) -> bool:
        """Rename the file, as `_SparseIndex.rename`. The entries must have been read before."""
        with self._lock:
            return _renamed(self, self._storage, target)

    def truncate_to(self, offset: int) -> None:
        """Drop entries whose marker is at or after ``offset`` (F-124)."""
        with self._lock:
            entries = self._load()
            keep = [txn for txn in entries if txn.last_offset < offset]
            if len(keep) < len(entries):
                self._entries = keep
                self._truncate(len(keep))

    def reset(self) -> None:
        """Forget all entries, whatever the file holds. Recovery writes them again."""
        with self._lock:
            had_file = self._entries is None or bool(self._entries)
            self._entries = []
            if had_file:
                self._truncate(0)

    def _truncate(self, count: int) -> None:
        try:
            file = self._storage.open(self.path)
        except FileNotFoundError:
            return
        with closing(file):
            file.truncate(count * TXN_ENTRY.size)
        self._dirty = True

    def collect(self, fetch_offset: int, upper_bound: int, into: list[AbortedTxn]) -> bool:
        """Add the transactions that overlap the range; True when the search is over (F-125)."""
        entries = self.entries()
        for at in range(bisect_left(entries, fetch_offset, key=_LAST_OFFSET), len(entries)):
            txn = entries[at]
            if txn.first_offset < upper_bound:
                into.append(txn)
            if txn.last_stable_offset >= upper_bound:
                return True
        return False

    def sync(self) -> None:
        if self._dirty:
            with closing(self._storage.open(self.path, create=True)) as file:
                try:
                    self._dirty = False  # before: later entries need another sync
                    file.sync()
                except OSError:
                    self._dirty = True
                    raise


def _open_to_read(storage: Storage, path: str) -> File:
    try:
        return storage.open(path, writable=False)
    except UnusableFileError as error:
        raise CorruptIndexError(path, 0, error.reason) from error


def _renamed(index: _SparseIndex | TransactionIndex, storage: Storage, target: str) -> bool:
    try:
        storage.rename(index.path, target)
    except FileNotFoundError:
        return False
    index.path = target
    return True
