"""Decisions of the controllers of a KRaft cluster, read from the files of one of its nodes.

``__cluster_metadata-0`` is a log of changes. A snapshot ``<end offset>-<epoch>.checkpoint`` beside
its segments, of the same batches, stands for all changes below its end (F-340). Nothing is locked
or written; the node must be stopped, or the directory a copy.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from bisect import bisect_right
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any, NamedTuple

from checkpoints.checkpoint_file import load_file
from checkpoints.errors import CheckpointError
from checkpoints.types import TopicPartition
from logstore.common.config import MAX_INT
from logstore.common.errors import CorruptBatchError, CorruptDataError, InvalidTopicError
from logstore.common.types import Buffer, Record
from logstore.format import filenames
from logstore.format.control import ControlType, parse_control_key
from logstore.format.header import BatchHeader
from logstore.format.reader import Batch, batch_records, parse_batch
from logstore.log.reading.directory_reader import DirectoryReader
from logstore.storage import File, Storage
from logstore.storage.local import LocalStorage
from replication.common.state import NO_LEADER, PartitionRegistration
from replication.protocol import ProtocolError, UnsupportedVersionError, metadata_records
from replication.protocol import messages as wire

TOPIC_RESOURCE, BROKER_RESOURCE = 2, 4  # types of ConfigRecord
NO_LEADER_CHANGE = -2

_LEFT_OUT = {  # by type; a removal takes one away
    10: ("delegation tokens", 1),
    26: ("delegation tokens", -1),
    11: ("SCRAM credentials", 1),
    22: ("SCRAM credentials", -1),
    14: ("client quotas", 1),
    18: ("ACLs", 1),
    19: ("ACLs", -1),
}
_PASSING = {  # of running processes: registrations, fences, no-ops, features, a move from ZooKeeper
    *(0, 1, 7, 8, 12, 17, 20, 21, 27)
}
_SNAPSHOT = re.compile(r"([0-9]{20})-([0-9]{10})\.checkpoint")
_OFFSET_DIGITS = 20
QUORUM_STATE = "quorum-state"
_ZERO_TAIL_BYTES = 1 << 20


def electable(state: PartitionRegistration) -> tuple[int, ...]:
    """The replicas that Kafka would let lead: those that have all that was committed, or else the
    last leader, if it is known (R-71).

    After a clean stop of all brokers the ISR is empty, and the ELR is all there is (KIP-966).
    """
    whole = tuple(dict.fromkeys((*state.isr, *state.elr)))
    is_known = state.last_known_leader != NO_LEADER
    return whole or ((state.last_known_leader,) if is_known else ())


class TopicImage(NamedTuple):
    name: str
    id: uuid.UUID
    partitions: Mapping[int, PartitionRegistration]


class ClusterImage(NamedTuple):
    """The state that was decided below ``end_offset`` of the metadata log.

    ``configs``: by type of resource, 2 for topics and 4 for brokers, and its name, "" for the
    defaults of all brokers. ``next_producer_id``: no producer has this id or a larger one.
    ``left_out``: how many things of a kind there may be at most that the image does not carry.
    Changes from ``certain_end`` on may be of a leader that lost its office before a majority had
    them.
    """

    topics: Mapping[str, TopicImage]
    configs: Mapping[tuple[int, str], Mapping[str, str]]
    next_producer_id: int
    left_out: Mapping[str, int]
    certain_end: int
    end_offset: int
    notes: tuple[str, ...]

    def partition(self, tp: TopicPartition) -> PartitionRegistration | None:
        topic = self.topics.get(tp.topic)
        return None if topic is None else topic.partitions.get(tp.partition)

    def topic_configs(self, topic: str) -> Mapping[str, str]:
        return self.configs.get((TOPIC_RESOURCE, topic), {})

    def broker_configs(self) -> Mapping[str, Mapping[str, str]]:
        """By the ids of brokers; those of "" are the defaults of all."""
        return {name: own for (kind, name), own in self.configs.items() if kind == BROKER_RESOURCE}


def read_cluster_metadata(log_dir: str, storage: Storage | None = None) -> ClusterImage | None:
    """The metadata that lies in ``log_dir``, or None if it has no metadata log.

    Everything that is whole is read; ``notes`` say what is not certain. An unfinished write at the
    end of the log is left out.

    Raises:
        CorruptDataError: a damaged batch, a hole, or a record that cannot follow those before it.
        UnsupportedVersionError: a later Kafka wrote a record that is needed.
    """
    storage = storage or LocalStorage()
    directory = os.path.join(log_dir, filenames.CLUSTER_METADATA_DIR)
    info = storage.info(directory)
    if info is None or not info.is_dir:
        return None
    return _MetadataFiles(storage, directory).read()


def topic_configs(log_dir: str) -> Mapping[str, Mapping[str, str]]:
    """The configurations of all topics in the metadata that lies in ``log_dir``, for a backup.

    Raises as ``read_cluster_metadata``.
    """
    image = read_cluster_metadata(log_dir)
    if image is None:
        return {}
    return {topic: image.topic_configs(topic) for topic in image.topics}


class _BadRecordError(ValueError):
    """A record that cannot follow those before it."""


class _Replay:
    """The state that records lead to, one after the other."""

    def __init__(self) -> None:
        self.topics: dict[str, TopicImage] = {}
        self.configs: dict[tuple[int, str], dict[str, str]] = {}
        self.next_producer_id = 0
        self._names: dict[uuid.UUID, str] = {}
        self._counts: dict[str, int] = {}  # of what is left out
        self._open: list[Any] | None = None  # messages of a transaction whose end is not known

    @property
    def open_messages(self) -> int | None:
        """The number of messages of an open transaction; None if none is open."""
        return None if self._open is None else len(self._open)

    def left_out(self) -> dict[str, int]:
        return {what: count for what, count in self._counts.items() if count > 0}

    def apply_record(self, value: Buffer | None) -> None:
        """
        Raises:
            ProtocolError: not a record that is known here.
            _BadRecordError: its content does not fit.
        """
        kind, message = metadata_records.decode(value)
        match kind:
            case metadata_records.BEGIN_TRANSACTION:
                if self._open is not None:
                    raise _BadRecordError("a transaction begins inside another")
                self._open = []
            case metadata_records.END_TRANSACTION | metadata_records.ABORT_TRANSACTION:
                if self._open is None:
                    raise _BadRecordError("a transaction ends that did not begin")
                messages, self._open = self._open, None
                if kind == metadata_records.END_TRANSACTION:
                    for each in messages:
                        self._apply(each)
            case _ if message is not None:
                if self._open is None:
                    self._apply(message)
                else:
                    self._open.append(message)
            case _ if kind not in _PASSING:
                what, more = _LEFT_OUT.get(kind, (f"records of type {kind}", 1))
                self._counts[what] = self._counts.get(what, 0) + more

    def _apply(self, message: Any) -> None:
        _APPLY[type(message).__name__](self, message)

    # -- topics --------------------------------------------------------------------------------

    def topic(self, record: wire.TopicRecord) -> None:
        try:
            filenames.validate_topic(record.name)
        except InvalidTopicError as error:
            raise _BadRecordError(str(error)) from None
        if record.name in self.topics or record.topic_id in self._names:
            raise _BadRecordError(f"topic {record.name} with id {record.topic_id} is there already")
        self.topics[record.name] = TopicImage(record.name, record.topic_id, {})
        self._names[record.topic_id] = record.name

    def _partitions(self, topic_id: uuid.UUID) -> dict[int, PartitionRegistration]:
        if topic_id not in self._names:
            raise _BadRecordError(f"there is no topic with id {topic_id}")
        partitions = self.topics[self._names[topic_id]].partitions
        assert isinstance(partitions, dict)
        return partitions

    def partition(self, record: wire.PartitionRecord) -> None:
        if record.partition_id < 0:
            raise _BadRecordError(f"a partition {record.partition_id}")
        self._partitions(record.topic_id)[record.partition_id] = PartitionRegistration(
            record.replicas,
            record.isr,
            record.leader,
            record.leader_epoch,
            record.partition_epoch,
            elr=record.eligible_leader_replicas or (),
            last_known_leader=_only(record.last_known_elr),
        )

    def partition_change(self, record: wire.PartitionChangeRecord) -> None:
        partitions = self._partitions(record.topic_id)
        old = partitions.get(record.partition_id)
        if old is None:
            raise _BadRecordError(f"there is no partition {record.partition_id} to change")
        if max(old.leader_epoch, old.partition_epoch) >= MAX_INT:
            raise _BadRecordError("an epoch above the largest")
        has_leader = record.leader != NO_LEADER_CHANGE  # the epoch rises even if it is the same
        given: dict[str, Any] = {
            "replicas": record.replicas,
            "isr": record.isr,
            "leader": record.leader if has_leader else None,
            "elr": record.eligible_leader_replicas,
            "last_known_leader": None
            if record.last_known_elr is None
            else _only(record.last_known_elr),
        }
        partitions[record.partition_id] = old._replace(
            leader_epoch=old.leader_epoch + has_leader,
            partition_epoch=old.partition_epoch + 1,
            **{name: value for name, value in given.items() if value is not None},
        )

    def clear_elr(self, record: wire.ClearElrRecord) -> None:
        """Clear the ELRs of one topic, or of all without a name."""
        for name in [record.topic_name] if record.topic_name else self.topics:
            if name not in self.topics:
                raise _BadRecordError(f"there is no topic {name}")
            partitions = self._partitions(self.topics[name].id)
            for number, each in partitions.items():
                partitions[number] = each._replace(elr=(), last_known_leader=NO_LEADER)

    def remove_topic(self, record: wire.RemoveTopicRecord) -> None:
        self._partitions(record.topic_id)
        name = self._names.pop(record.topic_id)
        del self.topics[name]
        self.configs.pop((TOPIC_RESOURCE, name), None)

    # -- the rest ------------------------------------------------------------------------------

    def config(self, record: wire.ConfigRecord) -> None:
        key = (record.resource_type, record.resource_name)
        configs = self.configs.setdefault(key, {})
        if record.value is not None:
            configs[record.name] = record.value
        else:
            configs.pop(record.name, None)
        if not configs:
            del self.configs[key]

    def producer_ids(self, record: wire.ProducerIdsRecord) -> None:
        if record.next_producer_id < 0:
            raise _BadRecordError(f"the next producer id is {record.next_producer_id}")
        self.next_producer_id = max(self.next_producer_id, record.next_producer_id)


def _only(last_known_elr: tuple[int, ...] | None) -> int:
    """The last leader; of several that were eligible, nothing says which one led."""
    return last_known_elr[0] if last_known_elr and len(last_known_elr) == 1 else NO_LEADER


_APPLY: Mapping[str, Callable[[_Replay, Any], None]] = {
    "TopicRecord": _Replay.topic,
    "PartitionRecord": _Replay.partition,
    "PartitionChangeRecord": _Replay.partition_change,
    "ClearElrRecord": _Replay.clear_elr,
    "RemoveTopicRecord": _Replay.remove_topic,
    "ConfigRecord": _Replay.config,
    "ProducerIdsRecord": _Replay.producer_ids,
}


class _MetadataFiles:
    """The files of one metadata log, read once."""

    def __init__(self, storage: Storage, directory: str) -> None:
        self._storage, self._directory = storage, directory
        self._replay = _Replay()
        self._notes: list[str] = []
        self._voters = self._voters_on_file()  # 0: not known
        self._end = 0  # what lies below it counts already
        self._next = 0  # the offset of the next batch of the file
        self._is_complete = False  # the last batch ends a snapshot

    def read(self) -> ClusterImage:
        """As ``read_cluster_metadata``."""
        self._end = snapshot_end = self._read_snapshot()
        self._read_log()
        left = self._replay.open_messages
        if left is not None:
            self._notes.append(f"an open transaction of {left} changes of metadata is left out")
        certain_end = self._end if self._voters == 1 else snapshot_end
        if certain_end < self._end:
            self._notes.append(
                f"changes of metadata from offset {certain_end} to {self._end - 1} are taken, "
                "although a majority of the controllers may not have had them"
            )
        replay = self._replay
        return ClusterImage(
            replay.topics,
            replay.configs,
            replay.next_producer_id,
            replay.left_out(),
            certain_end,
            self._end,
            tuple(self._notes),
        )

    def _voters_on_file(self) -> int:
        """The number of controllers of the quorum. Records of the log say it if they may change."""
        path = os.path.join(self._directory, QUORUM_STATE)
        try:
            voters = json.loads(load_file(self._storage, path) or b"{}").get("currentVoters")
        except (CheckpointError, ValueError, RecursionError, AttributeError):
            return 0
        return len(voters) if isinstance(voters, list) else 0

    def _read_snapshot(self) -> int:
        """The end of the newest snapshot, which is replayed; 0 if there is none."""
        names = [entry.name for entry in self._storage.scan_dir(self._directory)]
        name = max((name for name in names if _SNAPSHOT.fullmatch(name)), default=None)
        if name is None:
            return 0
        path = os.path.join(self._directory, name)
        self._read_file(self._storage.open(path, writable=False), may_be_unfinished=False)
        if not self._is_complete:
            raise CorruptDataError(path, 0, "a snapshot without its last batch")
        return int(name[:_OFFSET_DIGITS])

    def _read_log(self) -> None:
        """Read what follows the snapshot; nothing in a log that ends below it (F-340): that of a
        node that was killed after it had fetched the snapshot, and before it cut its log.
        """
        reader = DirectoryReader(self._directory, storage=self._storage)
        bases = reader.bases()
        first = bisect_right(bases, self._end) - 1
        if first < 0 and (bases or not self._end):
            found = f"begins at offset {bases[0]}" if bases else "has no segment"
            reason = f"the log {found}, the newest snapshot ends at {self._end}"
            raise CorruptDataError(self._directory, 0, reason)
        self._next = bases[first] if bases else self._end
        for base in bases[first:]:
            if base != self._next:
                reason = f"the segment before it ends at offset {self._next}"
                raise CorruptDataError(reader.log_path(base), 0, reason)
            self._read_file(reader.open(base), may_be_unfinished=base == bases[-1])
        self._end = max(self._end, self._next)
        if not self._end:
            raise CorruptDataError(self._directory, 0, "the log has no whole batch")

    def _read_file(self, file: File, *, may_be_unfinished: bool) -> None:
        """Replay the batches of a file, and close it."""
        with closing(file):
            size = file.size()
            if size > MAX_INT:
                raise CorruptDataError(file.path, 0, f"{size} bytes are too many for a segment")
            with file.view(0, size) as data:
                position = self._read_batches(file.path, data, may_be_unfinished)
        if position < size:
            self._notes.append(
                f"{file.path}: an unfinished write from byte {position} on is left out"
            )

    def _read_batches(self, path: str, data: memoryview, may_be_unfinished: bool) -> int:
        """The end of the last whole batch."""
        position, end = 0, len(data)
        try:
            while (batch := parse_batch(data, position)) is not None:
                end = batch.end_position
                records = batch_records(data, batch)
                self._apply_batch(path, batch, records)
                position, end = end, len(data)
            if position < len(data) and not may_be_unfinished:
                raise CorruptBatchError("", position, "a torn batch")
        except CorruptBatchError as error:
            is_last = end >= len(data) or not any(data[position : position + _ZERO_TAIL_BYTES])
            if not (may_be_unfinished and is_last):
                raise error.located(path) from None
        return position

    def _apply_batch(self, path: str, batch: Batch, records: list[Record]) -> None:
        where = f"offset {batch.base_offset}"
        try:
            if batch.base_offset != self._next or not isinstance(batch, BatchHeader):
                raise _BadRecordError(f"a batch of offset {self._next} is missing")
            self._next = batch.last_offset + 1
            self._is_complete = False
            for record in records:
                where = f"offset {record.offset}"
                if batch.is_control:
                    self._apply_control(record)
                elif record.offset >= self._end:
                    self._replay.apply_record(record.value)
        except UnsupportedVersionError:
            raise
        except (ProtocolError, CorruptBatchError, _BadRecordError) as error:
            raise CorruptDataError(path, batch.position, f"{where}: {error}") from None

    def _apply_control(self, record: Record) -> None:
        kind = parse_control_key(record.key)
        if kind is ControlType.KRAFT_VOTERS:
            voters = (record.value or b"")[2:3]  # after the version; one more than there are
            self._voters = voters[0] - 1 if voters else 0
        self._is_complete = kind is ControlType.SNAPSHOT_FOOTER
