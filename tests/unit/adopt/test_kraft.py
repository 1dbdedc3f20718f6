"""The metadata of a cluster, written and read again (F-342, W-173)."""

from __future__ import annotations

import json
import uuid

import pytest

from logstore.common.errors import CorruptDataError
from logstore.storage.memory import MemoryStorage
from replication.adopt import (
    TOPIC_RESOURCE,
    ClusterImage,
    TopicImage,
    metadata_dir,
    read_cluster_metadata,
    write_metadata_log,
)
from replication.adopt.kraft import FEATURES, encode_snapshot, snapshot_name
from replication.common.state import NO_LEADER, PartitionRegistration

HERE = uuid.UUID(int=9)


def image(topics: int = 2, partitions: int = 3) -> ClusterImage:
    state = PartitionRegistration((1,), (1,), NO_LEADER, 7, 0)
    made = {
        f"topic-{at}": TopicImage(
            f"topic-{at}", uuid.UUID(int=1000 + at), dict.fromkeys(range(partitions), state)
        )
        for at in range(topics)
    }
    return ClusterImage(made, {(TOPIC_RESOURCE, "topic-0"): {"a.b": "c"}}, 77, {}, 9, 9, ())


def written(what: ClusterImage) -> MemoryStorage:
    storage = MemoryStorage()
    for path in ("/d", metadata_dir("/d")):
        storage.make_dir(path)
    write_metadata_log(storage, metadata_dir("/d"), what, {1: HERE}, 1_000)
    return storage


def test_what_is_written_is_read_again() -> None:
    """Also of more records than go into one batch."""
    for what in (image(), image(3, 1_000), ClusterImage({}, {}, 0, {}, 5, 5, ())):
        assert read_cluster_metadata("/d", written(what)) == what


def test_a_snapshot_says_the_directories_and_the_features() -> None:
    data = encode_snapshot(image(), {1: HERE}, 1_000)
    assert data.count(HERE.bytes) == 6
    for feature in FEATURES:
        assert feature.encode() in data


def test_the_node_is_the_only_voter() -> None:
    storage = written(image())
    state = json.loads(storage.read_file(f"{metadata_dir('/d')}/quorum-state"))
    assert (state["currentVoters"], state["leaderId"]) == ([{"voterId": 1}], -1)


def test_a_snapshot_that_is_cut_anywhere_is_not_believed() -> None:
    storage = written(image())
    path = f"{metadata_dir('/d')}/{snapshot_name(9)}"
    data = storage.read_file(path)
    for end in range(0, len(data), 7):
        storage.write_file(path, data[:end])
        with pytest.raises(CorruptDataError):
            read_cluster_metadata("/d", storage)
