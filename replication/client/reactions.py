"""What each error code means to a client: one complete table for every kind of request.

A code that a kind of request is never answered with ends it, too: nobody knows what it would mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from replication.common.error_codes import ErrorCode as E
from replication.common.retrying import reactions

# What only brokers, controllers, those who make topics and those with a fetch session are told.
_NOT_OF_DATA = (
    E.STALE_CONTROLLER_EPOCH, E.TOPIC_ALREADY_EXISTS, E.INVALID_PARTITIONS,
    E.INVALID_REPLICATION_FACTOR, E.INVALID_REPLICA_ASSIGNMENT, E.INVALID_CONFIG,
    E.OPERATION_NOT_ATTEMPTED, E.STALE_BROKER_EPOCH, E.PREFERRED_LEADER_NOT_AVAILABLE,
    E.REASSIGNMENT_IN_PROGRESS,
    E.ELIGIBLE_LEADERS_NOT_AVAILABLE, E.ELECTION_NOT_NEEDED, E.NO_REASSIGNMENT_IN_PROGRESS,
    E.INVALID_UPDATE_VERSION, E.INELIGIBLE_REPLICA, E.NEW_LEADER_ELECTED,
    E.FETCH_SESSION_ID_NOT_FOUND, E.INVALID_FETCH_SESSION_EPOCH, E.FETCH_SESSION_TOPIC_ID_ERROR,
)  # fmt: skip
# What only those who write are told.
_OF_WRITES = (
    E.MESSAGE_TOO_LARGE, E.RECORD_LIST_TOO_LARGE, E.NOT_ENOUGH_REPLICAS,
    E.NOT_ENOUGH_REPLICAS_AFTER_APPEND, E.INVALID_REQUIRED_ACKS, E.INVALID_TIMESTAMP,
    E.UNSUPPORTED_FOR_MESSAGE_FORMAT, E.POLICY_VIOLATION, E.OUT_OF_ORDER_SEQUENCE_NUMBER,
    E.DUPLICATE_SEQUENCE_NUMBER, E.INVALID_PRODUCER_EPOCH, E.INVALID_TXN_STATE,
    E.TRANSACTION_COORDINATOR_FENCED, E.UNKNOWN_PRODUCER_ID, E.UNSUPPORTED_COMPRESSION_TYPE,
    E.INVALID_RECORD,
)  # fmt: skip
# What passes when the leader is found, or has settled.
_PASSING = (
    E.NOT_LEADER_OR_FOLLOWER, E.REPLICA_NOT_AVAILABLE, E.KAFKA_STORAGE_ERROR,
    E.OFFSET_NOT_AVAILABLE, E.LEADER_NOT_AVAILABLE, E.FENCED_LEADER_EPOCH, E.UNKNOWN_LEADER_EPOCH,
    E.UNKNOWN_TOPIC_OR_PARTITION, E.UNKNOWN_TOPIC_ID, E.INCONSISTENT_TOPIC_ID,
    E.BROKER_NOT_AVAILABLE,
)  # fmt: skip
_NO_ANSWER = (E.REQUEST_TIMED_OUT, E.NETWORK_EXCEPTION)


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


PRODUCE: Mapping[E, ProduceReaction] = reactions(
    {
        ProduceReaction.DONE: (E.NONE,),
        ProduceReaction.DUPLICATE: (E.DUPLICATE_SEQUENCE_NUMBER,),
        ProduceReaction.REFUSED: (
            E.LEADER_NOT_AVAILABLE, E.NOT_ENOUGH_REPLICAS, E.CORRUPT_MESSAGE, E.UNKNOWN_TOPIC_ID,
            E.INCONSISTENT_TOPIC_ID, E.FENCED_LEADER_EPOCH, E.UNKNOWN_LEADER_EPOCH,
            E.REPLICA_NOT_AVAILABLE,
        ),
        # The first three may also come after the append, when the leader stepped down, the topic
        # went, or its disk failed while it waited for the followers.
        ProduceReaction.UNKNOWN: (
            E.NOT_LEADER_OR_FOLLOWER, E.UNKNOWN_TOPIC_OR_PARTITION, E.KAFKA_STORAGE_ERROR,
            E.NOT_ENOUGH_REPLICAS_AFTER_APPEND, E.BROKER_NOT_AVAILABLE, *_NO_ANSWER,
        ),
        ProduceReaction.NEW_EPOCH: (E.OUT_OF_ORDER_SEQUENCE_NUMBER, E.UNKNOWN_PRODUCER_ID),
        ProduceReaction.FENCED: (E.INVALID_PRODUCER_EPOCH,),
        ProduceReaction.FAIL: (
            E.MESSAGE_TOO_LARGE, E.RECORD_LIST_TOO_LARGE, E.INVALID_TOPIC_EXCEPTION,
            E.INVALID_REQUIRED_ACKS, E.INVALID_TIMESTAMP, E.INVALID_REQUEST,
            E.UNSUPPORTED_FOR_MESSAGE_FORMAT, E.UNSUPPORTED_COMPRESSION_TYPE, E.POLICY_VIOLATION,
            E.INVALID_RECORD, E.INVALID_TXN_STATE, E.TRANSACTION_COORDINATOR_FENCED,
        ),
        ProduceReaction.FAIL_UNKNOWN: (
            E.UNKNOWN_SERVER_ERROR, E.NOT_CONTROLLER, E.OFFSET_OUT_OF_RANGE,
            E.OFFSET_NOT_AVAILABLE, *_NOT_OF_DATA,
        ),
    }
)  # fmt: skip


class FetchReaction(Enum):
    """See Kafka's ``FetchCollector.handleInitializeErrors``."""

    DONE = "done"
    AGAIN = "again"  # after a pause
    REFRESH = "find the leader"  # then again after a pause
    OUT_OF_RANGE = "out of range"
    FAIL = "failed"


FETCH: Mapping[E, FetchReaction] = reactions(
    {
        FetchReaction.DONE: (E.NONE,),
        FetchReaction.AGAIN: _NO_ANSWER,
        FetchReaction.REFRESH: _PASSING,
        FetchReaction.OUT_OF_RANGE: (E.OFFSET_OUT_OF_RANGE,),
        FetchReaction.FAIL: (
            E.UNKNOWN_SERVER_ERROR, E.CORRUPT_MESSAGE, E.INVALID_TOPIC_EXCEPTION,
            E.INVALID_REQUEST, E.NOT_CONTROLLER, *_OF_WRITES, *_NOT_OF_DATA,
        ),
    }
)  # fmt: skip


class AskReaction(Enum):
    """What follows from the answer to a question that changes nothing."""

    DONE = "done"
    AGAIN = "again"  # find the leader, and after a pause
    FAIL = "failed"


LIST_OFFSETS: Mapping[E, AskReaction] = reactions(
    {
        AskReaction.DONE: (E.NONE,),
        AskReaction.AGAIN: (*_PASSING, *_NO_ANSWER),
        AskReaction.FAIL: (
            E.UNKNOWN_SERVER_ERROR, E.CORRUPT_MESSAGE, E.INVALID_TOPIC_EXCEPTION,
            E.OFFSET_OUT_OF_RANGE, E.INVALID_REQUEST, E.NOT_CONTROLLER, *_OF_WRITES, *_NOT_OF_DATA,
        ),
    }
)  # fmt: skip
OFFSET_FOR_LEADER_EPOCH = LIST_OFFSETS

# Of one partition in the answer.
METADATA: Mapping[E, AskReaction] = reactions(
    {
        AskReaction.DONE: (E.NONE,),
        AskReaction.AGAIN: (*_PASSING, *_NO_ANSWER, E.UNKNOWN_SERVER_ERROR, E.NOT_CONTROLLER),
        AskReaction.FAIL: (
            E.CORRUPT_MESSAGE, E.INVALID_TOPIC_EXCEPTION, E.OFFSET_OUT_OF_RANGE,
            E.INVALID_REQUEST, *_OF_WRITES, *_NOT_OF_DATA,
        ),
    }
)  # fmt: skip

# AGAIN: another broker may be able to.
INIT_PRODUCER_ID: Mapping[E, AskReaction] = reactions(
    {
        AskReaction.DONE: (E.NONE,),
        AskReaction.AGAIN: (*_PASSING, *_NO_ANSWER, E.NOT_CONTROLLER),
        AskReaction.FAIL: (
            E.UNKNOWN_SERVER_ERROR, E.CORRUPT_MESSAGE, E.INVALID_TOPIC_EXCEPTION,
            E.OFFSET_OUT_OF_RANGE, E.INVALID_REQUEST, *_OF_WRITES, *_NOT_OF_DATA,
        ),
    }
)  # fmt: skip
