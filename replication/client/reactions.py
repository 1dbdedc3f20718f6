"""The meaning of each error code to a client: a complete table for every kind of request.

A code that a table does not name ends the request, too, because its meaning would be unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from replication.common.error_codes import ErrorCode as E
from replication.common.retrying import reactions

# Codes that pass once the leader is found or has settled.
_PASSING = (
    E.NOT_LEADER_OR_FOLLOWER,
    E.REPLICA_NOT_AVAILABLE,
    E.KAFKA_STORAGE_ERROR,
    E.OFFSET_NOT_AVAILABLE,
    E.LEADER_NOT_AVAILABLE,
    E.FENCED_LEADER_EPOCH,
    E.UNKNOWN_LEADER_EPOCH,
    E.UNKNOWN_TOPIC_OR_PARTITION,
    E.UNKNOWN_TOPIC_ID,
    E.INCONSISTENT_TOPIC_ID,
    E.BROKER_NOT_AVAILABLE,
)
_NO_ANSWER = (E.REQUEST_TIMED_OUT, E.NETWORK_EXCEPTION)


class ProduceReaction(Enum):
    """As Kafka's ``Sender.completeBatch`` and ``TransactionManager.canRetry``."""

    DONE = "done"
    DUPLICATE = "done before"  # the broker has it at a forgotten offset
    REFUSED = "refused for now"  # not written: find the leader, and retry after a pause
    UNKNOWN = "unknown"  # perhaps written: send the same batch again after a pause
    NEW_EPOCH = "under a new epoch"  # its place in the sequence is lost, and it is not in the log
    FENCED = "fenced"  # another producer uses this id with a higher epoch
    FAIL = "refused for good"  # nothing was written
    FAIL_UNKNOWN = "failed"  # it is unknown whether it was written


PRODUCE: Mapping[E, ProduceReaction] = reactions(
    {
        ProduceReaction.DONE: (E.NONE,),
        ProduceReaction.DUPLICATE: (E.DUPLICATE_SEQUENCE_NUMBER,),
        ProduceReaction.REFUSED: (
            E.LEADER_NOT_AVAILABLE,
            E.NOT_ENOUGH_REPLICAS,
            E.CORRUPT_MESSAGE,
            E.UNKNOWN_TOPIC_ID,
            E.INCONSISTENT_TOPIC_ID,
            E.FENCED_LEADER_EPOCH,
            E.UNKNOWN_LEADER_EPOCH,
            E.REPLICA_NOT_AVAILABLE,
        ),
        # The first three may also come after the append, if the leader stepped down, the topic was
        # deleted, or the disk failed during the wait for followers.
        ProduceReaction.UNKNOWN: (
            E.NOT_LEADER_OR_FOLLOWER,
            E.UNKNOWN_TOPIC_OR_PARTITION,
            E.KAFKA_STORAGE_ERROR,
            E.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
            E.BROKER_NOT_AVAILABLE,
            *_NO_ANSWER,
        ),
        ProduceReaction.NEW_EPOCH: (E.OUT_OF_ORDER_SEQUENCE_NUMBER, E.UNKNOWN_PRODUCER_ID),
        ProduceReaction.FENCED: (E.INVALID_PRODUCER_EPOCH,),
        ProduceReaction.FAIL: (
            E.MESSAGE_TOO_LARGE,
            E.RECORD_LIST_TOO_LARGE,
            E.INVALID_TOPIC_EXCEPTION,
            E.INVALID_REQUIRED_ACKS,
            E.INVALID_TIMESTAMP,
            E.INVALID_REQUEST,
            E.UNSUPPORTED_FOR_MESSAGE_FORMAT,
            E.UNSUPPORTED_COMPRESSION_TYPE,
            E.POLICY_VIOLATION,
            E.INVALID_RECORD,
            E.INVALID_TXN_STATE,
            E.TRANSACTION_COORDINATOR_FENCED,
        ),
    },
    otherwise=ProduceReaction.FAIL_UNKNOWN,
)


class ClientFetchReaction(Enum):
    """As Kafka's ``FetchCollector.handleInitializeErrors``."""

    DONE = "done"
    AGAIN = "again"  # after a pause
    REFRESH = "find the leader"  # then retry after a pause
    OUT_OF_RANGE = "out of range"
    FAIL = "failed"


FETCH: Mapping[E, ClientFetchReaction] = reactions(
    {
        ClientFetchReaction.DONE: (E.NONE,),
        ClientFetchReaction.AGAIN: _NO_ANSWER,
        ClientFetchReaction.REFRESH: _PASSING,
        ClientFetchReaction.OUT_OF_RANGE: (E.OFFSET_OUT_OF_RANGE,),
    },
    otherwise=ClientFetchReaction.FAIL,
)


class AskReaction(Enum):
    """The reaction to the answer to a question, which changes nothing."""

    DONE = "done"
    AGAIN = "again"  # find the leader, and retry after a pause
    FAIL = "failed"


# ListOffsets and OffsetForLeaderEpoch.
QUESTION: Mapping[E, AskReaction] = reactions(
    {
        AskReaction.DONE: (E.NONE,),
        AskReaction.AGAIN: (*_PASSING, *_NO_ANSWER),
    },
    otherwise=AskReaction.FAIL,
)

# For one partition in the answer.
METADATA: Mapping[E, AskReaction] = reactions(
    {
        AskReaction.DONE: (E.NONE,),
        AskReaction.AGAIN: (*_PASSING, *_NO_ANSWER, E.UNKNOWN_SERVER_ERROR, E.NOT_CONTROLLER),
    },
    otherwise=AskReaction.FAIL,
)
