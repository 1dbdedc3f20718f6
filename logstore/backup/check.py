"""A store compared with what its commits say: what is missing, torn, foreign, or named by none."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from logstore.backup.content import (
    Commits,
    NoBackupError,
    delete_segments,
    fault_of,
    faults_in,
    fits,
    holes,
    read_commit,
    read_commits,
    segments_of,
)
from logstore.backup.patience import PatientStore
from logstore.backup.report import BackupFault, BackupFinding, PartitionResult
from logstore.common.clock import Clock, SystemClock
from logstore.common.json_fields import json_fields
from logstore.common.parallel import run_all
from logstore.tiers import (
    BackupCommit,
    LocalObjectStore,
    MalformedManifestError,
    ObjectNotFoundError,
    ObjectStore,
    SegmentFacts,
    SegmentKey,
    StoredObject,
    StoredSegment,
)
from logstore.tiers.keys import (
    FACTS,
    MANIFEST,
    SEGMENT_SUFFIXES,
    commit_key,
    parse_commit_key,
    parse_key,
)
from logstore.tiers.manifest import FACTS_SIZE_MAX

DAY_MS = 86_400_000
_AT_ONCE = 6

Progress = Callable[[int, int], None]
"""Bytes read, bytes in all."""


@dataclass(frozen=True, slots=True)
class StoreCheckOptions:
    """How a store is checked.

    Attributes:
        deep: read every byte, and hold it against the checksums of the commits.
        older_than_ms: an object that no commit names is an orphan from this age on. A backup that
            is on its way puts such objects.
        delete: delete the orphans.
    """

    deep: bool = False
    older_than_ms: int = DAY_MS
    delete: bool = False


@dataclass(slots=True)
class StoreCheckReport:
    """What a store has. ``partitions`` are those of the newest backup, ``number``."""

    uri: str
    number: int = 0
    cluster_id: str = ""
    time_ms: int = -1
    backups: list[int] = field(default_factory=list)
    segments: int = 0
    bytes: int = 0
    partitions: list[PartitionResult] = field(default_factory=list)
    findings: list[BackupFinding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        return not self.findings

    def to_dict(self) -> dict[str, Any]:
        return json_fields(self) | {"whole": self.whole}


class _Unnamed(NamedTuple):
    """Objects of a segment that no commit names, by suffix."""

    key: SegmentKey
    objects: dict[str, StoredObject]


def check_store(
    store: ObjectStore,
    options: StoreCheckOptions | None = None,
    *,
    clock: Clock | None = None,
    progress: Progress | None = None,
) -> StoreCheckReport:
    """Compare a store with its commits. Nothing is written; ``delete`` deletes orphans.

    Raises:
        NoBackupError: it has no backup that can be read.
        StoreError: the store refused.
    """
    patient = PatientStore(store)
    return _Check(patient, options or StoreCheckOptions(), clock or SystemClock(), progress).run()


class _Check:
    def __init__(
        self,
        store: PatientStore,
        options: StoreCheckOptions,
        clock: Clock,
        progress: Progress | None,
    ) -> None:
        self._store, self._options, self._progress = store, options, progress
        self._now_ms = clock.wall_ms()
        self._report = StoreCheckReport(store.uri)
        self._named: dict[SegmentKey, tuple[StoredSegment, int]] = {}
        """Each segment with the newest backup that names it."""
        self._read: set[int] = set()
        self._done = self._total = 0

    def run(self) -> StoreCheckReport:
        commits = read_commits(self._store)
        newest = commits.newest
        if newest is None:
            why = f"; {commits.findings[0]}" if commits.findings else ""
            raise NoBackupError(self._store.uri, f"there is no backup that can be read{why}")
        self._take_commits(commits)
        report = self._report
        report.number, report.cluster_id = newest.number, newest.cluster_id
        report.time_ms = newest.time_ms
        self._partitions(newest)
        unnamed = self._listed()
        if self._options.deep:
            self._deep()
        self._orphans(unnamed, newest)
        self._leftovers()
        report.backups = sorted(self._read)
        report.segments = len(self._named)
        report.bytes = sum(s.log_size + s.indexes_size for s, _ in self._named.values())
        report.findings.sort(key=lambda finding: (finding.fault, finding.place))
        return report

    def _find(
        self, fault: BackupFault, place: str, reason: str, key: SegmentKey | None = None
    ) -> None:
        if key is None:
            self._report.findings.append(BackupFinding(fault, place, reason))
            return
        segment, number = self._named[key]
        ends = segment.base_offset, segment.end_offset
        reason = f"{reason} (backup {number})"
        finding = BackupFinding(fault, place, reason, key.topic, key.partition, *ends)
        self._report.findings.append(finding)

    # -- commits -------------------------------------------------------------------------------

    def _take_commits(self, commits: Commits) -> None:
        """Take in what commits name that were not read before."""
        for number in sorted(commits.listed, reverse=True):
            if number in self._read:
                continue
            try:
                commit = read_commit(self._store, number)
            except (MalformedManifestError, ObjectNotFoundError) as error:
                self._find(BackupFault.MALFORMED, error.key, error.reason)
                continue
            self._read.add(number)
            for *_, segment, key in segments_of(commit):
                self._named.setdefault(key, (segment, number))

    def _partitions(self, commit: BackupCommit) -> None:
        for tp, _, part in commit.partitions():
            size = sum(segment.log_size for segment in part.segments)
            self._report.partitions.append(
                PartitionResult(
                    *tp, part.log_start_offset, part.end_offset, len(part.segments), put_bytes=size
                )
            )
            for first, end in holes(part):
                reason = "no segment has these offsets"
                place = commit_key(commit.number)
                self._report.findings.append(
                    BackupFinding(BackupFault.HOLE, place, reason, *tp, first, end)
                )

    # -- objects -------------------------------------------------------------------------------

    def _listed(self) -> list[_Unnamed]:
        """Compare the listing with what is named. What it lacks is asked for: it may lag."""
        missing = {key: set(SEGMENT_SUFFIXES) for key in self._named}
        unnamed: dict[SegmentKey, _Unnamed] = {}
        for found in self._store.list():
            parsed = parse_key(found.key)
            if parsed is None:
                if parse_commit_key(found.key) is None:
                    self._find(BackupFault.FOREIGN, found.key, "no backup puts such an object")
                continue
            key, suffix = parsed
            if key not in self._named:
                unnamed.setdefault(key, _Unnamed(key, {})).objects[suffix] = found
            elif fits(self._named[key][0], suffix, found.size):
                missing[key].discard(suffix)
        for key, suffixes in missing.items():
            for suffix in sorted(suffixes):
                fault = fault_of(self._store, key, self._named[key][0], suffix)
                if fault is not None:
                    self._find(fault[0], key.key(suffix), fault[1], key)
        return list(unnamed.values())

    def _deep(self) -> None:
        """Read all that is named and not known to be wrong."""
        wrong = {finding.place for finding in self._report.findings}
        self._total = sum(s.log_size + s.indexes_size for s, _ in self._named.values())
        tasks = [
            partial(self._read_segment, key, segment)
            for key, (segment, _) in self._named.items()
            if not any(key.key(suffix) in wrong for suffix in SEGMENT_SUFFIXES)
        ]
        for key, (faults, error) in zip(
            (task.args[0] for task in tasks),
            run_all(tasks, _AT_ONCE, "logstore-check"),
            strict=False,
        ):
            if error is not None:
                raise error
            for fault, place, reason in faults or ():
                self._find(fault, place, reason, key)

    def _read_segment(
        self, key: SegmentKey, segment: StoredSegment
    ) -> list[tuple[BackupFault, str, str]]:
        found = faults_in(self._store, key, segment)
        if self._progress is not None:
            self._done += segment.log_size + segment.indexes_size
            self._progress(self._done, self._total)
        return found

    # -- orphans -------------------------------------------------------------------------------

    def _orphans(self, unnamed: list[_Unnamed], newest: BackupCommit) -> None:
        """Judge what no commit names; a backup may have ended since, and named it."""
        self._take_commits(read_commits(self._store))
        delete = self._options.delete
        if delete and any(
            finding.fault is BackupFault.MALFORMED and finding.place.startswith(_COMMIT_FOLDER)
            for finding in self._report.findings
        ):
            delete = False
            self._report.notes.append(
                "nothing is deleted: a backup cannot be read, and may name any object"
            )
        self._judge(unnamed, newest, delete=delete)

    def _judge(self, unnamed: list[_Unnamed], newest: BackupCommit, *, delete: bool) -> None:
        ids = {topic.topic: topic.topic_id for topic in newest.topics}
        doomed: list[SegmentKey] = []
        young = defaultdict[str, int](int)
        for key, objects in unnamed:
            if key in self._named:
                continue
            born = max(found.mtime_ms for found in objects.values())
            foreign = self._foreign(key, objects, newest)
            if foreign:
                place = next(iter(objects.values())).key
                self._find(BackupFault.FOREIGN, place, foreign)
            elif born > self._now_ms - self._options.older_than_ms:
                young[key.topic] += len(objects)
            elif delete:
                doomed.append(key)
            else:
                reason = "no backup names it"
                if ids.get(key.topic, key.topic_id) != key.topic_id:
                    reason += "; it is of an earlier topic of this name"
                for found in objects.values():
                    self._find(BackupFault.ORPHAN, found.key, reason)
        taken = self._taken_meanwhile(doomed)
        for key in taken:
            young[key.topic] += len(SEGMENT_SUFFIXES)
        doomed = [key for key in doomed if key not in taken]
        there = dict(unnamed)
        self._report.deleted += (found.key for key in doomed for found in there[key].values())
        delete_segments(self._store, doomed)
        if young:
            self._report.notes.append(
                f"{sum(young.values())} objects are named by no backup and too young to be "
                "orphans: a backup may be on its way"
            )

    def _leftovers(self) -> None:
        """What killed puts left in a local store."""
        if not isinstance(self._store.store, LocalObjectStore):
            return
        oldest = self._now_ms - self._options.older_than_ms
        for key in [f.key for f in self._store.store.leftovers() if f.mtime_ms <= oldest]:
            if self._options.delete:
                self._store.delete([key])
                self._report.deleted.append(key)
            else:
                self._find(BackupFault.ORPHAN, key, "a put that was cut short left it")

    def _taken_meanwhile(self, doomed: list[SegmentKey]) -> set[SegmentKey]:
        """Those of which an object is young by now: a backup that is on its way puts the manifest
        of a segment again that it takes over."""
        found = set[SegmentKey]()
        wanted, oldest = set(doomed), self._now_ms - self._options.older_than_ms
        for directory in {key.directory for key in doomed}:
            for listed in self._store.list(f"{directory}/"):
                parsed = parse_key(listed.key)
                if parsed is not None and parsed[0] in wanted and listed.mtime_ms > oldest:
                    found.add(parsed[0])
        return found

    def _foreign(
        self, key: SegmentKey, objects: dict[str, StoredObject], newest: BackupCommit
    ) -> str:
        """Why a segment is not one of this source; "" if it may be one, cut short perhaps."""
        place = key.key(FACTS)
        if FACTS not in objects:
            if MANIFEST in objects:
                return "it has a manifest and no facts, so no backup has put it"
            return ""
        try:
            facts = SegmentFacts.from_json(place, self._store.get(place, 0, FACTS_SIZE_MAX))
        except (MalformedManifestError, ObjectNotFoundError):
            return ""
        if facts.cluster_id != newest.cluster_id:
            return f"it is of cluster {facts.cluster_id or 'no name'}"
        return ""


_COMMIT_FOLDER = commit_key(0).rpartition("/")[0]

__all__ = ["DAY_MS", "StoreCheckOptions", "StoreCheckReport", "check_store"]
