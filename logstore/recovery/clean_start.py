"""Where a log ends after a clean stop, from headers alone, and whether to trust that.

No checksum covers base offset, length, leader epoch and magic of a batch, and nothing else is read
here. So the end counts only if every file that mentions it agrees (docs/recovery.md). If there is
none, the last batch is read whole.
"""

from __future__ import annotations

from typing import NamedTuple

from logstore.common.config import MAX_INT
from logstore.common.errors import CorruptBatchError
from logstore.format.filenames import MAX_OFFSET
from logstore.segments.segment import Segment
from logstore.segments.segment_view import BatchSpan


class CleanEnd(NamedTuple):
    """``doubt`` says what disagrees with ``next_offset``, and is empty if nothing does."""

    next_offset: int
    doubt: str = ""


def clean_end(last: Segment, recovery_point: int | None) -> CleanEnd:
    """The log end that the headers of the ``last`` segment give.

    ``recovery_point`` is on file for the log: a clean stop writes the log end there.
    """
    base = last.base_offset
    view = last.live()
    position, previous, at = view.floor_before_last(), base - 1, -1
    try:
        for span in view.walk(position):
            doubt = _doubt(span, base, previous)
            if doubt:
                return CleanEnd(previous + 1, f"at byte {span.position} {doubt}")
            at, previous, position = span.position, span.last_offset, span.position + span.size
    except CorruptBatchError as error:
        return CleanEnd(previous + 1, f"at byte {error.position} {error.reason}")
    end = previous + 1
    if position < last.size:
        return CleanEnd(end, f"{last.size - position} bytes follow the last whole batch")
    if recovery_point is not None and recovery_point != end:
        return CleanEnd(end, f"the log ends at {end}, the recovery point is {recovery_point}")
    if recovery_point is None and at >= 0 and not any(view.scan(at, check_crc=True)):
        return CleanEnd(end, f"at byte {at} is a batch whose checksum does not match")
    return CleanEnd(end)


def ends_beyond(segments: list[Segment], recovery_point: int) -> bool:
    """Whether the last segment is only a name beyond the end that a clean stop wrote.

    The segments before it end there.
    """
    last = segments[-1]
    return (
        last.size == 0
        and last.base_offset > recovery_point
        and len(segments) > 1
        and not clean_end(segments[-2], recovery_point).doubt
    )


def _doubt(span: BatchSpan, segment_base: int, previous: int) -> str:
    if span.magic > 2:
        return f"is a batch of magic {span.magic}"
    highest = min(segment_base + MAX_INT, MAX_OFFSET - 1)  # the log end is an offset, too
    if not segment_base <= span.base_offset <= span.last_offset <= highest:
        return f"is a batch with base offset {span.base_offset}"
    if span.base_offset <= previous:
        return f"is a batch with base offset {span.base_offset} behind offset {previous}"
    return ""
