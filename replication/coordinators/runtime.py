"""The coordinator of one internal topic on one broker: it owns the shards of the partitions that
this broker leads, and carries out what they ask for (Kafka's ``CoordinatorRuntime``).

A shard lives as long as one leadership. At its beginning the log is replayed, once all of it is
committed, so that nothing is ever answered that a later leader might not know. Every append names
the leader epoch of its shard; so a shard that does not know yet that it is over can write nothing.

All calls of shards are made in the turns of one actor, one after the other. Logs are read on an
actor of its own, because that waits for the disk.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import Final

from checkpoints.loggers import get_logger
from checkpoints.types import TopicPartition
from logstore.common.errors import (
    CorruptBatchError,
    CorruptDataError,
    LogstoreError,
    OffsetOutOfRangeError,
)
from logstore.common.types import NO_SEQUENCE, Buffer
from logstore.format.batch import encode_batch, end_transaction_marker
from logstore.format.control import ControlType, parse_marker
from logstore.format.header import BatchHeader
from logstore.format.reader import Batch, batch_records, iter_batches
from logstore.segments.producer_state import AppendOrigin, TransactionCheck
from replication.common.error_codes import ErrorCode, error_code_of
from replication.common.limited_log import LimitedLogger
from replication.common.messages import (
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    TxnMarker,
)
from replication.common.runtime import Cancellable, Runtime, Task
from replication.coordinators.effects import (
    NO_PRODUCER_ID,
    AllocateProducerId,
    Append,
    AppendDone,
    AppendTimedOut,
    Effect,
    Event,
    MarkerWritten,
    Outward,
    Reply,
    RequestReceived,
    ReserveProducerIds,
    Shard,
    ShardFactory,
    StartTimer,
    StopTimer,
    TimerFired,
    WriteMarkers,
)
from replication.partition import Leadership
from replication.replica_manager.replica_manager import ReplicaManager

logger = get_logger(__name__)

LOAD_BYTES = 5 << 20  # read at once, Kafka's offsets.load.buffer.size
LOAD_WAIT_MS = 5000  # for the commit of what was found, before the question is put again
LOAD_AGAIN_MS = 1000  # after a log that could not be read
WRITE_TIMEOUT_MS = 5000  # Kafka's offsets.commit.timeout.ms
FOREVER_MS = 2**31 - 1
TURN_TASKS = 64  # on a thread that only visits

OnAnswer = Callable[[object], None]
"""Takes the response, or an ``ErrorCode`` where this broker does not serve the partition now."""

Deliver = Callable[[Event], None]
"""Takes the end of an effect, on any thread; one that is too late goes nowhere."""

CarryOut = Callable[[Outward, Deliver, Callable[[], bool]], None]
"""Begins an effect that the runtime leaves to others. Its end goes to the second argument. The
third says whether the shard that asked for it still counts: after an election, or once the shard
was loaded again, what it asked for must be neither begun nor repeated."""


class ShardState(Enum):
    LOADING = "loading"
    ACTIVE = "active"
    UNREADABLE = "unreadable"  # its log is damaged here
    ENDED = "ended"


class Fate(Enum):
    """The fate of the records of an append, by its answer."""

    COMMITTED = "committed"
    NOT_WRITTEN = "not written"
    UNKNOWN = "unknown"  # perhaps written, perhaps never committed: the log has to be asked


_COMMITTED = (
    ErrorCode.NONE,
    # The records are below the high watermark anyway; the ISR has only become smaller.
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
)
_NOT_WRITTEN = (
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_RECORD,
    ErrorCode.INVALID_TIMESTAMP,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.POLICY_VIOLATION,
    ErrorCode.RECORD_LIST_TOO_LARGE,
    ErrorCode.TRANSACTION_COORDINATOR_FENCED,
    ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
    ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
)
FATES: Final[Mapping[ErrorCode, Fate]] = {
    **dict.fromkeys(ErrorCode, Fate.UNKNOWN),
    **dict.fromkeys(_COMMITTED, Fate.COMMITTED),
    **dict.fromkeys(_NOT_WRITTEN, Fate.NOT_WRITTEN),
}

REFUSALS: Final[Mapping[ShardState, ErrorCode]] = {
    ShardState.LOADING: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ShardState.UNREADABLE: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ShardState.ENDED: ErrorCode.NOT_COORDINATOR,
}
"""The answer to a request in each state but ACTIVE (W-100)."""


class PendingAppend:
    """One batch on its way to the high watermark.

    Attributes:
        token: of the shard's ``Append``; None for a marker, whose caller is not the shard.
        on_done: what follows from its end.
        error_code: how it ended; None so far.
    """

    __slots__ = ("due_ms", "error_code", "on_done", "token")

    def __init__(self, token: Hashable, due_ms: int, on_done: Callable[[ErrorCode], None]) -> None:
        self.token, self.due_ms, self.on_done = token, due_ms, on_done
        self.error_code: ErrorCode | None = None


class ShardTimer:
    __slots__ = ("armed", "armed_ms", "due_ms")

    def __init__(self, due_ms: int) -> None:
        self.due_ms = self.armed_ms = due_ms
        self.armed: Cancellable | None = None


class ShardTimers:
    """The timers of one shard. Many are set later again and again. Then the timer of the runtime
    stays as it is, and looks at ``due_ms`` when it fires.

    Args:
        later: calls back after so many ms.
        fired: is called with the key of a timer that is due.
    """

    def __init__(
        self,
        now_ms: Callable[[], int],
        later: Callable[[int, Task], Cancellable],
        fired: Callable[[Hashable], None],
    ) -> None:
        self._now_ms, self._call_later, self._fired = now_ms, later, fired
        self._timers: dict[Hashable, ShardTimer] = {}

    def start(self, key: Hashable, delay_ms: int) -> None:
        due_ms = self._now_ms() + delay_ms
        timer = self._timers.get(key)
        if timer is not None and timer.armed_ms <= due_ms:
            timer.due_ms = due_ms
            return
        self.stop(key)
        self._timers[key] = timer = ShardTimer(due_ms)
        self._arm(key, timer)

    def stop(self, key: Hashable) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None and timer.armed is not None:
            timer.armed.cancel()

    def stop_all(self) -> None:
        for key in [*self._timers]:
            self.stop(key)

    def _arm(self, key: Hashable, timer: ShardTimer) -> None:
        timer.armed_ms = timer.due_ms
        delay_ms = timer.due_ms - self._now_ms()
        timer.armed = self._call_later(delay_ms, partial(self._check_due, key, timer))

    def _check_due(self, key: Hashable, timer: ShardTimer) -> None:
        if self._timers.get(key) is not timer:  # stopped, or replaced, after it was due
            return
        if timer.due_ms > self._now_ms():
            self._arm(key, timer)
            return
        del self._timers[key]
        self._fired(key)


class HostedShard:
    """A shard and what it waits for; all of it belongs to the actor's turns."""

    def __init__(
        self,
        tp: TopicPartition,
        leading: Leadership,
        shard: Shard,
        now_ms: int,
        timers: Callable[[HostedShard], ShardTimers],
    ) -> None:
        self.tp = tp
        self.since_ms = now_ms  # monotonic
        self.leading = leading
        self.epoch = leading.leader_epoch
        self.shard = shard
        self.state = ShardState.LOADING
        self.answers: dict[int, OnAnswer] = {}  # requests without an answer, by their number
        self.appends: deque[PendingAppend] = deque()  # in the order of the log
        self.on_time: deque[PendingAppend] = deque()  # of them, those that are not late
        self.timers = timers(self)
        self.watch: Cancellable | None = None  # over the oldest append

    def __repr__(self) -> str:
        return f"HostedShard({self.tp}, epoch {self.epoch}, {self.state.value})"


class CoordinatorRuntime:
    """See the module. Every method may be called from any thread that holds no lock.

    Args:
        topic: the internal topic.
        make_shard: of a partition and a leader epoch.
        carry_out: begins the effects that are not common to all coordinators.
    Attributes:
        active: the partitions that are served here now; replaced as a whole.
        loads, load_ms: partitions that were loaded so far, and how long that took together.
    """

    def __init__(
        self,
        topic: str,
        runtime: Runtime,
        replica_manager: ReplicaManager,
        make_shard: ShardFactory,
        carry_out: CarryOut | None = None,
        *,
        write_timeout_ms: int = WRITE_TIMEOUT_MS,
        load_bytes: int = LOAD_BYTES,
    ) -> None:
        self.topic = topic
        self._runtime = runtime
        self._log = LimitedLogger(logger, runtime.clock)
        self._replica_manager = replica_manager
        self._make_shard = make_shard
        self._carry_out = carry_out
        self._write_timeout_ms = write_timeout_ms
        self._load_bytes = load_bytes
        name = f"{topic.strip('_')}-{replica_manager.broker_id}"
        self._actor = runtime.actor(name)
        self._loader = runtime.actor(f"{name}-loader")
        self._inbox: deque[Task] = deque()
        self._has_turn = False  # a thread works on the inbox, or will
        self._closed = False
        self._lock = threading.Lock()  # of the three above
        self._shards: dict[int, HostedShard] = {}
        self._number = 0  # of the last request
        self.active: frozenset[int] = frozenset()
        self.loads = self.load_ms = 0

    # -- life ----------------------------------------------------------------------------------

    def startup(self) -> None:
        """Coordinate what this broker leads, now and from now on."""
        self._replica_manager.role_listeners.append(self.on_role_changes)
        self.on_role_changes(list(self._replica_manager.partitions))

    def close(self) -> None:
        """Answer all that waits with NOT_COORDINATOR; nothing is served any more."""
        self._submit(self._end_all)
        with self._lock:
            self._closed = True

    def _end_all(self) -> None:
        for hosted in list(self._shards.values()):
            self._end_shard(hosted)

    def on_role_changes(self, tps: Sequence[TopicPartition]) -> None:
        """Look at the present roles of these partitions; of others nothing is taken over."""
        for tp in tps:
            if tp.topic == self.topic:
                self._submit(partial(self._follow_role, tp))

    # -- turns ---------------------------------------------------------------------------------

    def _submit(self, task: Task) -> bool:
        """Run ``task`` in its turn, on this thread if no other one is at work. False after the end:
        the task will not run."""
        with self._lock:
            if self._closed:
                return False
            self._inbox.append(task)
            if self._has_turn:
                return True
            self._has_turn = True
        self._actor.offer(self._work)
        return True

    def _later(self, delay_ms: int, task: Task) -> Cancellable:
        """Run ``task`` in a turn of its own after a while."""

        def submit() -> None:
            self._submit(task)

        return self._runtime.call_later(max(0, delay_ms), submit)

    def _work(self) -> None:
        for _ in range(TURN_TASKS):
            with self._lock:
                if not self._inbox:
                    self._has_turn = False
                    return
                task = self._inbox.popleft()
            try:
                task()
            except Exception:
                logger.exception("a task of the coordinator of %s failed", self.topic)
        self._actor.post(self._work)

    # -- leaderships ---------------------------------------------------------------------------

    def _follow_role(self, tp: TopicPartition) -> None:
        """Have a shard if and only if this broker leads, and the one of the present leadership."""
        leading = self._leading(tp)
        hosted = self._shards.get(tp.partition)
        if hosted is not None:
            if leading is not None and leading.leader_epoch == hosted.epoch:
                return
            self._end_shard(hosted)
        if leading is not None:
            self._begin_shard(tp, leading)

    def _leading(self, tp: TopicPartition) -> Leadership | None:
        hosted = self._replica_manager.partitions.get(tp)
        role = None if hosted is None else hosted.role
        return role if isinstance(role, Leadership) else None

    def _begin_shard(self, tp: TopicPartition, leading: Leadership) -> None:
        shard = self._make_shard(tp.partition, leading.leader_epoch)
        hosted = HostedShard(tp, leading, shard, self._runtime.now_ms(), self._timers_of)
        self._shards[tp.partition] = hosted
        # No other broker appends in this epoch, so all that there is to know is below this offset.
        end_offset = leading.log.log_end_offset
        self._await_commit(hosted, end_offset)

    def _timers_of(self, hosted: HostedShard) -> ShardTimers:
        return ShardTimers(
            self._runtime.now_ms, self._later, lambda key: self._event(hosted, TimerFired(key))
        )

    def _end_shard(self, hosted: HostedShard) -> None:
        hosted.state = ShardState.ENDED
        self.active -= {hosted.tp.partition}
        if self._shards.get(hosted.tp.partition) is hosted:
            del self._shards[hosted.tp.partition]
        hosted.timers.stop_all()
        if hosted.watch is not None:
            hosted.watch.cancel()
        hosted.on_time.clear()
        appends, hosted.appends = hosted.appends, deque()
        answers, hosted.answers = hosted.answers, {}
        for answer in answers.values():
            _answer(answer, ErrorCode.NOT_COORDINATOR)
        for append in appends:  # those of markers have callers of their own
            if append.token is None:
                append.on_done(ErrorCode.NOT_COORDINATOR)

    def _begin_again(self, hosted: HostedShard, why: str) -> None:
        """Load the shard again, because its state may not be what the log says."""
        if hosted.state is ShardState.ENDED:
            return
        self._log.warning("%s is loaded again: %s", hosted.tp, why, about=hosted.tp)
        self._end_shard(hosted)
        self._follow_role(hosted.tp)

    # -- loading -------------------------------------------------------------------------------

    def _await_commit(self, hosted: HostedShard, end_offset: int) -> None:
        if hosted.state is ShardState.ENDED:
            return

        def committed(code: ErrorCode) -> None:
            # Not on this thread, which may be that of another request that has just appended.
            self._loader.post(partial(self._on_commit, hosted, end_offset, code))

        self._replica_manager.writes.await_commit(
            hosted.tp, end_offset, hosted.epoch, LOAD_WAIT_MS, committed
        )

    def _on_commit(self, hosted: HostedShard, end_offset: int, code: ErrorCode) -> None:
        if FATES[code] is Fate.COMMITTED:
            self._load(hosted, hosted.leading.log.log_start_offset, end_offset)
        elif code is ErrorCode.REQUEST_TIMED_OUT:
            self._submit(partial(self._await_commit, hosted, end_offset))
        else:
            self._submit(partial(self._follow_role, hosted.tp))
            self._later(LOAD_AGAIN_MS, partial(self._await_commit, hosted, end_offset))

    def _load(self, hosted: HostedShard, offset: int, end_offset: int) -> None:
        """Replay one piece of the log; on the loader, which alone has the shard until it is done.

        A damaged batch is not skipped: its records may be newer than the known ones, and nothing
        old may be served. The load is tried again later. Another broker may lead by then, or the
        disk may work again.
        """
        if hosted.state is ShardState.ENDED:
            return
        try:
            if offset < end_offset:
                offset = self._replay(hosted, offset, end_offset)
        except OffsetOutOfRangeError:  # deleted since
            offset = max(offset, hosted.leading.log.log_start_offset)
        except Exception as error:
            if isinstance(error, LogstoreError):
                self._log.error("%s cannot be loaded: %s", hosted.tp, error, about=hosted.tp)
            else:
                self._log.exception("%s cannot be loaded", hosted.tp, about=hosted.tp)
            self._submit(partial(self._not_loaded, hosted, isinstance(error, CorruptDataError)))
            return
        if offset < end_offset:
            self._loader.post(partial(self._load, hosted, offset, end_offset))
        else:
            self._submit(partial(self._loaded, hosted))

    def _replay(self, hosted: HostedShard, offset: int, end_offset: int) -> int:
        """Replay the batches of one read. Returns the offset to go on from."""
        data = hosted.leading.log.read(offset, self._load_bytes, up_to=end_offset).data
        if not len(data):
            return end_offset  # the rest was compacted away
        next_offset = offset
        for batch in iter_batches(data):
            next_offset = batch.next_offset
            for at, error in replay_batch(hosted.shard, data, batch, offset):
                self._log.error(
                    "%s, offset %s is skipped: %s", hosted.tp, at, error, about=hosted.tp
                )
        if next_offset <= offset:
            raise CorruptBatchError("", 0, f"no whole batch at offset {offset}")
        return next_offset

    def _not_loaded(self, hosted: HostedShard, is_damaged: bool) -> None:
        if hosted.state is ShardState.ENDED:
            return
        if is_damaged:
            hosted.state = ShardState.UNREADABLE

        def again() -> None:
            if hosted.state is not ShardState.ENDED:
                self._end_shard(hosted)
                self._follow_role(hosted.tp)

        self._later(LOAD_AGAIN_MS, again)

    def _loaded(self, hosted: HostedShard) -> None:
        if hosted.state is ShardState.LOADING:
            hosted.state = ShardState.ACTIVE
            logger.info("%s is coordinated here in epoch %s", hosted.tp, hosted.epoch)
            if self._call(hosted, hosted.shard.on_loaded):
                self.active |= {hosted.tp.partition}
                self.loads += 1
                self.load_ms += self._runtime.now_ms() - hosted.since_ms
            else:
                self._not_loaded(hosted, is_damaged=False)

    # -- requests ------------------------------------------------------------------------------

    def request(self, partition: int, request: object, answer: OnAnswer) -> None:
        """Put a request to the shard of a partition.

        ``answer`` is called exactly once, from any thread: with what the shard replies, or with an
        ``ErrorCode``: NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE,
        UNKNOWN_SERVER_ERROR.
        """
        if not self._submit(partial(self._request, partition, request, answer)):
            _answer(answer, ErrorCode.NOT_COORDINATOR)

    def _request(self, partition: int, request: object, answer: OnAnswer) -> None:
        hosted = self._shards.get(partition)
        state = ShardState.ENDED if hosted is None else hosted.state
        if hosted is None or state is not ShardState.ACTIVE:
            _answer(answer, REFUSALS[state])
            return
        self._number += 1
        number = self._number
        hosted.answers[number] = answer
        event = RequestReceived(number, request)
        if not self._call(hosted, partial(hosted.shard.on_event, event)):
            answered = hosted.answers.pop(number, None)
            if answered is not None:
                _answer(answered, ErrorCode.UNKNOWN_SERVER_ERROR)
            self._begin_again(hosted, "a request met an error")

    def request_all(self, request: object, answer: Callable[[list[object]], None]) -> None:
        """Put a request, which shards answer at once, to all of them; ``answer`` as ``request``."""

        def task() -> None:
            answers: list[object] = []
            for partition in sorted(self._shards):
                self._request(partition, request, answers.append)
            answer(answers)

        if not self._submit(task):
            answer([ErrorCode.NOT_COORDINATOR])

    def write_marker(
        self,
        partition: int,
        marker: TxnMarker,
        respond: Callable[[ErrorCode], None],
    ) -> None:
        """End a transaction in a partition: append its marker, and let the shard know of it.

        Every marker for the topic has to come this way. ``respond`` is called exactly once: NONE
        once the marker is committed, else why it is not (as ``request``, or the log's refusal).
        ``marker.partitions`` does not matter.
        """

        def task() -> None:
            hosted = self._shards.get(partition)
            state = ShardState.ENDED if hosted is None else hosted.state
            if hosted is None or state is not ShardState.ACTIVE:
                respond(REFUSALS[state])
                return
            batch = end_transaction_marker(
                ControlType.COMMIT if marker.is_commit else ControlType.ABORT,
                producer_id=marker.producer_id,
                producer_epoch=marker.producer_epoch,
                coordinator_epoch=marker.coordinator_epoch,
                timestamp=self._runtime.clock.wall_ms(),
            )

            def done(code: ErrorCode) -> None:
                if code is ErrorCode.NONE:
                    event = MarkerWritten(
                        marker.producer_id, marker.producer_epoch, marker.is_commit
                    )
                    self._event(hosted, event)
                respond(code)

            self._write(hosted, batch, None, done, marker.check)

        if not self._submit(task):
            respond(ErrorCode.NOT_COORDINATOR)

    @property
    def active_shards(self) -> list[Shard]:
        """Those that serve at this instant; from any thread."""
        hosted = self._shards.copy().values()
        return [each.shard for each in hosted if each.state is ShardState.ACTIVE]

    @property
    def states(self) -> Counter[ShardState]:
        """Partitions that this broker leads, by state, at this instant; from any thread."""
        return Counter(each.state for each in self._shards.copy().values())

    @property
    def waiting(self) -> int:
        """Requests without an answer, at this instant; from any thread."""
        return sum(len(each.answers) for each in self._shards.copy().values())

    # -- events and effects --------------------------------------------------------------------

    def _event(self, hosted: HostedShard, event: Event) -> None:
        if hosted.state is ShardState.ACTIVE and not self._call(
            hosted, partial(hosted.shard.on_event, event)
        ):
            self._begin_again(hosted, f"{type(event).__name__} met an error")

    def _call(self, hosted: HostedShard, call: Callable[[int], list[Effect]]) -> bool:
        """Call the shard and carry out its effects. False if it failed."""
        try:
            for effect in call(self._runtime.clock.wall_ms()):
                self._carry_out_effect(hosted, effect)
        except Exception:
            self._log.exception("%s: its coordinator failed", hosted.tp, about=hosted.tp)
            return False
        return True

    def _carry_out_effect(self, hosted: HostedShard, effect: Effect) -> None:
        match effect:
            case Reply():
                self._reply(hosted, effect)
            case Append():
                self._append(hosted, effect)
            case StartTimer(key, delay_ms):
                hosted.timers.start(key, delay_ms)
            case StopTimer(key):
                hosted.timers.stop(key)
            case AllocateProducerId() | ReserveProducerIds() | WriteMarkers():
                assert self._carry_out is not None, effect
                deliver = partial(self._deliver, hosted)
                self._carry_out(effect, deliver, partial(self._is_current, hosted))

    def _deliver(self, hosted: HostedShard, event: Event) -> None:
        self._submit(partial(self._event, hosted, event))

    def _is_current(self, hosted: HostedShard) -> bool:
        """Whether the shard, and the election in which it was loaded, still count."""
        led = self._replica_manager.partitions.get(hosted.tp)
        return (
            hosted.state is not ShardState.ENDED
            and led is not None
            and led.is_leader
            and led.leader_epoch == hosted.epoch
        )

    def _reply(self, hosted: HostedShard, effect: Reply) -> None:
        assert isinstance(effect.to, int)
        answer = hosted.answers.pop(effect.to, None)
        if answer is None:
            logger.error("%s: request %s is answered twice", hosted.tp, effect.to)
        else:
            _answer(answer, effect.response)

    # -- appends -------------------------------------------------------------------------------

    def _append(self, hosted: HostedShard, effect: Append) -> None:
        assert effect.records, effect
        assert effect.token is not None, effect

        def done(code: ErrorCode) -> None:
            self._event(hosted, AppendDone(effect.token, code))

        in_transaction = effect.producer_id != NO_PRODUCER_ID
        try:
            batch = encode_batch(
                [(record.key, record.value) for record in effect.records],
                default_timestamp=self._runtime.clock.wall_ms(),
                producer_id=effect.producer_id,
                producer_epoch=effect.producer_epoch,
                base_sequence=0 if in_transaction else NO_SEQUENCE,
                transactional=in_transaction,
            )
        except LogstoreError as error:  # such as a producer without an epoch
            refused = PendingAppend(effect.token, self._runtime.now_ms(), done)
            hosted.appends.append(refused)
            self._submit(partial(self._written, hosted, refused, error_code_of(error)))
            return
        self._write(hosted, batch, effect.token, done)

    def _write(
        self,
        hosted: HostedShard,
        batch: bytearray,
        token: Hashable,
        on_done: Callable[[ErrorCode], None],
        check: TransactionCheck | None = None,
    ) -> None:
        due_ms = self._runtime.now_ms() + self._write_timeout_ms
        append = PendingAppend(token, due_ms, on_done)
        hosted.appends.append(append)
        hosted.on_time.append(append)

        def respond(response: ProduceResponse) -> None:
            code = response.partitions[0].error_code
            self._submit(partial(self._written, hosted, append, code))

        request = ProduceRequest(
            -1, FOREVER_MS, (ProducePartition(hosted.tp, batch, hosted.epoch),)
        )
        self._replica_manager.writes.produce(request, respond, AppendOrigin.COORDINATOR, check)
        self._watch(hosted)

    def _written(self, hosted: HostedShard, append: PendingAppend, code: ErrorCode) -> None:
        if hosted.state is ShardState.ENDED or append.error_code is not None:
            return
        match FATES[code]:
            case Fate.COMMITTED:
                append.error_code = ErrorCode.NONE
                for earlier in hosted.appends:  # the high watermark passed these first
                    if earlier is append:
                        break
                    if earlier.error_code is None:
                        earlier.error_code = ErrorCode.NONE
            case Fate.NOT_WRITTEN:
                append.error_code = code
            case Fate.UNKNOWN:
                self._begin_again(hosted, f"an append ended with {code.name}")
                return
        while hosted.appends and hosted.appends[0].error_code is not None:
            first = hosted.appends.popleft()
            assert first.error_code is not None
            first.on_done(first.error_code)

    def _watch(self, hosted: HostedShard) -> None:
        """Arm the timer for when the oldest append that is not late yet becomes late."""
        on_time = hosted.on_time
        while on_time and on_time[0].error_code is not None:
            on_time.popleft()
        if on_time and hosted.watch is None:
            delay_ms = on_time[0].due_ms - self._runtime.now_ms()
            hosted.watch = self._later(delay_ms, partial(self._report_late_appends, hosted))

    def _report_late_appends(self, hosted: HostedShard) -> None:
        if hosted.state is not ShardState.ACTIVE:
            return
        hosted.watch = None
        now_ms, on_time = self._runtime.now_ms(), hosted.on_time
        while on_time and on_time[0].due_ms <= now_ms:
            append = on_time.popleft()
            if append.token is not None and append.error_code is None:
                self._event(hosted, AppendTimedOut(append.token))
        self._watch(hosted)


def replay_batch(
    shard: Shard, data: Buffer, batch: Batch, from_offset: int
) -> Iterator[tuple[int, LogstoreError]]:
    """Give a shard the records of a batch. Yields the offset and the error of each that it cannot
    read."""
    records = batch_records(data, batch, from_offset=from_offset)
    if isinstance(batch, BatchHeader) and batch.is_control:
        for record in records:
            marker = parse_marker(record.key, record.value)
            if marker is not None:
                shard.replay_marker(batch.producer_id, batch.producer_epoch, marker.is_commit)
        return
    producer_id = NO_PRODUCER_ID
    if isinstance(batch, BatchHeader) and batch.is_transactional:
        producer_id = batch.producer_id
    for record in records:
        if record.key is None:
            continue
        try:
            shard.replay(record.key, record.value, producer_id=producer_id)
        except LogstoreError as error:
            yield record.offset, error


def _answer(answer: OnAnswer, response: object) -> None:
    """Give an answer. A failure of its receiver must not bring down the coordinator."""
    try:
        answer(response)
    except Exception:
        logger.exception("an answer of a coordinator failed")
