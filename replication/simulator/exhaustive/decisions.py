"""The rules under check, as one value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from logstore.segments.leader_epochs import end_offset_for
from replication.common.error_codes import ErrorCode
from replication.common.messages import EpochEndOffset
from replication.common.state import PartitionRegistration
from replication.decisions.election import change, check_alter
from replication.decisions.isr import is_awaited, is_caught_up, may_join, next_high_watermark
from replication.decisions.truncation import (
    Truncation,
    check_leader_epoch,
    diverging_epoch,
    truncation_point,
)

EpochCheck = Callable[[int, int], ErrorCode]


@dataclass(frozen=True, slots=True)
class ModelDecisions:
    """The rules. The default of each is the function that brokers and the controller use.

    The leader epoch of a fetch is checked once, with four consequences: records, a truncation,
    progress of the high watermark, membership of the ISR. They are four fields, because leaving out
    the check makes a different fault in each.
    """

    next_high_watermark: Callable[..., int] = next_high_watermark
    is_awaited: Callable[..., bool] = is_awaited
    is_caught_up: Callable[..., bool] = is_caught_up
    may_join: Callable[..., bool] = may_join
    truncation_point: Callable[..., Truncation] = truncation_point
    diverging_epoch: Callable[..., EpochEndOffset | None] = diverging_epoch
    end_offset_for: Callable[..., tuple[int, int]] = end_offset_for
    change: Callable[..., PartitionRegistration] = change
    check_alter: Callable[..., ErrorCode] = check_alter
    epoch_to_read: EpochCheck = check_leader_epoch
    epoch_to_truncate: EpochCheck = check_leader_epoch
    epoch_to_commit: EpochCheck = check_leader_epoch
    epoch_to_join: EpochCheck = check_leader_epoch
