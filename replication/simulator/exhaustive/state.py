"""What a state of the model is made of: plain values, and their numbers.

One partition. The controller's decisions are kept as far as someone can still learn of them; a
replica is its log, its high watermark and its view of the leadership.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from enum import IntEnum
from typing import Generic, NamedTuple, TypeVar

from logstore.segments.leader_epochs import EpochEntry
from replication.common.state import NO_LEADER, UNKNOWN_EPOCH, PartitionRegistration
from replication.decisions.isr import IsrState

T = TypeVar("T", bound=Hashable)


class Bounds(NamedTuple):
    """How far the search goes."""

    replicas: int
    log_size: int  # records that a log holds at most
    records: int  # that producers write in all
    max_epoch: int  # of leadership; the first is 0

    def within(self, other: Bounds) -> bool:
        return all(mine <= most for mine, most in zip(self, other, strict=True))


class Record(NamedTuple):
    id: int  # in the order in which producers wrote
    epoch: int

    def __str__(self) -> str:
        return f"{chr(ord('a') + self.id)}@{self.epoch}"


class Log(NamedTuple):
    """Records from offset 0 on, and the leader epoch cache."""

    records: tuple[Record, ...] = ()
    epochs: tuple[EpochEntry, ...] = ()

    @property
    def end_offset(self) -> int:
        return len(self.records)

    @property
    def latest_epoch(self) -> int:
        return self.epochs[-1].epoch if self.epochs else UNKNOWN_EPOCH


class Phase(IntEnum):
    """What a follower does next; a leader is FETCHING, too."""

    FETCHING = 0
    TRUNCATING = 1  # asks for the end of its latest epoch
    TRUNCATING_ON = 2  # has cut, and asks again


class Replica(NamedTuple):
    """One broker's half. It leads if ``leader`` is itself."""

    log: Log = Log()
    high_watermark: int = 0
    leader: int = NO_LEADER
    leader_epoch: int = UNKNOWN_EPOCH
    isr: IsrState = IsrState(())  # of a leader
    phase: Phase = Phase.FETCHING


class Leadership(NamedTuple):
    """A leader epoch as the controller announced it.

    ``unseen`` are the ISRs decided in this epoch, oldest first, that its leader has not learned.
    """

    leader: int
    unseen: tuple[tuple[int, ...], ...] = ()


class Control(NamedTuple):
    """The registration, and what was announced; requests may come late, twice or never.

    ``leaderships`` has an entry for each leader epoch, None where nobody can take it any more.
    The *partition epoch* counts only against what the leader knows, so it is kept as the number of
    changes that the leader has not seen: its own view is always at 0.
    """

    leader: int
    isr: tuple[int, ...]
    leaderships: tuple[Leadership | None, ...] = ()

    @property
    def leader_epoch(self) -> int:
        return len(self.leaderships) - 1

    @property
    def unseen_count(self) -> int:
        latest = self.leaderships[-1] if self.leaderships else None
        return len(latest.unseen) if latest is not None else 0

    def registration(self, replicas: int) -> PartitionRegistration:
        return PartitionRegistration(
            tuple(range(replicas)), self.isr, self.leader, self.leader_epoch, self.unseen_count
        )


class State(NamedTuple):
    """A whole state, as it is shown; the search keeps numbers (``model``)."""

    control: Control
    written: int
    replicas: tuple[Replica, ...]


class Table(Generic[T]):
    """Values numbered in the order in which they turn up."""

    def __init__(self, limit: int, on_new: Callable[[int, T], None]) -> None:
        self.values: list[T] = []
        self._numbers: dict[T, int] = {}
        self._limit = limit
        self._on_new = on_new

    def number(self, value: T) -> int:
        """Raises OverflowError when there are more values than a state's key has room for."""
        known = self._numbers.get(value)
        if known is None:
            known = self._numbers[value] = len(self.values)
            if known >= self._limit:
                raise OverflowError(f"more than {self._limit} values of one kind in the model")
            self.values.append(value)
            self._on_new(known, value)
        return known
