"""Segments without a batch that begin inside another one.

All that such a file says is its name, and no checksum covers a name. Without its bytes it must not
stand against batches that are there: neither show that their offsets are too high, nor hide them
from a reader, nor be the end of the log. An empty segment anywhere else is legal: the active one
after a roll, or what a compaction left.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from logstore.common.errors import CorruptBatchError
from logstore.recovery.set_aside import may_hold_batch
from logstore.segments.segment import Segment


def hollow_segments(segments: Sequence[Segment], first: int) -> Iterator[tuple[Segment, Segment]]:
    """Each segment without a batch that begins inside another one, and that other one.

    From index ``first`` on a file that is not empty is searched for batches; below it only the
    empty ones count, so that nothing is read.
    """
    around: Segment | None = None
    end = -1
    for index, segment in enumerate(segments):
        is_candidate = segment.size == 0 or index >= first
        if is_candidate and around is not None:
            end = _end_by_headers(around) if end < 0 else end
            if segment.base_offset < end and not (segment.size and may_hold_batch(segment)):
                yield segment, around
                continue
        around, end = segment, -1


def _end_by_headers(segment: Segment) -> int:
    """The offset after the last batch that can be walked to; the base if there is none."""
    view, end = segment.live(), segment.base_offset
    with suppress(CorruptBatchError):
        for span in view.walk(view.floor_before_last()):
            end = max(end, span.last_offset + 1)
    return end
