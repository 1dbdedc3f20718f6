"""A log directory out of a backup: whole, or each partition up to an offset or a time.

Every object is checked against its commit, and every batch by recovery, in a directory beside the
target. That gets its name last, so whatever has it is whole.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from threading import Condition, Lock
from typing import Any, NamedTuple

from checkpoints import (
    HIGH_WATERMARK,
    LEADER_EPOCH,
    LOG_START,
    META_PROPERTIES,
    PARTITION_METADATA,
    TOPIC_PROPERTIES,
    LeaderEpochCheckpoint,
    MetaProperties,
    MetaPropertiesFile,
    OffsetCheckpoint,
    PartitionMetadata,
    PartitionMetadataFile,
    TopicPartition,
    TopicProperties,
    TopicPropertiesFile,
    random_topic_id,
)
from checkpoints.loggers import get_logger
from checkpoints.printable import printable
from logstore.backup.content import NoBackupError, holes, read_commit, read_commits
from logstore.backup.patience import PatientStore
from logstore.backup.report import BackupFault, BackupFinding
from logstore.backup.scan import WINDOW, Producers, scan_source
from logstore.backup.writer import ranges
from logstore.common.clock import Clock, SystemClock
from logstore.common.config import LogConfig
from logstore.common.errors import ConfigError, LogstoreError
from logstore.common.json_fields import json_fields
from logstore.common.parallel import run_all
from logstore.common.random_id import random_id
from logstore.directory.windows import BatchTable, Windows
from logstore.format import filenames
from logstore.format.reader import MAX_OFFSET
from logstore.kernels import crc32c
from logstore.log import run_inline
from logstore.manager import LogManager, ManagerOwner
from logstore.storage.base import File, Storage
from logstore.storage.local import LocalStorage
from logstore.tiers import (
    BackupCommit,
    LocalObjectStore,
    ObjectNotFoundError,
    ObjectStore,
    PartitionBackup,
    StoredSegment,
    StoreError,
    TopicBackup,
)
from logstore.tiers.keys import LOG, commit_key
from logstore.tiers.manifest import key_of

Progress = Callable[[int, int], None]
"""Bytes restored, bytes in all."""

LATEST, EARLIEST = -1, -2
"""As in the offsets of Spark's options: all that the backup has, or nothing."""

_GETS_AT_ONCE = 6
_STOP_S = 1.0  # for the parts that are on their way
_LOCK = ".lock"
_MAX_TIME = 2**63 - 1

logger = get_logger(__name__)


class DamagedObjectError(StoreError):
    """An object does not have the bytes that were put: another size, or another checksum."""


class RestoreError(LogstoreError):
    """What was restored is not what its backup says. There is no target then."""


@dataclass(frozen=True, slots=True)
class RestoreOptions:
    """What of a backup is restored.

    Attributes:
        number: of the backup; 0 for the newest.
        topics: which topics; all by default.
        at_ms: each partition ends before its first batch with a later record.
        offsets: where partitions end, by topic and partition, exclusive; −1 for all there is, −2
            for none. Those that are not named are restored as far as they reach.
        lossy: whether damaged and missing objects are left out, and reported.
    """

    number: int = 0
    topics: Callable[[str], bool] | None = None
    at_ms: int | None = None
    offsets: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    lossy: bool = False


@dataclass(slots=True)
class RestoredPartition:
    """A partition as it was restored; ``end_in_backup`` is how far the backup reaches."""

    topic: str
    partition: int
    log_start_offset: int
    end_offset: int
    end_in_backup: int
    bytes: int = 0

    def to_dict(self) -> dict[str, Any]:
        return json_fields(self)


@dataclass(slots=True)
class RestoreReport:
    uri: str
    target: str
    number: int
    cluster_id: str
    time_ms: int
    partitions: list[RestoredPartition] = field(default_factory=list)
    findings: list[BackupFinding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        return not self.findings

    def to_dict(self) -> dict[str, Any]:
        return json_fields(self) | {"whole": self.whole}


class PartitionPlan(NamedTuple):
    """What of a partition is restored: ``segments``, without what reaches ``limit`` or comes in a
    batch later than ``at_ms``."""

    topic: TopicBackup
    backup: PartitionBackup
    segments: tuple[StoredSegment, ...]
    limit: int
    at_ms: int

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic.topic, self.backup.partition)

    @property
    def is_cut(self) -> bool:
        return self.limit < MAX_OFFSET or self.at_ms < _MAX_TIME


def plan_restore(commit: BackupCommit, options: RestoreOptions) -> list[PartitionPlan]:
    """What is restored of a backup.

    Raises:
        ConfigError: nothing, or an offset or a topic that the backup does not have.
    """
    wanted = {
        topic.topic: topic
        for topic in commit.topics
        if options.topics is None or options.topics(topic.topic)
    }
    if not wanted:
        raise ConfigError(f"backup {commit.number} has none of the topics that are wanted")
    ends = {
        TopicPartition(topic, partition): offset
        for topic, partitions in options.offsets.items()
        for partition, offset in partitions.items()
    }
    plans = [
        _plan(topic, part, ends.pop(TopicPartition(topic.topic, part.partition), LATEST), options)
        for topic in wanted.values()
        for part in topic.partitions
    ]
    if ends:
        name = printable(str(min(ends)))
        raise ConfigError(f"backup {commit.number} has no partition {name}, which has an offset")
    return plans


def _plan(
    topic: TopicBackup, part: PartitionBackup, offset: int, options: RestoreOptions
) -> PartitionPlan:
    at_ms = _MAX_TIME if options.at_ms is None else options.at_ms
    if offset == LATEST:
        limit = MAX_OFFSET
    elif offset == EARLIEST:
        limit = part.log_start_offset
    elif part.log_start_offset <= offset <= part.end_offset:
        limit = offset
    else:
        name = printable(f"{topic.topic}-{part.partition}")
        raise ConfigError(
            f"{name} cannot end at offset {offset}: the backup has "
            f"[{part.log_start_offset}, {part.end_offset}) of it"
        )
    taken: list[StoredSegment] = []
    for segment in part.segments:
        if segment.base_offset >= limit or limit <= part.log_start_offset:
            break
        if segment.end_offset > part.log_start_offset:
            taken.append(segment)
        if segment.max_timestamp_ms > at_ms:
            break
    return PartitionPlan(topic, part, tuple(taken), limit, at_ms)


def restore(
    store: ObjectStore,
    target: str | os.PathLike[str],
    options: RestoreOptions | None = None,
    *,
    storage: Storage | None = None,
    clock: Clock | None = None,
    progress: Progress | None = None,
) -> RestoreReport:
    """Make a log directory of a backup.

    Args:
        target: must be missing or an empty directory. It appears complete, or not at all.
    Raises:
        NoBackupError: there is none, or not the wanted one.
        ConfigError: the target is in use, or the backup lacks what is wanted.
        DamagedObjectError: an object is not as it was put; ``lossy`` leaves it out.
        StoreError: the store refused, or an object is missing.
        RestoreError: batches are not what the backup says.
        OSError: the target could not be written.
    """
    patient = PatientStore(store)
    options = options or RestoreOptions()
    job = _Restore(patient, storage or LocalStorage(), clock or SystemClock(), options, progress)
    return job.run(job.real_path(target))


def wanted_commit(store: PatientStore, number: int) -> BackupCommit:
    """The backup with this number, or the newest whole one.

    Raises:
        NoBackupError: there is none.
    """
    if number:
        try:
            return read_commit(store, number)
        except ObjectNotFoundError:
            raise NoBackupError(store.uri, f"there is no backup {number}") from None
    commits = read_commits(store)
    if commits.newest is None:
        reason = "there is no backup"
        if commits.findings:
            reason = f"no backup is whole: {commits.findings[0]}"
        raise NoBackupError(store.uri, reason)
    return commits.newest


class _Restore:
    def __init__(
        self,
        store: PatientStore,
        storage: Storage,
        clock: Clock,
        options: RestoreOptions,
        progress: Progress | None,
    ) -> None:
        self._store, self._storage, self._clock = store, storage, clock
        self._options, self._progress = options, progress
        self._lock = Lock()
        self._ended = Condition(self._lock)
        self._running = 0  # threads that get an object
        self._stopped = False
        self._done = self._total = 0

    def run(self, target: str) -> RestoreReport:
        self._check_target(target)
        commit = wanted_commit(self._store, self._options.number)
        plans = plan_restore(commit, self._options)
        self._total = sum(segment.log_size for plan in plans for segment in plan.segments)
        self._check_room(target)
        report = RestoreReport(
            self._store.uri, target, commit.number, commit.cluster_id, commit.time_ms
        )
        with self._staging(target) as staging:
            self._try_name(staging, target)
            self._get_all(staging, plans, report)
            ends = {plan.tp: self._settle(staging, plan) for plan in plans}
            self._checkpoints(staging, plans)
            self._recover(staging, plans, ends, report)
            self._own_files(staging, commit, plans, ends)
            self._storage.sync_dir(staging)
            self._storage.rename(staging, target)
        self._storage.sync_dir(os.path.dirname(target))
        return report

    # -- the target ----------------------------------------------------------------------------

    def _check_target(self, target: str) -> None:
        if isinstance(self._store.store, LocalObjectStore):
            place = self.real_path(self._store.uri)
            if os.path.commonpath([place, target]) == place:
                raise ConfigError(f"{printable(target)} lies in the store: give another place")
        info = self._storage.info(target)
        if info is not None and (not info.is_dir or self._storage.scan_dir(target)):
            raise ConfigError(f"{printable(target)} is there already, and not empty")

    def real_path(self, target: str | os.PathLike[str]) -> str:
        return self._storage.real_path(os.path.abspath(target))

    def _try_name(self, staging: str, target: str) -> None:
        """See at once, not after all was read, whether an empty directory can be replaced."""
        if self._storage.info(target) is None:
            return
        try:
            self._storage.rename(staging, target)
            self._storage.rename(target, staging)
        except OSError as error:
            raise ConfigError(
                f"{printable(target)} cannot be replaced, as a mount point cannot "
                f"({error.strerror}): give a directory below it"
            ) from error

    def _check_room(self, target: str) -> None:
        above = os.path.dirname(target)
        self._storage.make_dir(above)
        room = self._storage.free_bytes(above)
        if room < self._total:
            reason = f"{os.strerror(errno.ENOSPC)}: {self._total:,} bytes are needed, {room:,} free"
            raise OSError(errno.ENOSPC, reason, target)

    @contextmanager
    def _staging(self, target: str) -> Iterator[str]:
        """A directory beside the target, removed if the work in it fails."""
        staging = f"{target}.restore-{random_id()[:8]}"
        self._storage.make_dir(staging)
        try:
            yield staging
        except BaseException as error:
            if not isinstance(error, Exception):  # the process may end before all is removed
                logger.warning("%s is removed: delete what is left of it", printable(staging))
            self._stop()
            try:
                self._storage.remove_tree(staging)
            except OSError as left:
                logger.warning("%s is left, delete it: %s", printable(staging), left.strerror)
            raise

    def _stop(self) -> None:
        """Let no thread write any more."""
        with self._ended:
            self._stopped = True
            self._ended.wait_for(lambda: not self._running, _STOP_S)

    # -- objects -------------------------------------------------------------------------------

    def _get_all(self, staging: str, plans: list[PartitionPlan], report: RestoreReport) -> None:
        tasks: list[Callable[[], BackupFinding | None]] = []
        for plan in plans:
            self._storage.make_dir(_directory(staging, plan.tp))
            tasks += (partial(self._guarded, staging, plan, segment) for segment in plan.segments)
            end = _planned_end(plan)
            for first, last in holes(plan.backup):
                if first < end:
                    report.findings.append(
                        BackupFinding(
                            BackupFault.HOLE,
                            commit_key(report.number),
                            "the backup has no segment of these offsets",
                            *plan.tp,
                            first,
                            min(last, end),
                        )
                    )
        try:
            outcomes = run_all(tasks, _GETS_AT_ONCE, "logstore-restore")
        except BaseException:
            self._stopped = True  # the threads go on, and would write what is removed
            raise
        for finding, error in outcomes:
            if error is not None:
                raise error
            if finding is not None:
                report.findings.append(finding)

    def _guarded(
        self, staging: str, plan: PartitionPlan, segment: StoredSegment
    ) -> BackupFinding | None:
        """``_get``, unless the work was stopped. The first error stops it, and is the only one."""
        with self._lock:
            if self._stopped:
                return None
            self._running += 1
        try:
            return self._get(staging, plan, segment)
        except BaseException:
            with self._lock:
                first, self._stopped = not self._stopped, True
            if first:
                raise
            return None
        finally:
            with self._ended:
                self._running -= 1
                self._ended.notify_all()

    def _get(
        self, staging: str, plan: PartitionPlan, segment: StoredSegment
    ) -> BackupFinding | None:
        """One ``.log``, checked against the commit. A finding if it is left out."""
        key = key_of(plan.topic, plan.backup, segment).key(LOG)
        path = _log_path(staging, plan.tp, segment.base_offset)
        for again in (True, False):  # what was damaged on its way comes right the second time
            try:
                reason = self._write(path, key, segment)
                if reason is None:
                    self._count(segment.log_size)
                    return None
                fault = BackupFault.TORN
            except ObjectNotFoundError as error:
                reason, fault = error.reason, BackupFault.MISSING
                if not self._options.lossy:
                    raise
            if not again and not self._options.lossy:
                raise DamagedObjectError(key, reason, False, self._store.uri)
        first = self._front(path, segment) if fault is BackupFault.TORN else segment.base_offset
        if first == segment.base_offset:
            with suppress(FileNotFoundError):
                self._storage.remove(path)
        ends = first, segment.end_offset
        return BackupFinding(fault, key, f"{reason}: left out", *plan.tp, *ends)

    def _front(self, path: str, segment: StoredSegment) -> int:
        """Keep the batches before the first that is damaged. Returns where they end, the base if
        there are none.

        Checksums of batches do not cover all of their bytes. So none is kept if the damage does not
        show in one, or if the epochs are not those of the backup; and none from where an offset
        does not follow on, as it does unless compaction took what was there.
        """
        base, producers = segment.base_offset, Producers()
        producers.start(base, None)
        with closing(self._storage.open(path)) as file:
            found = scan_source(file, path, base, file.size(), LogConfig(), producers)
            epochs = segment.leader_epochs[: len(found.epochs)]
            if found.damage is None or found.end_offset > segment.end_offset:
                return base
            if [epoch for epoch, _ in found.epochs] != [epoch for epoch, _ in epochs]:
                return base
            size, end = _following_on(file, path, base, found.size)
            file.truncate(size)
            file.sync()
        return end

    def _write(self, path: str, key: str, segment: StoredSegment) -> str | None:
        """Write an object to a file. Returns what is wrong with it, None if nothing is."""
        crc = position = 0
        with closing(self._storage.open(path, create=True)) as file:
            file.truncate(0)
            for part in ranges(self._store, key, segment.log_size):
                if self._stopped:
                    raise RestoreError("given up")
                if part is None:
                    return f"it does not have the {segment.log_size} bytes of its backup"
                crc = crc32c(part, crc)
                position += file.write_at(position, part)
            file.sync()
        if crc != segment.log_crc:
            return f"its checksum is {crc:08x}, its backup has {segment.log_crc:08x}"
        return None

    def _count(self, size: int) -> None:
        with self._lock:
            self._done += size
            if self._progress is not None:
                self._progress(self._done, self._total)

    # -- partitions ----------------------------------------------------------------------------

    def _settle(self, staging: str, plan: PartitionPlan) -> int:
        """Cut what is not wanted, and write what recovery needs. Returns the end of the log."""
        directory = _directory(staging, plan.tp)
        start, last = plan.backup.log_start_offset, plan.segments[-1] if plan.segments else None
        if not plan.is_cut:
            end = max(plan.backup.end_offset, start)
            self._end_at(staging, plan, end)
        else:
            end = self._cut(staging, plan, last) if last else -1
            if end <= start:  # nothing is left: the log is empty, and goes on at its start
                end = start
                self._empty(staging, plan)
        PartitionMetadataFile(os.path.join(directory, PARTITION_METADATA), self._storage).write(
            PartitionMetadata(plan.topic.topic_id)
        )
        epochs = [pair for pair in plan.backup.leader_epochs if pair[1] < end]
        LeaderEpochCheckpoint(os.path.join(directory, LEADER_EPOCH), self._storage).write(epochs)
        self._storage.sync_dir(directory)
        return end

    def _empty(self, staging: str, plan: PartitionPlan) -> None:
        for segment in plan.segments:
            with suppress(FileNotFoundError):
                self._storage.remove(_log_path(staging, plan.tp, segment.base_offset))
        self._create(_log_path(staging, plan.tp, plan.backup.log_start_offset))

    def _end_at(self, staging: str, plan: PartitionPlan, end: int) -> None:
        """Let the log end at ``end``, though its last batch may end before: with an empty segment,
        as the source had one."""
        reached = -1
        if plan.segments:
            with suppress(FileNotFoundError):  # left out
                path = _log_path(staging, plan.tp, plan.segments[-1].base_offset)
                reached = self._walk(path, plan)[1]
        if reached < end:
            self._create(_log_path(staging, plan.tp, end))

    def _create(self, path: str) -> None:
        with closing(self._storage.open(path, create=True)) as file:
            file.sync()

    def _cut(self, staging: str, plan: PartitionPlan, last: StoredSegment) -> int:
        """Cut the last segment before the first batch that is not wanted. Returns where the log
        ends then."""
        path = _log_path(staging, plan.tp, last.base_offset)
        try:
            position, end = self._walk(path, plan)
        except FileNotFoundError:  # left out
            return last.base_offset
        with closing(self._storage.open(path)) as file:
            if position < file.size():
                file.truncate(position)
                file.sync()
        return max(end, last.base_offset)

    def _walk(self, path: str, plan: PartitionPlan) -> tuple[int, int]:
        """The byte and the offset where the wanted batches of a segment end; −1 without any."""
        position, end = 0, -1
        with closing(self._storage.open(path, writable=False)) as file:
            for _, start, table in Windows(file, path, 0, file.size(), window=WINDOW).tables(
                BatchTable
            ):
                columns = ("position", "size", "last_offset", "max_timestamp")
                for at, size, last, stamp in zip(*map(table.cells, columns), strict=True):
                    if last >= plan.limit or stamp > plan.at_ms:
                        return position, end
                    position, end = start + at + size, last + 1
        return position, end

    def _checkpoints(self, staging: str, plans: list[PartitionPlan]) -> None:
        starts = {
            plan.tp: plan.backup.log_start_offset for plan in plans if plan.backup.log_start_offset
        }
        OffsetCheckpoint(os.path.join(staging, LOG_START), self._storage).write(starts)

    def _recover(
        self,
        staging: str,
        plans: list[PartitionPlan],
        ends: Mapping[TopicPartition, int],
        report: RestoreReport,
    ) -> None:
        """Open the logs as a start after a crash does: it checks every batch, and makes indexes,
        snapshots and epochs anew."""
        manager = LogManager(
            [staging],
            storage=self._storage,
            clock=self._clock,
            owner=ManagerOwner(run_later=run_inline),
        )
        try:
            for plan in plans:
                report.partitions.append(self._check(manager, plan, ends[plan.tp], report))
        except BaseException:
            manager.crash()
            raise
        manager.close()

    def _check(
        self, manager: LogManager, plan: PartitionPlan, end: int, report: RestoreReport
    ) -> RestoredPartition:
        name = printable(str(plan.tp))
        unavailable = manager.unavailable_logs
        if plan.tp in unavailable:
            raise RestoreError(f"{name} cannot be opened: {unavailable[plan.tp].reason}")
        log = manager.get(*plan.tp)
        recovered = log.recovery_report
        if recovered.bytes_cut:
            raise RestoreError(f"{name} is damaged in the backup: {recovered.cut_reason}")
        if log.log_end_offset != end:
            raise RestoreError(f"{name} ends at {log.log_end_offset}, its backup at {end}")
        first = log.replica.first_unstable_offset
        if first is not None:
            report.notes.append(f"{name}: a transaction is open from offset {first} on")
        return RestoredPartition(
            *plan.tp,
            log.log_start_offset,
            end,
            plan.backup.end_offset,
            sum(segment.log_size for segment in plan.segments),
        )

    def _own_files(
        self,
        staging: str,
        commit: BackupCommit,
        plans: list[PartitionPlan],
        ends: Mapping[TopicPartition, int],
    ) -> None:
        """What recovery does not make: configurations, high watermarks, whose directory it is."""
        for plan in plans:
            if plan.topic.config or plan.topic.config_revision:
                path = os.path.join(_directory(staging, plan.tp), TOPIC_PROPERTIES)
                TopicPropertiesFile(path, self._storage).write(
                    TopicProperties(plan.topic.config, plan.topic.config_revision)
                )
        OffsetCheckpoint(os.path.join(staging, HIGH_WATERMARK), self._storage).write(ends)
        own = os.path.join(staging, META_PROPERTIES)
        with suppress(FileNotFoundError):
            self._storage.remove(own)
        if commit.cluster_id:
            node = commit.node_id if commit.node_id >= 0 else None
            directory_id = random_topic_id(lambda size: bytes.fromhex(random_id())[:size])
            meta = MetaProperties(0 if node is None else 1, commit.cluster_id, node, directory_id)
            MetaPropertiesFile(own, self._storage).write(meta, self._clock.wall_ms())
        with suppress(FileNotFoundError):
            self._storage.remove(os.path.join(staging, _LOCK))


def _following_on(file: File, path: str, base: int, size: int) -> tuple[int, int]:
    """The byte and the offset where the batches from ``base`` on end, or leave one out."""
    position, end = 0, base
    for _, start, table in Windows(file, path, 0, size, window=WINDOW).tables(BatchTable):
        columns = ("position", "size", "base_offset", "last_offset")
        for at, length, first, last in zip(*map(table.cells, columns), strict=True):
            if first != end:
                return position, end
            position, end = start + at + length, last + 1
    return position, end


def _planned_end(plan: PartitionPlan) -> int:
    return plan.segments[-1].end_offset if plan.is_cut and plan.segments else plan.backup.end_offset


def _directory(staging: str, tp: TopicPartition) -> str:
    return os.path.join(staging, filenames.partition_dir_name(tp))


def _log_path(staging: str, tp: TopicPartition, base: int) -> str:
    name = filenames.segment_file_name(base, filenames.LOG_SUFFIX)
    return os.path.join(_directory(staging, tp), name)


__all__ = [
    "DamagedObjectError",
    "PartitionPlan",
    "RestoreError",
    "RestoreOptions",
    "RestoreReport",
    "RestoredPartition",
    "plan_restore",
    "restore",
]
