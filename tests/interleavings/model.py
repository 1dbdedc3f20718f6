"""What the log held at each moment: a plain list of batches for each state that was published.

The scheduler lets the model look at the log's offsets at every step. A change is put down to the
operation of the actor that ran, and must be one that this operation can make. Other actors can see
only what there is at a step, so these states are all that a read may be explained by.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import NamedTuple

from logstore.log import PartitionLog
from tests.interleavings.scheduler import Found


class Kind(Enum):
    DATA = "data"
    TRANSACTIONAL = "transactional"
    COMMIT = "commit"
    ABORT = "abort"


class Row(NamedTuple):
    offset: int
    value: bytes
    timestamp: int


class Batch(NamedTuple):
    base: int
    last: int
    size: int
    rows: tuple[Row, ...]
    kind: Kind = Kind.DATA
    producer_id: int = -1

    @property
    def is_control(self) -> bool:
        return self.kind in (Kind.COMMIT, Kind.ABORT)

    def at(self, base: int) -> Batch:
        """The same batch with other offsets."""
        shift = base - self.base
        rows = tuple(row._replace(offset=row.offset + shift) for row in self.rows)
        return self._replace(base=base, last=self.last + shift, rows=rows)


class Transaction(NamedTuple):
    producer_id: int
    first: int
    last: int  # offset of the marker
    aborted: bool


@dataclass(frozen=True)
class State:
    """One published state: log start, log end, high watermark, last stable offset, batches."""

    start: int
    end: int
    high_watermark: int
    last_stable: int
    batches: tuple[Batch, ...]

    def numbers(self) -> tuple[int, int, int, int]:
        return self.start, self.end, self.high_watermark, self.last_stable

    def from_offset(self, offset: int) -> tuple[Batch, ...]:
        """Batches that hold ``offset`` or later ones."""
        return tuple(batch for batch in self.batches if batch.last >= offset)

    def rows(self, start: int, end: int, *, committed: bool = False) -> list[Row]:
        """Records a reader gets for ``[start, end)``."""
        return [
            row
            for batch in self.batches
            if not batch.is_control and not (committed and self._is_aborted(batch))
            for row in batch.rows
            if start <= row.offset < end
        ]

    def _is_aborted(self, batch: Batch) -> bool:
        return batch.kind is Kind.TRANSACTIONAL and any(
            t.aborted and t.producer_id == batch.producer_id and t.first <= batch.base <= t.last
            for t in self.transactions
        )

    @cached_property
    def transactions(self) -> tuple[Transaction, ...]:
        """Those with a marker."""
        done: list[Transaction] = []
        begun: dict[int, int] = {}
        for batch in self.batches:
            if batch.kind is Kind.TRANSACTIONAL:
                begun.setdefault(batch.producer_id, batch.base)
            elif batch.is_control:
                first = begun.pop(batch.producer_id, None)
                if first is not None:
                    aborted = batch.kind is Kind.ABORT
                    done.append(Transaction(batch.producer_id, first, batch.last, aborted))
        return tuple(done)

    @cached_property
    def open_from(self) -> int | None:
        """First offset that is still there of a transaction without marker."""
        begun: dict[int, int] = {}
        for batch in self.batches:
            if batch.kind is Kind.TRANSACTIONAL and batch.last >= self.start:
                begun.setdefault(batch.producer_id, max(batch.base, self.start))
            elif batch.is_control:
                begun.pop(batch.producer_id, None)
        return min(begun.values(), default=None)


@dataclass
class Doing:
    """The operation an actor is in.

    ``adds`` are the batches an append will place, at their own offsets if ``placed``, and ``added``
    those it placed; ``removing`` is ``truncation``, ``retention`` or nothing, and ``clears`` a
    truncation of everything; ``moves`` names what else may change: ``start`` or ``watermark``.
    """

    name: str
    since: int = 0
    adds: tuple[Batch, ...] = ()
    placed: bool = False
    removing: str = ""
    clears: bool = False
    moves: tuple[str, ...] = ()
    added: tuple[Batch, ...] = ()

    @property
    def truncates(self) -> bool:
        return self.removing == "truncation"


IDLE = Doing("nothing")


class Model:
    """The history of a log. ``states[i]`` for all ``i`` from a call on are those it overlapped."""

    def __init__(self, log: PartitionLog, batches: tuple[Batch, ...] = ()) -> None:
        self.log = log
        start, end, high, stable = self._look()
        self.states = [State(start, end, high, stable, batches)]
        self.acknowledged: dict[bytes, Row] = {}  # by value, which is unique
        self.known_durable: set[bytes] = set()

    @property
    def now(self) -> State:
        return self.states[-1]

    def _look(self) -> tuple[int, int, int, int]:
        log = self.log
        return (
            log.log_start_offset,
            log.log_end_offset,
            log.high_watermark,
            log.last_stable_offset,
        )

    def observe(self, doing: Doing) -> None:
        """Take down the log's state after a step inside ``doing``."""
        seen = self._look()
        now = self.states[-1]
        cleared = doing.clears and bool(now.batches) and not self.log.size
        if seen == now.numbers() and not cleared:
            return
        start, end, high, stable = seen
        batches = () if cleared else now.batches
        if end > now.end and not doing.clears:
            batches = self._grown(doing, now, end)
        elif end < now.end:
            if not doing.truncates:
                raise Found("unexplained log end", f"{doing.name} took it from {now.end} to {end}")
            batches = tuple(batch for batch in batches if batch.last < end)
        if start != now.start and not (doing.truncates or "start" in doing.moves):
            raise Found("unexplained log start", f"{doing.name}: {now.start} to {start}")
        if high != now.high_watermark and not (
            doing.truncates or doing.adds or doing.added or doing.moves
        ):
            raise Found("unexplained watermark", f"{doing.name}: {now.high_watermark} to {high}")
        self.states.append(State(start, end, high, stable, batches))
        self._check_stable(doing)

    def _grown(self, doing: Doing, now: State, end: int) -> tuple[Batch, ...]:
        placed: list[Batch] = []
        at = now.end
        for batch in doing.adds:
            placed.append(batch if doing.placed else batch.at(at))
            at = placed[-1].last + 1
        if not placed or at != end:
            raise Found("unexplained log end", f"{doing.name} took it from {now.end} to {end}")
        doing.added, doing.adds = tuple(placed), ()
        return (*now.batches, *placed)

    def _check_stable(self, doing: Doing) -> None:
        state = self.now
        if state.last_stable > state.high_watermark:
            raise Found("last stable offset", f"{state.last_stable} is above the high watermark")
        if state.open_from is not None and state.last_stable > state.open_from:
            raise Found(
                "last stable offset",
                f"{state.last_stable} is above {state.open_from}, where a transaction is open",
            )

    def check_before_aborted(self, doing: Doing) -> None:
        """Readers are not sent past an aborted transaction that the index does not tell yet."""
        self.observe(doing)
        for batch in doing.added:
            if batch.kind is Kind.ABORT:
                self._check_not_past(batch, "before its index entry is written")

    def check_failed(self, doing: Doing, indexed: Callable[[int], bool]) -> None:
        """An append failed. Its abort markers decide nothing unless they are in an index."""
        for batch in doing.added:
            if batch.kind is Kind.ABORT and not indexed(batch.last):
                self._check_not_past(batch, "although its append failed")

    def _check_not_past(self, marker: Batch, when: str) -> None:
        for transaction in self.now.transactions:
            if transaction.last == marker.last and self.now.last_stable > max(
                transaction.first, self.now.start
            ):
                raise Found(
                    "last stable offset",
                    f"{self.now.last_stable} is past the transaction at {transaction.first} {when}",
                )
