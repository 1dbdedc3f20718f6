"""Real controllers over an embedded coordinator, and brokers that note what they are told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any
from uuid import UUID

from logstore.testing import ManualClock, MemoryStorage
from replication.common.config import ReplicationConfig
from replication.common.error_codes import ErrorCode
from replication.common.messages import (
    AlterableConfig,
    AlterPartitionItem,
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionResult,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    CreatePartitionsRequest,
    CreateTopicRequest,
    DeleteTopicRequest,
    ElectionType,
    ElectLeadersRequest,
    ElectLeadersResponse,
    IncrementalAlterConfigsRequest,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    PartitionChange,
    Request,
    Response,
    StopReplicaPartition,
    StopReplicaRequest,
    StopReplicaResponse,
    TopicResponse,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from replication.common.state import (
    NO_LEADER,
    BrokerRegistration,
    PartitionRegistration,
    RecoveryState,
    TopicAssignment,
    TopicPartition,
)
from replication.common.transport import OnReply
from replication.controller import Controller, channels, controller
from replication.coordination import Node, nodes
from replication.coordination.embedded import CoordinatorStore, EmbeddedCoordinator
from tests.support.replication import ManualRuntime

PAUSE_MS = int(max(controller.BACKOFF.max_ms, channels.BACKOFF.max_ms))  # the longest there is
T0 = TopicPartition("t", 0)


class NotedBroker:
    """Answers as a broker would, unless told otherwise."""

    def __init__(self) -> None:
        self.up = False
        self.broker_epoch = -1
        self.deaf = False  # gets nothing, and the sender learns that
        self.failed: set[TopicPartition] = set()  # in a failed log directory
        self.log_epochs: dict[TopicPartition, int] = {}  # the last ones in its logs
        self.requests: list[Request] = []
        self.told: dict[TopicPartition, PartitionRegistration] = {}
        self.configs: dict[TopicPartition, dict[str, str]] = {}  # with what it was told
        self.metadata: dict[TopicPartition, PartitionRegistration] = {}
        self.logs: dict[TopicPartition, UUID | None] = {}  # on its disk
        self.strays: list[tuple[TopicPartition, UUID | None]] = []  # set aside
        self.controller_epoch = 0
        self.last = (0, 0, 0)  # controller epoch, broker epoch, number of the last request
        self.overtaken: list[Request] = []  # numbered below the last one

    def restart(self, broker_epoch: int) -> None:
        """As another process, which finds its logs."""
        self.up, self.broker_epoch = True, broker_epoch
        self.told, self.metadata = {}, {}
        self.controller_epoch, self.last = 0, (0, 0, 0)

    def handle(self, request: Request) -> Response | None:
        if not self.up or self.deaf:
            return None
        assert isinstance(request, LeaderAndIsrRequest | UpdateMetadataRequest | StopReplicaRequest)
        self.requests.append(request)
        error = self._refusal(request)
        if isinstance(request, UpdateMetadataRequest):
            if error is ErrorCode.NONE:
                if request.is_full:
                    self.metadata = {}
                for change in request.partitions:
                    self.metadata[change.tp] = change.registration
            return UpdateMetadataResponse(error)
        answer = (
            StopReplicaResponse
            if isinstance(request, StopReplicaRequest)
            else (LeaderAndIsrResponse)
        )
        if error is not ErrorCode.NONE:
            return answer(error, tuple((each.tp, error) for each in request.partitions))
        if isinstance(request, StopReplicaRequest):
            return StopReplicaResponse(
                error, tuple((stop.tp, self._stop(stop)) for stop in request.partitions)
            )
        if request.is_full:
            named = {(change.tp, change.topic_id) for change in request.partitions}
            for log in [*self.logs.items()]:
                if log not in named:
                    self.strays.append(log)
                    del self.logs[log[0]]
                    self.told.pop(log[0], None)
        codes = tuple((change.tp, self._take(change)) for change in request.partitions)
        ahead = {tp for tp, code in codes if code is ErrorCode.FENCED_LEADER_EPOCH}
        return LeaderAndIsrResponse(error, codes, {tp: self.log_epochs[tp] for tp in ahead})

    def _refusal(
        self, request: LeaderAndIsrRequest | UpdateMetadataRequest | StopReplicaRequest
    ) -> ErrorCode:
        if request.broker_epoch != self.broker_epoch:
            return ErrorCode.STALE_BROKER_EPOCH
        if request.controller_epoch < self.controller_epoch:
            return ErrorCode.STALE_CONTROLLER_EPOCH
        number = request.controller_epoch, request.broker_epoch, request.sequence
        if number <= self.last:  # nothing is repeated here
            self.overtaken.append(request)
            return ErrorCode.STALE_CONTROLLER_EPOCH
        self.controller_epoch, self.last = request.controller_epoch, number
        return ErrorCode.NONE

    def _take(self, change: PartitionChange) -> ErrorCode:
        if change.tp in self.failed:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if self.logs.setdefault(change.tp, change.topic_id) != change.topic_id:
            return ErrorCode.INCONSISTENT_TOPIC_ID
        if self.log_epochs.get(change.tp, -1) >= change.registration.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        self.told[change.tp] = change.registration
        self.configs[change.tp] = dict(change.config)
        return ErrorCode.NONE

    def _stop(self, stop: StopReplicaPartition) -> ErrorCode:
        if stop.tp in self.failed:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if self.logs.get(stop.tp, stop.topic_id) == stop.topic_id:
            self.logs.pop(stop.tp, None)
            self.told.pop(stop.tp, None)
        return ErrorCode.NONE

    def requests_of(self, kind: type) -> list[Request]:
        return [request for request in self.requests if isinstance(request, kind)]


class Brokers:
    """Broker ids from 1 on; everything happens in ``settle``."""

    def __init__(
        self, count: int = 3, *, config: Mapping[str, object] | None = None, start: bool = True
    ) -> None:
        self.clock = ManualClock()
        self.runtime = ManualRuntime(self.clock)
        self.tree = CoordinatorStore("/coordination", MemoryStorage(), self.clock)
        self.config = ReplicationConfig.from_properties(config or {})
        self.ids = range(1, count + 1)
        self.brokers = {broker: NotedBroker() for broker in self.ids}
        self.controllers = {
            broker: Controller(broker, self.runtime, self, self.config, Random(broker))
            for broker in self.ids
        }
        self.sessions: dict[int, EmbeddedCoordinator] = {}
        self.admin = self.tree.connect()
        self.on_session: Callable[[int, EmbeddedCoordinator], None] = lambda broker, session: None
        if start:
            for broker in self.ids:
                self.start(broker)

    # -- as a Transport, in one step

    def send(
        self, broker_id: int, request: Request, on_reply: OnReply, timeout_ms: int = 0
    ) -> None:
        on_reply(self.brokers[broker_id].handle(request))

    # -- life of brokers

    def start(self, broker: int, *, clean: bool = True, settle: bool = True, **proof: Any) -> int:
        """Register a new incarnation; ``clean``: with the epoch of the one before; ``proof``: other
        fields of its registration.
        """
        noted = self.brokers[broker]
        session = self.sessions[broker] = self.tree.connect()
        registration = BrokerRegistration(
            broker, previous_broker_epoch=noted.broker_epoch if clean else -1
        )._replace(**proof)
        _, epoch = session.create(
            nodes.broker_path(broker),
            nodes.encode_broker(registration),
            ephemeral=True,
            parents=True,
        )
        noted.restart(epoch)
        self.on_session(broker, session)
        self.controllers[broker].start(session, epoch)
        if settle:
            self.settle()
        return epoch

    def kill(self, *brokers: int, settle: bool = True) -> None:
        for broker in brokers:
            self.brokers[broker].up = False
            self.controllers[broker].stop()
            self.tree.expire(self.sessions[broker])
        if settle:
            self.settle()

    def bounce(self, broker: int, *, clean: bool = True) -> None:
        """The new incarnation is there before the controller has looked."""
        self.kill(broker, settle=False)
        self.start(broker, clean=clean)

    def settle(self, ms: int = 0) -> None:
        self.runtime.run_until_idle()
        if ms:
            self.runtime.advance(ms)

    # -- requests

    @property
    def controller(self) -> Controller:
        (active,) = [c for c in self.controllers.values() if c.active]
        return active

    def ask(self, request: Request) -> Response:
        replies: list[Response | None] = []
        self.controller.handle(request, replies.append)
        self.settle()
        if not replies:  # it waits until the coordinator answers again
            self.settle(PAUSE_MS)
        (reply,) = replies
        assert reply is not None
        return reply

    def create(
        self,
        topic: str = "t",
        assignment: tuple[tuple[int, ...], ...] = ((1, 2, 3),),
        **config: str,
    ) -> None:
        keys = {key.replace("_", "."): value for key, value in config.items()}
        request = CreateTopicRequest(topic, assignment=assignment, config=keys)
        assert self.ask(request) == TopicResponse(ErrorCode.NONE)

    def delete(self, topic: str = "t") -> ErrorCode:
        response = self.ask(DeleteTopicRequest(topic))
        assert isinstance(response, TopicResponse)
        return response.error_code

    def grow(
        self,
        total: int,
        *assignment: tuple[int, ...],
        topic: str = "t",
        validate_only: bool = False,
    ) -> ErrorCode:
        """Without an assignment the controller spreads."""
        request = CreatePartitionsRequest(topic, total, assignment or None, validate_only)
        response = self.ask(request)
        assert isinstance(response, TopicResponse)
        return response.error_code

    def configure(
        self, *configs: AlterableConfig, topic: str = "t", validate_only: bool = False
    ) -> ErrorCode:
        response = self.ask(IncrementalAlterConfigsRequest(topic, configs, validate_only))
        assert isinstance(response, TopicResponse)
        return response.error_code

    def alter(
        self,
        isr: tuple[int, ...],
        tp: TopicPartition = T0,
        *,
        sender: int | None = None,
        epochs: Mapping[int, int] | None = None,
        recovery_state: RecoveryState = RecoveryState.RECOVERED,
        **changes: object,
    ) -> AlterPartitionResult:
        """What the leader would propose; ``changes`` spoil the item."""
        now = self.partition(tp)
        item = AlterPartitionItem(
            tp,
            now.leader_epoch,
            now.partition_epoch,
            tuple((r, (epochs or {}).get(r, self.brokers[r].broker_epoch)) for r in isr),
            recovery_state,
            self.topic(tp.topic).topic_id,
        )._replace(**changes)  # type: ignore[arg-type]
        (result,) = self.alter_items(now.leader if sender is None else sender, item).partitions
        return result

    def alter_items(self, sender: int, *items: AlterPartitionItem) -> AlterPartitionResponse:
        epoch = self.brokers[sender].broker_epoch
        response = self.ask(AlterPartitionRequest(sender, epoch, items))
        assert isinstance(response, AlterPartitionResponse)
        return response

    def elect(
        self, kind: ElectionType, *partitions: TopicPartition
    ) -> dict[TopicPartition, ErrorCode]:
        """No partitions: all."""
        response = self.ask(ElectLeadersRequest(kind, partitions or None))
        assert isinstance(response, ElectLeadersResponse)
        return dict(response.partitions)

    def shut_down(self, broker: int) -> ControlledShutdownResponse:
        epoch = self.brokers[broker].broker_epoch
        response = self.ask(ControlledShutdownRequest(broker, epoch))
        assert isinstance(response, ControlledShutdownResponse)
        return response

    def reassign(self, target: tuple[int, ...] | None, tp: TopicPartition = T0) -> ErrorCode:
        response = self.ask(AlterPartitionReassignmentsRequest(((tp, target),)))
        assert isinstance(response, AlterPartitionReassignmentsResponse)
        return dict(response.partitions)[tp]

    # -- promises

    def check(self) -> None:
        """What holds whenever nothing has happened for a while."""
        assert self.controller.active
        up = {broker: noted for broker, noted in self.brokers.items() if noted.up}
        assert not [noted.overtaken for noted in up.values() if noted.overtaken]
        deleting = self.admin.children(nodes.DELETE_TOPICS)
        roles: dict[int, dict[TopicPartition, PartitionRegistration]] = {b: {} for b in up}
        metadata: dict[TopicPartition, PartitionRegistration] = {}
        for name in self.admin.children(nodes.TOPICS):
            for number in self.topic(name).partitions if name not in deleting else ():
                tp = TopicPartition(name, number)
                if self.admin.get(nodes.partition_state_path(tp)) is None:
                    assert not {*self.topic(name).partitions[number]} & {*up}
                    continue
                now = metadata[tp] = self.partition(tp)
                for broker in now.replicas:
                    if broker in up and tp not in up[broker].failed:
                        roles[broker][tp] = now
                self._check_leader(tp, now)
        for broker, noted in up.items():
            assert noted.told == roles[broker], broker
            for tp in noted.told:
                assert noted.configs[tp] == self.topic(tp.topic).config, (broker, tp)
            known = {tp: state for tp, state in noted.metadata.items() if state.leader != -2}
            assert known == metadata, broker

    def _check_leader(self, tp: TopicPartition, now: PartitionRegistration) -> None:
        """A dead broker leads nothing, and nothing lacks a leader that could have one."""
        fit = {b for b, noted in self.brokers.items() if noted.up and tp not in noted.failed}
        if now.leader == NO_LEADER:
            candidates = now.isr or now.elr or (now.last_known_leader,)
            assert not fit & {*candidates}, now
        else:
            assert {now.leader, *now.isr} <= fit, now

    # -- what is in the tree

    def tree_nodes(self, path: str = "/") -> dict[str, Node]:
        """All that there is."""
        found = {}
        for name in self.admin.children(path):
            below = f"{path.rstrip('/')}/{name}"
            node = self.admin.get(below)
            assert node is not None
            found[below] = node
            found.update(self.tree_nodes(below))
        return found

    def topic(self, name: str = "t") -> TopicAssignment:
        node = self.admin.get(nodes.topic_path(name))
        assert node is not None
        found = self.admin.get(nodes.topic_config_path(name))
        config = None if found is None else nodes.decode_topic_config(name, found.data)
        return nodes.decode_topic(name, node.data, config)

    def partition(self, tp: TopicPartition = T0) -> PartitionRegistration:
        node = self.admin.get(nodes.partition_state_path(tp))
        assert node is not None
        replicas = self.topic(tp.topic).partitions[tp.partition]
        return nodes.decode_partition(tp, node.data, node.version, replicas)
