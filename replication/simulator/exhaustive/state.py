"""The parts of a state of the model, as plain values and as numbers.

The model has one partition. The controller's decisions are kept while a replica can still learn
them. A replica is its log, its high watermark and its view of the leadership.
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
    """The limits of the search."""

    replicas: int
    log_size: int  # the most records in a log
    records: int  # the most records that producers write
    max_epoch: int  # leader epochs; the first is 0

    def within(self, other: Bounds) -> bool:
        return all(mine <= most for mine, most in zip(self, other, strict=True))


class ModelRecord(NamedTuple):
    id: int  # in the order in which producers wrote
    epoch: int

    def __str__(self) -> str:
        return f"{chr(ord('a') + self.id)}@{self.epoch}"


class Log(NamedTuple):
    """Records from offset 0 on, and the leader epoch cache."""

    records: tuple[ModelRecord, ...] = ()
    epochs: tuple[EpochEntry, ...] = ()

    @property
    def end_offset(self) -> int:
        return len(self.records)

    @property
    def latest_epoch(self) -> int:
        return self.epochs[-1].epoch if self.epochs else UNKNOWN_EPOCH


class ModelPhase(IntEnum):
    """The next step of a follower. A leader is FETCHING, too."""

    FETCHING = 0
    TRUNCATING = 1  # asks for the end of its latest epoch
    TRUNCATING_ON = 2  # has truncated, and asks again


class ModelReplica(NamedTuple):
    """One broker. It leads if ``leader`` is itself."""

    log: Log = Log()
    high_watermark: int = 0
    leader: int = NO_LEADER
    leader_epoch: int = UNKNOWN_EPOCH
    isr: IsrState = IsrState(())  # of a leader
    phase: ModelPhase = ModelPhase.FETCHING


class ModelLeadership(NamedTuple):
    """A leader epoch as the controller announced it.

    ``unseen`` are the ISRs decided in this epoch, oldest first, that its leader has not learned.
    """

    leader: int
    unseen: tuple[tuple[int, ...], ...] = ()


class Control(NamedTuple):
    """The registration, and the announcements, which may arrive late, twice or never.

    ``leaderships`` has an entry for each leader epoch, None if no replica can accept it any more. A
    *partition epoch* is only compared with what the leader knows. So it is kept as the number of
    changes that the leader has not seen, and the leader's own view is always at 0.
    """

    leader: int
    isr: tuple[int, ...]
    leaderships: tuple[ModelLeadership | None, ...] = ()

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
    """A whole state, to be shown. The search keeps numbers (``model``)."""

    control: Control
    written: int
    replicas: tuple[ModelReplica, ...]


class ModelTable(Generic[T]):
    """Numbers values in the order in which they appear."""

    def __init__(self, limit: int, on_new: Callable[[int, T], None]) -> None:
        self.values: list[T] = []
        self._numbers: dict[T, int] = {}
        self._limit = limit
        self._on_new = on_new

    def number(self, value: T) -> int:
        """The number of a value.

        Raises OverflowError if the key of a state has no room for more.
        """
        known = self._numbers.get(value)
        if known is None:
            known = self._numbers[value] = len(self.values)
            if known >= self._limit:
                raise OverflowError(f"more than {self._limit} values of one kind in the model")
            self.values.append(value)
            self._on_new(known, value)
        return known
