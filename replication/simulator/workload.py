"""Clients as events: producers with unique values, consumers with positions, an admin.

They know of the cluster what its metadata tells them, try again as clients do, and write down what
they were told (``history``).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from functools import partial

from checkpoints.types import TopicPartition
from logstore.errors import CorruptBatchError
from logstore.format.batch import encode_batch
from logstore.format.reader import iter_batches, read_records
from replication.error_codes import ErrorCode
from replication.messages import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    ElectionType,
    ElectLeadersRequest,
    FetchPartition,
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    IsolationLevel,
    MetadataRequest,
    MetadataResponse,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    Response,
)
from replication.simulator.cluster import SimCluster
from replication.simulator.history import History, Outcome, Write
from replication.simulator.network import SimTransport
from replication.simulator.plan import Operation, Plan
from replication.simulator.scheduler import US_PER_MS, Process, Scheduler

PRODUCE_TIMEOUT_MS = 400
ATTEMPTS = 6
BACKOFF_MS = 70
FIRST_CLIENT = -10  # node of the first client in the network; the next ones below

# Answers that say: nothing was appended by this attempt. With acks=all the first two may also come
# after it, when the leader stepped down while it waited.
NOT_HERE = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
REFUSED = frozenset(
    {
        *NOT_HERE, ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.INVALID_TIMESTAMP, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE,
    }
)  # fmt: skip


class Client:
    """What all clients share: a place in the network, and metadata."""

    def __init__(self, name: str, node: int, world: World) -> None:
        self.world = world
        self.process = Process(name, node)
        self.transport = SimTransport(world.cluster.network, self.process)
        self.leaders: dict[TopicPartition, int] = {}
        self.controller = -1
        self._asked = 0

    def send(
        self, broker: int, request: object, on_reply: Callable[[Response | None], None]
    ) -> None:
        self.transport.send(broker, request, on_reply)  # type: ignore[arg-type]

    def later(self, delay_ms: int, task: Callable[[], None]) -> None:
        self.world.scheduler.after(delay_ms * US_PER_MS, self.process, self.process.name, task)

    def refresh(self, then: Callable[[], None]) -> None:
        """Ask the next broker who leads what."""
        brokers = list(self.world.cluster.machines)
        self._asked += 1

        def on_reply(response: Response | None) -> None:
            if isinstance(response, MetadataResponse):
                self.leaders = {p.tp: p.leader_id for p in response.partitions}
                self.controller = response.controller_id
            then()

        self.send(brokers[self._asked % len(brokers)], MetadataRequest(), on_reply)


class Producer(Client):
    """Sends one batch at a time to each partition, in order."""

    def __init__(self, number: int, world: World, *, idempotent: bool) -> None:
        super().__init__(f"p{number}", FIRST_CLIENT - number, world)
        self.idempotent = idempotent
        self._queues: dict[TopicPartition, deque[Write]] = {}
        self._producer_ids: dict[TopicPartition, int] = {}
        self._sequences: dict[TopicPartition, int] = {}

    def produce(self, step: Operation) -> Write:
        world = self.world
        tp = world.partitions[step.partition % len(world.partitions)]
        number = len(world.history.writes)
        values = tuple(f"{number}.{n}".encode().ljust(step.size, b".") for n in range(step.records))
        write = Write(number, tp, -1 if self.idempotent else step.acks, values)
        world.history.writes.append(write)
        queue = self._queues.setdefault(tp, deque())
        queue.append(write)
        if len(queue) == 1:
            self._begin(tp)
        return write

    def _begin(self, tp: TopicPartition) -> None:
        write = self._queues[tp][0]
        if self.idempotent:
            if tp not in self._producer_ids:
                self._producer_ids[tp] = self.world.new_producer_id()
                self._sequences[tp] = 0
            write.producer_id, write.sequence = self._producer_ids[tp], self._sequences[tp]
        self._attempt(write, unknown=False)

    def _attempt(self, write: Write, *, unknown: bool) -> None:
        """``unknown``: an earlier attempt may have appended."""
        leader = self.leaders.get(write.tp, -1)
        if write.attempts >= ATTEMPTS:
            self._done(write, Outcome.UNKNOWN if unknown else Outcome.FAILED)
            return
        write.attempts += 1
        if leader < 0:
            self._again(write, unknown=unknown)
            return
        batch = self.world.batch(write)
        request = ProduceRequest(
            write.acks, PRODUCE_TIMEOUT_MS, (ProducePartition(write.tp, batch),)
        )
        self.send(leader, request, partial(self._answered, write, unknown))

    def _again(self, write: Write, *, unknown: bool) -> None:
        self.later(BACKOFF_MS, lambda: self.refresh(lambda: self._attempt(write, unknown=unknown)))

    def _answered(self, write: Write, unknown: bool, response: Response | None) -> None:
        if write.outcome is not Outcome.PENDING:
            return
        if not isinstance(response, ProduceResponse):
            code, offset = ErrorCode.NETWORK_EXCEPTION, -1
        else:
            (part,) = response.partitions
            code, offset = part.error_code, part.base_offset
        self.world.counters[f"produce {code.name}"] += 1
        if code is ErrorCode.NONE:
            self._done(write, Outcome.OK, offset)
        elif code in NOT_HERE and write.acks == -1 and not unknown:
            self._again_if_idempotent(write)
        elif code in REFUSED and (not unknown or self.idempotent):
            if code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                # Its earlier batches were refused, or are lost where they may be.
                self._done(write, Outcome.UNKNOWN if unknown else Outcome.FAILED)
            else:
                self._again(write, unknown=unknown)
        else:
            self._again_if_idempotent(write)

    def _again_if_idempotent(self, write: Write) -> None:
        """It may have been appended: only who is known by its sequence may say it again."""
        if self.idempotent:
            self._again(write, unknown=True)
        else:
            self._done(write, Outcome.UNKNOWN)

    def _done(self, write: Write, outcome: Outcome, offset: int = -1) -> None:
        self.world.history.settle(write, outcome, offset)
        tp = write.tp
        where = f" at {offset}" if offset >= 0 else ""
        self.world.scheduler.note(
            f"{self.process.name} {tp} write {write.number} acks {write.acks}: "
            f"{outcome.value}{where}"
        )
        if outcome is not Outcome.OK:
            self.leaders.pop(tp, None)
        if self.idempotent:
            if outcome is Outcome.OK:
                self._sequences[tp] += len(write.values)
            else:
                self._producer_ids.pop(tp, None)  # go on under another id
        queue = self._queues[tp]
        queue.popleft()
        if queue:
            self._begin(tp)


class Consumer(Client):
    """Reads from its position; odd ones read committed transactions only."""

    def __init__(self, number: int, world: World) -> None:
        super().__init__(f"c{number}", FIRST_CLIENT - 5 - number, world)
        self.isolation = IsolationLevel(number % 2)
        self.positions: dict[TopicPartition, int] = {}

    def consume(self, tp: TopicPartition, max_bytes: int, tries: int = 2) -> None:
        leader = self.leaders.get(tp, -1)
        if leader < 0:
            if tries:
                self.refresh(lambda: self.consume(tp, max_bytes, tries - 1))
            return
        position = self.positions.get(tp, 0)
        request = FetchRequest(
            (FetchPartition(tp, position, max_bytes),), max_wait_ms=50, max_bytes=max_bytes,
            isolation_level=self.isolation,
        )  # fmt: skip

        def on_reply(response: Response | None) -> None:
            if isinstance(response, FetchResponse):
                for part in response.partitions:
                    self._take(part, position)
            else:
                self.leaders.pop(tp, None)

        self.send(leader, request, on_reply)

    def _take(self, part: FetchPartitionResponse, position: int) -> None:
        tp, code = part.tp, part.error_code
        self.world.counters[f"fetch {code.name}"] += 1
        if code is ErrorCode.OFFSET_OUT_OF_RANGE:
            self.positions[tp] = max(0, part.log_start_offset)
        elif code is not ErrorCode.NONE:
            self.leaders.pop(tp, None)
        elif part.records:
            end = part.high_watermark
            if self.isolation is IsolationLevel.READ_COMMITTED:
                end = part.last_stable_offset
            try:
                records = read_records(part.records, from_offset=position, end_offset=end)
                last = max((b.last_offset for b in iter_batches(part.records)), default=-1)
            except CorruptBatchError:
                self.world.counters["corrupt reads refused"] += 1
                return
            for record in records:
                assert record.value is not None
                self.world.history.read(tp, record.offset, bytes(record.value), self.process.name)
            self.positions[tp] = max(position, min(last + 1, end))


class Admin(Client):
    """Preferred elections and DeleteRecords."""

    def __init__(self, world: World) -> None:
        super().__init__("admin", FIRST_CLIENT - 9, world)

    def elect(self) -> None:
        def ask() -> None:
            if self.controller >= 0:
                request = ElectLeadersRequest(ElectionType.PREFERRED, None)
                self.send(self.controller, request, lambda response: None)

        self.refresh(ask)

    def delete_records(self, tp: TopicPartition, percent: int) -> None:
        def ask() -> None:
            leader = self.leaders.get(tp, -1)
            acknowledged = self.world.history.acknowledged.get(tp)
            if leader < 0 or not acknowledged:
                return
            below = max(acknowledged) * percent // 100
            request = DeleteRecordsRequest(((tp, below),), 300)
            deleted = self.world.history.deleted_below
            deleted[tp] = max(deleted.get(tp, 0), below)  # from now on they may be gone
            self.send(leader, request, self._deleted)

        self.refresh(ask)

    def _deleted(self, response: Response | None) -> None:
        if isinstance(response, DeleteRecordsResponse):
            for part in response.partitions:
                self.world.counters[f"delete-records {part.error_code.name}"] += 1


class World:
    """The clients of one schedule."""

    def __init__(
        self, plan: Plan, cluster: SimCluster, scheduler: Scheduler,
        partitions: list[TopicPartition],
    ) -> None:  # fmt: skip
        self.cluster = cluster
        self.scheduler = scheduler
        self.partitions = partitions
        self.history = History()
        self.counters: Counter[str] = cluster.counters
        self._producer_ids = 1000
        self.producers = [
            Producer(number, self, idempotent=idempotent)
            for number, idempotent in enumerate(plan.idempotent)
        ]
        self.consumers = [Consumer(number, self) for number in range(2)]
        self.admin = Admin(self)

    def new_producer_id(self) -> int:
        self._producer_ids += 1
        return self._producer_ids

    def batch(self, write: Write) -> bytes:
        records = [(None, value) for value in write.values]
        now_ms = 1_700_000_000_000 + self.scheduler.now_ms
        if write.producer_id < 0:
            return bytes(encode_batch(records, default_timestamp=now_ms))
        return bytes(
            encode_batch(
                records, default_timestamp=now_ms, producer_id=write.producer_id,
                producer_epoch=0, base_sequence=write.sequence,
            )
        )  # fmt: skip

    def schedule(self, operations: tuple[Operation, ...], start_us: int) -> None:
        for step in operations:
            process = self._process(step)
            self.scheduler.at(
                start_us + step.at_ms * US_PER_MS, process, f"{step.kind} {step.client}",
                partial(self._carry_out, step),
            )  # fmt: skip

    def _process(self, step: Operation) -> Process | None:
        if step.kind == "produce":
            return self._producer(step).process
        return None

    def _producer(self, step: Operation) -> Producer:
        return self.producers[step.client % len(self.producers)]

    def _carry_out(self, step: Operation) -> None:
        tp = self.partitions[step.partition % len(self.partitions)]
        if step.kind == "produce":
            self._producer(step).produce(step)
        elif step.kind == "consume":
            self.consumers[step.client % len(self.consumers)].consume(tp, step.size)
        elif step.kind == "elect":
            self.admin.elect()
        elif step.kind == "delete-records":
            self.admin.delete_records(tp, step.size)
        elif step.kind == "stop":
            self.cluster.stop(step.client, 20 + step.size * 10)
