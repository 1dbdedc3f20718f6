"""The states of a group, and which may follow which (W-101)."""

from __future__ import annotations

from collections.abc import Mapping
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
"""What a member of the present generation is answered to SyncGroup and Heartbeat (W-109, W-110)."""
