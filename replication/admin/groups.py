"""Consumer groups of a running cluster: members, committed offsets, and how those are changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from checkpoints.types import TopicPartition
from replication.admin.admin_client import (
    EARLIEST,
    LATEST,
    AdminClient,
    Answered,
    WireConnection,
    by_topic,
)
from replication.admin.assignments import CONSUMER, decode_assignment
from replication.common.error_codes import ErrorCode
from replication.protocol import ApiKey, MalformedMessageError
from replication.protocol import messages as wire

UNKNOWN = NONE_COMMITTED = -1
INACTIVE = ("Empty", "Dead")
_BY_NAME = 9  # later versions of OffsetFetch and OffsetCommit take topic ids
_SEVERAL_GROUPS = 8  # from here on one OffsetFetch may ask for several


class MemberStatus(NamedTuple):
    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    assigned: tuple[TopicPartition, ...]


class GroupOffset(NamedTuple):
    tp: TopicPartition
    committed: int  # −1: nothing
    high_watermark: int  # −1: not known
    lag: int | None  # below zero if committed above the high watermark; None: not known


class GroupStatus(NamedTuple):
    group_id: str
    state: str
    protocol_type: str
    coordinator: int
    members: tuple[MemberStatus, ...]
    offsets: tuple[GroupOffset, ...] = ()
    assignor: str = ""


def list_groups(
    client: AdminClient, *, offsets: bool = False
) -> tuple[list[GroupStatus], dict[int, Answered]]:
    """Every group, and why some broker could not say which it has."""

    def ask(connection: WireConnection, brokers: list[int]) -> dict[int, Answered]:
        (broker,) = brokers
        return {broker: _groups_of(connection, offsets)}

    client.metadata(())
    asked = client.ask_until_settled(
        client.brokers,
        lambda ids: client.ask_brokers({each: [each] for each in ids}, ask),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
    )
    # A group that moves may be at two of them.
    found = {group.group_id: group for answer in asked.values() for group in answer.value or ()}
    return [found[name] for name in sorted(found)], {
        key: answer for key, answer in asked.items() if answer.code
    }


def _groups_of(connection: WireConnection, offsets: bool) -> Answered:
    if ApiKey.LIST_GROUPS not in connection.versions:
        return Answered(ErrorCode.NONE)
    listed = connection.call(ApiKey.LIST_GROUPS, wire.ListGroupsRequest())
    names = [each.group_id for each in listed.groups]
    answer = _statuses(connection, names) if offsets else _describe(connection, names)
    groups = []
    for name, each in zip(names, listed.groups, strict=True):
        status = GroupStatus(name, each.group_state, each.protocol_type, connection.broker_id, ())
        if name in answer and not answer[name].code:  # others are described in another way
            status = answer[name].value
        groups.append(status)
    return Answered(listed.error_code, value=groups)


def describe_groups(client: AdminClient, groups: Iterable[str]) -> dict[str, Answered]:
    """A ``GroupStatus`` of each."""
    return client.ask_coordinators(groups, _statuses)


def _statuses(connection: WireConnection, names: list[str]) -> dict[str, Answered]:
    """With all partitions that are assigned or committed; their ends are not known yet."""
    if not names:
        return {}
    offsets, described = _committed(connection, names), _describe(connection, names)
    for name, answer in described.items():
        status, committed = answer.value, offsets[name]
        owned = {tp: NONE_COMMITTED for member in status.members for tp in member.assigned}
        every = tuple(
            GroupOffset(tp, offset, UNKNOWN, None)
            for tp, offset in sorted((owned | (committed.value or {})).items())
        )
        failed = committed if committed.code and not answer.code else answer
        described[name] = failed._replace(value=status._replace(offsets=every))
    return described


def _describe(connection: WireConnection, names: list[str]) -> dict[str, Answered]:
    """As Kafka's admin client: as groups of the newer protocol, then the others as older ones."""
    found: dict[str, Answered] = {}
    if names and ApiKey.CONSUMER_GROUP_DESCRIBE in connection.versions:
        newer = wire.ConsumerGroupDescribeRequest(group_ids=tuple(names))
        for each in connection.call(ApiKey.CONSUMER_GROUP_DESCRIBE, newer).groups:
            if each.error_code != ErrorCode.GROUP_ID_NOT_FOUND:
                found[each.group_id] = _newer(each, connection.broker_id)
    rest = [name for name in names if name not in found]
    if rest:
        older = wire.DescribeGroupsRequest(groups=tuple(rest))
        for each in connection.call(ApiKey.DESCRIBE_GROUPS, older).groups:
            found[each.group_id] = _older(each, connection.broker_id)
    return found


def _newer(group: Any, coordinator: int) -> Answered:
    members = [
        (
            each,
            each.instance_id,
            tuple(
                TopicPartition(topic.topic_name, number)
                for topic in each.assignment.topic_partitions
                for number in topic.partitions
            ),
        )
        for each in group.members
    ]
    status = _status(group, CONSUMER, coordinator, members, group.assignor_name)
    return Answered(group.error_code, group.error_message, status)


def _older(group: Any, coordinator: int) -> Answered:
    own = group.protocol_type == CONSUMER
    members = [
        (each, each.group_instance_id, _assigned(bytes(each.member_assignment)) if own else ())
        for each in group.members
    ]
    status = _status(group, group.protocol_type, coordinator, members, group.protocol_data)
    # Brokers before Kafka 4.0 say that a group is dead which they do not have.
    code = ErrorCode.GROUP_ID_NOT_FOUND if group.group_state == "Dead" else ErrorCode.NONE
    return Answered(group.error_code or code, group.error_message, status)


def _status(
    group: Any,
    protocol_type: str,
    coordinator: int,
    members: Iterable[tuple[Any, str | None, tuple[TopicPartition, ...]]],
    assignor: str,
) -> GroupStatus:
    """
    Args:
        members: each as it is described, its instance, and what it is assigned.
    """
    found = tuple(
        MemberStatus(each.member_id, instance_id, each.client_id, each.client_host, assigned)
        for each, instance_id, assigned in members
    )
    state = group.group_state
    return GroupStatus(group.group_id, state, protocol_type, coordinator, found, (), assignor)


def _assigned(data: bytes) -> tuple[TopicPartition, ...]:
    """Nothing, if a client got it wrong."""
    try:
        return decode_assignment(data)
    except MalformedMessageError:
        return ()


def committed_offsets(client: AdminClient, group: str) -> Answered:
    """The committed offset of each partition that has one."""
    return client.ask_coordinators([group], _committed)[group]


def _committed(connection: WireConnection, names: Sequence[str]) -> dict[str, Answered]:
    """The committed offset of each partition, by group."""
    version = connection.version(ApiKey.OFFSET_FETCH, _BY_NAME)
    kind = wire.OffsetFetchRequest
    if version >= _SEVERAL_GROUPS:
        groups = tuple(kind.OffsetFetchRequestGroup(group_id=name, topics=None) for name in names)
        answer = connection.send(ApiKey.OFFSET_FETCH, kind(groups=groups), version)
        answers = {each.group_id: each for each in answer.groups}
    else:
        answers = {
            name: connection.send(ApiKey.OFFSET_FETCH, kind(name, None), version) for name in names
        }
    found = dict.fromkeys(names, Answered(ErrorCode.UNKNOWN_SERVER_ERROR, "no offsets"))
    for name, each in answers.items():
        offsets = {
            TopicPartition(topic.name, part.partition_index): part.committed_offset
            for topic in each.topics
            for part in topic.partitions
            if part.committed_offset >= 0
        }
        found[name] = Answered(each.error_code, value=offsets)
    return found


def with_lag(group: GroupStatus, ends: Mapping[TopicPartition, int]) -> GroupStatus:
    """
    Args:
        ends: high watermarks, as far as they are known.
    """
    return group._replace(
        offsets=tuple(
            each._replace(
                high_watermark=ends[each.tp],
                lag=None if each.committed == NONE_COMMITTED else ends[each.tp] - each.committed,
            )
            if each.tp in ends
            else each
            for each in group.offsets
        )
    )


def is_ahead(group: GroupStatus) -> bool:
    """Whether it has committed an offset that its partition does not have.

    So it looks after a partition has lost its tail, or was restored from an older copy: the group
    skips what comes next, or begins again.
    """
    return any(each.lag is not None and each.lag < 0 for each in group.offsets)


def delete_groups(client: AdminClient, groups: Iterable[str]) -> dict[str, Answered]:
    def ask(connection: WireConnection, names: list[str]) -> dict[str, Answered]:
        request = wire.DeleteGroupsRequest(groups_names=tuple(names))
        answer = connection.call(ApiKey.DELETE_GROUPS, request)
        return {each.group_id: Answered(each.error_code) for each in answer.results}

    return client.ask_coordinators(groups, ask)


NewOffset = Callable[[TopicPartition, int | None, int, int], int | None]
"""A new offset of a committed one, and of the first and the end offset of the partition."""


def plan_offsets(
    client: AdminClient, group: GroupStatus, tps: Iterable[TopicPartition], target: NewOffset
) -> dict[TopicPartition, Answered]:
    """The new offset of each partition, moved into its log; a message says so. Changes nothing."""
    tps = tuple(tps)
    starts, ends = (client.list_offsets(tps, each, patient=True) for each in (EARLIEST, LATEST))
    committed = {each.tp: each.committed for each in group.offsets}
    plan = {tp: starts[tp] if starts[tp].code else ends[tp] for tp in tps}
    for tp in (tp for tp in tps if not plan[tp].code):
        start, end, own = starts[tp].value, ends[tp].value, committed.get(tp, NONE_COMMITTED)
        wanted = target(tp, None if own == NONE_COMMITTED else own, start, end)
        if wanted is None:
            plan[tp] = Answered(ErrorCode.INVALID_REQUEST, "nothing is committed")
        else:
            new = min(max(wanted, start), end)
            note = None if new == wanted else f"{wanted} is outside of {start}…{end}"
            plan[tp] = Answered(ErrorCode.NONE, note, new)
    return plan


def commit_offsets(
    client: AdminClient,
    group: str,
    offsets: Mapping[TopicPartition, int],
    generation_id: int = -1,
    member_id: str = "",
) -> dict[TopicPartition, Answered]:
    """As a member; without one for a group that has none, others are refused by the broker."""
    kind = wire.OffsetCommitRequest
    topics = tuple(
        kind.OffsetCommitRequestTopic(
            topic,
            partitions=tuple(
                kind.OffsetCommitRequestPartition(number, offsets[TopicPartition(topic, number)])
                for number in numbers
            ),
        )
        for topic, numbers in by_topic(offsets).items()
    )
    request = kind(group, generation_id, member_id, topics=topics)

    def ask(connection: WireConnection) -> tuple[int, Any]:
        version = connection.version(ApiKey.OFFSET_COMMIT, _BY_NAME)
        return 0, connection.send(ApiKey.OFFSET_COMMIT, request, version).topics

    return _each_partition(client, group, offsets, ask)


def delete_offsets(
    client: AdminClient, group: str, tps: Iterable[TopicPartition]
) -> dict[TopicPartition, Answered]:
    """Delete the committed offsets of partitions to which no member is subscribed."""
    tps = tuple(tps)
    kind = wire.OffsetDeleteRequest
    topics = tuple(
        kind.OffsetDeleteRequestTopic(topic, tuple(map(kind.OffsetDeleteRequestPartition, numbers)))
        for topic, numbers in by_topic(tps).items()
    )

    def ask(connection: WireConnection) -> tuple[int, Any]:
        answer = connection.call(ApiKey.OFFSET_DELETE, kind(group, topics))
        return answer.error_code, answer.topics

    return _each_partition(client, group, tps, ask)


def _each_partition(
    client: AdminClient,
    group: str,
    tps: Iterable[TopicPartition],
    ask: Callable[[WireConnection], tuple[int, Any]],
) -> dict[TopicPartition, Answered]:
    """The answers of the coordinator by partition. One about the whole group counts for each."""

    def once(connection: WireConnection, groups: list[str]) -> dict[str, Answered]:
        code, topics = ask(connection)
        parts = {
            TopicPartition(topic.name, part.partition_index): Answered(part.error_code)
            for topic in topics
            for part in topic.partitions
        }
        # A coordinator that loads, or is none, says so of each partition.
        return {
            group: Answered(code or max((p.code for p in parts.values()), default=0), value=parts)
        }

    answer = client.ask_coordinators([group], once)[group]
    return {tp: (answer.value or {}).get(tp, answer) for tp in tps}


__all__ = [
    "GroupOffset",
    "GroupStatus",
    "MemberStatus",
    "commit_offsets",
    "committed_offsets",
    "delete_groups",
    "delete_offsets",
    "describe_groups",
    "is_ahead",
    "list_groups",
    "plan_offsets",
    "with_lag",
]
