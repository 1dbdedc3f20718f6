"""What must hold in every state."""

from __future__ import annotations

from enum import Enum
from itertools import pairwise

from replication.common.state import NO_LEADER
from replication.simulator.exhaustive.state import Bounds, Control, Replica


class Property(Enum):
    """Named as in the TLA+ models; ``LogMatching`` is the second half of I-4."""

    TYPE_OK = "TypeOk"  # values within their ranges, watermark within the log
    LEADER_IN_ISR = "LeaderInIsr"  # if there is a leader
    WEAK_ISR = "WeakIsr"  # below a leader's watermark its own idea of the ISR holds the same
    STRONG_ISR = "StrongIsr"  # below a leader's watermark the controller's ISR holds the same
    VALID_HIGH_WATERMARK = "ValidHighWatermark"  # the leader's is within every log of the ISR
    LOG_MATCHING = "LogMatching"  # two logs are equal below the smaller watermark


def replica_type_ok(replica: Replica, bounds: Bounds) -> bool:
    log, epochs = replica.log, replica.log.epochs
    return (
        0 <= replica.high_watermark <= log.end_offset <= bounds.log_size
        and all(a.epoch < b.epoch and a.start_offset < b.start_offset for a, b in pairwise(epochs))
        and all(0 <= e.start_offset <= log.end_offset for e in epochs)
        and -1 <= replica.leader_epoch <= bounds.max_epoch
    )


def control_broken(control: Control, bounds: Bounds) -> list[Property]:
    broken = []
    members = set(control.isr)
    if not (
        control.isr
        and len(members) == len(control.isr)
        and members <= set(range(bounds.replicas))
        and control.leader_epoch <= bounds.max_epoch
    ):
        broken.append(Property.TYPE_OK)
    if control.leader != NO_LEADER and control.leader not in members:
        broken.append(Property.LEADER_IN_ISR)
    return broken


def holds_committed(leader: Replica, member: Replica) -> bool:
    """All below the leader's watermark is in the member's log."""
    end = leader.high_watermark
    return len(member.log.records) >= end and leader.log.records[:end] == member.log.records[:end]


def reaches(leader: Replica, member: Replica) -> bool:
    return member.log.end_offset >= leader.high_watermark


def logs_match(a: Replica, b: Replica) -> bool:
    end = min(a.high_watermark, b.high_watermark)
    return a.log.records[:end] == b.log.records[:end]
