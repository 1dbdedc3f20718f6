"""The APIs of groups: finding a coordinator, membership, offsets, and what operators ask
(W-100 to W-116)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from functools import partial
from typing import Any, Final

from checkpoints.types import TopicPartition
from replication.apis.common import operations
from replication.apis.common.addresses import endpoint_of, listener_of
from replication.apis.common.handlers import ApiArea, ReceivedRequest, Reply
from replication.apis.common.refusals import answered
from replication.broker.broker import Broker
from replication.common.error_codes import ErrorCode
from replication.common.gathering import Gathering
from replication.common.messages import TransactionSupport
from replication.coordinators.coordinator import InternalTopic
from replication.coordinators.effects import ClientRequest
from replication.coordinators.groups.classic import refused_join
from replication.coordinators.groups.coordinator import GroupCoordinator
from replication.coordinators.groups.shard import CLASSIC, no_offset
from replication.protocol import ApiKey
from replication.protocol import messages as wire
from replication.protocol.partitions import partitions_of

# First versions of what the schema itself does not say.
COORDINATOR_KEYS = 4  # FindCoordinator: several keys
NULL_PROTOCOL_NAME = 7  # JoinGroup
SYNC_PROTOCOL = 5  # SyncGroup: names the protocol
LEAVING_MEMBERS = 3  # LeaveGroup: several members
COMMIT_TOPIC_IDS = 10
FETCH_GROUPS = 8  # OffsetFetch: several groups
FETCH_TOPIC_IDS = 10
TRANSACTION_SUPPORT: Final[Mapping[int, TransactionSupport]] = {
    **dict.fromkeys(range(4), TransactionSupport.DEFAULT_ERROR),
    4: TransactionSupport.GENERIC_ERROR,
    5: TransactionSupport.ADD_PARTITION,
}
"""By the version of TxnOffsetCommit."""


# Some clients stop when a heartbeat or a sync answers that the coordinator is loading. After the
# load a member has a whole session to send one, so its heartbeat is fine. The assignment that a
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


FetchTopic = wire.OffsetFetchRequest.OffsetFetchRequestTopics
FetchedGroup = wire.OffsetFetchResponse.OffsetFetchResponseGroup


class GroupApis(ApiArea):
    """Asks the coordinator of groups, whose shards speak the protocol themselves. Here is what they
    do not know: topics and their ids, several groups in one request, forms of old versions.

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
        def answer(result: Any) -> None:
            if isinstance(result, ErrorCode):
                result = refused_join(result, request.member_id)
            if received.api_version < NULL_PROTOCOL_NAME:
                result = result._replace(protocol_name=result.protocol_name or "")
            reply(result)

        self._groups.request(request.group_id, _of_client(received, request), answer)

    def sync_group(
        self, received: ReceivedRequest, request: wire.SyncGroupRequest, reply: Reply
    ) -> None:
        def answer(result: Any) -> None:
            if isinstance(result, ErrorCode):
                code = SYNC_WHILE_LOADING.get(result, result)
                result = wire.SyncGroupResponse(error_code=code)
            reply(result)

        named = request.protocol_type is not None and request.protocol_name is not None
        if received.api_version >= SYNC_PROTOCOL and not named:
            answer(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        else:
            self._send(received, request, answer)

    def heartbeat(
        self, received: ReceivedRequest, request: wire.HeartbeatRequest, reply: Reply
    ) -> None:
        def answer(code: Any) -> None:
            reply(wire.HeartbeatResponse(error_code=HEARTBEAT_WHILE_LOADING.get(code, code)))

        self._send(received, request, answer)

    def leave_group(
        self, received: ReceivedRequest, request: wire.LeaveGroupRequest, reply: Reply
    ) -> None:
        is_one = received.api_version < LEAVING_MEMBERS
        if is_one:
            member = wire.LeaveGroupRequest.MemberIdentity(request.member_id)
            request = request._replace(members=(member,))

        def answer(result: Any) -> None:
            if isinstance(result, ErrorCode):
                result = wire.LeaveGroupResponse(error_code=result)
            elif is_one and result.members:
                result = wire.LeaveGroupResponse(error_code=result.members[0].error_code)
            reply(result)

        self._send(received, request, answer)

    def _send(self, received: ReceivedRequest, request: Any, answer: Callable[[Any], None]) -> None:
        """Ask a group that must have a name. Only offsets may belong to a group without one."""
        if request.group_id:
            self._groups.request(request.group_id, _of_client(received, request), answer)
        else:
            answer(ErrorCode.INVALID_GROUP_ID)

    # -- commits -------------------------------------------------------------------------------

    def offset_commit(
        self, received: ReceivedRequest, request: wire.OffsetCommitRequest, reply: Reply
    ) -> None:
        """A topic that is asked for by name is committed with its id, and the other way round."""
        by_id = received.api_version >= COMMIT_TOPIC_IDS
        topics = [
            each._replace(name=self._metadata.topic_name(each.topic_id) or "")
            if by_id
            else each._replace(topic_id=self._metadata.topic_id(each.name) or each.topic_id)
            for each in request.topics
        ]

        def commit(asked: wire.OffsetCommitRequest, answer: Callable[[Any], None]) -> None:
            self._groups.request(request.group_id, _of_client(received, asked), answer)

        self._commit(received, request._replace(topics=tuple(topics)), commit, reply, by_id=by_id)

    def txn_offset_commit(
        self, received: ReceivedRequest, request: wire.TxnOffsetCommitRequest, reply: Reply
    ) -> None:
        """Offsets that count when the transaction is committed (W-158)."""

        def commit(asked: wire.TxnOffsetCommitRequest, answer: Callable[[Any], None]) -> None:
            if not request.group_id:
                answer(ErrorCode.INVALID_GROUP_ID)
            elif request.producer_id < 0:
                answer(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
            else:
                support = TRANSACTION_SUPPORT[received.api_version]
                self._groups.commit_in_transaction(asked, support, answer)

        self._commit(received, request, commit, reply, by_id=False)

    def _commit(
        self,
        received: ReceivedRequest,
        request: Any,
        commit: Callable[[Any, Callable[[Any], None]], None],
        reply: Reply,
        *,
        by_id: bool,
    ) -> None:
        """Have the offsets of known partitions committed, and answer for all that were sent."""
        refused = self._refused(request.topics, by_id=by_id)
        known = _without(request.topics, refused)

        def answer(result: Any) -> None:
            if isinstance(result, ErrorCode):
                result = dict.fromkeys(partitions_of(known), result)
            codes = [refused.get(tp) or result[tp] for tp in partitions_of(request.topics)]
            reply(answered(ApiKey(received.api_key), received.api_version, request, codes))

        if known:
            commit(request._replace(topics=known), answer)
        else:
            answer({})

    def _refused(self, topics: Iterable[Any], *, by_id: bool) -> dict[TopicPartition, ErrorCode]:
        """The answer for a partition that is not known, and so has no offsets."""
        refused: dict[TopicPartition, ErrorCode] = {}
        for tp in partitions_of(topics):
            if by_id and not tp.topic:
                refused[tp] = ErrorCode.UNKNOWN_TOPIC_ID
            elif self._metadata.registration(tp) is None:
                refused[tp] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return refused

    # -- fetching and deleting offsets ---------------------------------------------------------

    def offset_fetch(
        self, received: ReceivedRequest, request: wire.OffsetFetchRequest, reply: Reply
    ) -> None:
        """Answer once for what is named twice: with an offset goes text of a client that may be a
        thousand times as long as the number that asks for it (W-237)."""
        version, kind = received.api_version, wire.OffsetFetchResponse
        if version < FETCH_GROUPS:
            topics = None
            if request.topics is not None:
                topics = _each_once(
                    FetchTopic(each[0], partition_indexes=each[1]) for each in request.topics
                )

            def done(group: Any) -> None:
                topics = (
                    kind.OffsetFetchResponseTopic(each.name, each.partitions)
                    for each in group.topics
                )
                reply(kind(0, tuple(topics), group.error_code))

            self._fetch(request.group_id, topics, request.require_stable, done)
            return
        by_id = version >= FETCH_TOPIC_IDS
        asked: dict[str, list[FetchTopic] | None] = {}  # each group once; None: all of its topics
        for each in request.groups:
            wanted = asked.setdefault(each.group_id, [])
            if wanted is None or each.topics is None:
                asked[each.group_id] = None
            else:
                wanted += each.topics
        gathering: Gathering[FetchedGroup] = Gathering(
            len(asked), lambda groups: reply(kind(groups=tuple(groups)))
        )
        for at, (group_id, named) in enumerate(asked.items()):
            if named is not None and by_id:
                named = [
                    each._replace(name=self._metadata.topic_name(each.topic_id) or "")
                    for each in named
                ]
            topics = None if named is None else _each_once(named)
            then = partial(
                self._take_group, partial(gathering.take_answer, at), topics is None, by_id
            )
            self._fetch(group_id, topics, request.require_stable, then)

    def _take_group(
        self, then: Callable[[FetchedGroup], None], is_all: bool, by_id: bool, group: FetchedGroup
    ) -> None:
        """Pass on the answer for a group. Of a failure the code is enough; a topic that is asked
        for by id is answered by id."""
        topics = () if group.error_code else group.topics
        if by_id and is_all:  # one that is deleted cannot be named
            ids = ((topic, self._metadata.topic_id(topic.name)) for topic in topics)
            topics = tuple(topic._replace(topic_id=found) for topic, found in ids if found)
        elif by_id:
            topics = tuple(topic if topic.name else _of_unknown_id(topic) for topic in topics)
        then(group._replace(topics=topics))

    def _fetch(
        self,
        group_id: str,
        topics: tuple[FetchTopic, ...] | None,
        require_stable: bool,
        done: Callable[[FetchedGroup], None],
    ) -> None:
        def answer(result: Any) -> None:
            if isinstance(result, ErrorCode):
                failed = tuple(
                    wire.OffsetFetchResponse.OffsetFetchResponseTopics(
                        name, topic_id, tuple(no_offset(each, result) for each in indexes)
                    )
                    for name, topic_id, indexes in topics or ()
                )
                result = FetchedGroup(group_id, failed, result)
            done(result)

        kind = wire.OffsetFetchRequest
        group = kind.OffsetFetchRequestGroup(group_id, topics=topics)
        request = ClientRequest(kind(groups=(group,), require_stable=require_stable))
        self._groups.request(group_id, request, answer)

    def offset_delete(
        self, received: ReceivedRequest, request: wire.OffsetDeleteRequest, reply: Reply
    ) -> None:
        refused = self._refused(request.topics, by_id=False)

        def answer(result: Any) -> None:
            if isinstance(result, ErrorCode):
                reply(wire.OffsetDeleteResponse(error_code=result))
                return
            named = tuple(
                each
                for each in request.topics
                if each.partitions or self._metadata.topic_id(each.name) is None
            )
            codes = [refused.get(tp) or result[tp] for tp in partitions_of(named)]
            whole = request._replace(topics=named)
            reply(answered(ApiKey.OFFSET_DELETE, received.api_version, whole, codes))

        known = _without(request.topics, refused)
        self._send(received, request._replace(topics=known), answer)

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

        def answer(at: int, name: str, found: Any) -> None:
            if isinstance(found, ErrorCode):
                found = kind.DescribedGroup(found, None, name)
            if request.include_authorized_operations and not found.error_code:
                found = found._replace(authorized_operations=operations.OF_GROUPS)
            gathering.take_answer(at, found)

        for at, name in enumerate(names):
            asked = _of_client(received, wire.DescribeGroupsRequest((name,)))
            self._groups.request(name, asked, partial(answer, at, name))

    def list_groups(
        self, received: ReceivedRequest, request: wire.ListGroupsRequest, reply: Reply
    ) -> None:
        """The groups that this broker coordinates."""
        states = {name.lower() for name in request.states_filter}
        types = {name.lower() for name in request.types_filter}

        def answer(code: ErrorCode, groups: list[wire.ListGroupsResponse.ListedGroup]) -> None:
            found = (
                each
                for each in groups
                if (not states or each.group_state.lower() in states)
                and (not types or CLASSIC in types)
            )
            reply(wire.ListGroupsResponse(0, code, tuple(found)))

        self._groups.list_groups(answer)

    def delete_groups(
        self, received: ReceivedRequest, request: wire.DeleteGroupsRequest, reply: Reply
    ) -> None:
        kind = wire.DeleteGroupsResponse
        names = tuple(dict.fromkeys(request.groups_names))
        gathering: Gathering[wire.DeleteGroupsResponse.DeletableGroupResult] = Gathering(
            len(names), lambda results: reply(kind(results=tuple(results)))
        )

        def answer(at: int, name: str, code: Any) -> None:
            gathering.take_answer(at, kind.DeletableGroupResult(name, code))

        for at, name in enumerate(names):
            asked = ClientRequest(wire.DeleteGroupsRequest((name,)))
            self._groups.request(name, asked, partial(answer, at, name))


def _of_client(received: ReceivedRequest, message: Any) -> ClientRequest:
    host = f"/{received.connection.peer_host}"
    return ClientRequest(message, received.api_version, received.client_id, host)


def _without(topics: Iterable[Any], refused: Mapping[TopicPartition, ErrorCode]) -> tuple[Any, ...]:
    """The topics of a request without the partitions that are refused."""
    left = (
        topic._replace(
            partitions=tuple(
                part
                for part in topic.partitions
                if TopicPartition(topic.name, part.partition_index) not in refused
            )
        )
        for topic in topics
    )
    return tuple(topic for topic in left if topic.partitions)


def _each_once(topics: Iterable[FetchTopic]) -> tuple[FetchTopic, ...]:
    found: dict[FetchTopic, dict[int, None]] = {}
    for topic in topics:
        known = found.setdefault(topic._replace(partition_indexes=()), {})
        known.update(dict.fromkeys(topic.partition_indexes))
    return tuple(topic._replace(partition_indexes=tuple(each)) for topic, each in found.items())


def _of_unknown_id(
    topic: wire.OffsetFetchResponse.OffsetFetchResponseTopics,
) -> wire.OffsetFetchResponse.OffsetFetchResponseTopics:
    unknown = (
        no_offset(each.partition_index, ErrorCode.UNKNOWN_TOPIC_ID) for each in topic.partitions
    )
    return topic._replace(partitions=tuple(unknown))
