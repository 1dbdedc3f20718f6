"""The clients of a schedule: producers with unique values, consumers with positions, an admin."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from checkpoints.types import TopicPartition
from logstore.common.errors import CorruptBatchError, LogstoreError
from replication.client import (
    ConsumerConfig,
    ConsumerCore,
    PollResult,
)
from replication.common.error_codes import ErrorCode
from replication.common.errors import LogTruncationError, ReplicationError
from replication.common.messages import (
    IsolationLevel,
)
from replication.simulator.oracle.history import (
    TransactionPhase,
)
from replication.simulator.workload.clients import (
    CONSUMER_TIMEOUT_MS,
    CONSUMERS,
    DELIVERY_TIMEOUT_MS,
    FIRST_CLIENT,
    POLL_MS,
    REQUEST_TIMEOUT_MS,
    ClientWorld,
    SimClient,
    SimProducer,
)
from replication.simulator.workload.compaction import Compaction
from replication.simulator.workload.groups import MEMBERS, GroupWorkload
from replication.simulator.workload.lives import Lives
from replication.simulator.workload.transactions import Transactions
from replication.simulator.workload.transfers import CLIENTS, Transfers
from replication.simulator.world.admin_faults import move, targets
from replication.simulator.world.cluster import SimCluster, rack_of
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


class World(ClientWorld):
    """The clients of one schedule, and their operations in the order of the plan."""

    def __init__(
        self,
        plan: SchedulePlan,
        cluster: SimCluster,
        scheduler: Scheduler,
        partitions: list[TopicPartition],
    ) -> None:
        super().__init__(plan, cluster, scheduler, partitions)
        self.consumers = [SimConsumer(n, self, plan.poll_bytes) for n in range(CONSUMERS)]
        self.lives = Lives(self)
        self.compaction = Compaction(self)
        self.groups = GroupWorkload(
            self, [SimClient(f"m{n}", FIRST_CLIENT - 20 - n, self) for n in range(MEMBERS)]
        )
        self.transfers = Transfers(
            self,
            self.groups,
            [SimClient(f"t{n}", FIRST_CLIENT - 30 - n, self) for n in range(CLIENTS)],
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
