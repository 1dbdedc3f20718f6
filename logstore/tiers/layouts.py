"""How others and we lay segments out in a store: one way to say it, whoever wrote it.

``BackupLayout`` takes a commit of ours at its word: what it names is the log. The other two list
folders, which may lag, and choose by lineage. ``TieredLayout`` is that of Aiven's plugin, and
``LocalTieredLayout`` that of the test class in Kafka's own jar (L-13).
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

from checkpoints.checkpoint_file import MAX_I32, MAX_I64, parse_entries, parse_number
from checkpoints.clean_shutdown import CLEAN_SHUTDOWN
from checkpoints.errors import MalformedCheckpointError
from checkpoints.leader_epoch_checkpoint import LEADER_EPOCH, LeaderEpochCheckpoint
from checkpoints.loggers import get_logger
from checkpoints.meta_properties import META_PROPERTIES, MetaProperties, MetaPropertiesFile
from checkpoints.offset_checkpoint import (
    HIGH_WATERMARK,
    LOG_START,
    RECOVERY_POINT,
    OffsetCheckpoint,
)
from checkpoints.partition_metadata import (
    PARTITION_METADATA,
    PartitionMetadata,
    topic_id_to_text,
)
from checkpoints.topic_properties import TOPIC_PROPERTIES, TopicProperties, TopicPropertiesFile
from checkpoints.types import TopicPartition
from logstore.common.parallel import at_once
from logstore.format import filenames
from logstore.format.filenames import partition_dir, partition_dir_name
from logstore.storage.base import FileInfo, Storage
from logstore.storage.memory import MemoryStorage
from logstore.tiers import keys
from logstore.tiers.chunks import ChunkIndex
from logstore.tiers.cutting import end_of, read_all
from logstore.tiers.errors import MalformedManifestError, broken
from logstore.tiers.lineage import rank
from logstore.tiers.manifest import (
    MANIFEST_SIZE_MAX,
    BackupCommit,
    Epochs,
    IndexKind,
    IndexPart,
    PartitionBackup,
    SegmentIndexes,
    SegmentManifest,
    StoredSegment,
    TopicBackup,
)
from logstore.tiers.sources import (
    UNKNOWN_CRC,
    ByteSource,
    ChunkedObject,
    ObjectPart,
    Objects,
    RefusedObject,
    WholeObject,
)

logger = get_logger(__name__)

_INDEX_SUFFIXES: Final = {
    filenames.INDEX_SUFFIX: IndexKind.OFFSET,
    filenames.TIME_INDEX_SUFFIX: IndexKind.TIMESTAMP,
    filenames.TXN_INDEX_SUFFIX: IndexKind.TRANSACTION,
}
_LOCAL_EPOCHS: Final = ".leader_epoch_checkpoint"


@dataclass(frozen=True, slots=True)
class RemoteSegment:
    """A segment in a store, with offsets ``[base_offset, end_offset)``.

    ``indexes`` are its index files by suffix, and ``snapshot`` is the one of its end. ``epochs`` is
    the epoch file of its time, where that is not known from elsewhere.
    """

    base_offset: int
    end_offset: int
    leader_epochs: Epochs
    log: ByteSource
    indexes: Mapping[str, ByteSource]
    snapshot: ByteSource | None = None
    epochs: ByteSource | None = None
    mtime_ms: int = 0
    max_timestamp_ms: int = -1
    """The highest timestamp of its records, where that was sealed when it was put."""


@dataclass(frozen=True, slots=True)
class RemotePartition:
    """A partition in a store: its segments in any order, and the files beside them.

    ``history`` are the leader epochs of the history that went on, and empty where every segment is
    of it. ``log_start`` is unknown for a listing.
    """

    segments: tuple[RemoteSegment, ...]
    files: Mapping[str, bytes]
    history: Epochs = ()
    log_start: int | None = None
    end_offset: int = -1
    mtime_ms: int = 0
    missing: str = (
        "in no segment of the store. A listing may lag: try again. Else objects are missing"
    )
    """Where offsets between two segments are, and what to do."""


class RemoteLayout(Protocol):
    """The seam: which partitions a store has, and what each is made of."""

    def partitions(self) -> Iterable[str]:
        """The names of their directories, such as ``orders-0``."""
        ...

    def partition(self, name: str) -> RemotePartition:
        """One of them.

        Raises:
            OSError: the store refused, or an object is broken (``BrokenTierError``).
        """
        ...

    def files(self) -> Mapping[str, bytes]:
        """The files of the log directory."""
        ...


# ---- a backup of ours ------------------------------------------------------------------------


class BackupLayout:
    """What one commit names. Nothing is listed, and nothing else in the store counts."""

    def __init__(self, commit: BackupCommit, root: str) -> None:
        self._commit, self._root = commit, root
        self._partitions = {
            partition_dir_name(tp): (topic, partition)
            for tp, topic, partition in commit.partitions()
        }

    def partitions(self) -> Iterable[str]:
        return self._partitions

    def partition(self, name: str) -> RemotePartition:
        topic, partition = self._partitions[name]
        files = _partition_files(topic, partition)
        segments = tuple(self._segment(topic, partition, each) for each in partition.segments)
        return RemotePartition(
            segments,
            files,
            (),
            min(partition.log_start_offset, partition.end_offset),
            partition.end_offset,
            self._commit.time_ms,
            "not in this backup: they could not be read in its source, which was damaged. "
            "logstore restore brings back the rest, and logstore backup puts them when the source "
            "is mended",
        )

    def _segment(
        self, topic: TopicBackup, partition: PartitionBackup, stored: StoredSegment
    ) -> RemoteSegment:
        key = keys.SegmentKey(
            topic.topic,
            topic.topic_id,
            partition.partition,
            stored.base_offset,
            stored.segment_id,
        )
        indexes = f"{self._root}/{key.key(keys.INDEXES)}"

        def part(where: IndexPart) -> ByteSource:
            return ObjectPart(
                indexes, where.position, where.size, stored.indexes_size, stored.indexes_crc
            )

        found = _segment(
            stored.base_offset,
            stored.end_offset,
            stored.leader_epochs,
            WholeObject(f"{self._root}/{key.key(keys.LOG)}", stored.log_size, stored.log_size),
            stored.index_parts,
            part,
            self._commit.time_ms,
        )
        return replace(found, max_timestamp_ms=stored.max_timestamp_ms)

    def files(self) -> Mapping[str, bytes]:
        commit = self._commit
        node = commit.node_id if commit.node_id >= 0 else None
        version = 1 if commit.cluster_id and node is not None else 0
        starts = {tp: each.log_start_offset for tp, _, each in commit.partitions()}
        # What was put was committed, also where no high watermark was on file.
        ends = {tp: each.end_offset for tp, _, each in commit.partitions()}
        # What was put was verified: a broker on top of it need not read all to recover it.
        found = {
            LOG_START: _written(OffsetCheckpoint, starts),
            HIGH_WATERMARK: _written(OffsetCheckpoint, ends),
            RECOVERY_POINT: _written(OffsetCheckpoint, ends),
            CLEAN_SHUTDOWN: b'{"version":0,"brokerEpoch":-1}',
        }
        if commit.cluster_id or node is not None:
            meta = MetaProperties(version, commit.cluster_id or None, node)
            found[META_PROPERTIES] = _written(MetaPropertiesFile, meta, max(commit.time_ms, 0))
        return found


def _partition_files(topic: TopicBackup, partition: PartitionBackup) -> dict[str, bytes]:
    found = _id_file(topic.topic_id)
    if topic.config or topic.config_revision:
        settings = TopicProperties(topic.config, topic.config_revision)
        found[TOPIC_PROPERTIES] = _written(TopicPropertiesFile, settings)
    epochs = _from(partition.leader_epochs, partition.log_start_offset)
    found[LEADER_EPOCH] = _written(LeaderEpochCheckpoint, epochs)
    return found


def _from(epochs: Epochs, log_start: int) -> Epochs:
    """The epochs of a log as a broker keeps them once its records before ``log_start`` are gone."""
    gone = [epoch for epoch, start in epochs if start <= log_start][-1:]
    return (
        *((epoch, log_start) for epoch in gone),
        *(pair for pair in epochs if pair[1] > log_start),
    )


def _id_file(topic_id: uuid.UUID) -> dict[str, bytes]:
    return {PARTITION_METADATA: PartitionMetadata(topic_id).encode()}


def _written(kind: Callable[..., Any], *values: Any) -> bytes:
    """The bytes that a file of ``checkpoints`` writes."""
    storage = MemoryStorage()
    kind("/file", storage).write(*values)
    return storage.read_file("/file")


def _segment(
    base: int,
    end: int,
    epochs: Epochs,
    log: ByteSource,
    indexes: SegmentIndexes,
    part: Callable[[IndexPart], ByteSource],
    mtime_ms: int,
) -> RemoteSegment:
    found = {suffix: indexes.part(kind) for suffix, kind in _INDEX_SUFFIXES.items()}
    snapshot = indexes.producer_snapshot
    return RemoteSegment(
        base,
        end,
        epochs,
        log,
        {suffix: part(where) for suffix, where in found.items() if where is not None},
        part(snapshot) if snapshot.size else None,
        part(indexes.leader_epoch) if indexes.leader_epoch.size else None,
        mtime_ms,
    )


# ---- listings --------------------------------------------------------------------------------


@dataclass
class _Listed:
    """What layouts that list folders have in common."""

    objects: Objects
    root: str
    _folders: dict[str, str] | None = field(default=None, init=False)

    def partitions(self) -> Iterable[str]:
        if self._folders is None:
            self._folders = self._find()
        return self._folders

    def files(self) -> Mapping[str, bytes]:
        return {}

    @property
    def storage(self) -> Storage:
        return self.objects.storage

    def _find(self) -> dict[str, str]:
        """The folder of each partition."""
        raise NotImplementedError

    def _newest(self, found: Mapping[str, list[tuple[str, uuid.UUID]]]) -> dict[str, str]:
        """One folder for each partition. Topics that were made anew under an old name have several:
        that with the newest object is shown, and the others are named."""
        chosen: dict[str, str] = {}
        for name, folders in found.items():
            if len(folders) > 1:
                folders.sort(key=lambda each: self._time_of(each[0]))
                *others, newest = (topic_id_to_text(each[1]) for each in folders)
                logger.warning(
                    "%s: %s has several topic ids: %s is shown, not %s",
                    self.root,
                    name,
                    newest,
                    ", ".join(others),
                )
            chosen[name] = folders[-1][0]
        return chosen

    def _time_of(self, folder: str) -> tuple[int, str]:
        entries = self.storage.scan_dir(f"{self.root}/{folder}")
        return max((entry.mtime_ms for entry in entries), default=0), folder

    def _with_history(self, segments: list[RemoteSegment], topic_id: uuid.UUID) -> RemotePartition:
        """The partition, with the epochs that the newest segment's leader knew."""
        files = _id_file(topic_id)
        history: Epochs = ()
        newest = max(segments, key=rank, default=None)
        if newest is not None and newest.epochs is not None:
            data = read_all(self.objects.open(newest.epochs, _path_of(newest.epochs)))
            history = parse_epochs(_path_of(newest.epochs), data)
            files[LEADER_EPOCH] = data
        end = -1 if newest is None else newest.end_offset
        mtime = max((each.mtime_ms for each in segments), default=0)
        return RemotePartition(tuple(segments), files, history, None, end, mtime)


def _path_of(source: ByteSource) -> str:
    return getattr(source, "path", "")


def parse_epochs(path: str, data: bytes) -> Epochs:
    """The entries of an epoch file.

    Raises:
        BrokenTierError: it is malformed.
    """
    found: list[tuple[int, int]] = []
    try:
        for line, (epoch, start) in parse_entries(path, data, 2):
            pair = parse_number(epoch, MAX_I32), parse_number(start, MAX_I64)
            if pair[0] is None or pair[1] is None or (found and pair <= found[-1]):
                raise broken(path, f"its leader epochs are malformed in line {line}")
            found.append((pair[0], pair[1]))
    except MalformedCheckpointError as error:
        raise broken(path, f"its leader epochs are malformed: {error.reason}") from None
    return tuple(found)


class TieredLayout(_Listed):
    """Aiven's layout: folders ``<topic>-<topic id>/<partition>`` with manifests.

    What has no manifest is no segment: it is put last.
    """

    def _find(self) -> dict[str, str]:
        topics = [
            topic
            for entry in self.storage.scan_dir(self.root)
            if entry.is_dir and (topic := keys.parse_topic_dir(entry.name)) is not None
        ]
        found: dict[str, list[tuple[str, uuid.UUID]]] = {}
        listed = at_once(lambda topic: self.storage.scan_dir(f"{self.root}/{topic.name}"), topics)
        for topic, entries in zip(topics, listed, strict=True):
            for entry in entries:
                number = keys.parse_partition(entry.name) if entry.is_dir else None
                if number is not None:
                    name = partition_dir_name(TopicPartition(topic.topic, number))
                    folder = f"{topic.name}/{entry.name}"
                    found.setdefault(name, []).append((folder, topic.topic_id))
        return self._newest(found)

    def partition(self, name: str) -> RemotePartition:
        self.partitions()
        assert self._folders is not None
        folder = self._folders[name]
        entries = self.storage.scan_dir(f"{self.root}/{folder}")
        key = f"{self.root}/{folder}"
        manifests = [
            entry
            for entry in entries
            if entry.is_file
            and (parsed := keys.parse_segment_name(entry.name)) is not None
            and parsed[2] == keys.MANIFEST
        ]
        segments = at_once(lambda entry: self._segment(key, entry), manifests)
        topic = keys.parse_topic_dir(folder.partition("/")[0])
        assert topic is not None
        return self._with_history(segments, topic.topic_id)

    def _segment(self, folder: str, entry: FileInfo) -> RemoteSegment:
        path = f"{folder}/{entry.name}"
        data = self.objects.read(path, MANIFEST_SIZE_MAX)
        try:
            manifest = SegmentManifest.from_json(path, data)
        except MalformedManifestError as error:
            raise broken(path, error.reason) from None
        metadata = manifest.metadata
        parsed = keys.parse_segment_name(entry.name)
        assert parsed is not None
        if metadata is None:
            raise broken(path, "has no remoteLogSegmentMetadata, which says where it ends")
        if (metadata.key.base_offset, metadata.key.segment_id) != parsed[:2]:
            raise broken(path, "describes another segment than its name says")
        stem = path.removesuffix(keys.MANIFEST)
        indexes, whole = f"{stem}{keys.INDEXES}", manifest.indexes.size

        def part(where: IndexPart) -> ByteSource:
            if manifest.encryption is not None:
                return RefusedObject(indexes, where.size, _encrypted(manifest))
            return ObjectPart(indexes, where.position, where.size, whole, UNKNOWN_CRC)

        found = _segment(
            metadata.key.base_offset,
            metadata.last_offset + 1,
            metadata.leader_epochs,
            _log_of(f"{stem}{keys.LOG}", manifest),
            manifest.indexes,
            part,
            entry.mtime_ms,
        )
        return replace(found, epochs=None) if manifest.encryption is not None else found


def _log_of(path: str, manifest: SegmentManifest) -> ByteSource:
    chunks: ChunkIndex = manifest.chunk_index
    if manifest.encryption is not None:
        return RefusedObject(path, chunks.original_size, _encrypted(manifest))
    if manifest.compression:
        return ChunkedObject(path, chunks, chunks.original_size)
    if chunks.stored_size != chunks.original_size:
        reason = "its manifest has chunks of other sizes, without compression or encryption"
        return RefusedObject(path, chunks.original_size, reason)
    return WholeObject(path, chunks.original_size, chunks.original_size)


def _encrypted(manifest: SegmentManifest) -> str:
    assert manifest.encryption is not None
    return (
        f"is encrypted, by a key that the RSA key {manifest.encryption.key_id[:100]!r} unwraps: "
        "encrypted segments cannot be read here. Have the plugin write without encryption, or read "
        "through a broker"
    )


class LocalTieredLayout(_Listed):
    """Kafka's ``LocalTieredStorage``: folders ``<topic>-<partition>-<topic id>`` of plain files.

    Nothing there says where a segment ends, so its last batches are looked at.
    """

    def _find(self) -> dict[str, str]:
        found: dict[str, list[tuple[str, uuid.UUID]]] = {}
        for entry in self.storage.scan_dir(self.root):
            topic = keys.parse_topic_dir(entry.name) if entry.is_dir else None
            if topic is not None and partition_dir(topic.topic) is not None:
                found.setdefault(topic.topic, []).append((entry.name, topic.topic_id))
        return self._newest(found)

    def partition(self, name: str) -> RemotePartition:
        self.partitions()
        assert self._folders is not None
        folder = self._folders[name]
        stems: dict[str, dict[str, FileInfo]] = {}
        for entry in self.storage.scan_dir(f"{self.root}/{folder}"):
            parsed = _local_name(entry.name)
            if entry.is_file and parsed is not None:
                stems.setdefault(parsed[0], {})[parsed[1]] = entry
        segments = [
            self._segment(f"{self.root}/{folder}/{stem}", stem, files)
            for stem, files in stems.items()
            if filenames.LOG_SUFFIX in files
        ]
        topic = keys.parse_topic_dir(folder)
        assert topic is not None
        return self._with_history(segments, topic.topic_id)

    def _segment(self, path: str, stem: str, files: Mapping[str, FileInfo]) -> RemoteSegment:
        def source(suffix: str) -> ByteSource | None:
            entry = files.get(suffix)
            return None if entry is None else WholeObject(f"{path}{suffix}", entry.size, entry.size)

        indexes = {suffix: found for suffix in _INDEX_SUFFIXES if (found := source(suffix))}
        log, epochs = source(filenames.LOG_SUFFIX), source(_LOCAL_EPOCHS)
        assert log is not None
        index = indexes.get(filenames.INDEX_SUFFIX)
        entries = b"" if index is None else read_all(self.objects.open(index, _path_of(index)))
        file = self.objects.open(log, _path_of(log))
        base = int(stem[:20])
        try:
            end = end_of(file, entries, base)
        finally:
            file.close()
        known: Epochs = ()
        if epochs is not None:
            data = read_all(self.objects.open(epochs, _path_of(epochs)))
            known = parse_epochs(_path_of(epochs), data)
        return RemoteSegment(
            base,
            end,
            epochs_of(known, base, end),
            log,
            indexes,
            source(filenames.SNAPSHOT_SUFFIX),
            epochs,
            files[filenames.LOG_SUFFIX].mtime_ms,
        )


def _local_name(name: str) -> tuple[str, str] | None:
    """Stem and suffix of a file of ``LocalTieredStorage``."""
    stem, dot, suffix = name.partition(".")
    if not dot or keys.parse_segment_name(f"{stem}{keys.LOG}") is None:
        return None
    return stem, dot + suffix


def epochs_of(known: Epochs, base: int, end: int) -> Epochs:
    """The epochs that have offsets in ``[base, end)``, of all that are known."""
    later = [start for _, start in known[1:]] + [MAX_I64]
    return (
        tuple(
            (epoch, max(start, base))
            for (epoch, start), after in zip(known, later, strict=True)
            if start < end and after > base
        )
        if known
        else ()
    )


__all__ = [
    "BackupLayout",
    "LocalTieredLayout",
    "RemoteLayout",
    "RemotePartition",
    "RemoteSegment",
    "TieredLayout",
    "epochs_of",
    "parse_epochs",
]
