"""Offset and time index of a segment, compared with its batches while they pass by.

Where entries are as they should be, a kernel compares all those of a table of batches at once.
What it stops at is judged here, entry by entry.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from logstore.kernels import match_offset_entries, match_time_entries
from logstore.verify.common.header_table import MAGIC, MAX_TIMESTAMP, POSITION, BatchTable
from logstore.verify.common.report import UNKNOWN, Problem, error, info, warning
from logstore.verify.segment.index_entries import Entry, IndexEntries

Reached = Callable[[int, int], bool]
"""Whether the record at an offset is the first that has the largest timestamp of its batch, a row
of the table: some releases name it in place of the last one. True where that cannot be told."""

_SEVERAL_MAX = 100_000
"""Entries of several batches that are compared with the time index: all of a segment of 400 MB."""


@dataclass(slots=True)
class Skipped:
    """Stretches of the ``.log`` that could not be read: entries that lead there prove nothing."""

    ranges: list[tuple[int, int]]

    def add(self, start: int, end: int) -> None:
        self.ranges.append((start, end))

    def touches(self, start: int, end: int) -> bool:
        return any(low <= end and start < high for low, high in self.ranges)


class Several(NamedTuple):
    """An entry that covers several batches, as Kafka before 4.1 made for an append of them (F-132).
    ``largest`` is the largest timestamp up to its offset."""

    entry: Entry
    largest: int


class OffsetIndexCheck:
    """Every entry leads to the start of a batch, and names the last offset of one there (F-113).

    What one covers, from its batch to the one with its offset, was appended at once: the next one
    begins behind. The first append to a segment makes none (F-131).
    """

    def __init__(self, entries: IndexEntries, problems: list[Problem]) -> None:
        self._entries = entries
        self._problems = problems
        self._begun = False
        self._covered = UNKNOWN
        """Where the last batch begins that an entry covers; ``_before`` is that entry."""
        self._before: Entry | None = None
        self.several: list[Several] = []
        self.several_count = 0

    def take(
        self,
        table: BatchTable,
        lasts: Sequence[int],
        in_order: bool,
        skipped: Skipped,
        largest: int,
    ) -> None:
        """Compare with batches whose last offsets are ``lasts``: those of the table itself when
        they are ``in_order``. ``largest`` is the largest timestamp before them."""
        while True:
            if in_order and not self._begun:
                self._match(table, largest)
            entry = self._entries.peek()
            if entry is None or not self._judge(entry, table, lasts, skipped, largest):
                return

    def _match(self, table: BatchTable, largest: int) -> None:
        entries = self._entries
        while entries.load():
            first = entries.first
            entries.first, self._covered, several = match_offset_entries(
                entries.data, first, entries.end, table.columns, table.count, table.start,
                entries.base, largest, self._covered,
            )  # fmt: skip
            for number, stamp in several:
                self._note(entries.entry(number), stamp)
            if entries.first > first:
                self._before = entries.entry(entries.first - 1)
            if entries.first < entries.end:
                return

    def _note(self, entry: Entry, largest: int) -> None:
        self.several_count += 1
        if len(self.several) < _SEVERAL_MAX:
            self.several.append(Several(entry, largest))

    def _judge(
        self,
        entry: Entry,
        table: BatchTable,
        lasts: Sequence[int],
        skipped: Skipped,
        largest: int,
    ) -> bool:
        """Whether the entry is done with; else it waits for the next table."""
        positions = table.column(POSITION)
        low = 0
        if not self._begun:
            if entry.key >= table.end:
                return False
            position = entry.key - table.start
            low = bisect_left(positions, position)
            if low == len(positions) or positions[low] != position:
                if not skipped.touches(entry.key, entry.key + 1):
                    self._blame(entry, f"position {entry.key} is not where a batch starts")
                self._entries.advance()
                return True
            if entry.key <= self._covered and self._before is not None:
                before = self._before
                message = f"covers the batches up to byte {self._covered}, and the next entry "
                self._blame(before, message + f"leads to byte {entry.key}")
                self._covered = UNKNOWN
            if not entry.key:
                self._blame(entry, "leads to the first batch, for which none is made")
            self._begun = True
        at = bisect_left(lasts, entry.offset, low)
        if at == len(lasts):
            return False
        place = table.start + positions[at]
        if lasts[at] == entry.offset:
            self._covered, self._before = place, entry
            if place > entry.key:
                reached = max([largest, *table.column(MAX_TIMESTAMP)[: at + 1]])
                self._note(entry, reached)
        elif not skipped.touches(entry.key, place):
            message = f"no batch from position {entry.key} on ends at offset {entry.offset}"
            self._blame(entry, message)
        self._entries.advance()
        self._begun = False
        return True

    def finish(self, end: int, skipped: Skipped) -> None:
        """The log is read up to byte ``end``; entries beyond belong to a tail told of already."""
        entry = self._entries.peek()
        if self._begun and entry is not None and not skipped.touches(entry.key, end):
            self._blame(entry, f"offset {entry.offset} is above the end of the log")
        self._entries.drain()  # order alone: what they lead to is unreadable

    def check_several(self, timestamps: Container[int] | None) -> None:
        """The time index got an entry together with each of them, unless it had one with the
        largest timestamp up to there already (F-117, F-131). ``timestamps`` are those of all its
        entries, None when it cannot be asked."""
        for entry, largest in self.several:
            if timestamps is not None and largest >= 0 and largest not in timestamps:
                message = f"offset {entry.offset} is not that of the batch at byte {entry.key}; of "
                message += "an append of several the time index would have the largest timestamp, "
                self._blame(entry, message + str(largest))
                self.several_count -= 1
        if self.several_count:
            message = f"{self.several_count} entries cover several batches: so Kafka before 4.1 "
            message += "wrote of an append of several, and a search finds the same"
            self._problems.append(info("index-skips-batches", UNKNOWN, UNKNOWN, message))

    def _blame(self, entry: Entry, message: str) -> None:
        self._problems.append(error("index-entry", entry.place, entry.offset, message))


class TimeIndexCheck:
    """Up to an entry's offset no timestamp is larger, and its own is reached there (F-117)."""

    def __init__(self, entries: IndexEntries, problems: list[Problem]) -> None:
        self._entries = entries
        self._problems = problems
        self.largest = UNKNOWN
        self._last_key = UNKNOWN

    def take(
        self,
        table: BatchTable,
        lasts: Sequence[int],
        in_order: bool,
        largest: int,
        trusted: bool,
        reached: Reached,
    ) -> None:
        """Compare with a table whose largest timestamp is ``largest``; see ``OffsetIndexCheck``.

        Not ``trusted``: a batch before or in it could not be read, so an entry may be right.
        """
        timestamps = table.column(MAX_TIMESTAMP)
        done = 0
        while True:
            if in_order:
                done = self._match(table, trusted, done)
            entry = self._entries.peek()
            if entry is None or entry.offset > lasts[-1]:
                break
            at = bisect_left(lasts, entry.offset)
            before = max([self.largest, *timestamps[done:at]])
            if at >= done:
                self.largest = max(before, timestamps[at])
                done = at + 1
            if trusted and (self.largest != entry.key or timestamps[at] != entry.key):
                self._blame(entry, timestamps[at])
            elif trusted and before == entry.key and table.column(MAGIC)[at] == 2:
                message = f"timestamp {entry.key} was reached before offset {entry.offset}"
                self._problems.append(
                    warning("timeindex-entry", entry.place, entry.offset, message)
                )
            elif trusted and entry.offset != lasts[at] and not reached(at, entry.offset):
                message = f"offset {entry.offset} is neither the last of its batch, {lasts[at]}, "
                message += f"nor the first with timestamp {entry.key}"
                self._problems.append(
                    warning("timeindex-entry", entry.place, entry.offset, message)
                )
            self._last_key = entry.key
            self._entries.advance()
        self.largest = max(self.largest, largest)

    def _match(self, table: BatchTable, trusted: bool, done: int) -> int:
        entries = self._entries
        while entries.load():
            first = entries.first
            entries.first, done, self.largest = match_time_entries(
                entries.data, first, entries.end, table.columns, table.count, entries.base,
                trusted, done, self.largest,
            )  # fmt: skip
            if entries.first > first:
                self._last_key = entries.entry(entries.first - 1).key
            if entries.first < entries.end:
                break
        return done

    def _blame(self, entry: Entry, own: int) -> None:
        if self.largest != entry.key:
            message = f"timestamp {entry.key} up to offset {entry.offset}, "
            message += f"the log has {self.largest}"
            self._problems.append(error("timeindex-entry", entry.place, entry.offset, message))
        else:
            message = f"timestamp {entry.key} was reached before offset {entry.offset}, "
            message += f"which has {own}"
            self._problems.append(warning("timeindex-entry", entry.place, entry.offset, message))

    def timestamps(self) -> set[int] | None:
        """Those of all entries; None when there is something wrong with them."""
        return None if self._problems else self._entries.timestamps()

    def finish(self, closed: bool, trusted: bool) -> None:
        """``closed``: rolled or cleanly shut down, hence with a final entry (F-135)."""
        while (entry := self._entries.peek()) is not None:
            if trusted:
                message = f"offset {entry.offset} is above the end of the log"
                self._problems.append(error("timeindex-entry", entry.place, entry.offset, message))
            self._last_key = entry.key
            self._entries.advance()
        if closed and trusted and self._last_key < self.largest:
            message = f"ends with timestamp {self._last_key}, the segment has {self.largest}"
            self._problems.append(warning("timeindex-last-entry", UNKNOWN, UNKNOWN, message))
