"""The small durable text files of a Kafka log directory.

=================================== =================================== ==========================
file                                content                             here
=================================== =================================== ==========================
recovery-point-offset-checkpoint    ``topic partition offset``: flushed `OffsetCheckpoint`
log-start-offset-checkpoint         … first offset, where it moved      `OffsetCheckpoint`
replication-offset-checkpoint       … high watermark                    `OffsetCheckpoint`
cleaner-offset-checkpoint           … first offset not yet compacted    `OffsetCheckpoint`
<partition>/leader-epoch-checkpoint ``epoch start_offset``              `LeaderEpochCheckpoint`
<partition>/partition.metadata      topic id                            `PartitionMetadataFile`
<partition>/topic.properties        configuration (not Kafka's)         `TopicPropertiesFile`
meta.properties                     cluster, node and directory id      `MetaPropertiesFile`
.kafka_cleanshutdown                JSON; its existence counts          `clean_shutdown`
closed-replicas-checkpoint          what that covers (not Kafka's)      `ClosedReplicasFile`
=================================== =================================== ==========================

Every file is replaced as a whole: write ``<name>.tmp``, fsync, rename, fsync the directory (F-26).
A reader sees the old text or the new, also after a crash at any point (S-39). Reading returns typed
values, or raises one of two errors: `MalformedCheckpointError` if the text is wrong,
`CheckpointFailedError` if the disk failed. The disk is reached only through `Files`.
"""

from __future__ import annotations

from checkpoints import clean_shutdown
from checkpoints.checkpoint_file import FileState
from checkpoints.clean_shutdown import CLEAN_SHUTDOWN
from checkpoints.closed_replicas import (
    CLOSED_REPLICAS,
    ClosedReplica,
    ClosedReplicas,
    ClosedReplicasFile,
)
from checkpoints.errors import CheckpointError, CheckpointFailedError, MalformedCheckpointError
from checkpoints.files import Files, OsFiles, UnusableFileError, replace_file
from checkpoints.leader_epoch_checkpoint import LEADER_EPOCH, LeaderEpochCheckpoint
from checkpoints.meta_properties import META_PROPERTIES, MetaProperties, MetaPropertiesFile
from checkpoints.offset_checkpoint import (
    CLEANER,
    HIGH_WATERMARK,
    LOG_START,
    RECOVERY_POINT,
    OffsetCheckpoint,
)
from checkpoints.partition_metadata import (
    PARTITION_METADATA,
    PartitionMetadata,
    PartitionMetadataFile,
    is_reserved_id,
    random_topic_id,
    topic_id_from_text,
    topic_id_to_text,
)
from checkpoints.topic_properties import (
    OVERRIDES_ALONE,
    TOPIC_PROPERTIES,
    TopicProperties,
    TopicPropertiesFile,
)
from checkpoints.types import TopicPartition

__all__ = [
    "CLEANER",
    "CLEAN_SHUTDOWN",
    "CLOSED_REPLICAS",
    "HIGH_WATERMARK",
    "LEADER_EPOCH",
    "LOG_START",
    "META_PROPERTIES",
    "OVERRIDES_ALONE",
    "PARTITION_METADATA",
    "RECOVERY_POINT",
    "TOPIC_PROPERTIES",
    "CheckpointError",
    "CheckpointFailedError",
    "ClosedReplica",
    "ClosedReplicas",
    "ClosedReplicasFile",
    "FileState",
    "Files",
    "LeaderEpochCheckpoint",
    "MalformedCheckpointError",
    "MetaProperties",
    "MetaPropertiesFile",
    "OffsetCheckpoint",
    "OsFiles",
    "PartitionMetadata",
    "PartitionMetadataFile",
    "TopicPartition",
    "TopicProperties",
    "TopicPropertiesFile",
    "UnusableFileError",
    "clean_shutdown",
    "is_reserved_id",
    "random_topic_id",
    "replace_file",
    "topic_id_from_text",
    "topic_id_to_text",
]
