"""What a running cluster says of itself: brokers, partitions, groups and their lag."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

from checkpoints.types import TopicPartition
from replication.admin.connection import WireConnection, WireError
from replication.common.error_codes import ErrorCode
from replication.common.state import NO_LEADER
from replication.protocol import ApiKey
from replication.protocol import messages as wire

LATEST, EARLIEST = -1, -2
UNKNOWN = -1
_OFFSET_FETCH_BY_NAME = 9  # later versions ask by topic id
_SEVERAL_GROUPS = 8  # from here on one request may ask for several


class BrokerStatus(NamedTuple):
    broker_id: int
    host: str
    port: int
    is_controller: bool
    problem: str  # why it could not be asked; empty


class PartitionStatus(NamedTuple):
    """Offsets are −1 where the leader could not be asked."""

    tp: TopicPartition
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline: tuple[int, ...]
    log_start_offset: int = UNKNOWN
    high_watermark: int = UNKNOWN


class GroupOffset(NamedTuple):
    tp: TopicPartition
    committed: int
    high_watermark: int  # −1: not known
    lag: int | None  # below zero if committed above the high watermark; None: not known


class GroupStatus(NamedTuple):
    group_id: str
    state: str
    protocol_type: str
    coordinator: int
    members: int
    offsets: tuple[GroupOffset, ...]


class ClusterStatus(NamedTuple):
    cluster_id: str
    brokers: tuple[BrokerStatus, ...]
    partitions: tuple[PartitionStatus, ...]
    groups: tuple[GroupStatus, ...]


Connect = Callable[[str, int], WireConnection]


def cluster_status(
    bootstrap: Sequence[tuple[str, int]], connect: Connect = WireConnection
) -> ClusterStatus:
    """Ask every broker once; one that does not answer is in the result with the reason.

    Args:
        bootstrap: host and port of some brokers; the first that answers names all others.
    Raises:
        WireError: none of them answers.
    """
    with ExitStack() as opened:
        first = opened.enter_context(_first(bootstrap, connect))
        metadata = first.call(ApiKey.METADATA, wire.MetadataRequest(topics=None))
        asked: dict[int, WireConnection] = {}
        problems: dict[int, str] = {}
        for broker in metadata.brokers:
            try:
                asked[broker.node_id] = opened.enter_context(connect(broker.host, broker.port))
            except WireError as error:
                problems[broker.node_id] = str(error)
        groups = _groups(asked, problems)
        # After what was committed: a busy consumer must not seem to be ahead of the log.
        partitions = _with_offsets(_partitions(metadata), asked, problems)
        groups = _with_lag(groups, {each.tp: each.high_watermark for each in partitions})
        brokers = tuple(
            BrokerStatus(
                broker.node_id,
                broker.host,
                broker.port,
                broker.node_id == metadata.controller_id,
                problems.get(broker.node_id, ""),
            )
            for broker in sorted(metadata.brokers)
        )
        return ClusterStatus(metadata.cluster_id or "", brokers, partitions, groups)


def _first(bootstrap: Sequence[tuple[str, int]], connect: Connect) -> WireConnection:
    failures = []
    for host, port in bootstrap:
        try:
            return connect(host, port)
        except WireError as error:
            failures.append(str(error))
    raise WireError("; ".join(failures) or "no broker is named")


def _partitions(metadata: Any) -> list[PartitionStatus]:
    return sorted(
        PartitionStatus(
            TopicPartition(topic.name or "", part.partition_index),
            part.leader_id,
            part.leader_epoch,
            part.replica_nodes,
            part.isr_nodes,
            part.offline_replicas,
        )
        for topic in metadata.topics
        for part in topic.partitions
    )


def _with_offsets(
    partitions: Iterable[PartitionStatus],
    asked: dict[int, WireConnection],
    problems: dict[int, str],
) -> tuple[PartitionStatus, ...]:
    partitions = list(partitions)
    ends: dict[int, dict[TopicPartition, int]] = {EARLIEST: {}, LATEST: {}}
    for broker_id, connection in asked.items():
        led = [each.tp for each in partitions if each.leader == broker_id]
        for timestamp, found in ends.items():
            if led and broker_id not in problems:
                try:
                    found.update(_list_offsets(connection, led, timestamp))
                except WireError as error:
                    problems[broker_id] = str(error)
    return tuple(
        each._replace(
            log_start_offset=ends[EARLIEST].get(each.tp, UNKNOWN),
            high_watermark=ends[LATEST].get(each.tp, UNKNOWN),
        )
        for each in partitions
    )


def _list_offsets(
    connection: WireConnection, tps: Iterable[TopicPartition], timestamp: int
) -> dict[TopicPartition, int]:
    topics = tuple(
        wire.ListOffsetsRequest.ListOffsetsTopic(
            topic,
            tuple(
                wire.ListOffsetsRequest.ListOffsetsPartition(
                    partition_index=number, timestamp=timestamp
                )
                for number in numbers
            ),
        )
        for topic, numbers in _by_topic(tps).items()
    )
    request = wire.ListOffsetsRequest(replica_id=-1, topics=topics)
    answer = connection.call(ApiKey.LIST_OFFSETS, request)
    return {
        TopicPartition(topic.name, part.partition_index): part.offset
        for topic in answer.topics
        for part in topic.partitions
        if part.error_code == ErrorCode.NONE
    }


def _by_topic(tps: Iterable[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, number in tps:
        topics.setdefault(topic, []).append(number)
    return topics


def _groups(asked: dict[int, WireConnection], problems: dict[int, str]) -> tuple[GroupStatus, ...]:
    found: dict[str, GroupStatus] = {}
    for broker_id, connection in asked.items():
        if broker_id in problems or ApiKey.LIST_GROUPS not in connection.versions:
            continue
        try:
            for group in _groups_of(broker_id, connection):
                found[group.group_id] = group
        except WireError as error:
            problems[broker_id] = str(error)
    return tuple(found[name] for name in sorted(found))


def _with_lag(
    groups: Iterable[GroupStatus], ends: dict[TopicPartition, int]
) -> tuple[GroupStatus, ...]:
    known = {tp: end for tp, end in ends.items() if end != UNKNOWN}
    return tuple(
        group._replace(
            offsets=tuple(
                each._replace(high_watermark=known[each.tp], lag=known[each.tp] - each.committed)
                if each.tp in known
                else each
                for each in group.offsets
            )
        )
        for group in groups
    )


def _groups_of(broker_id: int, connection: WireConnection) -> list[GroupStatus]:
    listed = connection.call(ApiKey.LIST_GROUPS, wire.ListGroupsRequest())
    names = tuple(group.group_id for group in listed.groups)
    if not names:
        return []
    described = connection.call(ApiKey.DESCRIBE_GROUPS, wire.DescribeGroupsRequest(groups=names))
    offsets = _committed(connection, names)
    groups = []
    for group in described.groups:
        committed = sorted(offsets.get(group.group_id, {}).items())
        groups.append(
            GroupStatus(
                group.group_id,
                group.group_state,
                group.protocol_type,
                broker_id,
                len(group.members),
                tuple(GroupOffset(tp, offset, UNKNOWN, None) for tp, offset in committed),
            )
        )
    return groups


def _committed(
    connection: WireConnection, names: Sequence[str]
) -> dict[str, dict[TopicPartition, int]]:
    """The committed offsets by group."""
    version = connection.version(ApiKey.OFFSET_FETCH, _OFFSET_FETCH_BY_NAME)
    if version >= _SEVERAL_GROUPS:
        groups = tuple(
            wire.OffsetFetchRequest.OffsetFetchRequestGroup(group_id=name, topics=None)
            for name in names
        )
        request = wire.OffsetFetchRequest(groups=groups)
        answer = connection.send(ApiKey.OFFSET_FETCH, request, version)
        return {group.group_id: _offsets(group.topics) for group in answer.groups}
    found = {}
    for name in names:
        request = wire.OffsetFetchRequest(group_id=name, topics=None)
        answer = connection.send(ApiKey.OFFSET_FETCH, request, version)
        found[name] = _offsets(answer.topics)
    return found


def _offsets(topics: Iterable[Any]) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic.name, part.partition_index): part.committed_offset
        for topic in topics
        for part in topic.partitions
        if part.committed_offset >= 0
    }


def under_replicated(partition: PartitionStatus) -> bool:
    """Whether some replica is not in the ISR, or no broker leads."""
    return partition.leader == NO_LEADER or len(partition.isr) < len(partition.replicas)


def is_ahead(group: GroupStatus) -> bool:
    """Whether it has committed an offset that its partition does not have.

    So it looks after a partition has lost its tail, or was restored from an older copy: the group
    skips what comes next, or begins anew.
    """
    return any(each.lag is not None and each.lag < 0 for each in group.offsets)
