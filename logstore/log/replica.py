"""The log as replicas need it: leader epochs, roles, watermarks, and the appends of a follower."""

from __future__ import annotations

from logstore.common.shield import shielded
from logstore.common.types import Buffer
from logstore.kernels import AppendInfo
from logstore.log.core import LogCore
from logstore.log.writing.flushing import LogFlusher
from logstore.log.writing.recent import RecentAppends, RecentBudget
from logstore.log.writing.state import LogState
from logstore.log.writing.writer import LogWriter


class LogEpochs:
    """The leader epochs of a log, and where each begins."""

    def __init__(self, core: LogCore, state: LogState, flusher: LogFlusher) -> None:
        self._core = core
        self._state = state
        self._flusher = flusher

    @property
    def latest(self) -> int:
        return self._state.epochs.latest_epoch

    @property
    def entries(self) -> tuple[tuple[int, int], ...]:
        """Each epoch with its first offset."""
        with self._state.lock:
            return self._state.epochs.entries

    def end_offset_for(self, epoch: int) -> tuple[int, int]:
        """``(epoch, end offset)`` for OffsetsForLeaderEpoch (F-208)."""
        with self._state.lock:
            return self._state.epochs.end_offset_for(epoch, self._state.log_end_offset)

    def epoch_for_offset(self, offset: int) -> int | None:
        with self._state.lock:
            return self._state.epochs.epoch_for_offset(offset)

    @shielded
    def assign(self, epoch: int, start_offset: int | None = None) -> None:
        """Record a new leadership, before its first record; durable on return (F-219).

        The epoch of a log without records is durable before its first record is: a start would drop
        it (F-205), and a thousand new logs do not wait for a thousand files.
        """
        state = self._state
        with state.lock:
            self._core.check()
            start = state.log_end_offset if start_offset is None else start_offset
            state.epochs.assign(epoch, start, durable=False)
            is_empty = start == state.log_end_offset == state.log_start_offset
        if not is_empty:
            self._flusher.save_epochs()


class LogReplica:
    """The role and the watermarks of a replica. Each call returns once its change is in force."""

    def __init__(
        self, core: LogCore, state: LogState, writer: LogWriter, flusher: LogFlusher
    ) -> None:
        self._core = core
        self._state = state
        self._writer = writer
        self._flusher = flusher

    # -- roles ---------------------------------------------------------------------------------

    def lead(self, leader_epoch: int) -> int:
        """From now on accept only appends of the leader in this epoch. Returns the log end offset.

        On return no append of another role is under way. ``follow`` is the other role.
        """
        with self._state.lock:
            self._core.check()
            self._state.take_role_locked(leader_epoch, leads=True)
            return self._state.log_end_offset

    def follow(self, leader_epoch: int) -> None:
        """From now on accept only batches that were fetched in this epoch."""
        with self._state.lock:
            self._core.check()
            self._state.take_role_locked(leader_epoch, leads=False)
            self._state.producers.end_verifications()

    def append_as_follower(self, data: Buffer, leader_epoch: int | None = None) -> AppendInfo:
        """Append batches fetched from a leader: offsets, epochs and bytes stay (F-164).

        A partial batch at the end of ``data`` is left out (F-163). ``leader_epoch`` of the leader
        that sent them: no batch may have a later one, and the replica must still follow it.

        Raises:
            LeadershipEndedError: it does not, since ``lead`` or ``follow``.
            UnexpectedAppendOffsetError: the first offset is below the log end offset.
            RecordRejectedError: offsets do not ascend, leader epochs fall, or a checksum is wrong.
        """
        info = self._state.append_plain_as_follower(leader_epoch, data)
        if info is None:
            info = self._writer.append_as_follower(leader_epoch, data)
            self._flusher.after_append(info.last_offset)
        return info

    # -- watermarks ----------------------------------------------------------------------------

    @property
    def kept_end_offset(self) -> int:
        """The log end offset, except records that ``flush.messages`` does not count before their
        sync.
        """
        return min(self._core.snapshot.log_end_offset, self._state.flush_at)

    @property
    def first_unstable_offset(self) -> int | None:
        """First offset of an open or unreplicated transaction, not below the log start (F-198)."""
        with self._state.lock:
            first = self._state.producers.first_unstable_offset
            return None if first is None else max(first, self._state.log_start_offset)

    def update_high_watermark(self, offset: int) -> int:
        """Set the high watermark, clamped to [log start, log end]. Returns the new value (R-26)."""
        state = self._state
        with state.lock:
            self._core.check()
            state.set_high_watermark_locked(
                min(max(offset, state.log_start_offset), state.log_end_offset)
            )
            return state.high_watermark

    def maybe_increment_high_watermark(self, offset: int) -> int | None:
        """Advance the high watermark. Returns the old value if it moved (R-23)."""
        state = self._state
        with state.lock:
            self._core.check()
            end = state.log_end_offset
            if offset > end:
                raise ValueError(f"high watermark {offset} is above the log end {end}")
            old = state.high_watermark if state.replicated else end
            if offset <= old:
                return None
            state.set_high_watermark_locked(offset)
            return old

    @shielded
    def maybe_increment_log_start_offset(self, offset: int) -> bool:
        """Raise the log start. The next retention pass removes segments below it (F-286).

        Raises:
            OffsetOutOfRangeError: above the high watermark.
        """
        with self._state.lock:
            return self._state.delete_records_locked(offset)

    # -- recent appends ------------------------------------------------------------------------

    def keep_recent(self, budget: RecentBudget | None) -> None:
        """Keep later appends as leader in memory for a while; None keeps none."""
        state = self._state
        with state.lock:
            state.forget_recent_locked()
            state.recent = None if budget is None else RecentAppends(budget)

    def read_recent(
        self, start_offset: int, up_to: int, max_bytes: int, *, whole: bool = False
    ) -> bytes | None:
        """Return what ``read`` would, in whole appends, if they are in memory; otherwise None.

        With ``whole`` also None if there are more records.
        """
        recent, core = self._state.recent, self._core
        if recent is None:
            return None
        seen = core.snapshot
        limit = min(up_to, seen.log_end_offset)
        found = recent.read(start_offset, limit, max_bytes, whole=whole)
        # As in any read, it counts only if nothing was removed during it.
        if core.snapshot.version != seen.version or core.unreadable is not None:
            return None
        return found if start_offset >= seen.log_start_offset else None


__all__ = ["LogEpochs", "LogReplica"]
