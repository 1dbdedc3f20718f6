"""The APIs of groups: finding a coordinator, membership, offsets, and what operators ask
(W-100 to W-116)."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

from checkpoints.types import TopicPartition
from replication.apis.common import operations
from replication.apis.common.addresses import endpoint_of, listener_of
from replication.apis.common.handlers import Handlers, ReceivedRequest, Reply
from replication.apis.common.waits import Gathering
from replication.broker.broker import Broker
from replication.common.error_codes import ErrorCode
from replication.common.messages import TransactionSupport
from replication.coordinators.groups.coordinator import GroupCoordinator
from replication.coordinators.groups.requests import (
    CommitOffsets,
    CommitResult,
    DeleteGroup,
    DeleteOffsets,
    DeleteOffsetsResult,
    DescribeGroup,
    FetchedOffset,
    FetchOffsets,
    FetchOffsetsResult,
    GroupDescription,
    GroupListing,
    GroupProtocol,
    GroupRequest,
    Heartbeat,
    JoinGroup,
    JoinResult,
    LeaveGroup,
    LeaveResult,
    LeavingMember,
    OffsetToCommit,
    SyncGroup,
    SyncResult,
)
from replication.coordinators.groups.states import GroupState
from replication.coordinators.internal_topic import InternalTopic
from replication.protocol import ZERO_UUID, ApiKey
from replication.protocol import messages as wire

CLASSIC = "classic"  # the type of all groups here, as a broker writes it

# First versions of what the schema itself does not say.
COORDINATOR_KEYS = 4  # FindCoordinator: several keys
MEMBER_ID_REQUIRED = 4  # JoinGroup
NULL_PROTOCOL_NAME = 7
SKIP_ASSIGNMENT = 9
SYNC_PROTOCOL = 5  # SyncGroup: names the protocol
LEAVING_MEMBERS = 3  # LeaveGroup: several members
COMMIT_NOT_FOUND = 9  # OffsetCommit: an error for a group that is not there
COMMIT_TOPIC_IDS = 10
FETCH_GROUPS = 8  # OffsetFetch: several groups
FETCH_TOPIC_IDS = 10
DESCRIBE_NOT_FOUND = 6  # DescribeGroups: an error for a group that is not there
TRANSACTION_SUPPORT: Final[Mapping[int, TransactionSupport]] = {
    **dict.fromkeys(range(4), TransactionSupport.DEFAULT_ERROR),
    4: TransactionSupport.GENERIC_ERROR,
    5: TransactionSupport.ADD_PARTITION,
}
"""By the version of TxnOffsetCommit."""


# Some clients stop when a heartbeat or a sync answers that the coordinator is loading. After the
# load a member has a whole session to be heard of, so its heartbeat is fine. The assignment that a
# sync asks for may be lost, so that member has to join again.
HEARTBEAT_WHILE_LOADING: Final[Mapping[ErrorCode, ErrorCode]] = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: ErrorCode.NONE
}
SYNC_WHILE_LOADING: Final[Mapping[ErrorCode, ErrorCode]] = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: ErrorCode.REBALANCE_IN_PROGRESS
}


class CoordinatorType(IntEnum):
    GROUP = 0
    TRANSACTION = 1


_Place: TypeAlias = tuple[str, uuid.UUID, int]


class _Topic(NamedTuple):
    """One topic of a request, by name or by id, and which of its partitions."""

    name: str  # "" where the id is not known
    topic_id: uuid.UUID
    partitions: tuple[int, ...]

    def place(self, index: int) -> _Place:
        """What stands for one of the partitions in a table. The topic itself would not do: its hash
        is that of all partitions."""
        return self.name, self.topic_id, index


_Answered: TypeAlias = Sequence[tuple[_Topic, Sequence[tuple[int, ErrorCode]]]]
"""The topics of a request, with the number and the code of each partition."""
Offsets: TypeAlias = tuple[OffsetToCommit, ...]


class GroupApis:
    """Translates between the wire and the coordinator of groups.

    Args:
        topics: where the coordinators of each type are found.
    """

    def __init__(
        self,
        broker: Broker,
        groups: GroupCoordinator,
        topics: Mapping[CoordinatorType, InternalTopic],
    ) -> None:
        self._metadata = broker.metadata
        self._groups = groups
        self._topics = topics

    @property
    def handlers(self) -> Handlers:
        return {
            ApiKey.FIND_COORDINATOR: self.find_coordinator,
            ApiKey.JOIN_GROUP: self.join_group,
            ApiKey.SYNC_GROUP: self.sync_group,
            ApiKey.HEARTBEAT: self.heartbeat,
            ApiKey.LEAVE_GROUP: self.leave_group,
            ApiKey.OFFSET_COMMIT: self.offset_commit,
            ApiKey.TXN_OFFSET_COMMIT: self.txn_offset_commit,
            ApiKey.OFFSET_FETCH: self.offset_fetch,
            ApiKey.OFFSET_DELETE: self.offset_delete,
            ApiKey.DESCRIBE_GROUPS: self.describe_groups,
            ApiKey.LIST_GROUPS: self.list_groups,
            ApiKey.DELETE_GROUPS: self.delete_groups,
        }

    # -- finding -------------------------------------------------------------------------------

    def find_coordinator(
        self, received: ReceivedRequest, request: wire.FindCoordinatorRequest, reply: Reply
    ) -> None:
        """Name the coordinators. The first request has their topic made, and does not wait."""
        kind = wire.FindCoordinatorResponse
        several = received.api_version >= COORDINATOR_KEYS
        keys = request.coordinator_keys if several else (request.key,)
        searched = frozenset(keys)

        topic = None
        if request.key_type in list(CoordinatorType):
            topic = self._topics.get(CoordinatorType(request.key_type))
        by_key = {key: self._coordinator(received, key, topic) for key in searched}
        coordinators = tuple(by_key[key] for key in keys)
        if several:
            reply(kind(coordinators=coordinators))
            return
        (only,) = coordinators
        code, message = only.error_code, only.error_message
        reply(kind(0, code, message, only.node_id, only.host, only.port))

    def _coordinator(
        self, received: ReceivedRequest, key: str, topic: InternalTopic | None
    ) -> wire.FindCoordinatorResponse.Coordinator:
        kind = wire.FindCoordinatorResponse.Coordinator
        if topic is None:
            return kind(key, -1, "", -1, ErrorCode.INVALID_REQUEST, None)
        node = topic.find(key)
        endpoint = endpoint_of(self._metadata, node, listener_of(received))
        if endpoint is None:
            return kind(key, -1, "", -1, ErrorCode.COORDINATOR_NOT_AVAILABLE, None)
        return kind(key, node, endpoint.host, endpoint.port, ErrorCode.NONE, None)

    # -- membership ----------------------------------------------------------------------------

    def join_group(
        self, received: ReceivedRequest, request: wire.JoinGroupRequest, reply: Reply
    ) -> None:
        version = received.api_version
        session_ms, rebalance_ms = request.session_timeout_ms, request.rebalance_timeout_ms

        def answer(result: object) -> None:
            if isinstance(result, ErrorCode):
                result = JoinResult(result, request.member_id)
            assert isinstance(result, JoinResult)
            reply(_joined(result, version))

        self._groups.request(
            request.group_id,
            JoinGroup(
                request.group_id,
                request.member_id,
                request.group_instance_id,
                received.client_id,
                f"/{received.connection.peer_host}",
                session_ms,
                session_ms if rebalance_ms < 0 else rebalance_ms,
                request.protocol_type,
                tuple(GroupProtocol(each.name, bytes(each.metadata)) for each in request.protocols),
                needs_member_id=version >= MEMBER_ID_REQUIRED,
                may_skip_assignment=version >= SKIP_ASSIGNMENT,
            ),
            answer,
        )

    def sync_group(
        self, received: ReceivedRequest, request: wire.SyncGroupRequest, reply: Reply
    ) -> None:
        def answer(result: object) -> None:
            if isinstance(result, ErrorCode):
                result = SyncResult(SYNC_WHILE_LOADING.get(result, result))
            assert isinstance(result, SyncResult)
            reply(
                wire.SyncGroupResponse(
                    error_code=result.error_code,
                    protocol_type=result.protocol_type,
                    protocol_name=result.protocol_name,
                    assignment=result.assignment,
                )
            )

        named = request.protocol_type is not None and request.protocol_name is not None
        if received.api_version >= SYNC_PROTOCOL and not named:
            answer(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
            return
        self._ask(
            request.group_id,
            SyncGroup(
                request.group_id,
                request.generation_id,
                request.member_id,
                request.group_instance_id,
                request.protocol_type,
                request.protocol_name,
                tuple((each.member_id, bytes(each.assignment)) for each in request.assignments),
            ),
            answer,
        )

    def heartbeat(
        self, received: ReceivedRequest, request: wire.HeartbeatRequest, reply: Reply
    ) -> None:
        self._ask(
            request.group_id,
            Heartbeat(
                request.group_id,
                request.generation_id,
                request.member_id,
                request.group_instance_id,
            ),
            lambda answer: reply(
                wire.HeartbeatResponse(
                    error_code=HEARTBEAT_WHILE_LOADING.get(_code(answer), _code(answer))
                )
            ),
        )

    def leave_group(
        self, received: ReceivedRequest, request: wire.LeaveGroupRequest, reply: Reply
    ) -> None:
        several = received.api_version >= LEAVING_MEMBERS
        leaving: tuple[LeavingMember, ...] = (LeavingMember(request.member_id),)
        if several:
            leaving = tuple(
                LeavingMember(e.member_id, e.group_instance_id) for e in request.members
            )

        def answer(result: object) -> None:
            kind = wire.LeaveGroupResponse
            if isinstance(result, ErrorCode):
                result = LeaveResult(result)
            assert isinstance(result, LeaveResult)
            if several and result.error_code is ErrorCode.UNKNOWN_MEMBER_ID:  # no such group
                unknown = tuple((member, result.error_code) for member in leaving)
                result = LeaveResult(ErrorCode.NONE, unknown)
            if several or result.error_code is not ErrorCode.NONE:
                members = (kind.MemberResponse(*member, code) for member, code in result.members)
                reply(kind(0, result.error_code, tuple(members)))
            else:
                ((_, code),) = result.members
                reply(kind(error_code=code))

        self._ask(request.group_id, LeaveGroup(request.group_id, leaving), answer)

    def _ask(self, group_id: str, request: GroupRequest, answer: Callable[[object], None]) -> None:
        """Ask a group that must have a name. Only offsets may belong to a group without one."""
        if group_id:
            self._groups.request(group_id, request, answer)
        else:
            answer(ErrorCode.INVALID_GROUP_ID)

    # -- commits -------------------------------------------------------------------------------

    def offset_commit(
        self, received: ReceivedRequest, request: wire.OffsetCommitRequest, reply: Reply
    ) -> None:
        by_id = received.api_version >= COMMIT_TOPIC_IDS
        topics = [
            _Topic(
                self._name_of(each.topic_id) if by_id else each.name,
                each.topic_id,
                tuple(part.partition_index for part in each.partitions),
            )
            for each in request.topics
        ]

        def respond(answered: _Answered) -> None:
            kind = wire.OffsetCommitResponse
            found = [
                kind.OffsetCommitResponseTopic(
                    topic.name,
                    topic.topic_id,
                    tuple(kind.OffsetCommitResponsePartition(*each) for each in codes),
                )
                for topic, codes in answered
            ]
            reply(kind(topics=tuple(found)))

        def commit(offsets: Offsets, answer: Callable[[object], None]) -> None:
            asked = CommitOffsets(
                request.group_id,
                offsets,
                request.generation_id_or_member_epoch,
                request.member_id,
                request.group_instance_id,
                request.retention_time_ms,
                hears_absence=received.api_version >= COMMIT_NOT_FOUND,
            )
            self._groups.request(request.group_id, asked, answer)

        parts = [each.partitions for each in request.topics]
        self._commit(topics, parts, commit, respond, by_id=by_id)

    def txn_offset_commit(
        self, received: ReceivedRequest, request: wire.TxnOffsetCommitRequest, reply: Reply
    ) -> None:
        """Offsets that count when the transaction is committed (W-158)."""
        topics = [
            _Topic(each.name, ZERO_UUID, tuple(part.partition_index for part in each.partitions))
            for each in request.topics
        ]
        refusal = ErrorCode.NONE
        if not request.group_id:
            refusal = ErrorCode.INVALID_GROUP_ID
        elif request.producer_id < 0:
            refusal = ErrorCode.INVALID_PRODUCER_ID_MAPPING

        def respond(answered: _Answered) -> None:
            kind = wire.TxnOffsetCommitResponse
            found = [
                kind.TxnOffsetCommitResponseTopic(
                    topic.name,
                    tuple(kind.TxnOffsetCommitResponsePartition(*each) for each in codes),
                )
                for topic, codes in answered
            ]
            reply(kind(topics=tuple(found)))

        def commit(offsets: Offsets, answer: Callable[[object], None]) -> None:
            if refusal is not ErrorCode.NONE:
                answer(refusal)
                return
            asked = CommitOffsets(
                request.group_id,
                offsets,
                request.generation_id,
                request.member_id,
                request.group_instance_id,
                producer_id=request.producer_id,
                producer_epoch=request.producer_epoch,
            )
            support = TRANSACTION_SUPPORT[received.api_version]
            self._groups.commit_in_transaction(request.transactional_id, support, asked, answer)

        parts = [each.partitions for each in request.topics]
        self._commit(topics, parts, commit, respond, by_id=False)

    def _commit(
        self,
        topics: Sequence[_Topic],
        parts: Iterable[Sequence[Part]],
        commit: Callable[[Offsets, Callable[[object], None]], None],
        respond: Callable[[_Answered], None],
        *,
        by_id: bool,
    ) -> None:
        """Have the offsets of known partitions committed, and answer for all that were sent."""
        refused = self._refused(topics, by_id=by_id)
        offsets = _offsets(topics, parts, refused, self._metadata.topic_id)

        def answer(result: object) -> None:
            if isinstance(result, ErrorCode):
                codes = dict.fromkeys(offsets, result)
            else:
                assert isinstance(result, CommitResult)
                codes = dict(result.partitions)
            respond(_answered(topics, refused, codes))

        if offsets:
            commit(tuple(offsets.values()), answer)
        else:
            respond(_answered(topics, refused, {}))

    def _name_of(self, topic_id: uuid.UUID) -> str:
        return self._metadata.topic_name(topic_id) or ""

    def _refused(self, topics: Iterable[_Topic], *, by_id: bool) -> dict[_Place, ErrorCode]:
        """The answer for a partition that is not known, and so has no offsets."""
        refused: dict[_Place, ErrorCode] = {}
        for topic in topics:
            for index in topic.partitions:
                tp = TopicPartition(topic.name, index)
                if by_id and not topic.name:
                    refused[topic.place(index)] = ErrorCode.UNKNOWN_TOPIC_ID
                elif self._metadata.registration(tp) is None:
                    refused[topic.place(index)] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return refused

    # -- fetching and deleting offsets ---------------------------------------------------------

    def offset_fetch(
        self, received: ReceivedRequest, request: wire.OffsetFetchRequest, reply: Reply
    ) -> None:
        if received.api_version >= FETCH_GROUPS:
            self._fetch_groups(received, request, reply)
            return
        topics = None
        if request.topics is not None:
            topics = _each_once((t.name, ZERO_UUID, t.partition_indexes) for t in request.topics)

        def done(result: FetchOffsetsResult) -> None:
            kind = wire.OffsetFetchResponse
            found = [
                kind.OffsetFetchResponseTopic(
                    topic.name,
                    tuple(kind.OffsetFetchResponsePartition(*each) for each in partitions),
                )
                for topic, partitions in _by_topic(topics, result)
            ]
            reply(kind(0, tuple(found), result.error_code))

        self._fetch(request.group_id, topics, request.require_stable, done)

    def _fetch_groups(
        self, received: ReceivedRequest, request: wire.OffsetFetchRequest, reply: Reply
    ) -> None:
        by_id = received.api_version >= FETCH_TOPIC_IDS
        kind = wire.OffsetFetchResponse

        def done(groups: Sequence[wire.OffsetFetchResponse.OffsetFetchResponseGroup]) -> None:
            reply(kind(groups=tuple(groups)))

        asked: dict[str, list[Any] | None] = {}  # each group once; None: all of its topics
        for group in request.groups:
            known = asked.setdefault(group.group_id, [])
            if known is None or group.topics is None:
                asked[group.group_id] = None
            else:
                known.extend(group.topics)
        gathering: Gathering[wire.OffsetFetchResponse.OffsetFetchResponseGroup] = Gathering(
            len(asked), done
        )
        for at, (group_id, named) in enumerate(asked.items()):
            topics = None
            if named is not None:
                topics = _each_once(
                    (
                        self._name_of(each.topic_id) if by_id else each.name,
                        each.topic_id,
                        each.partition_indexes,
                    )
                    for each in named
                )
            fetched = partial(self._fetched_group, gathering, at, group_id, topics, by_id)
            self._fetch(group_id, topics, request.require_stable, fetched)

    def _fetched_group(
        self,
        gathering: Gathering[wire.OffsetFetchResponse.OffsetFetchResponseGroup],
        at: int,
        group_id: str,
        topics: list[_Topic] | None,
        by_id: bool,
        result: FetchOffsetsResult,
    ) -> None:
        kind = wire.OffsetFetchResponse
        found = []
        if result.error_code is ErrorCode.NONE:
            for topic, partitions in _by_topic(topics, result):
                topic_id = topic.topic_id
                if by_id and topics is None:
                    known = self._metadata.topic_id(topic.name)
                    if known is None:
                        continue  # deleted: it cannot be named
                    topic_id = known
                elif by_id and not topic.name:
                    unknown = ErrorCode.UNKNOWN_TOPIC_ID
                    partitions = [each._replace(error_code=unknown) for each in partitions]
                found.append(
                    kind.OffsetFetchResponseTopics(
                        topic.name,
                        topic_id,
                        tuple(kind.OffsetFetchResponsePartitions(*each) for each in partitions),
                    )
                )
        gathering.take(at, kind.OffsetFetchResponseGroup(group_id, tuple(found), result.error_code))

    def _fetch(
        self,
        group_id: str,
        topics: list[_Topic] | None,
        require_stable: bool,
        done: Callable[[FetchOffsetsResult], None],
    ) -> None:
        tps = None
        if topics is not None:
            tps = tuple(TopicPartition(t.name, index) for t in topics for index in t.partitions)

        def answer(result: object) -> None:
            if isinstance(result, ErrorCode):
                failed = [FetchedOffset(tp, error_code=result) for tp in tps or ()]
                result = FetchOffsetsResult(result, tuple(failed))
            assert isinstance(result, FetchOffsetsResult)
            done(result)

        self._groups.request(group_id, FetchOffsets(group_id, tps, require_stable), answer)

    def offset_delete(
        self, received: ReceivedRequest, request: wire.OffsetDeleteRequest, reply: Reply
    ) -> None:
        topics = [
            _Topic(each.name, ZERO_UUID, tuple(part.partition_index for part in each.partitions))
            for each in request.topics
        ]
        refused = self._refused(topics, by_id=False)
        wanted = tuple(
            TopicPartition(topic.name, index)
            for topic in topics
            for index in topic.partitions
            if topic.place(index) not in refused
        )

        def answer(result: object) -> None:
            kind = wire.OffsetDeleteResponse
            if isinstance(result, ErrorCode):
                result = DeleteOffsetsResult(result)
            assert isinstance(result, DeleteOffsetsResult)
            if result.error_code is not ErrorCode.NONE:
                reply(kind(error_code=result.error_code))
                return
            found = [
                kind.OffsetDeleteResponseTopic(
                    topic.name, tuple(kind.OffsetDeleteResponsePartition(*each) for each in codes)
                )
                for topic, codes in _answered(topics, refused, dict(result.partitions))
                if codes or self._metadata.topic_id(topic.name) is None
            ]
            reply(kind(topics=tuple(found)))

        self._ask(request.group_id, DeleteOffsets(request.group_id, wanted), answer)

    # -- what operators ask --------------------------------------------------------------------

    def describe_groups(
        self, received: ReceivedRequest, request: wire.DescribeGroupsRequest, reply: Reply
    ) -> None:
        kind = wire.DescribeGroupsResponse
        # Each once, unlike Kafka: a short request for one large group would have a huge answer.
        names = tuple(dict.fromkeys(request.groups))
        gathering: Gathering[wire.DescribeGroupsResponse.DescribedGroup] = Gathering(
            len(names), lambda groups: reply(kind(groups=tuple(groups)))
        )

        def answer(at: int, name: str, result: object) -> None:
            found = _described(name, result, received.api_version)
            if request.include_authorized_operations and found.error_code is ErrorCode.NONE:
                found = found._replace(authorized_operations=operations.OF_GROUPS)
            gathering.take(at, found)

        for at, name in enumerate(names):
            self._groups.request(name, DescribeGroup(name), partial(answer, at, name))

    def list_groups(
        self, received: ReceivedRequest, request: wire.ListGroupsRequest, reply: Reply
    ) -> None:
        """The groups that this broker coordinates."""
        states = {name.lower() for name in request.states_filter}
        types = {name.lower() for name in request.types_filter}

        def answer(code: ErrorCode, groups: list[GroupListing]) -> None:
            kind = wire.ListGroupsResponse
            found = [
                kind.ListedGroup(each.group_id, each.protocol_type, each.state, CLASSIC)
                for each in groups
                if (not states or each.state.lower() in states) and (not types or CLASSIC in types)
            ]
            reply(kind(0, code, tuple(found)))

        self._groups.list_groups(answer)

    def delete_groups(
        self, received: ReceivedRequest, request: wire.DeleteGroupsRequest, reply: Reply
    ) -> None:
        kind = wire.DeleteGroupsResponse
        names = tuple(dict.fromkeys(request.groups_names))
        gathering: Gathering[wire.DeleteGroupsResponse.DeletableGroupResult] = Gathering(
            len(names), lambda results: reply(kind(results=tuple(results)))
        )

        def answer(at: int, name: str, code: object) -> None:
            gathering.take(at, kind.DeletableGroupResult(name, _code(code)))

        for at, name in enumerate(names):
            self._groups.request(name, DeleteGroup(name), partial(answer, at, name))


def _each_once(asked: Iterable[tuple[str, uuid.UUID, Iterable[int]]]) -> list[_Topic]:
    """The topics of an OffsetFetch. What is named twice is answered once: with an offset goes text
    of a client that may be a thousand times as long as the number that asks for it (W-237)."""
    found: dict[tuple[str, uuid.UUID], dict[int, None]] = {}
    for name, topic_id, indexes in asked:
        found.setdefault((name, topic_id), {}).update(dict.fromkeys(indexes))
    return [_Topic(*topic, tuple(indexes)) for topic, indexes in found.items()]


def _code(answer: object) -> ErrorCode:
    assert isinstance(answer, ErrorCode)
    return answer


def _joined(result: JoinResult, version: int) -> wire.JoinGroupResponse:
    kind = wire.JoinGroupResponse
    name = result.protocol_name
    return kind(
        0,
        result.error_code,
        result.generation,
        result.protocol_type,
        name if version >= NULL_PROTOCOL_NAME else name or "",
        result.leader,
        result.skip_assignment,
        result.member_id,
        tuple(kind.JoinGroupResponseMember(*each) for each in result.members),
    )


Part = (
    wire.OffsetCommitRequest.OffsetCommitRequestPartition
    | wire.TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition
)


def _offsets(
    topics: Sequence[_Topic],
    parts: Iterable[Sequence[Part]],
    refused: Mapping[_Place, ErrorCode],
    topic_id_of: Callable[[str], uuid.UUID | None],
) -> dict[TopicPartition, OffsetToCommit]:
    """The offsets to commit, without those that are refused."""
    return {
        TopicPartition(topic.name, part.partition_index): OffsetToCommit(
            TopicPartition(topic.name, part.partition_index),
            part.committed_offset,
            part.committed_leader_epoch,
            part.committed_metadata or "",
            topic_id_of(topic.name) or ZERO_UUID,
        )
        for topic, of_topic in zip(topics, parts, strict=True)
        for part in of_topic
        if topic.place(part.partition_index) not in refused
    }


def _answered(
    topics: Iterable[_Topic],
    refused: Mapping[_Place, ErrorCode],
    codes: Mapping[TopicPartition, ErrorCode],
) -> _Answered:
    """In the order of the request."""

    def code(topic: _Topic, index: int) -> ErrorCode:
        found = refused.get(topic.place(index))
        return codes[TopicPartition(topic.name, index)] if found is None else found

    return [
        (topic, [(index, code(topic, index)) for index in topic.partitions]) for topic in topics
    ]


class _Fetched(NamedTuple):
    """In the order of the response's fields."""

    partition_index: int
    committed_offset: int
    committed_leader_epoch: int
    metadata: str
    error_code: ErrorCode


def _by_topic(
    topics: list[_Topic] | None, result: FetchOffsetsResult
) -> list[tuple[_Topic, list[_Fetched]]]:
    """By topic, in the order asked for; if all were asked for, in any order."""
    found = {
        each.tp: _Fetched(
            each.tp.partition, each.offset, each.leader_epoch, each.metadata, each.error_code
        )
        for each in result.partitions
    }
    if topics is None:
        indexes: dict[str, list[int]] = {}
        for tp in found:
            indexes.setdefault(tp.topic, []).append(tp.partition)
        topics = [_Topic(name, ZERO_UUID, tuple(each)) for name, each in indexes.items()]
    return [
        (topic, [found[TopicPartition(topic.name, index)] for index in topic.partitions])
        for topic in topics
    ]


def _described(
    name: str, result: object, version: int
) -> wire.DescribeGroupsResponse.DescribedGroup:
    kind = wire.DescribeGroupsResponse
    if isinstance(result, ErrorCode):
        return kind.DescribedGroup(result, None, name)
    assert isinstance(result, GroupDescription)
    if not result.exists and version >= DESCRIBE_NOT_FOUND:
        message = f"Group {name} not found."
        code = ErrorCode.GROUP_ID_NOT_FOUND
        return kind.DescribedGroup(code, message, name, GroupState.DEAD.value)
    members = tuple(kind.DescribedGroupMember(*each) for each in result.members)
    return kind.DescribedGroup(
        ErrorCode.NONE,
        None,
        name,
        result.state,
        result.protocol_type,
        result.protocol_name,
        members,
    )
