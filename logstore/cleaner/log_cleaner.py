"""Choose the log to clean next, and keep the results: Kafka's ``LogCleaner`` with its manager.

A pass holds no lock of a log, so a truncation, close or deletion does not wait for it: the pass
finds that its views are gone, and changes nothing. For the same reason the checkpoint is written
only while the views are in the log, under the lock that a truncation takes to lower it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from checkpoints.errors import CheckpointError
from checkpoints.loggers import get_logger
from logstore.cleaner.cleanable import LogToClean, log_to_clean
from logstore.cleaner.cleaner import Cleaner, PassStats
from logstore.common.clock import Clock
from logstore.common.config import BrokerConfig
from logstore.common.disk_errors import is_busy
from logstore.common.errors import (
    ConfigError,
    LogCleaningAbortedError,
    LogClosedError,
    LogstoreError,
    ResourceBusyError,
    StorageFailedError,
)
from logstore.common.forks import Ownership
from logstore.common.locks import Rank, make_lock
from logstore.common.shield import shielded
from logstore.common.types import TopicPartition
from logstore.kernels import OffsetMap
from logstore.log import PartitionLog
from logstore.log.snapshot import LogView

logger = get_logger(__name__)

FULL_DISK_PAUSE_MS = 60_000  # retry a pass that a full disk stopped after so long


class Checkpoint(Protocol):
    """The cleaner's offsets of one log directory; see ``manager.offsets``."""

    def cleaned(self, tp: TopicPartition) -> int | None: ...

    def note_cleaned(self, tp: TopicPartition, offset: int, holds: Callable[[], bool]) -> bool: ...


class Home(Protocol):
    """The log directory of a log."""

    @property
    def path(self) -> str: ...
    @property
    def offsets(self) -> Checkpoint: ...
    def keep_log_starts(self) -> None: ...


class Logs(Protocol):
    """The place of the logs: the part of ``manager.Directories`` that is used here."""

    def logs(self) -> Mapping[TopicPartition, PartitionLog]: ...
    def configured(self) -> Mapping[TopicPartition, PartitionLog]: ...
    def home_of(self, tp: TopicPartition) -> Home | None: ...
    def fail(self, path: str, failure: LogstoreError) -> None: ...


class Uncleanable(NamedTuple):
    """The reason not to clean a partition, until ``retry_ms`` (wall clock) or for good (None)."""

    reason: str
    retry_ms: int | None


class Cleaned(NamedTuple):
    """A completed pass over one log."""

    partition: TopicPartition
    to_clean: LogToClean
    stats: PassStats


@dataclass(slots=True)
class CleanerMetrics:
    """Counts since the start, and the values of Kafka's cleaner gauges."""

    passes: int = 0
    aborted_passes: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    records_read: int = 0
    records_kept: int = 0
    records_without_key: int = 0
    max_dirty_percent: int = 0
    max_compaction_delay_ms: int = 0
    max_buffer_utilization_percent: int = 0
    last_elapsed_ns: int = 0
    uncleanable_partitions: int = 0
    uncleanable_bytes: dict[str, int] = field(default_factory=dict)
    """By log directory."""


class LogCleaner:
    """Cleans the logs of a manager. Thread-safe; each pass has its own offset map."""

    def __init__(self, logs: Logs, config: BrokerConfig, clock: Clock) -> None:
        self._logs = logs
        self._config = config
        self._clock = clock
        self._ownership = Ownership("the cleaner of a log manager")
        self._lock = make_lock(Rank.MANAGER)
        self._in_progress: set[TopicPartition] = set()
        self._uncleanable: dict[TopicPartition, tuple[weakref.ref[PartitionLog], Uncleanable]] = {}
        self._metrics = CleanerMetrics()
        self._stopping = threading.Event()
        self._throttle = Throttle(config.log_cleaner_io_max_bytes_per_second, clock, self._stopping)

    def stop(self) -> None:
        """Make running passes end soon, without a result, and let no others begin."""
        self._stopping.set()

    # -- uncleanable partitions and metrics ---------------------------------------------------

    @property
    def uncleanable(self) -> dict[TopicPartition, Uncleanable]:
        """Partitions that cannot be cleaned, and why. The others are cleaned."""
        with self._lock:
            return {tp: why for tp, (log, why) in self._uncleanable.items() if log() is not None}

    @property
    def in_progress(self) -> Collection[TopicPartition]:
        with self._lock:
            return frozenset(self._in_progress)

    @property
    def metrics(self) -> CleanerMetrics:
        """A copy of the present metrics."""
        logs, aside = self._logs.logs(), self.uncleanable
        sizes: dict[str, int] = {}
        for tp in aside.keys() & logs.keys():
            home = self._logs.home_of(tp)
            if home is not None:
                sizes[home.path] = sizes.get(home.path, 0) + logs[tp].size
        with self._lock:
            known = self._metrics
            copy = CleanerMetrics(*(getattr(known, n) for n in CleanerMetrics.__slots__))
        copy.uncleanable_partitions, copy.uncleanable_bytes = len(aside), sizes
        return copy

    def _is_aside(self, tp: TopicPartition, log: PartitionLog, now_ms: int) -> bool:
        with self._lock:
            found = self._uncleanable.get(tp)
            if found is None:
                return False
            known, why = found
            if known() is log and (why.retry_ms is None or now_ms < why.retry_ms):
                return True
            del self._uncleanable[tp]  # another log of this name, or due for a retry
            return False

    def _set_aside(self, tp: TopicPartition, log: PartitionLog, why: Uncleanable) -> None:
        logger.error("%s cannot be cleaned: %s", tp, why.reason)
        with self._lock:
            self._uncleanable[tp] = (weakref.ref(log), why)

    # -- choosing ------------------------------------------------------------------------------

    def clean_all(self) -> int:
        """Run passes until no log needs one. Returns how many.

        Raises:
            ForkedError: another process opened the manager.
        """
        passes = 0
        while self.clean_filthiest() is not None:
            passes += 1
        return passes

    @shielded
    def clean_filthiest(self) -> Cleaned | None:
        """Run one pass over the log that needs it most. None if nothing was cleaned.

        A problem with a log appears in ``uncleanable``, and never as an exception.

        Raises:
            ForkedError: another process opened the manager.
        """
        self._ownership.check()
        now_ms = self._clock.wall_ms()
        chosen = self._choose(now_ms)
        if chosen is None:
            return None
        tp, log, to_clean, view = chosen
        try:
            return self._clean(tp, log, to_clean, view, now_ms)
        except LogCleaningAbortedError as error:
            logger.info("%s: %s", tp, error)
            with self._lock:
                self._metrics.aborted_passes += 1
        except (LogClosedError, ResourceBusyError, StorageFailedError) as error:
            if not log.failed:  # otherwise its directory is offline or it is closed, both known
                logger.warning("%s: %s", tp, error)
        except (OSError, MemoryError) as error:
            if not log.failed:
                retry = now_ms + FULL_DISK_PAUSE_MS
                self._set_aside(tp, log, Uncleanable(str(error) or "not enough memory", retry))
        except Exception as error:
            if not isinstance(error, LogstoreError):
                logger.exception("cleaning %s", tp)
            if not log.failed:
                self._set_aside(tp, log, Uncleanable(str(error) or repr(error), None))
        finally:
            self._release(tp)
        return None

    @shielded
    def clean_by_hand(self, tp: TopicPartition) -> Cleaned:
        """Run one pass over one log, whatever its dirty ratio. Nothing is read if all is clean.

        Raises:
            LogCleaningAbortedError: the log changed during the pass, or is being cleaned.
            CorruptBatchError, OSError, StorageFailedError: see ``Cleaner.clean``.
            ForkedError: another process opened the manager.
        """
        self._ownership.check()
        log = self._logs.logs()[tp]
        now_ms = self._clock.wall_ms()
        view = LogView(log.snapshot)
        to_clean = self._to_clean(tp, log, view, now_ms)
        if to_clean.dirty_bytes == 0 and to_clean.end <= to_clean.first_dirty:
            self._note_start(tp, log, to_clean)
            first = to_clean.first_dirty
            return Cleaned(tp, to_clean, PassStats(first_dirty=first, end_offset=first))
        if not self._claim(tp):
            raise LogCleaningAbortedError(f"{tp} is being cleaned")
        try:
            return self._clean(tp, log, to_clean, view, now_ms)
        finally:
            self._release(tp)

    def _choose(
        self, now_ms: int
    ) -> tuple[TopicPartition, PartitionLog, LogToClean, LogView] | None:
        best: tuple[TopicPartition, PartitionLog, LogToClean, LogView] | None = None
        largest, delay = 0.0, 0
        busy = self.in_progress
        for tp, log in self._logs.configured().items():
            if tp in busy or log.failed or not log.config.compact or self._stopping.is_set():
                continue
            if self._is_aside(tp, log, now_ms):
                continue
            view = LogView(log.snapshot)
            try:
                to_clean = self._to_clean(tp, log, view, now_ms)
            except (LogstoreError, OSError) as error:
                if not log.failed and view.snapshot.version == log.snapshot.version:
                    self._set_aside(tp, log, Uncleanable(str(error), None))
                continue
            self._note_start(tp, log, to_clean)
            largest, delay = max(largest, to_clean.ratio), max(delay, to_clean.overdue_ms)
            if not to_clean.is_due(log.config.min_cleanable_dirty_ratio):
                continue
            if best is None or to_clean.ratio > best[2].ratio:
                best = tp, log, to_clean, view
        with self._lock:
            self._metrics.max_dirty_percent = int(100 * largest)
            self._metrics.max_compaction_delay_ms = delay
        return best if best is not None and self._claim(best[0]) else None

    def _to_clean(
        self, tp: TopicPartition, log: PartitionLog, view: LogView, now_ms: int
    ) -> LogToClean:
        home = self._logs.home_of(tp)
        checkpoint = None if home is None else home.offsets.cleaned(tp)
        return log_to_clean(view, log.config, checkpoint, now_ms)

    def _note_start(self, tp: TopicPartition, log: PartitionLog, to_clean: LogToClean) -> None:
        """Correct a checkpoint that names an offset outside the log.

        Not if the log is gone: the name may be that of another one by now.
        """
        if to_clean.checkpoint_is_wrong:
            logger.info(
                "%s: its cleaner checkpoint is outside the log; it starts again at %d",
                tp,
                to_clean.first_dirty,
            )
            self._write_checkpoint(tp, to_clean.first_dirty, lambda: not log.failed)

    def _claim(self, tp: TopicPartition) -> bool:
        with self._lock:
            free = tp not in self._in_progress
            self._in_progress.add(tp)
            return free

    def _release(self, tp: TopicPartition) -> None:
        with self._lock:
            self._in_progress.discard(tp)

    # -- one pass ------------------------------------------------------------------------------

    def _clean(
        self,
        tp: TopicPartition,
        log: PartitionLog,
        to_clean: LogToClean,
        view: LogView,
        now_ms: int,
    ) -> Cleaned:
        began = self._clock.monotonic_ns()
        config = self._config
        try:
            offset_map = OffsetMap(
                config.log_cleaner_dedupe_buffer_size // config.log_cleaner_threads,
                config.log_cleaner_io_buffer_load_factor,
            )
        except ValueError as error:
            raise ConfigError(f"log.cleaner.dedupe.buffer.size: {error}") from None
        cleaner = Cleaner(
            offset_map, config.log_cleaner_io_buffer_size, self._throttle.spend, self._check
        )
        self._keep_log_start(tp, view)
        stats, views = cleaner.clean(log, to_clean, now_ms, view)
        stats.elapsed_ns = self._clock.monotonic_ns() - began
        if not self._write_checkpoint(tp, stats.end_offset, lambda: log.replacing.holds(views)):
            raise LogCleaningAbortedError(f"{tp} was cut or removed at the end of a pass")
        with self._lock:
            m = self._metrics
            m.passes += 1
            m.bytes_read += stats.map_bytes + stats.bytes_before
            m.bytes_written += stats.bytes_after
            m.records_read += stats.records_read
            m.records_kept += stats.records_kept
            m.records_without_key += stats.records_without_key
            used = 100 * stats.keys // offset_map.slots
            m.max_buffer_utilization_percent = max(m.max_buffer_utilization_percent, used)
            m.last_elapsed_ns = stats.elapsed_ns
        logger.info(
            "%s: cleaned [%d, %d): %d of %d records and %d of %d bytes stay",
            tp,
            stats.first_dirty,
            stats.end_offset,
            stats.records_kept,
            stats.records_read,
            stats.bytes_after,
            stats.bytes_before,
        )
        return Cleaned(tp, to_clean, stats)

    def _check(self) -> None:
        if self._stopping.is_set():
            raise LogCleaningAbortedError("the cleaner was stopped")

    def _keep_log_start(self, tp: TopicPartition, view: LogView) -> None:
        """Make the log start durable. A pass does not map records below it.

        If a crash moved it back, tombstones there would expire although the records that they
        delete were never removed.
        """
        home = self._logs.home_of(tp)
        if home is not None and view.snapshot.log_start_offset > view.base_of(0):
            with self._writing_checkpoint(home):
                home.keep_log_starts()

    def _write_checkpoint(self, tp: TopicPartition, offset: int, holds: Callable[[], bool]) -> bool:
        home = self._logs.home_of(tp)
        if home is None:
            return False
        with self._writing_checkpoint(home):
            return home.offsets.note_cleaned(tp, offset, holds)

    @contextmanager
    def _writing_checkpoint(self, home: Home) -> Iterator[None]:
        try:
            yield
        except CheckpointError as error:
            if is_busy(error):
                raise ResourceBusyError(home.path, "write checkpoint", str(error)) from error
            failure = StorageFailedError(home.path, "write checkpoint", str(error))
            self._logs.fail(home.path, failure)
            raise failure from error


class Throttle:
    """Limits the bytes read and written per second, over all threads."""

    def __init__(self, bytes_per_second: float, clock: Clock, stopping: threading.Event) -> None:
        self._rate = bytes_per_second
        self._clock = clock
        self._stopping = stopping
        self._lock = threading.Lock()
        self._free_at_ns = 0

    def spend(self, size: int) -> None:
        """Count ``size`` bytes, and wait until the rate allows more, or until the cleaner stops."""
        if self._rate == float("inf") or size <= 0:
            return
        now = self._clock.monotonic_ns()
        with self._lock:
            self._free_at_ns = max(self._free_at_ns, now) + int(size / self._rate * 1e9)
            wait_ns = self._free_at_ns - now
        self._stopping.wait(wait_ns / 1e9)


__all__ = [
    "Cleaned",
    "CleanerMetrics",
    "LogCleaner",
    "Throttle",
    "Uncleanable",
]
