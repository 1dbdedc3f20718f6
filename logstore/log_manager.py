"""All logs of a set of log directories. Matches Kafka's ``LogManager`` (F-8 … F-15, F-225 … F-236).

One owner per directory (``.lock``); logs load in parallel; a directory that fails goes offline and
the others go on. The periodic work is in plain methods, which ``start`` runs on a thread and a
simulation calls itself. With ``run_later`` no other thread is ever used.
"""

from __future__ import annotations

import logging
import os
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from checkpoints import clean_shutdown
from checkpoints.checkpoint_file import FileState
from checkpoints.errors import CheckpointError, MalformedCheckpointError
from checkpoints.meta_properties import META_PROPERTIES, MetaProperties, MetaPropertiesFile
from checkpoints.offset_checkpoint import (
    CLEANER,
    HIGH_WATERMARK,
    LOG_START,
    RECOVERY_POINT,
    OffsetCheckpoint,
)
from checkpoints.partition_metadata import topic_id_to_text
from logstore.clock import Clock, SystemClock
from logstore.config import BrokerConfig, LogConfig
from logstore.errors import (
    ConfigError,
    LogDirLockedError,
    LogstoreError,
    StorageFailedError,
    TopicExistsError,
    UnknownTopicOrPartitionError,
)
from logstore.format import filenames
from logstore.log import Background, PartitionLog
from logstore.random_id import RandomId, new_uuid, random_id
from logstore.recovery import RecoveryOptions, RecoveryReport
from logstore.storage.base import DirLock, Storage
from logstore.storage.local import LocalStorage
from logstore.types import TopicPartition
from logstore.workers import Outcome, run_all

logger = logging.getLogger(__name__)

LOCK = ".lock"
SYNC_THREADS = 8  # measured: syncs of so many files at once end together; more gain nothing

Progress = Callable[["LoadProgress"], None]
T = TypeVar("T")
OffsetOf = Callable[[PartitionLog], int | None]


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """Told after each partition: how many of ``total`` are open, and what the last one needed."""

    directory: str
    done: int
    total: int
    report: RecoveryReport


@dataclass(slots=True)
class LogDir:
    """One log directory and its checkpoints."""

    path: str
    lock: DirLock
    clean: bool
    recovery_points: OffsetCheckpoint
    start_offsets: OffsetCheckpoint
    high_watermarks: OffsetCheckpoint
    cleaner_offsets: OffsetCheckpoint
    checkpointing: threading.Lock = field(default_factory=threading.Lock)
    logs: dict[TopicPartition, PartitionLog] = field(default_factory=dict)
    creating: int = 0  # logs that are about to come
    loaded: bool = False
    failure: LogstoreError | None = None
    broker_epoch: int = clean_shutdown.UNKNOWN_BROKER_EPOCH


class LogManager:
    """Opens log directories; creates, finds and deletes logs in them.

    Use as a context manager, or call ``close``: only then is the next start a clean one.
    """

    def __init__(
        self,
        directories: Iterable[str | os.PathLike[str]],
        config: LogConfig | None = None,
        *,
        broker_config: BrokerConfig | None = None,
        topic_configs: Mapping[str, LogConfig] | None = None,
        storage: Storage | None = None,
        clock: Clock | None = None,
        cluster_id: str | None = None,
        node_id: int = 0,
        options: RecoveryOptions | None = None,
        replicated: bool = False,
        progress: Progress | None = None,
        run_later: Background | None = None,
        on_directory_failure: Callable[[str, LogstoreError], None] | None = None,
        random_id: RandomId = random_id,
    ) -> None:
        """Lock and load the directories, which are created when missing.

        Args:
            topic_configs: overrides by topic; needed before loading (F-237).
            cluster_id: checked against ``meta.properties``, or written there on the first start.
            progress: called after each partition is loaded, from any thread.
            run_later: takes the flush of each rolled segment, which it may run when it likes, or
                never. Then loading and closing stay in the caller's thread; without it there are
                a flusher thread, and a pool for recovery and for closing.
            on_directory_failure: called once for each directory that goes offline, with its path
                and the reason, after its logs refuse work; at the start too, before this returns.
                From the thread that met the failure, which may hold the lock of a log: hand the
                news on and come back.
            random_id: 32 hex digits, other ones each time: new ids, names of deleted logs, jitter.
        Raises:
            LogDirLockedError: a directory is open elsewhere.
            StorageFailedError: every directory failed.
            ConfigError: the directories do not belong together (F-45), or one is given twice.
        """
        self.config = config or LogConfig()
        self.broker_config = broker_config or BrokerConfig()
        self._topic_configs = dict(topic_configs or {})
        self._storage = storage or LocalStorage()
        self._clock = clock or SystemClock()
        self._options = options or RecoveryOptions()
        self._replicated = replicated
        self._progress = progress
        self._on_directory_failure = on_directory_failure
        self._random_id = random_id
        self._lock = threading.RLock()
        self._creation_locks = [threading.Lock() for _ in range(2 * SYNC_THREADS)]
        self._offline: dict[str, LogstoreError] = {}
        self._pending_deletes: list[tuple[int, str]] = []  # (due ms, path of a -delete directory)
        self._flusher: ThreadPoolExecutor | None = None
        self._threads = 1  # for loading and closing
        self._run_later: Callable[[Callable[[], None]], object]
        if run_later is None:
            self._flusher = ThreadPoolExecutor(1, thread_name_prefix="logstore-flusher")
            self._threads = self.broker_config.num_recovery_threads_per_data_dir
            self._run_later = self._flusher.submit
        else:
            self._run_later = run_later
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._dirs: dict[str, LogDir] = {}
        self._failed_dirs: list[LogDir] = []  # their files are held until the end
        self._node_id = node_id
        paths = self._distinct(directories)
        try:
            for path in paths:
                self._open_dir(path)
            self._check_meta(cluster_id)
            for log_dir in list(self._dirs.values()):
                self._load_dir(log_dir)
        except BaseException:
            self._release()
            raise
        if not self._dirs:
            first = next(iter(self._offline.values()))
            self._release()
            raise StorageFailedError(", ".join(paths), "open any log directory", str(first))
        epochs = {log_dir.broker_epoch for log_dir in self._dirs.values()}
        agreed = len(epochs) == 1 and not self._offline
        self._previous_broker_epoch = (
            epochs.pop() if agreed else clean_shutdown.UNKNOWN_BROKER_EPOCH
        )

    def __enter__(self) -> LogManager:
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        self.close()

    # -- opening -------------------------------------------------------------------------------

    def _distinct(self, directories: Iterable[str | os.PathLike[str]]) -> list[str]:
        paths = [os.fspath(d).rstrip("/") or "/" for d in directories]
        if not paths:
            raise ConfigError("at least one log directory is needed")
        seen: dict[str, str] = {}
        for path in paths:
            real = self._storage.real_path(path)
            if real in seen:
                raise ConfigError(f"{path} and {seen[real]} are the same directory")
            seen[real] = path
        return paths

    def _open_dir(self, path: str) -> None:
        """F-236, steps 1 to 5: create, lock, and remember whether the last stop was clean."""
        storage = self._storage
        try:
            if storage.info(path) is None:
                storage.make_dir(path)
            if storage.info(os.path.join(path, META_PROPERTIES)) is None:  # not yet used
                storage.sync_dir(os.path.dirname(os.path.abspath(path)) or ".")
            lock = storage.lock(os.path.join(path, LOCK))
        except LogDirLockedError:
            raise
        except OSError as error:
            self._take_offline(path, StorageFailedError(path, "open", str(error)))
            return

        def checkpoint(name: str) -> OffsetCheckpoint:
            return OffsetCheckpoint(os.path.join(path, name), storage)

        log_dir = LogDir(
            path, lock, False, checkpoint(RECOVERY_POINT), checkpoint(LOG_START),
            checkpoint(HIGH_WATERMARK), checkpoint(CLEANER),
        )  # fmt: skip
        marker = os.path.join(path, clean_shutdown.CLEAN_SHUTDOWN)
        try:
            epoch = clean_shutdown.read(marker, storage)
            log_dir.broker_epoch = clean_shutdown.UNKNOWN_BROKER_EPOCH if epoch is None else epoch
            # Gone, durably, before anything is loaded: a crash while loading is unclean (F-47).
            log_dir.clean = clean_shutdown.remove(marker, storage)
        except (OSError, CheckpointError) as error:
            lock.release()
            self._take_offline(path, StorageFailedError(path, "remove marker", str(error)))
            return
        self._dirs[path] = log_dir

    def _check_meta(self, cluster_id: str | None) -> None:
        """F-39 … F-45: the directories agree; one without the file gets it."""
        found: dict[str, MetaProperties] = {}
        for path in list(self._dirs):
            file = MetaPropertiesFile(os.path.join(path, META_PROPERTIES), self._storage)
            try:
                meta = file.read()
            except CheckpointError as error:
                self._fail_dir(path, StorageFailedError(path, "read meta.properties", str(error)))
                continue
            if meta is not None:
                found[path] = meta
        ids = {m.cluster_id for m in found.values() if m.cluster_id is not None}
        nodes = {m.node_id for m in found.values() if m.node_id is not None}
        if cluster_id is not None:
            ids.add(cluster_id)
        if len(ids) > 1 or len(nodes) > 1:
            raise ConfigError(
                f"the log directories belong to different clusters or nodes: {sorted(ids)}, "
                f"{sorted(nodes)}"
            )
        directory_ids = [m.directory_id for m in found.values() if m.directory_id]
        if len(set(directory_ids)) != len(directory_ids):
            raise ConfigError("two log directories carry the same directory.id")
        self.cluster_id = next(iter(ids), None) or topic_id_to_text(new_uuid(self._random_id))
        self.node_id = next(iter(nodes), self._node_id)
        for path in [p for p in self._dirs if p not in found]:
            meta = MetaProperties(
                1,
                cluster_id=self.cluster_id,
                node_id=self.node_id,
                directory_id=new_uuid(self._random_id),
            )
            file = MetaPropertiesFile(os.path.join(path, META_PROPERTIES), self._storage)
            try:
                file.write(meta, self._clock.wall_ms())
            except CheckpointError as error:
                self._fail_dir(path, StorageFailedError(path, "write meta.properties", str(error)))

    def _read_offsets(self, checkpoint: OffsetCheckpoint) -> dict[TopicPartition, int]:
        """A checkpoint that cannot be used counts as absent, with a warning (S-55)."""
        try:
            state, offsets = checkpoint.inspect()
        except MalformedCheckpointError as error:
            logger.warning("%s; treated as absent", error)
            return {}
        if state is FileState.EMPTY:
            logger.info("%s is empty", checkpoint.path)
        return offsets

    def _load_dir(self, log_dir: LogDir) -> None:
        """F-236, step 6: the partitions in parallel; an I/O error takes the directory offline."""
        try:
            points = self._read_offsets(log_dir.recovery_points)
            starts = self._read_offsets(log_dir.start_offsets)
            marks = self._read_offsets(log_dir.high_watermarks) if self._replicated else {}
            names = [e.name for e in self._storage.scan_dir(log_dir.path) if e.is_dir]
        except (OSError, CheckpointError) as error:
            self._fail_dir(log_dir.path, StorageFailedError(log_dir.path, "load", str(error)))
            return
        work: list[tuple[str, TopicPartition]] = []
        for name in names:
            if name in (filenames.REMOTE_LOG_INDEX_CACHE, filenames.CLUSTER_METADATA_DIR):
                continue
            parsed = filenames.parse_partition_dir(name)  # a stray name is a clear error (F-6)
            if parsed.suffix == filenames.DELETE_DIR_SUFFIX:
                self._pending_deletes.append((0, os.path.join(log_dir.path, name)))
            elif parsed.suffix == "":
                work.append((name, parsed.topic_partition))
        done = 0
        count_lock = threading.Lock()

        def load(name: str, tp: TopicPartition) -> PartitionLog:
            nonlocal done
            log = PartitionLog.open(
                os.path.join(log_dir.path, name),
                self.topic_config(tp.topic),
                storage=self._storage,
                clock=self._clock,
                clean_shutdown=log_dir.clean,
                recovery_point=points.get(tp, 0),
                log_start_offset=starts.get(tp, 0),
                options=self._options,
                producer_id_expiration_ms=self.broker_config.producer_id_expiration_ms,
                background=self._in_background,
                replicated=self._replicated,
                on_failure=partial(self._fail_dir, log_dir.path),
                random_id=self._random_id,
            )
            if self._replicated:
                log.update_high_watermark(marks.get(tp, 0))
            with count_lock:
                done += 1
                progress = LoadProgress(log_dir.path, done, len(work), log.recovery_report)
            if self._progress is not None:
                self._progress(progress)
            return log

        # A clean start reads no record, so there is nothing to do without the interpreter's lock.
        threads = 1 if log_dir.clean else self._threads
        outcomes = run_all((partial(load, *item) for item in work), threads, "logstore-recovery")
        self._collect(log_dir, [tp for _, tp in work], outcomes)

    def _collect(
        self,
        log_dir: LogDir,
        partitions: list[TopicPartition],
        outcomes: list[Outcome[PartitionLog]],
    ) -> None:
        fatal: BaseException | None = None
        failure: StorageFailedError | None = None
        for tp, (log, error) in zip(partitions, outcomes, strict=False):
            if log is None:
                if isinstance(error, StorageFailedError | CheckpointError):
                    failure = failure or StorageFailedError(log_dir.path, f"load {tp}", str(error))
                else:
                    fatal = fatal or error
                continue
            other = self._find(tp)
            if other is not None:
                fatal = fatal or ConfigError(
                    f"{tp} is both in {other.directory} and in {log.directory} (F-7)"
                )
            log_dir.logs[tp] = log
        if fatal is not None:
            raise fatal
        if failure is not None:
            self._fail_dir(log_dir.path, failure)
        elif log_dir.failure is None:
            log_dir.loaded = True

    # -- failures ------------------------------------------------------------------------------

    def _take_offline(self, path: str, failure: LogstoreError) -> None:
        logger.error("log directory %s is offline: %s", path, failure)
        self._offline[path] = failure
        if self._on_directory_failure is not None:
            self._on_directory_failure(path, failure)

    def _fail_dir(self, path: str, failure: LogstoreError) -> None:
        """F-224: the whole directory is offline until it is opened again; the others go on."""
        with self._lock:
            log_dir = self._dirs.pop(path, None)
            if log_dir is None:
                return
            self._failed_dirs.append(log_dir)
            log_dir.failure = self._offline[path] = failure
            logs = list(log_dir.logs.values())
        for log in logs:
            log.mark_failed(failure)
        log_dir.lock.release()
        self._take_offline(path, failure)

    # -- finding and creating ------------------------------------------------------------------

    def topic_config(self, topic: str) -> LogConfig:
        return self._topic_configs.get(topic, self.config)

    @property
    def live_directories(self) -> list[str]:
        return list(self._dirs)

    @property
    def offline_directories(self) -> dict[str, LogstoreError]:
        """Path -> why; a directory comes back only with a new ``LogManager``."""
        return dict(self._offline)

    @property
    def previous_broker_epoch(self) -> int:
        """The epoch under which this broker last stopped in order, as every directory has it.

        −1 where one is offline, was not closed cleanly, or says otherwise (KIP-966).
        """
        return self._previous_broker_epoch

    @property
    def logs(self) -> dict[TopicPartition, PartitionLog]:
        """All logs of the live directories."""
        with self._lock:
            return {tp: log for d in self._dirs.values() for tp, log in d.logs.items()}

    @property
    def recovery_reports(self) -> list[RecoveryReport]:
        return [log.recovery_report for log in self.logs.values()]

    def _find(self, tp: TopicPartition) -> PartitionLog | None:
        with self._lock:
            return next((d.logs[tp] for d in self._dirs.values() if tp in d.logs), None)

    def get(self, topic: str, partition: int) -> PartitionLog:
        """The log of a partition.

        Raises:
            UnknownTopicOrPartitionError: there is none in a live directory.
        """
        log = self._find(TopicPartition(topic, partition))
        if log is None:
            raise UnknownTopicOrPartitionError(f"{topic}-{partition} is not in a live directory")
        return log

    def get_or_create(
        self,
        topic: str,
        partition: int,
        *,
        topic_id: uuid.UUID | None = None,
        config: LogConfig | None = None,
        is_new: bool = True,
    ) -> PartitionLog:
        """The log of a partition, created in the live directory with the fewest logs (F-8).

        Args:
            is_new: False when records of it are expected: it is not created anew while a
                directory is offline, which may hold it.
        Raises:
            InvalidTopicError: the name breaks F-2, or collides with another by ``.`` and ``_``.
            StorageFailedError: no directory is live, the one that may hold it is not, or the disk
                refused.
        """
        tp = TopicPartition(topic, partition)
        with self._creation_lock(tp):
            log = self._find(tp)
            if log is not None:
                return log
            filenames.validate_topic(topic)
            with self._lock:
                if not self._dirs:
                    raise StorageFailedError("", "create a log", "no log directory is live")
                if not is_new and (self._failed_dirs or self._offline):
                    paths = ", ".join(self._offline)
                    raise StorageFailedError(paths, f"find {tp}", "a directory is offline")
                log_dir = min(self._dirs.values(), key=lambda d: len(d.logs) + d.creating)
                log_dir.creating += 1
            try:
                return self._create(log_dir, tp, topic_id, config)
            except StorageFailedError as error:
                self._fail_dir(log_dir.path, error)  # as Kafka: nobody would try it again
                raise
            finally:
                with self._lock:
                    log_dir.creating -= 1

    def _creation_lock(self, tp: TopicPartition) -> threading.Lock:
        """Held while a log is created or deleted; others may be at the same time."""
        return self._creation_locks[tp.partition % len(self._creation_locks)]

    def _create(
        self,
        log_dir: LogDir,
        tp: TopicPartition,
        topic_id: uuid.UUID | None,
        config: LogConfig | None,
    ) -> PartitionLog:
        if config is not None:
            self._topic_configs[tp.topic] = config
        log = PartitionLog.open(
            os.path.join(log_dir.path, filenames.partition_dir_name(tp)),
            self.topic_config(tp.topic),
            storage=self._storage,
            clock=self._clock,
            clean_shutdown=True,
            topic_id=topic_id,
            producer_id_expiration_ms=self.broker_config.producer_id_expiration_ms,
            background=self._in_background,
            replicated=self._replicated,
            on_failure=partial(self._fail_dir, log_dir.path),
            random_id=self._random_id,
        )
        with self._lock:
            log_dir.logs[tp] = log
            if log_dir.failure is not None:  # meanwhile
                log.mark_failed(log_dir.failure)
        return log

    def create_topic(
        self, topic: str, partitions: int, config: LogConfig | None = None
    ) -> list[PartitionLog]:
        """Create all partitions of a topic under one new topic id.

        Raises:
            TopicExistsError: it, or a topic whose name collides (F-2), is here already.
        """
        filenames.validate_topic(topic)
        for tp in self.logs:
            if filenames.topics_collide(tp.topic, topic):
                raise TopicExistsError(f"topic {topic!r} collides with {tp.topic!r}")
        topic_id = new_uuid(self._random_id)
        return [
            self.get_or_create(topic, partition, topic_id=topic_id, config=config)
            for partition in range(partitions)
        ]

    def delete(self, topic: str, partition: int) -> None:
        """Rename the directory to ``…-delete`` now; remove it after ``file.delete.delay.ms``."""
        tp = TopicPartition(topic, partition)
        with self._creation_lock(tp):
            log = self.get(topic, partition)
            log_dir = self._dirs[os.path.dirname(log.directory)]
            with self._lock:
                del log_dir.logs[tp]
            target = os.path.join(log_dir.path, filenames.delete_dir_name(tp, self._random_id()))
            log.crash()  # nothing of it is wanted any more
            try:
                self._storage.rename(log.directory, target)
                self._storage.sync_dir(log_dir.path)
            except OSError as error:
                failure = StorageFailedError(log_dir.path, f"delete {tp}", str(error))
                self._fail_dir(log_dir.path, failure)
                raise failure from error
            due = self._clock.wall_ms() + log.config.file_delete_delay_ms
            self._pending_deletes.append((due, target))

    # -- many logs at once ---------------------------------------------------------------------

    def run_all(self, tasks: Iterable[Callable[[], T]]) -> list[Outcome[T]]:
        """Run calls on different logs that wait for the disk, several at once; with ``run_later``
        one after the other. Outcomes in the order of the tasks (``workers.run_all``)."""
        threads = 1 if self._flusher is None else SYNC_THREADS
        return run_all(tasks, threads, "logstore-sync")

    # -- truncation with its checkpoint --------------------------------------------------------

    def truncate_to(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Truncate logs, then write the recovery points that make a crash repeat it (F-231).

        Raises:
            UnknownTopicOrPartitionError: of a log that is in no live directory.
            StorageFailedError: a cut, or the checkpoint after it, was refused: after a crash the
                log may be as it was.
        """
        logs = {self.get(*tp): offset for tp, offset in offsets.items()}
        for log, offset in logs.items():
            log.truncate_to(offset)
        self.checkpoint_recovery_points()
        for log in logs:
            failure = self._offline.get(os.path.dirname(log.directory))
            if failure is not None:
                raise failure

    # -- periodic work -------------------------------------------------------------------------

    def checkpoint_recovery_points(self) -> None:
        """F-11, F-227; a directory whose checkpoint cannot be written goes offline.

        The log start offsets go first: a recovery point raised to one (F-222) would otherwise
        stand for records that a crash brings back.
        """
        for log_dir in list(self._dirs.values()):
            if self._checkpoint(log_dir, log_dir.start_offsets, _start_offset) is None:
                continue
            points = self._checkpoint(log_dir, log_dir.recovery_points, _recovery_point)
            if points is not None:
                for tp, log in list(log_dir.logs.items()):
                    log.drop_old_snapshots(points.get(tp, 0))

    def checkpoint_log_start_offsets(self) -> None:
        """F-12: only logs that start inside their first segment."""
        for log_dir in list(self._dirs.values()):
            self._checkpoint(log_dir, log_dir.start_offsets, _start_offset)

    def checkpoint_high_watermarks(self) -> None:
        """F-13."""
        for log_dir in list(self._dirs.values()):
            self._checkpoint(log_dir, log_dir.high_watermarks, _high_watermark)

    def _checkpoint(
        self, log_dir: LogDir, checkpoint: OffsetCheckpoint, offset_of: OffsetOf
    ) -> dict[TopicPartition, int] | None:
        """What was written; None when the directory had to go offline."""
        try:
            return _write_offsets(log_dir, checkpoint, offset_of)
        except CheckpointError as error:
            failure = StorageFailedError(log_dir.path, "write checkpoint", str(error))
            self._fail_dir(log_dir.path, failure)
            return None

    def flush_dirty_logs(self) -> int:
        """Flush logs whose last flush is at least ``flush.ms`` ago (F-221); how many."""
        flushed = 0
        for log in self.logs.values():
            waited = self._clock.wall_ms() - log.last_flush_ms
            if log.unflushed and waited >= log.config.flush_ms:
                try:
                    log.flush()
                    flushed += 1
                except LogstoreError as error:
                    logger.error("flush of %s: %s", log.name, error)
        return flushed

    def clean_up(self) -> int:
        """Retention over all logs (F-225); the number of segments deleted."""
        deleted = 0
        for log in self.logs.values():
            try:
                deleted += log.delete_old_segments()
            except LogstoreError as error:
                logger.error("retention of %s: %s", log.name, error)
        return deleted

    def remove_expired_producers(self) -> int:
        return sum(log.remove_expired_producers() for log in self.logs.values())

    def purge_deleted(self) -> int:
        """Remove ``-delete`` directories and ``.deleted`` files that are due (F-229)."""
        now = self._clock.wall_ms()
        with self._lock:
            due = [path for when, path in self._pending_deletes if when <= now]
            self._pending_deletes = [e for e in self._pending_deletes if e[0] > now]
        for path in due:
            try:
                self._storage.remove_tree(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                failure = StorageFailedError(path, "remove", str(error))
                self._fail_dir(os.path.dirname(path), failure)
        return len(due) + sum(log.purge_deleted(now) for log in self.logs.values())

    def start(self) -> None:
        """Run the periodic work on a background thread, at the intervals of the configuration."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name="logstore-background", daemon=True
            )
            self._thread.start()

    def _run(self) -> None:
        config = self.broker_config
        tasks = {
            self.clean_up: config.log_retention_check_interval_ms,
            self.flush_dirty_logs: config.log_flush_scheduler_interval_ms,
            self.checkpoint_recovery_points: config.log_flush_offset_checkpoint_interval_ms,
            self.checkpoint_log_start_offsets: (
                config.log_flush_start_offset_checkpoint_interval_ms
            ),
            self.remove_expired_producers: config.producer_id_expiration_check_interval_ms,
            self.purge_deleted: 1000,
        }
        first = self._clock.monotonic_ns() + config.log_initial_task_delay_ms * 1_000_000
        due = dict.fromkeys(tasks, first)
        while not self._stop.wait(min(1.0, max(0.0, _seconds_until(due.values(), self._clock)))):
            for task, interval_ms in tasks.items():
                if self._clock.monotonic_ns() < due[task]:
                    continue
                due[task] = self._clock.monotonic_ns() + interval_ms * 1_000_000
                try:
                    task()
                except Exception:
                    logger.exception("background task %s", task.__name__)

    def _in_background(self, task: Callable[[], None]) -> None:
        def run() -> None:
            try:
                task()
            except LogstoreError as error:
                logger.error("background flush: %s", error)

        self._run_later(run)

    # -- closing -------------------------------------------------------------------------------

    def close(self, broker_epoch: int = clean_shutdown.UNKNOWN_BROKER_EPOCH) -> None:
        """Stop, flush and close all logs, write the checkpoints, then the clean marker (F-48).

        A directory in which a log could not be closed gets no marker: its next start recovers.

        Args:
            broker_epoch: the epoch that ends here, for ``previous_broker_epoch`` (KIP-966).
        """
        if self._closed:
            return
        self._closed = True
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        if self._flusher is not None:
            self._flusher.shutdown(wait=True)
        try:
            for log_dir in list(self._dirs.values()):
                self._close_dir(log_dir, broker_epoch)
        finally:
            self._release()

    def _close_dir(self, log_dir: LogDir, broker_epoch: int) -> None:
        closing = [log.close for log in log_dir.logs.values()]
        outcomes = run_all(closing, self._threads, "logstore-close")
        errors = [error for _, error in outcomes if error is not None]
        for error in errors:
            if not isinstance(error, Exception):
                raise error
            logger.error("closing a log of %s: %s", log_dir.path, error)
        if errors or log_dir.failure is not None or not log_dir.loaded:
            return
        try:
            _write_offsets(log_dir, log_dir.recovery_points, _recovery_point)
            _write_offsets(log_dir, log_dir.start_offsets, _start_offset)
            _write_offsets(log_dir, log_dir.high_watermarks, _high_watermark)
            marker = os.path.join(log_dir.path, clean_shutdown.CLEAN_SHUTDOWN)
            clean_shutdown.write(marker, broker_epoch, self._storage)
        except (OSError, CheckpointError) as error:
            logger.error("no clean shutdown of %s: %s", log_dir.path, error)

    def crash(self) -> None:
        """Let go of everything without flushing, as the end of the process would; for tests."""
        self._closed = True
        self._stop.set()
        if self._flusher is not None:
            self._flusher.shutdown(wait=True, cancel_futures=True)
        self._release()

    def _release(self) -> None:
        if self._flusher is not None:
            self._flusher.shutdown(wait=False)
        for log_dir in (*self._dirs.values(), *self._failed_dirs):
            for log in log_dir.logs.values():
                log.crash()
            log_dir.lock.release()
        self._dirs.clear()
        self._failed_dirs.clear()


def _write_offsets(
    log_dir: LogDir, checkpoint: OffsetCheckpoint, offset_of: OffsetOf
) -> dict[TopicPartition, int]:
    """One thread at a time, and the offsets are taken inside: those from before a truncation must
    not replace those from after it.

    Raises:
        CheckpointFailedError: the medium refused.
    """
    with log_dir.checkpointing:
        found = ((tp, offset_of(log)) for tp, log in list(log_dir.logs.items()))
        offsets = {tp: offset for tp, offset in found if offset is not None}
        checkpoint.write(offsets)
    return offsets


def _recovery_point(log: PartitionLog) -> int:
    return log.recovery_point


def _start_offset(log: PartitionLog) -> int | None:
    start = log.log_start_offset
    return start if start > log.segments[0].base_offset else None


def _high_watermark(log: PartitionLog) -> int:
    return log.high_watermark


def _seconds_until(due: Iterable[int], clock: Clock) -> float:
    return (min(due) - clock.monotonic_ns()) / 1e9
