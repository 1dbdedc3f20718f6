"""Segments without a batch that begin inside another one.

All that such a file says is its name, and no checksum covers a name. Without its bytes it must not
stand against whole batches that are there: neither show that their offsets are too high, nor hide
them from a reader, nor be the end of the log. An empty segment anywhere else is legal: the active
one after a roll, or what a compaction left.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from logstore.common.errors import CorruptBatchError
from logstore.format.batch_search import is_valid_batch
from logstore.recovery.set_aside import may_hold_batch
from logstore.segments.segment import Segment


def hollow_segments(segments: Sequence[Segment], first: int) -> Iterator[tuple[Segment, Segment]]:
    """Each segment without a batch that begins inside another one, and that other one.

    From index ``first`` on a file that is not empty is searched for batches; below it only the
    empty ones count, so that nothing is read.
    """
    around: Segment | None = None
    claimed = proven = -1
    for index, segment in enumerate(segments):
        is_candidate = segment.size == 0 or index >= first
        if is_candidate and around is not None:
            claimed = _end(around) if claimed < 0 else claimed
            if segment.base_offset < claimed and proven < 0:
                proven = _end(around, proven=True)
            if segment.base_offset < proven and not (segment.size and may_hold_batch(segment)):
                yield segment, around
                continue
        around, claimed, proven = segment, -1, -1


def _end(segment: Segment, *, proven: bool = False) -> int:
    """The offset after the last batch that can be walked to; the base if there is none.

    ``proven``: the last one with a matching checksum. A header alone proves nothing.
    """
    view, end = segment.live(), segment.base_offset
    with suppress(CorruptBatchError):
        for span in view.walk(view.floor_before_last()):
            if not proven or is_valid_batch(segment.log, span.position, span.size):
                end = max(end, span.last_offset + 1)
    return end
