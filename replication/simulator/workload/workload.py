"""The clients of a schedule: producers with unique values, consumers with positions, an admin.

Producers and consumers are the real ones, on the runtime and the transport of the simulation. Their
answers are recorded (``history``).
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from checkpoints.types import TopicPartition
from logstore.common.errors import CorruptBatchError, LogstoreError
from replication.client import (
    ConsumerConfig,
    ConsumerCore,
    Metadata,
    PollResult,
    ProducerConfig,
    ProducerCore,
    SendResult,
)
from replication.client import Outcome as Sent
from replication.common.error_codes import ErrorCode
from replication.common.errors import LogTruncationError, ReplicationError
from replication.common.messages import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    ElectionType,
    ElectLeadersRequest,
    IsolationLevel,
    Request,
    Response,
)
from replication.coordination import nodes
from replication.simulator.oracle.history import (
    ClientHistory,
    TransactionPhase,
    Write,
    WriteOutcome,
)
from replication.simulator.workload.compaction import Compaction
from replication.simulator.workload.groups import MEMBERS, GroupWorkload
from replication.simulator.workload.lives import Lives
from replication.simulator.workload.transactions import Transactions
from replication.simulator.workload.transfers import CLIENTS, Transfers
from replication.simulator.world.admin_faults import move, targets
from replication.simulator.world.cluster import SimCluster, rack_of
from replication.simulator.world.network import SimTransport
from replication.simulator.world.plan import (
    GROUP_OPERATIONS,
    TRANSFER_OPERATIONS,
    Operation,
    SchedulePlan,
)
from replication.simulator.world.scheduler import (
    US_PER_MS,
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
    """What the coordinator's tree says about a topic."""

    topic_id: uuid.UUID | None
    replicas: dict[TopicPartition, tuple[int, ...]]
    deleting: bool


class SimClient:
    """What all clients share: a node in the network, and what they know about the cluster."""

    def __init__(self, name: str, node: int, world: World) -> None:
        self.world = world
        self.name = name
        self.process = Process(name, node)
        self.runtime = SimRuntime(world.scheduler, self.process, SimClock(world.scheduler))
        self.transport = SimTransport(world.cluster.network, self.process)
        brokers = list(world.cluster.machines)
        self.metadata = Metadata(self.runtime, self.transport, lambda: brokers)


class SimProducer(SimClient):
    """One writing application, with a real producer for each ``acks`` it uses."""

    def __init__(self, number: int, world: World, *, idempotent: bool) -> None:
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


class SimConsumer(SimClient):
    """Reads all partitions from its positions on.

    Every second consumer reads only committed transactions.
    """

    def __init__(self, number: int, world: World, max_bytes: int) -> None:
        super().__init__(f"c{number}", FIRST_CLIENT - 5 - number, world)
        self.isolation = IsolationLevel(number % 2)
        config = ConsumerConfig(
            isolation=self.isolation,
            max_bytes=max_bytes,
            timeout_ms=CONSUMER_TIMEOUT_MS,
            rack_id=rack_of(number) if world.cluster.plan.racks else "",
        )
        self.core = ConsumerCore(
            self.runtime, self.transport, self.metadata, world.partitions, config
        )
        self._polls = 0  # polls that are still to be made

    def consume(self, polls: int) -> None:
        """Poll ``polls`` times, one after the other."""
        begin = not self._polls
        self._polls = max(self._polls, polls)
        if begin:
            self._poll()

    def _poll(self) -> None:
        self.world.counters["polls"] += 1
        self.core.poll(POLL_MS, self._polled)

    def _polled(self, result: PollResult) -> None:
        world = self.world
        for tp, record in result.records:
            assert record.value is not None
            value = bytes(record.value)
            world.history.read(tp, record.offset, value, self.name)
            self._check_isolation(tp, record.offset, value)
        if result.records:
            world.counters["polls with records"] += 1
            world.counters["records read"] += len(result.records)
        if result.error is not None:
            self._failed(result.error)
        self._polls -= 1
        if self._polls:
            self._poll()

    def _check_isolation(self, tp: TopicPartition, offset: int, value: bytes) -> None:
        """A consumer that reads only committed transactions gets no other records (I-6)."""
        if self.isolation is IsolationLevel.READ_COMMITTED:
            transaction = self.world.history.write_of(value).transaction
            if transaction is not None and transaction.state is not TransactionPhase.COMMITTING:
                self.world.history.violations.append(
                    f"I-6 {tp}: {self.name} reads {value!r} at {offset}, of a transaction that is "
                    f"{transaction.state.value}"
                )

    def _failed(self, error: LogstoreError) -> None:
        world = self.world
        world.counters[f"poll {type(error).__name__}"] += 1
        if isinstance(error, CorruptBatchError | ReplicationError | LogTruncationError):
            return
        world.history.violations.append(f"I-6 {self.name}: a poll ends with {error!r}")

    @property
    def idle(self) -> bool:
        return not self._polls


class Admin(SimClient):
    """Preferred elections and DeleteRecords."""

    def __init__(self, world: World) -> None:
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


class World:
    """The clients of one schedule."""

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
        self.consumers = [SimConsumer(n, self, plan.poll_bytes) for n in range(CONSUMERS)]
        self.admin = Admin(self)
        self.lives = Lives(self)
        self.compaction = Compaction(self)
        self.groups = GroupWorkload(
            self, [SimClient(f"m{n}", FIRST_CLIENT - 20 - n, self) for n in range(MEMBERS)]
        )
        self.transfers = Transfers(
            self, [SimClient(f"t{n}", FIRST_CLIENT - 30 - n, self) for n in range(CLIENTS)]
        )
        self.transactions = Transactions(
            SimClient("transactions", FIRST_CLIENT - 8, self),
            REQUEST_TIMEOUT_MS,
            DELIVERY_TIMEOUT_MS,
        )

    @property
    def coordinated_topics(self) -> tuple[str, ...]:
        """The topics of coordinators, and the one that they have markers written into."""
        return tuple(topic.name for topic in self.transfers.topics)

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

    def reassign(self, tp: TopicPartition, number: int) -> None:
        """Move a partition to one of the sufficiently large sets of brokers, in one of their
        orders.
        """
        choices = targets(self.cluster.plan)
        move(self.cluster, tp, choices[number % len(choices)], self._reassigned)

    def _reassigned(self, verdicts: Mapping[TopicPartition, ErrorCode]) -> None:
        for code in verdicts.values():
            self.counters[f"reassign {code.name}"] += 1

    def schedule(self, operations: tuple[Operation, ...], start_us: int) -> None:
        for step in operations:
            process = self._process(step)
            self.scheduler.at(
                start_us + step.at_ms * US_PER_MS,
                process,
                f"{step.kind} {step.client}",
                partial(self._carry_out, step),
            )

    def _process(self, step: Operation) -> Process | None:
        if step.kind == "produce":
            return self._producer(step).process
        return None

    def _producer(self, step: Operation) -> SimProducer:
        return self.producers[step.client % len(self.producers)]

    def _carry_out(self, step: Operation) -> None:
        tp = self.partitions[step.partition % len(self.partitions)]
        match step.kind:
            case "produce":
                self._producer(step).produce(step)
            case "consume":
                self.consumers[step.client % len(self.consumers)].consume(step.records)
            case "elect":
                self.admin.elect()
            case "delete-records":
                self.admin.delete_records(tp, step.size)
            case "reassign":
                self.reassign(tp, step.size)
            case "make-anew":
                self.lives.make_anew(step)
            case "grow":
                self.lives.grow(step)
            case "reconfigure":
                self.lives.reconfigure(step)
            case "produce-anew":
                self.lives.produce(step)
            case "produce-latest":
                self.compaction.produce(step)
            case kind if kind in GROUP_OPERATIONS:
                self.groups.carry_out(step)
            case kind if kind in TRANSFER_OPERATIONS:
                self.transfers.carry_out(step)
            case "transaction":
                self.transactions.begin(tp, step)
            case "stop":
                self.cluster.stop(step.client, 20 + step.size * 10)
