"""The states of a group, which may follow which (W-101), and the errors that clients are answered
in each and when the log refuses a record (W-114)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from replication.common.error_codes import ErrorCode


class GroupState(Enum):
    """Names as clients read them."""

    EMPTY = "Empty"  # no members; there may be offsets
    PREPARING_REBALANCE = "PreparingRebalance"  # members join
    COMPLETING_REBALANCE = "CompletingRebalance"  # all have joined; the leader assigns
    STABLE = "Stable"  # every member has its assignment
    DEAD = "Dead"  # deleted


PREDECESSORS: Final[Mapping[GroupState, frozenset[GroupState]]] = {
    GroupState.EMPTY: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.PREPARING_REBALANCE: frozenset(
        {GroupState.STABLE, GroupState.COMPLETING_REBALANCE, GroupState.EMPTY}
    ),
    GroupState.COMPLETING_REBALANCE: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.STABLE: frozenset({GroupState.COMPLETING_REBALANCE}),
    GroupState.DEAD: frozenset(GroupState),
}


MEMBER_ERRORS: Final[Mapping[GroupState, ErrorCode]] = {
    GroupState.EMPTY: ErrorCode.UNKNOWN_MEMBER_ID,
    GroupState.PREPARING_REBALANCE: ErrorCode.REBALANCE_IN_PROGRESS,
    GroupState.COMPLETING_REBALANCE: ErrorCode.NONE,
    GroupState.STABLE: ErrorCode.NONE,
    GroupState.DEAD: ErrorCode.UNKNOWN_MEMBER_ID,
}
"""The answer to SyncGroup and Heartbeat of a member of this generation (W-109, W-110)."""

_TO_CLIENTS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
}
_TOO_LARGE = (
    ErrorCode.MESSAGE_TOO_LARGE,
    ErrorCode.RECORD_LIST_TOO_LARGE,
)

COMMIT_ERRORS: Final[Mapping[ErrorCode, ErrorCode]] = {
    **{code: code for code in ErrorCode},
    **_TO_CLIENTS,
    **dict.fromkeys(_TOO_LARGE, ErrorCode.INVALID_COMMIT_OFFSET_SIZE),
}
"""By the error of the append; what is not listed here clients get as it is."""

GROUP_ERRORS: Final[Mapping[ErrorCode, ErrorCode]] = {
    **{code: code for code in ErrorCode},
    **_TO_CLIENTS,
    **dict.fromkeys(_TOO_LARGE, ErrorCode.UNKNOWN_SERVER_ERROR),
}


@dataclass(slots=True)
class GroupStats:
    """Counts of all groups of a broker since its start, for metrics. Changed in the turns of the
    coordinator's actor, and read from any thread."""

    completed_rebalances: int = 0
    committed_offsets: int = 0
    expired_offsets: int = 0
