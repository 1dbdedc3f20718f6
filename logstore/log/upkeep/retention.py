"""Decide which segments retention deletes. Kafka's ``deleteOldSegments`` (F-282 … F-284)."""

from __future__ import annotations

from collections.abc import Callable

from logstore.common.config import LogConfig
from logstore.log.core.snapshot import LogView
from logstore.segments.segment_view import SegmentView


def deletable_segments(log: LogView, config: LogConfig, now_ms: int) -> int:
    """How many of the oldest segments are released by log start, size or time, in this order.

    Never a segment that reaches the high watermark, and never an empty last one.
    """
    doomed = 0
    snapshot = log.snapshot

    def take(qualifies: Callable[[SegmentView, int | None], bool]) -> None:
        nonlocal doomed
        while doomed < len(log):
            segment = log[doomed]
            last = doomed + 1 == len(log)
            if snapshot.high_watermark < log.end_of(doomed) or (last and segment.size == 0):
                return
            if not qualifies(segment, None if last else log.base_of(doomed + 1)):
                return
            doomed += 1

    take(lambda _, next_base: next_base is not None and next_base <= snapshot.log_start_offset)
    if config.delete and config.retention_bytes >= 0:
        excess = sum(log[at].size for at in range(doomed, len(log))) - config.retention_bytes

        def above_limit(segment: SegmentView, next_base: int | None) -> bool:
            nonlocal excess
            if excess < segment.size:
                return False
            excess -= segment.size
            return True

        take(above_limit)
    if config.delete and config.retention_ms >= 0:
        take(lambda segment, _: now_ms - segment.largest_timestamp > config.retention_ms)
    return doomed
