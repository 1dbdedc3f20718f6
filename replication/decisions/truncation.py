"""The rules of where a follower truncates its log, and of which requests an epoch fences.

``RULES`` has three generations of the protocol; the newest is the default. The older two are kept
so that the simulator and the exhaustive check can show what they lose.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from replication.common.error_codes import ErrorCode
from replication.common.messages import EpochEndOffset
from replication.common.state import UNKNOWN_EPOCH


class TruncationRule(NamedTuple):
    """The way to find the point from which on a follower's log may differ from the leader's.

    Attributes:
        asks_leader: asks for the end of its latest epoch before it fetches (KIP-101, KIP-279).
        fences: requests carry the current leader epoch, and one of another epoch is refused
            (KIP-320).
        on_fetch: each fetch carries the epoch of the last record, and the leader answers where the
            logs diverge (KIP-595).
        asks_first: asks the leader before its first fetch too, and until the logs meet. So does who
            fetches as a consumer, since a leader may be too old to compare at a fetch. Its log has
            committed records alone, so its high watermark says nothing.
    """

    name: str
    asks_leader: bool
    fences: bool
    on_fetch: bool
    asks_first: bool = False

    def begins_truncating(self, latest_epoch: int) -> bool:
        """Whether a partition that starts to follow must truncate before it fetches (R-113)."""
        return self.asks_first or not (self.on_fetch and latest_epoch != UNKNOWN_EPOCH)

    def initial_offset(self, latest_epoch: int, high_watermark: int, log_end: int) -> int:
        """Return where a partition that starts to follow fetches from (R-112)."""
        if self.asks_first:
            return log_end
        return high_watermark if self.begins_truncating(latest_epoch) else log_end

    def must_ask(self, latest_epoch: int) -> bool:
        """Whether to ask the leader for the offset; otherwise it is the high watermark (R-130)."""
        return self.asks_leader and latest_epoch != UNKNOWN_EPOCH


HIGH_WATERMARK_RULE = TruncationRule("hw", asks_leader=False, fences=False, on_fetch=False)
EPOCH_RULE = TruncationRule("epoch", asks_leader=True, fences=False, on_fetch=False)
FETCH_RULE = TruncationRule("fetch", asks_leader=True, fences=True, on_fetch=True)
CONSUMER_RULE = FETCH_RULE._replace(name="consumer", asks_first=True)
RULES = {rule.name: rule for rule in (FETCH_RULE, EPOCH_RULE, HIGH_WATERMARK_RULE)}


class Truncation(NamedTuple):
    """Truncate to ``offset``. Unless ``finished``, ask again with the latest epoch left (R-135)."""

    offset: int
    finished: bool


def truncation_point(
    answer: EpochEndOffset,
    end_offset_for: Callable[[int], EpochEndOffset],
    log_end: int,
    initial_offset: int,
) -> Truncation:
    """Apply the leader's answer about our latest epoch to our log (R-132 … R-136).

    Args:
        answer: the epoch the leader found at or below ours, and where it ends there.
        end_offset_for: the same question to our own log (F-208).
        initial_offset: our high watermark, used if the leader knows no epoch.
    """
    if answer.end_offset < 0:
        return Truncation(initial_offset, True)
    if answer.epoch == UNKNOWN_EPOCH:
        return Truncation(min(answer.end_offset, log_end), True)
    own = end_offset_for(answer.epoch)
    if own.end_offset < 0:
        return Truncation(min(answer.end_offset, log_end), True)
    if own.epoch != answer.epoch:
        return Truncation(min(own.end_offset, log_end), False)
    return Truncation(min(answer.end_offset, own.end_offset, log_end), True)


def diverging_epoch(
    found: EpochEndOffset, fetch_offset: int, last_fetched_epoch: int
) -> EpochEndOffset | None:
    """Return where a follower's log diverges from ours before ``fetch_offset``, or None (R-104).

    ``found`` is our end offset for ``last_fetched_epoch``, which must be known (R-102).
    """
    if found.epoch < last_fetched_epoch or found.end_offset < fetch_offset:
        return found
    return None


def cannot_be_compared(found: EpochEndOffset, fetch_offset: int, log_start: int) -> bool:
    """Whether everything that a follower has lies below our log start, while we have no record of
    the epoch of its last record. It may then have followed another leader. ``found`` is as above,
    and not diverging.
    """
    return 0 < fetch_offset == log_start and found.end_offset <= log_start


def check_leader_epoch(requested: int, current: int) -> ErrorCode:
    """Refuse a request of another leadership. −1 is not checked (R-99, R-100)."""
    if requested in (UNKNOWN_EPOCH, current):
        return ErrorCode.NONE
    if requested < current:
        return ErrorCode.FENCED_LEADER_EPOCH
    return ErrorCode.UNKNOWN_LEADER_EPOCH
