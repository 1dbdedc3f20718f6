"""Opens the logs of a manager, with what they share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from checkpoints.errors import CheckpointError
from checkpoints.loggers import get_logger
from logstore.common.clock import Clock
from logstore.common.config import LogConfig
from logstore.common.errors import LogstoreError, StorageFailedError
from logstore.common.random_id import RandomId, random_id
from logstore.common.types import TopicPartition
from logstore.log import Background, LogOwner, PartitionLog, ReplicaLog
from logstore.manager.directories import Directories, OnFailure
from logstore.manager.log_dir import LogDir
from logstore.manager.offsets import HIGH_WATERMARK, LOG_START, RECOVERY_POINT
from logstore.recovery import RecoveryOptions, RecoveryReport
from logstore.storage.base import Storage

logger = get_logger(__name__)

Task = Callable[[], None]
Progress = Callable[["LoadProgress"], None]


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """After each partition: how many of ``total`` are open, and what the last one needed."""

    directory: str
    done: int
    total: int
    report: RecoveryReport


@dataclass(frozen=True, slots=True)
class ManagerOwner:
    """What a broker or a tool decides for its manager. The defaults are those of a service.

    Attributes:
        cluster_id, node_id: checked against ``meta.properties``, or written there on the first
            start.
        replicated: the owner manages high watermarks and the configurations of topics.
        keep_high_watermarks: what lies above those on file is not taken for committed: the
            directory may be one of a broker that is away. Without such a file all is.
        progress: called after each partition is loaded, from any thread.
        run_later: takes the flush of each rolled segment, and may run it at any time or never. With
            it no thread is started. Without it there are a flusher thread, and a pool for recovery
            and for closing.
        on_directory_failure: called once for each directory that goes offline, with its path and
            the reason, after its logs refuse work; at the start too, before that returns. It runs
            on the thread that met the failure, which may hold the lock of a log, so it must return
            at once.
        on_log_failure: the same for each log that goes offline alone, because its own files refuse;
            with the path of its directory.
        random_id: returns 32 new hex digits, for ids, names of deleted logs and jitter.
    """

    cluster_id: str | None = None
    node_id: int | None = None
    replicated: bool = False
    keep_high_watermarks: bool = False
    progress: Progress | None = None
    run_later: Background | None = None
    on_directory_failure: OnFailure | None = None
    on_log_failure: OnFailure | None = None
    random_id: RandomId = random_id


SERVICE = ManagerOwner()


@dataclass(frozen=True, slots=True)
class LogOpener:
    """
    Attributes:
        later: runs tasks that may wait, such as the flush of a rolled segment.
        on_flushed: called after that flush, before the checkpoint has it.
    """

    storage: Storage
    clock: Clock
    options: RecoveryOptions
    producer_id_expiration_ms: int
    owner: ManagerOwner
    later: Callable[[Task], object]
    directories: Directories
    on_flushed: Callable[[], None]

    def create(self, log_dir: LogDir, tp: TopicPartition, config: LogConfig) -> ReplicaLog:
        """Create an empty log. Other files in its directory are trusted. The caller makes the name
        of the directory durable.

        Raises:
            StorageFailedError: the disk refused.
        """
        return self._open(log_dir, tp, config, clean_shutdown=True, keep_name=False)

    def load(
        self, log_dir: LogDir, tp: TopicPartition, config: LogConfig, *, clean: bool | None = None
    ) -> ReplicaLog:
        """Open a log that was found, with its checkpoint entries.

        Args:
            clean: whether it was closed cleanly; by default as its directory.
        Raises:
            StorageFailedError: the disk refused.
            CorruptDataError: damage that recovery may not cut.
        """
        offsets = log_dir.offsets
        log = self._open(
            log_dir,
            tp,
            config,
            clean_shutdown=log_dir.clean if clean is None else clean,
            recovery_point=offsets.stored(RECOVERY_POINT).get(tp),
            log_start_offset=offsets.stored(LOG_START).get(tp, 0),
        )
        if self.owner.replicated or self.owner.keep_high_watermarks:
            mark = offsets.stored(HIGH_WATERMARK).get(tp, 0)
            if not self.owner.replicated and not offsets.is_there(HIGH_WATERMARK):
                mark = log.log_end_offset
            if mark > log.log_end_offset:
                warning = f"high watermark {mark} is above the log end {log.log_end_offset}"
                log.recovery_report.warnings.append(warning)
                log.recovery_report.offsets_lost = log.log_end_offset, mark
                logger.warning("%s: %s", log.name, warning)
            log.replica.update_high_watermark(mark)
        return log

    def _open(
        self, log_dir: LogDir, tp: TopicPartition, config: LogConfig, **found: Any
    ) -> ReplicaLog:
        opened: list[ReplicaLog] = []

        owner = LogOwner(
            managed=True,
            producer_id_expiration_ms=self.producer_id_expiration_ms,
            background=partial(self._in_background, log_dir, tp, opened),
            replicated=self.owner.replicated or self.owner.keep_high_watermarks,
            on_failure=partial(self.directories.on_log_failure, log_dir.path),
            # For this log alone: a fail-over truncates thousands, and each comes here.
            on_cut=lambda: log_dir.offsets.settle(
                log_dir.items, lambda: [(tp, log) for log in opened]
            ),
            on_restart=partial(self._begin_anew, log_dir, tp),
            random_id=self.owner.random_id,
            **found,
        )
        log = PartitionLog.open(
            log_dir.directory_of(tp),
            config,
            storage=self.storage,
            clock=self.clock,
            options=self.options,
            owner=owner,
        )
        opened.append(log)
        return log

    def _begin_anew(self, log_dir: LogDir, tp: TopicPartition, start: int | None) -> None:
        """
        Raises:
            StorageFailedError: the entries of the log are still on file, so it must stay as it is.
        """
        try:
            log_dir.offsets.begin_anew(tp, start)
        except CheckpointError as error:
            failure = StorageFailedError(log_dir.path, f"forget {tp}", str(error))
            self.directories.fail(log_dir.path, failure)
            raise failure from error

    def _in_background(
        self, log_dir: LogDir, tp: TopicPartition, opened: list[ReplicaLog], task: Task
    ) -> None:
        def run() -> None:
            try:
                task()
            except LogstoreError as error:
                logger.error("background flush: %s", error)
                return
            for log in opened:
                known = log_dir.offsets.stored(RECOVERY_POINT).get(tp, 0)
                if known < log.segments[-1].base_offset <= log.recovery_point:
                    self.on_flushed()

        self.later(run)
