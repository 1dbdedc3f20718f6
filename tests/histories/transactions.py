"""Random histories of transactions: clients, a coordinator and the leaders of partitions in one
thread, between which every message may be late, lost or overtaken, and of which each may crash.

What decides is the real thing: the coordinator's shard, the checks of the log, and real logs. What
is played are the network, the runtime and the replication: a record counts once it is appended, but
those of a coordinator that crashes may be lost while nobody was told of them.

Promised, and checked at the end when everything has come to rest:

* a batch that was acknowledged and whose transaction was committed is there, one whose transaction
  was aborted is not, and of one whose end nobody heard of all batches are there or none;
* no transaction is open in any log;
* no two producers were given the same epoch of the same id.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from checkpoints.types import TopicPartition
from logstore.common.errors import RecordRejectedError
from logstore.format.batch import encode_batch, end_transaction_marker
from logstore.format.control import ControlType
from logstore.format.header import BatchHeader, parse_header
from logstore.format.reader import batch_records, iter_batches
from logstore.segments.producer_state import AppendOrigin, TransactionCheck
from replication.common.error_codes import ErrorCode, error_code_of
from replication.common.messages import AddPartitionsToTxnRequest
from replication.coordinators.effects import MarkersWritten, WriteMarkers
from replication.coordinators.transactions.state import TransactionVersion
from replication.coordinators.transactions.transitions import Answer
from replication.protocol import messages as wire
from tests.histories.history import Run, history
from tests.support.builders import Disk
from tests.support.transactional_histories import Fate
from tests.support.transactions import V1, V2, Desk

PARTITIONS = 3
CLIENTS = 2
STEPS = 3000
TIMEOUT_MS = 20_000
NONE = ErrorCode.NONE


class Broken(AssertionError):
    """A promise does not hold."""


class DataPartition:
    """One partition and whoever leads it."""

    def __init__(self, number: int) -> None:
        self.tp = TopicPartition("t", number)
        self._disk = Disk()
        self.log = self._disk.open(clean_shutdown=True)

    def crash(self) -> None:
        """Another leader takes over: it has every record, and nothing else."""
        self.log.flush()
        self.log.crash()
        self.log = self._disk.open()

    def append(self, batch: bytes, check: TransactionCheck) -> ErrorCode:
        client = check is TransactionCheck.VERIFIED
        origin = AppendOrigin.CLIENT if client else AppendOrigin.COORDINATOR
        try:
            self.log.append_as_leader(batch, 0, origin, check)
        except RecordRejectedError as error:
            return error_code_of(error)
        return NONE

    def committed(self) -> list[bytes]:
        """What a reader of committed records gets."""
        data = self.log.read(0, 1 << 30, committed=True)
        aborted = sorted((txn.first_offset, txn.producer_id) for txn in data.aborted)
        values, hidden = [], set()
        for batch in iter_batches(data.data):
            assert isinstance(batch, BatchHeader)
            while aborted and aborted[0][0] <= batch.base_offset:
                hidden.add(aborted.pop(0)[1])
            if batch.is_control:
                hidden.discard(batch.producer_id)
            elif batch.producer_id not in hidden:
                values += [record.value or b"" for record in batch_records(data.data, batch)]
        return values


@dataclass
class Attempt:
    """One transaction of a client."""

    fate: Fate = Fate.ABORTED  # until the commit is asked for
    acknowledged: list[tuple[int, bytes]] = field(default_factory=list)
    in_doubt: list[tuple[int, bytes]] = field(default_factory=list)


class Client:
    """Sends one request at a time; when one stays without an answer it may be replaced by another
    incarnation, and what it sent may still arrive."""

    def __init__(self, world: World, name: str, version: TransactionVersion) -> None:
        self.world, self.name, self.version = world, name, version
        self.life = 0
        self.restart()

    def restart(self) -> None:
        self.life += 1
        self.turn = getattr(self, "turn", 0) + 1
        self.identity: tuple[int, int] | None = None
        self.waits = self.sends = self.bumps = False
        self.attempt: Attempt | None = None
        self.added: set[int] = set()
        self.sequences: dict[int, int] = {}

    def step(self) -> None:
        rng, number = self.world.rng, self.world.rng.randrange(PARTITIONS)
        if self.waits:
            if self.sends and rng.random() < 0.06:
                self._give_up()
        elif self.identity is None or (self.bumps and self.attempt is None):
            request = wire.InitProducerIdRequest(
                self.name, TIMEOUT_MS, *(self.identity or (-1, -1))
            )
            self._ask(request, self._initialised)
        elif self.attempt is None:
            self.attempt = Attempt()
            self.world.attempts.append(self.attempt)
            self.added = set()
        elif rng.random() < 0.25:
            self._end(commit=rng.random() < 0.6)
        elif self.version is V2 or number in self.added:
            self._send(number)
        else:
            tps = (self.world.partitions[number].tp,)
            request = AddPartitionsToTxnRequest(self.name, *self.identity, tps, verify_only=False)
            self._ask(request, partial(self._added, number))

    def _ask(self, request: Any, answered: Callable[[Answer], None]) -> None:
        self.waits = True
        self.world.to_coordinator(request, self._back(answered))

    def _back(self, answered: Callable[[Any], None]) -> Callable[[Any], None]:
        """An answer counts only while somebody waits for it."""
        turn = self.turn

        def take(answer: Any) -> None:
            if self.turn == turn:
                self.waits = self.sends = False
                answered(answer)

        return take

    def _initialised(self, answer: Answer) -> None:
        if answer.error_code is NONE:
            self.world.given(self, answer)
            self.identity = answer.producer_id, answer.producer_epoch
            self.sequences, self.bumps = {}, False
        elif answer.error_code not in RETRIABLE:
            self.restart()

    def _added(self, number: int, answer: Answer) -> None:
        if answer.error_code is NONE:
            self.added.add(number)
        elif answer.error_code not in RETRIABLE:
            self.restart()

    def _send(self, number: int) -> None:
        assert self.identity is not None
        assert self.attempt is not None
        value = b"%s/%d" % (self.name.encode(), self.world.next_value())
        sequence = self.sequences.get(number, 0)
        batch = encode_batch(
            [(None, value)],
            producer_id=self.identity[0],
            producer_epoch=self.identity[1],
            base_sequence=sequence,
            transactional=True,
        )
        self.attempt.in_doubt.append((number, value))
        self.waits = self.sends = True
        done = self._back(partial(self._sent, self.attempt, number, value))
        self.world.produce(self, number, bytes(batch), self.identity, done)

    def _give_up(self) -> None:
        """A batch is not answered: abort, and go on under the next epoch, as clients do."""
        self.turn += 1
        self.waits = self.sends = False
        self.bumps = self.version is V1
        self._end(commit=False)

    def _sent(self, attempt: Attempt, number: int, value: bytes, code: ErrorCode) -> None:
        attempt.in_doubt.remove((number, value))
        if code is NONE:
            attempt.acknowledged.append((number, value))
            self.added.add(number)
            self.sequences[number] = self.sequences.get(number, 0) + 1
        elif code not in RETRIABLE:
            self.restart()

    def _end(self, *, commit: bool) -> None:
        assert self.identity is not None
        assert self.attempt is not None
        if not self.added and (commit or self.version is V1):
            self.attempt = None  # nothing to end
            return
        if commit:
            self.attempt.fate = Fate.UNKNOWN
        request = wire.EndTxnRequest(self.name, *self.identity, commit)
        self._ask(request, partial(self._ended, self.attempt, request))

    def _ended(self, attempt: Attempt, request: wire.EndTxnRequest, answer: Answer) -> None:
        if answer.error_code in RETRIABLE:
            self._ask(request, partial(self._ended, attempt, request))
            return
        if answer.error_code is not NONE:
            self.restart()
            return
        if request.committed:
            attempt.fate = Fate.COMMITTED
        if self.version is V2:
            self.identity = answer.producer_id, answer.producer_epoch
            self.sequences = {}
        self.attempt = None


RETRIABLE = (
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
)


class World:
    """See the module. The same seed makes the same history."""

    def __init__(self, seed: int, version: TransactionVersion) -> None:
        self.rng = random.Random(seed)
        self.version = version
        self.partitions = [DataPartition(number) for number in range(PARTITIONS)]
        self.desk = self._held(Desk())
        self.epoch = 0
        self.clients = [Client(self, f"c{number}", version) for number in range(CLIENTS)]
        self.attempts: list[Attempt] = []
        self.network: list[Callable[[], None]] = []
        self.slow: list[Callable[[], None]] = []  # messages that take their time
        self._answers: dict[int, Callable[[Any], None]] = {}
        self._markers: dict[object, set[int]] = {}
        self._given: dict[tuple[int, int], tuple[str, int]] = {}
        self._values = 0

    def _held(self, desk: Desk) -> Desk:
        desk.holds_appends = desk.holds_markers = desk.holds_ids = True
        return desk.load()

    def next_value(self) -> int:
        self._values += 1
        return self._values

    def given(self, client: Client, answer: Answer) -> None:
        identity = answer.producer_id, answer.producer_epoch
        owner = client.name, client.life
        if self._given.setdefault(identity, owner) != owner:
            raise Broken(f"{identity} was given to {self._given[identity]} and to {owner}")

    # -- messages ------------------------------------------------------------------------------

    def post(self, message: Callable[[], None]) -> None:
        (self.slow if self.rng.random() < 0.04 else self.network).append(message)

    def to_coordinator(self, request: Any, answer: Callable[[Any], None]) -> None:
        def arrive() -> None:
            number = self.desk.send(request, self.version)
            self._answers[number] = answer

        self.post(arrive)

    def produce(
        self,
        client: Client,
        number: int,
        batch: bytes,
        identity: tuple[int, int],
        done: Callable[[ErrorCode], None],
    ) -> None:
        """As a leader does: ask the coordinator first where a transaction would begin."""

        def arrive() -> None:
            partition = self.partitions[number]
            log = partition.log
            try:
                verification = log.producers.begin_verification(
                    *identity, parse_header(batch).base_sequence, bumps_epoch=self.version is V2
                )
            except RecordRejectedError as error:
                self.post(partial(done, error_code_of(error)))
                return
            if verification is None:
                append()
                return
            tps, verify_only = (partition.tp,), self.version is not V2
            request = AddPartitionsToTxnRequest(client.name, *identity, tps, verify_only)

            def answered(answer: Any) -> None:
                if partition.log is not log:
                    return  # that leader is gone, and the connection with it
                code = answer.error_code if isinstance(answer, Answer) else answer[partition.tp]
                if code is NONE:
                    verification.confirmed = True
                    self.post(append_there)
                else:
                    self.post(lambda: done(code))

            self.to_coordinator(request, answered)

            def append_there() -> None:
                if partition.log is log:
                    append()

        def append() -> None:
            code = self.partitions[number].append(batch, TransactionCheck.VERIFIED)
            self.post(lambda: done(code))

        self.post(arrive)

    def _send_markers(self, effect: WriteMarkers) -> None:
        missing = {tp.partition for tp in effect.marker.partitions}
        self._markers[effect.token] = missing
        if not missing:
            self.desk.event(MarkersWritten(effect.token, NONE))
        for number in sorted(missing):
            self._send_marker(self.desk, effect, number)

    def _send_marker(self, desk: Desk, effect: WriteMarkers, number: int) -> None:
        newer = effect.marker.transaction_version >= V2
        batch = end_transaction_marker(
            ControlType.COMMIT if effect.marker.is_commit else ControlType.ABORT,
            producer_id=effect.marker.producer_id,
            producer_epoch=effect.marker.producer_epoch,
            coordinator_epoch=effect.marker.coordinator_epoch,
            timestamp=desk.now_ms,
        )
        check = TransactionCheck.NEWER_EPOCH if newer else TransactionCheck.NONE

        def arrive() -> None:
            code = self.partitions[number].append(bytes(batch), check)
            answer_is_lost = self.rng.random() < 0.2
            # Epochs of their own make it harmless that a marker comes twice, or ever so late.
            if newer and self.rng.random() < 0.3:
                self.post(arrive)
            if answer_is_lost:
                if not newer:
                    self._send_marker(desk, effect, number)
                else:
                    self.post(arrive)
                return
            self.post(lambda: answered(code))

        def answered(code: ErrorCode) -> None:
            missing = self._markers.get(effect.token)
            if self.desk is not desk or not missing:
                return
            if code is not NONE:
                missing.clear()  # a later coordinator is at work
                self.desk.event(MarkersWritten(effect.token, code))
                return
            missing.discard(number)
            if not missing:
                self.desk.event(MarkersWritten(effect.token, NONE))

        self.post(arrive)

    # -- what may happen -----------------------------------------------------------------------

    def step(self) -> None:
        rng = self.rng
        draw = rng.random()
        if draw < 0.04 and self.slow:
            self.slow.pop(rng.randrange(len(self.slow)))()
        elif draw < 0.50 and self.network:
            self.network.pop(rng.randrange(len(self.network)))()
        elif draw < 0.68 and self.desk.appends:
            refused = rng.random() < 0.03
            self.desk.append_done(ErrorCode.NOT_ENOUGH_REPLICAS if refused else NONE)
        elif draw < 0.683 and self.desk.appends:
            self.desk.append_times_out()
        elif draw < 0.71 and self.desk.allocations:
            self.desk.allocated()
        elif draw < 0.713:
            self.desk.wait(rng.choice((100, 100, 100, 100, 100, 30_000)))
        elif draw < 0.716:
            self._crash_coordinator()
        elif draw < 0.719:
            rng.choice(self.partitions).crash()
        elif draw < 0.721:
            rng.choice(self.clients).restart()
        else:
            rng.choice(self.clients).step()
        self._pass_on()

    def _pass_on(self) -> None:
        while self.desk.markers:
            self._send_markers(self.desk.markers.popleft())
        for number in [n for n in self._answers if n in self.desk.answers]:
            answer, found = self._answers.pop(number), self.desk.answers[number]
            self.post(partial(answer, found))

    def _crash_coordinator(self) -> None:
        """Of what nobody was told, the first records may have been committed."""
        for _ in range(self.rng.randint(0, len(self.desk.appends))):
            self.desk.log += self.desk.appends.popleft().records
        self.epoch += 1
        for answer in self._answers.values():  # as the runtime does for all that wait
            self.post(partial(answer, Answer(ErrorCode.NOT_COORDINATOR)))
        self._answers.clear()
        self._markers.clear()
        self.desk = self._held(self.desk.successor(self.epoch))

    def come_to_rest(self) -> None:
        """The clients are gone; all that is on its way arrives, and time-outs end the rest."""
        for client in self.clients:
            client.restart()
        for _ in range(2000):
            while self.network or self.desk.appends or self.desk.allocations or self.slow:
                self.network += self.slow
                self.slow.clear()
                if self.network:
                    self.network.pop(self.rng.randrange(len(self.network)))()
                if self.desk.appends:
                    self.desk.append_done()
                if self.desk.allocations:
                    self.desk.allocated()
                self._pass_on()
            if all(not each.state.is_prepared for each in self.desk.shard.transactions) and all(
                p.log.replica.first_unstable_offset is None for p in self.partitions
            ):
                return
            self.desk.wait(TIMEOUT_MS)
            self._pass_on()
        raise Broken("a transaction stays open for ever")

    def check(self) -> None:
        there = {(n, value) for n, p in enumerate(self.partitions) for value in p.committed()}
        lists = [(n, value) for n, p in enumerate(self.partitions) for value in p.committed()]
        if len(lists) != len(there):
            raise Broken("a batch is there twice")
        for attempt in self.attempts:
            found = [each for each in attempt.acknowledged if each in there]
            doubtful = [each for each in attempt.in_doubt if each in there]
            match attempt.fate:
                case Fate.COMMITTED if len(found) < len(attempt.acknowledged):
                    raise Broken(f"committed, and not there: {attempt}")
                case Fate.ABORTED if found or doubtful:
                    raise Broken(f"aborted, and there: {attempt}")
                case Fate.UNKNOWN if 0 < len(found) < len(attempt.acknowledged):
                    raise Broken(f"there in part: {attempt}")
        self.desk.shard.check_invariants()


@history
def run(found: Run) -> None:
    """Seeds take turns with the two versions of the protocol."""
    world = World(found.seed // 2, (V1, V2)[found.seed % 2])
    for _ in range(STEPS):
        world.step()
    world.come_to_rest()
    world.check()
    found.done.update(each.fate.name for each in world.attempts if each.acknowledged)
