"""A partition on real logs, its leaders, and a network between them and a client, which loses,
delays and repeats what the seed says."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any, TypeGuard

from checkpoints.types import TopicPartition
from logstore.common.config import LogConfig
from logstore.common.errors import LogstoreError
from logstore.common.types import Record
from logstore.format.reader import read_records
from logstore.manager import LogManager, ManagerOwner
from logstore.storage.memory import MemoryStorage
from replication.common.config import ReplicationConfig
from replication.common.error_codes import ErrorCode, error_code_of
from replication.common.messages import (
    AlterPartitionItem,
    AlterPartitionResult,
    FetchPartition,
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    LiveBroker,
    MetadataRequest,
    MetadataResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderPartitionResponse,
    PartitionChange,
    ProducePartitionResponse,
    ProduceRequest,
    ProduceResponse,
    Request,
    Response,
    TopicPartitionMetadata,
)
from replication.common.state import BrokerRegistration, PartitionRegistration
from replication.common.transport import DEFAULT_TIMEOUT_MS, OnReply
from replication.partition import Partition, PartitionContext
from tests.support.replication import ManualRuntime

TP = TopicPartition("orders", 0)
BROKERS = (1, 2, 3)
OWN = 1  # of the partition's own view: the outside sees its leader move


class _Alone:
    """For a partition without followers."""

    def eligible(self, broker_id: int, broker_epoch: int) -> bool:
        return True

    def is_alive(self, broker_id: int) -> bool:
        return True

    def broker_epoch(self, broker_id: int) -> int:
        return -1

    def submit(
        self, item: AlterPartitionItem, on_result: Callable[[AlterPartitionResult], None]
    ) -> bool:
        return True


class Topic:
    """One life of the topic's name: a real partition that always leads in the present epoch."""

    def __init__(self, topic_id: uuid.UUID, runtime: ManualRuntime, epoch: int = 0) -> None:
        self.topic_id = topic_id
        self.epoch = epoch
        self.leader = BROKERS[0]
        config = LogConfig(segment_index_bytes=1200, retention_ms=-1)
        logs = LogManager(
            ["/logs"],
            config,
            storage=MemoryStorage(),
            clock=runtime.clock,
            owner=ManagerOwner(replicated=True),
        )
        alone = _Alone()
        env = PartitionContext(
            OWN,
            logs,
            ReplicationConfig(),
            alone,
            alone,
            now_ms=runtime.now_ms,
            own_epoch=lambda: -1,
        )
        self.partition = Partition(TP, env)
        self._lead()

    def _change(self, leader: int) -> PartitionChange:
        state = PartitionRegistration((OWN,), (OWN,), leader, self.epoch, self.epoch)
        return PartitionChange(TP, state, self.topic_id)

    def _lead(self) -> None:
        self.partition.make_leader(self._change(OWN))

    @property
    def log_end(self) -> int:
        return self.partition.local_log().log_end_offset

    def move(self, leader: int, cut_to: int | None = None) -> None:
        """Another leader, whose log ends at ``cut_to``."""
        self.epoch += 1
        self.leader = leader
        if cut_to is not None and cut_to < self.log_end:
            self.partition.make_follower(self._change(OWN + 1))
            self.partition.follower.truncate_to(cut_to, self.epoch)
            self.epoch += 1
        self._lead()

    def records(self) -> list[Record]:
        log = self.partition.local_log()
        start = log.log_start_offset
        if start == self.log_end:
            return []
        return read_records(log.read(start, 1 << 30, minimum_one=True, up_to=self.log_end).data)


def is_produce(request: Request) -> TypeGuard[ProduceRequest]:
    return isinstance(request, ProduceRequest)


class Brokers:
    """The transport of a client, and all brokers behind it.

    ``rates`` are the likelihoods of what befalls a request: ``lost``, ``answer lost``, ``late``,
    ``repeated``, ``refused`` (nothing written), ``unsure`` (written, and the answer does not say
    so), ``stale`` (metadata from before).
    """

    def __init__(self, seed: int, **rates: float) -> None:
        self.random = random.Random(seed)
        self.runtime = ManualRuntime()
        self.runtime.random = random.Random(seed)
        self.rates = rates
        self.counts: dict[str, int] = {}
        self.topic = Topic(uuid.UUID(int=1), self.runtime)
        self.committed = 0  # what was acknowledged lies below
        self.next_producer_id = 4000
        self.sent: list[Request] = []
        self._earlier = self._metadata()

    def _hits(self, kind: str) -> bool:
        hit = self.random.random() < self.rates.get(kind.replace(" ", "_"), 0.0)
        if hit:
            self.counts[kind] = self.counts.get(kind, 0) + 1
        return hit

    # -- the network ---------------------------------------------------------------------------

    def send(
        self,
        broker_id: int,
        request: Request,
        on_reply: OnReply,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
    ) -> None:
        self.sent.append(request)
        later, serve = self.runtime.call_later, self._delivery(broker_id, request)
        open_ = [on_reply]

        def reply(response: Response | None) -> None:
            if open_:
                open_.pop()(response)

        later(timeout_ms, partial(reply, None))
        if self._hits("lost"):
            return
        if self._hits("late"):
            later(timeout_ms + self.random.randrange(3000), lambda: serve(lambda response: None))
            return
        if self._hits("repeated"):
            later(self.random.randrange(3000), lambda: serve(lambda response: None))

        def answer(response: Response | None) -> None:
            if not self._hits("answer lost"):
                later(self.random.randrange(5), partial(reply, response))

        later(self.random.randrange(5), lambda: serve(answer))

    def _delivery(self, broker_id: int, request: Request) -> Callable[[OnReply], None]:
        """Serves the request as it was sent: who sends must not write over its bytes."""
        was = [bytes(p.records) for p in request.partitions] if is_produce(request) else []

        def serve(reply: OnReply) -> None:
            now = [bytes(p.records) for p in request.partitions] if is_produce(request) else []
            assert now == was, "the bytes of a request changed under way"
            self.serve(broker_id, request, reply)

        return serve

    # -- the brokers ---------------------------------------------------------------------------

    def serve(self, broker_id: int, request: Request, reply: OnReply) -> None:
        match request:
            case MetadataRequest():
                stale = self._hits("stale")
                reply(self._earlier if stale else self._metadata())
            case InitProducerIdRequest():
                self.next_producer_id += 1
                reply(InitProducerIdResponse(ErrorCode.NONE, self.next_producer_id, 0))
            case ProduceRequest():
                reply(ProduceResponse((self._produce(broker_id, request),)))
            case FetchRequest():
                parts = [self._ask(broker_id, p, self._fetch, request) for p in request.partitions]
                empty = all(not p.records and p.error_code is ErrorCode.NONE for p in parts)
                wait_ms = request.max_wait_ms if empty else 0
                self.runtime.call_later(wait_ms, lambda: reply(FetchResponse(tuple(parts))))
            case ListOffsetsRequest():
                reply(
                    ListOffsetsResponse(
                        tuple(self._ask(broker_id, p, self._list) for p in request.partitions)
                    )
                )
            case OffsetForLeaderEpochRequest():
                reply(
                    OffsetForLeaderEpochResponse(
                        tuple(self._ask(broker_id, p, self._epoch) for p in request.partitions)
                    )
                )

    def _metadata(self) -> MetadataResponse:
        topic = self.topic
        part = TopicPartitionMetadata(
            TP, ErrorCode.NONE, topic.leader, topic.epoch, BROKERS, BROKERS, ()
        )
        live = tuple(LiveBroker(BrokerRegistration(n), n) for n in BROKERS)
        return MetadataResponse(live, 1, (part,), {TP.topic: topic.topic_id})

    def _produce(self, broker_id: int, request: ProduceRequest) -> ProducePartitionResponse:
        (part,) = request.partitions
        topic = self.topic
        if broker_id != topic.leader:
            hint = (topic.leader, topic.epoch) if self.random.random() < 0.5 else (-1, -1)
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            return ProducePartitionResponse(part.tp, code, current_leader=hint)
        if self._hits("refused"):
            return ProducePartitionResponse(part.tp, ErrorCode.NOT_ENOUGH_REPLICAS)
        try:
            info = topic.partition.leader.append(part.records, -1).info
        except LogstoreError as error:
            return ProducePartitionResponse(part.tp, error_code_of(error), error_message=str(error))
        if self._hits("unsure"):
            code = self.random.choice(
                [
                    ErrorCode.REQUEST_TIMED_OUT,
                    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
                    ErrorCode.NOT_LEADER_OR_FOLLOWER,
                ]
            )
            return ProducePartitionResponse(part.tp, code)
        self.committed = max(self.committed, info.last_offset + 1)
        return ProducePartitionResponse(part.tp, ErrorCode.NONE, info.first_offset)

    def _ask(self, broker_id: int, part: Any, ask: Callable[..., Any], *arguments: Any) -> Any:
        kinds: dict[type, type] = {
            FetchPartition: FetchPartitionResponse,
            ListOffsetsPartition: ListOffsetsPartitionResponse,
            OffsetForLeaderPartition: OffsetForLeaderPartitionResponse,
        }
        kind: Any = kinds[type(part)]
        if broker_id != self.topic.leader:
            return kind(part.tp, ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if part.topic_id not in (None, self.topic.topic_id):
            return kind(part.tp, ErrorCode.INCONSISTENT_TOPIC_ID)
        try:
            return ask(part, *arguments)
        except LogstoreError as error:
            return kind(part.tp, error_code_of(error))

    def _fetch(self, part: FetchPartition, request: FetchRequest) -> FetchPartitionResponse:
        found = self.topic.partition.leader.fetch(
            part,
            replica_id=-1,
            replica_epoch=-1,
            isolation=request.isolation_level,
            max_bytes=request.max_bytes,
            minimum_one=True,
        )
        return FetchPartitionResponse(
            part.tp,
            ErrorCode.NONE,
            found.high_watermark,
            found.last_stable_offset,
            found.log_start_offset,
            found.records,
            found.diverging,
            found.aborted,
        )

    def _list(self, part: ListOffsetsPartition) -> ListOffsetsPartitionResponse:
        found = self.topic.partition.leader.offset_for_timestamp(
            part.timestamp, current_leader_epoch=part.current_leader_epoch
        )
        return ListOffsetsPartitionResponse(part.tp, ErrorCode.NONE, *found)

    def _epoch(self, part: OffsetForLeaderPartition) -> OffsetForLeaderPartitionResponse:
        found = self.topic.partition.leader.end_offset_for_epoch(
            part.current_leader_epoch, part.leader_epoch
        )
        return OffsetForLeaderPartitionResponse(part.tp, ErrorCode.NONE, *found)

    # -- what happens to the cluster -----------------------------------------------------------

    def move(self, *, cut_to: int | None = None) -> None:
        """Another leader; what is committed is in its log unless ``cut_to`` says otherwise."""
        self._earlier = self._metadata()
        others = [b for b in BROKERS if b != self.topic.leader]
        self.topic.move(self.random.choice(others), cut_to)
        self.committed = min(self.committed, self.topic.log_end)

    def lose_tail(self) -> None:
        """A clean election: only what nobody was told of may be missing at the new leader."""
        self.move(cut_to=self.random.randint(self.committed, self.topic.log_end))

    def make_anew(self) -> None:
        """The topic is deleted, and another gets its name."""
        self._earlier = self._metadata()
        number = self.topic.topic_id.int + 1
        self.topic = Topic(uuid.UUID(int=number), self.runtime)
        self.committed = 0

    def write(self, *values: bytes) -> None:
        """Another producer's records, one batch each, in the present epoch."""
        from tests.support.builders import batch

        for value in values:
            self.topic.partition.leader.append(batch(value=value), -1)
        self.committed = self.topic.log_end
