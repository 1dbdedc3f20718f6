"""A leader and a follower of real partitions, and between them a wire worked by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from checkpoints.types import TopicPartition
from logstore.common.config import LogConfig
from logstore.common.errors import LogstoreError
from logstore.log import PartitionLog
from logstore.manager import LogManager, ManagerOwner
from logstore.storage.memory import MemoryStorage
from logstore.testing import ManualClock
from replication.common.config import ReplicationConfig
from replication.common.error_codes import error_code_of
from replication.common.errors import UnknownPartitionError
from replication.common.messages import (
    AlterPartitionItem,
    AlterPartitionResult,
    FetchPartition,
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderPartitionResponse,
    PartitionChange,
    Request,
    Response,
)
from replication.common.quota import ReplicationQuota
from replication.common.state import PartitionRegistration
from replication.decisions.truncation import FETCH_RULE, TruncationRule
from replication.fetcher.fetch_failures import FetcherContext
from replication.fetcher.fetcher_manager import FetcherManager
from replication.fetcher.fetcher_state import FetchState, InitialFetchState
from replication.partition import Partition, PartitionContext
from tests.support.builders import batch
from tests.support.replication import ManualRuntime, RecordingTransport

TP = TopicPartition("orders", 0)
LEADER, FOLLOWER = 1, 2
KIP_320_RULE = TruncationRule("kip-320", asks_leader=True, fences=True, on_fetch=False)
"""Kafka 2.1 to 2.6: fenced, but truncating by request (P3 of the scenarios)."""


class _Cluster:
    """Everybody is alive; nobody's ISR changes."""

    def eligible(self, broker_id: int, broker_epoch: int) -> bool:
        return True

    def is_alive(self, broker_id: int) -> bool:
        return True

    def broker_epoch(self, broker_id: int) -> int:
        return 100 + broker_id

    def submit(
        self, item: AlterPartitionItem, on_result: Callable[[AlterPartitionResult], None]
    ) -> bool:
        return True


class Replica:
    """The partitions of one broker, on a disk in memory."""

    def __init__(self, broker_id: int, clock: ManualClock) -> None:
        self.broker_id = broker_id
        self.storage = MemoryStorage()
        config = LogConfig(segment_index_bytes=256, retention_ms=-1)
        self.logs = LogManager(
            ["/logs"],
            config,
            storage=self.storage,
            clock=clock,
            owner=ManagerOwner(replicated=True),
        )
        cluster = _Cluster()
        self._env = PartitionContext(
            broker_id,
            self.logs,
            ReplicationConfig(),
            cluster,
            cluster,
            now_ms=lambda: clock.monotonic_ns() // 1_000_000,
            own_epoch=lambda: 100 + broker_id,
        )
        self.partitions: dict[TopicPartition, Partition] = {}

    def partition(self, tp: TopicPartition = TP) -> Partition:
        if tp not in self.partitions:
            raise UnknownPartitionError(str(tp))
        return self.partitions[tp]

    def log(self, tp: TopicPartition = TP) -> PartitionLog:
        return self.partition(tp).local_log()

    def become(self, leader: int, epoch: int, tp: TopicPartition = TP) -> Partition:
        partition = self.partitions.setdefault(tp, Partition(tp, self._env))
        brokers = (LEADER, FOLLOWER)
        registration = PartitionRegistration(brokers, brokers, leader, epoch, epoch)
        change = PartitionChange(tp, registration)
        leads = leader == self.broker_id
        partition.make_leader(change) if leads else partition.make_follower(change)
        return partition

    def write(self, *runs: tuple[int, int], tp: TopicPartition = TP, size: int = 1) -> None:
        """``(records, epoch)`` in batches of ``size`` records, as copied from some leader."""
        log = self.log(tp)
        for count, epoch in runs:
            for _ in range(0, count, size):
                offset = log.log_end_offset
                value = b"%d@%d" % (offset, epoch)
                log.replica.append_as_follower(batch(offset, size, epoch=epoch, value=value))

    # -- as a leader -----------------------------------------------------------------------------

    def answer(self, request: Request) -> Response:
        if isinstance(request, FetchRequest):
            left, parts = request.max_bytes, []
            for part in request.partitions:
                answer = self._guard(part, FetchPartitionResponse, self._fetch, request, left)
                left = max(0, left - len(answer.records))
                parts.append(answer)
            return FetchResponse(tuple(parts))
        if isinstance(request, OffsetForLeaderEpochRequest):
            return OffsetForLeaderEpochResponse(
                tuple(
                    self._guard(p, OffsetForLeaderPartitionResponse, self._epoch)
                    for p in request.partitions
                )
            )
        assert isinstance(request, ListOffsetsRequest)
        return ListOffsetsResponse(
            tuple(
                self._guard(p, ListOffsetsPartitionResponse, self._offset, request)
                for p in request.partitions
            )
        )

    def _guard(self, part: Any, kind: Any, call: Callable[..., Any], *args: Any) -> Any:
        try:
            return call(part, *args)
        except LogstoreError as error:
            return kind(part.tp, error_code_of(error))

    def _fetch(
        self, part: FetchPartition, request: FetchRequest, left: int
    ) -> FetchPartitionResponse:
        read = self.partition(part.tp).leader.fetch(
            part,
            replica_id=request.replica_id,
            replica_epoch=request.replica_epoch,
            isolation=request.isolation_level,
            max_bytes=left,
            minimum_one=left == request.max_bytes,
        )
        return FetchPartitionResponse(
            part.tp,
            high_watermark=read.high_watermark,
            records=read.records,
            last_stable_offset=read.last_stable_offset,
            log_start_offset=read.log_start_offset,
            diverging_epoch=read.diverging,
        )

    def _epoch(self, part: OffsetForLeaderPartition) -> OffsetForLeaderPartitionResponse:
        partition = self.partition(part.tp)
        found = partition.leader.end_offset_for_epoch(part.current_leader_epoch, part.leader_epoch)
        return OffsetForLeaderPartitionResponse(
            part.tp, leader_epoch=found.epoch, end_offset=found.end_offset
        )

    def _offset(
        self, part: ListOffsetsPartition, request: ListOffsetsRequest
    ) -> ListOffsetsPartitionResponse:
        found = self.partition(part.tp).leader.offset_for_timestamp(
            part.timestamp,
            current_leader_epoch=part.current_leader_epoch,
            replica_id=request.replica_id,
        )
        return ListOffsetsPartitionResponse(part.tp, offset=found[1], leader_epoch=found[2])


class Stage:
    """Broker 2 follows broker 1; no request gets further than the test lets it."""

    def __init__(
        self, rule: TruncationRule = FETCH_RULE, *, rate: int | None = None, **config: Any
    ) -> None:
        self.clock = ManualClock()
        self.runtime = ManualRuntime(self.clock)
        self.wire = RecordingTransport()
        self.leader, self.follower = Replica(LEADER, self.clock), Replica(FOLLOWER, self.clock)
        self.rule = rule
        self.moved: list[TopicPartition] = []
        self.quota = None if rate is None else ReplicationQuota(rate, self.runtime.now_ms)
        self.env = FetcherContext(
            FOLLOWER,
            self.runtime,
            self.wire,
            replace(ReplicationConfig(), **config),
            rule,
            partition_of=self.follower.partition,
            broker_epoch=lambda: 100 + FOLLOWER,
            on_high_watermarks=self.moved.extend,
            finish_changes=self.follower.logs.housekeeper.checkpoint_truncations,
            quota=self.quota,
        )
        self.manager = FetcherManager(self.env)

    # -- roles -----------------------------------------------------------------------------------

    def lead(self, epoch: int, *runs: tuple[int, int], tp: TopicPartition = TP) -> None:
        """Broker 1 leads ``epoch``, with these records from earlier ones (``Replica.write``)."""
        if runs:
            self.leader.become(FOLLOWER, 0, tp)
            self.leader.write(*runs, tp=tp)
        self.leader.become(LEADER, epoch, tp)

    def produce(self, count: int = 1, tp: TopicPartition = TP) -> None:
        for _ in range(count):
            end = self.leader.log(tp).log_end_offset
            self.leader.partition(tp).leader.append(batch(value=b"%d" % end), 1)

    def hold(self, *runs: tuple[int, int], tp: TopicPartition = TP, hw: int = 0) -> None:
        """Broker 2 has these records from earlier leaderships; it does not fetch so far."""
        self.follower.become(LEADER, 0, tp)
        self.follower.write(*runs, tp=tp)
        self.follower.log(tp).replica.update_high_watermark(hw)

    def follow(self, epoch: int, *tps: TopicPartition) -> None:
        """Broker 2 learns of broker 1's leadership, as the replica manager does it."""
        tps = tps or (TP,)
        states = {}
        for tp in tps:
            partition = self.follower.become(LEADER, epoch, tp)
            offset = self.rule.initial_offset(
                partition.latest_epoch, partition.high_watermark, partition.log_end_offset
            )
            states[tp] = (LEADER, InitialFetchState(None, epoch, offset))
        self.manager.add_fetchers(states)

    # -- the wire --------------------------------------------------------------------------------

    def request(self) -> Request:
        """What the follower sends next."""
        self.runtime.run_until_idle()
        return self.wire.sent[0].request

    def fetch_request(self) -> FetchRequest:
        request = self.request()
        assert isinstance(request, FetchRequest), request
        return request

    def is_idle(self) -> bool:
        self.runtime.run_until_idle()
        return not self.wire.sent

    def reply(self, response: Response | None) -> None:
        self.request()
        self.wire.reply(response)
        self.runtime.run_until_idle()

    def exchange(self) -> tuple[Request, Response]:
        """One request reaches the leader, its answer the follower."""
        request = self.request()
        response = self.leader.answer(request)
        self.reply(response)
        return request, response

    def settle(self, limit: int = 100) -> list[tuple[Request, Response]]:
        """Exchange until nothing is new any more."""
        done: list[tuple[Request, Response]] = []
        for _ in range(limit):
            if self.is_idle():
                return done
            done.append(self.exchange())
            if len(done) > 1 and done[-1] == done[-2]:
                return done
        raise AssertionError(f"not settled after {limit} exchanges: {done[-2:]}")

    # -- what came of it -------------------------------------------------------------------------

    def state(self, tp: TopicPartition = TP) -> FetchState:
        for fetcher in self.manager.fetchers:
            for state in fetcher._states:
                if state.tp == tp:
                    return state
        raise AssertionError(f"{tp} is not followed")

    @property
    def end(self) -> int:
        return self.follower.partition().log_end_offset

    @property
    def hw(self) -> int:
        return self.follower.partition().high_watermark

    def assert_equal_logs(self, tps: Iterable[TopicPartition] = (TP,)) -> None:
        """Byte for byte, epochs included."""
        for tp in tps:
            ours, theirs = self.follower.log(tp), self.leader.log(tp)
            start = max(ours.log_start_offset, theirs.log_start_offset)
            assert contents(ours, start) == contents(theirs, start)
            assert ours.log_end_offset == theirs.log_end_offset
            written = [e for e in theirs.epochs.entries if e[1] < theirs.log_end_offset]
            assert (
                list(ours.epochs.entries) == written
            )  # of an epoch without records we know nothing


def contents(log: PartitionLog, start: int) -> bytes:
    return bytes(log.read(start, max_bytes=1 << 20).data)


def fetched(tp: TopicPartition = TP, **fields: Any) -> FetchResponse:
    return FetchResponse((FetchPartitionResponse(tp, **fields),))
