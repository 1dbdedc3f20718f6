"""The last appends of leaders, kept in memory so that readers at the log end need no file.

A log keeps references to the appended bytes, and writes offsets and epochs when they are read. The
size is bounded for a log and for all logs together; the oldest appends are dropped first. Where
nobody reads for a while nothing is kept: that costs an append of one record a fifth of its time.
Everything here is also in the file, and what is not found is read from there.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from struct import Struct

from logstore.common.locks import Rank, make_lock
from logstore.common.types import Buffer

_OFFSET = Struct(">q")  # of a batch header: base offset, batch length, leader epoch
_INT = Struct(">i")
_LENGTH_AT, _EPOCH_AT, _REST_AT, _LAST_DELTA_AT = 8, 12, 16, 23
_WHOLE_MAX = 32  # appends: 1 µs each, where a read of the file takes 30 to 40 in all
_UNREAD_MAX = 1000  # appends since the last read
_BESIDE = 330  # bytes that an append costs besides its batches, which matters for small ones


class _Append:
    """``size`` bytes of whole batches with the records [base, end)."""

    __slots__ = ("base", "cost", "data", "end", "epoch", "owner", "segment", "size")

    def __init__(
        self,
        owner: RecentAppends,
        data: Buffer,
        size: int,
        base: int,
        end: int,
        epoch: int,
        segment: int,
    ) -> None:
        self.owner, self.size, self.base, self.end, self.epoch = owner, size, base, end, epoch
        self.segment = segment
        self.cost = size + _BESIDE
        self.data: Buffer | None = data


class RecentBudget:
    """The limits of kept bytes for all logs of an owner together, and for each."""

    def __init__(self, total_bytes: int = 64 << 20, log_bytes: int = 4 << 20) -> None:
        self.total_bytes, self.log_bytes = total_bytes, log_bytes
        self.lock = make_lock(Rank.RECENT)
        self.kept = 0
        self.order: OrderedDict[_Append, None] = OrderedDict()  # the oldest first


class RecentAppends:
    """The recent appends of one log. Appends hold its WRITE lock, reads hold no lock."""

    def __init__(self, budget: RecentBudget) -> None:
        self._budget = budget
        self._by_base: dict[int, _Append] = {}
        self._order: deque[_Append] = deque()  # the oldest first
        self._kept = 0
        # Appends since a reader asked. It sets this to 0 without a lock. If an append overwrites
        # that, the next reader asks again.
        self._unread = 0

    def __len__(self) -> int:
        """The kept bytes with their overhead."""
        return self._kept

    def add(self, data: Buffer, size: int, base: int, end: int, epoch: int, segment: int) -> None:
        """Keep the first ``size`` bytes of ``data``, which were appended to the segment of this
        base. They must not change any more.
        """
        self._unread += 1
        if self._unread > _UNREAD_MAX:
            if self._order:
                self.clear()
            return
        budget = self._budget
        if size + _BESIDE > min(budget.log_bytes, budget.total_bytes):
            return
        if len(data) > size:  # a partial batch after them would stay in memory uncounted
            data = bytes(memoryview(data)[:size])
        entry = _Append(self, data, size, base, end, epoch, segment)
        with budget.lock:
            self._order.append(entry)
            budget.order[entry] = None
            self._kept += entry.cost
            budget.kept += entry.cost
            while self._kept > budget.log_bytes or self._order[0].data is None:
                _drop(self._order.popleft())
            while budget.kept > budget.total_bytes:
                _drop(next(iter(budget.order)))
            self._by_base[base] = entry

    def clear(self) -> None:
        """Drop all, because bytes were removed from the log or its leadership ended."""
        with self._budget.lock:
            for entry in self._order:
                _drop(entry)
            self._order.clear()

    def read(self, offset: int, limit: int, max_bytes: int, *, whole: bool = False) -> bytes | None:
        """The appends of one segment from ``offset`` on that end at or below ``limit`` and fit
        (F-157).

        None if there are none, or with ``whole`` if they do not reach ``limit`` or are so many that
        the file is read sooner.
        """
        self._unread = 0
        by_base = self._by_base
        entry = by_base.get(offset)
        segment = -1 if entry is None else entry.segment
        found: list[tuple[Buffer, _Append]] = []
        left, end = max_bytes, offset
        while entry is not None and entry.end <= limit and entry.size <= left:
            data = entry.data
            if data is None or (whole and len(found) == _WHOLE_MAX):
                break
            found.append((data, entry))
            left -= entry.size
            end = entry.end
            entry = by_base.get(end)
            if entry is not None and entry.segment != segment:
                break
        if not found or (whole and end < limit):
            return None
        pieces: list[Buffer] = []
        for data, entry in found:
            _place(pieces, data, entry)
        return b"".join(pieces)


def _drop(entry: _Append) -> None:
    """Drop an append. The lock of the budget is held."""
    if entry.data is None:
        return
    entry.data = None
    owner, budget = entry.owner, entry.owner._budget
    owner._kept -= entry.cost
    budget.kept -= entry.cost
    del budget.order[entry]
    if owner._by_base.get(entry.base) is entry:
        del owner._by_base[entry.base]


def _place(pieces: list[Buffer], data: Buffer, entry: _Append) -> None:
    """Write offsets and epochs into the batches, as the segment has them (F-62)."""
    view = memoryview(data)
    epoch, offset, at = _INT.pack(entry.epoch), entry.base, 0
    while at < entry.size:
        end = at + 12 + _INT.unpack_from(view, at + _LENGTH_AT)[0]
        pieces += (
            _OFFSET.pack(offset),
            view[at + _LENGTH_AT : at + _EPOCH_AT],
            epoch,
            view[at + _REST_AT : end],
        )
        offset += _INT.unpack_from(view, at + _LAST_DELTA_AT)[0] + 1
        at = end


__all__ = ["RecentAppends", "RecentBudget"]
