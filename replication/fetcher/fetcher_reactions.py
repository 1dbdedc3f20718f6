"""What a fetcher does about each code that a leader answers with: one table, and the pauses."""

from __future__ import annotations

from enum import Enum

from replication.common.error_codes import ErrorCode
from replication.common.retrying import Backoff, reactions

FIRST_PAUSE_MS = 5
FREE_TURNS = 3  # cuts and resets in a row that a healthy change of leader may need


class FetchReaction(Enum):
    """Finer than ``retrying.Reaction``: a fetcher has many partitions on one channel, and each of
    them can go on, begin elsewhere or be left out on its own."""

    APPLY = "apply"
    RESET = "reset"  # our offset is outside the leader's log
    SOON = "soon"  # after a short pause, which grows
    LATER = "later"  # after ``replica.fetch.backoff.ms``
    FAIL = "fail"  # not fetched until newer metadata adds it again
    NEW_SESSION = "new session"  # the leader knows ours no more, or otherwise than we do


REACTIONS = reactions(
    {
        FetchReaction.APPLY: [ErrorCode.NONE],
        FetchReaction.RESET: [ErrorCode.OFFSET_OUT_OF_RANGE],
        # A follower often learns of a new leader before the leader does. Kafka waits for the whole
        # pause here, too.
        FetchReaction.SOON: [
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            ErrorCode.UNKNOWN_LEADER_EPOCH,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.UNKNOWN_TOPIC_ID,
        ],
        FetchReaction.FAIL: [ErrorCode.FENCED_LEADER_EPOCH],
        FetchReaction.NEW_SESSION: [
            ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
            ErrorCode.INVALID_FETCH_SESSION_EPOCH,
            ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
        ],
        FetchReaction.LATER: [
            ErrorCode.UNKNOWN_SERVER_ERROR,
            ErrorCode.CORRUPT_MESSAGE,
            ErrorCode.LEADER_NOT_AVAILABLE,
            ErrorCode.REQUEST_TIMED_OUT,
            ErrorCode.BROKER_NOT_AVAILABLE,
            ErrorCode.REPLICA_NOT_AVAILABLE,
            ErrorCode.MESSAGE_TOO_LARGE,
            ErrorCode.STALE_CONTROLLER_EPOCH,
            ErrorCode.NETWORK_EXCEPTION,
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            ErrorCode.RECORD_LIST_TOO_LARGE,
            ErrorCode.NOT_ENOUGH_REPLICAS,
            ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
            ErrorCode.INVALID_REQUIRED_ACKS,
            ErrorCode.INVALID_TIMESTAMP,
            ErrorCode.TOPIC_ALREADY_EXISTS,
            ErrorCode.INVALID_PARTITIONS,
            ErrorCode.INVALID_REPLICATION_FACTOR,
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            ErrorCode.INVALID_CONFIG,
            ErrorCode.NOT_CONTROLLER,
            ErrorCode.INVALID_REQUEST,
            ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
            ErrorCode.POLICY_VIOLATION,
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
            ErrorCode.INVALID_PRODUCER_EPOCH,
            ErrorCode.INVALID_TXN_STATE,
            ErrorCode.TRANSACTION_COORDINATOR_FENCED,
            ErrorCode.OPERATION_NOT_ATTEMPTED,
            ErrorCode.KAFKA_STORAGE_ERROR,
            ErrorCode.UNKNOWN_PRODUCER_ID,
            ErrorCode.REASSIGNMENT_IN_PROGRESS,
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            ErrorCode.STALE_BROKER_EPOCH,
            ErrorCode.OFFSET_NOT_AVAILABLE,
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
            ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
            ErrorCode.ELECTION_NOT_NEEDED,
            ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
            ErrorCode.INVALID_RECORD,
            ErrorCode.INVALID_UPDATE_VERSION,
            ErrorCode.INCONSISTENT_TOPIC_ID,
            ErrorCode.INELIGIBLE_REPLICA,
            ErrorCode.NEW_LEADER_ELECTED,
        ],
    }
)


def pauses(longest_ms: int) -> Backoff:
    """After refusals that may be over soon. Without jitter: partitions that were refused together
    are asked for together again, in one request, and no other fetcher asks for them.

    Args:
        longest_ms: ``replica.fetch.backoff.ms``.
    """
    longest = max(1, longest_ms)
    return Backoff(min(FIRST_PAUSE_MS, longest), longest, jitter=0.0)
