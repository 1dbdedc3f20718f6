"""``Partition``: its parts, and the changes of its role."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial

from checkpoints.types import TopicPartition
from logstore.log import PartitionLog
from logstore.manager import WantedLog
from logstore.segments.open_files import with_idle_closed
from replication.common.errors import KafkaStorageError, LogAheadError
from replication.common.messages import PartitionChange
from replication.common.state import MAX_EPOCH_OF_A_LOG, RecoveryState
from replication.decisions.isr import (
    FollowerProgress,
    IsrState,
    after_election,
    effective_min_isr,
    may_start_empty,
)
from replication.partition.env import PartitionContext
from replication.partition.follower import FollowerSide
from replication.partition.isr_changes import IsrChanges
from replication.partition.leader import LeaderSide
from replication.partition.replica import Leadership, Replica, Role


class Partition(Replica):
    """See the package. All methods, also those of its parts, may be called from any thread.

    Attributes:
        leader: serves producers, consumers and followers.
        follower: serves the fetcher.
        isr_changes: counts the progress of followers.

    Raises (most methods):
        KafkaStorageError: the log directory is offline.
        NotLeaderOrFollowerError, FencedLeaderEpochError, UnknownLeaderEpochError: R-98 … R-100.
    """

    def __init__(self, tp: TopicPartition, env: PartitionContext) -> None:
        super().__init__(tp, env)
        self.isr_changes = IsrChanges(self)
        self.leader = LeaderSide(self, self.isr_changes)
        self.follower = FollowerSide(self)

    def make_leader(self, change: PartitionChange) -> bool:
        """Lead (R-12, R-13); True when requests that wait here have to look again: a new leadership
        began, or the high watermark moved.

        Raises:
            KafkaStorageError: the log could not be opened, or the epoch not be written; or the log
                names an epoch that no cluster reaches.
            LogAheadError: the log has records of this epoch, or of later ones.
            InconsistentTopicIdError: the log here belongs to another topic of that name.
            ResourceBusyError: the same for now; or the role is taken, and what may not stay
                unsynced any more is not durable yet (``IsrChanges.flush_overdue``).
        """
        changed = self._lead(change)
        return self.isr_changes.flush_overdue() or changed

    def _lead(self, change: PartitionChange) -> bool:
        new = change.registration
        with self.lock:
            before = self.role
            if self._is_old(change):
                return False
            begins = new.leader_epoch > before.leader_epoch
            leading = before if isinstance(before, Leadership) else None
            if leading and not begins and new.partition_epoch == leading.partition_epoch:
                return self._reconfigure(leading, change)
            log = self._open_log(change)
            start = 0 if leading is None else leading.start_offset
            known = {} if leading is None else leading.followers
            remote = [r for r in new.replicas if r != self.env.broker_id]
            followers = {r: known.get(r, FollowerProgress()) for r in remote}
            if begins:
                self._check_log_epoch(log, new.leader_epoch, leads=True)
                start = log.replica.lead(new.leader_epoch)  # appends of an earlier epoch end here
                log.replica.keep_recent(self.env.recent)
                assign = partial(log.epochs.assign, new.leader_epoch, start)
                self.call_storage(with_idle_closed, assign)
                now = self.env.now_ms()
                # In an epoch that we missed, another leader made followers truncate their logs:
                # what they had of ours before counts no more.
                led = leading is not None and new.leader_epoch == before.leader_epoch + 1
                followers = {
                    r: after_election(p, now, start, in_isr=r in new.isr, led_before=led)
                    for r, p in followers.items()
                }
            leading = Leadership(
                new.leader,
                new.leader_epoch,
                new.partition_epoch,
                new.replicas,
                log,
                start,
                IsrState(new.isr),
                effective_min_isr(log.config.min_insync_replicas, max(1, len(new.replicas))),
                RecoveryState.RECOVERED,
                followers,
            )
            self.become(leading)
            moved = self.isr_changes.try_high_watermark(leading)
            return begins or moved

    def _reconfigure(self, leading: Leadership, change: PartitionChange) -> bool:
        """Handle a repeated order, perhaps with another configuration of the topic.

        The lock is held.

        A change of the ISR that is under way since the first order stays so.
        """
        return self._take_min_isr(leading, self._open_log(change))

    def configure(self, config: Mapping[str, str]) -> bool:
        """Take another configuration of the topic without an order; as ``make_leader``."""
        with self.lock:
            log, role = self.log, self.role
            if log is None:
                return False
            configure = partial(self.env.log_manager.configure, log, config)
            self.call_storage(with_idle_closed, configure)
            return isinstance(role, Leadership) and self._take_min_isr(role, log)

    def _take_min_isr(self, leading: Leadership, log: PartitionLog) -> bool:
        config = log.config
        min_isr = effective_min_isr(config.min_insync_replicas, max(1, len(leading.replicas)))
        if min_isr == leading.min_isr:
            return False
        leading = dataclasses.replace(leading, min_isr=min_isr)
        self.become(leading)
        self.isr_changes.try_high_watermark(leading)
        return True

    def make_follower(self, change: PartitionChange) -> bool:
        """Follow (R-12, R-14). True if the leader epoch rose, so that the fetcher must begin again.

        Records that may no longer be unsynced wait for ``LogFlusher.flush_overdue``.

        Raises:
            KafkaStorageError, LogAheadError, InconsistentTopicIdError, ResourceBusyError: as
                ``make_leader``; the role is not taken.
        """
        new = change.registration
        with self.lock:
            if self._is_old(change):
                return False
            log = self._open_log(change)
            self._check_log_epoch(log, new.leader_epoch, leads=False)
            log.replica.follow(new.leader_epoch)
            log.replica.keep_recent(None)
            rose = new.leader_epoch > self.leader_epoch
            self.become(Role(new.leader, new.leader_epoch, new.partition_epoch, new.replicas))
            return rose

    def _check_log_epoch(self, log: PartitionLog, leader_epoch: int, *, leads: bool) -> None:
        """Refuse an election that would let epochs fall, or mean two leaderships (R-181).

        A leader must not add to records of its epoch that are there already. An epoch without a
        record is no harm: it may be left from a try that failed.
        """
        entries = log.epochs.entries
        if not entries:
            return
        last, start = entries[-1]
        if last > max(leader_epoch, MAX_EPOCH_OF_A_LOG):
            raise KafkaStorageError(
                f"{self.tp}: its log names leader epoch {last}, above {MAX_EPOCH_OF_A_LOG}: no "
                "cluster gets there, so the replica is not served"
            )
        if last > leader_epoch or (leads and last == leader_epoch and start < log.log_end_offset):
            reason = f"{self.tp}: its log knows epoch {last}, the order has {leader_epoch}"
            raise LogAheadError(reason, last)

    def _is_old(self, change: PartitionChange) -> bool:
        new, known = change.registration, self.role
        return new.partition_epoch < known.partition_epoch or new.leader_epoch < known.leader_epoch

    def wanted_log(self, change: PartitionChange) -> WantedLog:
        """The log that a role needs. Never create one in place of a failed one: it would be
        empty."""
        is_new = may_start_empty(change.registration, self.env.broker_id)
        return WantedLog(self.tp, change.topic_id, change.config, is_new)

    def _open_log(self, change: PartitionChange) -> PartitionLog:
        """Open or create the log. Its high watermark comes from the checkpoint (R-15)."""
        if self.offline:
            raise KafkaStorageError(f"{self.tp}: its log directory is offline")
        manager, wanted = self.env.log_manager, self.wanted_log(change)

        def find() -> PartitionLog:
            return manager.get_or_create(
                *self.tp, topic_id=change.topic_id, config=change.config, is_new=wanted.is_new
            )

        log = self.log or self.call_storage(with_idle_closed, find)
        if log.failed:
            raise KafkaStorageError(f"{self.tp}: its log has failed")
        if change.topic_id is not None:
            self.call_storage(log.assign_topic_id, change.topic_id)
        if change.config is not None:
            self.call_storage(with_idle_closed, partial(manager.configure, log, change.config))
        self.log = log
        return log

    def move_log(
        self, current: PartitionLog, future: PartitionLog, replace: Callable[[], None]
    ) -> bool:
        """Go on with a copy of the log.

        False if the role is being changed, or this log is not served any more. The caller holds
        locks of the log, so nothing is awaited here.

        Args:
            replace: puts the copy in place of the log, which refuses all work from then on.
        """
        if not self.lock.acquire(blocking=False):
            return False
        try:
            if self.log is not current or self.offline:
                return False
            replace()
            role, self.log = self.role, future
            current.replica.keep_recent(None)
            if isinstance(role, Leadership):
                future.replica.keep_recent(self.env.recent)
                role = dataclasses.replace(role, log=future)
            self.become(role)
            return True
        finally:
            self.lock.release()

    def mark_offline(self) -> None:
        """Take the replica offline, because its log directory failed (R-152)."""
        with self.lock:
            self.offline = True
            self._drop()

    def delete(self) -> None:
        """Remove the replica and stop serving it. The caller deletes the log."""
        with self.lock:
            self._drop()

    def _drop(self) -> None:
        if self.log is not None:
            self.log.replica.keep_recent(None)
        self.log, last = None, self.role
        self.become(Role(last.leader_id, last.leader_epoch, last.partition_epoch, last.replicas))
