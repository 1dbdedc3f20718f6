"""The state that all parts of a partition share: role, log and lock, and the checks of requests."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from checkpoints.types import TopicPartition
from logstore.common.errors import LogUnavailableError, StorageFailedError
from logstore.log import PartitionLog
from logstore.log.listeners import ChangeListeners
from replication.common.error_codes import ErrorCode
from replication.common.errors import KafkaStorageError, NotLeaderOrFollowerError, error_for
from replication.common.state import NO_LEADER, UNKNOWN_EPOCH, RecoveryState
from replication.decisions.isr import FollowerProgress, IsrState, effective_min_isr
from replication.decisions.truncation import check_leader_epoch
from replication.partition.env import PartitionContext

P = ParamSpec("P")
T = TypeVar("T")


NO_ISR = IsrState(())


@dataclass(frozen=True, slots=True, eq=False)
class Role:
    """The facts that every replica knows. This broker leads only if it is a ``Leadership``.

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

    log: PartitionLog
    start_offset: int
    isr: IsrState
    min_isr: int
    recovery_state: RecoveryState
    followers: dict[int, FollowerProgress]


class Replica:
    """``role``, ``log`` and ``offline`` are written under ``lock``, and read without it.

    Attributes:
        listeners: notified of each change of these, under the lock.
    """

    def __init__(self, tp: TopicPartition, env: PartitionContext) -> None:
        self.tp = tp
        self.role: Role = UNASSIGNED
        self.log: PartitionLog | None = None
        self.offline = False
        self.listeners = ChangeListeners()
        self.env = env
        self.lock = threading.RLock()

    def __repr__(self) -> str:
        role = self.role
        what = "leader" if self.is_leader else f"follower of {role.leader_id}"
        return f"Partition({self.tp}, {what}, epoch {role.leader_epoch}, {self.isr})"

    def become(self, role: Role) -> None:
        """Take a role. The lock is held, and what belongs to the role was changed before."""
        self.role = role
        if self.listeners.waiting:
            self.listeners.wake_all()

    # -- attributes ---------------------------------------------------------------------------

    @property
    def is_leader(self) -> bool:
        return type(self.role) is Leadership

    @property
    def leader_id(self) -> int:
        return self.role.leader_id

    @property
    def leader_epoch(self) -> int:
        return self.role.leader_epoch

    @property
    def partition_epoch(self) -> int:
        return self.role.partition_epoch

    @property
    def replicas(self) -> tuple[int, ...]:
        return self.role.replicas

    @property
    def epoch_start_offset(self) -> int | None:
        """The log end at the beginning of the leadership; None unless this broker leads."""
        role = self.role
        return role.start_offset if isinstance(role, Leadership) else None

    @property
    def isr(self) -> IsrState:
        """The ISR, which is empty unless this broker leads."""
        role = self.role
        return role.isr if isinstance(role, Leadership) else NO_ISR

    @property
    def min_isr(self) -> int:
        """``min.insync.replicas``, at most the number of replicas (R-20)."""
        role = self.role
        if isinstance(role, Leadership):
            return role.min_isr
        wanted = 1 if self.log is None else self.log.config.min_insync_replicas
        return effective_min_isr(wanted, max(1, len(role.replicas)))

    @property
    def under_replicated(self) -> bool:
        """Whether the ISR lacks a replica. R-174 has this and the next two."""
        role = self.role
        return isinstance(role, Leadership) and len(role.isr.committed) < len(role.replicas)

    @property
    def under_min_isr(self) -> bool:
        role = self.role
        return isinstance(role, Leadership) and len(role.isr.committed) < role.min_isr

    @property
    def at_min_isr(self) -> bool:
        role = self.role
        return isinstance(role, Leadership) and len(role.isr.committed) == role.min_isr

    @property
    def latest_epoch(self) -> int:
        return self.local_log().epochs.latest

    @property
    def log_end_offset(self) -> int:
        return self.local_log().log_end_offset

    @property
    def log_start_offset(self) -> int:
        return self.local_log().log_start_offset

    @property
    def high_watermark(self) -> int:
        return self.local_log().high_watermark

    def progress_of(self, broker_id: int) -> FollowerProgress | None:
        """The progress of a follower, if this broker leads."""
        role = self.role
        return role.followers.get(broker_id) if isinstance(role, Leadership) else None

    # -- the log, after checks -----------------------------------------------------------

    def local_log(self) -> PartitionLog:
        if self.offline:
            raise KafkaStorageError(f"{self.tp}: its log directory is offline")
        log = self.log
        if log is None:
            raise NotLeaderOrFollowerError(f"{self.tp} has no log here yet")
        return log

    def check_topic(self, topic_id: uuid.UUID | None) -> None:
        """
        Raises:
            ResponseError: the log belongs to another topic of that name (KIP-516).
        """
        if topic_id is not None and self.local_log().topic_id != topic_id:
            raise error_for(ErrorCode.INCONSISTENT_TOPIC_ID, f"{self.tp}: {topic_id}")

    def leading(self) -> Leadership:
        role = self.role
        if isinstance(role, Leadership):
            return role
        self.local_log()
        raise NotLeaderOrFollowerError(f"broker {self.env.broker_id} does not lead {self.tp}")

    def check_epoch(self, role: Role, requested: int) -> None:
        code = check_leader_epoch(requested, role.leader_epoch)
        if code is not ErrorCode.NONE:
            raise error_for(code, f"{self.tp}: epoch {requested}, here {role.leader_epoch}")

    def confirm_epoch(self, role: Role, log: PartitionLog) -> None:
        """Check that everything read from the log since ``role`` was loaded belongs to its leader
        epoch.

        Only a follower truncates a log, after the role changed.
        """
        if self.role.leader_epoch != role.leader_epoch or self.log is not log:
            raise NotLeaderOrFollowerError(f"{self.tp}: the leader changed meanwhile")

    def has_moved(self, log: PartitionLog) -> bool:
        """Whether another log has taken the place of this one, which refused work, by a move to
        another directory: then the work is for that one."""
        with self.lock:  # the move may be about to end
            return self.log is not None and self.log is not log

    def call_storage(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return call(*args, **kwargs)
        except (StorageFailedError, LogUnavailableError) as error:
            raise storage_error(error) from error


def storage_error(error: Exception) -> Exception:
    """Translate an error of a log into one of a replica."""
    if isinstance(error, StorageFailedError | LogUnavailableError):
        return KafkaStorageError(str(error))
    return error
