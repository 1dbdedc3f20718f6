"""What a store holds: its commits, and the objects beside what the newest of them names."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from checkpoints import META_PROPERTIES
from logstore.backup.patience import PatientStore
from logstore.backup.report import BackupFault, BackupFinding
from logstore.backup.writer import OrphanSegment, object_crc
from logstore.common.errors import LogstoreError
from logstore.tiers import (
    BackupCommit,
    MalformedManifestError,
    ObjectNotFoundError,
    PartitionBackup,
    SegmentFacts,
    SegmentKey,
    SegmentManifest,
    StoredObject,
    StoredSegment,
    TopicBackup,
)
from logstore.tiers.keys import (
    COMMITS,
    FACTS,
    INDEXES,
    LOG,
    MANIFEST,
    SEGMENT_SUFFIXES,
    commit_key,
    parse_commit_key,
    parse_key,
)
from logstore.tiers.manifest import COMMIT_SIZE_MAX, FACTS_SIZE_MAX, MANIFEST_SIZE_MAX, key_of

_CLOCKS_APART_MS = 3_600_000
"""How far the clocks of a store and of this machine may differ."""

_DELETED_AT_ONCE = 1000


class NoBackupError(LogstoreError):
    """A store has no backup, or not the one that was asked for."""

    def __init__(self, uri: str, reason: str) -> None:
        super().__init__(uri, reason)
        self.uri, self.reason = uri, reason

    def _text(self) -> str:
        return f"{self.uri}: {self.reason}"


class Commits(NamedTuple):
    """The commits that are listed, by number, and the newest that is whole."""

    listed: dict[int, StoredObject]
    newest: BackupCommit | None
    findings: list[BackupFinding]

    @property
    def next_number(self) -> int:
        return max(self.listed, default=0) + 1


def read_commits(store: PatientStore) -> Commits:
    """The commits of a store. One that is damaged is passed over for the one before it.

    Raises:
        StoreError: the store refused.
    """
    listed = {
        number: found
        for found in store.list(f"{COMMITS}/")
        if (number := parse_commit_key(found.key)) is not None
    }
    findings: list[BackupFinding] = []
    for number in sorted(listed, reverse=True):
        try:
            return Commits(listed, read_commit(store, number), findings)
        except (MalformedManifestError, ObjectNotFoundError) as error:
            findings.append(BackupFinding(BackupFault.MALFORMED, error.key, error.reason))
    return Commits(listed, None, findings)


def read_commit(store: PatientStore, number: int) -> BackupCommit:
    """
    Raises:
        MalformedManifestError: it is damaged, or that of another number.
        StoreError: as ``get``.
    """
    key = commit_key(number)
    found = BackupCommit.from_json(key, store.get(key, 0, COMMIT_SIZE_MAX))
    if found.number != number:
        raise MalformedManifestError(key, f"it is that of backup {found.number}")
    return found


def segments_of(
    commit: BackupCommit | None,
) -> Iterator[tuple[TopicBackup, PartitionBackup, StoredSegment, SegmentKey]]:
    """Each segment that a commit names, with its key."""
    for _, topic, partition in commit.partitions() if commit else ():
        for segment in partition.segments:
            yield topic, partition, segment, key_of(topic, partition, segment)


def holes(partition: PartitionBackup) -> Iterator[tuple[int, int]]:
    """Offsets between log start and end that no segment has, as ``[first, end)``."""
    reached = partition.log_start_offset
    for segment in partition.segments:
        if segment.base_offset > reached:
            yield reached, segment.base_offset
        reached = max(reached, segment.end_offset)
    if reached < partition.end_offset:
        yield reached, partition.end_offset


_LOG_FILE = re.compile(rf"(?:[^/]+/)?{META_PROPERTIES}|(?:[^/]+/){{0,2}}\d{{20}}\.log", re.ASCII)
"""Of a partition, of a log directory, or of one a step below."""

_BITS = {suffix: 1 << number for number, suffix in enumerate(SEGMENT_SUFFIXES)}
_ALL = (1 << len(SEGMENT_SUFFIXES)) - 1


@dataclass(slots=True)
class StoreContent:
    """A store compared with its newest commit, in one pass over its listing.

    ``lost`` are ids of segments whose objects are not there as the commit says. ``candidates`` are
    objects that it does not name, by topic id, partition and base offset. ``log_file`` is a file of
    a log directory, which is no store.
    """

    commits: Commits
    lost: set[uuid.UUID] = field(default_factory=set)
    candidates: dict[tuple[uuid.UUID, int, int], list[OrphanSegment]] = field(default_factory=dict)
    log_file: str = ""

    def candidates_for(self, topic_id: uuid.UUID, partition: int, base: int) -> list[OrphanSegment]:
        return self.candidates.get((topic_id, partition, base), [])


def read_content(store: PatientStore, commits: Commits) -> StoreContent:
    """List a store once. What a listing lacks is asked for, because listings may lag.

    Raises:
        StoreError: the store refused.
    """
    found = StoreContent(commits)
    named = {key: segment for _, _, segment, key in segments_of(commits.newest)}
    seen = dict.fromkeys(named, 0)
    newest = commits.newest
    since = newest.time_ms - _CLOCKS_APART_MS if newest else 0
    for listed in store.list():
        parsed = parse_key(listed.key)
        if parsed is None:
            if _LOG_FILE.fullmatch(listed.key):
                found.log_file = listed.key
            continue
        key, suffix = parsed
        if key in seen:
            seen[key] |= _BITS[suffix] if fits(named[key], suffix, listed.size) else 0
        elif not 0 < listed.mtime_ms < since:  # older ones are of older backups
            _add(found, key, suffix, listed.size)
    for key, bits in seen.items():
        if bits != _ALL and not _is_there(store, key, named[key], bits):
            found.lost.add(key.segment_id)
    return found


def _add(found: StoreContent, key: SegmentKey, suffix: str, size: int) -> None:
    of_base = found.candidates.setdefault((key.topic_id, key.partition, key.base_offset), [])
    for candidate in of_base:
        if candidate.segment_id == key.segment_id:
            candidate.sizes[suffix] = size
            return
    of_base.append(OrphanSegment(key.segment_id, {suffix: size}))


def size_of(segment: StoredSegment, suffix: str) -> int:
    """The size of an object of a segment; −1 where any will do."""
    return {LOG: segment.log_size, INDEXES: segment.indexes_size}.get(suffix, -1)


def fits(segment: StoredSegment, suffix: str, size: int) -> bool:
    """Whether an object of a segment may have this size."""
    expected = size_of(segment, suffix)
    return size > 0 if expected < 0 else size == expected


def _is_there(store: PatientStore, key: SegmentKey, segment: StoredSegment, bits: int) -> bool:
    """Whether the objects that a listing lacks are there all the same."""
    lacking = [suffix for suffix in SEGMENT_SUFFIXES if not bits & _BITS[suffix]]
    return all(fault_of(store, key, segment, suffix) is None for suffix in lacking)


def fault_of(
    store: PatientStore, key: SegmentKey, segment: StoredSegment, suffix: str
) -> tuple[BackupFault, str] | None:
    """What is wrong with an object, by its presence and its size; None if nothing is."""
    size = size_of(segment, suffix)
    try:
        if size < 0:
            ok = bool(store.get(key.key(suffix), 0, 1))
            return None if ok else (BackupFault.TORN, "it is empty")
        start = max(size - 1, 0)
        if len(store.get(key.key(suffix), start, 2)) == size - start:
            return None
        return BackupFault.TORN, f"it does not have the {size} bytes that its backup names"
    except ObjectNotFoundError:
        return BackupFault.MISSING, "it is not in the store"


def faults_in(
    store: PatientStore, key: SegmentKey, segment: StoredSegment
) -> list[tuple[BackupFault, str, str]]:
    """What is wrong with the objects of a segment, and where; reads every byte of them.

    Raises:
        StoreError: the store refused.
    """
    found: list[tuple[BackupFault, str, str]] = []
    for suffix, size, crc in (
        (LOG, segment.log_size, segment.log_crc),
        (INDEXES, segment.indexes_size, segment.indexes_crc),
    ):
        place = key.key(suffix)
        try:
            there = object_crc(store, place, size)
        except ObjectNotFoundError as error:
            found.append((BackupFault.MISSING, place, error.reason))
            continue
        if there is None:
            found.append((BackupFault.TORN, place, f"it does not have {size} bytes"))
        elif there != crc:
            reason = f"its checksum is {there:08x}, its backup has {crc:08x}"
            found.append((BackupFault.TORN, place, reason))
    return [*found, *_small_faults(store, key, segment)]


def _small_faults(
    store: PatientStore, key: SegmentKey, segment: StoredSegment
) -> Iterator[tuple[BackupFault, str, str]]:
    """What manifest and facts say that is not so."""
    place = key.key(MANIFEST)
    try:
        manifest = SegmentManifest.from_json(place, store.get(place, 0, MANIFEST_SIZE_MAX))
        if (
            not manifest.chunk_index.is_plain
            or manifest.chunk_index.original_size != segment.log_size
            or manifest.indexes != segment.index_parts
        ):
            yield BackupFault.MALFORMED, place, "it describes other objects"
        place = key.key(FACTS)
        facts = SegmentFacts.from_json(place, store.get(place, 0, FACTS_SIZE_MAX))
        if (facts.key, facts.segment.log_crc) != (key, segment.log_crc):
            yield BackupFault.MALFORMED, place, "they are those of another segment"
    except MalformedManifestError as error:
        yield BackupFault.MALFORMED, place, error.reason
    except ObjectNotFoundError as error:
        yield BackupFault.MISSING, place, error.reason


def delete_segments(store: PatientStore, keys: Iterable[SegmentKey]) -> int:
    """Delete the objects of segments, each manifest first, so that no reader sees half a segment.
    Returns how many."""
    objects = [key.key(suffix) for key in keys for suffix in (MANIFEST, FACTS, INDEXES, LOG)]
    for start in range(0, len(objects), _DELETED_AT_ONCE):
        store.delete(objects[start : start + _DELETED_AT_ONCE])
    return len(objects)


__all__ = [
    "Commits",
    "NoBackupError",
    "StoreContent",
    "delete_segments",
    "fault_of",
    "faults_in",
    "fits",
    "holes",
    "read_commit",
    "read_commits",
    "read_content",
    "segments_of",
    "size_of",
]
