"""Groups and offsets as records of ``__consumer_offsets``, in the bytes Kafka has for them."""

from __future__ import annotations

from checkpoints.types import TopicPartition
from replication.coordinators.effects import CoordinatorRecord
from replication.coordinators.groups.group import (
    ClassicGroup,
    GroupMember,
    GroupProtocol,
    MemberTerms,
    rebalance_timeout_ms,
)
from replication.coordinators.groups.offsets import NO_EXPIRY, CommittedOffset
from replication.coordinators.groups.states import GroupState
from replication.protocol import ZERO_UUID
from replication.protocol import messages as wire
from replication.protocol.coordinator_records import (
    encode_key,
    encode_value,
)

WITH_EXPIRY = 1  # the one version of an offset that says when it is forgotten
UNKNOWN_TIME_MS = -1


def _offset_key(group_id: str, tp: TopicPartition) -> bytes:
    return encode_key(wire.OffsetCommitKey(group_id, tp.topic, tp.partition))


def encode_offset(group_id: str, tp: TopicPartition, offset: CommittedOffset) -> CoordinatorRecord:
    """The record of an offset. As in Kafka, one with an expiry of its own is written without its
    leader epoch and topic id."""
    value, version = offset, None
    if offset.expire_timestamp != NO_EXPIRY:
        value, version = offset._replace(leader_epoch=-1, topic_id=ZERO_UUID), WITH_EXPIRY
    return CoordinatorRecord(_offset_key(group_id, tp), encode_value(value, version))


def encode_offset_tombstone(group_id: str, tp: TopicPartition) -> CoordinatorRecord:
    return CoordinatorRecord(_offset_key(group_id, tp), None)


def encode_group(group: ClassicGroup) -> CoordinatorRecord:
    """The record of a group: its members, and what the leader assigned to them."""
    value = wire.GroupMetadataValue(
        group.protocol_type or "",
        group.generation,
        group.protocol_name,
        group.leader,
        UNKNOWN_TIME_MS if group.state_since_ms is None else group.state_since_ms,
        tuple(
            wire.GroupMetadataValue.MemberMetadata(
                member.member_id,
                member.instance_id,
                member.terms.client_id,
                member.terms.client_host,
                member.terms.rebalance_timeout_ms,
                member.terms.session_timeout_ms,
                member.metadata(group.protocol_name),
                member.assignment,
            )
            for member in group.members.values()
        ),
    )
    return CoordinatorRecord(encode_key(wire.GroupMetadataKey(group.group_id)), encode_value(value))


def encode_group_tombstone(group_id: str) -> CoordinatorRecord:
    return CoordinatorRecord(encode_key(wire.GroupMetadataKey(group_id)), None)


def group_of(group_id: str, value: wire.GroupMetadataValue) -> ClassicGroup:
    """Restore a group. With members it is Stable: it is written once they are assigned."""
    group = ClassicGroup(group_id)
    group.generation = value.generation
    group.protocol_type = value.protocol_type or None
    since_ms = value.current_state_timestamp
    group.state_since_ms = None if since_ms == UNKNOWN_TIME_MS else since_ms
    if not value.members:
        return group
    group.state = GroupState.STABLE
    group.protocol_name = value.protocol
    for each in value.members:
        terms = MemberTerms(
            each.client_id,
            each.client_host,
            each.session_timeout,
            rebalance_timeout_ms(each.session_timeout, each.rebalance_timeout),
            (GroupProtocol(value.protocol or "", each.subscription),),
        )
        member = GroupMember(each.member_id, each.group_instance_id, terms, each.assignment)
        group.add(member, value.protocol_type)
    if value.leader in group.members:
        group.leader = value.leader
    group.note_subscriptions()
    return group
