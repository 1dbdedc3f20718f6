"""Appends, and everything else that the WRITE lock guards.

An append is checked, placed after the last one, written to the page cache and published. Nothing
here waits for a disk: a roll leaves the sync of the old segment to ``LogFlusher.upkeep``, and an
append that meets a truncation that is not durable yet releases the lock until it is.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from functools import partial
from typing import NamedTuple

from logstore.common.config import MAX_INT, MAX_LONG, LogConfig
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
from logstore.common.locks import Rank, make_lock
from logstore.common.random_id import RandomId
from logstore.common.shield import run_shielded, shield_needed, shielded
from logstore.common.types import Buffer
from logstore.format import filenames
from logstore.format.codecs.compression import Compression
from logstore.kernels import AppendInfo, BatchAnalysis, analyse_batches
from logstore.log.core.core import LogCore
from logstore.log.writing.producer_checks import ProducerUpdates, check_producers
from logstore.log.writing.recent import RecentAppends
from logstore.log.writing.validation import (
    Prepared,
    analyse,
    check_batch_size,
    check_follower,
    check_follower_epochs,
    headers,
    prepare_leader,
    refusal_of_damaged,
)
from logstore.recovery import LoadedLog
from logstore.segments.leader_epochs import LeaderEpochCache
from logstore.segments.open_files import close_idle, closed_for_appends, opened_for_appends
from logstore.segments.producer_state import (
    AppendOrigin,
    ProducerStateManager,
    TransactionCheck,
)
from logstore.segments.segment import Segment
from logstore.segments.segment_list import Segments
from logstore.segments.segment_view import SegmentView

CODECS = {c.name.lower(): c for c in Compression} | {
    "producer": Compression.NONE,
    "uncompressed": Compression.NONE,
}


class Cut(Enum):
    """The rest of a truncation, which must be done before the next append."""

    NONE = auto()
    UNDER_WAY = auto()  # whether the files are longer than what is published
    NOT_DURABLE = auto()  # whether a crash now would bring back what was cut


class UnsettledRoll(NamedTuple):
    """A segment whose predecessor is not durable yet, and the snapshot written between them."""

    before: Segment
    segment: Segment
    snapshot: int | None


class LogWriter:
    """Appends to a log. Methods named ``…_locked`` need the WRITE lock, which is ``lock``."""

    def __init__(
        self, core: LogCore, loaded: LoadedLog, *, replicated: bool, random_id: RandomId
    ) -> None:
        self.core = core
        self._news = core.news
        self.lock = make_lock(Rank.WRITE)
        self.replicated = replicated
        self.segments: Segments = loaded.segments
        self.epochs: LeaderEpochCache = loaded.epochs
        self.producers: ProducerStateManager = loaded.producers
        self.log_start_offset = loaded.log_start_offset
        self.recovery_point = loaded.recovery_point
        # The files were synced up to here. The recovery point may be above it, at a log start.
        start_only = loaded.recovery_point <= loaded.log_start_offset and not loaded.report.clean
        self.synced = 0 if start_only else loaded.recovery_point
        self.high_watermark = loaded.log_start_offset  # of a replicated log; otherwise the log end
        self.unsettled: list[UnsettledRoll] = []
        self.upkeep_due = False  # whether there was a roll since the last check
        self.epochs_due = False  # whether an epoch is not in the file yet
        self.cut = Cut.NOT_DURABLE if loaded.segments.active.state.cut_pending else Cut.NONE
        self.await_cut: Callable[[], None]  # waits for the cut to be durable; without the lock
        self.await_flush: Callable[[], None]  # waits for all to be durable; without the lock
        # The only leader epochs whose appends are accepted, as leader and as follower. None: any.
        self.led_epoch: int | None = None
        self.followed_epoch: int | None = None
        self.recent: RecentAppends | None = None
        self.version = 0
        self.flush_at = 0  # the last offset that may stay unflushed
        self._random_id = random_id
        self._sealed: tuple[SegmentView, ...] = ()
        self._first_unstable = -1
        self._timestamp_limit = 0  # record timestamps up to here need no clock
        self.configure_locked(core.config)
        self.replace_segments_locked(list(loaded.segments))
        self.replace_producers_locked(loaded.producers)
        self.publish_locked()
        register(self)

    def disown(self, pid: int) -> None:
        """See `forks.Inherited`."""
        self.core.disown(pid)
        closed_for_appends(self)
        for segment in self.segments:
            segment.disown()

    def configure_locked(self, config: LogConfig) -> None:
        self.core.config = config
        self.compression = CODECS[config.compression_type]
        # Whether the largest timestamp of a batch is enough to check its timestamps.
        self._largest_decides = (
            config.message_timestamp_type == "CreateTime"
            and config.message_timestamp_before_max_ms == MAX_LONG
        )
        self._plain_topic = (
            self._largest_decides
            and config.compression_type in ("producer", "uncompressed")
            and not config.compact
        )
        self.set_recovery_point_locked(self.recovery_point)
        self._timestamp_limit = 0
        for segment in self.segments:
            segment.config = config
        state = self.segments.active.state
        state.segment_bytes = config.segment_bytes
        state.max_segment_ms = config.max_segment_ms

    # -- what readers see ----------------------------------------------------------------------

    def publish_locked(self) -> None:
        """Let readers see the log as it is now."""
        active = self.segments.active
        self.core.snapshot = active.state.snapshot(
            self._sealed,
            active,
            self.log_start_offset,
            self.high_watermark if self.replicated else -1,
            self._first_unstable,
            self.version,
        )
        if self._news.waiting:
            self._news.wake_all()

    def publish_removal_locked(self) -> None:
        """As ``publish_locked``, before bytes or segments are removed that readers may be using."""
        self.version += 1
        if self.recent is not None:
            self.recent.clear()
        if self.log_end_offset < self.core.snapshot.log_end_offset:
            self._news.note_cut(self.log_end_offset)
        self.publish_locked()

    def replace_segments_locked(self, segments: list[Segment]) -> None:
        """Replace the segments. All except the last are sealed. The caller publishes them."""
        known = {view.segment: view for view in self._sealed}
        self.segments.replace_all(segments)
        self._sealed = tuple(known.get(s) or s.live() for s in self.segments.snapshot()[:-1])

    def replace_view_locked(self, old: SegmentView, new: SegmentView) -> bool:
        """Replace the view of a sealed segment. False if ``old`` is not current."""
        if not any(view is old for view in self._sealed):
            return False
        self._sealed = tuple(new if view is old else view for view in self._sealed)
        return True

    def _refresh_unstable_locked(self) -> None:
        first = self.producers.first_unstable_offset
        self._first_unstable = -1 if first is None else max(first, self.log_start_offset)

    @property
    def log_end_offset(self) -> int:
        return self.segments.active.state.next_offset

    @property
    def committed_offset(self) -> int:
        """The high watermark; without replicas that is the log end."""
        return self.high_watermark if self.replicated else self.log_end_offset

    def set_recovery_point_locked(self, offset: int) -> None:
        self.recovery_point = offset
        self.flush_at = offset + self.core.config.flush_messages - 1

    def note_synced_locked(self, end: int) -> None:
        """Note that everything below ``end`` is on the disk."""
        self.synced = max(self.synced, end)
        if end > self.recovery_point:
            self.set_recovery_point_locked(end)

    def note_cut_locked(self, end: int) -> None:
        """Note that the log has nothing at or after ``end`` any more."""
        self.synced = min(self.synced, end)
        self.set_recovery_point_locked(min(self.recovery_point, end))

    # -- leaderships ---------------------------------------------------------------------------

    NOBODY = -1

    @property
    def role_epoch(self) -> int:
        return max(self.led_epoch or 0, self.followed_epoch or 0)

    def take_role_locked(self, leader_epoch: int, *, leads: bool) -> None:
        """Refuse appends of other leaderships from now on."""
        self.led_epoch = leader_epoch if leads else self.NOBODY
        self.followed_epoch = self.NOBODY if leads else leader_epoch

    # -- watermarks ----------------------------------------------------------------------------

    def set_high_watermark_locked(self, offset: int) -> None:
        self.high_watermark = offset
        if self.producers.on_high_watermark(offset):
            self._refresh_unstable_locked()
        self.publish_locked()

    def raise_log_start_locked(self, offset: int) -> None:
        """Delete records below ``offset``.

        They will never be read again, so they need not be durable (F-222).
        """
        self.log_start_offset = offset
        self.set_recovery_point_locked(max(self.recovery_point, offset))
        if self.high_watermark < offset:  # lowered since the decision what may be deleted
            self.high_watermark = offset
            self.producers.on_high_watermark(offset)
        self.producers.on_log_start_changed(offset)
        self._refresh_unstable_locked()

    def replace_producers_locked(self, producers: ProducerStateManager) -> None:
        self.producers = producers
        # Replayed transactions count as not replicated yet, even if they are committed.
        producers.on_high_watermark(self.committed_offset)
        self._refresh_unstable_locked()

    # -- appends -------------------------------------------------------------------------------

    def append_own(self, batch: bytearray, leader_epoch: int | None) -> AppendInfo:
        """Append a batch that this library encoded itself; it needs no checks."""
        if not batch:
            raise InvalidRecordError("an append without records")
        with self.lock:
            self.enter_locked()
            config = self.core.config
            analysis = analyse(
                batch, max_batch_size=config.max_message_bytes, deep=False, check_crc=False
            )
            epoch = max(self.epochs.latest_epoch, 0) if leader_epoch is None else leader_epoch
            if self._largest_decides:
                check_batch_size(analysis, config)
                self._check_timestamps_locked(analysis.max_timestamp)
                prepared = Prepared(batch, analysis)
            else:
                prepared = prepare_leader(
                    batch, analysis, config, AppendOrigin.CLIENT, self.core.clock.wall_ms()
                )
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
        with self.lock:
            self.enter_locked()
            if self.led_epoch is not None and self.led_epoch != leader_epoch:
                raise LeadershipEndedError(self.core.directory, leader_epoch, self.role_epoch)
            config = self.core.config
            analysis: BatchAnalysis
            try:
                if self._plain_topic and 0 <= leader_epoch == self.epochs.latest_epoch:
                    found = self._append_plain_locked(data, deep, leader_epoch)
                    if type(found) is AppendInfo:
                        return found
                    analysis = found
                else:
                    analysis = analyse_batches(
                        data, max_batch_size=config.max_message_bytes, deep=deep
                    )
            except CorruptBatchError as error:
                raise refusal_of_damaged(data, error, config, origin) from None
            except OSError as error:
                raise self.core.fail("append", error) from error
            if analysis.batch_count == 0:
                raise InvalidRecordError("no whole batch in the append")
            now_ms = self.core.clock.wall_ms()
            self._timestamp_limit = min(now_ms + config.message_timestamp_after_max_ms, MAX_LONG)
            prepared = prepare_leader(data, analysis, config, origin, now_ms)
            return self._append_locked(prepared, leader_epoch, origin, check)

    def _append_plain_locked(
        self, data: bytes, deep: bool, leader_epoch: int
    ) -> AppendInfo | BatchAnalysis:
        """Check and write in one call, if no more is needed; else the result of the checks."""
        try:
            found = self.segments.active.state.append_plain(
                data,
                deep,
                leader_epoch,
                self.core.config.max_message_bytes,
                self._timestamp_limit,
                self.log_start_offset,
            )
            if type(found) is AppendInfo:
                if self.recent is not None:
                    self._keep_recent_locked(
                        data, found.size, found.first_offset, found.last_offset, leader_epoch
                    )
                self.publish_locked()
        except BaseException:
            self._finish_locked(None)
            raise
        return found

    def append_as_follower(self, leader_epoch: int | None, data: Buffer) -> AppendInfo:
        """Append as `ReplicaLog.append_as_follower`."""
        data = _own(data)
        analysis = analyse(data, max_batch_size=2**31 - 1, deep=False)
        if analysis.last_offset - analysis.first_offset > MAX_INT and analysis.magic_min >= 2:
            return append_parts(data, analysis, partial(self.append_as_follower, leader_epoch))
        with self.lock:
            self.enter_locked()
            if analysis.batch_count == 0:
                return AppendInfo(-1, -1, -1, -1, self.log_start_offset, 0, 0)
            # Such a gap would make a segment whose base does not follow the one before. While that
            # one is not durable, a start would take the gap for a lost tail.
            while (
                analysis.last_offset - self.log_end_offset > MAX_INT
                and self.synced < self.log_end_offset
            ):
                self._without_lock(self.await_flush)
                self.enter_locked()
            # Checked after the last moment without the lock.
            if self.followed_epoch is not None and leader_epoch not in (None, self.followed_epoch):
                raise LeadershipEndedError(self.core.directory, leader_epoch, self.role_epoch)
            check_follower(analysis, self.log_end_offset)
            entries, epoch_of_last = self.epochs.entries, -1
            for entry in reversed(entries):
                if entry.start_offset < self.log_end_offset:  # otherwise nothing was written
                    epoch_of_last = entry.epoch
                    break
            if analysis.magic_max >= 2:
                check_follower_epochs(data, analysis, epoch_of_last, leader_epoch)
            return self._append_locked(Prepared(data, analysis), None, AppendOrigin.REPLICATION)

    def enter_locked(self) -> None:
        """Before any append, check that the log accepts work and that no truncation is pending."""
        self.core.check()
        while self.cut is not Cut.NONE:
            self._without_lock(self.await_cut)
            self.core.check()

    @shielded  # otherwise the lock might be free where its holder goes on
    def _without_lock(self, wait: Callable[[], None]) -> None:
        self.lock.release()
        try:
            wait()
        finally:
            self.lock.acquire()

    def _check_timestamps_locked(self, max_timestamp: int) -> None:
        if max_timestamp > self._timestamp_limit:
            after_max_ms = self.core.config.message_timestamp_after_max_ms
            limit = min(self.core.clock.wall_ms() + after_max_ms, MAX_LONG)
            self._timestamp_limit = limit
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
        """Append, which is steps 5 to 12 of F-161.

        ``leader_epoch`` None keeps offsets and epochs.
        """
        data, analysis = prepared.data, prepared.analysis
        size, leo = analysis.size, self.log_end_offset
        # A follower accepts what its leader has, whose segments may date from larger limits.
        most = MAX_INT if leader_epoch is None else self.core.config.segment_bytes
        if size > most:
            raise RecordListTooLargeError(
                f"an append of {size} bytes is above segment.bytes {self.core.config.segment_bytes}"
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
            checked = self._check_producers_locked(
                data, size, -1 if leader_epoch is None else leo, origin, check
            )
            if isinstance(checked, AppendInfo):
                return checked
            updates = checked
        if shield_needed() and not self._repeats_locked(prepared, last, leader_epoch, updates):
            return run_shielded(
                partial(self._place_locked, prepared, first, last, leader_epoch, updates)
            )
        return self._place_locked(prepared, first, last, leader_epoch, updates)

    def _repeats_locked(
        self,
        prepared: Prepared,
        last: int,
        leader_epoch: int | None,
        updates: ProducerUpdates | None,
    ) -> bool:
        """Whether an append is one write, and what follows it may be done twice."""
        state, analysis = self.segments.active.state, prepared.analysis
        return (
            leader_epoch == self.epochs.latest_epoch
            and state.attached
            and state.rolling_timestamp >= 0
            and not state.must_roll(analysis.size, last, analysis.max_timestamp, 0)
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
        """Write a checked append, and take over what it changes."""
        data, analysis, append_time = prepared
        size, leo = analysis.size, self.log_end_offset
        with self.core.doing("append"):
            segment = self._segment_for_locked(size, first, last, analysis.max_timestamp)
        if updates is not None and updates.aborted:
            # First, because a transaction counts as decided once the index has its abort.
            with self.core.doing("append to the transaction index"):
                segment.txn_index.append(*updates.aborted)
        self._assign_epochs_locked(data, analysis, leader_epoch, leo)
        try:
            with self.core.doing("append", whole=False):
                if leader_epoch is None:
                    segment.append(data, size, -1, -1)
                else:
                    segment.append(data, size, leo, leader_epoch)
                    if self.recent is not None:
                        self._keep_recent_locked(data, size, first, last, leader_epoch)
            if updates is not None:
                self._update_producers_locked(updates)
            self.publish_locked()
        except BaseException:
            self._finish_locked(updates)
            raise
        return AppendInfo(
            first,
            last,
            analysis.max_timestamp,
            append_time,
            self.log_start_offset,
            analysis.record_count,
            size,
        )

    def _keep_recent_locked(
        self, data: Buffer, size: int, first: int, last: int, leader_epoch: int
    ) -> None:
        assert self.recent is not None
        base = self.segments.active.base_offset
        self.recent.add(data, size, first, last + 1, leader_epoch, base)

    @shielded
    def _finish_locked(self, updates: ProducerUpdates | None) -> None:
        """After an interrupt behind the write, do what was not done, or not to its end."""
        if self.log_end_offset == self.core.snapshot.log_end_offset:
            return  # nothing was written, or all is done
        if self.recent is not None:
            self.recent.clear()
        if updates is not None:
            self._update_producers_locked(updates)
        self.publish_locked()

    def _segment_for_locked(self, size: int, first: int, last: int, max_timestamp: int) -> Segment:
        """The active segment, rolled if the append needs a new one."""
        segment = self.segments.active
        state = segment.state
        if not state.attached:
            self._activate_locked(segment)
        now_ms = self.core.clock.wall_ms() if state.rolling_timestamp < 0 else 0
        if state.must_roll(size, last, max_timestamp, now_ms):
            end = self.log_end_offset
            # Kafka uses the first offset as base even after a gap; an index can span small gaps.
            self.roll_locked(end if last - end <= MAX_INT else max(end, first))
        return self.segments.active

    def _assign_epochs_locked(
        self, data: Buffer, analysis: BatchAnalysis, leader_epoch: int | None, leo: int
    ) -> None:
        """Note the epochs of the batches.

        The file is written soon after: recovery reads epochs from the batches, and the recovery
        point does not pass them before.
        """
        epochs = self.epochs
        if leader_epoch is not None:
            if leader_epoch != epochs.latest_epoch:
                epochs.assign(leader_epoch, leo, durable=False)
                self.epochs_due = True
        elif analysis.magic_max < 2:
            epochs.clear(durable=False)
        elif analysis.max_epoch != analysis.min_epoch or analysis.last_epoch != epochs.latest_epoch:
            for header in headers(data, analysis.size):
                if header.leader_epoch != epochs.latest_epoch:
                    epochs.assign(header.leader_epoch, header.base_offset, durable=False)
                    self.epochs_due = True

    # -- producers -----------------------------------------------------------------------------

    def _check_producers_locked(
        self,
        data: Buffer,
        size: int,
        first_offset: int,
        origin: AppendOrigin,
        check: TransactionCheck,
    ) -> AppendInfo | ProducerUpdates:
        return check_producers(
            self.producers, data, size, first_offset, origin, self.log_start_offset, check
        )

    def _update_producers_locked(self, updates: ProducerUpdates) -> None:
        for append in updates.appends:
            self.producers.update(append)
        for completed in updates.completed:
            self.producers.complete(completed)
        if not self.replicated:
            self.producers.on_high_watermark(self.log_end_offset)
        self._refresh_unstable_locked()

    # -- rolls ---------------------------------------------------------------------------------

    def try_rest(self) -> bool:
        """Release descriptors, as `open_files.Rests`."""
        if not self.lock.acquire(blocking=False):
            return False
        try:
            active = self.segments.active
            if (
                self.core.failure is not None
                or self.cut is not Cut.NONE
                or active.state.cut_pending
            ):
                return False  # a close or a truncation works on the files without the lock
            active.rest()
            return True
        finally:
            self.lock.release()

    def _activate_locked(self, segment: Segment) -> None:
        rested = segment.rests
        try:
            segment.activate()
        except OSError as error:
            if not is_busy(error):
                raise
            close_idle()
            segment.activate()
        opened_for_appends(self)
        if rested:
            return
        jitter = min(self.core.config.segment_jitter_ms, self.core.config.segment_ms)
        if jitter:
            drawn = int(self._random_id(), 16) % jitter
            segment.state.max_segment_ms = self.core.config.max_segment_ms - drawn

    def new_segment(self, base_offset: int, suffix: str = "") -> Segment:
        """A segment without files yet."""
        core = self.core
        return Segment(
            core.storage, core.directory, base_offset, core.config, core.clock, suffix=suffix
        )

    def roll_locked(self, new_base: int) -> None:
        """Begin a new segment (F-146, F-147).

        It keeps the suffix ``.swap`` until the old one is durable. Otherwise a crash could keep the
        new segment and lose the end of the old one, which would leave a hole (S-36).

        Raises:
            OSError: a resource is short. Only stray files may be left.
        """
        active, leo = self.segments.active, self.log_end_offset
        if active.base_offset == new_base:
            if active.size:
                raise InvariantError(
                    f"{self.core.directory}: a segment at {new_base} exists already"
                )
            active.renew_indexes()  # only the index was full
            return
        follows = new_base == leo  # otherwise all before it is durable, see append_as_follower
        segment = self.new_segment(new_base, filenames.SWAP_SUFFIX if follows else "")
        segment.create()
        try:
            segment.state.next_offset = leo  # a base above it is a gap, not an end (F-145)
            self._activate_locked(segment)
            self.producers.map_end_offset = max(self.producers.map_end_offset, new_base)
            snapshot = self.producers.take_snapshot(sync=False)
            view = active.seal()
        except (OSError, MemoryError):
            segment.remove_files()
            raise
        self._sealed = (*self._sealed, view)
        self.segments.add(segment)
        self.unsettled.append(UnsettledRoll(active, segment, snapshot))
        self.upkeep_due = True
        self.publish_locked()


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


__all__ = ["CODECS", "Cut", "LogWriter", "UnsettledRoll"]
