"""The role of a replica as one immutable value."""

from __future__ import annotations

from dataclasses import dataclass

from logstore.log import ReplicaLog
from replication.common.state import NO_LEADER, UNKNOWN_EPOCH, RecoveryState
from replication.decisions.isr import FollowerProgress, IsrState

NO_ISR = IsrState(())


@dataclass(frozen=True, slots=True, eq=False)
class Role:
    """What every replica knows. This broker leads only if it is a ``Leadership``.

    It is replaced as a whole under the partition's lock. Its leader epoch never falls, so
    everything read between two loads of the same leader epoch belongs to that epoch.
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
        log: the log of this leadership and of all its appends.
        start_offset: the log end when it began.
        min_isr: effective minimum of in-sync replicas (R-20).
        followers: the progress of each follower. All roles between two orders of the controller
            share this dict. Its keys never change, its values only under the partition's lock.
    """

    log: ReplicaLog
    start_offset: int
    isr: IsrState
    min_isr: int
    recovery_state: RecoveryState
    followers: dict[int, FollowerProgress]
