"""A backup of log directories: what is new of them goes into a store, and a commit comes last."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import NoReturn

from checkpoints import META_PROPERTIES, TopicPartition
from checkpoints.loggers import get_logger
from checkpoints.printable import printable
from logstore.backup.configs import topic_configs
from logstore.backup.content import (
    Commits,
    StoreContent,
    faults_in,
    holes,
    read_commit,
    read_commits,
    read_content,
    segments_of,
)
from logstore.backup.keeping import (
    goes_on,
    may_compact,
    prune,
    what_vanished,
    with_missing,
)
from logstore.backup.patience import PATIENT, Patience, PatientStore, Pause, wait
from logstore.backup.report import BackupFault, BackupFinding, BackupReport, PartitionResult
from logstore.backup.scan import (
    Ends,
    Producers,
    ScannedSegment,
    SourceChangedError,
    ends_at,
    last_position,
    read_snapshot,
    replay_source,
    scan_source,
    size_below,
)
from logstore.backup.source import (
    BackedTopic,
    BackupSource,
    SourceOwner,
    committed_end,
    log_config,
)
from logstore.backup.writer import (
    PART_SIZE,
    Destination,
    OutgoingSegment,
    Put,
    ReadBack,
    SegmentWriter,
)
from logstore.common.clock import Clock, SystemClock
from logstore.common.errors import (
    ConfigError,
    CorruptBatchError,
    LogstoreError,
    ResourceBusyError,
)
from logstore.common.parallel import run_all
from logstore.common.random_id import RandomId, random_id
from logstore.directory.errors import ListingOutdatedError
from logstore.directory.listing import ListedSegment, PartitionLayout
from logstore.directory.segment_index import SegmentIndex
from logstore.directory.tiered import leader_epochs
from logstore.format.reader import MAX_OFFSET
from logstore.storage.local import LocalStorage
from logstore.storage.paths import Paths, each_path
from logstore.tiers import (
    BackupCommit,
    LocalObjectStore,
    ObjectExistsError,
    ObjectStore,
    PartitionBackup,
    StoredSegment,
    StoreUnavailableError,
    TopicBackup,
)
from logstore.tiers.keys import COMMIT_NUMBER_MAX, LOG, commit_key
from logstore.tiers.manifest import Epochs

Progress = Callable[[int, int], None]
"""Bytes done with, bytes in all."""

PARTITIONS_AT_ONCE = 4
PUTS_AT_ONCE = 8
_SCANS_AT_ONCE = 1  # faster than any store, and each takes some megabytes
_PARTS_AT_ONCE = 2
"""Parts of large objects that are in memory. More puts than that are under way, as a store takes
its time to make one object of the parts."""

_IN_FLIGHT = 24 << 20
"""Bytes that are in memory for puts under way beside those parts: small objects, and indexes."""

_LARGE_WEIGHT = 5 << 20
"""What a large object counts of that: four at once, which share the line."""

_ATTEMPTS = 4  # at a partition that changes while it is read

logger = get_logger(__name__)


class BackupRefusedError(LogstoreError):
    """A store belongs to another source, or another backup into it came first."""

    def __init__(self, uri: str, reason: str) -> None:
        super().__init__(uri, reason)
        self.uri, self.reason = uri, reason

    def _text(self) -> str:
        return f"{self.uri}: {self.reason}"


@dataclass(frozen=True, slots=True)
class BackupOptions:
    """How a backup is made.

    Attributes:
        read_back: what is read back of each segment before it counts.
        keep: how many backups stay, the newest ones; 0 for all. What only dropped ones name is
            deleted. A backup stays as well while no later one has as much of a partition.
        drop_deleted: drop these, too, and believe a source that has nothing any more.
        topic_configs: configurations of topics that are kept elsewhere; by default those of a
            metadata log in the directories.
        broker: which broker's directories, if there are several.
    """

    read_back: ReadBack = ReadBack.TAIL
    keep: int = 0
    drop_deleted: bool = False
    topic_configs: Mapping[str, Mapping[str, str]] | None = None
    broker: str = ""
    patience: Patience = PATIENT
    partitions_at_once: int = PARTITIONS_AT_ONCE
    puts_at_once: int = PUTS_AT_ONCE


class Backup:
    """Backs up log directories, which a broker may be writing, into a store.

    Args:
        directories: log directories of one broker.
        store: where to; several sources need several stores, or prefixes of one.
        topics: which topics; the others stay as the backup before has them.
        progress: is called with bytes of segments, from several threads, one at a time.
    """

    def __init__(
        self,
        directories: Paths,
        store: ObjectStore,
        *,
        topics: Callable[[str], bool] | None = None,
        options: BackupOptions | None = None,
        progress: Progress | None = None,
        clock: Clock | None = None,
        ids: RandomId = random_id,
        pause: Pause = wait,
    ) -> None:
        self.options = options or BackupOptions()
        self._directories = each_path(directories)
        self._wanted, self._progress, self._ids = topics, progress, ids
        self._clock = clock or SystemClock()
        self._store = PatientStore(store, self.options.patience, pause)

    def run(self) -> BackupReport:
        """Put what is new, then the commit. An interrupted run leaves objects that the next takes.

        Raises:
            ConfigError, NotALogDirectoryError, DuplicatePartitionError: the directories are not
                those of one broker.
            BackupRefusedError: the store is of another source, or another backup came first.
            StoreError: the store refused, or does not keep what it took.
            OSError: a directory cannot be read.
        """
        report = BackupReport(self._store.uri)
        source = BackupSource(
            self._directories,
            self._wanted,
            broker=self.options.broker,
            topic_configs=self._configs(report),
            note=report.notes.append,
        )
        self._check_place()
        owner, topics = source.look()
        commits = read_commits(self._store)
        report.cluster_id = owner.cluster_id
        report.notes += (f"passed over: {finding}" for finding in commits.findings)
        self._check_owner(owner, commits.newest)
        self._check_there_is_something(topics, bool(source.busy), commits.newest)
        content = read_content(self._store, commits)
        if content.log_file:
            self._refuse_place(content.log_file)
        if self.options.read_back is ReadBack.FULL:
            self._read_what_is_there(content, report)
        writer = SegmentWriter(
            self._store, owner, self.options.read_back, ids=self._ids, clock=self._clock
        )
        work = _Work(source, content, writer, report, self.options, self._progress)
        backed = with_busy(work.run(topics), source.busy, commits.newest)
        report.findings += (
            BackupFinding(BackupFault.UNSTABLE, error.path, error.reason, *tp)
            for tp, error in source.busy.items()
        )
        report.partitions.sort(key=lambda part: (part.topic, part.partition))
        self._commit(owner, content, backed, report)
        if self.options.keep:
            prune(self._store, self.options.keep, report, drop_deleted=self.options.drop_deleted)
        report.lied, report.retries = writer.lied, self._store.retries
        report.requests = dict(self._store.requests)
        return report

    def _configs(self, report: BackupReport) -> Mapping[str, Mapping[str, str]]:
        given = self.options.topic_configs
        return topic_configs(self._directories, report.notes.append) if given is None else given

    def _check_place(self) -> None:
        """Refuse to put objects into a log directory: a broker takes their folders for logs."""
        if not isinstance(self._store.store, LocalObjectStore):
            return
        storage = LocalStorage()
        place = storage.real_path(self._store.uri)
        sources = {storage.real_path(path) for path in self._directories}
        while place != os.path.dirname(place):
            meta = os.path.join(place, META_PROPERTIES)
            if place in sources or storage.info(meta) is not None:
                self._refuse_place(place)
            place = os.path.dirname(place)

    def _refuse_place(self, file: str) -> NoReturn:
        reason = f"is, or lies in, a log directory: {printable(file)}. Give a place of its own"
        raise BackupRefusedError(self._store.uri, reason)

    def _check_owner(self, owner: SourceOwner, newest: BackupCommit | None) -> None:
        if newest is None:
            return
        for what, here, there in (
            ("cluster", owner.cluster_id, newest.cluster_id),
            ("broker", str(owner.node_id), str(newest.node_id)),
        ):
            if here != there:
                ours, theirs = (printable(name, 200) or "no name" for name in (here, there))
                raise BackupRefusedError(
                    self._store.uri,
                    f"has backups of {what} {theirs}, and the directories are of {what} {ours}: "
                    "give each a prefix of its own",
                )

    def _check_there_is_something(
        self, topics: Sequence[BackedTopic], busy: bool, newest: BackupCommit | None
    ) -> None:
        if topics or busy:
            return
        if self._wanted is not None:
            raise ConfigError("the directories have none of the topics that are wanted")
        if newest is not None and newest.topics and not self.options.drop_deleted:
            raise BackupRefusedError(
                self._store.uri,
                f"backup {newest.number} has {len(newest.topics)} topics, and the directories have "
                "none: is a disk not mounted? --drop-deleted backs up nothing all the same",
            )

    def _read_what_is_there(self, content: StoreContent, report: BackupReport) -> None:
        """Count as lost what the newest backup names and the store has changed."""
        tasks = [
            partial(faults_in, self._store, key, segment)
            for *_, segment, key in segments_of(content.commits.newest)
            if segment.segment_id not in content.lost
        ]
        outcomes = run_all(tasks, self.options.puts_at_once, "logstore-backup-read")
        for task, (faults, error) in zip(tasks, outcomes, strict=False):
            if error is not None:
                raise error
            for _, place, reason in faults or ():
                report.notes.append(f"{printable(place)}: {reason}: counts as lost")
                content.lost.add(task.args[1].segment_id)

    # -- the commit ----------------------------------------------------------------------------

    def _commit(
        self,
        owner: SourceOwner,
        content: StoreContent,
        topics: list[TopicBackup],
        report: BackupReport,
    ) -> None:
        newest = content.commits.newest
        self._check_same_source(owner, newest, topics)
        if newest is not None and self._wanted is not None:
            there = {topic.topic for topic in topics}
            others = (topic for topic in newest.topics if not self._wanted(topic.topic))
            topics.extend(topic for topic in others if topic.topic not in there)
        for vanished in what_vanished(newest, topics) if newest else ():
            if isinstance(vanished, BackupFinding):
                report.findings.append(vanished)
            else:
                report.notes.append(vanished)
        topics.sort(key=lambda topic: topic.topic)
        if newest is not None and newest.topics == tuple(topics):
            report.number = newest.number
            return
        number = content.commits.next_number
        if number > COMMIT_NUMBER_MAX:
            reason = f"{commit_key(number - 1)} leaves no number for another backup: delete it"
            raise BackupRefusedError(self._store.uri, reason)
        commit = BackupCommit(
            number,
            owner.cluster_id,
            self._clock.wall_ms(),
            tuple(topics),
            owner.node_id,
            self._ids(),
        )
        self._check_all_is_there(commit)
        self._put_commit(commit)
        if any(part.adopted for part in report.partitions):
            self._check_all_is_there(commit)  # only an earlier backup named it, if any
        report.number, report.committed = commit.number, True

    def _check_same_source(
        self, owner: SourceOwner, newest: BackupCommit | None, topics: Sequence[TopicBackup]
    ) -> None:
        """Refuse directories without a name that have nothing of what the store has of them."""
        if newest is None or owner.cluster_id or self.options.drop_deleted:
            return
        before = [each for each in newest.topics if not self._wanted or self._wanted(each.topic)]
        if not goes_on(before, topics):
            raise BackupRefusedError(
                self._store.uri,
                f"backup {newest.number} has nothing in common with the directories, whose cluster "
                f"no {META_PROPERTIES} names: give another source a prefix of its own; "
                "--drop-deleted backs it up here all the same",
            )

    def _check_all_is_there(self, commit: BackupCommit) -> None:
        """Nobody names yet what this run has put or adopted: a check may have taken it for orphans,
        and another run may have dropped the backup that it was of."""
        lost = read_content(self._store, Commits({}, commit, [])).lost
        for *_, segment, key in segments_of(commit):
            if segment.segment_id in lost:
                reason = "was deleted while the backup was made; the next run puts it again"
                raise StoreUnavailableError(key.key(LOG), reason, True, self._store.uri)

    def _put_commit(self, commit: BackupCommit) -> None:
        """Put the commit where none is, and look whether it is ours that is there."""
        key, data = commit_key(commit.number), commit.to_json()
        try:
            self._store.put(key, lambda: (data,), len(data), only_if_absent=True)
        except ObjectExistsError:
            logger.debug("%s: is there already, perhaps by a try that reported a failure", key)
        if read_commit(self._store, commit.number) != commit:
            raise BackupRefusedError(
                self._store.uri,
                f"another backup became number {commit.number} meanwhile; what this one has put "
                "stays, and the next run takes it",
            )


class _InFlight:
    """Bounds the bytes that puts hold in memory."""

    def __init__(self, limit: int) -> None:
        self._limit, self._used = limit, 0
        self._changed = threading.Condition()

    def acquire(self, size: int) -> int:
        size = min(size, self._limit)
        with self._changed:
            self._changed.wait_for(lambda: self._used + size <= self._limit)
            self._used += size
        return size

    def release(self, size: int) -> None:
        with self._changed:
            self._used -= size
            self._changed.notify_all()


class _Work:
    """The partitions of one run, some at once; the puts of all share a few threads."""

    def __init__(
        self,
        source: BackupSource,
        content: StoreContent,
        writer: SegmentWriter,
        report: BackupReport,
        options: BackupOptions,
        progress: Progress | None,
    ) -> None:
        self.source, self.content, self.writer = source, content, writer
        self.report, self.options, self.progress = report, options, progress
        self.in_flight = _InFlight(_IN_FLIGHT)
        self.scans = threading.Semaphore(_SCANS_AT_ONCE)
        self.parts = threading.Semaphore(_PARTS_AT_ONCE)
        self.stopped = threading.Event()
        self._lock = threading.Lock()
        self._done = self._total = 0
        newest = content.commits.newest
        self._topics = {topic.topic_id: topic for topic in (newest.topics if newest else ())}
        self._before = {
            (topic.topic_id, part.partition): part
            for topic in (newest.topics if newest else ())
            for part in topic.partitions
        }

    def run(self, topics: Sequence[BackedTopic]) -> list[TopicBackup]:
        layouts = [(topic, layout) for topic in topics for layout in topic.layouts]
        self._total = sum(s.size for _, layout in layouts for s in layout.segments)
        with ThreadPoolExecutor(self.options.puts_at_once, "logstore-backup-put") as pool:
            tasks = [partial(self._guarded, pool, *each) for each in layouts]
            outcomes = run_all(tasks, self.options.partitions_at_once, "logstore-backup")
        found: dict[str, list[PartitionBackup]] = {topic.topic: [] for topic in topics}
        for (topic, _), (backed, error) in zip(layouts, outcomes, strict=False):
            if error is not None:
                raise error
            if backed is not None:
                found[topic.topic].append(backed)
        return [
            TopicBackup(
                topic.topic,
                topic.topic_id,
                self._partition_count(topic),
                dict(topic.properties.values),
                topic.properties.revision,
                tuple(found[topic.topic]),
            )
            for topic in topics
            if found[topic.topic]
        ]

    def _guarded(
        self, pool: ThreadPoolExecutor, topic: BackedTopic, layout: PartitionLayout
    ) -> PartitionBackup | None:
        """One partition; nothing where another has failed already."""
        if self.stopped.is_set():
            return None
        try:
            return self._partition(pool, topic, layout)
        except BaseException:
            self.stopped.set()
            raise

    def _partition(
        self, pool: ThreadPoolExecutor, topic: BackedTopic, layout: PartitionLayout
    ) -> PartitionBackup | None:
        before = self._before.get((topic.topic_id, layout.partition))
        reason, now = "", layout
        put, doubted = dict[tuple[int, int, int], Put](), set[tuple[str, int, str]]()
        for _ in range(_ATTEMPTS):
            try:
                return _PartitionRun(self, pool, topic, now, before, put, doubted).run()
            except (SourceChangedError, FileNotFoundError, ListingOutdatedError) as error:
                reason = str(error)
            try:
                again = self.source.again(layout)
            except (ResourceBusyError, FileNotFoundError) as error:
                reason = str(error)
                continue
            if again is None:
                self.note(f"{printable(layout.name)} was deleted while it was backed up")
                return None
            now = again
        self.find(BackupFault.UNSTABLE, layout, reason)
        return before

    def _partition_count(self, topic: BackedTopic) -> int:
        before = self._topics.get(topic.topic_id)
        return max(topic.partition_count, before.partition_count if before else 0)

    def may_have_compacted(self, topic: BackedTopic) -> bool:
        """Whether a log may have been compacted since the backup before."""
        before, now = self._topics.get(topic.topic_id), topic.properties
        return may_compact(now.values, now.revision) or (
            before is not None and may_compact(before.config, before.config_revision)
        )

    # -- what partitions report ----------------------------------------------------------------

    def note(self, text: str) -> None:
        with self._lock:
            if text not in self.report.notes[-_ATTEMPTS:]:
                self.report.notes.append(text)

    def find(
        self,
        fault: BackupFault,
        layout: PartitionLayout,
        reason: str,
        *,
        place: str = "",
        first: int = -1,
        end: int = -1,
    ) -> None:
        finding = BackupFinding(
            fault, place or layout.uri, reason, layout.topic, layout.partition, first, end
        )
        with self._lock:
            self.report.findings.append(finding)

    def add(self, result: PartitionResult) -> None:
        with self._lock:
            self.report.partitions.append(result)

    def count(self, size: int) -> None:
        with self._lock:
            self._done += size
            if self.progress is not None:
                self.progress(min(self._done, self._total), self._total)


class _PartitionRun:
    """One look at a partition: its segments in order, those that are new on their way."""

    def __init__(
        self,
        work: _Work,
        pool: ThreadPoolExecutor,
        topic: BackedTopic,
        layout: PartitionLayout,
        before: PartitionBackup | None,
        put: dict[tuple[int, int, int], Put],
        doubted: set[tuple[str, int, str]],
    ) -> None:
        self.work, self.pool, self.topic, self.layout = work, pool, topic, layout
        self.to = Destination(topic.topic, topic.topic_id, layout.partition)
        self.config = log_config(topic.properties)
        self.epochs = leader_epochs(layout.uri, work.note)
        self.limit = committed_end(layout)
        self.producers = Producers()
        self.known = {
            segment.base_offset: segment
            for segment in (before.segments if before else ())
            if segment.segment_id not in work.content.lost
        }
        self.put = put  # by base, end and checksum: what an earlier look has put
        self.doubted = doubted  # the damage that an earlier look has found
        self.result = PartitionResult(
            layout.topic, layout.partition, layout.log_start_offset, layout.log_start_offset
        )
        self.damaged: list[tuple[str, int, int, str]] = []

    def run(self) -> PartitionBackup:
        """
        Raises:
            SourceChangedError, FileNotFoundError, ListingOutdatedError: look again.
        """
        found: list[StoredSegment | Future[Put]] = []
        try:
            for segment, next_base in self.layout.bounded():
                if self.work.stopped.is_set():
                    break
                if next_base <= self.layout.log_start_offset:
                    continue  # deleted
                if segment.base_offset >= self.limit:
                    break
                backed = self._segment(segment, next_base)
                if backed is not None:
                    found.append(backed)
        finally:
            self._settle(found)  # none goes on behind our back
        return self._finish(tuple(map(self._stored, found)))

    def _settle(self, found: Iterable[StoredSegment | Future[Put]]) -> None:
        """Wait for all puts, and note those that ended well: another look may find them."""
        for backed in found:
            if isinstance(backed, Future) and backed.exception() is None:
                stored = backed.result().stored
                self.put[stored.base_offset, stored.end_offset, stored.log_crc] = backed.result()

    def _stored(self, backed: StoredSegment | Future[Put]) -> StoredSegment:
        if isinstance(backed, StoredSegment):
            return backed
        return self._counted(backed.result())

    def _counted(self, put: Put) -> StoredSegment:
        self.result.put += put.put_bytes > 0
        self.result.put_bytes += put.put_bytes
        self.result.adopted += not put.put_bytes
        return put.stored

    def _finish(self, segments: tuple[StoredSegment, ...]) -> PartitionBackup:
        layout, result = self.layout, self.result
        if not self.work.may_have_compacted(self.topic):
            segments, missing = with_missing([*self.known.values()], segments)
            for each in missing:
                path = layout.path_of(each.base_offset)
                reason = "is missing between others; the backup keeps what it has of it"
                self.damaged.append((path, each.base_offset, each.end_offset, reason))
        fresh = {(path, first, reason) for path, first, _, reason in self.damaged} - self.doubted
        if fresh:  # it may be of two moments
            self.doubted |= fresh
            raise SourceChangedError(*min((path, reason) for path, _, reason in fresh))
        start = layout.log_start_offset
        last_base = layout.segments[-1].base_offset if layout.segments else start
        empty_end = max(start, min(self.limit, last_base))
        end = max(start, segments[-1].end_offset) if segments else empty_end
        backed = PartitionBackup(
            layout.partition,
            start,
            layout.high_watermark,
            end,
            segments,
            tuple(pair for pair in with_later(self.epochs, segments) if pair[1] <= end),
        )
        for path, first, last, reason in self.damaged:
            self.work.find(BackupFault.DAMAGED, layout, reason, place=path, first=first, end=last)
        said = {first for _, first, _, _ in self.damaged}
        for first, last in holes(backed):
            if first not in said:
                reason = "no segment has these offsets"
                self.work.find(BackupFault.HOLE, layout, reason, first=first, end=last)
        result.end_offset, result.segments = end, len(segments)
        self.work.add(result)
        return backed

    # -- one segment ---------------------------------------------------------------------------

    def _segment(
        self, segment: ListedSegment, next_base: int
    ) -> StoredSegment | Future[Put] | None:
        """What is stored of a segment, or will be; None if nothing of it is committed."""
        closed = next_base <= self.limit and next_base != MAX_OFFSET
        size = segment.size if closed else size_below(self.layout, segment, self.limit)
        if not size and not closed:
            return None
        end = next_base if closed else -1
        known = self.known.get(segment.base_offset)
        if known is not None and self._same(known, segment, size, end):
            self.result.kept += 1
            self.work.count(segment.size)
            return replace(known, end_offset=max(end, known.end_offset), closed=closed)
        scanned = self._scan(segment, size, next_base)
        if scanned.damage is not None:
            first, last = scanned.end_offset, next_base if closed else scanned.end_offset
            if known is not None and keeps_more(known, scanned):
                self.work.note(
                    f"{scanned.path} is damaged; the backup keeps what it has of it, up to offset "
                    f"{known.end_offset}"
                )
                self._damaged(scanned, known.end_offset, max(last, known.end_offset))
                return known
            self._damaged(scanned, first, max(last, first))
            closed, end = False, -1
            if not scanned.size:
                return None
        end = max(end, scanned.end_offset)
        if known is not None and (known.log_size, known.log_crc, known.end_offset) == (
            scanned.size,
            scanned.crc,
            end,
        ):
            self.result.kept += 1
            self.work.count(segment.size)
            return replace(known, closed=closed)
        there = self.put.get((scanned.base_offset, end, scanned.crc))
        if there is not None:  # by an earlier look, which something else ended
            return self._counted(there)
        return self._submit(segment, scanned, end, closed)

    def _damaged(self, scanned: ScannedSegment, first: int, end: int) -> None:
        assert scanned.damage is not None
        self.producers.offset = -1  # what came behind the damage is not known
        reason = f"byte {scanned.damage.position}: {scanned.damage.reason}"
        self.damaged.append((scanned.path, first, end, reason))

    def _same(self, known: StoredSegment, segment: ListedSegment, size: int, end: int) -> bool:
        """Whether the store has this segment: by its size, its ends and its epochs."""
        if known.log_size != size or (end >= 0 and known.end_offset > end):
            return False
        if not agrees(known.leader_epochs, self.epochs):
            return False
        if not size:
            return True
        index = SegmentIndex(self.layout, segment)
        near = index.floor(max(known.end_offset - 1, 0))
        with closing(self.layout.open(segment.base_offset)) as file:
            last = last_position(file, index.path, near, size)
            return ends_at(file, last) == Ends(known.first_batch_crc, known.last_batch_crc)

    def _scan(self, segment: ListedSegment, size: int, next_base: int) -> ScannedSegment:
        base = segment.base_offset
        if self.producers.offset != base:
            self._producers_at(base)
        path = self.layout.path_of(base)
        with self.work.scans, closing(self.layout.open(base)) as file:
            try:
                scanned = scan_source(file, path, base, size, self.config, self.producers)
            except CorruptBatchError as error:  # a marker that says nothing
                raise SourceChangedError(path, str(error)) from error
        if scanned.end_offset > next_base:
            raise SourceChangedError(path, f"it reaches beyond {next_base}, where the next begins")
        if next_base != MAX_OFFSET and scanned.damage is None:
            self.producers.offset = next_base
        return scanned

    def _producers_at(self, base: int) -> None:
        """The state of producers at the base of a segment: by the newest snapshot before it, and
        the segments from there on."""
        segments = [s for s in self.layout.segments if s.base_offset <= base]
        first, snapshot = segments[0].base_offset, None
        for segment in reversed(segments):
            snapshot = read_snapshot(self.layout, segment.base_offset)
            if snapshot is not None:
                first = segment.base_offset
                break
        self.producers.start(first, snapshot)
        for segment in segments:
            if first <= segment.base_offset < base:
                with closing(self.layout.open(segment.base_offset)) as file:
                    path = self.layout.path_of(segment.base_offset)
                    replay_source(file, path, segment.base_offset, segment.size, self.producers)
        self.producers.offset = base

    def _submit(
        self, segment: ListedSegment, scanned: ScannedSegment, end: int, closed: bool
    ) -> Future[Put]:
        outgoing = OutgoingSegment(
            scanned,
            partial(self.layout.open, segment.base_offset),
            end,
            tuple(pair for pair in self.epochs if pair[1] < end) or scanned.epochs,
            closed,
            self.work.parts,
        )
        candidates = self.work.content.candidates_for(
            self.topic.topic_id, self.layout.partition, scanned.base_offset
        )
        own = scanned.size if scanned.size < PART_SIZE else _LARGE_WEIGHT
        weight = self.work.in_flight.acquire(own + sum(map(len, outgoing.indexes)))

        def put() -> Put:
            try:
                if self.work.stopped.is_set():
                    raise SourceChangedError(scanned.path, "the backup was given up")
                done = self.work.writer.put(self.to, outgoing, candidates)
                self.work.count(segment.size)
                return done
            except SourceChangedError:
                raise  # another look may help
            except BaseException:
                self.work.stopped.set()  # what waits behind it is not tried
                raise
            finally:
                self.work.in_flight.release(weight)

        return self.pool.submit(put)


def agrees(stored: Epochs, now: Epochs) -> bool:
    """Whether the epochs of a stored segment are those of the log as it is now.

    An offset before all entries is of an epoch that is deleted with its records.
    """
    for epoch, start in stored:
        at = [each for each, begin in now if begin <= start]
        if at and at[-1] != epoch:
            return False
    return True


def with_later(epochs: Epochs, segments: Iterable[StoredSegment]) -> Epochs:
    """The epochs of a log, with those that its batches have and its file does not have yet."""
    found = list(epochs)
    for segment in segments:
        found += (pair for pair in segment.leader_epochs if not found or pair[0] > found[-1][0])
    return tuple(found)


def with_busy(
    topics: list[TopicBackup], busy: Collection[TopicPartition], before: BackupCommit | None
) -> list[TopicBackup]:
    """The topics with partitions that could not be listed as the backup before has them."""
    found = {topic.topic: topic for topic in topics}
    for tp, topic, part in before.partitions() if before else ():
        now = found.get(tp.topic, replace(topic, partitions=()))
        if tp in busy and now.topic_id == topic.topic_id:
            parts = sorted((*now.partitions, part), key=lambda each: each.partition)
            count = max(now.partition_count, topic.partition_count)
            found[tp.topic] = replace(now, partitions=tuple(parts), partition_count=count)
    return list(found.values())


def keeps_more(known: StoredSegment, scanned: ScannedSegment) -> bool:
    """Whether what is stored of a segment reaches beyond the damage in it.

    It has to be the same history, which the first batch shows as far as it is sound.
    """
    return known.end_offset > scanned.end_offset and (
        not scanned.size or known.first_batch_crc == scanned.ends.first
    )


__all__ = [
    "Backup",
    "BackupOptions",
    "BackupRefusedError",
    "Progress",
    "agrees",
    "keeps_more",
    "with_busy",
    "with_later",
]
