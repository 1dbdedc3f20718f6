"""The log as a reader sees it: one immutable snapshot, and the views of its segments."""

from __future__ import annotations

from bisect import bisect_right
from operator import attrgetter

from logstore.kernels import LogSnapshot
from logstore.segments.index import TimestampOffset
from logstore.segments.segment_view import SegmentView

_BASE_OFFSET = attrgetter("base_offset")


class LogView:
    """A ``LogSnapshot`` with its segments as a sequence, oldest first.

    Made for one read by one thread. It remembers which segments were used.
    """

    __slots__ = ("_active", "seen", "snapshot")

    def __init__(self, snapshot: LogSnapshot) -> None:
        self.snapshot = snapshot
        self.seen: list[SegmentView] = []
        self._active: SegmentView | None = None

    def __len__(self) -> int:
        return len(self.snapshot.sealed) + 1

    def __getitem__(self, at: int) -> SegmentView:
        sealed = self.snapshot.sealed
        view = sealed[at] if at < len(sealed) else self._active_view()
        self.seen.append(view)
        return view

    def _active_view(self) -> SegmentView:
        view, snapshot = self._active, self.snapshot
        if view is None:
            known = None
            if snapshot.active.timestamp_loaded:
                known = TimestampOffset(snapshot.max_timestamp, snapshot.offset_of_max_timestamp)
            view = self._active = SegmentView(
                snapshot.active,
                snapshot.size,
                snapshot.offset_entries,
                snapshot.time_entries,
                known,
            )
        return view

    def base_of(self, at: int) -> int:
        sealed = self.snapshot.sealed
        base: int = (sealed[at] if at < len(sealed) else self.snapshot.active).base_offset
        return base

    def end_of(self, at: int) -> int:
        """First offset after the segment at index ``at``."""
        if at < len(self.snapshot.sealed):
            return self.base_of(at + 1)
        return self.snapshot.log_end_offset

    def floor(self, offset: int) -> int:
        """Index of the segment that would hold ``offset``, at least 0."""
        sealed, active = self.snapshot.sealed, self.snapshot.active
        if active.base_offset <= offset:
            return len(sealed)
        return max(bisect_right(sealed, offset, key=_BASE_OFFSET) - 1, 0)
