"""What tests do with one segment that has no log around it."""

from __future__ import annotations

from logstore.segments.segment import Segment


def truncate_segment(segment: Segment, offset: int) -> int:
    """Remove every batch that reaches ``offset``, in the steps of a log. Returns the bytes cut."""
    before = segment.live()
    span = before.find(offset)
    position = span.position if span is not None else before.size
    cut = segment.plan_truncation(before, position, offset)
    segment.apply_truncation(cut, min(segment.state.next_offset, offset))
    segment.truncate_files(before, offset)
    return before.size - position
