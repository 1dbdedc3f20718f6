"""Copy a log into another log directory, and let the copy take its place (KIP-113).

The copy is a log of its own, which nobody uses before it has taken the place. It has the bytes of
the log as they are, batch by batch. What the log loses meanwhile, by a truncation or at its start,
the copy loses with the next step.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from logstore.common.errors import (
    CorruptDataError,
    LogMovedError,
    OffsetOutOfRangeError,
    UnexpectedAppendOffsetError,
)
from logstore.common.shield import shielded
from logstore.log.listeners import NO_TRUNCATION
from logstore.log.partition_log import PartitionLog
from logstore.log.reading.fetching import fetch
from logstore.log.snapshot import LogView
from logstore.log.writing.state import TruncationPhase

PIECE_BYTES = 1 << 20  # of what is copied while a lock is held
FREE_PIECES, HELD_PIECES = 64, 4  # how many at most while syncs wait, and then while appends do


class LogCopy:
    """A copy that catches up. For one thread at a time.

    Attributes:
        current: the log, which goes on.
        future: its copy.
        cleaned: below which offset the log was clean when the copy began; None if nobody knows.
    """

    def __init__(
        self, current: PartitionLog, future: PartitionLog, cleaned: int | None = None
    ) -> None:
        self.current, self.future, self.cleaned = current, future, cleaned
        self._watch = current.core.listeners.new_watch()
        self._cut_at = NO_TRUNCATION

    @property
    def lag(self) -> int:
        """How many offsets it is behind."""
        return self.current.log_end_offset - self.future.log_end_offset

    def advance(self, max_bytes: int) -> int:
        """Copy the next batches, at most ``max_bytes`` but at least one. Returns how many bytes; 0
        if there is nothing more.

        Raises:
            StorageFailedError: a disk refused; the log of that directory says so, too.
            LogClosedError: one of the logs was closed, or deleted.
            CorruptDataError: the log is damaged here, and its copy ends before.
        """
        current, future = self.current, self.future
        self._follow_truncations()
        at = max(future.log_end_offset, current.log_start_offset)
        data = b""
        with suppress(OffsetOutOfRangeError):  # deleted meanwhile, as the next step sees
            if at < current.log_end_offset:
                found = current.read(at, max_bytes)
                data = found.data if found.has_whole_batch else b""
        if data:
            self._append(data)
        future.replica.update_high_watermark(current.high_watermark)
        start = current.log_start_offset
        if start <= future.high_watermark:
            future.replica.maybe_increment_log_start_offset(start)
        if future.config != current.config:
            future.maintenance.configure(current.config)
        return len(data)

    def _append(self, data: bytes) -> None:
        append = self.future.replica.append_as_follower
        try:
            append(data)
        except UnexpectedAppendOffsetError as error:
            start = self.future.log_start_offset
            if start < self.future.log_end_offset:
                raise
            # The log begins inside a batch, since DeleteRecords.
            self.future.maintenance.truncate_fully_and_start_at(error.first_offset, start)
            append(data)

    # -- what the log has lost -----------------------------------------------------------------

    def _follow_truncations(self) -> None:
        current, future = self.current, self.future
        cut_at, self._cut_at = self._lowest(), NO_TRUNCATION
        if cut_at < future.log_end_offset:
            future.truncate_to(cut_at)
        self._agree_on_epochs()
        start = current.log_start_offset
        if future.log_end_offset < start:
            future.maintenance.truncate_fully_and_start_at(start)

    def _lowest(self) -> int:
        """Where the log was cut since the copy last followed."""
        now = self.current.core.listeners.take_truncation(self._watch)
        self._cut_at = min(self._cut_at, now)
        return self._cut_at

    def _agree_on_epochs(self) -> None:
        """Cut what another leadership has replaced in the log, in an earlier life of the copy."""
        current, future = self.current, self.future
        while (latest := future.epochs.latest) >= 0:
            found, end = current.epochs.end_offset_for(latest)
            if found < 0:
                end = 0  # the log never had that epoch
            elif found != latest:
                end = min(end, future.epochs.end_offset_for(found)[1])
            if end >= future.log_end_offset:
                return
            future.truncate_to(max(0, end))

    # -- the end -------------------------------------------------------------------------------

    @shielded
    def finish(self, put_in_place: Callable[[], bool], settle: Callable[[], None]) -> bool:
        """Let the copy take the place of the log, if it has all of it by then.

        Meanwhile syncs of the log wait; and its appends, while a last little is copied and the
        directories get their names. On return the log refuses all work and is released, and the
        copy has its role, offsets, epochs and watermarks. What the log had durable the copy has
        durable.

        Args:
            put_in_place: calls ``take_over`` and gives the directories their names, without a wait;
                False if it cannot be now.
            settle: makes these names durable. No sync of the copy ends before.
        Returns:
            False if there is more to copy.
        """
        current, future = self.current, self.future
        syncs = future.flusher.flush_lock
        done = False
        with current.flusher.flush_lock:
            if not syncs.acquire(blocking=False):  # of a directory that is being closed
                return False
            try:
                done = self._finish_flush_locked(put_in_place)
            finally:
                if not done:
                    syncs.release()
        if not done:
            return False
        try:
            settle()
            future.flusher.save_epochs_flush_locked()
        finally:
            syncs.release()
        current.crash()  # it has nothing that is needed any more
        return True

    def _finish_flush_locked(self, put_in_place: Callable[[], bool]) -> bool:
        """The locks of both flushers are held."""
        current, future = self.current, self.future
        current.core.check()
        future.core.check()
        with current.core.doing("flush a truncation"):
            current.flusher.complete_truncation_flush_locked()
        for _ in range(FREE_PIECES):
            if not self._copy_piece():
                break
        self._take_epochs()
        with future.core.doing("flush"):
            future.flusher.settle_flush_locked()
            future.flusher.flush_flush_locked()
        with current.state.lock:
            current.core.check()
            if current.state.truncation is not TruncationPhase.NONE:
                return False
            current.state.truncation = TruncationPhase.HELD
        try:
            for _ in range(HELD_PIECES):
                if not self._copy_piece():
                    break
            return self._is_whole() and put_in_place()
        finally:
            with current.state.lock:
                current.state.truncation = TruncationPhase.NONE

    def _copy_piece(self) -> bool:
        """Copy a piece, unless the log was cut. Whether there may be more.

        Nothing is cut off meanwhile. After segments are replaced or deleted the next step reads on.
        """
        current, future = self.current, self.future
        at, end = future.log_end_offset, current.log_end_offset
        if at >= end or at < current.log_start_offset or self._lowest() < NO_TRUNCATION:
            return False
        try:
            view = LogView(current.snapshot)
            found = fetch(view, at, end, PIECE_BYTES, minimum_one=True, committed=False)
        except (OSError, CorruptDataError):
            return False
        if not found.has_whole_batch:
            return False
        future.writer.append_as_follower(None, found.data)
        return True

    def _is_whole(self) -> bool:
        current, future = self.current, self.future
        return (
            self._lowest() == NO_TRUNCATION
            and current.log_end_offset == future.log_end_offset
            and current.log_start_offset <= future.log_end_offset
            and current.state.synced <= future.state.synced
            and current.config == future.config
        )

    def _take_epochs(self) -> None:
        """Take over the epochs as they are. One without a record is in no batch of the copy."""
        entries = self.current.epochs.entries
        state = self.future.state
        with state.lock:
            if state.epochs.entries != entries:
                state.epochs.clear(durable=False)
                for epoch, start in entries:
                    state.epochs.assign(epoch, start, durable=False)

    def take_over(self, directory: str) -> None:
        """Give the copy everything, and its final directory; the log refuses all work from here on.

        For ``put_in_place``: appends and syncs of both logs are held.
        """
        current, future = self.current, self.future
        state = current.state
        with state.lock:
            reason = f"{current.directory} was moved to {directory}"
            current.core.refuse(LogMovedError(reason, future))
            led, followed = state.led_epoch, state.followed_epoch
            start, high_watermark = state.log_start_offset, state.high_watermark
            producers = state.producers
        self._take_epochs()
        state = future.state
        with state.lock:
            future.directory = directory
            future.maintenance.move_to(directory)
            state.led_epoch, state.followed_epoch = led, followed
            if start > state.log_start_offset:
                state.raise_log_start_locked(start)
            state.producers.take_over(producers)
            state.refresh_unstable_locked()
            state.set_high_watermark_locked(high_watermark)


__all__ = ["LogCopy"]
