"""What leaders appended last, still in memory: who reads at the end of a log needs no file.

A log keeps the bytes that it was given, by reference; offsets and epochs are placed when they are
read. Bounded for a log and for all together, the oldest go first. Nothing here is more than the
file has: what is not found is read from there.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from struct import Struct

from logstore.common.locks import Rank, make_lock
from logstore.common.types import Buffer

_OFFSET = Struct(">q")  # of a batch header: base offset, batch length, leader epoch
_INT = Struct(">i")
_LENGTH_AT, _EPOCH_AT, _REST_AT, _LAST_DELTA_AT = 8, 12, 16, 23
_BESIDE = 330  # bytes that an append costs beside its batches; small ones would go uncounted


class _Append:
    """``size`` bytes of whole batches, now of the records [base, end)."""

    __slots__ = ("base", "cost", "data", "end", "epoch", "owner", "segment", "size")

    def __init__(
        self, owner: RecentAppends, data: Buffer, size: int, base: int, end: int, epoch: int,
        segment: int,
    ) -> None:  # fmt: skip
        self.owner, self.size, self.base, self.end, self.epoch = owner, size, base, end, epoch
        self.segment = segment
        self.cost = size + _BESIDE
        self.data: Buffer | None = data


class RecentBudget:
    """The bytes that all logs of an owner keep together, and each of them."""

    def __init__(self, total_bytes: int = 64 << 20, log_bytes: int = 4 << 20) -> None:
        self.total_bytes, self.log_bytes = total_bytes, log_bytes
        self.lock = make_lock(Rank.RECENT)
        self.kept = 0
        self.order: OrderedDict[_Append, None] = OrderedDict()  # the oldest first


class RecentAppends:
    """Of one log. Appends hold its WRITE lock; reads hold nothing."""

    def __init__(self, budget: RecentBudget) -> None:
        self._budget = budget
        self._by_base: dict[int, _Append] = {}
        self._order: deque[_Append] = deque()  # the oldest first; only they may be empty
        self._kept = 0

    def __len__(self) -> int:
        """Bytes that it costs."""
        return self._kept

    def add(self, data: Buffer, size: int, base: int, end: int, epoch: int, segment: int) -> None:
        """The first ``size`` bytes of ``data`` were appended to the segment of this base; nobody
        changes them any more."""
        budget = self._budget
        if size + _BESIDE > min(budget.log_bytes, budget.total_bytes):
            return
        if len(data) > size:  # part of a batch behind them: it would stay, and not be counted
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
        """Bytes were removed from the log, or it is not led any more."""
        with self._budget.lock:
            for entry in self._order:
                _drop(entry)
            self._order.clear()

    def read(self, offset: int, limit: int, max_bytes: int) -> bytes | None:
        """The appends from ``offset`` on that end at or below ``limit`` and fit, of one segment, as
        any read gives (F-157); None: none do."""
        by_base = self._by_base
        entry = by_base.get(offset)
        segment = -1 if entry is None else entry.segment
        pieces: list[Buffer] = []
        left = max_bytes
        while entry is not None and entry.end <= limit and entry.size <= left:
            data = entry.data
            if data is None:
                break
            _place(pieces, data, entry)
            left -= entry.size
            entry = by_base.get(entry.end)
            if entry is not None and entry.segment != segment:
                break
        return b"".join(pieces) if pieces else None


def _drop(entry: _Append) -> None:
    """Under the lock of the budget."""
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
    """The batches as the segment has them: F-62."""
    view = memoryview(data)
    epoch, offset, at = _INT.pack(entry.epoch), entry.base, 0
    while at < entry.size:
        end = at + 12 + _INT.unpack_from(view, at + _LENGTH_AT)[0]
        pieces += (
            _OFFSET.pack(offset), view[at + _LENGTH_AT : at + _EPOCH_AT], epoch,
            view[at + _REST_AT : end],
        )  # fmt: skip
        offset += _INT.unpack_from(view, at + _LAST_DELTA_AT)[0] + 1
        at = end


__all__ = ["RecentAppends", "RecentBudget"]
