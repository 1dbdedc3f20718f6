"""Look at what others change until two looks agree.

A directory is not listed at one moment: names come in pieces, sizes one after the other, and a
file that is renamed meanwhile may be missed under both names. What was rolled before the first look
ended does not change any more, so a later look at it is right as soon as the next one agrees.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from logstore.common.errors import ResourceBusyError
from logstore.spark.layout.types import PartitionLayout, SegmentFile
from logstore.storage.uri import shown

_LOOKS = 8
_PAUSE_S = 0.002  # doubled each time: a rename takes microseconds, a replacement of many files more

_T = TypeVar("_T")


def settled_layout(look: Callable[[], PartitionLayout]) -> PartitionLayout:
    """The log as one of the looks had it, up to the last segment that the first look had.

    Raises:
        ResourceBusyError: no two looks in a row agreed.
        OSError: the medium refused.
    """
    before = look()
    newest = max(_logs(before), default=-1)

    def again() -> PartitionLayout | None:
        nonlocal before, newest
        now = look()
        agreed = not now.replaced and _agree(before, now, newest)
        before, newest = now, min(newest, max(_logs(now), default=-1))
        return _up_to(now, newest) if agreed else None

    return until(again, before.uri, "segments")


def until(attempt: Callable[[], _T | None], uri: str, what: str) -> _T:
    """What ``attempt`` gives, as soon as it gives something."""
    for number in range(_LOOKS):
        found = attempt()
        if found is not None:
            return found
        threading.Event().wait(_PAUSE_S * 2**number)
    reason = (
        f"its {what} change faster than they can be listed, or a replacement of some was cut short"
    )
    raise ResourceBusyError(shown(uri), "list", reason)


def _logs(layout: PartitionLayout) -> dict[int, SegmentFile]:
    return {segment.base_offset: segment for segment in (*layout.segments, *layout.rolled)}


def _agree(before: PartitionLayout, now: PartitionLayout, newest: int) -> bool:
    """On every segment below ``newest`` that retention left, and that ``newest`` is there."""
    if before.topic_id != now.topic_id:
        return False
    old, new = _logs(before), _logs(now)
    first = min(new, default=newest)
    return (newest in new or not old) and all(
        _same(old.get(base), new.get(base)) for base in {*old, *new} if first <= base < newest
    )


def _same(one: SegmentFile | None, other: SegmentFile | None) -> bool:
    if one is None or other is None:
        return False
    return (one.size, one.mtime_ms) == (other.size, other.mtime_ms)


def _up_to(layout: PartitionLayout, newest: int) -> PartitionLayout:
    return replace(
        layout,
        segments=tuple(s for s in layout.segments if s.base_offset <= newest),
        rolled=tuple(s for s in layout.rolled if s.base_offset <= newest),
    )
