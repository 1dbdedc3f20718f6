"""All logs of a set of log directories. Matches Kafka's ``LogManager`` (F-8 … F-15, F-225 … F-236).

One owner per directory (``.lock``); logs load in parallel; a directory that fails goes offline and
the others go on. The periodic work is in plain methods, which a thread runs by default and a
simulation calls itself. With ``run_later`` no other thread is ever used.
"""

from __future__ import annotations

import posixpath
import uuid
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeVar

from checkpoints import clean_shutdown
from logstore.cleaner.log_cleaner import LogCleaner
from logstore.common.clock import Clock, SystemClock
from logstore.common.config import MAX_LONG, BrokerConfig, LogConfig
from logstore.common.errors import LogstoreError, LogUnavailableError, UnknownTopicOrPartitionError
from logstore.common.locks import Rank, make_lock
from logstore.common.parallel import LaterThread, TaskOutcome, run_all
from logstore.common.shield import run_shielded, shielded
from logstore.common.types import TopicPartition
from logstore.log import PartitionLog
from logstore.manager.directories import Directories
from logstore.manager.duties import (
    CHECKPOINT_PAUSE_MS,
    LOG_FLUSHER,
    RECOVERY_POINT_CHECKPOINT,
    Duties,
    Duty,
    DutyThread,
    Housekeeper,
    StartRunner,
    log_duties,
)
from logstore.manager.loading import Loader
from logstore.manager.opener import SERVICE, LogOpener, ManagerOwner
from logstore.manager.topic_configs import TopicConfig, TopicConfigs
from logstore.manager.topics import Topics, WantedLog
from logstore.recovery import RecoveryOptions, RecoveryReport
from logstore.segments.open_files import raise_limit
from logstore.storage.base import Storage
from logstore.storage.local import LocalStorage
from logstore.storage.paths import Paths, each_path

SYNC_THREADS = 8  # measured: more syncs at once than that gain nothing

T = TypeVar("T")


class LogManager:
    """Opens log directories; creates, finds and deletes logs in them.

    Use it as a context manager, or call ``close``. Otherwise the next start has to recover.

    Attributes:
        housekeeper: the periodic work, for who runs it by hand.
        cleaner: compacts the logs that have it in their ``cleanup.policy``; its threads run
            with the periodic work. Without threads, call ``clean_filthiest`` for one pass.
        futures: moves of logs between its directories.
        last_stop: what the directories prove of the last stop of a broker.
    """

    def __init__(
        self,
        directories: Paths,
        config: LogConfig | None = None,
        *,
        broker_config: BrokerConfig | None = None,
        topic_configs: Mapping[str, LogConfig] | None = None,
        storage: Storage | None = None,
        clock: Clock | None = None,
        options: RecoveryOptions | None = None,
        background: bool = True,
        owner: ManagerOwner = SERVICE,
    ) -> None:
        """Lock and load the directories, which are created when missing.

        Args:
            topic_configs: by topic, instead of the stored configuration.
            background: do the periodic work on a thread: flushes after ``flush.ms``, checkpoints,
                retention. Without it the caller runs it, or calls ``start``.
            owner: what a broker or a tool decides for its manager.
        Raises:
            LogDirLockedError: a directory is open elsewhere.
            StorageFailedError: every directory failed.
            ConfigError: the directories do not belong together (F-45), or one is given twice.
        """
        raise_limit()
        self.config = config or LogConfig()
        self.broker_config = broker_config or BrokerConfig()
        self._clock = clock or SystemClock()
        self._duties: Duties | None = None
        self._flusher = LaterThread("logstore-flusher") if owner.run_later is None else None
        threaded = self._flusher is not None
        self._threads = self.broker_config.num_recovery_threads_per_data_dir if threaded else 1
        self._later = later = owner.run_later or self._flusher.submit  # type: ignore[union-attr]
        storage = storage or LocalStorage()
        self._directories = Directories(
            storage, later, owner.on_directory_failure, owner.on_log_failure
        )
        self._configs = TopicConfigs(self.config, topic_configs or {}, storage, owner.replicated)
        opener = LogOpener(
            storage,
            self._clock,
            options or RecoveryOptions(),
            self.broker_config.producer_id_expiration_ms,
            owner,
            later,
            self._directories,
            self._checkpoint_soon,
        )
        syncs = SYNC_THREADS if threaded else 1
        self._topics = Topics(self._directories, opener, self._configs, syncs, self._on_config)
        self.futures = self._topics.futures
        self.housekeeper = Housekeeper(self._directories, self._clock)
        self.cleaner = LogCleaner(self._directories, self.broker_config, self._clock)
        self._closing = make_lock(Rank.CREATION)
        self._closed = False
        loader = Loader(opener, self._configs, self._threads)
        paths = loader.distinct(each_path(directories))
        self._directories.ownership.name = ", ".join(paths)
        try:
            begin = partial(self._begin, loader, paths, threaded and background)
            run_shielded(begin, loader.stop)
        except BaseException:
            self._release()
            raise

    def _begin(self, loader: Loader, paths: list[str], background: bool) -> None:
        loader.open_all(paths)
        self.cluster_id, self.node_id = loader.check_meta()
        unfinished = loader.load_all()
        self.last_stop = loader.last_stop()
        # First, because an interrupted creation may have left files under any name.
        self._topics.finish_creations(unfinished)
        self._topics.settle_configs()
        if any(
            not log.recovery_report.clean and log.flusher.unwritten_bytes
            for log in self.logs.values()
        ):
            self._later(partial(self._write_again, self.housekeeper.write_again()))
        if background:
            self.start()

    def _write_again(self, steps: Iterator[int]) -> None:
        """Take a step, and leave the next one to the flusher, which has other tasks in between."""
        if self._flusher is None:
            deque(steps, 0)
        elif next(steps, 0):
            self._flusher.submit(partial(self._write_again, steps))

    def __repr__(self) -> str:
        closed = ", closed" if self._closed else ""
        return f"LogManager({self._directories.ownership.name}{closed})"

    def __enter__(self) -> LogManager:
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        self.close()

    # -- finding and creating ------------------------------------------------------------------

    def topic_config(self, topic: str) -> LogConfig:
        """The topic's own configuration, on top of the manager's."""
        return self._configs.of(topic)

    def has_stored_config(self, topic: str) -> bool:
        """Whether a configuration of the topic was found beside its logs or stored there."""
        return self._configs.stored(topic) is not None

    @property
    def live_directories(self) -> list[str]:
        """The log directories that are not offline."""
        return [log_dir.path for log_dir in self._directories.live()]

    @property
    def offline_directories(self) -> dict[str, LogstoreError]:
        """Path → reason. A directory comes back only with a new ``LogManager``."""
        return self._directories.offline()

    @property
    def unavailable_logs(self) -> dict[TopicPartition, LogUnavailableError]:
        """Logs of the live directories that are too damaged to be opened, and why.

        Their files and checkpoint entries stay as they are, and they are not in ``logs``. Such a
        log may be deleted. After a repair a new ``LogManager`` opens it.
        """
        return self._directories.unavailable()

    @property
    def previous_broker_epoch(self) -> int:
        """The epoch under which this broker last stopped cleanly, in every directory (KIP-966).

        −1 if a directory is offline or was not closed cleanly, or if a log is unavailable or not as
        that stop left it. ``last_stop`` has more.
        """
        epochs = self.last_stop.broker_epochs
        return epochs[-1] if epochs else clean_shutdown.UNKNOWN_BROKER_EPOCH

    @property
    def logs(self) -> dict[TopicPartition, PartitionLog]:
        """All logs of the live directories."""
        return self._directories.logs()

    @property
    def recovery_reports(self) -> list[RecoveryReport]:
        """The reports of opening the logs, one for each."""
        return [log.recovery_report for log in self.logs.values()]

    def topics(self) -> dict[str, list[int]]:
        """The partitions of each topic in the live directories, both in order."""
        found: dict[str, list[int]] = {}
        for topic, partition in sorted(self.logs):
            found.setdefault(topic, []).append(partition)
        return found

    def get(self, topic: str, partition: int) -> PartitionLog:
        """The log of a partition.

        Raises:
            UnknownTopicOrPartitionError: there is none in a live directory.
            LogUnavailableError: the log is too damaged to be opened.
            LogClosedError: the manager was closed.
        """
        log = self._directories.find(TopicPartition(topic, partition))
        if log is None:
            raise UnknownTopicOrPartitionError(f"{topic}-{partition} is not in a live directory")
        return log

    def get_or_create(
        self,
        topic: str,
        partition: int,
        *,
        topic_id: uuid.UUID | None = None,
        config: TopicConfig | None = None,
        is_new: bool = True,
    ) -> PartitionLog:
        """The log of a partition, created in the live directory with the fewest logs (F-8).

        Args:
            topic_id: for a new log; by default the id of the topic's other partitions.
            config: for the whole topic, see ``alter_topic``. Nothing is written if it is the same.
                In a replicated manager it is for a new log.
            is_new: False if the log should already exist. It is then not created while a directory
                is offline, which may hold it.
        Raises:
            InvalidTopicError: the name is invalid (F-2), or the partition is negative.
            LogUnavailableError: the log is too damaged to be opened, or all partitions of its topic
                are, so that id and configuration are unknown.
            StorageFailedError: no directory is live, a directory that may hold it is offline, or a
                write failed.
            LogClosedError: the manager was closed.
        """
        tp = TopicPartition(topic, partition)
        return self._topics.get_or_create(WantedLog(tp, topic_id, config, is_new))

    def get_or_create_all(
        self, wanted: Iterable[WantedLog]
    ) -> dict[TopicPartition, TaskOutcome[PartitionLog]]:
        """As ``get_or_create`` for many logs at once, which share what a creation syncs. An error
        of one, of those that this raises, does not stop the others.

        A configuration is for new logs only.
        """
        return self._topics.get_or_create_all(wanted)

    def create_topic(
        self,
        topic: str,
        partitions: int,
        config: TopicConfig | None = None,
        *,
        fill: Callable[[list[PartitionLog]], None] | None = None,
    ) -> list[PartitionLog]:
        """Create all partitions of a topic under one new topic id, or none of them.

        No partition can be found before all exist. After a crash in between, the next start removes
        what was created, with a warning.

        Args:
            config: stored with the topic; see ``alter_topic``.
            fill: appends the first records to the logs, in order of partitions, before they can be
                found. After an error or a crash there is no topic. Only for a manager of one
                directory.
        Raises:
            ConfigError: ``fill`` with several directories, or the configuration is wrong.
            TopicExistsError: the topic, or one whose name collides (F-2), exists.
            LogUnavailableError: the topic exists, and one of its logs cannot be opened.
            InvalidTopicError: the name or the number of partitions is invalid.
            StorageFailedError: the disk refused.
        """
        create = partial(self._topics.create, topic, partitions, config, fill)
        # What the caller fills in may take long, and an interrupt ends it.
        return run_shielded(create) if fill is None else create()

    @shielded
    def create_partitions(self, topic: str, total: int) -> list[PartitionLog]:
        """Raise the number of partitions of a topic to ``total``, all or none.

        Returns the new ones.

        They have the topic's id and configuration.

        Raises:
            UnknownTopicOrPartitionError: there is no such topic in a live directory.
            InvalidTopicError: the topic has more partitions than that.
            StorageFailedError: the disk refused.
        """
        return self._topics.add_partitions(topic, total)

    def alter_topic(self, topic: str, config: TopicConfig) -> None:
        """Change the configuration of a topic, durably, for all its partitions.

        Args:
            config: a whole ``LogConfig``, or the Kafka keys in which the topic differs from the
                manager's configuration, also from a later one.
        Raises:
            ConfigError: an unknown key, or a value outside its bounds.
            UnknownTopicOrPartitionError: there is no such topic in a live directory.
            StorageFailedError: the disk refused.
        """
        self._topics.alter(topic, config)

    def configure(self, log: PartitionLog, config: TopicConfig) -> None:
        """Give a replica of a replicated manager the present configuration of its topic.

        It is stored beside the log, for tools that open the directory without the controller.
        Records that may no longer be unsynced wait for ``LogFlusher.flush_overdue``.

        Args:
            config: as for ``alter_topic``.
        Raises:
            ConfigError: an unknown key, or a value outside its bounds.
            StorageFailedError, ResourceBusyError: the disk refused.
        """
        self._topics.configure(log, config)

    @shielded
    def delete(self, topic: str, partition: int) -> None:
        """Rename the directory to ``…-delete`` now; remove it after ``file.delete.delay.ms``.

        Users of the log get ``LogClosedError``. On return no file refers to the log any more, even
        after a crash, and the name is free.

        Raises:
            UnknownTopicOrPartitionError: there is none in a live directory.
            StorageFailedError: the disk refused.
        """
        self._topics.delete_partition(TopicPartition(topic, partition))

    @shielded
    def delete_all(self, tps: Collection[TopicPartition]) -> dict[TopicPartition, LogstoreError]:
        """As ``delete`` for many partitions, with one write of each checkpoint and one sync for
        each directory. Those in no live directory are left out. Returns the errors.
        """
        return self._topics.delete_all(tps)

    @shielded
    def delete_topic(self, topic: str) -> None:
        """Delete all partitions in live directories, as ``delete``. A crash may leave some of them.

        Raises:
            UnknownTopicOrPartitionError: there is no such topic in a live directory.
            StorageFailedError: the disk refused.
        """
        self._topics.delete_topic(topic)

    @shielded
    def set_aside(self, topic: str, partitions: Iterable[int]) -> None:
        """Close logs that no longer belong here, and rename their directories to ``…-stray`` (F-3).

        Such a directory is neither found nor removed, its name is free, and an operator may inspect
        it. In a replicated manager ``get_or_create`` brings it back for the same topic id. A
        partition that is in no live directory is left out. After a crash or a disk error some logs
        may be as before, but each is either set aside or not.

        Raises:
            StorageFailedError: a write failed, and the directory is offline.
            ResourceBusyError: descriptors or memory are short.
        """
        self._topics.set_aside(topic, partitions)

    # -- many logs at once ---------------------------------------------------------------------

    def run_all(self, tasks: Iterable[Callable[[], T]]) -> list[TaskOutcome[T]]:
        """Run calls that wait for the disk on different logs, several at once, or with
        ``run_later`` one after the other. The outcomes have the order of the tasks
        (``parallel.run_all``).
        """
        return run_all(tasks, 1 if self._flusher is None else SYNC_THREADS, "logstore-sync")

    @shielded
    def truncate_to(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Truncate logs, then write the recovery points that make a crash repeat it (F-231), once
        for each directory concerned.

        Raises:
            UnknownTopicOrPartitionError: a log is in no live directory.
            StorageFailedError: a truncation, or the checkpoint after it, failed. After a crash the
                log may be as before.
        """
        logs = {self.get(*tp): offset for tp, offset in offsets.items()}
        paths = {posixpath.dirname(log.directory) for log in logs}
        for log, offset in logs.items():
            log.truncate_to(offset)
        self.housekeeper.checkpoint_recovery_points(paths)
        offline = self.offline_directories
        for path in sorted(paths & offline.keys()):
            raise offline[path]

    # -- periodic work -------------------------------------------------------------------------

    @shielded
    def start(
        self,
        more: Iterable[Duty] = (),
        runner: StartRunner = DutyThread,
        configured: Callable[[], Mapping[TopicPartition, PartitionLog]] | None = None,
    ) -> None:
        """Start the periodic work, if the manager was opened without. Idempotent.

        Args:
            more: duties of the caller, which run beside those of the manager.
            runner: runs the duties of one thread.
            configured: lists the logs to which retention and compaction apply; all by default. For
                a replicated manager, whose logs have a topic's configuration once they have a role.
        """
        self._directories.ownership.check()
        if self._duties is None and not self._closed:
            self._directories.list_configured = configured
            duties = [*log_duties(self.housekeeper, self.cleaner, self.broker_config), *more]
            delay_ms = self.broker_config.log_initial_task_delay_ms
            self._duties = Duties(duties, self._clock, delay_ms, runner, self.cleaner.stop)

    @property
    def duties(self) -> Duties | None:
        """The periodic work; None before ``start``."""
        return self._duties

    def _stop_duties(self, *, wait: bool) -> None:
        self.cleaner.stop()  # by hand it cleans without duties
        if self._duties is not None:
            self._duties.stop(wait=wait)

    def _on_config(self, config: LogConfig) -> None:
        if self._duties is not None and config.flush_ms < MAX_LONG:
            self._duties.wake(LOG_FLUSHER)

    def _checkpoint_soon(self) -> None:
        if self._duties is not None:
            self._duties.hurry(RECOVERY_POINT_CHECKPOINT, CHECKPOINT_PAUSE_MS)

    # -- closing -------------------------------------------------------------------------------

    @shielded
    def close(
        self,
        broker_epoch: int = clean_shutdown.UNKNOWN_BROKER_EPOCH,
        earlier_broker_epochs: Sequence[int] = (),
        unproven: Collection[TopicPartition] | None = None,
    ) -> None:
        """Stop, flush and close all logs, write the checkpoints, then the clean marker (F-48).

        A directory in which a log could not be closed gets no marker: its next start recovers.
        Later appends and reads raise ``LogClosedError``. A second call waits for the first. In a
        forked child only its descriptors are closed.

        Args:
            broker_epoch: the epoch that ends here, for ``previous_broker_epoch`` (KIP-966). It is
                not written if a directory failed, because the next start may leave that directory
                out.
            earlier_broker_epochs: the epochs before it, for ``last_stop``.
            unproven: with an epoch, the logs are named with their ends, so that the next start
                proves each of them but these. None: no log is proven.
        """
        if self._directories.ownership.lost is not None:
            self.crash()
            return
        self._topics.claims.close()  # running creations and deletions end, and no others begin
        with self._closing:
            if self._closed:
                return
            self._closed = True
            self._stop_duties(wait=True)
            if self._flusher is not None:
                self._flusher.close()
            named = broker_epoch != clean_shutdown.UNKNOWN_BROKER_EPOCH
            believed = named and not self._directories.offline()
            epochs = (*earlier_broker_epochs, broker_epoch) if believed else ()
            try:
                for log_dir in self._directories.live():
                    log_dir.close(epochs, self._threads, unproven)
            finally:
                self._release()

    def crash(self) -> None:
        """Release everything without flushing, as the end of the process would. For tests."""
        self._closed = True
        self._release()

    @shielded
    def _release(self) -> None:
        if self._directories.ownership.lost is None:  # otherwise the threads are the parent's
            self._stop_duties(wait=False)
            if self._flusher is not None:
                self._flusher.close(cancel=True)
        self._directories.release()


__all__ = ["LogManager", "TopicConfig"]
