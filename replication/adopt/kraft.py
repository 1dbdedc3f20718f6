"""The metadata of a KRaft cluster, written: a snapshot from which a Kafka starts (F-340, F-342,
W-173).

A snapshot ``<end offset>-<epoch>.checkpoint`` in ``__cluster_metadata-0`` is whole by its last
batch, stands for all changes below its end, and needs no log beside it. The addresses of the
quorum are not in it: that is ``controller.quorum.voters`` of the node's configuration.
"""

from __future__ import annotations

import json
import os
import struct
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from checkpoints.files import replace_file
from logstore.common.types import Record
from logstore.format import filenames
from logstore.format.batch import encode_batch
from logstore.format.control import ControlType, encode_control_key
from logstore.storage.base import Storage
from replication.adopt.cluster_metadata import QUORUM_STATE, ClusterImage
from replication.common.state import PartitionRegistration
from replication.protocol import messages as wire
from replication.protocol import metadata_records

FEATURES: Mapping[str, int] = {
    "metadata.version": 25,
    "group.version": 1,
    "transaction.version": 2,
}
"""Levels that each Kafka from 4.0 on can start with; ``kafka-features.sh upgrade`` raises them. In
these a partition has no eligible leader replicas."""

EPOCH = 1  # of the quorum; that of the first start is above it
NOWHERE = uuid.UUID(int=0)  # the directory of a replica of another broker
_PARTITION_VERSION = 1  # has the directories of replicas, and no eligible leader replicas
_NO_BROKER_EPOCH = -1
_RECORDS_AT_ONCE = 1000  # a batch; Kafka reads 8 MiB of them at once
_HEADER, _FOOTER = struct.Struct(">hqb"), struct.Struct(">hb")  # a version, and no tagged fields


def snapshot_name(end_offset: int) -> str:
    return f"{end_offset:020}-{EPOCH:010}.checkpoint"


def encode_snapshot(
    image: ClusterImage, directories: Mapping[int, uuid.UUID], now_ms: int
) -> bytes:
    """The content of a snapshot that says what ``image`` says.

    Args:
        directories: the ``directory.id`` of brokers, by their ids.
        now_ms: the time of all records.
    """
    values = [metadata_records.encode(m, v) for m, v in _messages(image, directories)]
    batches = [_control(0, ControlType.SNAPSHOT_HEADER, _HEADER.pack(0, now_ms, 0), now_ms)]
    for first in range(0, len(values), _RECORDS_AT_ONCE):
        records = [(None, value, now_ms) for value in values[first : first + _RECORDS_AT_ONCE]]
        batches.append(bytes(encode_batch(records, base_offset=1 + first, leader_epoch=EPOCH)))
    end = 1 + len(values)
    batches.append(_control(end, ControlType.SNAPSHOT_FOOTER, _FOOTER.pack(0, 0), now_ms))
    return b"".join(batches)


def write_metadata_log(
    storage: Storage,
    directory: str,
    image: ClusterImage,
    directories: Mapping[int, uuid.UUID],
    now_ms: int,
) -> None:
    """Fill ``directory``, which is there and empty, durably: it is a ``__cluster_metadata-0`` once
    it has that name. All nodes of ``directories`` are voters of the quorum.

    Raises:
        OSError: the disk refused.
    """
    data = encode_snapshot(image, directories, now_ms)
    replace_file(storage, os.path.join(directory, snapshot_name(image.end_offset)), data)
    voters = [{"voterId": broker} for broker in directories]
    state = {
        "clusterId": "",
        "leaderId": -1,
        "leaderEpoch": EPOCH,
        "votedId": -1,
        "appliedOffset": 0,
        "currentVoters": voters,
        "data_version": 0,
    }
    replace_file(storage, os.path.join(directory, QUORUM_STATE), json.dumps(state).encode())


def metadata_dir(log_dir: str) -> str:
    return os.path.join(log_dir, filenames.CLUSTER_METADATA_DIR)


def _control(offset: int, kind: ControlType, value: bytes, now_ms: int) -> bytes:
    record = Record(offset, now_ms, encode_control_key(kind), value)
    return bytes(encode_batch([record], base_offset=offset, leader_epoch=EPOCH, control=True))


def _messages(
    image: ClusterImage, directories: Mapping[int, uuid.UUID]
) -> Iterator[tuple[Any, int]]:
    """Each record with its version, in an order in which each can follow those before it."""
    for feature, level in FEATURES.items():
        yield wire.FeatureLevelRecord(feature, level), 0
    for topic in image.topics.values():
        yield wire.TopicRecord(topic.name, topic.id), 0
        for number, state in topic.partitions.items():
            yield _partition(topic.id, number, state, directories), _PARTITION_VERSION
    for (kind, name), values in image.configs.items():
        for key, value in values.items():
            yield wire.ConfigRecord(kind, name, key, value), 0
    if image.next_producer_id > 0:
        broker = min(directories)
        yield wire.ProducerIdsRecord(broker, _NO_BROKER_EPOCH, image.next_producer_id), 0


def _partition(
    topic_id: uuid.UUID,
    number: int,
    state: PartitionRegistration,
    directories: Mapping[int, uuid.UUID],
) -> wire.PartitionRecord:
    return wire.PartitionRecord(
        partition_id=number,
        topic_id=topic_id,
        replicas=state.replicas,
        isr=state.isr,
        leader=state.leader,
        leader_epoch=state.leader_epoch,
        partition_epoch=state.partition_epoch,
        directories=tuple(directories.get(broker, NOWHERE) for broker in state.replicas),
    )
