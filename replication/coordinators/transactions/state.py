"""The state of one transactional id, and which states may follow each other (Kafka's
``TransactionState`` and ``TransactionMetadata``)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

from checkpoints.types import TopicPartition
from logstore.common.errors import InvariantError
from replication.coordinators.effects import NO_PRODUCER_EPOCH, NO_PRODUCER_ID

MAX_EPOCH = 2**15 - 1
LAST_CLIENT_EPOCH = MAX_EPOCH - 1
"""The largest epoch that a producer gets. The one above it fences that producer."""

NO_TIME = -1

FIRST_BUMPING = 5  # EndTxn


class TransactionState(IntEnum):
    """The numbers are those of the records in ``__transaction_state``."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7  # of old records of Kafka; written by nobody

    @property
    def kafka_name(self) -> str:
        """As the tools show it: ``PrepareCommit``."""
        return self.name.title().replace("_", "")

    @property
    def is_complete(self) -> bool:
        return self in (TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)

    @property
    def is_prepared(self) -> bool:
        """Whether the end is decided and the markers are on their way."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

    @property
    def commits(self) -> bool:
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)


_S = TransactionState

# From which states each state is entered. An abort from a state without a transaction is one of
# protocol V2: the producer cannot know whether any of its batches opened one.
FROM: dict[TransactionState, frozenset[TransactionState]] = {
    _S.EMPTY: frozenset({_S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT}),
    _S.ONGOING: frozenset({_S.EMPTY, _S.ONGOING, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT}),
    _S.PREPARE_COMMIT: frozenset({_S.ONGOING}),
    _S.PREPARE_ABORT: frozenset({_S.ONGOING, _S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT}),
    _S.COMPLETE_COMMIT: frozenset({_S.PREPARE_COMMIT, _S.COMPLETE_COMMIT}),
    _S.COMPLETE_ABORT: frozenset({_S.PREPARE_ABORT, _S.COMPLETE_ABORT}),
    _S.DEAD: frozenset({_S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT}),
    _S.PREPARE_EPOCH_FENCE: frozenset(),
}


class TransactionVersion(IntEnum):
    """The protocol that a client speaks (Kafka's feature ``transaction.version``)."""

    TV_0 = 0
    TV_1 = 1  # as 0 for clients; the records have tagged fields
    TV_2 = 2

    @property
    def bumps_epochs(self) -> bool:
        """Each end of a transaction raises the producer's epoch, and the leaders of partitions add
        them to the transaction (W-164)."""
        return self >= TransactionVersion.TV_2


@dataclass(frozen=True, slots=True)
class TransactionMetadata:
    """One transactional id. Values only change by ``moved``.

    Attributes:
        producer_epoch: −1 before the first is given to a producer.
        last_producer_epoch: what the present producer had before its last bump, so that a repeated
            request for it is known; −1 where nobody may repeat one. Not in the records.
        previous_producer_id: the id before the last change of anything.
        next_producer_id: of a transaction that ends with the last epoch of its id (V2); else −1.
        start_ms: when the transaction began, −1 without one; wall clock, as ``last_update_ms``.
        version: what the client spoke last.
    """

    transactional_id: str
    producer_id: int
    timeout_ms: int
    last_update_ms: int
    producer_epoch: int = NO_PRODUCER_EPOCH
    state: TransactionState = TransactionState.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    start_ms: int = NO_TIME
    last_producer_epoch: int = NO_PRODUCER_EPOCH
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    version: TransactionVersion = TransactionVersion.TV_0

    @property
    def is_exhausted(self) -> bool:
        """Whether the producer id has no epoch left."""
        return self.producer_epoch >= LAST_CLIENT_EPOCH

    def moved(self, state: TransactionState, now_ms: int, **changes: object) -> TransactionMetadata:
        """The id as it will be in ``state``.

        Raises:
            InvariantError: the state may not follow the present one, or an epoch would fall.
        """
        if self.state not in FROM[state]:
            raise InvariantError(
                f"{self.transactional_id!r} goes from {self.state.name} to {state.name}"
            )
        after = replace(
            self,
            state=state,
            last_update_ms=now_ms,
            previous_producer_id=self.producer_id,
            **changes,  # type: ignore[arg-type]
        )
        if after.producer_id == self.producer_id and after.producer_epoch < self.producer_epoch:
            raise InvariantError(f"the epoch of producer {self.producer_id} falls")
        return after
