"""What each error code means to a client: one complete table for every kind of request.

A code that a kind of request is never answered with ends it, too: nobody knows what it would mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import TypeVar

from replication.error_codes import ErrorCode as E

R = TypeVar("R", bound=Enum)


def _table(groups: Mapping[R, Iterable[E]], otherwise: R) -> dict[E, R]:
    table = dict.fromkeys(E, otherwise)
    named: set[E] = set()
    for reaction, codes in groups.items():
        for code in codes:
            if code in named:
                raise ValueError(f"{code.name} stands twice in a table of reactions")
            named.add(code)
            table[code] = reaction
    return table


class ProduceReaction(Enum):
    """See Kafka's ``Sender.completeBatch`` and ``TransactionManager.canRetry``."""

    DONE = "done"
    DUPLICATE = "done before"  # the broker has it, and does not know any more where
    REFUSED = "refused for now"  # nothing was written: find the leader, and again after a pause
    UNKNOWN = "unknown"  # it may have been written: the same batch again after a pause
    NEW_EPOCH = "under a new epoch"  # its place in the sequence is gone, and it is not in the log
    FENCED = "fenced"  # somebody goes on under this producer id with a higher epoch
    FAIL = "refused for good"  # nothing was written
    FAIL_UNKNOWN = "failed"  # nobody knows whether it was written


PRODUCE: Mapping[E, ProduceReaction] = _table(
    {
        ProduceReaction.DONE: [E.NONE],
        ProduceReaction.DUPLICATE: [E.DUPLICATE_SEQUENCE_NUMBER],
        ProduceReaction.REFUSED: [
            E.LEADER_NOT_AVAILABLE, E.NOT_ENOUGH_REPLICAS, E.CORRUPT_MESSAGE, E.UNKNOWN_TOPIC_ID,
            E.INCONSISTENT_TOPIC_ID, E.FENCED_LEADER_EPOCH, E.UNKNOWN_LEADER_EPOCH,
            E.REPLICA_NOT_AVAILABLE,
        ],
        # The first three may also come after the append, when the leader stepped down, the topic
        # went, or its disk failed while it waited for the followers.
        ProduceReaction.UNKNOWN: [
            E.NOT_LEADER_OR_FOLLOWER, E.UNKNOWN_TOPIC_OR_PARTITION, E.KAFKA_STORAGE_ERROR,
            E.REQUEST_TIMED_OUT, E.NOT_ENOUGH_REPLICAS_AFTER_APPEND, E.NETWORK_EXCEPTION,
            E.BROKER_NOT_AVAILABLE,
        ],
        ProduceReaction.NEW_EPOCH: [E.OUT_OF_ORDER_SEQUENCE_NUMBER, E.UNKNOWN_PRODUCER_ID],
        ProduceReaction.FENCED: [E.INVALID_PRODUCER_EPOCH],
        ProduceReaction.FAIL: [
            E.MESSAGE_TOO_LARGE, E.RECORD_LIST_TOO_LARGE, E.INVALID_TOPIC_EXCEPTION,
            E.INVALID_REQUIRED_ACKS, E.INVALID_TIMESTAMP, E.INVALID_REQUEST,
            E.UNSUPPORTED_FOR_MESSAGE_FORMAT, E.UNSUPPORTED_COMPRESSION_TYPE, E.POLICY_VIOLATION,
            E.INVALID_RECORD, E.INVALID_TXN_STATE, E.TRANSACTION_COORDINATOR_FENCED,
        ],
    },
    otherwise=ProduceReaction.FAIL_UNKNOWN,
)  # fmt: skip


class FetchReaction(Enum):
    """See Kafka's ``FetchCollector.handleInitializeErrors``."""

    DONE = "done"
    AGAIN = "again"  # after a pause
    REFRESH = "find the leader"  # then again after a pause
    OUT_OF_RANGE = "out of range"
    FAIL = "failed"


FETCH: Mapping[E, FetchReaction] = _table(
    {
        FetchReaction.DONE: [E.NONE],
        FetchReaction.AGAIN: [E.REQUEST_TIMED_OUT, E.NETWORK_EXCEPTION],
        FetchReaction.REFRESH: [
            E.NOT_LEADER_OR_FOLLOWER, E.REPLICA_NOT_AVAILABLE, E.KAFKA_STORAGE_ERROR,
            E.FENCED_LEADER_EPOCH, E.UNKNOWN_LEADER_EPOCH, E.OFFSET_NOT_AVAILABLE,
            E.UNKNOWN_TOPIC_OR_PARTITION, E.UNKNOWN_TOPIC_ID, E.INCONSISTENT_TOPIC_ID,
            E.LEADER_NOT_AVAILABLE, E.BROKER_NOT_AVAILABLE,
        ],
        FetchReaction.OUT_OF_RANGE: [E.OFFSET_OUT_OF_RANGE],
    },
    otherwise=FetchReaction.FAIL,
)  # fmt: skip


class AskReaction(Enum):
    """What follows from the answer to a question that changes nothing."""

    DONE = "done"
    AGAIN = "again"  # find the leader, and after a pause
    FAIL = "failed"


_PASSING = [
    E.NOT_LEADER_OR_FOLLOWER, E.REPLICA_NOT_AVAILABLE, E.KAFKA_STORAGE_ERROR,
    E.OFFSET_NOT_AVAILABLE, E.LEADER_NOT_AVAILABLE, E.FENCED_LEADER_EPOCH, E.UNKNOWN_LEADER_EPOCH,
    E.UNKNOWN_TOPIC_OR_PARTITION, E.UNKNOWN_TOPIC_ID, E.INCONSISTENT_TOPIC_ID, E.REQUEST_TIMED_OUT,
    E.NETWORK_EXCEPTION, E.BROKER_NOT_AVAILABLE,
]  # fmt: skip

LIST_OFFSETS: Mapping[E, AskReaction] = _table(
    {AskReaction.DONE: [E.NONE], AskReaction.AGAIN: _PASSING}, otherwise=AskReaction.FAIL
)
OFFSET_FOR_LEADER_EPOCH = LIST_OFFSETS

# Of one partition in it: who leads is told beside the code.
METADATA: Mapping[E, AskReaction] = _table(
    {
        AskReaction.DONE: [E.NONE],
        AskReaction.AGAIN: [
            E.LEADER_NOT_AVAILABLE, E.REPLICA_NOT_AVAILABLE, E.UNKNOWN_TOPIC_OR_PARTITION,
            E.UNKNOWN_TOPIC_ID, E.BROKER_NOT_AVAILABLE, E.KAFKA_STORAGE_ERROR,
        ],
    },
    otherwise=AskReaction.FAIL,
)  # fmt: skip

# Another broker may be able to.
INIT_PRODUCER_ID: Mapping[E, AskReaction] = _table(
    {
        AskReaction.DONE: [E.NONE],
        AskReaction.AGAIN: [
            E.BROKER_NOT_AVAILABLE,
            E.REQUEST_TIMED_OUT,
            E.NETWORK_EXCEPTION,
            E.NOT_CONTROLLER,
        ],
    },
    otherwise=AskReaction.FAIL,
)
