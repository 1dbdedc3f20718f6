"""Which segments may go: decisions only. Kafka's ``deleteOldSegments`` (F-282 … F-284)."""

from __future__ import annotations

from collections.abc import Callable

from logstore.config import LogConfig
from logstore.segment import Segment
from logstore.segments import Segments


def deletable_segments(
    segments: Segments,
    config: LogConfig,
    log_start_offset: int,
    high_watermark: int,
    log_end_offset: int,
    now_ms: int,
) -> list[Segment]:
    """The oldest segments that log start, size or time release, in this order of conditions.

    Never one that reaches the high watermark, never an empty last one.
    """
    doomed: list[Segment] = []

    def take(qualifies: Callable[[Segment, int | None], bool]) -> None:
        for at in range(len(doomed), len(segments)):
            segment = segments[at]
            last = at + 1 == len(segments)
            next_base = None if last else segments[at + 1].base_offset
            upper = log_end_offset if next_base is None else next_base
            if high_watermark < upper or (last and segment.size == 0):
                return
            if not qualifies(segment, next_base):
                return
            doomed.append(segment)

    take(lambda segment, next_base: next_base is not None and next_base <= log_start_offset)
    if config.delete and config.retention_bytes >= 0:
        excess = sum(s.size for s in segments if s not in doomed) - config.retention_bytes

        def above_limit(segment: Segment, next_base: int | None) -> bool:
            nonlocal excess
            if excess < segment.size:
                return False
            excess -= segment.size
            return True

        take(above_limit)
    if config.delete and config.retention_ms >= 0:
        take(lambda segment, _: now_ms - segment.largest_timestamp > config.retention_ms)
    return doomed
