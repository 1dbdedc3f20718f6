"""The parts of an open log, and its current numbers."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from weakref import WeakValueDictionary

from checkpoints.errors import CheckpointError
from logstore.common.clock import Clock
from logstore.common.config import LogConfig
from logstore.common.errors import (
    StorageFailedError,
)
from logstore.common.locks import Rank, make_lock
from logstore.common.random_id import RandomId, random_id
from logstore.common.types import TopicPartition
from logstore.kernels import LogSnapshot
from logstore.log.core.core import LogCore, logger
from logstore.log.core.holding import PartitionHold
from logstore.log.reading.readers import LogReaders
from logstore.log.upkeep.clean_stop import (
    keep_log_start,
    leave_start_point,
)
from logstore.log.upkeep.maintenance import LogMaintenance
from logstore.log.upkeep.replacing import LogReplacing
from logstore.log.writing.flushing import Background, LogFlusher
from logstore.log.writing.producing import LogProducer
from logstore.log.writing.writer import LogWriter
from logstore.recovery import LoadedLog, RecoveryReport
from logstore.segments.segment import Segment
from logstore.storage.base import Storage


def run_inline(task: Callable[[], None]) -> None:
    """Run a task at once, the default for a log without a manager. Kafka schedules it."""
    task()


class LogState:
    """The parts of one open log, for the classes that act on it."""

    def __init__(
        self,
        directory: str,
        loaded: LoadedLog,
        config: LogConfig,
        storage: Storage,
        clock: Clock,
        *,
        background: Background = run_inline,
        replicated: bool = False,
        on_failure: Callable[[StorageFailedError], None] | None = None,
        on_cut: Callable[[], None] | None = None,
        on_restart: Callable[[int | None], None] | None = None,
        random_id: RandomId = random_id,
        hold: PartitionHold | None = None,
    ) -> None:
        self.directory = directory
        self.topic_partition: TopicPartition = loaded.topic_partition
        self.recovery_report: RecoveryReport = loaded.report
        self._topic_id: uuid.UUID | None = loaded.topic_id
        self._hold = hold
        self._core = LogCore(directory, config, storage, clock, on_failure)
        self._writer = LogWriter(self._core, loaded, replicated=replicated, random_id=random_id)
        if hold is not None and on_restart is None:
            on_restart = self._keep_log_start
        self._flusher = LogFlusher(self._core, self._writer, background, on_cut)
        self._maintenance = LogMaintenance(self._core, self._writer, self._flusher, on_restart)
        self._replacing = LogReplacing(self._core, self._writer, self._maintenance)
        self._readers = LogReaders(self._core, self.name, self._maintenance.repair_indexes)
        for segment in self._writer.segments:
            segment.let_go()  # what loading opened
        self._producers_lock = make_lock(Rank.PRODUCERS)
        self._producers: WeakValueDictionary[int, LogProducer] = WeakValueDictionary()

    def __repr__(self) -> str:
        name, start, end = type(self).__name__, self.log_start_offset, self.log_end_offset
        closed = ", closed" if self._core.closed else ""
        return f"{name}({self.directory}, [{start}, {end}){closed})"

    @property
    def config(self) -> LogConfig:
        return self._core.config

    @property
    def name(self) -> str:
        return str(self.topic_partition)

    @property
    def snapshot(self) -> LogSnapshot:
        """Start, end and committed end of the log, all at one moment."""
        return self._core.snapshot

    @property
    def log_start_offset(self) -> int:
        return self._core.snapshot.log_start_offset

    @property
    def log_end_offset(self) -> int:
        """Offset of the next record (LEO)."""
        return self._core.snapshot.log_end_offset

    @property
    def recovery_point(self) -> int:
        """All records below it are known to be on the disk (F-222)."""
        return self._writer.recovery_point

    @property
    def high_watermark(self) -> int:
        """Records below it are committed; without replicas that is the log end."""
        return self._core.snapshot.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """Readers of committed data stop here (LSO)."""
        return self._core.snapshot.last_stable_offset

    @property
    def version(self) -> int:
        """Counts removals, which are truncations and deletions of segments."""
        return self._core.snapshot.version

    @property
    def latest_epoch(self) -> int:
        return self._writer.epochs.latest_epoch

    @property
    def epoch_entries(self) -> tuple[tuple[int, int], ...]:
        with self._writer.lock:
            return self._writer.epochs.entries

    @property
    def topic_id(self) -> uuid.UUID | None:
        return self._topic_id

    @property
    def size(self) -> int:
        """Bytes of batches in all segments."""
        snapshot = self._core.snapshot
        sealed: int = sum(view.size for view in snapshot.sealed)
        return sealed + snapshot.size

    @property
    def segments(self) -> tuple[Segment, ...]:
        snapshot = self._core.snapshot
        return (*(view.segment for view in snapshot.sealed), snapshot.active)

    @property
    def active_segment(self) -> Segment:
        active: Segment = self._core.snapshot.active
        return active

    @property
    def unflushed(self) -> int:
        """Records above the recovery point."""
        return self.log_end_offset - self.recovery_point

    @property
    def failed(self) -> bool:
        return self._core.failure is not None

    def _leave_start_point(self) -> None:
        if self._hold is None:
            return
        snapshot = self._core.snapshot
        try:
            leave_start_point(
                self._core.storage,
                self.directory,
                self.topic_partition,
                self.segments[0].base_offset,
                snapshot.log_start_offset,
                snapshot.log_end_offset,
            )
        except (OSError, CheckpointError) as error:
            logger.error("%s: the next start will recover: %s", self.directory, error)

    def _keep_log_start(self, start: int | None) -> None:
        keep_log_start(self._core.storage, self.directory, self.topic_partition, start)

    def _let_go(self) -> None:
        if self._hold is not None:
            self._hold.release()

    def _abandon(self) -> None:
        """Release files without flushing or trimming, as the end of the process does."""
        try:
            self._maintenance.release()
        finally:
            self._let_go()
