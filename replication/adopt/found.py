"""The content of log directories, as brokers would find it: read through an overlay, so that
nothing there changes, not even where a log needs recovery.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple
from uuid import UUID

from checkpoints.errors import CheckpointError
from checkpoints.meta_properties import MetaProperties
from checkpoints.partition_metadata import topic_id_to_text
from checkpoints.printable import printable
from checkpoints.topic_properties import TOPIC_PROPERTIES, TopicProperties, TopicPropertiesFile
from checkpoints.types import TopicPartition
from logstore.common.config import MAX_LONG, BrokerConfig
from logstore.common.errors import ConfigError, CorruptDataError, LogstoreError
from logstore.format import filenames
from logstore.log import PartitionLog
from logstore.manager import LogManager, ManagerOwner, peek
from logstore.storage.base import Storage
from logstore.storage.broker_directories import broker_directories
from replication.common.internal_topics import GROUP_METADATA, INTERNAL_TOPICS
from replication.common.state import UNKNOWN_EPOCH
from replication.coordination.nodes import CLUSTER_ID_MAX
from replication.protocol import ProtocolError
from replication.protocol import messages as wire
from replication.protocol.coordinator_records import (
    CONSUMER_OFFSETS,
    TRANSACTION_STATE,
    decode_key,
    decode_value,
)

ONGOING = frozenset((1, 2, 3))  # a transaction that its coordinator ends: open, or being ended

CONSUMER_GROUPS = "consumer groups"
_NEW_GROUPS = {3: CONSUMER_GROUPS, 11: "share groups", 17: "streams groups"}
"""Types of the keys in which groups of the later protocols have their head (KIP-848, 932, 1071)."""


class CoordinatorState(NamedTuple):
    """The content of one partition of an internal topic.

    Attributes:
        keys: the groups with offsets or members of the classic protocol, or the transactional ids.
        committed: the offsets of groups by group and partition.
        others: groups of other protocols, by their kind.
        open: producer ids of transactions that the coordinator will end.
        largest_id: of a producer; −1 without any.
        unreadable: how many records could not be read.
    """

    keys: frozenset[str] = frozenset()
    committed: Mapping[tuple[str, TopicPartition], int] = {}
    others: Mapping[str, frozenset[str]] = {}
    open: frozenset[int] = frozenset()
    largest_id: int = -1
    unreadable: int = 0


class FoundLog(NamedTuple):
    """One replica as it is after its recovery.

    Attributes:
        epochs: ``(leader epoch, start offset)``, ascending.
        oldest_ms: the largest timestamp of the first segment, by which retention goes; −1 without
            a record.
        is_short: it lacks records that were committed, or that lie whole behind damage.
        open_producers: ids of producers with a transaction that has no end.
        state: of an internal topic.
    """

    topic_id: UUID | None
    epochs: tuple[tuple[int, int], ...]
    log_end_offset: int
    oldest_ms: int = -1
    open_producers: tuple[int, ...] = ()
    state: CoordinatorState | None = None
    is_short: bool = False

    @property
    def leader_epoch(self) -> int:
        return self.epochs[-1][0] if self.epochs else UNKNOWN_EPOCH

    @property
    def rank(self) -> tuple[int, int]:
        """The latest epoch and the log end: the higher, the closer to the committed history."""
        return self.leader_epoch, self.log_end_offset


class FoundBroker(NamedTuple):
    """The log directories of one broker.

    Attributes:
        broker_epoch: of its last clean stop.
        configs: ``topic.properties`` of each topic that has any.
        unavailable: logs that cannot be opened, and why.
        unproven: replicas whose logs are surely not as the last stop left them (R-180).
        coordinator_epoch, producer_id: the largest that its logs know.
    """

    directories: tuple[str, ...]
    broker_epoch: int
    logs: Mapping[TopicPartition, FoundLog]
    configs: Mapping[str, TopicProperties]
    unavailable: Mapping[TopicPartition, str] = {}
    unproven: frozenset[TopicPartition] = frozenset()
    coordinator_epoch: int = UNKNOWN_EPOCH
    producer_id: int = -1


# --- whose directories they are ------------------------------------------------------------------


class _Contents(NamedTuple):
    path: str
    meta: MetaProperties | None
    logs: frozenset[TopicPartition]
    others: tuple[str, ...]
    has_metadata: bool


class LogDirs(NamedTuple):
    """Log directories by broker. Those of controllers have metadata alone.

    ``others``: the names of what is there beside logs.
    """

    brokers: Mapping[int, tuple[str, ...]]
    with_metadata: tuple[str, ...]
    cluster_id: str | None
    others: tuple[str, ...]


def expanded(paths: Iterable[str], storage: Storage) -> list[str]:
    """The log directories in ``paths``: themselves, or ``broker-N`` in one that ``serve`` made."""
    found: list[str] = []
    for path in paths:
        info = storage.info(path)
        if info is None or not info.is_dir:
            raise ConfigError(f"{printable(path)}: no such directory")
        found += [os.path.join(path, name) for name in broker_directories(storage, path)] or [path]
    return found


def log_dirs_of(paths: Sequence[str], storage: Storage, first_id: int | None = None) -> LogDirs:
    """Which brokers the log directories belong to.

    Args:
        first_id: the broker of directories without ``meta.properties``, 0 by default.
    Raises:
        ConfigError: they are no log directories, or of several clusters, or two copies of one.
    """
    contents = [_contents(path, storage) for path in paths]
    real: dict[str, str] = {}
    for each in contents:
        twice = real.setdefault(storage.real_path(each.path), each.path)
        if twice is not each.path:
            raise ConfigError(f"{each.path} and {twice} are the same directory")
    metas = [each.meta for each in contents if each.meta is not None]
    clusters = {meta.cluster_id for meta in metas if meta.cluster_id is not None}
    if len(clusters) > 1:
        raise ConfigError(f"the directories belong to several clusters: {_listed(clusters)}")
    for cluster_id in clusters:
        if not (cluster_id.isprintable() and 0 < len(cluster_id) <= CLUSTER_ID_MAX):
            raise ConfigError(
                f"{printable(cluster_id, 200)!r} is no cluster.id: see meta.properties"
            )
    named = {meta.node_id for meta in metas if meta.node_id is not None}
    has_metadata = any(each.has_metadata for each in contents)
    nameless = first_id if first_id is not None else min(named, default=0)
    owned: dict[int, list[_Contents]] = {}
    for each in contents:
        owner = None if each.meta is None else each.meta.node_id
        if owner is None and first_id is None and (len(named) > 1 or (has_metadata and not named)):
            # Logs that the metadata gives to other brokers would become strays.
            raise ConfigError(
                f"{each.path} does not say which broker's it is: give it the meta.properties of "
                "its broker, or node.id if it is the only one"
            )
        owned.setdefault(nameless if owner is None else owner, []).append(each)
    for broker_id, parts in owned.items():
        if broker_id < 0:
            raise ConfigError(f"{parts[0].path}: {broker_id} is no id of a broker")
        _check_one_broker(broker_id, parts)
    brokers = {
        broker_id: tuple(part.path for part in parts)
        for broker_id, parts in sorted(owned.items())
        if not all(part.has_metadata and not part.logs for part in parts)
    }
    if not any(each.logs for each in contents):
        raise ConfigError(f"{_listed(paths)}: there is no log of a partition; give log directories")
    return LogDirs(
        brokers,
        tuple(each.path for each in contents if each.has_metadata),
        next(iter(clusters), None),
        tuple(name for each in contents for name in each.others),
    )


def _contents(path: str, storage: Storage) -> _Contents:
    content = peek(path, storage)
    names = {entry.name for entry in storage.scan_dir(path) if entry.is_dir}
    known = {filenames.REMOTE_LOG_INDEX_CACHE, filenames.CLUSTER_METADATA_DIR}
    others = names - known - set(map(filenames.partition_dir_name, content.logs))
    has_metadata = filenames.CLUSTER_METADATA_DIR in names
    logs = frozenset(content.logs)
    return _Contents(path, content.meta, logs, tuple(sorted(others)), has_metadata)


def _check_one_broker(broker_id: int, parts: Sequence[_Contents]) -> None:
    """
    Raises:
        ConfigError: they are copies of each other, or of one broker at two times.
    """
    seen: dict[str, _Contents] = {}
    for part in parts:
        keys = [filenames.partition_dir_name(tp) for tp in part.logs]
        if part.meta is not None and part.meta.directory_id is not None:
            keys.append(f"directory.id {topic_id_to_text(part.meta.directory_id)}")
        for key in keys:
            other = seen.setdefault(key, part)
            if other is not part:
                raise ConfigError(
                    f"{other.path} and {part.path} are both of broker {broker_id}, and both have "
                    f"{key}, so that one is a copy of the other: give one of them"
                )


def _listed(names: Iterable[object]) -> str:
    return ", ".join(sorted(printable(str(name), 200) for name in names))


# --- what is in them -----------------------------------------------------------------------------


def find_broker(
    broker_id: int, directories: Sequence[str], cluster_id: str, overlay: Storage
) -> FoundBroker:
    """Open the logs of one broker as it would.

    Args:
        overlay: takes all changes, such as those of a recovery; later starts on it need none.
    Raises:
        LogDirLockedError: a broker has them open.
        ConfigError, StorageFailedError: as ``LogManager``; or a directory is not readable.
    """
    keeps_all = BrokerConfig(producer_id_expiration_ms=MAX_LONG, log_cleaner_enable=False)
    manager = LogManager(
        directories,
        broker_config=keeps_all,
        storage=overlay,
        background=False,
        owner=ManagerOwner(cluster_id=cluster_id, node_id=broker_id, replicated=True),
    )
    try:
        for error in manager.offline_directories.values():
            raise error
        logs = manager.logs
        usable = {tp: log for tp, log in logs.items() if not log.failed}
        states = {tp: _state_of(log) for tp, log in usable.items() if tp.topic in INTERNAL_TOPICS}
        largest = [log.producers.largest_id() for log in usable.values()]
        largest += [state.largest_id for state in states.values()]
        found: dict[TopicPartition, FoundLog] = {}
        unavailable = {tp: str(error) for tp, error in manager.unavailable_logs.items()}
        for tp, log in usable.items():
            try:
                found[tp] = _found(log, states.get(tp))
            except CorruptDataError as error:  # where no recovery looks after a clean stop
                unavailable[tp] = str(error)
        return FoundBroker(
            tuple(directories),
            manager.previous_broker_epoch,
            found,
            _configs(usable, overlay),
            unavailable,
            manager.last_stop.unproven,
            max((log.producers.largest_coordinator_epoch() for log in usable.values()), default=-1),
            max(largest, default=-1),
        )
    finally:
        manager.close()


def _found(log: PartitionLog, state: CoordinatorState | None) -> FoundLog:
    entries, report = log.producers.entries(), log.recovery_report
    return FoundLog(
        log.topic_id,
        tuple(log.epochs.entries),
        log.log_end_offset,
        log.segments[0].live().largest_timestamp if log.size else -1,
        tuple(each.producer_id for each in entries if each.current_txn_first_offset >= 0),
        state,
        report.offsets_lost is not None or report.bytes_valid_behind_cut > 0,
    )


def _configs(
    logs: Mapping[TopicPartition, PartitionLog], storage: Storage
) -> dict[str, TopicProperties]:
    """The latest change of each topic's configuration."""
    found: dict[str, TopicProperties] = {}
    for tp, log in logs.items():
        stored = None
        with suppress(CheckpointError):  # as for a broker, whose controller has them
            path = os.path.join(log.directory, TOPIC_PROPERTIES)
            stored = TopicPropertiesFile(path, storage).read()
        known = found.get(tp.topic)
        if stored is not None and (known is None or stored.revision > known.revision):
            found[tp.topic] = stored
    return found


def _state_of(log: PartitionLog) -> CoordinatorState:
    """The latest record of each key counts."""
    topic = log.topic_partition.topic
    types = CONSUMER_OFFSETS if topic == GROUP_METADATA else TRANSACTION_STATE
    latest: dict[bytes, bytes | None] = {}
    unreadable = 0
    try:
        for record in log.records():
            if record.key is None:
                unreadable += 1
            else:
                latest[record.key] = record.value
    except LogstoreError:  # damage: the coordinator of this partition says so
        unreadable += 1
    keys: set[str] = set()
    others: dict[str, set[str]] = {}
    ongoing: set[int] = set()
    committed: dict[tuple[str, TopicPartition], int] = {}
    largest_id = -1
    for raw, value in latest.items():
        if value is None:
            continue
        try:
            key = decode_key(types, raw)
            if key is None:
                kind = _NEW_GROUPS.get(int.from_bytes(raw[:2], "big"))
                if kind is not None and types is CONSUMER_OFFSETS:
                    size = int.from_bytes(raw[2:4], "big")
                    others.setdefault(kind, set()).add(raw[4 : 4 + size].decode("utf-8", "replace"))
                continue
            if types is CONSUMER_OFFSETS:
                keys.add(key.group)
                if isinstance(key, wire.OffsetCommitKey):
                    place = key.group, TopicPartition(key.topic, key.partition)
                    committed[place] = decode_value(key, value).offset
                continue
            keys.add(key.transactional_id)
            said = decode_value(key, value)
            largest_id = max(largest_id, said.producer_id)
            if said.transaction_status in ONGOING:
                ongoing.add(said.producer_id)
        except ProtocolError:
            unreadable += 1
    return CoordinatorState(
        frozenset(keys),
        committed,
        {kind: frozenset(names) for kind, names in others.items()},
        frozenset(ongoing),
        largest_id,
        unreadable,
    )
