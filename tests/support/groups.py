"""A shard of groups whose runtime is the test: a log in a list, timers that fire when time passes,
appends that end when the test says so."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Hashable
from typing import Any, NamedTuple, TypeVar

from checkpoints.types import TopicPartition
from replication.common.error_codes import ErrorCode
from replication.coordinators.effects import (
    LAST_VERSION,
    Append,
    AppendDone,
    AppendTimedOut,
    ClientRequest,
    CoordinatorRecord,
    Effect,
    Event,
    MarkerWritten,
    Reply,
    RequestReceived,
    StartTimer,
    StopTimer,
    TimerFired,
)
from replication.coordinators.groups.classic import MEMBER_ID_REQUIRED, SKIP_ASSIGNMENT
from replication.coordinators.groups.config import GroupConfig
from replication.coordinators.groups.group import NO_GENERATION
from replication.coordinators.groups.shard import COMMIT_NOT_FOUND, GroupShard
from replication.protocol import ZERO_UUID
from replication.protocol import messages as wire

LeavingMember = wire.LeaveGroupRequest.MemberIdentity
GROUP = "g"
TP = TopicPartition("orders", 0)
APPEND_ERRORS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
}
"""What clients hear of an append that failed, whatever they asked for."""
SESSION_MS = 10_000
REBALANCE_MS = 60_000
START_MS = 1_700_000_000_000

T = TypeVar("T")


class Marker(NamedTuple):
    producer_id: int
    producer_epoch: int
    is_commit: bool


class Written(NamedTuple):
    """One record of the log."""

    record: CoordinatorRecord
    producer_id: int = -1


class Call(list[Any]):
    """What a request was answered with; nothing so far, or one answer."""

    @property
    def answer(self) -> Any:
        (answer,) = self
        return answer

    @property
    def waits(self) -> bool:
        return not self


class GroupHost:
    """
    Attributes:
        log: what was written and not refused, in order.
        held: appends in the log whose end the test has not told yet.
        holds: whether appends are held from now on, instead of being committed at once.
        refusal: what the log says to the next append.
    """

    def __init__(self, config: GroupConfig | None = None, **settings: Any) -> None:
        self.config = config or GroupConfig(group_initial_rebalance_delay_ms=0, **settings)
        self.now_ms = START_MS
        self.log: list[Written | Marker] = []
        self.held: list[Append] = []
        self.holds = False
        self.refusal: ErrorCode | None = None
        self.timers: dict[Hashable, int] = {}
        self.calls: dict[int, Call] = {}
        self._numbers = itertools.count(1)
        self._ids = itertools.count(1)
        self.shard = self._new_shard()
        self.carry_out(self.shard.on_loaded(self.now_ms))

    def _new_shard(self) -> GroupShard:
        return GroupShard(self.config, lambda: f"{next(self._ids):032x}")

    # -- the runtime ---------------------------------------------------------------------------

    def event(self, event: Event) -> None:
        self.carry_out(self.shard.on_event(event, self.now_ms))

    def carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Reply(to, response):
                    assert isinstance(to, int)
                    assert not self.calls[to], "answered twice"
                    self.calls[to].append(response)
                case StartTimer(key, delay_ms):
                    self.timers[key] = self.now_ms + delay_ms
                case StopTimer(key):
                    self.timers.pop(key, None)
                case Append():
                    self._append(effect)
                case _:
                    raise AssertionError(effect)

    def _append(self, append: Append) -> None:
        assert append.records
        if self.refusal is not None:
            code, self.refusal = self.refusal, None
            self.event(AppendDone(append.token, code))
            return
        self.log += [Written(record, append.producer_id) for record in append.records]
        self.held.append(append)
        if not self.holds:
            self.commit()

    def commit(self, count: int | None = None) -> None:
        """The high watermark passes the oldest appends, or all."""
        for _ in range(len(self.held) if count is None else count):
            self.event(AppendDone(self.held.pop(0).token, ErrorCode.NONE))

    def time_out(self) -> None:
        """All that are held take long."""
        for append in list(self.held):
            self.event(AppendTimedOut(append.token))

    def end_transaction(self, producer_id: int, is_commit: bool, epoch: int = 0) -> None:
        marker = Marker(producer_id, epoch, is_commit)
        self.log.append(marker)
        self.commit()
        self.event(MarkerWritten(*marker))

    def pass_time(self, ms: int) -> None:
        """Timers fire when they are due, in order."""
        end = self.now_ms + ms
        while True:
            due = [(at, number, key) for number, (key, at) in enumerate(self.timers.items())]
            if not due or min(due)[0] > end:
                break
            at, _, key = min(due)[0], None, min(due, key=lambda each: each[:2])[2]
            del self.timers[key]
            self.now_ms = max(self.now_ms, at)
            self.event(TimerFired(key))
        self.now_ms = end

    def replayed(self) -> GroupHost:
        """Another broker that has read the log."""
        other = GroupHost(self.config)
        other.now_ms, other._ids = self.now_ms, self._ids
        other.log = list(self.log)
        other.timers.clear()
        other.shard = other._new_shard()
        for entry in self.log:
            if isinstance(entry, Marker):
                other.shard.replay_marker(*entry)
            else:
                key, value = entry.record
                other.shard.replay(key, value, producer_id=entry.producer_id)
        other.carry_out(other.shard.on_loaded(other.now_ms))
        return other

    # -- clients -------------------------------------------------------------------------------

    def request(self, message: object, version: int = LAST_VERSION, client: str = "") -> Call:
        number = next(self._numbers)
        call = self.calls[number] = Call()
        request = ClientRequest(message, version, client, "/127.0.0.1")
        self.event(RequestReceived(number, request))
        return call

    def now(self, message: object, kind: type[T], version: int = LAST_VERSION) -> T:
        """The answer to a request that does not wait."""
        answer = self.request(message, version).answer
        assert isinstance(answer, kind)
        return answer

    def join(
        self,
        member_id: str = "",
        *,
        group_id: str = GROUP,
        instance: str | None = None,
        client: str = "client",
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
        kind: str = "consumer",
        protocols: tuple[tuple[str, bytes], ...] = (("range", b""),),
        needs_id: bool = False,
        may_skip: bool = True,
    ) -> Call:
        message = wire.JoinGroupRequest(
            group_id,
            session_ms,
            rebalance_ms,
            member_id,
            instance,
            kind,
            tuple(wire.JoinGroupRequest.JoinGroupRequestProtocol(*each) for each in protocols),
        )
        version = LAST_VERSION
        if instance is None and not needs_id:
            version = MEMBER_ID_REQUIRED - 1
        elif not may_skip:
            version = SKIP_ASSIGNMENT - 1
        return self.request(message, version, client)

    def joined(self, *args: Any, **options: Any) -> wire.JoinGroupResponse:
        answer = self.join(*args, **options).answer
        assert isinstance(answer, wire.JoinGroupResponse)
        return answer

    def sync(
        self,
        member_id: str,
        generation: int,
        assignments: dict[str, bytes] | None = None,
        *,
        group_id: str = GROUP,
        instance: str | None = None,
        kind: str | None = None,
        protocol: str | None = None,
    ) -> Call:
        one = wire.SyncGroupRequest.SyncGroupRequestAssignment
        shares = tuple(one(*each) for each in (assignments or {}).items())
        message = wire.SyncGroupRequest
        return self.request(
            message(group_id, generation, member_id, instance, kind, protocol, shares)
        )

    def synced(self, *args: Any, **options: Any) -> wire.SyncGroupResponse:
        answer = self.sync(*args, **options).answer
        assert isinstance(answer, wire.SyncGroupResponse)
        return answer

    def heartbeat(
        self, member_id: str, generation: int, instance: str | None = None, group_id: str = GROUP
    ) -> ErrorCode:
        message = wire.HeartbeatRequest(group_id, generation, member_id, instance)
        return self.now(message, ErrorCode)

    def leave(
        self, *members: wire.LeaveGroupRequest.MemberIdentity | str, group_id: str = GROUP
    ) -> wire.LeaveGroupResponse:
        named = tuple(LeavingMember(m) if isinstance(m, str) else m for m in members)
        message = wire.LeaveGroupRequest(group_id, members=named)
        return self.now(message, wire.LeaveGroupResponse)

    def commit_call(
        self,
        offset: int,
        member_id: str = "",
        generation: int = NO_GENERATION,
        *,
        tp: TopicPartition = TP,
        group_id: str = GROUP,
        instance: str | None = None,
        metadata: str = "",
        retention_ms: int = -1,
        producer_id: int = -1,
        producer_epoch: int = 0,
        topic_id: uuid.UUID = ZERO_UUID,
        version: int = COMMIT_NOT_FOUND - 1,
    ) -> Call:
        txn, plain = wire.TxnOffsetCommitRequest, wire.OffsetCommitRequest
        sender = generation, member_id, instance
        part = tp.partition, offset, 3, metadata
        if producer_id >= 0:
            parts = (txn.TxnOffsetCommitRequestPartition(*part),)
            topic = txn.TxnOffsetCommitRequestTopic(tp.topic, parts)
            producer = producer_id, producer_epoch
            return self.request(txn("x", group_id, *producer, *sender, topics=(topic,)))
        old = (plain.OffsetCommitRequestPartition(*part),)
        named = plain.OffsetCommitRequestTopic(tp.topic, topic_id, old)
        return self.request(
            plain(group_id, *sender, retention_time_ms=retention_ms, topics=(named,)), version
        )

    def commit_offset(self, offset: int, *args: Any, **options: Any) -> ErrorCode:
        """The error of the only partition."""
        (code,) = self.commit_call(offset, *args, **options).answer.values()
        assert isinstance(code, ErrorCode)
        return code

    def fetch(
        self, tp: TopicPartition = TP, *, group_id: str = GROUP, stable: bool = False
    ) -> wire.OffsetFetchResponse.OffsetFetchResponsePartitions:
        kind = wire.OffsetFetchRequest
        topic = kind.OffsetFetchRequestTopics(tp.topic, partition_indexes=(tp.partition,))
        group = kind.OffsetFetchRequestGroup(group_id, topics=(topic,))
        answer = self.request(kind(groups=(group,), require_stable=stable)).answer
        ((found,),) = [each.partitions for each in answer.topics]
        assert isinstance(found, wire.OffsetFetchResponse.OffsetFetchResponsePartitions)
        return found

    def offset(self, tp: TopicPartition = TP, group_id: str = GROUP) -> int:
        return self.fetch(tp, group_id=group_id).committed_offset

    def describe(self, group_id: str = GROUP) -> wire.DescribeGroupsResponse.DescribedGroup:
        kind = wire.DescribeGroupsResponse.DescribedGroup
        return self.now(wire.DescribeGroupsRequest((group_id,)), kind)

    @property
    def state(self) -> str:
        return self.describe().group_state

    def groups(self) -> dict[str, str]:
        listed = self.request(wire.ListGroupsRequest()).answer
        return {each.group_id: each.group_state for each in listed}

    def delete_group(self, group_id: str = GROUP) -> ErrorCode:
        return self.now(wire.DeleteGroupsRequest((group_id,)), ErrorCode)

    def delete_offsets(self, *tps: TopicPartition, group_id: str = GROUP) -> Any:
        """An ``ErrorCode``, or one by partition."""
        return self.delete_offsets_call(*tps, group_id=group_id).answer

    def delete_offsets_call(self, *tps: TopicPartition, group_id: str = GROUP) -> Call:
        kind = wire.OffsetDeleteRequest
        topics = tuple(
            kind.OffsetDeleteRequestTopic(
                tp.topic, (kind.OffsetDeleteRequestPartition(tp.partition),)
            )
            for tp in tps or (TP,)
        )
        return self.request(kind(group_id, topics))

    # -- whole stories -------------------------------------------------------------------------

    def stable(
        self, count: int = 1, *, instances: tuple[str | None, ...] = (), **options: Any
    ) -> list[wire.JoinGroupResponse]:
        """A Stable group; the answers to the joins of its members, the leader's first."""
        named = [*instances, *[None] * (count - len(instances))]
        ids: list[str] = []
        results: list[wire.JoinGroupResponse] = []
        for instance in named:
            joins = [self.join(instance=instance, **options)]
            joins += [
                self.join(known, instance=name, **options)
                for known, name in zip(ids, named, strict=False)
            ]
            results = [call.answer for call in joins]
            results = [*results[1:], results[0]]
            ids = [result.member_id for result in results]
        leader = results[0]
        assert leader.members
        assert leader.leader == leader.member_id
        generation = leader.generation_id
        shares = {member_id: f"share of {member_id}".encode() for member_id in ids}
        syncs = [
            self.sync(each.member_id, generation, shares if each is leader else None, instance=name)
            for each, name in zip(results, named, strict=True)
        ]
        for member_id, call in zip(ids, syncs, strict=True):
            assert call.answer.error_code is ErrorCode.NONE
            assert call.answer.assignment == shares[member_id]
        assert self.state == "Stable"
        return results
