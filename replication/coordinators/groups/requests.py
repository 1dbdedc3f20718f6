"""Requests to a shard of groups and its answers, for all versions of the wire protocol."""

from __future__ import annotations

import uuid
from typing import NamedTuple, TypeAlias

from checkpoints.types import TopicPartition
from replication.common.error_codes import ErrorCode
from replication.coordinators.effects import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from replication.protocol import ZERO_UUID

NO_GENERATION = -1
NO_MEMBER_ID = ""
NO_OFFSET = -1
NO_LEADER_EPOCH = -1
NO_RETENTION = -1


# -- members ------------------------------------------------------------------------------------


class GroupProtocol(NamedTuple):
    """One way to share partitions that a member offers, with its own data for it."""

    name: str
    metadata: bytes


class JoinGroup(NamedTuple):
    """
    Attributes:
        protocols: in the order of the member's preference.
        needs_member_id: a new member gets an id first, and joins when it comes with it (v4+).
        may_skip_assignment: the leader can be told to leave all as it is (v9+).
    """

    group_id: str
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[GroupProtocol, ...]
    needs_member_id: bool = True
    may_skip_assignment: bool = True


class JoinedMember(NamedTuple):
    member_id: str
    instance_id: str | None
    metadata: bytes


class JoinResult(NamedTuple):
    """``members`` only for the leader, who shares the partitions among them."""

    error_code: ErrorCode
    member_id: str = NO_MEMBER_ID
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = NO_MEMBER_ID
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False


class SyncGroup(NamedTuple):
    """``assignments`` by member id, of the leader only. A protocol of None is not compared."""

    group_id: str
    generation: int
    member_id: str
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: tuple[tuple[str, bytes], ...] = ()


class SyncResult(NamedTuple):
    error_code: ErrorCode
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


class Heartbeat(NamedTuple):
    """Answered by an ``ErrorCode``."""

    group_id: str
    generation: int
    member_id: str
    instance_id: str | None = None


class LeavingMember(NamedTuple):
    """A static member may be named by its instance alone."""

    member_id: str
    instance_id: str | None = None


class LeaveGroup(NamedTuple):
    group_id: str
    members: tuple[LeavingMember, ...]


class LeaveResult(NamedTuple):
    """``members`` as asked, each with its own error, if the whole has none."""

    error_code: ErrorCode
    members: tuple[tuple[LeavingMember, ErrorCode], ...] = ()


# -- offsets ------------------------------------------------------------------------------------


class OffsetToCommit(NamedTuple):
    """``leader_epoch``: of the last record that was consumed, or −1."""

    tp: TopicPartition
    offset: int
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str = ""
    topic_id: uuid.UUID = ZERO_UUID  # where it is not known


class CommitOffsets(NamedTuple):
    """With a producer id, the offsets count once its transaction is committed.

    Attributes:
        generation, member_id: −1 and "" of a client that is no member.
        retention_ms: how long the offsets are kept, as clients could say until v4; −1: as long as
            the broker says.
    """

    group_id: str
    offsets: tuple[OffsetToCommit, ...]
    generation: int = NO_GENERATION
    member_id: str = NO_MEMBER_ID
    instance_id: str | None = None
    retention_ms: int = NO_RETENTION
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    hears_absence: bool = False  # whether the sender knows GROUP_ID_NOT_FOUND


class CommitResult(NamedTuple):
    partitions: tuple[tuple[TopicPartition, ErrorCode], ...]


class FetchOffsets(NamedTuple):
    """
    Attributes:
        partitions: None: all that have one.
        require_stable: no offset that a transaction under way may change.
    """

    group_id: str
    partitions: tuple[TopicPartition, ...] | None = None
    require_stable: bool = False


class FetchedOffset(NamedTuple):
    """−1, −1 and "" where none is committed."""

    tp: TopicPartition
    offset: int = NO_OFFSET
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str = ""
    error_code: ErrorCode = ErrorCode.NONE


class FetchOffsetsResult(NamedTuple):
    error_code: ErrorCode
    partitions: tuple[FetchedOffset, ...] = ()


class DeleteOffsets(NamedTuple):
    group_id: str
    partitions: tuple[TopicPartition, ...]


class DeleteOffsetsResult(NamedTuple):
    error_code: ErrorCode
    partitions: tuple[tuple[TopicPartition, ErrorCode], ...] = ()


class ForgetTopics(NamedTuple):
    """Delete the offsets of topics that were deleted. Answered by an ``ErrorCode``."""

    topics: frozenset[str]


# -- groups -------------------------------------------------------------------------------------


class DescribeGroup(NamedTuple):
    group_id: str


class MemberDescription(NamedTuple):
    """While members join, metadata is empty and the assignment is that of the generation before."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class GroupDescription(NamedTuple):
    """An unknown group has the state Dead, and ``exists`` is False."""

    group_id: str
    state: str
    protocol_type: str = ""
    protocol_name: str = ""
    members: tuple[MemberDescription, ...] = ()
    exists: bool = True


class ListGroups(NamedTuple):
    """All of the shard."""


class GroupListing(NamedTuple):
    group_id: str
    protocol_type: str
    state: str


class ListGroupsResult(NamedTuple):
    groups: tuple[GroupListing, ...]


class DeleteGroup(NamedTuple):
    """Answered by an ``ErrorCode``."""

    group_id: str


GroupRequest: TypeAlias = (
    JoinGroup
    | SyncGroup
    | Heartbeat
    | LeaveGroup
    | CommitOffsets
    | FetchOffsets
    | DeleteOffsets
    | ForgetTopics
    | DescribeGroup
    | ListGroups
    | DeleteGroup
)
