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
from typing import NamedTuple, assert_never

from logstore.log.writing.producing import is_id_of_name
from replication.common.error_codes import ErrorCode
from replication.common.retrying import reactions
from replication.coordinators.effects import (
    NO_PRODUCER_ID,
    AllocateProducerId,
    Append,
    AppendDone,
    AppendTimedOut,
    Effect,
    Event,
    MarkersWritten,
    MarkerWritten,
    ProducerIdAllocated,
    Reply,
    RequestReceived,
    ReserveProducerIds,
    StartTimer,
    TimerFired,
    WriteMarkers,
)
from replication.coordinators.transactions import records
from replication.coordinators.transactions.config import TransactionConfig
from replication.coordinators.transactions.requests import (
    AddPartitions,
    Answer,
    Described,
    DescribeTransaction,
    EndTransaction,
    InitProducerId,
    Listed,
    ListTransactions,
    VerifyPartitions,
)
from replication.coordinators.transactions.state import TransactionMetadata, TransactionState
from replication.coordinators.transactions.transitions import (
    NEED_PRODUCER_ID,
    Decision,
    Move,
    add_partitions,
    complete,
    end_transaction,
    fence,
    init_producer_id,
    is_forgotten,
    is_overdue,
    verify_partitions,
)

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
# What a client hears when the record of its request was not written: each makes it ask again, and
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

    transactional_id: str


class _Token(NamedTuple):
    transactional_id: str
    number: int


class _Forget(NamedTuple):
    """The token of a batch of tombstones."""

    number: int


# -- what is under way with an id ----------------------------------------------------------------


class _Writing(NamedTuple):
    """The record of ``target``; then ``to`` is answered, if anybody waits."""

    token: _Token
    target: TransactionMetadata
    to: Hashable | None = None
    answer: Answer = Answer(ErrorCode.NONE)


class _Marking(NamedTuple):
    """The markers of a prepared transaction."""

    token: _Token


class _Completing(NamedTuple):
    """The record that every partition has its marker. It is tried until it is committed."""

    token: _Token
    target: TransactionMetadata


class _Forgetting(NamedTuple):
    token: _Forget


@dataclass(slots=True)
class _Entry:
    """One transactional id; ``current`` is None until its first record is committed."""

    current: TransactionMetadata | None = None
    under_way: _Writing | _Marking | _Completing | _Forgetting | None = None


class TransactionShard:
    """See the module; ``replication.coordinators.effects.Shard`` says who calls what.

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
        self._forgetting: dict[_Forget, list[str]] = {}
        self._numbers = 0
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
        effects: list[Effect] = [
            StartTimer(Timer.ABORT_OVERDUE, self._config.abort_interval_ms),
            StartTimer(Timer.FORGET_IDLE, self._config.forget_interval_ms),
        ]
        if self._largest_id != NO_PRODUCER_ID:
            effects.append(ReserveProducerIds(self._largest_id))
        for entry in self._entries.values():
            if entry.current is not None and entry.current.state.is_prepared:
                effects += self._mark(entry, entry.current)
        return effects

    @property
    def transactions(self) -> list[TransactionMetadata]:
        """What is committed, by id."""
        known = [entry.current for entry in self._entries.values() if entry.current is not None]
        return sorted(known, key=lambda metadata: metadata.transactional_id)

    # -- events --------------------------------------------------------------------------------

    def on_event(self, event: Event, now_ms: int) -> list[Effect]:
        match event:
            case RequestReceived():
                return self._on_request(event, None, now_ms)
            case AppendDone(token, error_code):
                return self._on_append_done(token, error_code)
            case AppendTimedOut(token):
                return self._on_append_timed_out(token)
            case MarkersWritten(token, error_code):
                return self._on_markers_written(token, error_code, now_ms)
            case ProducerIdAllocated():
                return self._on_allocated(event, now_ms)
            case TimerFired(key):
                return self._on_timer(key, now_ms)
            case MarkerWritten():
                return []
            case _:
                assert_never(event)

    def _on_allocated(self, event: ProducerIdAllocated, now_ms: int) -> list[Effect]:
        """Decide again on the request that wanted the id, since much may have changed."""
        assert isinstance(event.token, int)
        received = self._allocating.pop(event.token)
        if event.error_code is not ErrorCode.NONE:
            return [Reply(received.to, Answer(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))]
        return self._on_request(received, event.producer_id, now_ms)

    def _on_request(
        self, received: RequestReceived, new_id: int | None, now_ms: int
    ) -> list[Effect]:
        to, request = received
        match request:
            case InitProducerId():
                if not request.transactional_id:
                    return [Reply(to, Answer(ErrorCode.INVALID_REQUEST))]
                if not 0 < request.timeout_ms <= self._config.max_timeout_ms:
                    return [Reply(to, Answer(ErrorCode.INVALID_TRANSACTION_TIMEOUT))]
                return self._change(
                    received,
                    request.transactional_id,
                    lambda known: init_producer_id(known, request, new_id, now_ms),
                )
            case AddPartitions():
                return self._change(
                    received,
                    request.transactional_id,
                    lambda known: add_partitions(known, request, now_ms),
                )
            case EndTransaction():
                return self._change(
                    received,
                    request.transactional_id,
                    lambda known: end_transaction(known, request, new_id, now_ms),
                )
            case VerifyPartitions():
                # What is under way does not matter: the log looks again when it appends.
                known = self._known(request.transactional_id)
                return [Reply(to, verify_partitions(known, request))]
            case DescribeTransaction():
                known = self._known(request.transactional_id)
                code = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND if known is None else ErrorCode.NONE
                return [Reply(to, Described(code, known))]
            case ListTransactions():
                return [Reply(to, Listed(ErrorCode.NONE, tuple(self.transactions)))]
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
    ) -> list[Effect]:
        """Begin a transition of an id. If another one is under way, the request has to come again:
        that transition may end with another producer id, for which the request is right."""
        entry = self._entries.get(transactional_id, _Entry())
        if entry.under_way is not None:
            return [Reply(received.to, Answer(ErrorCode.CONCURRENT_TRANSACTIONS))]
        decision = decide(entry.current)
        if decision is NEED_PRODUCER_ID:
            number = self._next_number()
            self._allocating[number] = received
            return [AllocateProducerId(number, self._largest_id)]
        if isinstance(decision, Answer):
            return [Reply(received.to, decision)]
        self._entries[transactional_id] = entry
        return self._write(entry, decision, received.to)

    def _write(self, entry: _Entry, move: Move, to: Hashable | None) -> list[Effect]:
        token = self._token(move.target.transactional_id)
        entry.under_way = _Writing(token, move.target, to, move.answer)
        return [Append((records.encode(move.target),), token)]

    def _mark(self, entry: _Entry, prepared: TransactionMetadata) -> list[Effect]:
        token = self._token(prepared.transactional_id)
        entry.under_way = _Marking(token)
        return [
            WriteMarkers(
                token,
                prepared.producer_id,
                prepared.producer_epoch,
                prepared.state.commits,
                self.coordinator_epoch,
                tuple(sorted(prepared.partitions)),
                prepared.version,
            )
        ]

    def _on_append_timed_out(self, token: Hashable) -> list[Effect]:
        """Have the client ask again; the record is still on its way."""
        if isinstance(token, _Forget):
            return []
        assert isinstance(token, _Token)
        entry = self._entries[token.transactional_id]
        under_way = entry.under_way
        if not isinstance(under_way, _Writing) or under_way.to is None:
            return []
        entry.under_way = under_way._replace(to=None)
        return [Reply(under_way.to, Answer(ErrorCode.COORDINATOR_NOT_AVAILABLE))]

    def _on_append_done(self, token: Hashable, error_code: ErrorCode) -> list[Effect]:
        if isinstance(token, _Forget):
            self._forgotten(token, error_code)
            return []
        assert isinstance(token, _Token)
        entry = self._entries[token.transactional_id]
        under_way = entry.under_way
        assert under_way is not None
        assert under_way.token == token
        if isinstance(under_way, _Writing):
            return self._written(entry, under_way, error_code)
        assert isinstance(under_way, _Completing)
        if error_code is not ErrorCode.NONE:
            return [StartTimer(_CompleteAgain(token.transactional_id), RETRY_MS)]
        entry.current, entry.under_way = under_way.target, None
        return []

    def _written(self, entry: _Entry, done: _Writing, error_code: ErrorCode) -> list[Effect]:
        entry.under_way = None
        if error_code is not ErrorCode.NONE:
            if entry.current is None:
                del self._entries[done.token.transactional_id]
            return _answered(done.to, Answer(ERROR_OF_APPEND[error_code]))
        entry.current = done.target
        effects = _answered(done.to, done.answer)
        if done.target.state.is_prepared:
            effects += self._mark(entry, done.target)
        return effects

    def _on_markers_written(
        self, token: Hashable, error_code: ErrorCode, now_ms: int
    ) -> list[Effect]:
        assert isinstance(token, _Token)
        if error_code is not ErrorCode.NONE:
            return []  # a later coordinator has the id: nothing may be done here any more
        entry = self._entries[token.transactional_id]
        assert isinstance(entry.under_way, _Marking)
        assert entry.under_way.token == token
        assert entry.current is not None
        return self._complete(entry, complete(entry.current, now_ms))

    def _complete(self, entry: _Entry, target: TransactionMetadata) -> list[Effect]:
        token = self._token(target.transactional_id)
        entry.under_way = _Completing(token, target)
        return [Append((records.encode(target),), token)]

    # -- time ----------------------------------------------------------------------------------

    def _on_timer(self, key: Hashable, now_ms: int) -> list[Effect]:
        match key:
            case Timer.ABORT_OVERDUE:
                again = StartTimer(key, self._config.abort_interval_ms)
                return [*self._abort_overdue(now_ms), again]
            case Timer.FORGET_IDLE:
                again = StartTimer(key, self._config.forget_interval_ms)
                return [*self._forget_idle(now_ms), again]
            case _CompleteAgain(transactional_id):
                entry = self._entries[transactional_id]
                assert isinstance(entry.under_way, _Completing)
                return self._complete(entry, entry.under_way.target)
            case _:
                raise TypeError(f"{key!r} is not a timer of this coordinator")

    def _abort_overdue(self, now_ms: int) -> list[Effect]:
        effects: list[Effect] = []
        for entry in self._entries.values():
            known = entry.current
            if known is not None and entry.under_way is None and is_overdue(known, now_ms):
                effects += self._write(entry, fence(known, now_ms), None)
        return effects

    def _forget_idle(self, now_ms: int) -> list[Effect]:
        expiration_ms = self._config.id_expiration_ms
        idle = [
            transactional_id
            for transactional_id, entry in self._entries.items()
            if entry.under_way is None
            and entry.current is not None
            and is_forgotten(entry.current, expiration_ms, now_ms)
        ]
        effects: list[Effect] = []
        for ids in _pieces(idle):
            token = _Forget(self._next_number())
            self._forgetting[token] = ids
            for transactional_id in ids:
                self._entries[transactional_id].under_way = _Forgetting(token)
            effects.append(Append(tuple(map(records.tombstone, ids)), token))
        return effects

    def _forgotten(self, token: _Forget, error_code: ErrorCode) -> None:
        for transactional_id in self._forgetting.pop(token):
            if error_code is ErrorCode.NONE:
                del self._entries[transactional_id]
            else:
                self._entries[transactional_id].under_way = None

    # -- numbers -------------------------------------------------------------------------------

    def _token(self, transactional_id: str) -> _Token:
        return _Token(transactional_id, self._next_number())

    def _next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    # -- for tests -----------------------------------------------------------------------------

    def check_invariants(self) -> None:
        """Prepared ids always have something under way, and no partition is held by an id at rest.

        Raises:
            AssertionError: they do not.
        """
        for transactional_id, entry in self._entries.items():
            known = entry.current
            if known is None:
                assert isinstance(entry.under_way, _Writing), transactional_id
                continue
            assert known.transactional_id == transactional_id
            if known.state.is_prepared:
                assert isinstance(entry.under_way, _Marking | _Completing), known
            else:
                assert not isinstance(entry.under_way, _Marking | _Completing), known
            assert not (known.state.is_complete and known.partitions), known


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


def _answered(to: Hashable | None, answer: Answer) -> list[Effect]:
    return [] if to is None else [Reply(to, answer)]
