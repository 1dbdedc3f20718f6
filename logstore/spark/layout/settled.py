"""List a directory that is being changed until two listings agree.

A listing does not show one moment: it reads names in parts and sizes one after the other, and may
miss both names of a file that is renamed. Segments that were rolled before the first listing ended
no longer change, so a listing of them is right once the next one agrees.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from logstore.common.errors import ResourceBusyError
from logstore.spark.layout.types import ListedSegment, PartitionLayout
from logstore.storage.uri import shown

_LOOKS = 8
_PAUSE_S = 0.002  # doubled each time: a rename takes microseconds, a replacement of many files more

_T = TypeVar("_T")


def settled_layout(look: Callable[[], PartitionLayout]) -> PartitionLayout:
    """The log as one of the listings showed it, up to the last segment of the first two.

    A listing that lacks that segment, as one may while it is renamed, agrees with no other. Later
    segments are left for the next look, so that a log which rolls all the time settles, too.

    Raises:
        ResourceBusyError: no two consecutive listings agreed.
        OSError: the medium refused.
    """
    before = look()
    newest = _newest(before)
    last: int | None = None  # of the first two listings

    def again() -> PartitionLayout | None:
        nonlocal before, newest, last
        now = look()
        if last is None:
            last = max(newest, _newest(now))
        shown_last = min(last, _newest(now))
        agreed = shown_last == newest and not now.replaced and _agree(before, now, newest)
        before, newest = now, shown_last
        return _up_to(now, newest) if agreed else None

    return until(again, before.uri, "segments")


def until(attempt: Callable[[], _T | None], uri: str, what: str) -> _T:
    """Repeat ``attempt`` until it returns a value."""
    for number in range(_LOOKS):
        found = attempt()
        if found is not None:
            return found
        threading.Event().wait(_PAUSE_S * 2**number)
    reason = (
        f"its {what} change faster than they can be listed, or a replacement of some was cut short"
    )
    raise ResourceBusyError(shown(uri), "list", reason)


def _logs(layout: PartitionLayout) -> dict[int, ListedSegment]:
    return {segment.base_offset: segment for segment in (*layout.segments, *layout.rolled)}


def _newest(layout: PartitionLayout) -> int:
    return max(_logs(layout), default=-1)


def _agree(before: PartitionLayout, now: PartitionLayout, newest: int) -> bool:
    """Whether two listings agree on ``newest`` and every segment below it that retention left."""
    if before.topic_id != now.topic_id:
        return False
    old, new = _logs(before), _logs(now)
    first = min(new, default=newest)
    return (newest in old.keys() & new.keys() or not old) and all(
        _same(old.get(base), new.get(base)) for base in {*old, *new} if first <= base < newest
    )


def _same(one: ListedSegment | None, other: ListedSegment | None) -> bool:
    if one is None or other is None:
        return False
    return (one.size, one.mtime_ms) == (other.size, other.mtime_ms)


def _up_to(layout: PartitionLayout, newest: int) -> PartitionLayout:
    return replace(
        layout,
        segments=tuple(s for s in layout.segments if s.base_offset <= newest),
        rolled=tuple(s for s in layout.rolled if s.base_offset <= newest),
    )
