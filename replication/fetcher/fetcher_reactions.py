"""The reactions of a fetcher to error codes: one table, and the pauses."""

from __future__ import annotations

from enum import Enum

from replication.common.error_codes import ErrorCode
from replication.common.retrying import Backoff, reactions

FIRST_PAUSE_MS = 5
FREE_TURNS = 3  # consecutive truncations and resets that a normal change of leader may need


class FetchReaction(Enum):
    """More detailed than ``retrying.Reaction``, because each of the many partitions of a fetcher
    can continue, begin elsewhere or be left out by itself.
    """

    APPLY = "apply"
    RESET = "reset"  # our offset is outside the leader's log
    SOON = "soon"  # after a short pause, which grows
    LATER = "later"  # after ``replica.fetch.backoff.ms``
    FAIL = "fail"  # not fetched until new metadata adds it again
    NEW_SESSION = "new session"  # the leader lost our session, or has another view


REACTIONS = reactions(
    {
        FetchReaction.APPLY: [ErrorCode.NONE],
        FetchReaction.RESET: [ErrorCode.OFFSET_OUT_OF_RANGE],
        # A follower often learns about a new leader before the leader does. Kafka waits for the
        # whole pause here, too.
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
    },
    otherwise=FetchReaction.LATER,
)


def pauses(longest_ms: int) -> Backoff:
    """Pauses after refusals that may be over soon.

    There is no jitter, so that partitions that were refused together are fetched together again. No
    other fetcher fetches them.

    Args:
        longest_ms: ``replica.fetch.backoff.ms``.
    """
    longest = max(1, longest_ms)
    return Backoff(min(FIRST_PAUSE_MS, longest), longest, jitter=0.0)
