"""The transactional ids of one partition of ``__transaction_state``, as a state machine.

An id has at most one transition under way: a record or markers that are being written. Until it
ends, other requests are told to try again. A state counts, and is answered, once its record is
committed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import NamedTuple, assert_never

from logstore.log.writing.producing import is_id_of_name
from replication.common.error_codes import ErrorCode
from replication.common.messages import AddPartitionsToTxnRequest, TxnMarker
from replication.common.retrying import reactions
from replication.coordinators.effects import (
    NO_PRODUCER_ID,
    AllocateProducerId,
    AppendDone,
    AppendTimedOut,
    ClientRequest,
    Effect,
    Event,
    MarkersWritten,
    MarkerWritten,
    ProducerIdAllocated,
    RequestReceived,
    ReserveProducerIds,
    TimerFired,
    WriteMarkers,
)
from replication.coordinators.outbox import ShardOutbox
from replication.coordinators.transactions import records
from replication.coordinators.transactions.config import TransactionConfig
from replication.coordinators.transactions.state import (
    FIRST_BUMPING,
    TransactionMetadata,
    TransactionState,
    TransactionVersion,
)
from replication.coordinators.transactions.transitions import (
    NEED_PRODUCER_ID,
    Answer,
    Decision,
    Transition,
    add_partitions,
    complete,
    end_transaction,
    fence,
    init_producer_id,
    is_forgotten,
    is_overdue,
    verify_partitions,
)
from replication.protocol import messages as wire
from replication.wire import transactions as codec

FORGOTTEN_AT_ONCE = 500  # ids in one batch of tombstones,
FORGOTTEN_BYTES = 256 << 10  # and their length: far below the largest batch of the topic
RETRY_MS = 100  # until the record of a completed transaction is tried again

_RETRIABLE = (
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
)
_LOST = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.NOT_COORDINATOR,
)
# The answer when the record of a request was not written: each makes it ask again, and
# NOT_COORDINATOR makes it look for another coordinator first.
ERROR_OF_APPEND = reactions(
    {
        ErrorCode.NONE: (ErrorCode.NONE,),
        ErrorCode.COORDINATOR_NOT_AVAILABLE: _RETRIABLE,
        ErrorCode.NOT_COORDINATOR: _LOST,
    },
    otherwise=ErrorCode.UNKNOWN_SERVER_ERROR,
)


class Timer(Enum):
    ABORT_OVERDUE = auto()
    FORGET_IDLE = auto()


class _CompleteAgain(NamedTuple):
    """The key of a timer."""

    target: TransactionMetadata


class UnderWay(Enum):
    """The transition that an id is in."""

    WRITING = auto()  # the record of a change
    MARKING = auto()  # the markers of a prepared transaction
    COMPLETING = auto()  # the record that all partitions have them; tried until it is committed
    FORGETTING = auto()


@dataclass(slots=True)
class _Entry:
    """One transactional id; ``current`` is None until its first record is committed."""

    current: TransactionMetadata | None = None
    under_way: UnderWay | None = None


class TransactionShard:
    """See the module; ``replication.coordinators.effects.Shard`` says who calls what.

    A request is a ``ClientRequest`` of a message about one id. The answer to what may change it is
    an ``Answer``, to a question about partitions an error by partition, to one about ids a
    ``TransactionMetadata``, several or none.

    Args:
        coordinator_epoch: the leader epoch of this election: markers of an older one are refused.
    """

    def __init__(
        self, partition: int, coordinator_epoch: int, config: TransactionConfig | None = None
    ) -> None:
        self.partition = partition
        self.coordinator_epoch = coordinator_epoch
        self._config = config or TransactionConfig()
        self._entries: dict[str, _Entry] = {}
        self._allocating: dict[int, RequestReceived] = {}  # which wait for a producer id
        self._allocations = 0
        self._out = ShardOutbox()
        self._largest_id = NO_PRODUCER_ID  # in the log, which may come from another cluster

    @property
    def states(self) -> Counter[TransactionState]:
        """Transactional ids by state, as they are at this instant; from any thread."""
        known = (entry.current for entry in self._entries.copy().values())
        return Counter(current.state for current in known if current is not None)

    # -- the log -------------------------------------------------------------------------------

    def replay(self, key: bytes, value: bytes | None, *, producer_id: int = NO_PRODUCER_ID) -> None:
        """Take over a record; one of a later kind is skipped.

        Raises:
            LogstoreError: it cannot be read.
        """
        found = records.decode(key, value)
        if found is None:
            return
        transactional_id, metadata = found
        if metadata is None:
            self._entries.pop(transactional_id, None)
        else:
            self._entries[transactional_id] = _Entry(metadata)
            for producer_id in (metadata.producer_id, metadata.next_producer_id):
                if not is_id_of_name(producer_id):
                    self._largest_id = max(self._largest_id, producer_id)

    def replay_marker(self, producer_id: int, producer_epoch: int, is_commit: bool) -> None:
        """Does nothing: no transaction writes into this topic."""

    def on_loaded(self, now_ms: int) -> list[Effect]:
        """Go on with ends that were decided and not completed (W-155)."""
        self._out.start_timer(Timer.ABORT_OVERDUE, self._config.abort_interval_ms)
        self._out.start_timer(Timer.FORGET_IDLE, self._config.forget_interval_ms)
        if self._largest_id != NO_PRODUCER_ID:
            self._out.add(ReserveProducerIds(self._largest_id))
        for entry in self._entries.values():
            if entry.current is not None and entry.current.state.is_prepared:
                self._mark(entry, entry.current)
        return self._out.take_effects()

    @property
    def transactions(self) -> list[TransactionMetadata]:
        """The committed ones, by id."""
        known = [entry.current for entry in self._entries.values() if entry.current is not None]
        return sorted(known, key=lambda metadata: metadata.transactional_id)

    # -- events --------------------------------------------------------------------------------

    def on_event(self, event: Event, now_ms: int) -> list[Effect]:
        match event:
            case RequestReceived():
                self._on_request(event, None, now_ms)
            case AppendDone(token, error_code):
                self._out.append_done(token, error_code)
            case AppendTimedOut(token):
                self._out.append_late(token)
            case MarkersWritten(token, error_code):
                self._on_markers_written(token, error_code, now_ms)
            case ProducerIdAllocated():
                self._on_allocated(event, now_ms)
            case TimerFired(key):
                self._on_timer(key, now_ms)
            case MarkerWritten():  # no transaction writes into this topic
                pass
            case _:
                assert_never(event)
        return self._out.take_effects()

    def _on_allocated(self, event: ProducerIdAllocated, now_ms: int) -> None:
        """Decide again on the request that wanted the id, since much may have changed."""
        assert isinstance(event.token, int)
        received = self._allocating.pop(event.token)
        if event.error_code is ErrorCode.NONE:
            self._on_request(received, event.producer_id, now_ms)
        else:
            self._out.reply(received.to, Answer(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))

    def _on_request(self, received: RequestReceived, new_id: int | None, now_ms: int) -> None:
        to = received.to
        assert isinstance(received.request, ClientRequest)
        request, number, *_ = received.request
        match request:
            case wire.InitProducerIdRequest(transactional_id=str(name)) if name:
                if not 0 < request.transaction_timeout_ms <= self._config.max_timeout_ms:
                    self._out.reply(to, Answer(ErrorCode.INVALID_TRANSACTION_TIMEOUT))
                    return
                self._change(
                    received, name, lambda known: init_producer_id(known, request, new_id, now_ms)
                )
            case wire.InitProducerIdRequest():
                self._out.reply(to, Answer(ErrorCode.INVALID_REQUEST))
            case AddPartitionsToTxnRequest(transactional_id=name, verify_only=False):
                version = _version(number >= codec.FIRST_OF_LEADERS)
                self._change(
                    received, name, lambda known: add_partitions(known, request, version, now_ms)
                )
            case AddPartitionsToTxnRequest(transactional_id=name):
                # What is under way does not matter: the log looks again when it appends.
                self._out.reply(to, verify_partitions(self._known(name), request))
            case wire.EndTxnRequest(transactional_id=name):
                version = _version(number >= FIRST_BUMPING)
                self._change(
                    received,
                    name,
                    lambda known: end_transaction(known, request, version, new_id, now_ms),
                )
            case wire.DescribeTransactionsRequest(transactional_ids=(name,)):
                self._out.reply(to, self._known(name) or ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
            case wire.ListTransactionsRequest():
                self._out.reply(to, self.transactions)
            case _:
                raise TypeError(f"{request!r} is not for this coordinator")

    def _known(self, transactional_id: str) -> TransactionMetadata | None:
        entry = self._entries.get(transactional_id)
        return None if entry is None else entry.current

    # -- transitions ---------------------------------------------------------------------------

    def _change(
        self,
        received: RequestReceived,
        transactional_id: str,
        decide: Callable[[TransactionMetadata | None], Decision],
    ) -> None:
        """Begin a transition of an id. If another one is under way, the request has to come again:
        that transition may end with another producer id, for which the request is right."""
        entry = self._entries.get(transactional_id, _Entry())
        if entry.under_way is not None:
            self._out.reply(received.to, Answer(ErrorCode.CONCURRENT_TRANSACTIONS))
            return
        decision = decide(entry.current)
        if decision is NEED_PRODUCER_ID:
            self._allocations += 1
            self._allocating[self._allocations] = received
            self._out.add(AllocateProducerId(self._allocations, self._largest_id))
        elif isinstance(decision, Answer):
            self._out.reply(received.to, decision)
        else:
            self._entries[transactional_id] = entry
            self._write(entry, decision, received.to)

    def _write(self, entry: _Entry, move: Transition, to: Hashable | None) -> None:
        """Write the record of a change; then ``to`` is answered, if anybody waits."""
        entry.under_way = UnderWay.WRITING
        target, answer = move

        def reply(answer: Answer) -> None:
            nonlocal to
            if to is not None:
                self._out.reply(to, answer)
                to = None

        def done(code: ErrorCode) -> None:
            assert entry.under_way is UnderWay.WRITING, entry
            entry.under_way = None
            if code is not ErrorCode.NONE:
                if entry.current is None:
                    del self._entries[target.transactional_id]
                reply(Answer(ERROR_OF_APPEND[code]))
                return
            entry.current = target
            reply(answer)
            if target.state.is_prepared:
                self._mark(entry, target)

        def late(code: ErrorCode) -> None:
            """Have the client ask again; the record is still on its way."""
            reply(Answer(ErrorCode.COORDINATOR_NOT_AVAILABLE))

        self._out.append([records.encode(target)], done, late)

    def _mark(self, entry: _Entry, prepared: TransactionMetadata) -> None:
        entry.under_way = UnderWay.MARKING
        marker = TxnMarker(
            prepared.producer_id,
            prepared.producer_epoch,
            prepared.state.commits,
            self.coordinator_epoch,
            tuple(sorted(prepared.partitions)),
            prepared.version,
        )
        self._out.add(WriteMarkers(prepared.transactional_id, marker))

    def _on_markers_written(self, token: Hashable, error_code: ErrorCode, now_ms: int) -> None:
        if error_code is not ErrorCode.NONE:
            return  # a later coordinator has the id: nothing may be done here any more
        assert isinstance(token, str)
        entry = self._entries[token]
        assert entry.under_way is UnderWay.MARKING
        assert entry.current is not None
        self._complete(entry, complete(entry.current, now_ms))

    def _complete(self, entry: _Entry, target: TransactionMetadata) -> None:
        entry.under_way = UnderWay.COMPLETING

        def done(code: ErrorCode) -> None:
            assert entry.under_way is UnderWay.COMPLETING, entry
            if code is ErrorCode.NONE:
                entry.current, entry.under_way = target, None
            else:
                self._out.start_timer(_CompleteAgain(target), RETRY_MS)

        self._out.append([records.encode(target)], done)

    # -- time ----------------------------------------------------------------------------------

    def _on_timer(self, key: Hashable, now_ms: int) -> None:
        match key:
            case Timer.ABORT_OVERDUE:
                self._abort_overdue(now_ms)
                self._out.start_timer(key, self._config.abort_interval_ms)
            case Timer.FORGET_IDLE:
                self._forget_idle(now_ms)
                self._out.start_timer(key, self._config.forget_interval_ms)
            case _CompleteAgain(target):
                entry = self._entries[target.transactional_id]
                assert entry.under_way is UnderWay.COMPLETING
                self._complete(entry, target)
            case _:
                raise TypeError(f"{key!r} is not a timer of this coordinator")

    def _abort_overdue(self, now_ms: int) -> None:
        for entry in self._entries.values():
            known = entry.current
            if known is not None and entry.under_way is None and is_overdue(known, now_ms):
                self._write(entry, fence(known, now_ms), None)

    def _forget_idle(self, now_ms: int) -> None:
        expiration_ms = self._config.id_expiration_ms
        idle = [
            transactional_id
            for transactional_id, entry in self._entries.items()
            if entry.under_way is None
            and entry.current is not None
            and is_forgotten(entry.current, expiration_ms, now_ms)
        ]
        for ids in _pieces(idle):
            for transactional_id in ids:
                self._entries[transactional_id].under_way = UnderWay.FORGETTING
            self._out.append(map(records.tombstone, ids), partial(self._forgotten, ids))

    def _forgotten(self, ids: Iterable[str], error_code: ErrorCode) -> None:
        for transactional_id in ids:
            if error_code is ErrorCode.NONE:
                del self._entries[transactional_id]
            else:
                self._entries[transactional_id].under_way = None

    # -- for tests -----------------------------------------------------------------------------

    def check_invariants(self) -> None:
        """Prepared ids always have something under way, and no partition is held by an id at rest.

        Raises:
            AssertionError: they do not.
        """
        for transactional_id, entry in self._entries.items():
            known = entry.current
            if known is None:
                assert entry.under_way is UnderWay.WRITING, transactional_id
                continue
            assert known.transactional_id == transactional_id
            is_ending = entry.under_way in (UnderWay.MARKING, UnderWay.COMPLETING)
            assert is_ending == known.state.is_prepared, known
            assert not (known.state.is_complete and known.partitions), known


def _version(is_latest: bool) -> TransactionVersion:
    return TransactionVersion.TV_2 if is_latest else TransactionVersion.TV_0


def _pieces(ids: Iterable[str]) -> Iterator[list[str]]:
    piece: list[str] = []
    size = 0
    for each in ids:
        length = len(each.encode())
        if piece and (len(piece) == FORGOTTEN_AT_ONCE or size + length > FORGOTTEN_BYTES):
            yield piece
            piece, size = [], 0
        piece.append(each)
        size += length
    if piece:
        yield piece
