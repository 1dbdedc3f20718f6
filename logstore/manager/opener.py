"""Opens the logs of a manager, and creates them, many at once.

A creation never takes over an existing directory, and leaves nothing if it fails.
"""

from __future__ import annotations

import gc
import posixpath
import uuid
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from checkpoints.errors import CheckpointError
from checkpoints.loggers import get_logger
from checkpoints.partition_metadata import PARTITION_METADATA, PartitionMetadata
from checkpoints.topic_properties import TOPIC_PROPERTIES
from logstore.common.clock import Clock
from logstore.common.config import LogConfig
from logstore.common.disk_errors import Concern, concern_of, is_busy
from logstore.common.errors import (
    LogClosedError,
    LogstoreError,
    ResourceBusyError,
    StorageFailedError,
)
from logstore.common.parallel import run_all
from logstore.common.random_id import RandomId, random_id
from logstore.common.types import TopicPartition
from logstore.format import filenames
from logstore.log import Background, LogOwner, PartitionLog
from logstore.manager.claims import Claims
from logstore.manager.directories import Directories, OnFailure
from logstore.manager.log_dir import LogDir
from logstore.manager.offsets import HIGH_WATERMARK, LOG_START, RECOVERY_POINT
from logstore.manager.topic_configs import TopicConfigs
from logstore.recovery import RecoveryOptions, RecoveryReport
from logstore.storage.base import File, Storage

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
    """The decisions of a broker or a tool for its manager. The defaults are those of a service.

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

    def create(self, log_dir: LogDir, tp: TopicPartition, config: LogConfig) -> PartitionLog:
        """Create an empty log. Other files in its directory are trusted. The caller makes the name
        of the directory durable.

        Raises:
            StorageFailedError: the disk refused.
        """
        return self._open(log_dir, tp, config, clean_shutdown=True, keep_name=False)

    def load(
        self,
        log_dir: LogDir,
        tp: TopicPartition,
        config: LogConfig,
        *,
        clean: bool | None = None,
        name: str | None = None,
        sync_names: bool = True,
    ) -> PartitionLog:
        """Open a log that was found, with its checkpoint entries.

        Args:
            clean: whether it was closed cleanly; by default as its directory.
            name: of the directory of a future log, which may be empty.
            sync_names: see ``LogOwner``.
        Raises:
            StorageFailedError: the disk refused.
            CorruptDataError: damage that recovery may not cut.
        """
        offsets = log_dir.offsets
        log = self._open(
            log_dir,
            tp,
            config,
            name=name,
            sync_names=sync_names,
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
        self,
        log_dir: LogDir,
        tp: TopicPartition,
        config: LogConfig,
        name: str | None = None,
        **found: Any,
    ) -> PartitionLog:
        opened: list[PartitionLog] = []

        owner = LogOwner(
            managed=True,
            producer_id_expiration_ms=self.producer_id_expiration_ms,
            background=partial(self._in_background, log_dir, tp, opened),
            replicated=self.owner.replicated or self.owner.keep_high_watermarks,
            on_failure=partial(self.directories.on_log_failure, log_dir.path),
            # For this log alone: a fail-over truncates thousands, and each comes here.
            on_truncation=lambda: log_dir.offsets.lower_entries(
                log_dir.items, lambda: [(tp, log) for log in opened]
            ),
            on_restart=partial(self._restart_log, log_dir, tp),
            random_id=self.owner.random_id,
            **found,
        )
        log = PartitionLog.open(
            log_dir.directory_of(tp) if name is None else posixpath.join(log_dir.path, name),
            config,
            storage=self.storage,
            clock=self.clock,
            options=self.options,
            owner=owner,
        )
        opened.append(log)
        return log

    def _restart_log(self, log_dir: LogDir, tp: TopicPartition, start: int | None) -> None:
        """
        Raises:
            StorageFailedError: the entries of the log are still on file, so it must stay as it is.
        """
        try:
            log_dir.offsets.restart_log(tp, start)
        except CheckpointError as error:
            failure = StorageFailedError(log_dir.path, f"forget {tp}", str(error))
            self.directories.fail(log_dir.path, failure)
            raise failure from error

    def _in_background(
        self, log_dir: LogDir, tp: TopicPartition, opened: list[PartitionLog], task: Task
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


def count_as_old(logs: int) -> None:
    """Let the garbage collector count all that lives as old, which it looks at seldom.

    Not for few new logs, as to count what is frozen takes a look at all of that. And not for a
    caller who has frozen objects of its own: they would be unfrozen as well.
    """
    if logs >= BIRTHS_AT_ONCE and not gc.get_freeze_count():
        gc.freeze()
        gc.unfreeze()  # into the oldest generation


BIRTHS_AT_ONCE = 50  # each has open files
Made = tuple[LogDir, PartitionLog]


@dataclass(slots=True)
class Birth:
    """A log that is being created, in its log directory."""

    log_dir: LogDir
    tp: TopicPartition
    topic_id: uuid.UUID | None
    unborn: str = ""  # the path of its directory until that has its name
    files: list[File] = field(default_factory=list)  # not synced yet
    log: PartitionLog | None = None
    error: Exception | None = None

    def fail(self, error: Exception) -> None:
        if self.log is not None:
            self.log.crash()
        self.log, self.error = None, self.error or error

    def close_files(self) -> None:
        while self.files:
            self.files.pop().close()


class LogCreator:
    """Creates logs. The caller has a claim on them, and makes them findable.

    Args:
        threads: how many creations may wait for the disk at once.
    """

    def __init__(
        self, opener: LogOpener, configs: TopicConfigs, claims: Claims, threads: int
    ) -> None:
        self._opener = opener
        self._configs = configs
        self._claims = claims
        self._threads = threads
        self._directories = opener.directories
        self._storage = opener.storage
        self._uncounted = 0  # logs that the collector was told are old

    def create_all(self, births: Sequence[Birth]) -> None:
        """Create empty logs that cannot be found yet, each in its directory.

        Many are written, then they are synced, so that the disk has to stop only a few times. A
        directory gets its final name once it durably has the topic id and the configuration; the
        names are durable on return. What failed has an error, and leaves nothing.
        """
        self._drop_entries(births)
        for begin in range(0, len(births), BIRTHS_AT_ONCE):
            self._make(births[begin : begin + BIRTHS_AT_ONCE])
        self._at_homes(births, lambda log_dir, tps: self._storage.sync_dir(log_dir.path))
        for each in births:
            if each.error is None and each.log_dir.failure is not None:  # over another log
                self._give_up(each, each.log_dir.failure)
        if len(births) >= BIRTHS_AT_ONCE:
            self._spare_the_collector(len(births))

    def _spare_the_collector(self, born: int) -> None:
        """Count many new logs as old. Each quarter more objects made the collector look at all."""
        self._uncounted += born
        # It must find what deleted ones leave sometime: it is told of no more logs than live.
        if self._uncounted <= born + sum(len(each.logs) for each in self._directories.live()):
            count_as_old(born)
        else:
            self._uncounted = 0

    def _make(self, births: Sequence[Birth]) -> None:
        try:
            for stage in (self._write, self._sync, self._open):
                sound = [each for each in births if each.error is None]
                tasks = [partial(self._attempt, stage, each) for each in sound]
                threads = self._threads if len(tasks) > 1 else 1
                for _, error in run_all(tasks, threads, "logstore-create"):
                    if error is not None:
                        raise error
        finally:
            for each in births:
                each.close_files()

    def _drop_entries(self, births: Iterable[Birth]) -> None:
        """Drop what the checkpoints have under the names of new logs, once for each directory."""
        self._at_homes(births, lambda log_dir, tps: log_dir.offsets.forget_logs(tps))

    def _at_homes(
        self,
        births: Iterable[Birth],
        call: Callable[[LogDir, Collection[TopicPartition]], None],
    ) -> None:
        """Call once for each directory that has births left."""
        homes: dict[LogDir, list[Birth]] = {}
        for each in births:
            if each.error is None:
                homes.setdefault(each.log_dir, []).append(each)
        for log_dir, own in homes.items():
            try:
                with self._directories.guard(log_dir, "change its logs"):
                    call(log_dir, [each.tp for each in own])
            except LogstoreError as error:
                for each in own:
                    self._give_up(each, error)

    def _attempt(self, stage: Callable[[Birth], None], birth: Birth) -> None:
        try:
            self._directories.check_open()
        except LogClosedError as error:  # the directory may have another owner by now
            birth.fail(error)
            return
        try:
            self._claims.check()
            stage(birth)
        except Exception as error:
            self._give_up(birth, error)

    def _write(self, birth: Birth) -> None:
        log_dir, tp, topic_id = birth.log_dir, birth.tp, birth.topic_id
        self.clear_the_way(log_dir, tp)
        stored = self._configs.stored(tp.topic)
        if topic_id is None and stored is None:
            return
        birth.unborn = self._unborn(log_dir, tp, topic_id)
        self._storage.make_dir(birth.unborn)
        contents = {}
        if topic_id is not None:
            contents[PARTITION_METADATA] = PartitionMetadata(topic_id).encode()
        if stored is not None:
            contents[TOPIC_PROPERTIES] = stored.encode()
        for name, data in contents.items():
            file = self._storage.open(posixpath.join(birth.unborn, name), create=True)
            birth.files.append(file)
            file.write_at(0, data)
        if stored is not None and self._opener.owner.replicated:
            birth.files.pop().close()  # a copy: the next role mends what a power cut left of it

    def _sync(self, birth: Birth) -> None:
        if birth.files:
            for file in birth.files:
                file.sync()
            birth.close_files()
            self._storage.sync_dir(birth.unborn)

    def _open(self, birth: Birth) -> None:
        log_dir, tp = birth.log_dir, birth.tp
        if birth.unborn:
            self._storage.rename(birth.unborn, log_dir.directory_of(tp))
            birth.unborn = ""  # another try may take that path
        birth.log = self._opener.create(log_dir, tp, self._configs.of(tp.topic))

    def _give_up(self, birth: Birth, error: Exception) -> None:
        log_dir, directory = birth.log_dir, birth.log_dir.directory_of(birth.tp)
        failure = error
        if is_busy(error):
            failure = ResourceBusyError(directory, "create", str(error))
        elif isinstance(error, OSError | CheckpointError):
            failure = StorageFailedError(directory, "create", str(error))
        if failure is not error:
            failure.__cause__ = error
        birth.fail(failure)
        if birth.unborn:
            self._directories.remove_later(0, birth.unborn)
        self._leave_nothing(log_dir, birth.tp)
        if isinstance(failure, StorageFailedError) and concern_of(error) is Concern.DIRECTORY:
            self._directories.fail(log_dir.path, failure)  # as Kafka: there would be no retry

    def _unborn(self, log_dir: LogDir, tp: TopicPartition, topic_id: uuid.UUID | None) -> str:
        """The path of a directory that waits for its name. It is removed if it never gets it."""
        if topic_id is not None:
            name = filenames.delete_dir_name(tp, topic_id.hex)
            path = posixpath.join(log_dir.path, name)
            if self._storage.info(path) is None:
                return path
        name = filenames.delete_dir_name(tp, self._opener.owner.random_id())
        return posixpath.join(log_dir.path, name)

    def _leave_nothing(self, log_dir: LogDir, tp: TopicPartition) -> None:
        """Remove the rest of a creation, as far as the disk allows.

        It would be a log at the next start, when the partition may be elsewhere.
        """
        try:
            path = log_dir.rename_deleted(tp, self._opener.owner.random_id())
            self._directories.remove_later(0, path)
            self._storage.sync_dir(log_dir.path)
        except FileNotFoundError:
            return
        except OSError as error:
            logger.warning("%s is left in %s: %s", tp, log_dir.path, error)

    def clear_the_way(self, log_dir: LogDir, tp: TopicPartition) -> None:
        """Remove what has the name of a new log, so that it is not taken for the log's own. Its
        checkpoint entries are gone already.
        """
        if self._storage.info(log_dir.directory_of(tp)) is None:
            return
        log_dir.set_aside(tp, self._opener.owner.random_id(), "is in the way of a new log")
        self._storage.sync_dir(log_dir.path)


def made_of(births: Iterable[Birth]) -> list[Made]:
    return [(each.log_dir, each.log) for each in births if each.log is not None]
