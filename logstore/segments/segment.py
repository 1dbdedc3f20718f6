"""One segment: a ``.log`` file and its indexes, for the writer of a log.

Matches Kafka's ``LogSegment``. Files are opened at their first use, so an idle log costs no
descriptors. A segment is changed only under the lock of its log. Readers use a ``SegmentView`` and
never this.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from functools import cached_property
from typing import NamedTuple

from logstore.common.clock import Clock
from logstore.common.config import MAX_INT, LogConfig
from logstore.format import filenames
from logstore.format.index_entry import TIME_ENTRY
from logstore.kernels import SegmentState
from logstore.segments.index import (
    OffsetIndex,
    TimeIndex,
    TimestampOffset,
    TransactionIndex,
)
from logstore.segments.open_files import LogFile
from logstore.segments.segment_view import BatchSpan, SegmentView, Slice, copy_range
from logstore.segments.unwritten import Unwritten
from logstore.storage.base import File, Storage

_INDEXES = {
    "offset_index": filenames.INDEX_SUFFIX,
    "time_index": filenames.TIME_INDEX_SUFFIX,
    "txn_index": filenames.TXN_INDEX_SUFFIX,
}


class SegmentTruncation(NamedTuple):
    """The rest of a segment when the batches that reach an offset are removed."""

    position: int  # how many bytes stay
    offset_entries: int
    time_entries: int
    last_time_entry: int
    largest: TimestampOffset


class Segment:
    """A segment. ``state`` is the only place for its sizes, offsets and counters."""

    def __init__(
        self,
        storage: Storage,
        directory: str,
        base_offset: int,
        config: LogConfig,
        clock: Clock,
        sizes: Mapping[str, int] | None = None,
        suffix: str = "",
    ) -> None:
        """``sizes`` of the files on disk by suffix, from a listing.

        ``suffix`` belongs to the ``.log``: it is ``.swap`` after a roll, until all before the
        segment is durable (docs/recovery.md, "Rolls").
        """
        sizes = sizes or {}
        self._storage = storage
        self.directory = directory
        self.base_offset = base_offset
        self.config = config
        self._clock = clock
        self.suffix = suffix
        self.file_size = sizes.get(filenames.LOG_SUFFIX, 0)  # without later appends
        self.state = state = SegmentState(base_offset)
        state.size = self.file_size
        state.index_interval_bytes = config.index_interval_bytes
        state.segment_bytes = config.segment_bytes
        state.max_segment_ms = config.max_segment_ms
        state.created_ms = clock.wall_ms()
        state.offset_entries = sizes.get(filenames.INDEX_SUFFIX, 0) // 8
        state.time_entries = sizes.get(filenames.TIME_INDEX_SUFFIX, 0) // 12
        self._txn_index_size = sizes.get(filenames.TXN_INDEX_SUFFIX, 0)
        self.file = LogFile(storage, lambda: self.log_path)
        self._held: File | None = None
        self.timestamp_loaded = self.file_size == 0
        self.name_durable = False  # whether the directory was synced since the files were created
        self._indexes_durable = not sizes
        self._was_truncated = False
        self.is_released = False  # open for appends, except its descriptors
        self.unwritten = Unwritten()

    # -- identity ------------------------------------------------------------------------------

    def path(self, suffix: str) -> str:
        """The path of a file of the segment, by its final name."""
        name = filenames.segment_file_name(self.base_offset, suffix)
        return f"{self.directory}/{name}"

    def move_to(self, directory: str) -> None:
        """Take over the new path of its directory."""
        self.directory = directory
        for name, suffix in _INDEXES.items():
            index = self.__dict__.get(name)  # not made yet: it will have the new path
            if index is not None:
                index.path = self.path(suffix)
        self.file.renamed()

    @property
    def log_path(self) -> str:
        return self.path(filenames.LOG_SUFFIX) + self.suffix

    @property
    def size(self) -> int:
        """Bytes of whole batches."""
        return self.state.size

    # Made at the first use: most segments of most logs are idle.

    @cached_property
    def offset_index(self) -> OffsetIndex:
        return OffsetIndex(self._storage, self.path(filenames.INDEX_SUFFIX), self.base_offset)

    @cached_property
    def time_index(self) -> TimeIndex:
        return TimeIndex(self._storage, self.path(filenames.TIME_INDEX_SUFFIX), self.base_offset)

    @cached_property
    def txn_index(self) -> TransactionIndex:
        return TransactionIndex(
            self._storage,
            self.path(filenames.TXN_INDEX_SUFFIX),
            self.base_offset,
            self._txn_index_size,
        )

    def __repr__(self) -> str:
        return f"Segment({self.log_path}, size={self.size})"

    def modified_ms(self) -> int:
        """Modification time of the ``.log``; the present where there is no such file."""
        info = self._storage.info(self.log_path)
        return info.mtime_ms if info else self._clock.wall_ms()

    # -- the open file, for its owner ----------------------------------------------------------

    @property
    def log(self) -> File:
        """The open ``.log``, held from the first use until ``release`` or ``close``."""
        held = self._held
        if held is None:
            held = self._held = self.file.hold()
        return held

    def release(self) -> None:
        """Release the file. It may then be closed."""
        if self._held is not None:
            self._held = None
            self.file.release()

    def create(self) -> None:
        """Create the empty ``.log``, ``.index`` and ``.timeindex``, or none of them.

        Raises:
            OSError: a file could not be created.
        """
        # A crash may have left files of an earlier segment with this base.
        for path in dict.fromkeys((*self.paths(), self.path(filenames.LOG_SUFFIX))):
            with suppress(FileNotFoundError):
                self._storage.remove(path)
        try:
            self._held = self.file.create()
            self.offset_index.create()
            self.time_index.create()
        except OSError:
            self.remove_files()
            raise

    def remove_files(self) -> None:
        """Remove the files of a segment that was never part of the log."""
        self.close()
        for path in self.paths():
            with suppress(OSError):
                self._storage.remove(path)

    def paths(self) -> list[str]:
        """The paths of its four files, whether they exist or not, the ``.log`` first."""
        return [self.log_path, *(self.path(s) for s in filenames.SEGMENT_SUFFIXES[1:])]

    # -- active and sealed ---------------------------------------------------------------------

    def activate(self) -> None:
        """Map the indexes at full size and open for appends (F-136, F-248)."""
        if self.state.attached:
            return
        self.load_timestamp()
        self._load_rolling_timestamp()
        if self.config.preallocate and max(self.file_size, self.size) < self.config.segment_bytes:
            self.log.truncate(self.config.segment_bytes)
            self.file_size = self.config.segment_bytes
        self._attach()
        self._indexes_durable = False

    def _attach(self) -> None:
        limit = self.config.segment_index_bytes
        self.state.attach(
            self.log, self.offset_index.activate(limit), self.time_index.activate(limit)
        )
        self.is_released = False

    def release_descriptors(self) -> None:
        """Release the descriptors of an active segment, until ``activate``, a cut or ``seal``.

        The files keep their full size, and are not synced.
        """
        if self.state.attached:
            self.is_released = True
            self.state.detach()
            self.offset_index.close()
            self.time_index.close()
            self.release()

    def disown(self) -> None:
        """In a forked child, map nothing that its parent may cut."""
        self.release_descriptors()
        self.file.bar()

    def seal(self) -> SegmentView:
        """Write the last time-index entry and trim the files (F-135, F-137, F-139).

        Nothing is synced. Returns the view that readers use from now on.
        """
        state = self.state
        # A cut may have removed the last time entry, and a released segment has none yet.
        if (self._was_truncated or self.is_released) and not state.attached:
            self._attach()
            self._indexes_durable = False
        self._was_truncated = False
        if state.attached:
            if state.max_timestamp > state.last_time_entry:
                state.reserve()
            state.add_time_entry()
            state.detach()
            self.offset_index.trim(state.offset_entries)
            self.time_index.trim(state.time_entries)
        if self.file_size > self.size:
            self.log.truncate(self.size)
            self.file_size = self.size
        return self.live()

    def renew_indexes(self) -> None:
        """Recreate both indexes of an empty active segment, at the size now configured."""
        state = self.state
        state.detach()
        state.offset_entries = state.time_entries = 0
        state.last_time_entry = -1
        self.offset_index.trim(0)
        self.time_index.trim(0)
        self._attach()

    def append(
        self, data: bytes | bytearray | memoryview, size: int, first_offset: int, leader_epoch: int
    ) -> int:
        """Append as `SegmentState.append` does. The segment must be active."""
        return self.state.append(data, size, first_offset, leader_epoch)

    # -- reading, for its owner ----------------------------------------------------------------

    def live(self) -> SegmentView:
        """The segment as it is now."""
        state = self.state
        largest = None
        if self.timestamp_loaded:
            largest = TimestampOffset(state.max_timestamp, state.offset_of_max_timestamp)
        return SegmentView(self, state.size, state.offset_entries, state.time_entries, largest)

    def view(self, position: int, size: int) -> AbstractContextManager[memoryview]:
        return self.file.window(position, size)

    def load_timestamp(self) -> None:
        """Load the largest timestamp from the time index and the batches after its end (F-148)."""
        if self.timestamp_loaded:
            return
        view, state = self.live(), self.state
        if state.max_timestamp < 0 and self.size:
            last = view.last_time_entry()
            state.last_time_entry = last.timestamp
            state.max_timestamp, state.offset_of_max_timestamp = view.largest_from(last)
        self.timestamp_loaded = True

    def _load_rolling_timestamp(self) -> None:
        """After a reload "the first append" means the first batch (F-143)."""
        if self.state.rolling_timestamp < 0 and self.size > 0:
            first = next(self.live().walk(0), None)
            if first is not None:
                self.state.rolling_timestamp = first.max_timestamp

    # -- rebuild and truncate ------------------------------------------------------------------

    def install_indexes(self, offset_index: bytes, time_index: bytes) -> None:
        """Replace the content of both indexes; an active segment stays active."""
        active = self.state.attached
        state = self.state
        state.detach()
        self.offset_index.replace(offset_index)
        self.time_index.replace(time_index)
        state.offset_entries, state.time_entries = len(offset_index) // 8, len(time_index) // 12
        last = time_index[-TIME_ENTRY.size :]
        state.last_time_entry = TIME_ENTRY.unpack(last)[0] if last else -1
        self._indexes_durable = False
        if active:
            self._attach()

    def plan_truncation(self, view: SegmentView, position: int, offset: int) -> SegmentTruncation:
        """Return what the segment becomes when it ends at ``position``, the first byte of a batch
        at or after ``offset`` (F-235). Changes nothing.
        """
        offset_entries = self.offset_index.count_below(offset, view.offset_entries)
        time_entries = self.time_index.count_below(offset, view.time_entries)
        last = self.time_index.last(time_entries)
        largest = view.largest
        if largest.offset >= offset or position == 0:
            largest = SegmentView(self, position, offset_entries, time_entries).largest_from(last)
        return SegmentTruncation(position, offset_entries, time_entries, last.timestamp, largest)

    def apply_truncation(self, change: SegmentTruncation, next_offset: int) -> None:
        """Change the numbers first, so that new views exclude what ``truncate_files`` removes."""
        state = self.state
        state.size = change.position
        state.next_offset = next_offset
        state.offset_entries, state.time_entries = change.offset_entries, change.time_entries
        state.last_time_entry = change.last_time_entry
        state.max_timestamp, state.offset_of_max_timestamp = change.largest
        state.bytes_since_index_entry = 0
        self.timestamp_loaded = True
        self._indexes_durable = False
        self._was_truncated = True
        self.unwritten.cut(change.position)
        if change.position == 0:
            state.rolling_timestamp = -1
            state.created_ms = self._clock.wall_ms()

    def truncate_files(self, before: SegmentView, offset: int) -> None:
        """Shorten the files to what ``apply_truncation`` set. ``before`` is the view until then."""
        state = self.state
        if state.offset_entries < before.offset_entries:
            self.offset_index.clear_from(state.offset_entries, before.offset_entries)
        if state.time_entries < before.time_entries:
            self.time_index.clear_from(state.time_entries, before.time_entries)
        self.txn_index.truncate_to(offset)
        if state.size < before.size or self.file_size > state.size:
            self._truncate_log(state.size)

    def _truncate_log(self, size: int) -> None:
        target = size
        if self.config.preallocate and self.state.attached:
            target = max(self.config.segment_bytes, size)
        with self.file.truncating(size) as shown:
            if shown:
                self._replace_log(size)
            else:
                self.log.truncate(size)
        if target > size:
            self.log.truncate(target)
        self.file_size = target

    def _replace_log(self, size: int) -> None:
        """Cut by copying, because bytes of the old file are being read or sent."""
        attached = self.state.attached
        # Not .cleaned: the cleaner may be writing a file with this base.
        shorter = self.path(filenames.LOG_SUFFIX) + filenames.UNFINISHED_SUFFIX
        copy_range(self.log, 0, size, self._storage, shorter)
        self._storage.rename(shorter, self.log_path)
        self._storage.sync_dir(self.directory)
        self.state.detach()
        old, self.file = self.file, LogFile(self._storage, lambda: self.log_path)
        if self._held is not None:
            self._held = None
            old.release()
        old.retire()
        if attached:
            self._attach()

    # -- durability, names, end ----------------------------------------------------------------

    def write_again(self, size: int = MAX_INT) -> None:
        """Write at least ``size`` bytes of ``unwritten``."""
        if self.unwritten.size:
            with self.file.held() as file:
                self.unwritten.write(file, self.base_offset, size)

    def flush(self, *, indexes: bool) -> None:
        """Sync the ``.log`` and then, with ``indexes``, the three indexes (F-220)."""
        self.write_again()
        with self.file.held() as file:
            file.sync()
        if indexes:
            self.flush_indexes()

    def flush_indexes(self) -> None:
        """Sync the indexes unless they are durable already."""
        if not self._indexes_durable:
            self.offset_index.sync()
            self.time_index.sync()
            self.txn_index.sync()
            self._indexes_durable = not self.state.attached

    def take_final_name(self) -> None:
        """Take the final name. All before the segment is durable, so a start accepts it."""
        if self.suffix:
            before = self.log_path
            self._storage.rename(before, self.path(filenames.LOG_SUFFIX))
            self.suffix = ""
            self.file.renamed()
            self.name_durable = False

    def close(self) -> None:
        """Release files and maps without trimming or syncing. Idempotent."""
        self.state.detach()
        self.is_released = False
        self.offset_index.close()
        self.time_index.close()
        self.release()
        self.file.retire()

    def mark_replaced(self) -> list[str]:
        """Rename all files to ``.deleted`` while the segment is still read. Returns the new paths.

        Readers of existing views go on: the open ``.log`` and the indexes know their new names.
        """
        self.txn_index.entries()  # from here on in memory
        renamed = []
        with self.file.held():  # so it is not opened by its old name
            target = self.path(filenames.LOG_SUFFIX) + filenames.DELETED_SUFFIX
            self._storage.rename(self.log_path, target)
            self.suffix = filenames.DELETED_SUFFIX
            self.file.renamed()
            renamed.append(target)
        for index in (self.offset_index, self.time_index, self.txn_index):
            target = index.path + filenames.DELETED_SUFFIX
            if index.rename(target):
                renamed.append(target)
        return renamed

    def mark_deleted(self) -> list[str]:
        """Rename all files to ``.deleted`` (F-288). Returns the new paths, for a later unlink.

        The ``.log`` stays open while it is read.
        """
        paths = self.paths()
        self.close()
        renamed = []
        for path in paths:
            target = path.removesuffix(filenames.SWAP_SUFFIX) + filenames.DELETED_SUFFIX
            try:
                self._storage.rename(path, target)
            except FileNotFoundError:
                continue
            renamed.append(target)
        return renamed


__all__ = ["BatchSpan", "Segment", "SegmentTruncation", "SegmentView", "Slice"]
