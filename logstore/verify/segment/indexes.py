"""Offset and time index of a segment, compared with its batches while they pass by.

A kernel compares all entries of a table of batches at once. Where it stops, the entries are judged
here one by one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Container

from logstore.kernels import match_offset_entries, match_time_entries
from logstore.verify.common.header_table import (
    BASE,
    MAGIC,
    MAX_TIMESTAMP,
    POSITION,
    HeaderTable,
)
from logstore.verify.common.report import UNKNOWN, error, info, warning
from logstore.verify.segment.index_entries import IndexEntries, IndexEntry

Reached = Callable[[int, int], bool]
"""Called with a row of the table and an offset: whether the record there is the first with the
largest timestamp of its batch. Some releases name that record in place of the last one. True where
it cannot be known.
"""

_SEVERAL_MAX = 100_000
"""How many entries of several batches are compared with the time index: enough for a segment of 400
MB.
"""


class Skipped(list[tuple[int, int]]):
    """Byte ranges of the ``.log`` that could not be read: entries that lead there prove nothing."""

    def touches(self, start: int, end: int) -> bool:
        return any(low <= end and start < high for low, high in self)


class OffsetIndexCheck:
    """Every entry points to the start of a batch and names the last offset of an append (F-113).

    The batches from that position to that offset were appended at once, so the next entry begins
    after them. The first append to a segment makes no entry (F-131). Kafka before 2.0 named the
    first offset of the append: that of the batch at the position.
    """

    def __init__(self, entries: IndexEntries) -> None:
        self._entries, self._problems = entries, entries.problems
        self._begun = False
        self._covered = UNKNOWN
        """Where the last batch of the entry ``_before`` begins."""
        self._before: IndexEntry | None = None
        self._due = entries.base
        """The offset behind the batches that were taken."""
        self.several: list[tuple[IndexEntry, int]] = []
        """Entries for several batches, and the largest timestamp up to their offset. Kafka before
        4.1 wrote one for an append of several (F-132).
        """
        self.several_count = 0

    def compare(self, table: HeaderTable, skipped: Skipped, largest: int) -> None:
        """Compare with the batches of a table. ``largest`` is the largest timestamp before them."""
        while True:
            if table.in_order and not self._begun:
                self._match(table, largest)
            entry = self._entries.peek()
            if entry is None or not self._check(entry, table, skipped, largest):
                break
        self._due = table.lasts[-1] + 1

    def _match(self, table: HeaderTable, largest: int) -> None:
        entries = self._entries
        while entries.load():
            first = entries.first
            entries.first, self._covered, several = match_offset_entries(
                entries.data,
                first,
                entries.end,
                table.columns,
                table.count,
                table.start,
                entries.base,
                largest,
                self._covered,
            )
            for number, stamp in several:
                self._note(entries.entry(number), stamp)
            if entries.first > first:
                self._before = entries.entry(entries.first - 1)
            if entries.first < entries.end:
                return

    def _note(self, entry: IndexEntry, largest: int) -> None:
        self.several_count += 1
        if len(self.several) < _SEVERAL_MAX:
            self.several.append((entry, largest))

    def _check(self, entry: IndexEntry, table: HeaderTable, skipped: Skipped, largest: int) -> bool:
        """Whether the entry was checked. Otherwise it waits for the next table."""
        positions, lasts = table.column(POSITION), table.lasts
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
        due = lasts[low - 1] + 1 if low else self._due
        # The header of a batch before magic 2 does not say where it begins, if it is compressed.
        first = table.column(BASE)[low] if table.column(MAGIC)[low] == 2 else entry.offset
        names_first = place == entry.key and due <= first == entry.offset
        if lasts[at] == entry.offset or names_first:
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
        """Finish after the log was read up to byte ``end``.

        Entries beyond it belong to the tail, which is reported already.
        """
        entry = self._entries.peek()
        if self._begun and entry is not None and not skipped.touches(entry.key, end):
            self._blame(entry, f"offset {entry.offset} is above the end of the log")
        self._entries.drain()  # only their order: what they point to is unreadable

    def check_several(self, timestamps: Container[int] | None) -> None:
        """Check that the time index has an entry for each entry of several batches (F-117, F-131).

        It needs none if it already had one with the largest timestamp up to there. ``timestamps``
        are the timestamps of all time entries, None if the time index cannot be used.
        """
        for entry, largest in self.several:
            if timestamps is not None and largest >= 0 and largest not in timestamps:
                message = f"offset {entry.offset} is not that of the batch at byte {entry.key}; of "
                message += "an append of several the time index would have the largest timestamp, "
                self._blame(entry, message + str(largest))
                self.several_count -= 1
        if self.several_count:
            message = f"{self.several_count} entries cover several batches: so Kafka before 4.1 "
            message += "wrote of an append of several, and a search finds the same"
            self._problems.append(info("index-skips-batches", message))

    def _blame(self, entry: IndexEntry, message: str) -> None:
        self._problems.append(error("index-entry", message, entry.place, entry.offset))


class TimeIndexCheck:
    """An entry has the largest timestamp of all records up to its offset (F-117)."""

    def __init__(self, entries: IndexEntries) -> None:
        self._entries, self._problems = entries, entries.problems
        self.largest = UNKNOWN
        self._last_key = UNKNOWN

    def compare(self, table: HeaderTable, largest: int, trusted: bool, reached: Reached) -> None:
        """Compare with a table whose largest timestamp is ``largest``, as `OffsetIndexCheck` does.

        Without ``trusted`` a batch before or in the table could not be read, so an entry may be
        right.
        """
        timestamps, lasts = table.column(MAX_TIMESTAMP), table.lasts
        done = 0
        while True:
            if table.in_order:
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
                    warning("timeindex-entry", message, entry.place, entry.offset)
                )
            elif trusted and entry.offset != lasts[at] and not reached(at, entry.offset):
                message = f"offset {entry.offset} is neither the last of its batch, {lasts[at]}, "
                message += f"nor the first with timestamp {entry.key}"
                self._problems.append(
                    warning("timeindex-entry", message, entry.place, entry.offset)
                )
            self._last_key = entry.key
            self._entries.advance()
        self.largest = max(self.largest, largest)

    def _match(self, table: HeaderTable, trusted: bool, done: int) -> int:
        entries = self._entries
        while entries.load():
            first = entries.first
            entries.first, done, self.largest = match_time_entries(
                entries.data,
                first,
                entries.end,
                table.columns,
                table.count,
                entries.base,
                trusted,
                done,
                self.largest,
            )
            if entries.first > first:
                self._last_key = entries.entry(entries.first - 1).key
            if entries.first < entries.end:
                break
        return done

    def _blame(self, entry: IndexEntry, own: int) -> None:
        if self.largest != entry.key:
            message = f"timestamp {entry.key} up to offset {entry.offset}, "
            message += f"the log has {self.largest}"
            self._problems.append(error("timeindex-entry", message, entry.place, entry.offset))
        else:
            message = f"timestamp {entry.key} was reached before offset {entry.offset}, "
            message += f"which has {own}"
            self._problems.append(warning("timeindex-entry", message, entry.place, entry.offset))

    def timestamps(self) -> set[int] | None:
        """The timestamps of all entries; None if something is wrong with them."""
        return None if self._problems else self._entries.timestamps()

    def finish(self, closed: bool, trusted: bool) -> None:
        """``closed``: rolled or cleanly shut down, so there is a final entry (F-135)."""
        while (entry := self._entries.peek()) is not None:
            if trusted:
                message = f"offset {entry.offset} is above the end of the log"
                self._problems.append(error("timeindex-entry", message, entry.place, entry.offset))
            self._last_key = entry.key
            self._entries.advance()
        if closed and trusted and self._last_key < self.largest:
            message = f"ends with timestamp {self._last_key}, the segment has {self.largest}"
            self._problems.append(warning("timeindex-last-entry", message))
