"""The coordinator of a simulation: the embedded store on its own disk, which crashes, and sessions
whose answers get lost, with the call carried out or not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from logstore.testing.faulty import FaultyStorage, SimulatedCrash
from replication.coordination import (
    CoordinationError,
    CoordinatorUnavailableError,
    Create,
    Node,
    Op,
    SessionExpiredError,
    SessionState,
    Set,
)
from replication.coordination.base import (
    ANY_VERSION,
    Deliver,
    OpResult,
    StateListener,
    WatchListener,
)
from replication.coordination.embedded import CoordinatorStore, EmbeddedCoordinator
from replication.coordination.tree import Tree
from replication.simulator.world.scheduler import US_PER_MS, Scheduler, SimClock

NOT_CARRIED_OUT, CARRIED_OUT, CRASH = "lost-call", "lost-answer", "coordinator-crash"
DIRECTORY = "/coordinator"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CoordinatorCall:
    """One call of a session, while it is under way."""

    broker: int
    name: str  # the name of the method
    path: str  # its path; for a transaction that of its first write
    ops: tuple[Op, ...] = ()

    @property
    def writes(self) -> bool:
        return self.name in ("create", "set", "delete", "transact")


@dataclass(slots=True)
class CallFate:
    """The fate of one call."""

    kind: str  # NOT_CARRIED_OUT, CARRIED_OUT or CRASH
    connection_ms: int = 0  # for how long the connection breaks with it
    restart_ms: int = 0  # the restart time of the store
    carried_out: bool = False  # the delay before the store crashes


@dataclass(slots=True)
class Silence:
    """The faults for the calls of a session."""

    rates: dict[str, float] = field(default_factory=dict)  # kind → likelihood for a single call
    planned: list[tuple[int, CallFate]] = field(default_factory=list)  # after so many calls


class SimCoordinator:
    """See the module.

    Args:
        deliver: delivers notifications of the store in order.
        on_broken: called with a broker whose connection breaks, and for how many ms.
    Attributes:
        gate: called with every call before it is made, and may decide its fate.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        struck: Counter[str],
        session_timeout_ms: int,
        deliver: Deliver,
        on_broken: Callable[[int, int], None],
    ) -> None:
        self.disk = FaultyStorage()
        self.silence: dict[int, Silence] = {}  # by broker
        self.gate: Callable[[CoordinatorCall], CallFate | None] | None = None
        self._scheduler, self._struck = scheduler, struck
        self._session_timeout_ms = session_timeout_ms
        self._deliver = deliver
        self._on_broken = on_broken
        self._sessions: list[SimSession] = []
        self._restart_ms = 0  # for a crash that is planned in the disk
        self._store: CoordinatorStore | None = self._open()

    def _open(self) -> CoordinatorStore:
        clock = SimClock(self._scheduler)
        return CoordinatorStore(
            DIRECTORY, self.disk, clock, self._session_timeout_ms, self._deliver
        )

    @property
    def tree(self) -> Tree | None:
        """The durable tree; None while the store is down."""
        return None if self._store is None else self._store._tree

    @property
    def session_timeout_ms(self) -> int:
        return self._session_timeout_ms

    @session_timeout_ms.setter
    def session_timeout_ms(self, value: int) -> None:
        self._session_timeout_ms = self._running().session_timeout_ms = value

    @property
    def is_quiet(self) -> bool:
        """Whether no fault affects calls."""
        return not self.silence and self.gate is None

    @property
    def is_calm(self) -> bool:
        """Whether it is up without an active fault. A fault may still wait for its moment."""
        return self._store is not None and not self.silence

    # -- faults --------------------------------------------------------------------------------

    def crash(self, restart_ms: int) -> None:
        """Lose power. Answered calls are durable, and nothing is notified.

        When the store comes back, all sessions have ended.
        """
        store, self._store = self._store, None
        if store is None:
            return
        self._struck[CRASH] += 1
        self._scheduler.note("the coordinator crashes")
        store.crash()
        self.disk.crash(self._scheduler.random, "random")
        for session in self._sessions:
            if not session.is_suspended:
                session.tell(SessionState.SUSPENDED)  # break their connections
        self._start_later(restart_ms)

    def _start_later(self, restart_ms: int) -> None:
        self._scheduler.after(restart_ms * US_PER_MS, None, "the coordinator starts", self.start)

    def crash_after(self, changes: int, restart_ms: int) -> None:
        """Crash in place of a change of the disk, counted from now."""
        self._restart_ms = restart_ms
        self.disk.crash_after(changes)

    def start(self) -> None:
        if self._store is not None:
            return
        try:
            self._store = self._open()
        except SimulatedCrash:  # while it recovers from the previous one
            self._struck[CRASH] += 1
            self.disk.crash(self._scheduler.random, "random")
            self._start_later(self._restart_ms)
            return
        self._scheduler.note("the coordinator is back")
        sessions, self._sessions = self._sessions, []
        for session in sessions:
            session.end()

    def remove(self, path: str) -> bool:
        """Remove a node from outside. False if it does not exist."""
        if self._store is None or self._store._tree.get(path) is None:
            return False
        store = self._store

        def delete() -> bool:
            stranger = store.connect()
            stranger.delete(path)
            stranger.close()
            return True

        try:
            return self._at_the_store(delete)
        except CoordinatorUnavailableError:
            return False

    def heal(self) -> None:
        self.silence.clear()
        self.gate = None
        self.disk.heal()
        self.start()

    # -- sessions ------------------------------------------------------------------------------

    def connect(self, broker: int) -> SimSession:
        """
        Raises:
            CoordinatorUnavailableError
        """
        real = self.carry_out(
            CoordinatorCall(broker, "connect", ""), lambda: self._running().connect()
        )
        session = SimSession(self, broker, real)
        self._sessions.append(session)
        return session

    def expire(self, session: SimSession) -> None:
        """End a session as its timeout does."""
        self._running().expire(session._real)

    def expire_sessions(self) -> None:
        if self._store is None:
            return
        store, now_ms = self._store, self._scheduler.now_ms
        try:
            store.expire_sessions(now_ms)
        except SimulatedCrash:
            self.crash(self._restart_ms)
            return  # sessions that had ended may not have known it before the crash
        # A session that is cut off does not know yet that it has ended.
        self._sessions = [s for s in self._sessions if not s.is_over or s.is_suspended]

    def _running(self) -> CoordinatorStore:
        if self._store is None:
            raise CoordinatorUnavailableError("the coordinator is down")
        return self._store

    def carry_out(self, call: CoordinatorCall, task: Callable[[], T]) -> T:
        """Run ``task`` unless a fault of this call prevents it.

        A fault may also drop the answer.
        """
        fate = None if self.is_quiet else self._fate_of(call)
        if fate is None:
            return self._at_the_store(task)
        note = f"b{call.broker} {call.name} {call.path}".rstrip()
        if fate.kind == CRASH:
            if fate.carried_out:
                self._ignoring_refusals(task)
            self._scheduler.note(f"{note}: in the middle of it")
            self.crash(fate.restart_ms)
            raise CoordinatorUnavailableError(f"{call.path}: the coordinator crashed")
        self._struck[fate.kind] += 1
        if fate.kind == CARRIED_OUT:
            self._ignoring_refusals(task)
        self._scheduler.note(f"{note}: answer lost ({fate.kind})")
        if fate.connection_ms:
            self._on_broken(call.broker, fate.connection_ms)
        raise CoordinatorUnavailableError(f"{call.path}: the answer is lost")

    def _at_the_store(self, task: Callable[[], T]) -> T:
        try:
            return task()
        except SimulatedCrash:
            self.crash(self._restart_ms)
            raise CoordinatorUnavailableError("the coordinator crashed") from None

    def _ignoring_refusals(self, task: Callable[[], object]) -> None:
        """Run a task whose answer is lost."""
        try:
            self._at_the_store(task)
        except CoordinatorUnavailableError:
            raise
        except CoordinationError:
            return

    def _fate_of(self, call: CoordinatorCall) -> CallFate | None:
        if self.gate is not None:
            fate = self.gate(call)
            if fate is not None:
                return fate
        silence = self.silence.get(call.broker)
        if silence is None:
            return None
        fates = [fate for left, fate in silence.planned if left <= 1]
        silence.planned = [(left - 1, fate) for left, fate in silence.planned if left > 1]
        if fates:
            return fates[0]
        for kind, rate in silence.rates.items():
            # There are many more reads than writes, and most are repeated in the same event.
            if self._scheduler.random.random() < (rate if call.writes else rate / 4):
                return CallFate(kind)
        return None


class SimSession:
    """A `Coordinator` for one session of a broker, over a session of the store."""

    def __init__(self, site: SimCoordinator, broker: int, real: EmbeddedCoordinator) -> None:
        self._site, self._broker, self._real = site, broker, real
        self._listeners: list[StateListener] = []
        self._ended = False  # the store of the session

    @property
    def session_id(self) -> int:
        return self._real.session_id

    @property
    def state(self) -> SessionState:
        if self._ended and not self._real.suspended:
            return SessionState.EXPIRED
        return self._real.state

    @property
    def is_over(self) -> bool:
        return self._real.over or self._real.closed or self._ended

    @property
    def is_suspended(self) -> bool:
        return self._real.suspended

    def _ask(self, name: str, path: str, task: Callable[[], T], ops: tuple[Op, ...] = ()) -> T:
        if self._ended:
            if self._real.suspended:
                raise CoordinatorUnavailableError(f"session {self.session_id} is cut off")
            raise SessionExpiredError(f"session {self.session_id} ended with its store")
        return self._site.carry_out(CoordinatorCall(self._broker, name, path, ops), task)

    def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        parents: bool = False,
    ) -> tuple[str, int]:
        return self._ask(
            "create",
            path,
            lambda: self._real.create(
                path, data, ephemeral=ephemeral, sequential=sequential, parents=parents
            ),
        )

    def get(self, path: str) -> Node | None:
        return self._ask("get", path, lambda: self._real.get(path))

    def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> int:
        return self._ask("set", path, lambda: self._real.set(path, data, version))

    def delete(self, path: str, version: int = ANY_VERSION) -> None:
        return self._ask("delete", path, lambda: self._real.delete(path, version))

    def children(self, path: str) -> list[str]:
        return self._ask("children", path, lambda: self._real.children(path))

    def transact(self, ops: Sequence[Op]) -> list[OpResult]:
        path = next((op.path for op in ops if isinstance(op, Create | Set)), ops[0].path)
        return self._ask("transact", path, lambda: self._real.transact(ops), tuple(ops))

    def watch(self, path: str, listener: WatchListener) -> None:
        return self._ask("watch", path, lambda: self._real.watch(path, listener))

    def on_state(self, listener: StateListener) -> None:
        self._listeners.append(listener)
        self._real.on_state(listener)

    def close(self) -> None:
        try:
            self._ask("close", "", self._real.close)
        except CoordinationError:
            self._real.suspended = True  # it cannot reach the store, and goes silent
            self._real.close()

    # -- for the cluster -----------------------------------------------------------------------

    def heartbeat(self) -> None:
        if not self.is_over and self._real.state is SessionState.CONNECTED:
            self._real.heartbeat()

    def suspend(self) -> None:
        if not self._ended:
            self._real.suspend()

    def resume(self) -> None:
        if not self._ended:
            self._real.resume()
        elif self._real.suspended:
            self._real.suspended = False
            self.tell(SessionState.EXPIRED)

    def end(self) -> None:
        """End the session, because its store was replaced."""
        self._ended = True
        if not self._real.suspended:
            self.tell(SessionState.EXPIRED)

    def tell(self, state: SessionState) -> None:
        if self._real.closed:
            return
        for listener in self._listeners:
            self._site._deliver(lambda listener=listener: listener(state))  # type: ignore[misc]
