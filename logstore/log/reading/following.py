"""Follow a log: records as they arrive, in this thread or in an event loop.

``Follower`` waits and counts. A ``Source`` provides the records, from an open log (``LogSource``)
or from a directory that another process writes (``directory_reader``).
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import NamedTuple, Protocol

from logstore.common.clock import Clock
from logstore.common.errors import LogstoreError, LogTruncatedError, OffsetOutOfRangeError
from logstore.common.types import Record
from logstore.format.reader import iter_batches
from logstore.log.core import LogCore
from logstore.log.listeners import NO_TRUNCATION, TruncationWatch
from logstore.log.reading.fetching import EARLIEST, LATEST, FetchData
from logstore.log.reading.snapshot_reader import LogReader

FETCH_BYTES = 1 << 20  # bytes read at a time


class FetchedRecords(NamedTuple):
    """Records, perhaps none, and the offset to continue from."""

    records: list[Record]
    next_offset: int


class Source(Protocol):
    """The source of a follower's records."""

    @property
    def clock(self) -> Clock: ...

    @property
    def watch(self) -> TruncationWatch:
        """The watch that is notified of truncations, if the source knows them."""
        ...

    def range(self) -> tuple[int, int]:
        """The readable range: the first offset, and the one after the last."""
        ...

    def fetch(self, offset: int) -> FetchedRecords | None:
        """The records at or after ``offset``; None if there are none yet.

        Raises:
            OffsetOutOfRangeError: the next records were deleted.
            LogTruncatedError: earlier records were cut off.
        """
        ...

    def wait(self, offset: int, timeout: float | None) -> bool:
        """Wait until ``fetch`` may return records. False after ``timeout`` seconds."""
        ...

    async def wait_async(self, offset: int, timeout: float | None) -> bool:
        """As ``wait``, without blocking the event loop."""
        ...


class Follower(Iterator[Record]):
    """The records of a log as they arrive. For one thread, or one task, at a time.

    ``timeout``: the iteration ends after so many seconds without a record; never if None. It may be
    continued.
    """

    def __init__(self, source: Source, start: int | None, timeout: float | None) -> None:
        self._source = source
        self._watch = source.watch
        self._timeout = timeout
        self._fetched = _start_of(source, start)
        self._ready: list[Record] = []  # fetched but not returned yet
        self._given = 0  # of these
        self._failure: LogstoreError | None = None  # to be raised instead of the next read

    @property
    def position(self) -> int:
        """The offset of the next record, which may not exist yet."""
        if self._given < len(self._ready):
            return self._ready[self._given].offset
        return self._fetched

    def seek(self, offset: int) -> None:
        """Continue at ``offset``, which is checked at the next read."""
        self._ready, self._given, self._fetched, self._failure = [], 0, offset, None

    def __iter__(self) -> Follower:
        return self

    def __next__(self) -> Record:
        if not self._has_record(self._timeout):
            raise StopIteration
        self._given += 1
        return self._ready[self._given - 1]

    def chunks(self) -> Iterator[list[Record]]:
        """As the iteration, in lists of all available records, which is faster."""
        while chunk := self.poll(timeout=self._timeout):
            yield chunk

    def poll(self, max_records: int | None = None, timeout: float | None = 0.0) -> list[Record]:
        """The available records, at most ``max_records`` (None: all of one read).

        If there is none, waits up to ``timeout`` seconds (None: forever), and returns an empty list
        after that.
        """
        if not self._has_record(timeout):
            return []
        wanted = len(self._ready) - self._given if max_records is None else max(max_records, 1)
        records = self._take_ready(wanted)
        while len(records) < wanted:
            try:
                if not self._fill(0.0):
                    break
            except LogstoreError as error:
                self._failure = error  # for the next call, because these records are good
                break
            records += self._take_ready(wanted - len(records))
        return records

    def _take_ready(self, most: int) -> list[Record]:
        first = self._given
        self._given = min(len(self._ready), first + most)
        return self._ready[first : self._given]

    async def records_async(self) -> AsyncIterator[Record]:
        """As the iteration, for an event loop. Files are read in its default executor."""
        while True:
            while self._is_ready():
                self._given += 1
                yield self._ready[self._given - 1]
            if not await self._fill_async(self._timeout):
                return

    # -- filling -------------------------------------------------------------------------------

    def _is_ready(self) -> bool:
        """Whether a fetched record is available. Truncated ones are dropped."""
        if self._watch.lowest < NO_TRUNCATION:
            self.seek(self.position)
        return self._given < len(self._ready)

    def _has_record(self, timeout: float | None) -> bool:
        return self._is_ready() or self._fill(timeout)

    def _fill(self, timeout: float | None) -> bool:
        deadline = self._deadline(timeout)
        while True:
            self._check()
            portion = self._source.fetch(self._fetched)
            if portion is None:
                if not self._source.wait(self._fetched, self._left(deadline)):
                    return False
            elif self._keep_records(portion):
                return True

    async def _fill_async(self, timeout: float | None) -> bool:
        import asyncio  # 40 ms, which code on an event loop has paid already

        deadline = self._deadline(timeout)
        while True:
            self._check()
            portion = await asyncio.to_thread(self._source.fetch, self._fetched)
            if portion is None:
                if not await self._source.wait_async(self._fetched, self._left(deadline)):
                    return False
            elif self._keep_records(portion):
                return True

    def _check(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _keep_records(self, portion: FetchedRecords) -> bool:
        self._ready, self._given = portion.records, 0
        self._fetched = portion.next_offset
        return bool(portion.records)

    def _deadline(self, timeout: float | None) -> float | None:
        return None if timeout is None else self._now() + timeout

    def _left(self, deadline: float | None) -> float | None:
        return None if deadline is None else max(deadline - self._now(), 0.0)

    def _now(self) -> float:
        return self._source.clock.monotonic_ns() / 1e9


def _start_of(source: Source, start: int | None) -> int:
    first, end = source.range()
    if start is None or start == EARLIEST:
        return first
    if start == LATEST:
        return end
    return start


class LogSource:
    """An open log of this process, up to the high watermark or the last stable offset."""

    def __init__(self, core: LogCore, readers: LogReader, name: str, committed: bool) -> None:
        self._core = core
        self._readers = readers
        self._name = name
        self._committed = committed
        self.watch: TruncationWatch = core.listeners.new_watch()
        self._version = readers.current().version

    @property
    def clock(self) -> Clock:
        return self._core.clock

    def range(self) -> tuple[int, int]:
        return self._readers.current().log_start_offset, self._limit()

    def check(self, offset: int) -> None:
        """Raises ``OffsetOutOfRangeError`` unless ``offset`` is in [log start, log end]."""
        self._readers.check_range(self._readers.current(), offset)

    def _limit(self) -> int:
        snapshot = self._readers.current()
        limit: int = snapshot.high_watermark
        return min(limit, snapshot.last_stable_offset) if self._committed else limit

    def fetch(self, offset: int) -> FetchedRecords | None:
        while True:
            self._version = self._readers.current().version
            try:
                found = self._readers.read(
                    offset, FETCH_BYTES, True, self._limit(), self._committed
                )
            except OffsetOutOfRangeError as error:
                if offset > error.end:
                    raise LogTruncatedError(self._name, offset, error.start, error.end) from None
                raise
            portion = _portion(found)
            lowest = self._core.listeners.take_truncation(self.watch)
            if lowest < offset:
                snapshot = self._readers.current()
                raise LogTruncatedError(self._name, offset, snapshot.log_start_offset, lowest)
            if portion is None or portion.next_offset <= lowest:
                return portion
            # Truncated during the read, so other records are here now.

    def _has_changed(self, offset: int) -> bool:
        core = self._core
        if core.unreadable is not None or core.snapshot.version != self._version:
            return True
        return offset < self._limit()

    def _check_wait(self, timeout: float | None) -> None:
        """
        Raises:
            ForkedError: no other process wakes the readers of this one.
        """
        if timeout != 0.0:
            self._core.check_owner()

    def wait(self, offset: int, timeout: float | None) -> bool:
        self._check_wait(timeout)
        event = threading.Event()
        wake = event.set
        self._core.listeners.add(wake)
        try:
            return self._has_changed(offset) or event.wait(timeout)
        finally:
            self._core.listeners.discard(wake)

    async def wait_async(self, offset: int, timeout: float | None) -> bool:
        import asyncio

        self._check_wait(timeout)
        loop, event = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(event.set)

        self._core.listeners.add(wake)
        try:
            if self._has_changed(offset):
                return True
            await asyncio.wait_for(event.wait(), timeout)
        except TimeoutError:
            return False
        finally:
            self._core.listeners.discard(wake)
        return True


def _portion(found: FetchData) -> FetchedRecords | None:
    if found.start_offset >= found.end_offset:
        return None
    records = found.records()
    if records:
        return FetchedRecords(records, records[-1].offset + 1)
    # Markers, aborted transactions, or a gap that compaction left.
    next_offset = found.end_offset
    for batch in iter_batches(found.data):
        next_offset = batch.last_offset + 1
    return FetchedRecords([], max(min(next_offset, found.end_offset), found.start_offset + 1))
