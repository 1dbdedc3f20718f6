"""What is stored beside the bytes of segments: the manifest and the facts of a segment, and the
commit of a whole backup.

The manifest has the fields of version 1 of Aiven's plugin for tiered storage and no others, because
its reader refuses what it does not know. What is ours alone is in the facts, ``….logstore`` (L-10).
Facts and commits carry a CRC-32C of their own text in front of it::

    {"version":1,"crc32c":"8f0c1a2b","facts":{…}}

All that is read here may have been written by anybody: sizes, offsets and counts are bounded, and a
``MalformedManifestError`` names the field.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from checkpoints.partition_metadata import topic_id_to_text
from checkpoints.types import TopicPartition
from logstore.kernels import crc32c
from logstore.tiers.chunks import ChunkIndex
from logstore.tiers.errors import MalformedManifestError
from logstore.tiers.json_reader import I32_MAX, I64_MAX, U32_MAX, JsonObject, read_json
from logstore.tiers.keys import SegmentKey

MANIFEST_SIZE_MAX: Final = 16 << 20
"""Chunk sizes of a segment of 2 GiB in chunks of 1 KiB have 8 MB as text."""

FACTS_SIZE_MAX: Final = 4 << 20
COMMIT_SIZE_MAX: Final = 512 << 20
"""A million segments have 300 MB."""

_SEGMENTS_MAX: Final = 10_000_000
_PARTITIONS_MAX: Final = 1_000_000
_FORMAT: Final = 1
_SEALED: Final = re.compile(rb'\{"version":(\d{1,9}),"crc32c":"([0-9a-f]{8})","([a-z]+)":')
UNKNOWN: Final = -1

Epochs = tuple[tuple[int, int], ...]
"""Leader epochs with the offsets at which they start, ascending."""


class IndexKind(StrEnum):
    """The parts of ``.indexes`` under the plugin's names, in its order."""

    OFFSET = "offset"
    TIMESTAMP = "timestamp"
    PRODUCER_SNAPSHOT = "producerSnapshot"
    LEADER_EPOCH = "leaderEpoch"
    TRANSACTION = "transaction"


@dataclass(frozen=True, slots=True)
class IndexPart:
    """Where a part lies in ``.indexes``, in bytes."""

    position: int
    size: int

    @property
    def end(self) -> int:
        return self.position + self.size


@dataclass(frozen=True, slots=True)
class SegmentIndexes:
    """The parts of ``.indexes``. ``transaction`` is ``None`` if the segment has no such index."""

    offset: IndexPart
    timestamp: IndexPart
    producer_snapshot: IndexPart
    leader_epoch: IndexPart
    transaction: IndexPart | None = None

    @staticmethod
    def of_sizes(
        offset: int, timestamp: int, producer_snapshot: int, leader_epoch: int, transaction: int
    ) -> SegmentIndexes:
        """The parts one after the other; ``transaction`` is 0 if there is none."""
        parts, position = [], 0
        for size in (offset, timestamp, producer_snapshot, leader_epoch, transaction):
            parts.append(IndexPart(position, size))
            position += size
        return SegmentIndexes(
            parts[0], parts[1], parts[2], parts[3], parts[4] if transaction else None
        )

    def part(self, kind: IndexKind) -> IndexPart | None:
        found: IndexPart | None = getattr(self, _ATTRIBUTES[kind])
        return found

    @property
    def size(self) -> int:
        """The end of the last part."""
        return max(part.end for part in map(self.part, IndexKind) if part is not None)

    def sizes(self) -> list[int]:
        """As ``of_sizes`` takes them."""
        return [0 if part is None else part.size for part in map(self.part, IndexKind)]

    def to_fields(self) -> dict[str, Any]:
        return {
            str(kind): None if part is None else {"position": part.position, "size": part.size}
            for kind, part in zip(IndexKind, map(self.part, IndexKind), strict=True)
        }

    @staticmethod
    def from_fields(fields: JsonObject) -> SegmentIndexes:
        def part(kind: IndexKind) -> IndexPart:
            child = fields.child(kind)
            found = IndexPart(
                child.number("position", 0, I32_MAX), child.number("size", 0, I32_MAX)
            )
            if found.end > I32_MAX:
                child.refuse("size", "leads beyond 2 GiB")
            return found

        return SegmentIndexes(
            part(IndexKind.OFFSET),
            part(IndexKind.TIMESTAMP),
            part(IndexKind.PRODUCER_SNAPSHOT),
            part(IndexKind.LEADER_EPOCH),
            part(IndexKind.TRANSACTION) if fields.has(IndexKind.TRANSACTION) else None,
        )


_ATTRIBUTES: Final = {
    IndexKind.OFFSET: "offset",
    IndexKind.TIMESTAMP: "timestamp",
    IndexKind.PRODUCER_SNAPSHOT: "producer_snapshot",
    IndexKind.LEADER_EPOCH: "leader_epoch",
    IndexKind.TRANSACTION: "transaction",
}


@dataclass(frozen=True, slots=True)
class SegmentEncryption:
    """How the plugin encrypted a segment: ``key_id`` names the key that unwraps the data key."""

    data_key: str
    aad: str

    @property
    def key_id(self) -> str:
        return self.data_key.partition(":")[0]


@dataclass(frozen=True, slots=True)
class SegmentMetadata:
    """``remoteLogSegmentMetadata``. ``last_offset`` is inclusive, as Kafka's ``endOffset``."""

    key: SegmentKey
    last_offset: int
    max_timestamp_ms: int
    broker_id: int
    event_timestamp_ms: int
    leader_epochs: Epochs

    def to_fields(self) -> dict[str, Any]:
        key = self.key
        return {
            "remoteLogSegmentId": {
                "topicIdPartition": {
                    "topicId": topic_id_to_text(key.topic_id),
                    "topicPartition": {"topic": key.topic, "partition": key.partition},
                },
                "id": topic_id_to_text(key.segment_id),
            },
            "startOffset": key.base_offset,
            "endOffset": self.last_offset,
            "maxTimestampMs": self.max_timestamp_ms,
            "brokerId": self.broker_id,
            "eventTimestampMs": self.event_timestamp_ms,
            "segmentLeaderEpochs": {str(epoch): start for epoch, start in self.leader_epochs},
        }

    @staticmethod
    def from_fields(fields: JsonObject) -> SegmentMetadata:
        names = fields.child("remoteLogSegmentId")
        topic = names.child("topicIdPartition")
        tp = topic.child("topicPartition").topic_partition()
        start = fields.number("startOffset")
        key = SegmentKey(tp.topic, topic.uuid("topicId"), tp.partition, start, names.uuid("id"))
        return SegmentMetadata(
            key,
            fields.number("endOffset", start - 1),
            fields.number("maxTimestampMs", -1),
            fields.number("brokerId", -1, I32_MAX),
            fields.number("eventTimestampMs", -1),
            fields.epochs("segmentLeaderEpochs"),
        )


@dataclass(frozen=True, slots=True)
class SegmentManifest:
    """``….rsm-manifest``, version 1: how ``.log`` and ``.indexes`` are to be read."""

    chunk_index: ChunkIndex
    indexes: SegmentIndexes
    compression: bool = False
    encryption: SegmentEncryption | None = None
    metadata: SegmentMetadata | None = None

    def to_json(self) -> bytes:
        """The bytes of the object."""
        fields: dict[str, Any] = {
            "version": "1",
            "chunkIndex": self.chunk_index.to_fields(),
            "segmentIndexes": self.indexes.to_fields(),
            "compression": self.compression,
        }
        if self.encryption is not None:
            fields["encryption"] = {"dataKey": self.encryption.data_key, "aad": self.encryption.aad}
        if self.metadata is not None:
            fields["remoteLogSegmentMetadata"] = self.metadata.to_fields()
        return _dump(fields)

    @staticmethod
    def from_json(key: str, data: bytes) -> SegmentManifest:
        """The manifest in ``data``, the object ``key``.

        Raises:
            MalformedManifestError: it is none, or of another version.
        """
        fields = read_json(key, data, MANIFEST_SIZE_MAX)
        version = fields.text("version")
        if version != "1":
            fields.refuse("version", "is not 1, the only one that is known")
        encryption = metadata = None
        if fields.has("encryption"):
            child = fields.child("encryption")
            encryption = SegmentEncryption(child.text("dataKey"), child.text("aad"))
        if fields.has("remoteLogSegmentMetadata"):
            metadata = SegmentMetadata.from_fields(fields.child("remoteLogSegmentMetadata"))
        return SegmentManifest(
            ChunkIndex.from_fields(fields.child("chunkIndex")),
            SegmentIndexes.from_fields(fields.child("segmentIndexes")),
            fields.flag("compression"),
            encryption,
            metadata,
        )


@dataclass(frozen=True, slots=True)
class StoredSegment:
    """A segment of a backup: offsets ``[base_offset, end_offset)`` and what its objects hold.

    ``indexes`` are the sizes of the parts of ``.indexes``, as ``SegmentIndexes.of_sizes`` takes
    them. ``closed`` is False for what was the open segment: the next backup puts a longer one.
    CRCs of batches are their own, of the first and the last one; ``UNKNOWN`` without any.
    """

    base_offset: int
    end_offset: int
    segment_id: uuid.UUID
    log_size: int
    log_crc: int
    indexes: tuple[int, int, int, int, int]
    indexes_crc: int
    max_timestamp_ms: int
    leader_epochs: Epochs = ()
    first_batch_crc: int = UNKNOWN
    last_batch_crc: int = UNKNOWN
    batch_count: int = UNKNOWN
    closed: bool = True

    @property
    def index_parts(self) -> SegmentIndexes:
        return SegmentIndexes.of_sizes(*self.indexes)

    @property
    def indexes_size(self) -> int:
        return sum(self.indexes)

    def to_fields(self) -> dict[str, Any]:
        return {
            "base": self.base_offset,
            "end": self.end_offset,
            "id": topic_id_to_text(self.segment_id),
            "logSize": self.log_size,
            "logCrc": self.log_crc,
            "indexes": list(self.indexes),
            "indexesCrc": self.indexes_crc,
            "maxTimestampMs": self.max_timestamp_ms,
            "epochs": [list(pair) for pair in self.leader_epochs],
            "firstBatchCrc": self.first_batch_crc,
            "lastBatchCrc": self.last_batch_crc,
            "batches": self.batch_count,
            "closed": self.closed,
        }

    @staticmethod
    def from_fields(fields: JsonObject) -> StoredSegment:
        base = fields.number("base")
        indexes = fields.numbers("indexes", 5, I32_MAX)
        return StoredSegment(
            base,
            fields.number("end", base),
            fields.uuid("id"),
            fields.number("logSize", 0, I32_MAX),
            fields.number("logCrc", 0, U32_MAX),
            (indexes[0], indexes[1], indexes[2], indexes[3], indexes[4]),
            fields.number("indexesCrc", 0, U32_MAX),
            fields.number("maxTimestampMs", -1),
            fields.epochs("epochs"),
            fields.number("firstBatchCrc", -1, U32_MAX),
            fields.number("lastBatchCrc", -1, U32_MAX),
            fields.number("batches", -1),
            fields.flag("closed"),
        )


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """``….logstore``: what the manifest has no room for, so that objects can be checked alone."""

    key: SegmentKey
    cluster_id: str
    segment: StoredSegment
    broker_id: int = UNKNOWN
    created_ms: int = UNKNOWN

    def to_json(self) -> bytes:
        key = self.key
        return _sealed(
            "facts",
            {
                "clusterId": self.cluster_id,
                "topic": key.topic,
                "topicId": topic_id_to_text(key.topic_id),
                "partition": key.partition,
                "brokerId": self.broker_id,
                "createdMs": self.created_ms,
                "segment": self.segment.to_fields(),
            },
        )

    @staticmethod
    def from_json(key: str, data: bytes) -> SegmentFacts:
        """
        Raises:
            MalformedManifestError: they are none, of a later version, or damaged.
        """
        fields = _opened(key, data, "facts", FACTS_SIZE_MAX)
        tp = fields.topic_partition()
        segment = StoredSegment.from_fields(fields.child("segment"))
        names = tp.topic, fields.uuid("topicId"), tp.partition
        return SegmentFacts(
            SegmentKey(*names, segment.base_offset, segment.segment_id),
            fields.text("clusterId", 1000),
            segment,
            fields.number("brokerId", -1, I32_MAX),
            fields.number("createdMs", -1),
        )


@dataclass(frozen=True, slots=True)
class PartitionBackup:
    """A partition of a backup: what it had, and its segments in the order of their offsets.

    ``leader_epochs`` are all that its epoch file named. ``log_start_offset`` may lie inside the
    first segment; ``end_offset`` is the end of the last one.
    """

    partition: int
    log_start_offset: int
    high_watermark: int
    end_offset: int
    segments: tuple[StoredSegment, ...] = ()
    leader_epochs: Epochs = ()

    def to_fields(self) -> dict[str, Any]:
        return {
            "partition": self.partition,
            "logStart": self.log_start_offset,
            "highWatermark": self.high_watermark,
            "end": self.end_offset,
            "epochs": [list(pair) for pair in self.leader_epochs],
            "segments": [segment.to_fields() for segment in self.segments],
        }

    @staticmethod
    def from_fields(fields: JsonObject) -> PartitionBackup:
        start = fields.number("logStart")
        found = PartitionBackup(
            fields.number("partition", 0, I32_MAX),
            start,
            fields.number("highWatermark", -1),
            fields.number("end", start),
            fields.list_of("segments", StoredSegment.from_fields, _SEGMENTS_MAX),
            fields.epochs("epochs"),
        )
        position = -1
        for segment in found.segments:
            if segment.base_offset <= position:
                fields.refuse("segments", f"do not ascend at offset {segment.base_offset}")
            position = segment.base_offset
        return found


@dataclass(frozen=True, slots=True)
class TopicBackup:
    """A topic of a backup with its configuration (``topic.properties``) and its partitions."""

    topic: str
    topic_id: uuid.UUID
    partition_count: int
    config: dict[str, str] = field(default_factory=dict)
    config_revision: int = 0
    partitions: tuple[PartitionBackup, ...] = ()

    def to_fields(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "topicId": topic_id_to_text(self.topic_id),
            "partitionCount": self.partition_count,
            "config": self.config,
            "configRevision": self.config_revision,
            "partitions": [partition.to_fields() for partition in self.partitions],
        }

    @staticmethod
    def from_fields(fields: JsonObject) -> TopicBackup:
        found = TopicBackup(
            fields.topic("topic"),
            fields.uuid("topicId"),
            fields.number("partitionCount", 0, I32_MAX),
            fields.texts("config"),
            fields.number("configRevision"),
            fields.list_of("partitions", PartitionBackup.from_fields, _PARTITIONS_MAX),
        )
        numbers = [partition.partition for partition in found.partitions]
        if len(set(numbers)) < len(numbers):
            fields.refuse("partitions", "name a partition twice")
        return found


@dataclass(frozen=True, slots=True)
class BackupCommit:
    """One whole backup: ``logstore-backup/<number>.json``, put last of all.

    An object that no commit names is no part of any backup. ``node_id`` is the broker's whose
    directories were backed up, or ``UNKNOWN``.
    """

    number: int
    cluster_id: str
    time_ms: int
    topics: tuple[TopicBackup, ...] = ()
    node_id: int = UNKNOWN
    writer: str = ""

    def partitions(self) -> Iterator[tuple[TopicPartition, TopicBackup, PartitionBackup]]:
        for topic in self.topics:
            for partition in topic.partitions:
                yield TopicPartition(topic.topic, partition.partition), topic, partition

    def to_json(self) -> bytes:
        return _sealed(
            "backup",
            {
                "number": self.number,
                "clusterId": self.cluster_id,
                "timeMs": self.time_ms,
                "nodeId": self.node_id,
                "writer": self.writer,
                "topics": [topic.to_fields() for topic in self.topics],
            },
        )

    @staticmethod
    def from_json(key: str, data: bytes) -> BackupCommit:
        """
        Raises:
            MalformedManifestError: it is none, of a later version, or damaged.
        """
        fields = _opened(key, data, "backup", COMMIT_SIZE_MAX)
        found = BackupCommit(
            fields.number("number", 1),
            fields.text("clusterId", 1000),
            fields.number("timeMs", -1),
            fields.list_of("topics", TopicBackup.from_fields, _PARTITIONS_MAX),
            fields.number("nodeId", -1, I32_MAX),
            fields.text("writer", 1000),
        )
        names = [topic.topic for topic in found.topics]
        if len(set(names)) < len(names):
            fields.refuse("topics", "name a topic twice")
        return found


# ---- text ------------------------------------------------------------------------------------


def _dump(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode("ascii")


def _sealed(kind: str, fields: dict[str, Any]) -> bytes:
    text = _dump(fields)
    return b'{"version":%d,"crc32c":"%08x","%s":%s}\n' % (
        _FORMAT,
        crc32c(text),
        kind.encode(),
        text,
    )


def _opened(key: str, data: bytes, kind: str, limit: int) -> JsonObject:
    """What ``_sealed`` wrote: its checksum is held against the bytes before they are parsed."""
    if len(data) > limit:
        raise MalformedManifestError(key, f"it has {len(data)} bytes, more than {limit}")
    match = _SEALED.match(data)
    if match is None or match[3] != kind.encode():
        raise MalformedManifestError(key, f"it does not begin as {kind} do")
    if int(match[1]) != _FORMAT:
        raise MalformedManifestError(key, f"it is of version {int(match[1])}, known is {_FORMAT}")
    text = data[match.end() :].removesuffix(b"\n").removesuffix(b"}")
    if crc32c(text) != int(match[2], 16) or data[match.end() + len(text) :] != b"}\n":
        raise MalformedManifestError(key, "it is damaged: its checksum does not fit")
    return read_json(key, text, limit)


__all__ = [
    "COMMIT_SIZE_MAX",
    "FACTS_SIZE_MAX",
    "I64_MAX",
    "MANIFEST_SIZE_MAX",
    "UNKNOWN",
    "BackupCommit",
    "Epochs",
    "IndexKind",
    "IndexPart",
    "PartitionBackup",
    "SegmentEncryption",
    "SegmentFacts",
    "SegmentIndexes",
    "SegmentManifest",
    "SegmentMetadata",
    "StoredSegment",
    "TopicBackup",
]
