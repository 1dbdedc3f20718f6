"""The only way to read a log: take its snapshot, read without a lock, and check that it still
holds.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import index
from typing import TypeVar

from checkpoints.files import UnusableFileError
from logstore.common.disk_errors import is_busy
from logstore.common.errors import (
    CorruptDataError,
    OffsetOutOfRangeError,
    ResourceBusyError,
    StorageFailedError,
)
from logstore.format.index_entry import AbortedTxn
from logstore.kernels import LogSnapshot
from logstore.log.core import LogCore, unusable
from logstore.log.reading.fetching import (
    FetchData,
    collect_aborted,
    count_bytes,
    fetch,
    find_timestamp,
)
from logstore.log.snapshot import LogView
from logstore.segments.index import TimestampOffset
from logstore.segments.segment_view import SegmentView

T = TypeVar("T")


class LogReader:
    """Reads a log, on any number of threads at a time, without waits."""

    def __init__(self, core: LogCore, repair_indexes: Callable[[list[SegmentView]], None]) -> None:
        self._core = core
        self._repair_indexes = repair_indexes

    def current(self) -> LogSnapshot:
        """The present snapshot. Raises the reason if the log can no longer be read."""
        failure = self._core.unreadable
        if failure is not None:
            raise failure
        return self._core.snapshot

    def run(self, read: Callable[[LogView], T]) -> T:
        """Run ``read`` on the present log, and again if something was removed during it.

        A result or a failure counts only if no byte can have changed during the read.

        Raises:
            StorageFailedError: the disk refused; the log stays as it is (S-43).
            ResourceBusyError: descriptors or memory are short.
        """
        while True:
            log = LogView(self.current())
            try:
                found = read(log)
            except (OSError, CorruptDataError, MemoryError) as error:
                self.explain_failure(error, log)
                continue
            if not self.moved(log):
                self._repair_suspects(log)
                return found

    def moved(self, log: LogView) -> bool:
        """Whether something was removed from the log, or its files were released, since the view
        was taken.
        """
        core = self._core
        return core.snapshot.version != log.snapshot.version or core.unreadable is not None

    def explain_failure(self, error: Exception, log: LogView) -> None:
        """Raise the error for a failed read, or return if the log has changed and the failure means
        nothing.
        """
        if self.moved(log):
            return
        if is_busy(error):
            raise ResourceBusyError(self._core.directory, "read", str(error)) from error
        if self._core.inherited is not None:  # its owner has changed the files since the fork
            raise self._core.inherited from error
        if isinstance(error, UnusableFileError):
            raise unusable(error) from error
        if isinstance(error, OSError):
            # An unreadable block is not a torn write, so nothing is cut and the caller gets an
            # error.
            raise StorageFailedError(self._core.directory, "read", str(error)) from error
        raise error

    def _repair_suspects(self, log: LogView) -> None:
        """Rebuild an index that pointed nowhere. This answer came from a walk (S-32, S-33)."""
        suspects = [segment for segment in log.seen if segment.index_suspect]
        if suspects:
            self._repair_indexes(suspects)

    def check_range(self, snapshot: LogSnapshot, offset: int) -> None:
        """Raise ``OffsetOutOfRangeError`` outside [log start, log end], TypeError for 0.5."""
        start, end = snapshot.log_start_offset, snapshot.log_end_offset
        if not start <= index(offset) <= end:
            raise OffsetOutOfRangeError(self._core.name, offset, start, end)

    # -- reads ---------------------------------------------------------------------------------

    def read(
        self,
        start_offset: int,
        max_bytes: int,
        minimum_one: bool = True,
        up_to: int | None = None,
        committed: bool = False,
        *,
        by_slice: bool = False,
    ) -> FetchData:
        """Read as `PartitionLog.read`.

        With ``by_slice`` many bytes stay in their file where the storage has descriptors: they are
        ``FetchData.file_slice`` and not ``data``. The slice shows what the log had at the time of
        the read, whatever is truncated, compacted, deleted or closed later.
        """

        def read(log: LogView) -> FetchData:
            snapshot = log.snapshot
            self.check_range(snapshot, start_offset)
            limit = snapshot.log_end_offset
            if up_to is not None:
                limit = min(limit, up_to)
            if committed:
                limit = min(limit, snapshot.last_stable_offset)
            return fetch(
                log,
                start_offset,
                limit,
                max_bytes,
                minimum_one=minimum_one,
                committed=committed,
                by_slice=by_slice,
            )

        return self.run(read)

    def available_bytes(self, start_offset: int, end_offset: int) -> int:
        """Bytes of the batches that hold ``[start_offset, end_offset)``.

        Raises:
            OffsetOutOfRangeError: the start lies outside the log.
        """

        def read(log: LogView) -> int:
            self.check_range(log.snapshot, start_offset)
            return count_bytes(log, start_offset, end_offset)

        return self.run(read)

    def aborted_transactions(self, start_offset: int, end_offset: int) -> tuple[AbortedTxn, ...]:
        """Aborted transactions that overlap ``[start_offset, end_offset)`` (F-125).

        Raises:
            OffsetOutOfRangeError: the start lies outside the log.
        """

        def read(log: LogView) -> tuple[AbortedTxn, ...]:
            self.check_range(log.snapshot, start_offset)
            return collect_aborted(log, start_offset, end_offset)

        return self.run(read)

    def offset_for_timestamp(self, timestamp: int) -> TimestampOffset | None:
        return self.run(lambda log: find_timestamp(log, timestamp))
