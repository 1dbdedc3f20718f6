"""Decide which part of a log may be cleaned, and whether to clean it now.

Kafka's ``LogCleanerManager.cleanableOffsets``, ``LogToClean`` and ``groupSegmentsBySize``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from logstore.common.config import MAX_INT, LogConfig
from logstore.log.snapshot import LogView
from logstore.segments.segment_view import SegmentView

_OFFSET_ENTRY, _TIME_ENTRY = 8, 12  # bytes


class LogToClean(NamedTuple):
    """The offsets and segments that a pass over one log would work on.

    ``[first_dirty, end)`` is mapped; ``end`` is the base of a segment. All segments below ``end``
    are rewritten, the clean ones before ``first_dirty`` too.
    """

    first_dirty: int
    end: int
    clean_bytes: int
    dirty_bytes: int
    overdue_ms: int
    """How long the oldest dirty record has exceeded ``max.compaction.lag.ms``; 0 if it has not."""
    checkpoint_is_wrong: bool
    """The checkpoint named an offset outside the log, so ``first_dirty`` must be written."""
    stopped_by: str
    """What keeps the pass from going on at ``end``."""

    @property
    def ratio(self) -> float:
        """The share of dirty bytes in all bytes of the pass; 0 if there are none."""
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0

    def is_due(self, min_cleanable_dirty_ratio: float) -> bool:
        """Whether the ratio is strictly above the limit, or a record is overdue."""
        return self.dirty_bytes > 0 and (
            self.ratio > min_cleanable_dirty_ratio or self.overdue_ms > 0
        )


def log_to_clean(
    log: LogView, config: LogConfig, checkpoint: int | None, now_ms: int
) -> LogToClean:
    """Return what may be cleaned.

    Never the active segment, nothing at or above the high watermark or the first undecided
    transaction, and no segment with a record younger than ``min.compaction.lag.ms``.

    ``checkpoint`` is where the last pass ended, if it is known.
    """
    snapshot = log.snapshot
    start = snapshot.log_start_offset
    first_dirty, wrong = start if checkpoint is None else checkpoint, False
    if not start <= first_dirty <= snapshot.log_end_offset:
        first_dirty, wrong = start, True
    sealed: Sequence[SegmentView] = snapshot.sealed
    active_base = snapshot.active.base_offset
    dirty = sealed[log.floor(first_dirty) :] if first_dirty < active_base else ()
    limits = [(active_base, "the active segment")]
    stable = snapshot.last_stable_offset
    if stable < snapshot.high_watermark:
        limits.append((stable, "a transaction that is not decided"))
    else:
        limits.append((snapshot.high_watermark, "the high watermark"))
    if config.min_compaction_lag_ms > 0:
        youngest = now_ms - config.min_compaction_lag_ms
        for view in dirty:
            if view.largest_timestamp > youngest:
                limits.append((view.base_offset, "min.compaction.lag.ms"))
                break
    limit, stopped_by = min(limits, key=lambda pair: pair[0])
    limit = max(limit, first_dirty)
    end = active_base if limit >= active_base else log.base_of(log.floor(limit))
    if end < first_dirty:  # inside the segment with the first dirty offset: nothing to do
        end = first_dirty
    return LogToClean(
        first_dirty,
        end,
        sum(view.size for view in sealed if view.base_offset < first_dirty),
        sum(view.size for view in dirty if view.base_offset < end and end > first_dirty),
        _overdue_ms(dirty, config, now_ms),
        wrong,
        stopped_by,
    )


def _overdue_ms(dirty: Sequence[SegmentView], config: LogConfig, now_ms: int) -> int:
    oldest_allowed = now_ms - config.max_compaction_lag_ms
    if oldest_allowed < 0:
        return 0
    firsts = (next(view.walk(0), None) for view in dirty if view.size)
    stamps = [first.max_timestamp for first in firsts if first and first.max_timestamp > 0]
    return max(0, oldest_allowed - min(stamps, default=oldest_allowed))


def group_segments(
    views: Sequence[SegmentView], config: LogConfig, end_offset: int
) -> list[list[SegmentView]]:
    """Group consecutive segments that become one.

    Together they stay within ``segment.bytes``, ``segment.index.bytes`` for each index, and 2³¹−1
    offsets. ``end_offset`` is the end of the last group.
    """
    groups: list[list[SegmentView]] = []
    size = offsets = times = 0
    for at, view in enumerate(views):
        size += view.size
        offsets += view.offset_entries * _OFFSET_ENTRY
        times += view.time_entries * _TIME_ENTRY
        last = (views[at + 1].base_offset if at + 1 < len(views) else end_offset) - 1
        if groups and (
            size <= config.segment_bytes
            and offsets <= config.segment_index_bytes
            and times <= config.segment_index_bytes
            and (view.size == 0 or last - groups[-1][0].base_offset <= MAX_INT)
        ):
            groups[-1].append(view)
            continue
        groups.append([view])
        size = view.size
        offsets = view.offset_entries * _OFFSET_ENTRY
        times = view.time_entries * _TIME_ENTRY
    return groups
