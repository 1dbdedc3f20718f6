"""Text files written by Apache Kafka's own classes: read, and written again byte for byte.

Kafka 4.0.0-SNAPSHOT (commit 1eb7644349): ``OffsetCheckpointFile``, ``LeaderEpochCheckpointFile``,
``PartitionMetadataFile``, ``CleanShutdownFileHandler``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from checkpoints import (
    CLEAN_SHUTDOWN,
    CLEANER,
    HIGH_WATERMARK,
    LEADER_EPOCH,
    LOG_START,
    PARTITION_METADATA,
    RECOVERY_POINT,
    FileState,
    LeaderEpochCheckpoint,
    OffsetCheckpoint,
    OsFiles,
    PartitionMetadataFile,
    TopicPartition,
    clean_shutdown,
    topic_id_to_text,
)

GOLDEN = Path(__file__).parent / "data" / "checkpoints"
FILES = OsFiles()


@pytest.mark.parametrize("name", [RECOVERY_POINT, LOG_START, HIGH_WATERMARK, CLEANER])
def test_offset_checkpoints(name: str, tmp_path: Path) -> None:
    """F-11 … F-14, F-29."""
    offsets = OffsetCheckpoint(str(GOLDEN / name), FILES).read()
    assert offsets == {
        TopicPartition("orders", 0): 0,
        TopicPartition("orders", 11): 2**63 - 1,
        TopicPartition("a.b_c-d", 3): 368769,
        TopicPartition("__consumer_offsets", 49): 123456789012,
    }
    OffsetCheckpoint(str(tmp_path / name), FILES).write(offsets)
    assert (tmp_path / name).read_bytes() == (GOLDEN / name).read_bytes()


def test_an_offset_checkpoint_without_entries(tmp_path: Path) -> None:
    """F-30."""
    name = "empty-offset-checkpoint"
    state, offsets = OffsetCheckpoint(str(GOLDEN / name), FILES).inspect()
    assert (state, offsets) == (FileState.PRESENT, {})
    OffsetCheckpoint(str(tmp_path / name), FILES).write({})
    assert (tmp_path / name).read_bytes() == (GOLDEN / name).read_bytes()


def test_leader_epochs(tmp_path: Path) -> None:
    """F-33."""
    golden = GOLDEN / "topic-0" / LEADER_EPOCH
    entries = LeaderEpochCheckpoint(str(golden), FILES).read()
    assert entries == [(0, 0), (2, 17), (5, 1234567890123), (2**31 - 1, 2**63 - 2)]
    LeaderEpochCheckpoint(str(tmp_path / LEADER_EPOCH), FILES).write(entries)
    assert (tmp_path / LEADER_EPOCH).read_bytes() == golden.read_bytes()


def test_partition_metadata(tmp_path: Path) -> None:
    """F-35: no newline at the end."""
    golden = GOLDEN / "topic-0" / PARTITION_METADATA
    metadata = PartitionMetadataFile(str(golden), FILES).read()
    assert metadata is not None
    assert metadata.version == 0
    assert topic_id_to_text(metadata.topic_id) == "4sXnqEEFQVuiRHnBHPVdXw"
    PartitionMetadataFile(str(tmp_path / PARTITION_METADATA), FILES).write(metadata)
    assert (tmp_path / PARTITION_METADATA).read_bytes() == golden.read_bytes()


def test_clean_shutdown(tmp_path: Path) -> None:
    """F-46."""
    golden = GOLDEN / CLEAN_SHUTDOWN
    epoch = clean_shutdown.read(str(golden), FILES)
    assert epoch == 42
    clean_shutdown.write(str(tmp_path / CLEAN_SHUTDOWN), epoch, FILES)
    assert (tmp_path / CLEAN_SHUTDOWN).read_bytes() == golden.read_bytes()
