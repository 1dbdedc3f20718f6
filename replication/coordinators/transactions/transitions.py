"""Decisions about a transactional id, one for each request. They change nothing themselves.

Each function takes the present value and returns an ``Answer`` where nothing changes, a
``Transition`` if a record has to be written first, or ``NEED_PRODUCER_ID`` if it must be called
again with a new producer id. The caller has checked that no other transition is under way.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, Literal, NamedTuple, TypeAlias

from checkpoints.types import TopicPartition
from replication.common.error_codes import ErrorCode
from replication.common.messages import AddPartitionsToTxnRequest
from replication.coordinators.effects import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from replication.coordinators.transactions.state import (
    LAST_CLIENT_EPOCH,
    MAX_EPOCH,
    NO_TIME,
    TransactionMetadata,
    TransactionState,
    TransactionVersion,
)
from replication.protocol import messages as wire

_S = TransactionState


class Answer(NamedTuple):
    """The answer to a request that may change an id."""

    error_code: ErrorCode
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


class Transition(NamedTuple):
    """Write ``target``; ``answer`` goes out when it is committed."""

    target: TransactionMetadata
    answer: Answer


class _Need(Enum):
    PRODUCER_ID = "a new producer id"


NEED_PRODUCER_ID: Final = _Need.PRODUCER_ID
Decision: TypeAlias = Answer | Transition | Literal[_Need.PRODUCER_ID]


# -- InitProducerId ------------------------------------------------------------------------------


def init_producer_id(
    known: TransactionMetadata | None,
    request: wire.InitProducerIdRequest,
    new_id: int | None,
    now_ms: int,
) -> Decision:
    """A producer begins, or begins again under the same name: those before it are fenced (W-152).

    ``new_id`` is an id that no producer has had, if the caller has one.
    """
    if known is None:
        if new_id is None:
            return NEED_PRODUCER_ID
        name, timeout_ms = request.transactional_id or "", request.transaction_timeout_ms
        known = TransactionMetadata(name, new_id, timeout_ms, now_ms)
    expected = None if request.producer_id == NO_PRODUCER_ID else request.producer_epoch
    if expected is not None and not _may_begin_again(known, request):
        return Answer(ErrorCode.PRODUCER_FENCED)
    match known.state:
        case _S.PREPARE_COMMIT | _S.PREPARE_ABORT:
            return Answer(ErrorCode.CONCURRENT_TRANSACTIONS)
        case _S.ONGOING:
            return fence(known, now_ms)
        case _S.EMPTY | _S.COMPLETE_COMMIT | _S.COMPLETE_ABORT:
            return _begin(known, request.transaction_timeout_ms, expected, new_id, now_ms)
        case _:
            return Answer(ErrorCode.UNKNOWN_SERVER_ERROR)


def _may_begin_again(known: TransactionMetadata, request: wire.InitProducerIdRequest) -> bool:
    if known.producer_epoch == NO_PRODUCER_EPOCH:  # the id had expired, so any producer may begin
        return True
    if request.producer_id == known.producer_id:
        return True
    return (
        request.producer_id == known.previous_producer_id
        and request.producer_epoch >= LAST_CLIENT_EPOCH
    )


def _begin(
    known: TransactionMetadata,
    timeout_ms: int,
    expected: int | None,
    new_id: int | None,
    now_ms: int,
) -> Decision:
    """``expected``: the epoch of a producer that goes on, None of one that starts."""
    empty = {"partitions": frozenset(), "start_ms": NO_TIME, "timeout_ms": timeout_ms}
    current = known.producer_epoch
    goes_on = expected == current
    if current > LAST_CLIENT_EPOCH:  # which fences alone: nobody is given it
        goes_on = goes_on or expected == known.last_producer_epoch
    if known.is_exhausted and (expected is None or goes_on):
        if new_id is None:
            return NEED_PRODUCER_ID
        last = NO_PRODUCER_EPOCH if expected is None else expected
        target = known.moved(
            _S.EMPTY,
            now_ms,
            producer_id=new_id,
            producer_epoch=0,
            last_producer_epoch=last,
            **empty,
        )
    elif expected is None:
        target = known.moved(
            _S.EMPTY,
            now_ms,
            producer_epoch=current + 1,
            last_producer_epoch=NO_PRODUCER_EPOCH,
            **empty,
        )
    elif current == NO_PRODUCER_EPOCH or expected == current:
        target = known.moved(
            _S.EMPTY, now_ms, producer_epoch=current + 1, last_producer_epoch=current, **empty
        )
    elif expected == known.last_producer_epoch:  # it did not get the answer to its last request
        target = known.moved(_S.EMPTY, now_ms, **empty)
    else:
        return Answer(ErrorCode.PRODUCER_FENCED)
    return Transition(target, Answer(ErrorCode.NONE, target.producer_id, target.producer_epoch))


def fence(known: TransactionMetadata, now_ms: int) -> Transition:
    """Abort an ongoing transaction under the next epoch. A request that waits for it is told to try
    again. The producer itself then goes on with that epoch, any other one with the epoch after
    it."""
    target = known.moved(
        _S.PREPARE_ABORT,
        now_ms,
        producer_epoch=min(known.producer_epoch + 1, MAX_EPOCH),
        last_producer_epoch=known.producer_epoch,
    )
    return Transition(target, Answer(ErrorCode.CONCURRENT_TRANSACTIONS))


# -- partitions ----------------------------------------------------------------------------------


def _refusal_of(known: TransactionMetadata | None, request: AddPartitionsToTxnRequest) -> ErrorCode:
    """NONE if the request is from the present producer and no end is under way (W-153)."""
    if known is None or known.producer_id != request.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if known.producer_epoch != request.producer_epoch:
        return ErrorCode.PRODUCER_FENCED
    if known.state.is_prepared:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    return ErrorCode.NONE


def add_partitions(
    known: TransactionMetadata | None,
    request: AddPartitionsToTxnRequest,
    version: TransactionVersion,
    now_ms: int,
) -> Answer | Transition:
    code = _refusal_of(known, request)
    if code is not ErrorCode.NONE or known is None:
        return Answer(code)
    done = Answer(ErrorCode.NONE)
    is_ongoing = known.state is _S.ONGOING
    partitions = frozenset(request.partitions)
    if is_ongoing and partitions <= known.partitions:
        return done
    target = known.moved(
        _S.ONGOING,
        now_ms,
        partitions=(known.partitions if is_ongoing else frozenset()) | partitions,
        start_ms=known.start_ms if is_ongoing else now_ms,
        version=version,
    )
    return Transition(target, done)


def verify_partitions(
    known: TransactionMetadata | None, request: AddPartitionsToTxnRequest
) -> dict[TopicPartition, ErrorCode]:
    """Asked by the leader of a partition before it lets a transaction begin there (W-159)."""
    code = _refusal_of(known, request)
    if code is not ErrorCode.NONE or known is None:
        return dict.fromkeys(request.partitions, code)
    within = known.partitions if known.state is _S.ONGOING else frozenset()
    return {
        tp: ErrorCode.NONE if tp in within else ErrorCode.TRANSACTION_ABORTABLE
        for tp in request.partitions
    }


# -- EndTxn --------------------------------------------------------------------------------------


def end_transaction(
    known: TransactionMetadata | None,
    request: wire.EndTxnRequest,
    version: TransactionVersion,
    new_id: int | None,
    now_ms: int,
) -> Decision:
    """Commit or abort (W-154, W-164)."""
    if known is None:
        return Answer(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    bumps = version.bumps_epochs
    repeated = bumps and _is_repeated(known, request)
    if not repeated:
        if known.producer_id != request.producer_id:
            return Answer(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if known.producer_epoch != request.producer_epoch:
            return Answer(ErrorCode.PRODUCER_FENCED)
    match known.state:
        case _S.PREPARE_COMMIT | _S.PREPARE_ABORT:
            same = known.state.commits == request.committed
            return Answer(
                ErrorCode.CONCURRENT_TRANSACTIONS if same else ErrorCode.INVALID_TXN_STATE
            )
        case _S.ONGOING:
            if repeated:
                return Answer(ErrorCode.PRODUCER_FENCED)
            return _prepare(known, request.committed, version, new_id, now_ms)
        case _S.COMPLETE_COMMIT | _S.COMPLETE_ABORT if repeated or not bumps:
            if known.state.commits != request.committed:
                return Answer(ErrorCode.INVALID_TXN_STATE)
            answer = Answer(ErrorCode.NONE, known.producer_id, known.producer_epoch)
            # All transactions of a producer have one epoch without bumps. So this may be the end of
            # a later one, which another coordinator has begun while this one does not know yet that
            # it is deposed. Only a record that is committed proves that it is not.
            return answer if bumps else Transition(known.moved(known.state, now_ms), answer)
        case _S.EMPTY | _S.COMPLETE_COMMIT | _S.COMPLETE_ABORT:
            if repeated:  # of a producer that another one replaced
                return Answer(ErrorCode.PRODUCER_FENCED)
            if request.committed or not bumps:
                return Answer(ErrorCode.INVALID_TXN_STATE)
            return _prepare(known, request.committed, version, new_id, now_ms)
        case _:
            return Answer(ErrorCode.UNKNOWN_SERVER_ERROR)


def _is_repeated(known: TransactionMetadata, request: wire.EndTxnRequest) -> bool:
    """The client ended this transaction before and did not get the answer."""
    if request.producer_id == known.producer_id:
        return request.producer_epoch + 1 == known.producer_epoch
    return (
        request.producer_id == known.previous_producer_id
        and request.producer_epoch == LAST_CLIENT_EPOCH
        and known.producer_epoch == 0
    )


def _prepare(
    known: TransactionMetadata,
    committed: bool,
    version: TransactionVersion,
    new_id: int | None,
    now_ms: int,
) -> Decision:
    state = _S.PREPARE_COMMIT if committed else _S.PREPARE_ABORT
    start_ms = known.start_ms if known.state is _S.ONGOING else now_ms
    partitions = known.partitions if known.state is _S.ONGOING else frozenset()
    if not version.bumps_epochs:
        target = known.moved(state, now_ms, version=version)
        return Transition(target, Answer(ErrorCode.NONE, known.producer_id, known.producer_epoch))
    # The epoch that ends the transaction is above the one that wrote it: what comes late is
    # refused. The last epoch of all serves for that once; the producer goes on under a new id.
    if known.is_exhausted and new_id is None:
        return NEED_PRODUCER_ID
    next_id = new_id if known.is_exhausted and new_id is not None else NO_PRODUCER_ID
    epoch = min(known.producer_epoch + 1, MAX_EPOCH)
    target = known.moved(
        state,
        now_ms,
        producer_epoch=epoch,
        last_producer_epoch=known.producer_epoch,
        next_producer_id=next_id,
        partitions=partitions,
        start_ms=start_ms,
        version=version,
    )
    answer = (known.producer_id, epoch) if next_id == NO_PRODUCER_ID else (next_id, 0)
    return Transition(target, Answer(ErrorCode.NONE, *answer))


def complete(known: TransactionMetadata, now_ms: int) -> TransactionMetadata:
    """The id once every partition has its marker."""
    state = _S.COMPLETE_COMMIT if known.state.commits else _S.COMPLETE_ABORT
    rotates = known.next_producer_id != NO_PRODUCER_ID
    return known.moved(
        state,
        now_ms,
        producer_id=known.next_producer_id if rotates else known.producer_id,
        producer_epoch=0 if rotates else known.producer_epoch,
        next_producer_id=NO_PRODUCER_ID,
        partitions=frozenset(),
    )


# -- time ----------------------------------------------------------------------------------------


def is_overdue(known: TransactionMetadata, now_ms: int) -> bool:
    """Whether the transaction is open for longer than its producer allowed (W-156)."""
    return known.state is _S.ONGOING and known.start_ms + known.timeout_ms < now_ms


def is_forgotten(known: TransactionMetadata, expiration_ms: int, now_ms: int) -> bool:
    """Whether the id has not been used for long, and nothing is open."""
    is_idle = known.state is _S.EMPTY or known.state.is_complete
    return is_idle and known.last_update_ms + expiration_ms <= now_ms
