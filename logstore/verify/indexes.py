"""Offset and time index of a segment, checked entry by entry while its batches pass by.

An index is read in small pieces: it may be as large as its segment allows, or hostile.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from logstore.format.index_entry import OFFSET_ENTRY, TIME_ENTRY
from logstore.storage.base import File
from logstore.verify.report import UNKNOWN, Problem, error, warning

_PIECE_ENTRIES = 8192


class Entry(NamedTuple):
    """``key`` is the byte position or the timestamp; ``place`` the byte in the index file."""

    place: int
    offset: int
    key: int


@dataclass(slots=True)
class Skipped:
    """Stretches of the ``.log`` that could not be read: entries that lead there prove nothing."""

    ranges: list[tuple[int, int]]

    def add(self, start: int, end: int) -> None:
        self.ranges.append((start, end))

    def touches(self, start: int, end: int) -> bool:
        return any(low <= end and start < high for low, high in self.ranges)


def used_size(file: File, layout: struct.Struct) -> tuple[int, int]:
    """Bytes before the zero tail, and of the whole file; one that ends in an entry of zeros.

    The first time entry may be all zeros and real; see ``used_time_entries``.
    """
    width, size = layout.size, file.size()
    step, end = width * _PIECE_ENTRIES, size // width * width
    while end:
        start = max(0, (end - 1) // step * step)
        data = file.read_at(start, end - start)
        kept = len(data.rstrip(b"\0"))
        if kept:
            return start + -(-kept // width) * width, size
        end = start
    return 0, size


def read_entries(file: File, layout: struct.Struct, end: int, base: int) -> Iterator[Entry]:
    """The entries before ``end`` as ``(place, absolute offset, position or timestamp)``."""
    width = layout.size
    position_first = layout is OFFSET_ENTRY
    for start in range(0, end, width * _PIECE_ENTRIES):
        data = file.read_at(start, min(width * _PIECE_ENTRIES, end - start))
        whole = memoryview(data)[: len(data) // width * width]
        for index, (one, two) in enumerate(layout.iter_unpack(whole)):
            relative, key = (one, two) if position_first else (two, one)
            yield Entry(start + index * width, base + relative, key)


def ascending(
    entries: Iterator[Entry], rule: str, problems: list[Problem], strict_offsets: bool
) -> Iterator[Entry]:
    """Give out the entries that ascend (F-114, F-118), and tell of the others.

    Of two that contradict each other the first is at fault when the next two both do without it.
    """
    slack = 0 if strict_offsets else 1

    def before(one: Entry, two: Entry) -> bool:
        return one.key < two.key and one.offset < two.offset + slack

    def blame(entry: Entry, other: Entry) -> None:
        message = f"{entry.offset}→{entry.key} does not ascend beside {other.offset}→{other.key}"
        problems.append(error(rule, entry.place, entry.offset, message))

    previous: Entry | None = None
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


class OffsetIndexCheck:
    """Every entry leads to the start of a batch, and names the last offset of one there (F-113)."""

    def __init__(self, entries: Iterator[Entry], problems: list[Problem], log_size: int) -> None:
        self._problems = problems
        inside = self._inside(entries, log_size)
        self._entries = ascending(inside, "F-114", problems, strict_offsets=True)
        self._next = next(self._entries, None)
        self._begun = False

    def _inside(self, entries: Iterator[Entry], log_size: int) -> Iterator[Entry]:
        for entry in entries:
            if 0 <= entry.key < log_size:
                yield entry
            else:
                message = f"position {entry.key} is outside the log of {log_size} bytes"
                self._problems.append(error("F-113", entry.place, entry.offset, message))

    def take(
        self, positions: Sequence[int], lasts: Sequence[int], end: int, skipped: Skipped
    ) -> None:
        """Batches of a table, which ends at byte ``end`` of the log."""
        low = 0
        while (entry := self._next) is not None:
            if not self._begun:
                if entry.key >= end:
                    return
                low = bisect_left(positions, entry.key)
                if low == len(positions) or positions[low] != entry.key:
                    if not skipped.touches(entry.key, entry.key + 1):
                        message = f"position {entry.key} is not where a batch starts"
                        self._blame(entry, message)
                    self._advance()
                    continue
                self._begun = True
            at = bisect_left(lasts, entry.offset, low)
            if at == len(lasts):
                return
            if lasts[at] != entry.offset and not skipped.touches(entry.key, positions[at]):
                message = f"no batch from position {entry.key} on ends at offset {entry.offset}"
                self._blame(entry, message)
            self._advance()

    def finish(self, end: int, skipped: Skipped) -> None:
        """The log is read up to byte ``end``; entries beyond belong to a tail told of already."""
        if self._begun and self._next is not None and not skipped.touches(self._next.key, end):
            self._blame(self._next, f"offset {self._next.offset} is above the end of the log")
        for _ in self._entries:
            pass  # order alone: what they lead to is unreadable

    def _blame(self, entry: Entry, message: str) -> None:
        self._problems.append(error("F-113", entry.place, entry.offset, message))

    def _advance(self) -> None:
        self._next, self._begun = next(self._entries, None), False


class TimeIndexCheck:
    """Up to an entry's offset no timestamp is larger, and its own is reached there (F-117)."""

    def __init__(self, entries: Iterator[Entry], problems: list[Problem]) -> None:
        self._problems = problems
        self._entries = ascending(entries, "F-118", problems, strict_offsets=False)
        self._next = next(self._entries, None)
        self.largest = UNKNOWN
        self.last_entry: Entry | None = None

    def take(self, lasts: Sequence[int], timestamps: Sequence[int], trusted: bool) -> None:
        """The largest timestamps of a table of batches. Not ``trusted``: one could not be read."""
        done = 0
        while (entry := self._next) is not None and entry.offset <= lasts[-1]:
            at = bisect_left(lasts, entry.offset)
            if at >= done:
                self.largest = max(self.largest, max(timestamps[done : at + 1]))
                done = at + 1
            if trusted and (self.largest != entry.key or timestamps[at] != entry.key):
                self._blame(entry, self.largest, timestamps[at])
            self.last_entry, self._next = entry, next(self._entries, None)
        if done < len(timestamps):
            self.largest = max(self.largest, max(timestamps[done:]))

    def _blame(self, entry: Entry, largest: int, own: int) -> None:
        if self.largest != entry.key:
            message = f"timestamp {entry.key} up to offset {entry.offset}, the log has {largest}"
            self._problems.append(error("F-117", entry.place, entry.offset, message))
        else:
            message = f"timestamp {entry.key} was reached before offset {entry.offset}, "
            message += f"which has {own}"
            self._problems.append(warning("F-117", entry.place, entry.offset, message))

    def finish(self, closed: bool, trusted: bool) -> None:
        """``closed``: rolled or cleanly shut down, hence with a final entry (F-135)."""
        while self._next is not None:
            if trusted:
                message = f"offset {self._next.offset} is above the end of the log"
                self._problems.append(error("F-117", self._next.place, self._next.offset, message))
            self.last_entry, self._next = self._next, next(self._entries, None)
        known = self.last_entry.key if self.last_entry else UNKNOWN
        if closed and trusted and known < self.largest:
            message = f"ends with timestamp {known}, the segment has {self.largest}"
            self._problems.append(warning("F-135", UNKNOWN, UNKNOWN, message))


__all__ = [
    "OFFSET_ENTRY",
    "TIME_ENTRY",
    "OffsetIndexCheck",
    "Skipped",
    "TimeIndexCheck",
    "read_entries",
    "used_size",
]
