"""All logs of a set of log directories. Matches Kafka's ``LogManager`` (F-8 … F-15, F-225 … F-236).

One owner per directory (``.lock``); logs load in parallel; a directory that fails goes offline and
the others go on. The periodic work is in plain methods, which a thread runs by default and a
simulation calls itself. With ``run_later`` no other thread is ever used.
"""

from __future__ import annotations

import os
import posixpath
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeVar

from checkpoints import clean_shutdown
from logstore.cleaner.log_cleaner import CleanerThreads, LogCleaner
from logstore.common.clock import Clock, SystemClock
from logstore.common.config import BrokerConfig, LogConfig
from logstore.common.errors import LogstoreError, LogUnavailableError, UnknownTopicOrPartitionError
from logstore.common.locks import Rank, make_lock
from logstore.common.random_id import RandomId, random_id
from logstore.common.types import TopicPartition
from logstore.log import Background, ReplicaLog
from logstore.manager.directories import Directories
from logstore.manager.housekeeping import Housekeeper, HousekeepingThread, Schedule
from logstore.manager.loading import Loader, LoadProgress, Progress
from logstore.manager.opener import LogOpener
from logstore.manager.parallel import LaterThread, Outcome, run_all
from logstore.manager.pending import PendingDeletes
from logstore.manager.topic_configs import TopicConfig, TopicConfigs
from logstore.manager.topics import Topics
from logstore.recovery.recovery import RecoveryOptions, RecoveryReport
from logstore.segments.open_files import raise_limit
from logstore.storage.base import Storage
from logstore.storage.local import LocalStorage

SYNC_THREADS = 8  # measured: syncs of so many files at once end together; more gain nothing

T = TypeVar("T")


class LogManager:
    """Opens log directories; creates, finds and deletes logs in them.

    Use as a context manager, or call ``close``: only then is the next start a clean one.

    Attributes:
        cleaner: compacts the logs that have it in their ``cleanup.policy``; its threads run
            with the periodic work. ``clean_filthiest`` is one pass for who has no threads.
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
        background: bool = True,
        run_later: Background | None = None,
        on_directory_failure: Callable[[str, LogstoreError], None] | None = None,
        random_id: RandomId = random_id,
    ) -> None:
        """Lock and load the directories, which are created when missing.

        Args:
            topic_configs: by topic, in place of what is stored with it.
            cluster_id: checked against ``meta.properties``, or written there on the first start.
            replicated: high watermarks are the caller's, and so are the configurations of topics.
            progress: called after each partition is loaded, from any thread.
            background: do the periodic work on a thread: flushes after ``flush.ms``, checkpoints,
                retention. Without it the caller runs it, or calls ``start``.
            run_later: takes the flush of each rolled segment, which it may run when it likes, or
                never. Then there is no thread at all; without it there are a flusher thread, and
                a pool for recovery and for closing.
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
        raise_limit()
        self.config = config or LogConfig()
        self.broker_config = broker_config or BrokerConfig()
        self._storage = storage or LocalStorage()
        self._clock = clock or SystemClock()
        self._housekeeping: HousekeepingThread | None = None
        self._flusher = LaterThread("logstore-flusher") if run_later is None else None
        threaded = self._flusher is not None
        self._threads = self.broker_config.num_recovery_threads_per_data_dir if threaded else 1
        later = self._flusher.submit if self._flusher is not None else run_later
        assert later is not None
        self._directories = Directories(later, on_directory_failure)
        self._pending = PendingDeletes(self._storage)
        self._configs = TopicConfigs(
            self.config, topic_configs or {}, self._storage, storing=not replicated
        )
        self._opener = LogOpener(
            self._storage, self._clock, options or RecoveryOptions(),
            self.broker_config.producer_id_expiration_ms, replicated, random_id, later,
            self._directories, self._checkpoint_soon,
        )  # fmt: skip
        self._topics = Topics(
            self._directories, self._opener, self._configs, self._pending,
            SYNC_THREADS if threaded else 1, self._wake,
        )  # fmt: skip
        self._keeper = Housekeeper(self._directories, self._pending, self._clock)
        self.cleaner = LogCleaner(self._directories, self.broker_config, self._clock)
        self._cleaner_threads: CleanerThreads | None = None
        self._closing = make_lock(Rank.CREATION)
        self._closed = False
        loader = Loader(self._opener, self._configs, self._pending, self._threads, progress)
        paths = loader.distinct(directories)
        try:
            loader.open_all(paths)
            self.cluster_id, self.node_id = loader.check_meta(cluster_id, node_id)
            unfinished = loader.load_all()
            self._broker_epochs = loader.broker_epochs(paths)
            # Before a name can be used: what an interrupted creation left may be anywhere.
            self._topics.finish_creations(unfinished)
            self._topics.settle_configs()
        except BaseException:
            self._release()
            raise
        if threaded and background:
            self.start()

    def __enter__(self) -> LogManager:
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        self.close()

    # -- finding and creating ------------------------------------------------------------------

    def topic_config(self, topic: str) -> LogConfig:
        """The topic's own configuration, on top of the manager's."""
        return self._configs.of(topic)

    @property
    def live_directories(self) -> list[str]:
        """The log directories that are in use, which are all but the offline ones."""
        return [log_dir.path for log_dir in self._directories.live()]

    @property
    def offline_directories(self) -> dict[str, LogstoreError]:
        """Path -> why; a directory comes back only with a new ``LogManager``."""
        return self._directories.offline()

    @property
    def unavailable_logs(self) -> dict[TopicPartition, LogUnavailableError]:
        """Logs of the live directories that are too damaged to be opened, and why.

        They are left as they are on the disk, with what the checkpoints say of them, and are not
        in ``logs``. A log may be deleted; once it is mended a new ``LogManager`` brings it back.
        """
        return self._directories.unavailable()

    @property
    def previous_broker_epoch(self) -> int:
        """The epoch under which this broker last stopped in order, as every directory has it.

        −1 where one is offline, was not closed cleanly, or says otherwise (KIP-966), and where a
        log is unavailable, or not as that stop left it.
        """
        epochs = self._broker_epochs
        return epochs[-1] if epochs else clean_shutdown.UNKNOWN_BROKER_EPOCH

    @property
    def broker_epochs(self) -> tuple[int, ...]:
        """As ``previous_broker_epoch``, with those before it since which nothing was lost either,
        ascending: a controller may know one of them, and not the later ones."""
        return self._broker_epochs

    @property
    def logs(self) -> dict[TopicPartition, ReplicaLog]:
        """All logs of the live directories."""
        return self._directories.logs()

    @property
    def recovery_reports(self) -> list[RecoveryReport]:
        """What opening each log did, one report a log."""
        return [log.recovery_report for log in self.logs.values()]

    def topics(self) -> dict[str, list[int]]:
        """The partitions of each topic in the live directories, both in order."""
        found: dict[str, list[int]] = {}
        for topic, partition in sorted(self.logs):
            found.setdefault(topic, []).append(partition)
        return found

    def get(self, topic: str, partition: int) -> ReplicaLog:
        """The log of a partition.

        Raises:
            UnknownTopicOrPartitionError: there is none in a live directory.
            LogUnavailableError: it is too damaged to be opened.
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
    ) -> ReplicaLog:
        """The log of a partition, created in the live directory with the fewest logs (F-8).

        Args:
            topic_id: of a new log; that of the topic's other partitions by default.
            config: of the whole topic, see ``alter_topic``; nothing is written where it is the
                same. In a replicated manager it is that of a new log.
            is_new: False when records of it are expected: it is not created anew while a
                directory is offline, which may hold it.
        Raises:
            InvalidTopicError: the name breaks F-2, or the partition is no number of one.
            LogUnavailableError: it is too damaged to be opened; or all partitions of the topic are,
                which know its id and configuration.
            StorageFailedError: no directory is live, the one that may hold it is not, or the disk
                refused.
            LogClosedError: the manager was closed.
        """
        tp = TopicPartition(topic, partition)
        return self._topics.get_or_create(tp, topic_id, config, is_new)

    def create_topic(
        self,
        topic: str,
        partitions: int,
        config: TopicConfig | None = None,
        *,
        fill: Callable[[list[ReplicaLog]], None] | None = None,
    ) -> list[ReplicaLog]:
        """Create all partitions of a topic under one new topic id, or none of them.

        No partition can be found before all are there. After a crash half way the next start
        removes what was made, with a warning.

        Args:
            config: stored with the topic; see ``alter_topic``.
            fill: appends the topic's first records to its logs, in order of partitions, before
                they can be found: all of it or, after an error or a crash, no topic. For a
                manager of one directory.
        Raises:
            ConfigError: ``fill`` with several directories, or the configuration is wrong.
            TopicExistsError: it, or a topic whose name collides (F-2), is here already.
            LogUnavailableError: it is here, and a log of it is too damaged to be opened.
            InvalidTopicError: the name or the number breaks a rule.
            StorageFailedError: the disk refused.
        """
        return self._topics.create(topic, partitions, config, fill)

    def create_partitions(self, topic: str, total: int) -> list[ReplicaLog]:
        """Give a topic more partitions, ``total`` in the end, all or none; the new ones.

        They have the topic's id and configuration.

        Raises:
            UnknownTopicOrPartitionError: there is no such topic in a live directory.
            InvalidTopicError: it has more partitions than that.
            StorageFailedError: the disk refused.
        """
        return self._topics.add_partitions(topic, total)

    def alter_topic(self, topic: str, config: TopicConfig) -> None:
        """Change the configuration of a topic, durably, for all its partitions.

        Args:
            config: a whole ``LogConfig``; or the Kafka keys in which the topic differs from the
                manager's configuration, whatever that is at the next start.
        Raises:
            ConfigError: an unknown key, or a value outside its bounds.
            UnknownTopicOrPartitionError: there is no such topic in a live directory.
            StorageFailedError: the disk refused.
        """
        self._topics.alter(topic, config)

    def delete(self, topic: str, partition: int) -> None:
        """Rename the directory to ``…-delete`` now; remove it after ``file.delete.delay.ms``.

        Users of the log get ``LogClosedError``. When this returns, nothing that is stored speaks
        of the log any more, even after a crash, and the name is free.

        Raises:
            UnknownTopicOrPartitionError: there is none in a live directory.
            StorageFailedError: the disk refused.
        """
        self._topics.delete_partition(TopicPartition(topic, partition))

    def delete_topic(self, topic: str) -> None:
        """As ``delete``, for all partitions in live directories. A crash may leave some of them.

        Raises:
            UnknownTopicOrPartitionError: there is no such topic in a live directory.
            StorageFailedError: the disk refused.
        """
        self._topics.delete_topic(topic)

    def set_aside(self, topic: str, partitions: Iterable[int]) -> None:
        """Close logs that have no place here any more, and rename their directories to ``…-stray``
        (F-3): nothing finds or removes them, their names are free, and an operator may look.

        A partition that is in no live directory is left out. After a crash, or a refusal of the
        disk, some may be as they were; never is one half aside.

        Raises:
            StorageFailedError: the disk refused; the directory is offline.
            ResourceBusyError: descriptors or memory are short.
        """
        self._topics.set_aside(topic, partitions)

    # -- many logs at once ---------------------------------------------------------------------

    def run_all(self, tasks: Iterable[Callable[[], T]]) -> list[Outcome[T]]:
        """Run calls on different logs that wait for the disk, several at once; with ``run_later``
        one after the other. Outcomes in the order of the tasks (``workers.run_all``)."""
        return run_all(tasks, 1 if self._flusher is None else SYNC_THREADS, "logstore-sync")

    def truncate_to(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Truncate logs, then write the recovery points that make a crash repeat it (F-231), once
        for each directory concerned.

        Raises:
            UnknownTopicOrPartitionError: of a log that is in no live directory.
            StorageFailedError: a cut, or the checkpoint after it, was refused: after a crash the
                log may be as it was.
        """
        logs = {self.get(*tp): offset for tp, offset in offsets.items()}
        paths = {posixpath.dirname(log.directory) for log in logs}
        for log, offset in logs.items():
            log.truncate_to(offset)
        self.checkpoint_recovery_points(paths)
        offline = self.offline_directories
        for path in sorted(paths & offline.keys()):
            raise offline[path]

    # -- periodic work -------------------------------------------------------------------------

    def checkpoint_recovery_points(self, only: Collection[str] | None = None) -> None:
        """Write recovery points (F-11, F-227); a directory that refuses them goes offline.

        The log start offsets go first: a recovery point raised to one (F-222) would otherwise
        stand for records that a crash brings back.

        Args:
            only: paths of the directories concerned; all of them by default.
        Raises:
            ResourceBusyError: descriptors or memory are short; the disk is well.
        """
        self._keeper.checkpoint_recovery_points(only)

    def checkpoint_cuts(self, tps: Iterable[TopicPartition]) -> None:
        """After truncations of logs: make the checkpoints say no more than is left of them.

        One write of a file serves all of them; what is not above its log is not written, so that
        asking again after ``ResourceBusyError``, or once too often, costs next to nothing. A
        directory that refuses goes offline.

        Raises:
            ResourceBusyError: descriptors or memory are short; some of it is still owed.
        """
        self._keeper.checkpoint_cuts(tps)

    def checkpoint_log_start_offsets(self) -> None:
        """Write the starts of logs that start inside their first segment (F-12)."""
        self._keeper.checkpoint_log_start_offsets()

    def checkpoint_high_watermarks(self) -> None:
        """Write the high watermark of every log (F-13)."""
        self._keeper.checkpoint_high_watermarks()

    def flush_dirty_logs(self) -> int:
        """Flush logs whose last flush is at least ``flush.ms`` ago (F-221); how many."""
        return self._keeper.flush_dirty_logs()

    def clean_up(self) -> int:
        """Retention over all logs (F-225); the number of segments deleted."""
        return self._keeper.clean_up()

    def remove_expired_producers(self) -> int:
        """Forget producers that were silent for too long; the number of producers forgotten."""
        return self._keeper.remove_expired_producers()

    def purge_deleted(self, *, at_once: bool = False) -> int:
        """Remove ``-delete`` directories and ``.deleted`` files that are due (F-229).

        Args:
            at_once: those that are not due yet, too.
        """
        return self._keeper.purge_deleted(at_once=at_once)

    def start(self) -> None:
        """Do the periodic work on a thread, for a manager that was opened without; idempotent."""
        if self._housekeeping is None and not self._closed:
            schedule = Schedule(self._keeper, self.broker_config, self._clock)
            self._housekeeping = HousekeepingThread(schedule)
            if self.broker_config.log_cleaner_enable:
                self._cleaner_threads = CleanerThreads(self.cleaner, self.broker_config)

    def _stop_threads(self, *, wait: bool = True) -> None:
        self.cleaner.stop()
        if self._cleaner_threads is not None and wait:
            self._cleaner_threads.stop()
        if self._housekeeping is not None:
            self._housekeeping.stop(wait=wait)

    def _wake(self) -> None:
        if self._housekeeping is not None:
            self._housekeeping.wake()

    def _checkpoint_soon(self) -> None:
        if self._housekeeping is not None:
            self._housekeeping.checkpoint_soon()

    # -- closing -------------------------------------------------------------------------------

    def close(
        self,
        broker_epoch: int = clean_shutdown.UNKNOWN_BROKER_EPOCH,
        earlier_broker_epochs: Sequence[int] = (),
    ) -> None:
        """Stop, flush and close all logs, write the checkpoints, then the clean marker (F-48).

        A directory in which a log could not be closed gets no marker: its next start recovers.
        Later appends and reads raise ``LogClosedError``. A second call waits for the first.

        Args:
            broker_epoch: the epoch that ends here, for ``previous_broker_epoch`` (KIP-966). Where a
                directory failed it is not written: the next start may do without that directory.
            earlier_broker_epochs: those before it, for ``broker_epochs``.
        """
        self._topics.claims.close()  # who creates or deletes comes to an end, and nobody after
        with self._closing:
            if self._closed:
                return
            self._closed = True
            self._stop_threads()
            if self._flusher is not None:
                self._flusher.close()
            named = broker_epoch != clean_shutdown.UNKNOWN_BROKER_EPOCH
            believed = named and not self._directories.offline()
            epochs = (*earlier_broker_epochs, broker_epoch) if believed else ()
            try:
                for log_dir in self._directories.live():
                    log_dir.close(epochs, self._threads)
            finally:
                self._release()

    def crash(self) -> None:
        """Let go of everything without flushing, as the end of the process would; for tests."""
        self._closed = True
        self._release()

    def _release(self) -> None:
        self._stop_threads(wait=False)
        if self._flusher is not None:
            self._flusher.close(cancel=True)
        self._directories.release()


__all__ = ["LoadProgress", "LogManager", "TopicConfig"]
