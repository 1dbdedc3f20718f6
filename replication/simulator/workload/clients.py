"""The clients that every schedule has, and what all clients share.

Producers and consumers are the real ones, on the runtime and the transport of the simulation. Their
answers are recorded in the history.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from checkpoints.types import TopicPartition
from replication.client import (
    Metadata,
    ProducerConfig,
    ProducerCore,
    SendResult,
)
from replication.client import Outcome as Sent
from replication.common.messages import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    ElectionType,
    ElectLeadersRequest,
    Request,
    Response,
)
from replication.coordination import nodes
from replication.simulator.oracle.history import (
    ClientHistory,
    Write,
    WriteOutcome,
)
from replication.simulator.world.cluster import SimCluster
from replication.simulator.world.network import SimTransport
from replication.simulator.world.plan import (
    Operation,
    SchedulePlan,
)
from replication.simulator.world.scheduler import (
    Process,
    Scheduler,
    SimClock,
    SimRuntime,
)

REQUEST_TIMEOUT_MS = 400  # the timeout of a produce request
DELIVERY_TIMEOUT_MS = 2_500
POLL_MS = 50
CONSUMER_TIMEOUT_MS = 2_000
FIRST_CLIENT = -10  # the node of the first client; the next ones are below it
CONSUMERS = 2

OUTCOMES = {
    Sent.ACKNOWLEDGED: WriteOutcome.OK,
    Sent.NOT_WRITTEN: WriteOutcome.FAILED,
    Sent.UNKNOWN: WriteOutcome.UNKNOWN,
}


class KnownTopic(NamedTuple):
    """A topic as the coordinator's tree has it."""

    topic_id: uuid.UUID | None
    replicas: dict[TopicPartition, tuple[int, ...]]
    deleting: bool


class SimClient:
    """A client: a node in the network with its knowledge of the cluster."""

    def __init__(self, name: str, node: int, world: ClientWorld) -> None:
        self.world = world
        self.name = name
        self.process = Process(name, node)
        self.runtime = SimRuntime(world.scheduler, self.process, SimClock(world.scheduler))
        self.transport = SimTransport(world.cluster.network, self.process)
        brokers = list(world.cluster.machines)
        self.metadata = Metadata(self.runtime, self.transport, lambda: brokers)


class SimProducer(SimClient):
    """One writing application, with a real producer for each ``acks`` it uses."""

    def __init__(self, number: int, world: ClientWorld, *, idempotent: bool) -> None:
        super().__init__(f"p{number}", FIRST_CLIENT - number, world)
        self.idempotent = idempotent
        self._cores: dict[int, ProducerCore] = {}

    def core(self, acks: int) -> ProducerCore:
        core = self._cores.get(acks)
        if core is None:
            config = ProducerConfig(
                acks=acks,
                idempotent=self.idempotent,
                request_timeout_ms=REQUEST_TIMEOUT_MS,
                delivery_timeout_ms=DELIVERY_TIMEOUT_MS,
            )
            core = ProducerCore(self.runtime, self.transport, self.metadata, config)
            self._cores[acks] = core
        return core

    def produce(self, step: Operation) -> Write:
        world = self.world
        tp = world.partitions[step.partition % len(world.partitions)]
        acks = -1 if self.idempotent else step.acks
        write = world.history.begin(tp, acks, step.records, step.size)
        write.producer = self.name if self.idempotent else ""
        records = [(None, value) for value in write.values]
        self.core(acks).send(tp, records, partial(self._sent, write))
        return write

    def _sent(self, write: Write, result: SendResult) -> None:
        world = self.world
        if result.stamp is not None:
            write.producer_id, _, write.sequence = result.stamp
        world.history.settle(write, OUTCOMES[result.outcome], result.base_offset)
        if result.error is not None:
            world.counters[f"produce {type(result.error).__name__}"] += 1
        where = f" at {result.base_offset}" if result.base_offset >= 0 else ""
        world.scheduler.note(
            f"{self.name} {write.tp} write {write.number} acks {write.acks}: "
            f"{write.outcome.value}{where}"
        )


class Admin(SimClient):
    """Preferred elections and DeleteRecords."""

    def __init__(self, world: ClientWorld) -> None:
        super().__init__("admin", FIRST_CLIENT - 9, world)

    def elect(self) -> None:
        self.ask_controller(ElectLeadersRequest(ElectionType.PREFERRED, None))

    def ask_controller(
        self, request: Request, then: Callable[[Response | None], None] = lambda response: None
    ) -> None:
        """Send a request to the known controller, if there is one."""

        def ask(answered: bool) -> None:
            controller = self.metadata.view.controller_id
            if controller >= 0:
                self.transport.send(controller, request, then)
            else:
                then(None)

        self.metadata.refresh(ask)

    def delete_records(self, tp: TopicPartition, percent: int) -> None:
        def ask(answered: bool) -> None:
            known = self.metadata.view.partitions.get(tp)
            leader = -1 if known is None else known.leader_id
            acknowledged = self.world.history.acknowledged.get(tp)
            if leader < 0 or not acknowledged:
                return
            below = max(acknowledged) * percent // 100
            request = DeleteRecordsRequest(((tp, below),), 300)
            deleted = self.world.history.deleted_below
            deleted[tp] = max(deleted.get(tp, 0), below)  # from now on these records may be gone
            self.transport.send(leader, request, self._deleted)

        self.metadata.refresh(ask)

    def _deleted(self, response: Response | None) -> None:
        if isinstance(response, DeleteRecordsResponse):
            for part in response.partitions:
                self.world.counters[f"delete-records {part.error_code.name}"] += 1


class ClientWorld:
    """The surroundings of every client of a schedule: the cluster, the clock, the history, the
    admin.
    """

    def __init__(
        self,
        plan: SchedulePlan,
        cluster: SimCluster,
        scheduler: Scheduler,
        partitions: list[TopicPartition],
    ) -> None:
        self.cluster = cluster
        self.scheduler = scheduler
        self.partitions = partitions
        self.history = ClientHistory()
        self.counters: Counter[str] = cluster.counters
        self.producers = [
            SimProducer(number, self, idempotent=idempotent)
            for number, idempotent in enumerate(plan.idempotent)
        ]
        self.admin = Admin(self)

    def controllers_topic(self, name: str) -> KnownTopic | None:
        """A topic in the coordinator's tree; None while the tree cannot be read."""
        tree = self.cluster.coordinator.tree
        node = None if tree is None else tree.get(nodes.topic_path(name))
        if tree is None or node is None:
            return None
        topic = nodes.decode_topic(name, node.data)
        replicas = {TopicPartition(name, n): listed for n, listed in topic.partitions.items()}
        deleting = tree.get(nodes.delete_topic_path(name)) is not None
        return KnownTopic(topic.topic_id, replicas, deleting)
