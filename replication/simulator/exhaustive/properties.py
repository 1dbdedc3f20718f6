"""The properties that hold in every state."""

from __future__ import annotations

from enum import Enum
from itertools import pairwise

from replication.common.state import NO_LEADER
from replication.simulator.exhaustive.state import Bounds, Control, ModelReplica


class Property(Enum):
    """Named as in the TLA+ models; ``LogMatching`` is the second half of I-4."""

    TYPE_OK = "TypeOk"  # values within their ranges, watermark within the log
    LEADER_IN_ISR = "LeaderInIsr"  # if there is a leader
    WEAK_ISR = "WeakIsr"  # below its watermark the leader's own ISR has the same
    STRONG_ISR = "StrongIsr"  # all members of the controller's ISR have the same records below it
    VALID_HIGH_WATERMARK = "ValidHighWatermark"  # the leader's is within every log of the ISR
    LOG_MATCHING = "LogMatching"  # two logs are equal below the smaller watermark


def replica_type_ok(replica: ModelReplica, bounds: Bounds) -> bool:
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


def holds_committed(leader: ModelReplica, member: ModelReplica) -> bool:
    """Whether the member's log has everything below the leader's watermark."""
    end = leader.high_watermark
    return len(member.log.records) >= end and leader.log.records[:end] == member.log.records[:end]


def reaches(leader: ModelReplica, member: ModelReplica) -> bool:
    return member.log.end_offset >= leader.high_watermark


def logs_match(a: ModelReplica, b: ModelReplica) -> bool:
    end = min(a.high_watermark, b.high_watermark)
    return a.log.records[:end] == b.log.records[:end]
