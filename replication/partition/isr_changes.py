"""A leader's high watermark, the progress of its followers, and its proposals for the ISR."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from replication.common.error_codes import ErrorCode
from replication.common.messages import AlterPartitionItem, AlterPartitionResult, FetchPartition
from replication.decisions.isr import (
    IdleFetch,
    IsrState,
    after_fetch,
    is_awaited,
    is_caught_up,
    may_join,
    next_high_watermark,
    settled,
)
from replication.partition.replica import Leadership, Replica

# Verdicts after which new metadata of the partition is on its way. After any other
# refusal the proposal is withdrawn. Retries never come here, because the channel retries.
_UNDECIDED = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NEW_LEADER_ELECTED,
    }
)

Proposal = tuple[AlterPartitionItem, IsrState]


class IsrChanges:
    """The part of a leader that counts the progress of followers."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._env = replica.env

    # -- high watermark ------------------------------------------------------------------------

    def try_high_watermark(self, leading: Leadership) -> bool:
        """Advance the high watermark if possible. True if it moved (R-21 … R-25).

        May be called with or without the lock. The check without the lock is enough if nothing
        moves, as after most appends. Everything that changes the result has its own check later: a
        follower that fetches the appended records, and a change of the ISR.
        """
        # With a leader alone each append moves it.
        if leading.followers and self._next_high_watermark(leading) is None:
            return False
        with self._replica.lock:
            now = self._replica.role
            if not isinstance(now, Leadership) or now.leader_epoch != leading.leader_epoch:
                return False
            return self._advance_locked(now)

    def _advance_locked(self, leading: Leadership) -> bool:
        """As ``try_high_watermark``, of the present role. The lock is held."""
        target = self._next_high_watermark(leading)
        replica = leading.log.replica
        return target is not None and replica.maybe_increment_high_watermark(target) is not None

    def _next_high_watermark(self, leading: Leadership) -> int | None:
        """None if it stays."""
        # The log end last: by then the log has what an awaited follower has.
        log = leading.log
        high_watermark = log.core.snapshot.high_watermark
        kept = log.replica.kept_end_offset
        if kept <= high_watermark:
            return None
        target = next_high_watermark(
            high_watermark,
            kept,
            self._awaited_ends(leading, log.log_end_offset) if leading.followers else (),
            len(leading.isr.committed),
            leading.min_isr,
        )
        return None if target == high_watermark else target

    def retry_high_watermark(self) -> bool:
        """``try_high_watermark`` of a leader, when a replica outside the ISR may not be awaited any
        more: its broker went, or it has not fetched for long. Neither brings a fetch."""
        leading = self._replica.role
        return isinstance(leading, Leadership) and self.try_high_watermark(leading)

    def flush_overdue(self) -> bool:
        """Sync records whose append could not sync for lack of a resource, and try the high
        watermark again.

        Until then they are not committed. True if the high watermark moved.

        Raises:
            ResourceBusyError: the resource is still short.
            KafkaStorageError: the log is offline.
        """
        leading = self._replica.role
        if not isinstance(leading, Leadership):
            return False
        log = leading.log
        if log.replica.kept_end_offset != log.log_end_offset:
            self._replica.call_storage(log.flusher.flush_overdue)
        return self.retry_high_watermark()

    def _awaited_ends(self, leading: Leadership, log_end: int) -> Iterator[int]:
        """Log ends of awaited replicas, the ISR first, because usually one of its members holds the
        high watermark.
        """
        maximal, followers = leading.isr.maximal, leading.followers
        others = []
        for broker_id, known in followers.items():
            if is_awaited(broker_id in maximal, False, False):
                yield known.log_end
            elif broker_id not in maximal:
                others.append((broker_id, known))
        if not others:
            return
        env, now = self._env, self._env.now_ms()
        lag = env.config.replica_lag_time_max_ms
        for broker_id, known in others:
            caught_up = is_caught_up(known, log_end, now, lag)
            if is_awaited(False, caught_up, env.metadata.eligible(broker_id, known.broker_epoch)):
                yield known.log_end

    # -- followers -----------------------------------------------------------------------------

    def note_fetch(
        self,
        leading: Leadership,
        replica_id: int,
        replica_epoch: int,
        part: FetchPartition,
        leader_end: int,
    ) -> tuple[bool, Proposal | None]:
        """Note progress (R-7). The lock is held.

        Returns whether the high watermark moved, and what to propose.
        """
        known = leading.followers.get(replica_id)
        if known is None:  # removed from the assignment during the read
            return False, None
        now_ms = self._env.now_ms()
        after = after_fetch(
            known, part.fetch_offset, part.log_start_offset, now_ms, leader_end, replica_epoch
        )
        leading.followers[replica_id] = after
        if known.idle is not None:
            known.idle.wake()  # a fetch outside the session, whose view may be wrong now
        isr, proposal = leading.isr, None
        if replica_id not in isr.maximal and may_join(
            after.log_end,
            leading.log.high_watermark,
            leading.start_offset,
            in_isr=False,
            in_flight=isr.in_flight,
            eligible=self._env.metadata.eligible(replica_id, replica_epoch),
        ):
            proposal = self._propose(leading, (*isr.committed, replica_id))
        moved = after.log_end != known.log_end and self._advance_locked(self._replica.leading())
        return moved, proposal

    def let_follower_idle(self, replica_id: int, fetch_offset: int, idle: IdleFetch) -> bool:
        """From now on ``idle`` notes the fetches of a follower that is in sync and fetches at the
        log end. False if it is not; then ``fetch`` notes each.
        """
        with self._replica.lock:
            leading = self._replica.role
            if not isinstance(leading, Leadership) or replica_id not in leading.isr.committed:
                return False
            known = leading.followers.get(replica_id)
            if known is None or known.idle not in (None, idle):
                return False
            ends = {known.log_end, known.leader_end_at_fetch, leading.log.log_end_offset}
            if ends != {fetch_offset}:
                return False
            leading.followers[replica_id] = known._replace(idle=idle)
            return True

    def wake_follower(self, replica_id: int, idle: IdleFetch) -> None:
        """``idle`` notes no more fetches. What it has noted stays."""
        with self._replica.lock:
            leading = self._replica.role
            if isinstance(leading, Leadership):
                known = leading.followers.get(replica_id)
                if known is not None and known.idle is idle:
                    leading.followers[replica_id] = settled(known)

    # -- ISR -----------------------------------------------------------------------------------

    def maybe_shrink_isr(self) -> None:
        """Propose to remove members that have not kept up (R-32)."""
        proposal = None
        with self._replica.lock:
            leading = self._replica.role
            if not isinstance(leading, Leadership) or leading.isr.in_flight:
                return
            now, log_end = self._env.now_ms(), leading.log.log_end_offset
            lag, followers = self._env.config.replica_lag_time_max_ms, leading.followers
            stay = tuple(
                r
                for r in leading.isr.committed
                if r not in followers or is_caught_up(followers[r], log_end, now, lag)
            )
            if stay != leading.isr.committed:
                proposal = self._propose(leading, stay)
        if proposal is not None:
            self.submit(*proposal)

    def _propose(self, leading: Leadership, members: tuple[int, ...]) -> Proposal:
        """Make a proposal, which counts as pending before it is sent: from now on the high
        watermark waits for both ISRs (R-33).
        """
        pending = IsrState(leading.isr.committed, members)
        self._replica.become(replace(leading, isr=pending))
        followers, own_epoch = leading.followers, self._env.own_epoch()
        epochs = tuple(
            (r, followers[r].broker_epoch if r in followers else own_epoch) for r in members
        )
        item = AlterPartitionItem(
            self._replica.tp,
            leading.leader_epoch,
            leading.partition_epoch,
            epochs,
            leading.recovery_state,
            leading.log.topic_id,
        )
        return item, pending

    def submit(self, item: AlterPartitionItem, pending: IsrState) -> None:
        if not self._env.isr_channel.submit(item, lambda r: self._on_result(item, pending, r)):
            refused = AlterPartitionResult(self._replica.tp, ErrorCode.OPERATION_NOT_ATTEMPTED)
            self._on_result(item, pending, refused)

    def _on_result(
        self, item: AlterPartitionItem, pending: IsrState, result: AlterPartitionResult
    ) -> None:
        """Apply the controller's answer to a proposal (R-35 … R-40)."""
        code, moved, kind = result.error_code, False, "failed"
        with self._replica.lock:
            leading = self._replica.role
            if not isinstance(leading, Leadership) or leading.isr is not pending:
                return  # new metadata came first
            if code is ErrorCode.NONE:
                stale = result.partition_epoch < leading.partition_epoch
                if result.leader_epoch != leading.leader_epoch or stale:
                    return
                kind = "expand" if len(result.isr) > len(pending.committed) else "shrink"
                leading = replace(
                    leading,
                    isr=IsrState(result.isr),
                    partition_epoch=result.partition_epoch,
                    recovery_state=result.recovery_state,
                    # The controller may have raised it, and then relies on it for replicas that
                    # left the ISR. So it must not take effect later than the ISR.
                    min_isr=max(leading.min_isr, result.min_isr),
                )
                self._replica.become(leading)
                moved = self.try_high_watermark(leading)
            elif code not in _UNDECIDED:
                self._replica.become(replace(leading, isr=IsrState(pending.committed)))
        self._env.on_isr_change(self._replica.tp, kind)
        if moved:
            self._env.on_high_watermark(self._replica.tp)
