"""A coordinator's shard with a test in the place of the runtime."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from itertools import count
from typing import Any

from checkpoints.types import TopicPartition
from replication.common.error_codes import ErrorCode
from replication.common.messages import AddPartitionsToTxnRequest, TxnMarker
from replication.coordinators.effects import (
    AllocateProducerId,
    Append,
    AppendDone,
    AppendTimedOut,
    ClientRequest,
    CoordinatorRecord,
    Effect,
    Event,
    MarkersWritten,
    ProducerIdAllocated,
    Reply,
    RequestReceived,
    StartTimer,
    StopTimer,
    TimerFired,
    WriteMarkers,
)
from replication.coordinators.transactions.config import TransactionConfig
from replication.coordinators.transactions.shard import Timer, TransactionShard
from replication.coordinators.transactions.state import TransactionMetadata, TransactionVersion
from replication.coordinators.transactions.transitions import Answer
from replication.protocol import messages as wire

FIRST_ID = 1000
ID = "shop"
TP = TopicPartition("orders", 0)
OTHER = TopicPartition("orders", 1)
V1, V2 = TransactionVersion.TV_0, TransactionVersion.TV_2
WIRE_VERSIONS = {V1: 3, V2: 5}  # of requests by which the shard knows the protocol


class Desk:
    """Plays the runtime of one shard: carries out its effects at once, or holds them back.

    Attributes:
        holds_appends, holds_markers, holds_ids: effects of the kind wait in a queue until
            ``append_done``, ``markers_written``, ``allocated``.
        log: the records that are committed.
    """

    def __init__(
        self,
        log: Iterable[CoordinatorRecord] = (),
        *,
        epoch: int = 0,
        ids: Iterable[int] | None = None,
        now_ms: int = 1_000_000,
        config: TransactionConfig | None = None,
    ) -> None:
        self.now_ms = now_ms
        self.config = config or TransactionConfig()
        self.holds_appends = self.holds_markers = self.holds_ids = False
        self.fails_ids = False
        self.log: list[CoordinatorRecord] = []
        self.appends: deque[Append] = deque()
        self.markers: deque[WriteMarkers] = deque()
        self.allocations: deque[AllocateProducerId] = deque()
        self.written_markers: list[TxnMarker] = []
        self.timers: dict[Hashable, int] = {}
        self.answers: dict[int, object] = {}
        self._ids = iter(count(FIRST_ID) if ids is None else ids)
        self._number = 0
        self.shard = TransactionShard(0, epoch, self.config)
        for record in log:
            self.shard.replay(*record)
            self.log.append(record)

    def load(self) -> Desk:
        self._carry_out(self.shard.on_loaded(self.now_ms))
        return self

    def successor(self, epoch: int) -> Desk:
        """The coordinator that another broker becomes: it has what is committed."""
        desk = Desk(self.log, epoch=epoch, now_ms=self.now_ms, config=self.config)
        desk._ids = self._ids
        return desk

    # -- effects -------------------------------------------------------------------------------

    def event(self, event: Event) -> None:
        self._carry_out(self.shard.on_event(event, self.now_ms))

    def _carry_out(self, effects: list[Effect]) -> None:
        self.shard.check_invariants()
        for effect in effects:
            match effect:
                case Reply(to, response):
                    assert isinstance(to, int)
                    assert to not in self.answers, f"{to} is answered twice"
                    self.answers[to] = response
                case Append():
                    self.appends.append(effect)
                case WriteMarkers():
                    self.markers.append(effect)
                case AllocateProducerId():
                    self.allocations.append(effect)
                case StartTimer(key, delay_ms):
                    self.timers[key] = self.now_ms + delay_ms
                case StopTimer(key):
                    self.timers.pop(key, None)
        while self.appends and not self.holds_appends:
            self.append_done()
        while self.markers and not self.holds_markers:
            self.markers_written()
        while self.allocations and not self.holds_ids:
            self.allocated()

    def append_done(self, code: ErrorCode = ErrorCode.NONE) -> None:
        append = self.appends.popleft()
        if code is ErrorCode.NONE:
            self.log += append.records
        self.event(AppendDone(append.token, code))

    def append_times_out(self) -> None:
        self.event(AppendTimedOut(self.appends[0].token))

    def markers_written(self, code: ErrorCode = ErrorCode.NONE) -> None:
        effect = self.markers.popleft()
        self.written_markers.append(effect.marker)
        self.event(MarkersWritten(effect.token, code))

    def allocated(self) -> None:
        effect = self.allocations.popleft()
        if self.fails_ids:
            code = ErrorCode.BROKER_NOT_AVAILABLE
            self.event(ProducerIdAllocated(effect.token, code))
        else:
            self.event(ProducerIdAllocated(effect.token, ErrorCode.NONE, next(self._ids)))

    def wait(self, ms: int) -> None:
        """Let time pass; timers that are due fire in their order."""
        until = self.now_ms + ms
        while self.timers:
            key = min(self.timers, key=lambda key: self.timers[key])
            if self.timers[key] > until:
                break
            self.now_ms = max(self.now_ms, self.timers.pop(key))
            self.event(TimerFired(key))
        self.now_ms = until

    # -- requests ------------------------------------------------------------------------------

    def send(self, message: Any, version: TransactionVersion = V1) -> int:
        """The number under which ``answers`` has the answer, perhaps later."""
        self._number += 1
        number = self._number
        self.event(RequestReceived(number, ClientRequest(message, WIRE_VERSIONS[version])))
        return number

    def ask(self, message: Any, version: TransactionVersion = V1) -> Answer:
        answer = self.answers[self.send(message, version)]
        assert isinstance(answer, Answer)
        return answer

    def init(
        self, timeout_ms: int = 60_000, producer: tuple[int, int] = (-1, -1), name: str = ID
    ) -> Answer:
        return self.ask(wire.InitProducerIdRequest(name, timeout_ms, *producer))

    def begin(self, timeout_ms: int = 60_000, name: str = ID) -> Producer:
        """A new producer under the name, which fences the one before."""
        answer = self.init(timeout_ms, name=name)
        if answer.error_code is ErrorCode.CONCURRENT_TRANSACTIONS:
            answer = self.init(timeout_ms, name=name)
        assert answer.error_code is ErrorCode.NONE, answer
        return Producer(self, answer.producer_id, answer.producer_epoch, name)

    def known(self, name: str = ID) -> TransactionMetadata:
        [found] = [each for each in self.shard.transactions if each.transactional_id == name]
        return found


class Producer:
    """One incarnation of a transactional id."""

    def __init__(self, desk: Desk, producer_id: int, epoch: int, name: str = ID) -> None:
        self.desk, self.producer_id, self.epoch, self.name = desk, producer_id, epoch, name

    @property
    def identity(self) -> tuple[int, int]:
        return self.producer_id, self.epoch

    def adds(self, *tps: TopicPartition, verify_only: bool = False) -> AddPartitionsToTxnRequest:
        return AddPartitionsToTxnRequest(self.name, *self.identity, tps or (TP,), verify_only)

    def ends(self, committed: bool) -> wire.EndTxnRequest:
        return wire.EndTxnRequest(self.name, *self.identity, committed)

    def add(self, *tps: TopicPartition, version: TransactionVersion = V1) -> ErrorCode:
        return self.desk.ask(self.adds(*tps), version).error_code

    def end(self, committed: bool = True, version: TransactionVersion = V1) -> Answer:
        return self.desk.ask(self.ends(committed), version)

    def verify(self, *tps: TopicPartition) -> list[ErrorCode]:
        answer = self.desk.answers[self.desk.send(self.adds(*tps, verify_only=True))]
        assert isinstance(answer, dict)
        return [*answer.values()]


__all__ = ["FIRST_ID", "ID", "OTHER", "TP", "V1", "V2", "Desk", "Producer", "Timer"]
