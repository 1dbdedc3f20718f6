"""One run: a log on a disk, the scheduler, the model, and what each call may end with."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import logstore.common.errors
from logstore.common.config import LogConfig
from logstore.common.errors import (
    CorruptDataError,
    LogClosedError,
    OffsetOutOfRangeError,
    StorageFailedError,
)
from logstore.log import LogOwner, PartitionLog
from logstore.testing import ManualClock
from logstore.testing.faulty import SimulatedCrash
from tests.interleavings.disk import DIRECTORY, Disk
from tests.interleavings.model import IDLE, Doing, Model, Row, State
from tests.interleavings.scheduler import Actor, Found, Scheduler, Strategy

_BUSY: tuple[type[Exception], ...] = tuple(
    getattr(logstore.common.errors, name)
    for name in ("ResourceBusyError",)
    if hasattr(logstore.common.errors, name)
)


NOTHING: Mapping[type[Exception], Callable[[State], bool]] = {}


class ActorEnds(BaseException):
    """The machine went down under this actor."""


class World:
    """What the operations of all actors share.

    Attributes:
        closing: a close or a crash of the log has begun.
        truncations: the program holds an operation that truncates, so producers may be rejected.
    """

    def __init__(
        self, strategy: Strategy, config: LogConfig, *, replicated: bool, strict: bool
    ) -> None:
        self.scheduler = Scheduler(strategy, self.observe)
        self.clock = ManualClock()
        self.disk = Disk(self.scheduler, self.clock, strict=strict)
        self.config = config
        self.replicated = replicated
        self.closing = False
        self.removal_failed = False
        self.truncations = False
        self.doings: dict[int, Doing] = {}
        self.time_outs: dict[int, int] = {}  # actor -> the state in which its last wait ended
        self.model: Model
        self.log: PartitionLog
        self.scheduler.on_time_out = self._note_time_out
        self.regrouping = False  # an actor swaps segments
        self.disk.removing = lambda: self._doing().removing
        self.disk.before_aborted = lambda: self.model.check_before_aborted(self._doing())

    def open(self, **arguments: Any) -> PartitionLog:
        owner = LogOwner(replicated=self.replicated, **arguments)
        return PartitionLog.open(
            DIRECTORY, self.config, storage=self.disk, clock=self.clock, owner=owner
        )

    def begin(self) -> None:
        """Open the log; from here on everything is observed."""
        self.log = self.open()
        self.model = Model(self.log)
        self.disk.checking = True

    def release(self) -> None:
        """End the run: the disk no longer leads to the log, nor the scheduler to what it ran.

        Snapshots of a log are not seen by the garbage collector; a circle through one would stay.
        """
        self.scheduler.stopping = True
        self.scheduler.observe = lambda: None
        self.scheduler.on_time_out = lambda actor: None
        self.scheduler.actors.clear()
        self.disk.removing = lambda: ""
        self.disk.before_aborted = lambda: None

    # -- operations ----------------------------------------------------------------------------

    def _doing(self) -> Doing:
        return self.doings.get(self.scheduler.current.index, IDLE)

    def observe(self) -> None:
        self.model.observe(self._doing())

    def _note_time_out(self, actor: Actor) -> None:
        self.time_outs[actor.index] = len(self.model.states) - 1

    def window(self, doing: Doing) -> list[State]:
        """The states that were published at some moment since the operation began."""
        return self.model.states[doing.since :]

    @contextmanager
    def operation(
        self,
        name: str,
        *,
        in_range: Callable[[State], bool] | None = None,
        allowed: Mapping[type[Exception], Callable[[State], bool]] = NOTHING,
        **fields: Any,
    ) -> Iterator[Doing]:
        """Run one call of the log inside; errors it may end with are swallowed.

        Args:
            in_range: whether the offset asked for was in the log's range.
            allowed: further errors, each with what must hold at some moment of the call.
        """
        self.scheduler.next_call()
        self.scheduler.point(f"begin {name}")
        actor = self.scheduler.current
        self.observe()
        doing = Doing(name, since=len(self.model.states) - 1, **fields)
        self.doings[actor.index] = doing
        try:
            yield doing
            self.observe()
        except Exception as error:
            self.observe()
            self.model.check_failed(doing, self.disk.is_indexed)
            if self.disk.has_failed and doing.removing:
                self.removal_failed = True
            self._excuse(doing, error, in_range, allowed)
        except SimulatedCrash:  # what it was doing stays on record
            self.closing = True
            raise ActorEnds from None
        self.doings[actor.index] = IDLE
        self.scheduler.point(f"end {name}")

    def _excuse(
        self,
        doing: Doing,
        error: Exception,
        in_range: Callable[[State], bool] | None,
        allowed: Mapping[type[Exception], Callable[[State], bool]],
    ) -> None:
        if self.disk.stopped:
            raise ActorEnds
        window = self.window(doing)
        what = f"{doing.name}: {type(error).__name__}: {error}"
        if isinstance(error, LogClosedError):
            if not self.closing:
                raise Found("closed without a close", what) from error
        elif isinstance(error, (StorageFailedError, *_BUSY)):
            if not self.disk.has_failed:
                raise Found("storage failure on a healthy disk", what) from error
        elif reasons := [holds for kind, holds in allowed.items() if isinstance(error, kind)]:
            if not any(holds(state) for holds in reasons for state in window):
                raise Found("rejected without reason", what) from error
        elif isinstance(error, OffsetOutOfRangeError):
            if in_range is None or all(in_range(state) for state in window):
                raise Found("out of range without reason", what) from error
        elif isinstance(error, CorruptDataError):
            raise Found("corrupt data on a healthy disk", what) from error
        else:
            raise Found("raw error", what) from error

    # -- durability ----------------------------------------------------------------------------

    @property
    def removal_in_flight(self) -> bool:
        """Or one that failed half-way: some records may be gone, and the log does not say which."""
        return self.removal_failed or any(doing.removing for doing in self.doings.values())

    def not_durable(self, rows: list[Row]) -> list[Row]:
        """Those of ``rows`` that a power cut now could take; the others are noted as durable."""
        durable = self.disk.durable_log_bytes()
        self.model.known_durable.update(row.value for row in rows if row.value in durable)
        return [row for row in rows if row.value not in durable]

    def live_rows(self, end: int | None = None) -> list[Row]:
        now = self.model.now
        return [
            row
            for batch in now.batches
            if batch.last >= now.start and not batch.is_control
            for row in batch.rows
            if now.start <= row.offset and (end is None or row.offset < end)
        ]

    def check_flush_limit(self) -> None:
        """Fewer acknowledged records than ``flush.messages`` may be lost in a power cut."""
        limit = self.log.config.flush_messages
        if limit > 1000 or self.removal_in_flight:
            return
        rows = [row for row in self.live_rows() if row.value in self.model.acknowledged]
        open_to_loss = self.not_durable(rows)
        if len(open_to_loss) >= limit:
            raise Found(
                "acknowledged but not durable",
                f"flush.messages is {limit}, and a power cut takes {open_to_loss}",
            )


@contextmanager
def idle_files(limit: int) -> Iterator[None]:
    """Let so many files stay open that nobody holds; begin and end with none."""
    try:
        from logstore.segments import open_files
    except ImportError:  # the log as it was when files stayed open
        yield
        return
    before = open_files._IDLE_MAX
    open_files._idle.clear()
    open_files._IDLE_MAX = limit
    try:
        yield
    finally:
        open_files._idle.clear()
        open_files._IDLE_MAX = before


class RebuildWatch(logging.Handler):
    """Notes that an index was rebuilt, which an undamaged disk never needs."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.seen = ""

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if "index rebuilt" in message:
            self.seen = message


__all__ = ["Actor", "ActorEnds", "RebuildWatch", "World", "idle_files"]
