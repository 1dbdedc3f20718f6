"""The entries of an offset or time index, in pieces, and their order among themselves.

An index is read in small pieces: it may be as large as its segment allows, or hostile.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from logstore.format.index_entry import OFFSET_ENTRY, TIME_ENTRY
from logstore.kernels import ascending_offset_entries, ascending_time_entries
from logstore.storage.base import File
from logstore.verify.common.report import Problem, error

_PIECE_ENTRIES = 8192


class IndexEntry(NamedTuple):
    """``key`` is the byte position or the timestamp; ``place`` the byte in the index file."""

    place: int
    offset: int
    key: int


def used_size(file: File, layout: struct.Struct) -> tuple[int, int]:
    """The bytes before the zero tail, and the bytes of the whole file.

    A real first time entry may be all zeros; ``used_time_entries`` decides about it.
    """
    width, size = layout.size, file.size()
    step, end = width * _PIECE_ENTRIES, size // width * width
    zeros = bytes(step)
    while end:
        start = max(0, (end - 1) // step * step)
        data = file.read_at(start, end - start)
        if data == zeros[: len(data)]:
            end = start
            continue
        kept = len(data.rstrip(b"\0"))
        return start + -(-kept // width) * width, size
    return 0, size


class IndexEntries:
    """The ascending entries before byte ``end`` of an index; others are reported (F-114, F-118).

    Loaded entries are ``first`` to ``end`` of ``data``, as in the file, and are judged as a whole.
    From the first fault on no entries are loaded: ``peek`` gives them one by one.

    Args:
        file: None for an index that does not exist; ``end`` is then 0.
        log_size: positions of an offset index lie below it (F-113).
    """

    def __init__(
        self,
        file: File | None,
        layout: struct.Struct,
        end: int,
        base: int,
        problems: list[Problem],
        log_size: int = 0,
    ) -> None:
        self.base = base
        self.data = b""
        self.first = self.end = 0
        self._file, self._layout, self._file_end = file, layout, end
        self.problems, self._log_size = problems, log_size
        self._place = 0  # in the file, of data[0]
        self._one_by_one: Iterator[IndexEntry] | None = None
        self._next: IndexEntry | None = None

    def load(self) -> bool:
        """Load entries, if there are more that can be judged as a whole."""
        if self.first < self.end:
            return True
        if self._one_by_one is not None or self._file is None:
            return False
        width = self._layout.size
        given = 1 if self.end else 0  # the entry before is read again, to compare with
        previous = self.entry(self.first - 1) if given else None
        self._place += (self.first - given) * width
        want = min(width * _PIECE_ENTRIES, self._file_end - self._place)
        self.data = self._file.read_at(self._place, want)
        whole = len(self.data) // width
        sound = self._ascending()
        # Whether the last one is right depends on the entries after it, if there are any.
        last = self._place + want >= self._file_end or len(self.data) < want
        self.first, self.end = given, sound if last and sound == whole else sound - 1
        if self.first < self.end:
            return True
        self._fall_back(given, previous)
        return False

    def _ascending(self) -> int:
        if self._layout is OFFSET_ENTRY:
            return ascending_offset_entries(self.data, self._log_size)
        return ascending_time_entries(self.data)

    def _fall_back(self, given: int, previous: IndexEntry | None) -> None:
        """Give the entries one by one from here on."""
        self.first = self.end = 0
        self._one_by_one = _ascending_entries(
            self._inside(self._place + given * self._layout.size),
            "index-order" if self._layout is OFFSET_ENTRY else "timeindex-order",
            self.problems,
            self._layout is OFFSET_ENTRY,
            previous,
        )
        self._next = next(self._one_by_one, None)

    def entry(self, number: int) -> IndexEntry:
        """The entry of ``data`` with this number."""
        return self._entry(self.data, number * self._layout.size, self._place)

    def _entry(self, data: bytes, at: int, place: int) -> IndexEntry:
        one, two = self._layout.unpack_from(data, at)
        relative, key = (one, two) if self._layout is OFFSET_ENTRY else (two, one)
        return IndexEntry(place + at, self.base + relative, key)

    def peek(self) -> IndexEntry | None:
        return self.entry(self.first) if self.load() else self._next

    def advance(self) -> None:
        """Pass the entry that ``peek`` gave."""
        if self.first < self.end:
            self.first += 1
        elif self._one_by_one is not None:
            self._next = next(self._one_by_one, None)

    def timestamps(self) -> set[int]:
        """The timestamps of all entries of a time index."""
        found: set[int] = set()
        step = TIME_ENTRY.size * _PIECE_ENTRIES
        for place in range(0, self._file_end if self._file else 0, step):
            assert self._file is not None
            data = self._file.read_at(place, min(step, self._file_end - place))
            whole = len(data) // TIME_ENTRY.size * TIME_ENTRY.size
            found.update(timestamp for timestamp, _ in TIME_ENTRY.iter_unpack(data[:whole]))
        return found

    def drain(self) -> None:
        """Read to the end, to check the order of the remaining entries."""
        while self.load():
            self.first = self.end
        while self._next is not None:
            self.advance()

    def _inside(self, start: int) -> Iterator[IndexEntry]:
        """The entries from byte ``start`` of the file on, except those with a position outside the
        log.
        """
        assert self._file is not None
        width = self._layout.size
        step = width * _PIECE_ENTRIES
        for place in range(start, self._file_end, step):
            data = self._file.read_at(place, min(step, self._file_end - place))
            for at in range(0, len(data) // width * width, width):
                entry = self._entry(data, at, place)
                if self._layout is not OFFSET_ENTRY or 0 <= entry.key < self._log_size:
                    yield entry
                else:
                    message = f"position {entry.key} is outside the log of {self._log_size} bytes"
                    self.problems.append(error("index-entry", message, entry.place, entry.offset))


def _ascending_entries(
    entries: Iterator[IndexEntry],
    rule: str,
    problems: list[Problem],
    strict_offsets: bool,
    previous: IndexEntry | None,
) -> Iterator[IndexEntry]:
    """Yield the entries that ascend from ``previous``, and report the others.

    If two entries contradict each other, the first is at fault if the next two agree without it.
    """
    slack = 0 if strict_offsets else 1

    def before(one: IndexEntry, two: IndexEntry) -> bool:
        return one.key < two.key and one.offset < two.offset + slack

    def blame(entry: IndexEntry, other: IndexEntry) -> None:
        message = f"{entry.offset}→{entry.key} does not ascend beside {other.offset}→{other.key}"
        problems.append(error(rule, message, entry.place, entry.offset))

    held = deque(islice(entries, 2))
    while held:
        entry = held.popleft()
        held.extend(islice(entries, 1))
        if previous is not None and not before(previous, entry):
            blame(entry, previous)
            continue
        if len(held) == 2 and not before(entry, held[0]) and not before(entry, held[1]):
            blame(entry, held[0])
            continue
        previous = entry
        yield entry
