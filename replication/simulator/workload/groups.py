"""A group of consumers: members join, share partitions, commit, read what is committed, and leave,
while brokers that coordinate them crash. Some members are static: they restart and keep their
assignment, and one that takes the instance id of another fences it.

The coordinators are the real ones. Requests travel as values, as those between brokers do.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

from checkpoints.types import TopicPartition
from replication.broker.broker import Broker
from replication.common.error_codes import ErrorCode
from replication.common.internal_topics import GROUP_METADATA
from replication.common.messages import (
    TopicPartitionMetadata,
)
from replication.common.transport import OnReply
from replication.coordinators.effects import LAST_VERSION, ClientRequest
from replication.coordinators.groups.classic import SKIP_ASSIGNMENT
from replication.coordinators.groups.config import GroupConfig
from replication.coordinators.groups.coordinator import GroupCoordinator
from replication.coordinators.groups.shard import COMMIT_NOT_FOUND
from replication.protocol import messages as wire
from replication.protocol.partitions import by_partition, by_topic
from replication.simulator.oracle.groups import GroupOracle, SentCommit
from replication.simulator.oracle.replicas import not_in_sync
from replication.simulator.workload.clients import ClientWorld, SimClient
from replication.simulator.workload.shared_topic import SharedTopic
from replication.simulator.world.plan import Operation

NAME = "g"
WHERE = TopicPartition(GROUP_METADATA, 0)
READ = tuple(TopicPartition("orders", number) for number in range(4))  # what members share
MEMBERS = 3
STEP_MS = 60
SESSION_MS = 1500
REBALANCE_MS = 1200
TIMEOUT_MS = 450
TOPIC_CONFIG = {
    "cleanup.policy": "compact",
    "segment.bytes": "5000",  # a schedule's own may be too small for a group
}
CONFIG = GroupConfig(
    group_min_session_timeout_ms=100,
    group_initial_rebalance_delay_ms=0,
    offsets_commit_timeout_ms=300,
    offsets_retention_check_interval_ms=1 << 40,
)


class GroupCall(NamedTuple):
    """A request with its place in the order of its client's. A client waits for each answer; so
    what comes after a later one is from a connection that is closed, and nobody reads it. What a
    process sent before it ended may come at any time.

    Attributes:
        client: the node, and how often its process has restarted.
    """

    client: tuple[int, int]
    number: int
    request: ClientRequest
    group_id: str = NAME


class GroupDoor:
    """Takes the calls for one life of a broker."""

    def __init__(self, groups: GroupCoordinator) -> None:
        self._groups = groups
        self._latest: dict[tuple[int, int], int] = {}

    def handle(self, call: GroupCall, reply: OnReply) -> None:
        if call.number > self._latest.get(call.client, 0):
            self._latest[call.client] = call.number
            answer: Callable[[Any], None] = reply
            self._groups.request(call.group_id, call.request, answer)


class SimMember:
    """One consumer: it does one thing after the other, each a moment after the answer before."""

    def __init__(self, client: SimClient, groups: GroupWorkload) -> None:
        self._client = client
        self._groups = groups
        self._oracle = groups.oracle
        self.wants_in = False
        self.instance_id: str | None = None
        self.commits = 0  # that are still to be made
        self.must_read = False
        self.member_id = ""
        self.generation = -1
        self.share: frozenset[int] | None = None
        self._metadata = 0  # what it says when it joins: another thing makes a new generation
        self._assignments: tuple[wire.SyncGroupRequest.SyncGroupRequestAssignment, ...] = ()
        self._number = 0
        self._life = 0
        self._asked_us = 0  # when it asked for its member id
        self._before: tuple[int, frozenset[int]] | None = None  # what it had when it restarted

    @property
    def is_stable(self) -> bool:
        return self.share is not None

    @property
    def _name(self) -> str:
        """The name that a static member keeps when it restarts."""
        return self.instance_id or self.member_id

    def start(self) -> None:
        self._later()

    def join(self, instance_id: str | None) -> None:
        """Want to be in the group. Under another instance id it is a new process."""
        if instance_id != self.instance_id:
            self.restart()
            self.instance_id, self._before = instance_id, None
        self.wants_in = True

    def restart(self) -> None:
        """The process ends without a word, and another one begins."""
        if self.share is not None:
            self._before = self.generation, self.share
        self._life += 1
        self._out()
        self.member_id = ""

    def _later(self) -> None:
        self._client.runtime.call_later(STEP_MS, self._step)

    def _step(self) -> None:
        if not self.wants_in:
            self._leave()
        elif self.generation < 0:
            self._join()
        elif self.share is None:
            self._sync()
        elif self.must_read and self.share:
            self._read()
        elif self.commits and self.share:
            self._commit()
        else:
            self.must_read = self.must_read and bool(self.share)
            request = wire.HeartbeatRequest(NAME, self.generation, self.member_id, self.instance_id)
            self._ask(ClientRequest(request), self._judge)

    def _ask(self, request: ClientRequest, answered: Callable[[Any], None]) -> None:
        """``answered`` gets None without an answer; the next step follows."""
        leader = self._client.metadata.leader(WHERE)
        if not isinstance(leader, TopicPartitionMetadata):
            self._client.metadata.refresh(lambda error: self._end(answered, None))
            return
        self._number += 1
        life = self._life
        call: Any = GroupCall((self._client.process.node, life), self._number, request)

        def unless_restarted(response: Any) -> None:
            if self._life == life:
                answered(response)

        def on_reply(response: Any) -> None:
            if response in (None, ErrorCode.NOT_COORDINATOR):
                self._client.metadata.refresh(lambda error: self._end(unless_restarted, response))
            else:
                self._end(unless_restarted, response)

        self._client.transport.send(leader.leader_id, call, on_reply, TIMEOUT_MS)

    def _end(self, answered: Callable[[Any], None], response: Any) -> None:
        self._groups.note(f"{self._client.name} {_what(response)} {self.generation}")
        answered(response)
        self._later()

    def _judge(self, code: Any) -> None:
        """As clients do on an error of any request."""
        if code is ErrorCode.FENCED_INSTANCE_ID:  # another process has its instance id
            self.wants_in = False
            self._groups.count("static members fenced")
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            self.member_id = ""
        if code in (
            ErrorCode.FENCED_INSTANCE_ID,
            ErrorCode.UNKNOWN_MEMBER_ID,
            ErrorCode.ILLEGAL_GENERATION,
            ErrorCode.REBALANCE_IN_PROGRESS,
        ):
            self._out()

    def _out(self) -> None:
        self.generation, self.share = -1, None

    def _leave(self) -> None:
        self._out()
        if not self.member_id:
            self._later()
            return
        kind = wire.LeaveGroupRequest
        member = kind.MemberIdentity(self.member_id, self.instance_id)
        self.member_id = ""
        self._ask(ClientRequest(kind(NAME, members=(member,))), lambda result: None)

    # -- membership ----------------------------------------------------------------------------

    def _join(self) -> None:
        name = self._client.name
        kind = wire.JoinGroupRequest
        request = kind(
            NAME,
            SESSION_MS,
            REBALANCE_MS,
            self.member_id,
            self.instance_id,
            "test",
            (kind.JoinGroupRequestProtocol("range", b"%d" % self._metadata),),
        )
        is_older = self._client.process.node % 2 != 0
        version = SKIP_ASSIGNMENT - 1 if is_older else LAST_VERSION
        self._ask(
            ClientRequest(request, version, name, name),
            partial(self._joined, self._client.world.scheduler.now_us),
        )

    def _joined(self, asked_us: int, result: Any) -> None:
        if not isinstance(result, wire.JoinGroupResponse):
            return
        if not self.member_id:
            self._asked_us = asked_us
        if result.error_code is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = result.member_id
        elif result.error_code is ErrorCode.NONE:
            self.member_id, self.generation = result.member_id, result.generation_id
            ids = [] if result.skip_assignment else [each.member_id for each in result.members]
            numbers = range(len(READ))
            kind = wire.SyncGroupRequest.SyncGroupRequestAssignment
            self._assignments = tuple(
                kind(member_id, bytes(numbers[at :: len(ids)])) for at, member_id in enumerate(ids)
            )
        else:
            self._judge(result.error_code)

    def _sync(self) -> None:
        generation = self.generation
        request = wire.SyncGroupRequest(
            NAME, generation, self.member_id, self.instance_id, assignments=self._assignments
        )
        self._ask(ClientRequest(request), partial(self._synced, generation))

    def _synced(self, generation: int, result: Any) -> None:
        if not isinstance(result, wire.SyncGroupResponse):
            return
        if result.error_code is not ErrorCode.NONE:
            self._out()
            self._judge(result.error_code)
            return
        self.share = frozenset(result.assignment)
        self._oracle.synced(generation, self._name, self.share)
        self._groups.count("group assignments")
        if self.instance_id is not None:
            now_us = self._client.world.scheduler.now_us
            self._oracle.holds(self.instance_id, self.member_id, self._asked_us, now_us)
            if self._before == (generation, self.share):
                self._groups.count("assignments kept over a restart")
            self._before = None
        self.must_read = True

    # -- offsets -------------------------------------------------------------------------------

    def _read(self) -> None:
        assert self.share is not None
        tps = tuple(READ[number] for number in sorted(self.share))
        confirmed = {tp: self._oracle.confirmed_of(tp) for tp in tps}
        self._ask(offset_fetch(NAME, tps), partial(self._was_read, confirmed))

    def _was_read(self, confirmed: dict[TopicPartition, int], result: Any) -> None:
        if isinstance(result, wire.OffsetFetchResponse.OffsetFetchResponseGroup):
            self.must_read = False
            self._groups.count("group offsets read")
            for tp, found in by_partition(result.topics):
                self._oracle.read(tp, found.committed_offset, confirmed[tp])

    def _commit(self) -> None:
        assert self.share is not None
        self.commits -= 1
        tp = READ[min(self.share)]
        offset = self._groups.next_offset()
        self._oracle.commits(tp, offset)
        kind = wire.OffsetCommitRequest
        part = kind.OffsetCommitRequestPartition(tp.partition, offset, -1, "")
        topic = kind.OffsetCommitRequestTopic(tp.topic, partitions=(part,))
        request = ClientRequest(
            kind(NAME, self.generation, self.member_id, self.instance_id, topics=(topic,)),
            COMMIT_NOT_FOUND - 1,
        )
        sent = self._oracle.sends(self.generation, self.instance_id, self.member_id)
        self._ask(request, partial(self._committed, tp, offset, sent))

    def _committed(self, tp: TopicPartition, offset: int, sent: SentCommit, result: Any) -> None:
        code = result[tp] if isinstance(result, dict) else result
        if code is ErrorCode.NONE:
            self._groups.count("group commits")
            self._oracle.confirmed(tp, offset, sent)
            return
        if code in (None, ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
            # It may still arrive, but not in the next generation.
            self._metadata += 1
            self._out()
            return
        self._oracle.refused(tp, offset)
        if isinstance(code, ErrorCode):
            self._judge(code)


def _what(response: Any) -> str:
    """For the story of a schedule."""
    code = getattr(response, "error_code", response)
    named = code.name if isinstance(code, ErrorCode) else ""
    return f"{type(response).__name__} {named}"


def offset_fetch(
    group_id: str, tps: Iterable[TopicPartition], *, require_stable: bool = False
) -> ClientRequest:
    kind = wire.OffsetFetchRequest
    topics = by_topic(
        ((tp, tp.partition) for tp in tps),
        lambda name, parts: kind.OffsetFetchRequestTopics(name, partition_indexes=parts),
    )
    group = kind.OffsetFetchRequestGroup(group_id, topics=topics)
    return ClientRequest(kind(groups=(group,), require_stable=require_stable))


class GroupWorkload:
    """The members of the group, and the coordinators of all brokers.

    Args:
        clients: their nodes in the network.
    """

    def __init__(self, world: ClientWorld, clients: list[SimClient]) -> None:
        self._world = world
        self.oracle = GroupOracle(world.history.violations.append)
        self._members = [SimMember(client, self) for client in clients]
        self._offset = 0
        self.topic = SharedTopic(world, GROUP_METADATA, TOPIC_CONFIG)
        self._is_wanted = False
        self._reads_last = False

    def attach(self, broker: Broker) -> GroupCoordinator:
        """Coordinate groups on a broker that is about to start."""
        source = random.Random(self._world.scheduler.below(1 << 30))
        groups = GroupCoordinator(
            broker, CONFIG, random_id=lambda: f"{source.getrandbits(128):032x}"
        )
        groups.startup()
        broker.serve(GroupCall, GroupDoor(groups).handle)
        return groups

    def count(self, what: str) -> None:
        self._world.counters[what] += 1

    def note(self, line: str) -> None:
        self._world.scheduler.note(line)

    def next_offset(self) -> int:
        self._offset += 1
        return self._offset

    # -- load ----------------------------------------------------------------------------------

    def carry_out(self, step: Operation) -> None:
        """The first operation creates the topic."""
        if not self._is_wanted:
            self._is_wanted = True
            self.topic.want()
            for each in self._members:
                each.start()
        member = self._members[step.client % len(self._members)]
        match step.kind:
            case "join-group":
                member.join(f"i{step.partition}" if step.partition else None)
            case "restart-member":
                member.restart()
            case "leave-group":
                member.wants_in = False
            case "commit-offsets":
                member.commits += step.records

    # -- the end -------------------------------------------------------------------------------

    def pending_reason(self) -> str:
        """Say why the group is not idle; all members read once more what is committed."""
        if not self._is_wanted:
            return ""
        topic = self._world.controllers_topic(GROUP_METADATA)
        if not self.topic.exists or topic is None:
            return f"{GROUP_METADATA} is not made"
        missing = not_in_sync(self._world.cluster, topic.topic_id, topic.replicas)
        if missing:
            return missing
        inside = [each for each in self._members if each.wants_in]
        if not all(each.is_stable for each in inside):
            return f"the group has {[each.is_stable for each in inside]}"
        if not self._reads_last:
            self._reads_last = True
            for each in inside:
                each.must_read = True
        return "members read" if any(each.must_read for each in inside) else ""
