"""The state under the WRITE lock: a log's segments and offsets, and what readers see of them."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from logstore.common.config import MAX_LONG, LogConfig
from logstore.common.errors import OffsetOutOfRangeError
from logstore.common.locks import Rank, make_lock
from logstore.common.shield import shielded
from logstore.kernels import AppendState, WriteLock
from logstore.log.core import LogCore
from logstore.log.writing.recent import RecentAppends
from logstore.log.writing.validation import CODECS
from logstore.recovery import LoadedLog
from logstore.segments.leader_epochs import LeaderEpochCache
from logstore.segments.producer_state import ProducerStateManager
from logstore.segments.segment import Segment
from logstore.segments.segment_list import Segments
from logstore.segments.segment_view import SegmentView

NO_EPOCH = -1  # of a role that the log does not have


class TruncationPhase(IntEnum):
    """The rest of a truncation, which must be done before the next append."""

    NONE = 0
    UNDER_WAY = 1  # whether the files are longer than what is published
    NOT_DURABLE = 2  # whether a crash now would bring back what was truncated
    HELD = 3  # there is none, but appends have to wait for the holder of the flush lock


class UnsettledRoll(NamedTuple):
    """A segment whose predecessor is not durable yet, and the snapshot written between them."""

    before: Segment
    segment: Segment
    snapshot: int | None


class LogState(AppendState):
    """The log as it is. Methods named ``…_locked`` need the WRITE lock, which is ``lock``."""

    core: LogCore

    def __init__(self, core: LogCore, loaded: LoadedLog) -> None:
        super().__init__(core, core.listeners, make_lock(Rank.WRITE, WriteLock))
        self._listeners = core.listeners
        self.replicated = core.owner.replicated
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
        # Whether there was a roll since the last check; also what no manager writes again.
        self.upkeep_due = not core.owner.managed and any(s.unwritten.size for s in loaded.segments)
        self.epochs_due = False  # whether an epoch is not in the file yet
        pending = loaded.segments.active.state.cut_pending
        self.truncation = TruncationPhase.NOT_DURABLE if pending else TruncationPhase.NONE
        # The only leader epochs whose appends are accepted, as leader and as follower. None: any.
        self.led_epoch: int | None = None
        self.followed_epoch: int | None = None
        self.recent: RecentAppends | None = None
        self.configure_locked(core.config)
        self.replace_segments_locked(list(loaded.segments))
        self.replace_producers_locked(loaded.producers)
        self.publish_locked()

    def configure_locked(self, config: LogConfig) -> None:
        self.core.config = config
        self.max_batch_size = config.max_message_bytes
        self.compression = CODECS[config.compression_type]
        # Whether the largest timestamp of a batch is enough to check its timestamps.
        self.largest_decides = (
            config.message_timestamp_type == "CreateTime"
            and config.message_timestamp_before_max_ms == MAX_LONG
        )
        self.is_plain = self.largest_decides and config.compression_type in (
            "producer",
            "uncompressed",
        )
        self.keys_required = config.compact
        self.set_recovery_point_locked(self.recovery_point)
        self.timestamp_limit = 0
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
            self.sealed,
            active,
            self.log_start_offset,
            self.high_watermark if self.replicated else -1,
            self.first_unstable,
            self.version,
        )
        if self._listeners.waiting:
            self._listeners.wake_all()

    def publish_removal_locked(self) -> None:
        """As ``publish_locked``, before bytes or segments are removed that readers may be using."""
        self.version += 1
        self.forget_recent_locked()
        if self.log_end_offset < self.core.snapshot.log_end_offset:
            self._listeners.note_truncation(self.log_end_offset)
        self.publish_locked()

    @shielded
    def forget_recent_locked(self) -> None:
        """Keep in memory nothing of what was appended."""
        if self.recent is not None:
            self.recent.clear()

    def replace_segments_locked(self, segments: list[Segment]) -> None:
        """Replace the segments. All except the last are sealed. The caller publishes them."""
        known = {view.segment: view for view in self.sealed}
        self.segments.replace_all(segments)
        self.sealed = tuple(known.get(s) or s.live() for s in self.segments.snapshot()[:-1])

    def replace_view_locked(self, old: SegmentView, new: SegmentView) -> bool:
        """Replace the view of a sealed segment. False if ``old`` is not current."""
        if not any(view is old for view in self.sealed):
            return False
        self.sealed = tuple(new if view is old else view for view in self.sealed)
        return True

    def refresh_unstable_locked(self) -> None:
        first = self.producers.first_unstable_offset
        self.first_unstable = -1 if first is None else max(first, self.log_start_offset)

    @property
    def log_end_offset(self) -> int:
        return self.segments.active.state.next_offset

    @property
    def committed_offset(self) -> int:
        """The high watermark; without replicas that is the log end."""
        return self.high_watermark if self.replicated else self.log_end_offset

    def set_recovery_point_locked(self, offset: int) -> None:
        self.recovery_point = offset
        self.flush_at = min(offset + self.core.config.flush_messages - 1, MAX_LONG)

    def note_synced_locked(self, end: int) -> None:
        """Note that everything below ``end`` is on the disk."""
        self.synced = max(self.synced, end)
        if end > self.recovery_point:
            self.set_recovery_point_locked(end)

    def note_truncation_locked(self, end: int) -> None:
        """Note that the log has nothing at or after ``end`` any more."""
        self.synced = min(self.synced, end)
        self.set_recovery_point_locked(min(self.recovery_point, end))

    # -- leaderships ---------------------------------------------------------------------------

    @property
    def role_epoch(self) -> int:
        return max(self.led_epoch or 0, self.followed_epoch or 0)

    def take_role_locked(self, leader_epoch: int, *, leads: bool) -> None:
        """Refuse appends of other leaderships from now on."""
        self.led_epoch = leader_epoch if leads else NO_EPOCH
        self.followed_epoch = NO_EPOCH if leads else leader_epoch

    # -- watermarks ----------------------------------------------------------------------------

    def set_high_watermark_locked(self, offset: int) -> None:
        self.high_watermark = offset
        if self.producers.on_high_watermark(offset):
            self.refresh_unstable_locked()
        self.publish_locked()

    def delete_records_locked(self, offset: int) -> bool:
        """Raise the log start to ``offset`` and publish it. False if it was there already.

        Raises:
            OffsetOutOfRangeError: above the high watermark.
        """
        self.core.check()
        if not 0 <= offset <= self.committed_offset:
            start, end = self.log_start_offset, self.committed_offset
            raise OffsetOutOfRangeError(self.core.name, offset, start, end)
        if offset <= self.log_start_offset:
            return False
        self.raise_log_start_locked(offset)
        self.epochs.truncate_from_start(offset)
        self.publish_locked()
        return True

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
        self.refresh_unstable_locked()

    def replace_producers_locked(self, producers: ProducerStateManager) -> None:
        self.producers = producers
        # Replayed transactions count as not replicated yet, even if they are committed.
        producers.on_high_watermark(self.committed_offset)
        self.refresh_unstable_locked()

    def new_segment(self, base_offset: int, suffix: str = "") -> Segment:
        """A segment without files yet."""
        core = self.core
        return Segment(
            core.storage, core.directory, base_offset, core.config, core.clock, suffix=suffix
        )
