"""What a replica is, as one value: whoever took it sees all of it, and nothing of the next."""

from __future__ import annotations

from dataclasses import dataclass

from logstore.log import ReplicaLog
from replication.common.state import NO_LEADER, UNKNOWN_EPOCH, RecoveryState
from replication.decisions.isr import IsrState, Progress

NO_ISR = IsrState(())


@dataclass(frozen=True, slots=True, eq=False)
class Role:
    """What every replica knows; this broker leads only if it is a ``Leadership``.

    Replaced whole under the partition's lock. Its leader epoch never falls, so what was read
    between two looks at the same leader epoch is of that epoch.
    """

    leader_id: int
    leader_epoch: int
    partition_epoch: int
    replicas: tuple[int, ...]


UNASSIGNED = Role(NO_LEADER, UNKNOWN_EPOCH, -1, ())


@dataclass(frozen=True, slots=True, eq=False)
class Leadership(Role):
    """This broker leads.

    Attributes:
        log: of this leadership; of all its appends.
        start_offset: the log end when it began.
        min_isr: effective minimum of in-sync replicas (R-20).
        followers: what is known of each; by reference, one for all values between two orders of the
            controller. Its keys never change, its values only under the partition's lock.
    """

    log: ReplicaLog
    start_offset: int
    isr: IsrState
    min_isr: int
    recovery_state: RecoveryState
    followers: dict[int, Progress]
