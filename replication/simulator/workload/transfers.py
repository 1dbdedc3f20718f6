"""Transactions through their coordinators: producers write to several partitions at a time, and one
copies records from one partition to others, with its offset in the transaction.

Coordinators, their shards and the markers that they send are the real ones. Clients of both
protocols are here: in the first one they add partitions themselves and keep their epoch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from checkpoints.types import TopicPartition
from logstore.format.batch import encode_batch
from replication.broker.broker import Broker
from replication.client import ConsumerConfig, ConsumerCore, PollResult
from replication.client.reactions import PRODUCE, ProduceReaction
from replication.common.error_codes import ErrorCode
from replication.common.internal_topics import GROUP_METADATA, TRANSACTION_STATE, partition_for
from replication.common.messages import (
    AddPartitionsToTxnRequest,
    IsolationLevel,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    Request,
    TopicPartitionMetadata,
    TransactionSupport,
    WriteTxnMarkersRequest,
)
from replication.common.transport import OnReply
from replication.coordinators.effects import ClientRequest
from replication.coordinators.groups.coordinator import GroupCoordinator
from replication.coordinators.transactions.config import TransactionConfig
from replication.coordinators.transactions.coordinator import TransactionCoordinator
from replication.coordinators.transactions.state import TransactionVersion
from replication.coordinators.transactions.transitions import Answer
from replication.protocol import messages as wire
from replication.protocol.partitions import by_partition
from replication.simulator.oracle.replicas import not_in_sync
from replication.simulator.oracle.transfers import (
    NO_SOURCE,
    ClientTransaction,
    CommitPhase,
    TransfersOracle,
)
from replication.simulator.oracle.validations import ReplicaContent
from replication.simulator.workload.clients import ClientWorld, SimClient
from replication.simulator.workload.groups import WHERE, GroupCall, GroupWorkload, offset_fetch
from replication.simulator.workload.shared_topic import SharedTopic
from replication.simulator.world.plan import Operation

TOPIC = "transfers"
PARTITIONS = tuple(TopicPartition(TOPIC, number) for number in range(3))
SOURCE, *TARGETS = PARTITIONS  # what is copied, and where to
GROUP = "copies"
OFFSETS = TopicPartition(GROUP_METADATA, 0)
COORDINATORS = 2  # partitions of ``__transaction_state``
WRITERS = 2
CLIENTS = WRITERS + 2  # and one that copies, and one that reads
STEP_MS = 40
AGAIN_MS = 30
POLL_MS = 50
TIMEOUT_MS = 450  # of a request
TRANSACTION_MS = 700
ABANDONED_MS = 1200  # until another process comes, if there is something to do
TRIES = 5  # without an answer, until a client aborts
COPIED_AT_ONCE = 3
STATE_CONFIG = {"cleanup.policy": "compact", "segment.bytes": "5000"}
CONFIG = TransactionConfig(abort_interval_ms=150)
V1, V2 = TransactionVersion.TV_0, TransactionVersion.TV_2
WIRE_VERSIONS = {V1: 3, V2: 5}  # of requests by which coordinators know the protocol
SUPPORT = {V1: TransactionSupport.DEFAULT_ERROR, V2: TransactionSupport.ADD_PARTITION}
LAST = Operation(0, "write-transaction", partition=7)
CLOCKS_MOVE = ("clock-jump", "clock-drift")

Resume: TypeAlias = Callable[[Any], None]
Action: TypeAlias = Callable[[Resume], None]
"""Begins something, and has the answer taken once."""

PASSING = (
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.UNSTABLE_OFFSET_COMMIT,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
)
"""A client asks again. So it does without an answer."""
FENCED = (
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
)
ABORTING = (*FENCED, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_TXN_STATE)
"""What may be said to a producer whose transaction was aborted by its time-out."""


TransactionRequest: TypeAlias = (
    wire.InitProducerIdRequest | AddPartitionsToTxnRequest | wire.EndTxnRequest
)


class TransactionCall(NamedTuple):
    request: TransactionRequest
    version: TransactionVersion


class OffsetsCall(NamedTuple):
    """TxnOffsetCommit."""

    request: wire.TxnOffsetCommitRequest
    version: TransactionVersion


def must_be_in_time(request: Request) -> bool:
    """Whether it may not be carried out after its sender has given up.

    All transactions of a producer have one epoch in the first protocol. So what comes late could
    end the next transaction, or commit an older offset in it. The second protocol excludes that.
    """
    asked: Any = request
    match asked:
        case TransactionCall() | OffsetsCall():
            return asked.version is V1
        case WriteTxnMarkersRequest():
            return any(marker.transaction_version < V2 for marker in asked.markers)
        case _:
            return False


def run_script(script: Generator[Action, Any, None]) -> None:
    """Carry out one action after the other; each gets the answer of the one before."""

    def resume(answer: Any = None) -> None:
        try:
            action = script.send(answer)
        except StopIteration:
            return
        action(resume)

    resume()


class Incarnation:
    """One process under a transactional id. It ends when it is fenced; one that has been replaced
    goes on until then."""

    def __init__(self, owner: TransactionalId, life: int) -> None:
        self._owner, self._life = owner, life
        self._client, self._version = owner.client, owner.version
        self._transfers, self._oracle = owner.transfers, owner.transfers.oracle
        self._is_over = False
        self._identity = (-1, -1)
        self._added: set[TopicPartition] = set()  # to the present transaction
        self._sequences: dict[TopicPartition, int] = {}
        self._in_doubt = False  # something was sent and not answered: the epoch is to be raised
        self._consumer: ConsumerCore | None = None  # at the committed offset
        self._calls = 0

    def live(self) -> Generator[Action, Any, None]:
        yield from self._initialise()
        queue = self._owner.queue
        while not self._is_over:
            if queue:
                step = queue.popleft()
                self._owner.at_work += 1
                if step.kind == "copy-transaction":
                    done = yield from self._copy(abort=step.size % 5 == 0)
                else:
                    done = yield from self._write_transaction(step)
                self._owner.at_work -= 1
                if not done and step is LAST:
                    queue.append(step)
            elif self._owner.current is not self:
                return
            yield self._pause(STEP_MS)
        if self._owner.is_abandoned:
            yield self._pause(ABANDONED_MS)
        if self._owner.current is self and (self._owner.queue or not self._owner.is_abandoned):
            self._owner.begin()

    def _pause(self, delay_ms: float) -> Action:
        def action(resume: Resume) -> None:
            self._client.runtime.call_later(delay_ms, partial(resume, None))

        return action

    def _refresh(self) -> Action:
        return lambda resume: self._client.metadata.refresh(resume)

    def _ask(self, tp: TopicPartition, request: Any) -> Generator[Action, Any, Any]:
        """Ask the leader of a partition once; None without an answer."""
        leader = self._client.metadata.leader(tp)
        if not isinstance(leader, TopicPartitionMetadata):
            return None
        broker = leader.leader_id
        answer = yield lambda resume: self._client.transport.send(
            broker, request, resume, TIMEOUT_MS
        )
        return answer

    def _coordinate(self, request: TransactionRequest) -> Generator[Action, Any, Answer]:
        """Ask the coordinator until it answers; a client that is fenced ends."""
        tp = self._owner.coordinated_in
        call = TransactionCall(request, self._version)
        while True:
            found = yield from self._ask(tp, call)
            answer = Answer(found) if isinstance(found, ErrorCode) else found
            if isinstance(answer, Answer) and answer.error_code not in PASSING:
                break
            yield self._refresh()
            yield self._pause(AGAIN_MS)
        code = answer.error_code
        self._transfers.note(f"{self._owner.name} {request} {answer}")
        # So says the second protocol after a time-out, and a coordinator that does not know yet
        # that it is deposed. The process ends, and the next one asks the present coordinator.
        too_late = code is ErrorCode.INVALID_TXN_STATE and isinstance(request, wire.EndTxnRequest)
        if code in FENCED or too_late:
            self._transfers.count("transactional producers fenced")
            self._is_over = True
        elif code is not ErrorCode.NONE:
            self._transfers.found(f"W-151 {request} is answered with {code.name}")
        return answer

    # -- one transaction -----------------------------------------------------------------------

    def _initialise(self) -> Generator[Action, Any, None]:
        request = wire.InitProducerIdRequest(self._owner.name, TRANSACTION_MS, *self._identity)
        answer = yield from self._coordinate(request)
        if answer.error_code is ErrorCode.NONE:
            self._take_identity(answer)

    def _take_identity(self, answer: Answer) -> None:
        if answer.producer_id != self._identity[0] >= 0:
            self._transfers.count("producer ids used up")
        self._identity = answer.producer_id, answer.producer_epoch
        self._oracle.given(self._identity, self._owner.name, self._life)
        self._sequences, self._in_doubt = {}, False

    def _begin(self) -> Generator[Action, Any, ClientTransaction]:
        if self._in_doubt and self._version is V1:
            yield from self._initialise()
        self._added.clear()
        return self._oracle.begin(self._owner.name, self._identity)

    def _write_transaction(self, step: Operation) -> Generator[Action, Any, bool]:
        """True if it is committed."""
        transaction = yield from self._begin()
        ok = not self._is_over
        for _ in range(step.records):
            for tp in PARTITIONS:
                if ok and step.partition >> tp.partition & 1:
                    ok = yield from self._write(transaction, tp, NO_SOURCE)
        if step.size % 10 == 0 and step is not LAST:
            self._abandon(transaction, commit=ok and step.size % 20 == 0)
            return False
        ok = yield from self._end(transaction, commit=ok and step.size % 10 < 8)
        return ok

    def _abandon(self, transaction: ClientTransaction, *, commit: bool) -> None:
        """The process ends without a word, or after it has asked for the commit."""
        self._transfers.count("transactions abandoned")
        self._is_over = True
        if self._owner.current is self:
            self._owner.is_abandoned = True
        if commit:
            transaction.phase = CommitPhase.ASKED
            request = wire.EndTxnRequest(self._owner.name, *self._identity, True)
            run_script(self._ask_once(request))

    def _ask_once(self, request: wire.EndTxnRequest) -> Generator[Action, Any, None]:
        call = TransactionCall(request, self._version)
        yield from self._ask(self._owner.coordinated_in, call)

    def _write(
        self, transaction: ClientTransaction, tp: TopicPartition, source: int
    ) -> Generator[Action, Any, bool]:
        """True once a batch is acknowledged."""
        if not (yield from self._add(tp)):
            return False
        value = transaction.write(tp, source)
        batch = encode_batch(
            [(None, value)],
            default_timestamp=self._client.runtime.clock.wall_ms(),
            producer_id=self._identity[0],
            producer_epoch=self._identity[1],
            base_sequence=self._sequences.get(tp, 0),
            transactional=True,
        )
        request = ProduceRequest(
            -1,
            TIMEOUT_MS,
            (ProducePartition(tp, bytes(batch)),),
            self._owner.name,
            SUPPORT[self._version],
        )
        for _ in range(TRIES):
            response = yield from self._ask(tp, request)
            code = None
            if isinstance(response, ProduceResponse):
                code = response.partitions[0].error_code
                if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
                    self._sequences[tp] = self._sequences.get(tp, 0) + 1
                    return True
            if code is not None and not _is_passing(code):
                if code not in ABORTING:
                    self._transfers.found(f"W-153 {value!r} is answered with {code.name}")
                break
            yield self._refresh()
            yield self._pause(AGAIN_MS)
        self._in_doubt = True
        return False

    def _add(self, tp: TopicPartition) -> Generator[Action, Any, bool]:
        """Have a partition in the transaction; in the second protocol its leader adds it."""
        if self._version is V1 and tp not in self._added:
            request = AddPartitionsToTxnRequest(
                self._owner.name, *self._identity, (tp,), verify_only=False
            )
            answer = yield from self._coordinate(request)
            if answer.error_code is not ErrorCode.NONE:
                return False
        self._added.add(tp)
        return True

    def _end(self, transaction: ClientTransaction, *, commit: bool) -> Generator[Action, Any, bool]:
        """True if it is committed."""
        if self._is_over or not self._added:
            return False
        if commit:
            transaction.phase = CommitPhase.ASKED
        request = wire.EndTxnRequest(self._owner.name, *self._identity, commit)
        answer = yield from self._coordinate(request)
        if answer.error_code is not ErrorCode.NONE:
            return False
        if self._version is V2:
            self._take_identity(answer)
        if commit:
            transaction.phase = CommitPhase.ANSWERED
        return commit

    # -- copies --------------------------------------------------------------------------------

    def _copy(self, *, abort: bool) -> Generator[Action, Any, bool]:
        """Copy the next records, and commit the offset behind them; True if there were some."""
        consumer = self._consumer
        if consumer is None:
            offset = yield from self._committed_offset()
            config = ConsumerConfig(isolation=IsolationLevel.READ_COMMITTED, max_bytes=200)
            client = self._client
            consumer = ConsumerCore(
                client.runtime, client.transport, client.metadata, [SOURCE], config
            )
            consumer.seek(SOURCE, offset)
            self._consumer = consumer
        result: PollResult = yield partial(consumer.poll, POLL_MS)
        records = [record for _, record in result.records][:COPIED_AT_ONCE]
        if not records:
            self._owner.copied_to = consumer.positions[SOURCE].offset or 0
            self._owner.committed_offset = yield from self._committed_offset()
            return False
        self._consumer = None  # what is not committed is read again
        transaction = yield from self._begin()
        ok = not self._is_over
        for record in records:
            assert record.value is not None
            self._oracle.check_committed(SOURCE, record.offset, bytes(record.value))
            target = TARGETS[record.offset % len(TARGETS)]
            ok = ok and (yield from self._write(transaction, target, record.offset))
        position = records[-1].offset + 1
        ok = ok and (yield from self._commit_offset(position))
        if (yield from self._end(transaction, commit=ok and not abort)):
            self._transfers.count("transactions that copy")
            consumer.seek(SOURCE, position)
            self._consumer = consumer
        return True

    def _committed_offset(self) -> Generator[Action, Any, int]:
        """Read the group's offset; a transaction that may change it ends first."""
        while True:
            self._calls += 1
            request = offset_fetch(GROUP, (SOURCE,), require_stable=True)
            call = GroupCall((self._client.process.node, self._life), self._calls, request, GROUP)
            result = yield from self._ask(WHERE, call)
            if isinstance(result, wire.OffsetFetchResponse.OffsetFetchResponseGroup):
                ((_, found),) = by_partition(result.topics)
                if not found.error_code:
                    return max(0, int(found.committed_offset))
            yield self._refresh()
            yield self._pause(AGAIN_MS)

    def _commit_offset(self, offset: int) -> Generator[Action, Any, bool]:
        if not (yield from self._add(OFFSETS)):
            return False
        kind = wire.TxnOffsetCommitRequest
        part = kind.TxnOffsetCommitRequestPartition(SOURCE.partition, offset, -1, "")
        topics = (kind.TxnOffsetCommitRequestTopic(SOURCE.topic, (part,)),)
        request = kind(self._owner.name, GROUP, *self._identity, topics=topics)
        for _ in range(TRIES):
            result = yield from self._ask(WHERE, OffsetsCall(request, self._version))
            code = result[SOURCE] if isinstance(result, dict) else result
            if code is ErrorCode.NONE:
                return True
            self._in_doubt = True  # a copy of it may come in the next transaction
            if code is not None and code not in PASSING:
                if code not in ABORTING:
                    self._transfers.found(f"W-158 offset {offset} is answered with {code.name}")
                break
            yield self._refresh()
            yield self._pause(AGAIN_MS)
        return False


def _is_passing(code: ErrorCode) -> bool:
    again = (ProduceReaction.REFUSED, ProduceReaction.UNKNOWN)
    return code is ErrorCode.CONCURRENT_TRANSACTIONS or PRODUCE[code] in again


class TransactionalId:
    """A transactional id, and what its processes are to do.

    Attributes:
        current: the latest process.
        at_work: how many processes have a transaction under way.
        is_abandoned: the latest process has ended in a transaction, and nobody follows it yet.
        copied_to: where the source ended when there was nothing to copy.
        committed_offset: of the group then.
    """

    def __init__(
        self, transfers: Transfers, client: SimClient, name: str, version: TransactionVersion
    ) -> None:
        self.transfers, self.client, self.name, self.version = transfers, client, name, version
        self.coordinated_in = TopicPartition(TRANSACTION_STATE, partition_for(name, COORDINATORS))
        self.queue: deque[Operation] = deque()
        self.current: Incarnation | None = None
        self.at_work = 0
        self.is_abandoned = False
        self.copied_to = self.committed_offset = 0
        self._lives = 0

    def want(self, step: Operation) -> None:
        self.queue.append(step)
        if self.current is None or self.is_abandoned:
            self.begin()

    def begin(self) -> None:
        """Another process begins; it fences the one before."""
        self._lives += 1
        self.is_abandoned = False
        self.current = Incarnation(self, self._lives)
        run_script(self.current.live())


class Transfers:
    """The clients, and the coordinators of all brokers.

    Args:
        clients: their nodes in the network.
    """

    def __init__(self, world: ClientWorld, groups: GroupWorkload, clients: list[SimClient]) -> None:
        self._world = world
        self.oracle = TransfersOracle(SOURCE, self.found)
        versions = (V1, V2) if world.cluster.plan.seed % 2 else (V2, V1)
        *actors, reader = clients
        self._ids = [
            TransactionalId(self, client, f"w{number}", versions[number % 2])
            for number, client in enumerate(actors)
        ]
        self._copier = self._ids[-1]
        self._reader = reader
        self._positions: ConsumerCore | None = None
        self.topics = [
            SharedTopic(world, TOPIC, {}, len(PARTITIONS)),
            SharedTopic(world, TRANSACTION_STATE, STATE_CONFIG, COORDINATORS),
            groups.topic,
        ]
        self._stage = 0

    def attach(self, broker: Broker, groups: GroupCoordinator) -> None:
        """Coordinate transactions on a broker that is about to start."""
        coordinator = TransactionCoordinator(broker, CONFIG)
        coordinator.startup()

        def coordinate(call: TransactionCall, reply: OnReply) -> None:
            answer: Any = reply
            name = call.request.transactional_id or ""
            request = ClientRequest(call.request, WIRE_VERSIONS[call.version])
            coordinator.request(name, request, answer)

        def commit(call: OffsetsCall, reply: OnReply) -> None:
            answer: Any = reply
            support = SUPPORT[call.version]
            groups.commit_in_transaction(call.request, support, answer)

        broker.serve(TransactionCall, coordinate)
        broker.serve(OffsetsCall, commit)

    def count(self, what: str) -> None:
        self._world.counters[what] += 1

    def note(self, line: str) -> None:
        self._world.scheduler.note(line)

    def found(self, violation: str) -> None:
        self._world.history.violations.append(violation)

    # -- load ----------------------------------------------------------------------------------

    def carry_out(self, step: Operation) -> None:
        """The first operation creates the topics."""
        if not self.topics[0].wanted:
            for topic in self.topics:
                topic.want()
            client = self._reader
            self._positions = ConsumerCore(
                client.runtime,
                client.transport,
                client.metadata,
                PARTITIONS,
                ConsumerConfig(isolation=IsolationLevel.READ_COMMITTED, max_bytes=400),
            )
            self._read(PollResult([]))
        if step.kind == "replace-producer":
            self._ids[step.client % len(self._ids)].begin()
        elif step.kind == "copy-transaction":
            self._copier.want(step)
        else:
            self._ids[step.client % WRITERS].want(step)

    def _read(self, result: PollResult) -> None:
        for tp, record in result.records:
            assert record.value is not None
            self.count("committed records read")
            self.oracle.saw(tp, record.offset, bytes(record.value))
        assert self._positions is not None
        poll = partial(self._positions.poll, POLL_MS, self._read)
        self._reader.runtime.call_later(STEP_MS, poll)

    # -- the end -------------------------------------------------------------------------------

    def pending_reason(self) -> str:
        """Say why the transfers are not done. In the end each id commits once more, and all is
        copied and read."""
        if not self.topics[0].wanted:
            return ""
        missing = self._not_in_sync() or self._at_work()
        if missing:
            return missing
        if self._stage == 0:
            # What is abandoned ends by its time-out, unless nobody knows how late it is.
            if not any(self._world.cluster.struck[kind] for kind in CLOCKS_MOVE):
                missing = self._open()
                if missing:
                    return missing
            self._stage = 1
            for each in self._ids[:WRITERS]:
                each.want(LAST)
            return "last transactions"
        missing = self._open()
        if missing:
            return missing
        ends = {tp: self._leader_log(tp).high_watermark for tp in PARTITIONS}
        if self._copier.copied_to < ends[SOURCE]:
            self._copier.want(Operation(0, "copy-transaction", size=1))
            return f"copied up to {self._copier.copied_to} of {ends[SOURCE]}"
        assert self._positions is not None
        for tp, end in ends.items():
            offset = self._positions.positions[tp].offset or 0
            if offset < end:
                return f"{tp} is read up to {offset} of {end}"
        return ""

    def _not_in_sync(self) -> str:
        for each in self.topics:
            topic = self._world.controllers_topic(each.name)
            if not each.exists or topic is None:
                return f"{each.name} is not made"
            missing = not_in_sync(self._world.cluster, topic.topic_id, topic.replicas)
            if missing:
                return missing
        return ""

    def _at_work(self) -> str:
        names = [each.name for each in self._ids if each.at_work or each.queue]
        return f"transactions of {names} are under way" if names else ""

    def _leader_log(self, tp: TopicPartition) -> Any:
        for machine in self._world.cluster.machines.values():
            assert machine.broker is not None
            partition = machine.broker.replica_manager.partitions.get(tp)
            if partition is not None and partition.is_leader:
                return partition.log
        raise AssertionError(f"{tp} has no leader")

    def _open(self) -> str:
        for tp in (*PARTITIONS, OFFSETS):
            first = self._leader_log(tp).replica.first_unstable_offset
            if first is not None:
                return f"{tp}: a transaction is open from {first} on"
        return ""

    def violations(self) -> list[str]:
        """Compare what the logs say, once everything is at rest."""
        if not self.topics[0].wanted:
            return []
        for name, count in self.oracle.counts():
            self._world.counters[name] += count
        contents = {}
        for tp in PARTITIONS:
            replicas = [
                ReplicaContent(machine, tp)
                for machine in self._world.cluster.machines.values()
                if machine.broker is not None and tp in machine.broker.replica_manager.partitions
            ]
            if len({content.data for content in replicas}) > 1:
                self.found(f"I-22 {tp}: replicas differ")
            contents[tp] = replicas[0]
        self.oracle.validate(contents, self._copier.committed_offset)
        return self._world.history.violations
