"""The reads of a log: once, as an iteration, or for as long as it grows."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from typing import Any

from logstore.common.clock import Clock
from logstore.common.types import Record
from logstore.format.index_entry import AbortedTxn
from logstore.log.reading.directory_reader import DirectoryReader
from logstore.log.reading.following import Follower, LogSource
from logstore.log.reading.iteration import column_portions, fill_chunk, portions
from logstore.log.reading.reading import (
    FetchData,
    Timestamp,
    timestamp_to_find,
)
from logstore.log.state import LogState
from logstore.segments.index import TimestampOffset
from logstore.storage.base import Storage


class LogReads(LogState):
    """The reads of a log. Thread-safe; no method waits unless it says so."""

    def read(
        self,
        start_offset: int,
        max_bytes: int = 1 << 20,
        *,
        minimum_one: bool = True,
        up_to: int | None = None,
        committed: bool = False,
    ) -> FetchData:
        """Bytes from the batch that holds ``start_offset`` on, of one segment (F-155 … F-160).

        Args:
            max_bytes: at most so many bytes, but at least one batch when ``minimum_one``.
            up_to: offsets at or after it are not for this reader; the log end by default. A
                consumer passes ``high_watermark``, or sets ``committed`` for the last stable
                offset and the aborted transactions in the range.
        Raises:
            OffsetOutOfRangeError: below the log start or above the log end.
            StorageFailedError: the disk refused; the log stays as it is (S-43).
        """
        return self._readers.read(start_offset, max_bytes, minimum_one, up_to, committed)

    def available_bytes(self, start_offset: int, end_offset: int) -> int:
        """Bytes of the batches that hold ``[start_offset, end_offset)``.

        Raises:
            OffsetOutOfRangeError: the start lies outside the log.
        """
        return self._readers.available_bytes(start_offset, end_offset)

    def aborted_transactions(self, start_offset: int, end_offset: int) -> tuple[AbortedTxn, ...]:
        """Aborted transactions that overlap ``[start_offset, end_offset)`` (F-125).

        Raises:
            OffsetOutOfRangeError: the start lies outside the log.
        """
        return self._readers.aborted_transactions(start_offset, end_offset)

    def records(
        self, start_offset: int | None = None, end_offset: int | None = None
    ) -> Iterator[Record]:
        """All records of ``[start_offset, end_offset)``, one after the other, CRCs checked.

        Begins at the log start and ends at the log end by default.

        Raises:
            OffsetOutOfRangeError: the start lies outside the log; or, while reading, what comes
                next was deleted or cut off.
            CorruptBatchError: a batch is damaged; the records before it were given.
        """
        chunks = self.record_chunks(start_offset, end_offset)
        return (record for chunk in chunks for record in chunk)

    def record_chunks(
        self, start_offset: int | None = None, end_offset: int | None = None
    ) -> Iterator[list[Record]]:
        """As ``records``, in lists of some thousands: the fast way to read a whole log.

        Memory stays bounded by a window of 4 MiB and one list.
        """
        return portions(self._readers, start_offset, end_offset, fill_chunk)

    def to_arrow(
        self,
        start_offset: int | None = None,
        end_offset: int | None = None,
        *,
        headers: bool = False,
    ) -> Iterator[Any]:
        """All records in the range, as ``pyarrow.RecordBatch`` objects.

        Raises as ``records``; the record batches before the damage were given. Without the extra
        ``arrow`` it is a ``ConfigError``.
        """
        return column_portions(self._readers, start_offset, end_offset, headers=headers)

    def offset_for_timestamp(self, timestamp: Timestamp) -> TimestampOffset | None:
        """The first record at or after ``timestamp`` ms; or EARLIEST, LATEST, MAX_TIMESTAMP.

        A ``datetime`` needs its time zone. Source: F-149 … F-152. None when there is no such
        record.
        """
        return self._readers.offset_for_timestamp(timestamp_to_find(timestamp))

    def follow(
        self, start: int | None = None, *, timeout: float | None = None, committed: bool = False
    ) -> Follower:
        """The records from ``start`` on, and then those to come: an iterator that waits.

        It sees an append at once, up to the high watermark.

        Args:
            start: an offset, EARLIEST or LATEST; the log start by default.
            timeout: end after so many seconds without a record; None waits forever.
            committed: up to the last stable offset, without what was aborted.
        Raises:
            OffsetOutOfRangeError: here or while reading: what comes next was deleted.
            LogTruncatedError: what was read before was cut off.
            LogClosedError: the log was closed, also while this waits.
            CorruptBatchError: a batch is damaged; the records before it were given.
        """
        source = LogSource(self._core, self._readers, self.name, committed)
        follower = Follower(source, start, timeout)
        source.check(follower.position)
        return follower

    def follow_async(
        self, start: int | None = None, *, timeout: float | None = None, committed: bool = False
    ) -> AsyncIterator[Record]:
        """As ``follow``, for ``async for``: nothing here holds up the event loop."""
        return self.follow(start, timeout=timeout, committed=committed).records_async()

    @staticmethod
    def open_reader(
        directory: str | os.PathLike[str],
        *,
        storage: Storage | None = None,
        clock: Clock | None = None,
    ) -> DirectoryReader:
        """Follow the log in a directory that another process writes (see ``DirectoryReader``)."""
        return DirectoryReader(directory, storage=storage, clock=clock)
