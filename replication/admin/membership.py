"""A member of a classic consumer group. ``ClassicMembership`` is the state machine: answers in,
requests out. ``ConsumingMember`` asks the coordinator for it, and sends heartbeats on a thread of
its own.

The only assignor is ``range``, which every client of Kafka has, so any of them can be in the group.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import Enum
from itertools import chain
from typing import Any, Self

from checkpoints.loggers import get_logger
from checkpoints.types import TopicPartition
from logstore.common.clock import Clock, SystemClock
from logstore.common.errors import LogstoreError
from replication.admin.admin_client import AGAIN, AdminClient, Answered, WireConnection, WireError
from replication.admin.assignments import (
    CONSUMER,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
    range_assignment,
)
from replication.admin.groups import commit_offsets, committed_offsets
from replication.common.error_codes import ErrorCode
from replication.common.errors import ReplicationError
from replication.protocol import ApiKey
from replication.protocol import messages as wire

logger = get_logger(__name__)

RANGE = "range"
UNKNOWN_GENERATION = -1
_BACKOFF_S = 0.1  # Kafka's retry.backoff.ms
_GRACE_S = 5.0  # of the answer to a join, which comes at the end of the rebalance, if not before
_MEMBERS_LEAVE = 3  # from this version on one request has several members


class MembershipError(LogstoreError):
    """The coordinator does not take this member, for good or for too long."""


class MemberState(Enum):
    OUTSIDE = "it has to join"
    JOINED = "it is in a generation, and has to learn what is its own"
    MEMBER = "it may consume"


class MemberReaction(Enum):
    DONE = "done"
    AGAIN = "again after a pause"
    REJOIN = "join again; what was consumed may still be committed"
    LOST = "join again; others may have the partitions already"
    FAIL = "refused for good"


_REACTIONS: Mapping[int, MemberReaction] = {
    ErrorCode.NONE: MemberReaction.DONE,
    ErrorCode.REBALANCE_IN_PROGRESS: MemberReaction.REJOIN,
    ErrorCode.MEMBER_ID_REQUIRED: MemberReaction.REJOIN,  # now it has one (KIP-394)
    ErrorCode.UNKNOWN_MEMBER_ID: MemberReaction.LOST,
    ErrorCode.ILLEGAL_GENERATION: MemberReaction.LOST,
    **dict.fromkeys(
        (
            *AGAIN,
            ErrorCode.REQUEST_TIMED_OUT,
            ErrorCode.NETWORK_EXCEPTION,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,  # of a commit: it may come to be known
        ),
        MemberReaction.AGAIN,
    ),
}


_HINTS: Mapping[int, str] = {
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: f"; not all members are consumers that take {RANGE!r}"
}


class ClassicMembership:
    """
    Attributes:
        generation_id: of what is assigned; UNKNOWN_GENERATION once it is lost.
        topics: what it subscribes to at the next join.
    """

    def __init__(
        self, group_id: str, *, session_timeout_ms: int, rebalance_timeout_ms: int
    ) -> None:
        self.group_id = group_id
        self.session_timeout_ms = session_timeout_ms
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.state = MemberState.OUTSIDE
        self.member_id = ""
        self.generation_id = UNKNOWN_GENERATION
        self.topics: tuple[str, ...] = ()
        self.assigned: tuple[TopicPartition, ...] = ()
        self._subscriptions: dict[str, frozenset[str]] | None = None  # of all, for who leads
        self._counts: Mapping[str, int] = {}

    @property
    def topics_of_all(self) -> frozenset[str]:
        """Those whose partitions this member assigns: none unless it leads."""
        return frozenset(chain.from_iterable((self._subscriptions or {}).values()))

    def note_topics(self, topics: tuple[str, ...], counts: Mapping[str, int]) -> None:
        """Note the topics that fit the subscription now, and the partitions of
        ``topics_of_all``. A change makes the group assign again."""
        changed = topics != self.topics or counts != self._counts
        self.topics, self._counts = topics, counts
        if changed and self.state is MemberState.MEMBER:
            self.state = MemberState.OUTSIDE

    def next_request(self) -> tuple[ApiKey, Any]:
        """The request that brings it into the group, or keeps it there."""
        if self.state is MemberState.MEMBER:
            beat = wire.HeartbeatRequest(self.group_id, self.generation_id, self.member_id)
            return ApiKey.HEARTBEAT, beat
        if self.state is MemberState.JOINED:
            return ApiKey.SYNC_GROUP, self._sync()
        protocol = wire.JoinGroupRequest.JoinGroupRequestProtocol
        return ApiKey.JOIN_GROUP, wire.JoinGroupRequest(
            self.group_id,
            self.session_timeout_ms,
            self.rebalance_timeout_ms,
            self.member_id,
            protocol_type=CONSUMER,
            protocols=(protocol(RANGE, encode_subscription(self.topics)),),
        )

    def _sync(self) -> Any:
        assignment = wire.SyncGroupRequest.SyncGroupRequestAssignment
        assigned = range_assignment(self._subscriptions or {}, self._counts)
        return wire.SyncGroupRequest(
            self.group_id,
            self.generation_id,
            self.member_id,
            protocol_type=CONSUMER,
            protocol_name=RANGE,
            assignments=tuple(
                assignment(member, encode_assignment(tps)) for member, tps in assigned.items()
            ),
        )

    def leave_request(self, version: int) -> Any:
        if version < _MEMBERS_LEAVE:
            return wire.LeaveGroupRequest(self.group_id, self.member_id)
        member = wire.LeaveGroupRequest.MemberIdentity(self.member_id)
        return wire.LeaveGroupRequest(self.group_id, members=(member,))

    def answered(self, api_key: ApiKey, answer: Answered) -> MemberReaction:
        """Take the answer to ``next_request``, or the code of an offset that is committed.

        Raises:
            MembershipError: refused for good, or a leader assigns what cannot be read.
        """
        reaction = _REACTIONS.get(answer.code, MemberReaction.FAIL)
        match reaction:
            case MemberReaction.FAIL:
                raise MembershipError(
                    f"group {self.group_id}: {answer}{_HINTS.get(answer.code, '')}"
                )
            case MemberReaction.DONE if api_key is ApiKey.JOIN_GROUP:
                self._joined(answer.value)
            case MemberReaction.DONE if api_key is ApiKey.SYNC_GROUP:
                self.assigned = decode_assignment(answer.value.assignment)
                self.state = MemberState.MEMBER
            case MemberReaction.AGAIN if api_key is ApiKey.SYNC_GROUP:
                self.state = MemberState.OUTSIDE  # nobody knows whether it was taken
            case MemberReaction.REJOIN:
                self.state = MemberState.OUTSIDE
                if answer.code == ErrorCode.MEMBER_ID_REQUIRED:
                    self.member_id = answer.value.member_id
            case MemberReaction.LOST:
                self.state, self.generation_id = MemberState.OUTSIDE, UNKNOWN_GENERATION
                if answer.code == ErrorCode.UNKNOWN_MEMBER_ID:
                    self.member_id = ""
        return reaction

    def _joined(self, answer: Any) -> None:
        self.member_id, self.generation_id = answer.member_id, answer.generation_id
        self._subscriptions = None
        if answer.leader == answer.member_id:
            self._subscriptions = {
                each.member_id: decode_subscription(each.metadata) for each in answer.members
            }
        self.state = MemberState.JOINED


class ConsumingMember:
    """Use as a context manager; its end leaves the group. All but the heartbeats happens on the
    thread of the caller.

    Args:
        admin: used by nobody else.
        topics: names what to subscribe to.
        count: how many partitions a topic has; 0 if there is none.
        heartbeat_s: between heartbeats; at most a third of the session time-out is taken.
        look_s: after which time topics and partitions are looked at again.
        patience_s: how long a join may fail, not counting how long the others take.
    """

    def __init__(
        self,
        admin: AdminClient,
        membership: ClassicMembership,
        topics: Callable[[], tuple[str, ...]],
        count: Callable[[str], int],
        *,
        heartbeat_s: float = 3.0,
        look_s: float = 300.0,
        patience_s: float = 60.0,
        clock: Clock | None = None,
    ) -> None:
        self.membership = membership
        self._admin, self._topics, self._count = admin, topics, count
        self._heartbeat_s = min(heartbeat_s, membership.session_timeout_ms / 3000)
        self._look_s, self._patience_s = look_s, patience_s
        self._clock = clock or SystemClock()
        self._looked_s = 0.0
        self._lock = threading.Lock()  # one request at a time
        self._failure: Exception | None = None
        self._closed, self._woken = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._beat, name="group-heartbeat", daemon=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        """Leave, so that others need not wait until the session is over. May fail in silence."""
        self._closed.set()
        with self._asking(), suppress(LogstoreError):
            if self.membership.member_id:
                self._ask_coordinator(ApiKey.LEAVE_GROUP, self.membership.leave_request)

    def has_to_join(self) -> bool:
        """
        Raises:
            MembershipError: a heartbeat was refused for good.
        """
        if self._failure is not None:
            raise self._failure
        return self.membership.state is not MemberState.MEMBER

    def wait(self, timeout_s: float) -> None:
        """Wait until it has to join."""
        self._woken.wait(timeout_s)

    def join(self) -> tuple[TopicPartition, ...]:
        """Join, and return what is assigned once all members have joined.

        Raises:
            MembershipError
        """
        with self._asking():
            deadline = self._now_s() + self._patience_s
            while self.membership.state is not MemberState.MEMBER:
                try:
                    answer, reaction = self._step()
                except ReplicationError as error:  # topics cannot be looked at now
                    answer = Answered(ErrorCode.BROKER_NOT_AVAILABLE, str(error))
                    reaction = MemberReaction.AGAIN
                if reaction is MemberReaction.DONE:
                    deadline = self._now_s() + self._patience_s
                elif self._now_s() > deadline:
                    raise MembershipError(f"group {self.membership.group_id}: {answer}")
                else:
                    self._closed.wait(_BACKOFF_S)
            self._woken.clear()
        if self._thread.ident is None:
            self._thread.start()
        return self.membership.assigned

    def committed(self) -> Mapping[TopicPartition, int]:
        """
        Raises:
            MembershipError
        """
        with self._asking():
            answer = committed_offsets(self._admin, self.membership.group_id)
        if answer.code:
            raise MembershipError(f"group {self.membership.group_id}: {answer}")
        found: Mapping[TopicPartition, int] = answer.value
        return found

    def commit(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, Answered]:
        """Those that are not committed, and why. It may have to join afterwards.

        Raises:
            MembershipError: refused for good.
        """
        own = self.membership
        with self._asking():
            if own.generation_id == UNKNOWN_GENERATION:  # a broker might take it without members
                return dict.fromkeys(offsets, Answered(ErrorCode.UNKNOWN_MEMBER_ID))
            try:
                answers = commit_offsets(
                    self._admin, own.group_id, offsets, own.generation_id, own.member_id
                )
            except WireError as error:
                refused = Answered(ErrorCode.BROKER_NOT_AVAILABLE, str(error))
                answers = dict.fromkeys(offsets, refused)
            failed = {tp: each for tp, each in answers.items() if each.code}
            for each in {each.code: each for each in failed.values()}.values():
                own.answered(ApiKey.OFFSET_COMMIT, each)
        return failed

    # -- requests ------------------------------------------------------------------------------

    @contextmanager
    def _asking(self) -> Iterator[None]:
        with self._lock:
            try:
                yield
            except BaseException as error:
                if not isinstance(error, Exception):  # an answer may be under way, for nobody
                    self._admin.close()
                raise

    def _step(self) -> tuple[Answered, MemberReaction]:
        own = self.membership
        if own.state is MemberState.OUTSIDE:
            self._refresh_topics()
        elif own.state is MemberState.JOINED:
            counts = {topic: self._count(topic) for topic in own.topics_of_all}
            own.note_topics(own.topics, counts)
        api_key, request = own.next_request()
        joins = api_key is ApiKey.JOIN_GROUP
        wait_s = own.rebalance_timeout_ms / 1000 + _GRACE_S if joins else 0.0
        answer = self._ask_coordinator(api_key, lambda _: request, wait_s)
        return answer, own.answered(api_key, answer)

    def _ask_coordinator(
        self, api_key: ApiKey, request_in: Callable[[int], Any], wait_s: float = 0.0
    ) -> Answered:
        group = self.membership.group_id

        def ask(connection: WireConnection, _: list[str]) -> dict[str, Answered]:
            version = connection.version(api_key)
            answer = connection.send(api_key, request_in(version), version, wait_s)
            return {group: Answered(answer.error_code, value=answer)}

        try:
            return self._admin.ask_coordinators([group], ask, patient=False)[group]
        except WireError as error:
            return Answered(ErrorCode.BROKER_NOT_AVAILABLE, str(error))

    def _refresh_topics(self) -> None:
        topics = self._topics()
        counts = {topic: self._count(topic) for topic in self.membership.topics_of_all}
        self._looked_s = self._now_s()
        self.membership.note_topics(topics, counts)

    def _beat(self) -> None:
        while not self._closed.wait(self._heartbeat_s):
            with self._asking():
                if self._closed.is_set() or self.membership.state is not MemberState.MEMBER:
                    continue
                try:
                    self._step()
                    if self._now_s() - self._looked_s >= self._look_s:
                        self._refresh_topics()
                except ReplicationError as error:
                    logger.debug("topics cannot be looked at now: %s", error)
                except Exception as error:
                    self._failure = error
                if self._failure or self.membership.state is not MemberState.MEMBER:
                    self._woken.set()

    def _now_s(self) -> float:
        return self._clock.monotonic_ns() / 1e9
