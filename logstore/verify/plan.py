"""From paths to partitions: what will be checked, planned before any segment is opened.

The files of log directories are read at once, because they say which partitions belong together.
The files of a partition are read when its turn comes, because a running broker keeps writing them.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from checkpoints import clean_shutdown
from checkpoints.leader_epoch_checkpoint import LEADER_EPOCH
from checkpoints.meta_properties import META_PROPERTIES
from checkpoints.partition_metadata import PARTITION_METADATA
from checkpoints.printable import printable
from checkpoints.types import TopicPartition
from logstore.common.errors import ConfigError, InvalidTopicError
from logstore.format import filenames
from logstore.storage.base import FileInfo, Storage
from logstore.storage.broker_directories import broker_directories
from logstore.storage.uri import log_directory, open_storage, shown
from logstore.verify.common.report import UNKNOWN, Finding, Severity, VerifyReport
from logstore.verify.partition.directory import CHECKPOINTS, LogDirCheck
from logstore.verify.partition.ends import LogDirFacts
from logstore.verify.partition.partition_check import PartitionCheck, absolute, partition_of
from logstore.verify.replicas.replicas import ReplicaSet, TopicIds
from logstore.verify.segment.segment_check import VerifyOptions, file_name

_DIR_FILES = (*CHECKPOINTS, META_PROPERTIES, clean_shutdown.CLEAN_SHUTDOWN)
_PARTITION_FILES = (LEADER_EPOCH, PARTITION_METADATA)


@dataclass(slots=True)
class VerifyPlan:
    """The partitions of all paths added so far.

    Findings that need no segment are in ``report`` already. ``bytes`` is the size of the ``.log``
    files, if they are counted, which takes one more listing.
    """

    options: VerifyOptions
    counted: bool = False
    report: VerifyReport = field(default_factory=VerifyReport)
    checks: list[PartitionCheck] = field(default_factory=list)
    bytes: int = 0
    _seen: set[tuple[int, str, int]] = field(default_factory=set)

    def add(self, uri: str, storage: Storage | None = None) -> None:
        """Add a log directory, a partition directory or a file of one, or all log directories in
        the directory of a cluster.

        ``storage`` holds it if given. What cannot be read is noted in the report.
        """
        try:
            if storage is None:
                uri = log_directory(uri)
            storage, path = (storage, uri) if storage else open_storage(uri)
        except ConfigError as failure:
            self.report.unusable.append(str(failure))
            return
        except OSError as failure:
            self.report.refuse(shown(uri), failure)
            return
        try:
            _Path(self, storage, uri).add(path)
        except OSError as failure:
            self.report.refuse(path, failure)

    def first_time(self, storage: Storage, path: str, only: int = UNKNOWN) -> bool:
        """Whether this path is new.

        A path that is given twice is checked once, and is no replica of itself.
        """
        key = id(storage), absolute(path), only
        known = key in self._seen
        self._seen.add(key)
        return not known

    def replica_sets(self) -> list[ReplicaSet]:
        """The partitions, each with its directories on all brokers.

        Directories of different clusters have nothing in common, even if their topics have equal
        names; that is noted. A directory that does not know its cluster counts as one of the first
        cluster.
        """
        clusters = (check.facts.cluster_id for check in self.checks)
        first_cluster = next(filter(None, clusters), "")
        known: Counter[tuple[str, str]] = Counter()
        for check in self.checks:
            if tp := partition_of(check.directory):
                key = check.facts.cluster_id or first_cluster, tp.topic
                known[key] = max(known[key], tp.partition + 1)
        topic_ids = TopicIds()
        sets: dict[object, ReplicaSet] = {}
        for number, check in enumerate(self.checks):
            cluster = check.facts.cluster_id or first_cluster
            tp = partition_of(check.directory)
            if tp:
                check.partitions = known[cluster, tp.topic]
            whole = check.only < 0 and not check.directory.endswith(filenames.FUTURE_DIR_SUFFIX)
            own = (cluster, tp) if tp and whole else number
            found = sets.setdefault(own, ReplicaSet(cluster, self.options, topic_ids))
            found.checks.append(check)
            if tp and cluster != first_cluster and (first_cluster, tp) in sets:
                self._note_cluster(os.path.dirname(check.directory), cluster, first_cluster)
        return list(sets.values())

    def _note_cluster(self, directory: str, cluster: str, first_cluster: str) -> None:
        path = os.path.join(directory, META_PROPERTIES)
        here, first = (printable(name, 200) for name in (cluster, first_cluster))
        message = f"cluster {here}: not compared with the directories of cluster {first}"
        note = Finding(Severity.INFO, "other-cluster", path, message)
        if note not in self.report.findings:
            self.report.findings.append(note)


@dataclass(slots=True)
class _Path:
    """One of the given paths, and the storage that holds it."""

    plan: VerifyPlan
    storage: Storage
    uri: str

    def add(self, path: str) -> None:
        found = self.storage.info(path)
        if found is None:
            self.plan.report.unusable.append(f"{path}: no such file or directory")
        elif not found.is_dir:
            self._file(path)
        else:
            entries = self.storage.scan_dir(path)
            if _is_partition(path, entries):
                self._partition(path, self._facts_beside(path), entries=entries)
            elif brokers := broker_directories(self.storage, path):
                for name in brokers:
                    self.add(os.path.join(path, name))
            elif self.plan.first_time(self.storage, path):
                self._log_dir(path, entries)

    def _partition(
        self, path: str, facts: LogDirFacts, only: int = UNKNOWN, entries: Iterable[FileInfo] = ()
    ) -> None:
        """Plan a partition. ``entries`` is what its directory holds, needed to count bytes."""
        if not self.plan.first_time(self.storage, path, only):
            return
        options = self.plan.options
        self.plan.checks.append(
            PartitionCheck(self.storage, path, options, facts, only, uri=self.uri)
        )
        sizes = {e.name: e.size for e in entries if not e.is_dir}
        rolls = filenames.roll_marks(sizes, 0)
        logs = [name for name in sizes if name.endswith(filenames.LOG_SUFFIX)]
        logs += [file_name(base, filenames.LOG_SUFFIX, is_roll=True) for base in rolls]
        self.plan.bytes += sum(sizes[name] for name in logs)

    # -- directories ---------------------------------------------------------------------------

    def _log_dir(self, path: str, entries: list[FileInfo]) -> None:
        check = LogDirCheck(self.storage, path, findings_max=self.plan.options.findings_max)
        check.read()
        check.check_names(entries)
        here: dict[str, TopicPartition] = {}
        leaving: set[TopicPartition] = set()
        moving: dict[str, TopicPartition] = {}
        for entry in entries:
            if not entry.is_dir or entry.name == filenames.REMOTE_LOG_INDEX_CACHE:
                continue
            try:
                parsed = filenames.parse_partition_dir(entry.name)
            except InvalidTopicError as failure:
                check.refuse_name(entry.name, str(failure))
                continue
            if parsed.suffix == "":
                here[entry.name] = parsed.topic_partition
            elif parsed.suffix == filenames.FUTURE_DIR_SUFFIX:
                moving[entry.name] = parsed.topic_partition
            else:
                leaving.add(parsed.topic_partition)
                check.note_leftover(entry.name, parsed.suffix)
        check.check_entries({*here.values(), *moving.values()}, leaving)
        check.check_creations(entries, here)
        self.plan.report.files += check.files
        self.plan.report.extend(check.findings)
        self.plan.report.suppressed += check.suppressed
        for name in [*here, *moving]:
            directory = os.path.join(path, name)
            self._partition(
                directory, check.facts_of(here.get(name)), entries=self._listed(directory)
            )

    def _listed(self, directory: str) -> list[FileInfo]:
        """The files to count. A directory that cannot be listed is reported when it is read."""
        try:
            return self.storage.scan_dir(directory) if self.plan.counted else []
        except OSError:
            return []

    def _facts_beside(self, path: str) -> LogDirFacts:
        """Return what the log directory around a partition says about it, if there is one."""
        parent, name = os.path.split(absolute(path))
        alone = LogDirFacts(parent)
        try:
            if not any(self.storage.info(os.path.join(parent, file)) for file in _DIR_FILES):
                return alone
            check = LogDirCheck(self.storage, parent)
            check.read()
            parsed = filenames.parse_partition_dir(name)
            return check.facts_of(None if parsed.suffix else parsed.topic_partition)
        except (OSError, InvalidTopicError):
            return alone

    # -- single files --------------------------------------------------------------------------

    def _file(self, path: str) -> None:
        """A file of a segment is checked with its neighbours, any other one by itself."""
        report = self.plan.report
        name = os.path.basename(path)
        directory = os.path.dirname(path) or "."
        parsed = filenames.parse_segment_file(name)
        if parsed is not None and parsed.suffix != filenames.SNAPSHOT_SUFFIX:
            if parsed.transition or name != filenames.segment_file_name(*parsed[:2]):
                report.refuse(path, "only files with their final name can be checked")
                return
            log = os.path.join(directory, filenames.segment_file_name(parsed.offset, ".log"))
            if self.storage.info(log) is None:
                report.refuse(path, "there is no .log beside it to compare with")
                return
            self._partition(directory, self._facts_beside(directory), parsed.offset)
        elif parsed is not None or name in _PARTITION_FILES:
            partition = PartitionCheck(self.storage, directory, self.plan.options)
            partition.read_small(name)
            self._small_file(name, partition)
        elif name in _DIR_FILES:
            check = LogDirCheck(self.storage, directory)
            check.read()
            self._small_file(name, check)
        else:
            report.refuse(path, "not a file of a log directory, going by its name")

    def _small_file(self, name: str, check: PartitionCheck | LogDirCheck) -> None:
        self.plan.report.files += 1
        self.plan.report.extend(f for f in check.findings if os.path.basename(f.file) == name)


def _is_partition(path: str, entries: Iterable[FileInfo]) -> bool:
    """A directory with files of segments, or an empty one with the name of a partition."""
    names = [entry.name for entry in entries if not entry.is_dir]
    if any(name in _PARTITION_FILES or filenames.parse_segment_file(name) for name in names):
        return True
    if partition_of(path) is None:
        return False
    return not any(entry.is_dir or entry.name in _DIR_FILES for entry in entries)
