"""Appends to a log, and rolls.

An append is checked, placed after the last one, written to the page cache and published. Nothing
here waits for a disk: a roll leaves the sync of the old segment to ``LogFlusher.upkeep``, and an
append that meets a truncation that is not durable yet releases the lock until it is.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from logstore.common.config import MAX_INT, MAX_LONG
from logstore.common.disk_errors import is_busy
from logstore.common.errors import (
    CorruptBatchError,
    InvalidRecordError,
    InvalidTimestampError,
    InvariantError,
    LeadershipEndedError,
    RecordListTooLargeError,
)
from logstore.common.forks import register
from logstore.common.shield import run_shielded, shield_needed, shielded
from logstore.common.types import Buffer
from logstore.format import filenames
from logstore.kernels import AppendInfo, BatchAnalysis, analyse_batches
from logstore.log.core import LogCore
from logstore.log.writing.state import LogState, TruncationPhase, UnsettledRoll
from logstore.log.writing.validation import (
    Prepared,
    ProducerUpdates,
    analyse,
    check_batch_size,
    check_follower,
    check_producers,
    headers,
    prepare_leader,
    refusal_of_damaged,
)
from logstore.segments.open_files import close_idle, closed_for_appends, opened_for_appends
from logstore.segments.producer_state import AppendOrigin, TransactionCheck
from logstore.segments.segment import Segment


class LogWriter:
    """Appends to a log. Methods named ``…_locked`` need the WRITE lock."""

    def __init__(self, core: LogCore, state: LogState) -> None:
        self._core = core
        self._state = state
        self.await_truncation: Callable[[], None]  # until it is durable; without the lock
        self.await_flush: Callable[[], None]  # waits for all to be durable; without the lock
        register(self)

    def disown(self, pid: int) -> None:
        """See `forks.Inherited`."""
        self._core.disown(pid)
        closed_for_appends(self)
        for segment in self._state.segments:
            segment.disown()

    # -- appends -------------------------------------------------------------------------------

    def append_own(self, batch: bytearray, leader_epoch: int | None) -> AppendInfo:
        """Append a batch that this library encoded itself, so that only its header is looked at."""
        if not batch:
            raise InvalidRecordError("an append without records")
        info = self._state.append_plain_own(batch, leader_epoch)
        if info is not None:
            return info
        state, limit = self._state, self._core.config.max_message_bytes
        analysis = analyse(batch, max_batch_size=limit, deep=False, check_crc=False)
        with state.lock:
            self.enter_locked()
            config = self._core.config  # may have changed since the analysis
            epoch = max(state.epochs.latest_epoch, 0) if leader_epoch is None else leader_epoch
            if state.largest_decides:
                check_batch_size(analysis, config)
                self._check_timestamps_locked(analysis.max_timestamp)
                prepared = Prepared(batch, analysis)
            else:
                now_ms = self._core.clock.wall_ms()
                prepared = prepare_leader(batch, analysis, config, AppendOrigin.CLIENT, now_ms)
            return self._append_locked(prepared, epoch, AppendOrigin.CLIENT)

    def append_as_leader(
        self,
        data: Buffer,
        leader_epoch: int,
        origin: AppendOrigin,
        check: TransactionCheck = TransactionCheck.NONE,
    ) -> AppendInfo:
        """Append as `PartitionLog.append_as_leader`."""
        data = _own(data)
        deep = origin is AppendOrigin.CLIENT
        state = self._state
        with state.lock:
            self.enter_locked()
            if state.led_epoch is not None and state.led_epoch != leader_epoch:
                raise LeadershipEndedError(self._core.directory, leader_epoch, state.role_epoch)
            config = self._core.config
            try:
                limit = config.max_message_bytes
                analysis = analyse_batches(data, max_batch_size=limit, deep=deep)
            except CorruptBatchError as error:
                raise refusal_of_damaged(data, error, config, origin) from None
            if analysis.batch_count == 0:
                raise InvalidRecordError("no whole batch in the append")
            now_ms = self._core.clock.wall_ms()
            state.timestamp_limit = min(now_ms + config.message_timestamp_after_max_ms, MAX_LONG)
            prepared = prepare_leader(data, analysis, config, origin, now_ms)
            return self._append_locked(prepared, leader_epoch, origin, check)

    def append_as_follower(self, leader_epoch: int | None, data: Buffer) -> AppendInfo:
        """Append as `LogReplica.append_as_follower`."""
        data = _own(data)
        analysis = analyse(data, max_batch_size=2**31 - 1, deep=False)
        if analysis.last_offset - analysis.first_offset > MAX_INT and analysis.magic_min >= 2:
            return append_parts(data, analysis, partial(self.append_as_follower, leader_epoch))
        state = self._state
        with state.lock:
            self.enter_locked()
            if analysis.batch_count == 0:
                return AppendInfo(-1, -1, -1, -1, state.log_start_offset, 0, 0)
            # Such a gap would make a segment whose base does not follow the one before. While that
            # one is not durable, a start would take the gap for a lost tail.
            while (
                analysis.last_offset - state.log_end_offset > MAX_INT
                and state.synced < state.log_end_offset
            ):
                self._without_lock(self.await_flush)
                self.enter_locked()
            # Checked after the last moment without the lock.
            if state.followed_epoch is not None and leader_epoch not in (
                None,
                state.followed_epoch,
            ):
                raise LeadershipEndedError(self._core.directory, leader_epoch, state.role_epoch)
            check_follower(data, analysis, state.log_end_offset, state.epochs, leader_epoch)
            return self._append_locked(Prepared(data, analysis), None, AppendOrigin.REPLICATION)

    def enter_locked(self) -> None:
        """Before any append, check that the log accepts work and that no truncation is pending."""
        self._core.check()
        while self._state.truncation is not TruncationPhase.NONE:
            self._without_lock(self.await_truncation)
            self._core.check()

    @shielded  # otherwise the lock might be free where its holder goes on
    def _without_lock(self, wait: Callable[[], None]) -> None:
        self._state.lock.release()
        try:
            wait()
        finally:
            self._state.lock.acquire()

    def _check_timestamps_locked(self, max_timestamp: int) -> None:
        if max_timestamp > self._state.timestamp_limit:
            after_max_ms = self._core.config.message_timestamp_after_max_ms
            limit = min(self._core.clock.wall_ms() + after_max_ms, MAX_LONG)
            self._state.timestamp_limit = limit
            if max_timestamp > limit:
                raise InvalidTimestampError(
                    f"timestamp {max_timestamp} is above the largest allowed, {limit}"
                )

    def _append_locked(
        self,
        prepared: Prepared,
        leader_epoch: int | None,
        origin: AppendOrigin,
        check: TransactionCheck = TransactionCheck.NONE,
    ) -> AppendInfo:
        """Append, which is steps 5 to 12 of F-161."""
        state, analysis, limit = self._state, prepared.analysis, self._core.config.segment_bytes
        leo = state.log_end_offset
        # A follower accepts what its leader has, whose segments may date from larger limits.
        if analysis.size > (MAX_INT if leader_epoch is None else limit):
            raise RecordListTooLargeError(
                f"an append of {analysis.size} bytes is above segment.bytes {limit}"
            )
        if leader_epoch is None:
            first, last = analysis.first_offset, analysis.last_offset
        else:
            first, last = leo, leo + analysis.record_count - 1
            if leader_epoch < 0:
                raise InvalidRecordError(f"leader epoch {leader_epoch} is not valid")
        if last >= MAX_LONG:
            raise InvalidRecordError(f"no offset is left after {leo}")
        updates: ProducerUpdates | None = None
        if analysis.has_producer:
            checked = check_producers(
                state.producers,
                prepared.data,
                analysis.size,
                -1 if leader_epoch is None else leo,
                origin,
                state.log_start_offset,
                check,
            )
            if isinstance(checked, AppendInfo):
                return checked
            updates = checked
        if shield_needed() and not self._repeats_locked(analysis, last, leader_epoch, updates):
            return run_shielded(
                partial(self._place_locked, prepared, first, last, leader_epoch, updates)
            )
        return self._place_locked(prepared, first, last, leader_epoch, updates)

    def _repeats_locked(
        self,
        analysis: BatchAnalysis,
        last: int,
        leader_epoch: int | None,
        updates: ProducerUpdates | None,
    ) -> bool:
        """Whether an append is one write, and what follows it may be done twice."""
        active = self._state.segments.active.state
        return (
            leader_epoch == self._state.epochs.latest_epoch
            and active.attached
            and active.rolling_timestamp >= 0
            and not active.must_roll(analysis.size, last, analysis.max_timestamp, 0)
            and (updates is None or updates.idempotent)
        )

    def _place_locked(
        self,
        prepared: Prepared,
        first: int,
        last: int,
        leader_epoch: int | None,
        updates: ProducerUpdates | None,
    ) -> AppendInfo:
        """Write a checked append, and take over what it changes.

        ``leader_epoch`` None keeps the offsets and epochs of the batches.
        """
        data, analysis, append_time = prepared
        state, core = self._state, self._core
        size, leo = analysis.size, state.log_end_offset
        with core.doing("append"):
            segment = self._segment_for_locked(size, first, last, analysis.max_timestamp)
        if updates is not None and updates.aborted:
            # First, because a transaction counts as decided once the index has its abort.
            with core.doing("append to the transaction index"):
                segment.txn_index.append(*updates.aborted)
        self._assign_epochs_locked(data, analysis, leader_epoch, leo)
        try:
            with core.doing("append", whole=False):
                if leader_epoch is None:
                    segment.append(data, size, -1, -1)
                else:
                    segment.append(data, size, leo, leader_epoch)
                    if state.recent is not None:
                        base = segment.base_offset
                        state.recent.add(data, size, first, last + 1, leader_epoch, base)
            if updates is not None:
                self._update_producers_locked(updates)
            state.publish_locked()
        except BaseException:
            self._finish_locked(updates)
            raise
        start, count = state.log_start_offset, analysis.record_count
        return AppendInfo(first, last, analysis.max_timestamp, append_time, start, count, size)

    @shielded
    def _finish_locked(self, updates: ProducerUpdates | None) -> None:
        """After an interrupt behind the write, do what was not done, or not to its end."""
        state = self._state
        if state.log_end_offset == self._core.snapshot.log_end_offset:
            return  # nothing was written, or all is done
        state.forget_recent_locked()
        if updates is not None:
            self._update_producers_locked(updates)
        state.publish_locked()

    def _segment_for_locked(self, size: int, first: int, last: int, max_timestamp: int) -> Segment:
        """The active segment, rolled if the append needs a new one."""
        segment = self._state.segments.active
        active = segment.state
        if not active.attached:
            self._activate_locked(segment)
        now_ms = self._core.clock.wall_ms() if active.rolling_timestamp < 0 else 0
        if active.must_roll(size, last, max_timestamp, now_ms):
            end = self._state.log_end_offset
            # Kafka uses the first offset as base even after a gap; an index can span small gaps.
            self.roll_locked(end if last - end <= MAX_INT else max(end, first))
        return self._state.segments.active

    def _assign_epochs_locked(
        self, data: Buffer, analysis: BatchAnalysis, leader_epoch: int | None, leo: int
    ) -> None:
        """Note the epochs of the batches.

        The file is written soon after: recovery reads epochs from the batches, and the recovery
        point does not pass them before.
        """
        epochs = self._state.epochs
        if leader_epoch is not None:
            if leader_epoch != epochs.latest_epoch:
                epochs.assign(leader_epoch, leo, durable=False)
                self._state.epochs_due = True
        elif analysis.magic_max < 2:
            epochs.clear(durable=False)
        elif analysis.max_epoch != analysis.min_epoch or analysis.last_epoch != epochs.latest_epoch:
            for header in headers(data, analysis.size):
                if header.leader_epoch != epochs.latest_epoch:
                    epochs.assign(header.leader_epoch, header.base_offset, durable=False)
                    self._state.epochs_due = True

    def _update_producers_locked(self, updates: ProducerUpdates) -> None:
        state = self._state
        for append in updates.appends:
            state.producers.update(append)
        for completed in updates.completed:
            state.producers.complete(completed)
        if not state.replicated:
            state.producers.on_high_watermark(state.log_end_offset)
        state.refresh_unstable_locked()

    # -- rolls ---------------------------------------------------------------------------------

    def try_idle(self) -> bool:
        """Release descriptors, as `open_files.IdleLog`."""
        if not self._state.lock.acquire(blocking=False):
            return False
        try:
            active = self._state.segments.active
            if (
                self._core.failure is not None
                or self._state.truncation is not TruncationPhase.NONE
                or active.state.cut_pending
            ):
                return False  # a close or a truncation works on the files without the lock
            active.release_descriptors()
            return True
        finally:
            self._state.lock.release()

    def _activate_locked(self, segment: Segment) -> None:
        released = segment.is_released
        try:
            segment.activate()
        except OSError as error:
            if not is_busy(error):
                raise
            close_idle()
            segment.activate()
        opened_for_appends(self)
        if released:
            return
        jitter = min(self._core.config.segment_jitter_ms, self._core.config.segment_ms)
        if jitter:
            drawn = int(self._core.owner.random_id(), 16) % jitter
            segment.state.max_segment_ms = self._core.config.max_segment_ms - drawn

    def roll_locked(self, new_base: int) -> None:
        """Begin a new segment (F-146, F-147).

        It keeps the suffix ``.swap`` until the old one is durable. Otherwise a crash could keep the
        new segment and lose the end of the old one, which would leave a hole (S-36).

        Raises:
            OSError: a resource is short. Only stray files may be left.
        """
        state = self._state
        active, leo = state.segments.active, state.log_end_offset
        if active.base_offset == new_base:
            if active.size:
                raise InvariantError(
                    f"{self._core.directory}: a segment at {new_base} exists already"
                )
            active.renew_indexes()  # only the index was full
            return
        follows = new_base == leo  # otherwise all before it is durable, see append_as_follower
        segment = state.new_segment(new_base, filenames.SWAP_SUFFIX if follows else "")
        segment.create()
        try:
            segment.state.next_offset = leo  # a base above it is a gap, not an end (F-145)
            self._activate_locked(segment)
            producers = state.producers
            producers.map_end_offset = max(producers.map_end_offset, new_base)
            snapshot = producers.take_snapshot(sync=False)
            view = active.seal()
        except (OSError, MemoryError):
            segment.remove_files()
            raise
        state.sealed = (*state.sealed, view)
        state.segments.add(segment)
        state.unsettled.append(UnsettledRoll(active, segment, snapshot))
        state.upkeep_due = True
        state.publish_locked()


def append_parts(
    data: bytes, analysis: BatchAnalysis, append: Callable[[bytes], AppendInfo]
) -> AppendInfo:
    """Append batches in parts, because they are too far apart for one segment."""
    limit = analysis.first_offset + MAX_INT
    at = next(
        header.position
        for header in headers(data, analysis.size)
        if header.base_offset + header.last_offset_delta > limit
    )
    first, rest = append(data[:at]), append(data[at:])
    return AppendInfo(
        first.first_offset,
        rest.last_offset,
        max(first.max_timestamp, rest.max_timestamp),
        -1,
        rest.log_start_offset,
        first.record_count + rest.record_count,
        first.size + rest.size,
    )


def _own(data: Buffer) -> bytes:
    """A copy of bytes that could be changed while they are checked and written."""
    return data if type(data) is bytes else bytes(data)


__all__ = ["LogWriter"]
