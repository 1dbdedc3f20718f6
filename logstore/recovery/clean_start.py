"""The proof that names and headers give: the log end after a clean stop, and hollow segments.

No checksum covers base offset, length, leader epoch and magic of a batch. So the end that headers
give counts only if every file that mentions it agrees (docs/recovery.md). If there is none, the
last batch is read whole.

Nor does a checksum cover a name, and that is all that a segment without a batch says. It must not
stand against whole batches that are there: neither show that their offsets are too high, nor hide
them from a reader, nor be the end of the log. An empty segment that begins outside of others is
legal: the active one after a roll, or what a compaction left.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from logstore.common.config import MAX_INT
from logstore.common.errors import CorruptBatchError
from logstore.format.batch_search import is_valid_batch
from logstore.format.filenames import MAX_OFFSET
from logstore.recovery.set_aside import may_hold_batch
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
