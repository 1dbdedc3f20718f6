"""Actors as greenlets, and the one place where another of them may go on.

One thread runs everything. An actor gives up control only in ``point`` and ``wait``, which the
locks and the storage seam call; a strategy then says who goes on. So a run is a function of the
program and of the strategy, and repeats exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from greenlet import GreenletExit, greenlet

STEP_LIMIT = 60_000


class Found(BaseException):
    """The log broke a promise. ``kind`` is the promise in a few words, the rest what happened.

    Not an ``Exception``: no handler of the code under test may swallow it.
    """

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(kind, detail)
        self.kind, self.detail = kind, detail

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}"


class Actor:
    """One strand of calls.

    Attributes:
        held: the locks that it holds, in the order of taking them.
        call: number of the operation it is in, from 1.
        at: steps it has taken in this operation.
    """

    def __init__(self, index: int, body: Callable[[], None] | None) -> None:
        self.index = index
        self.body = body
        self.held: list[object] = []
        self.call = 0
        self.at = 0
        self.waits_for: Callable[[], bool] | None = None
        self.may_time_out = False
        self.waiting = ""
        self.timed_out = False
        self.done = False
        self.greenlet: greenlet | None = None

    @property
    def runnable(self) -> bool:
        return not self.done and (self.waits_for is None or self.waits_for())


class Strategy(Protocol):
    def choose(self, step: int, runnable: list[Actor], current: Actor | None) -> Actor:
        """Who goes on; ``current`` ran last and may be blocked, done or None."""
        ...


class Scheduler:
    """Runs actors until all are done, and raises ``Found`` where they cannot go on.

    With ``stopping`` set nobody is switched to or waited for any more: who runs comes to an end.

    Args:
        strategy: who goes on at each step.
        observe: called at every step before anybody else may go on.
    """

    def __init__(self, strategy: Strategy, observe: Callable[[], None] = lambda: None) -> None:
        self.strategy = strategy
        self.observe = observe
        self.on_time_out: Callable[[Actor], None] = lambda actor: None
        self.actors: list[Actor] = []
        self.outside = Actor(-1, None)  # who sets up and looks at the result
        self.current = self.outside
        self.step = 0
        self.stopping = False
        self._observing = False
        self.found: Found | None = None  # raised again where a finalizer swallowed it
        self.trace: list[tuple[int, int, str]] | None = None
        self.switches: list[tuple[int, int]] = []  # where somebody else than the default went on

    def spawn(self, body: Callable[[], None]) -> Actor:
        actor = Actor(len(self.actors), body)
        self.actors.append(actor)
        return actor

    def run(self) -> None:
        """Let the actors run to their end; raises what one of them raised."""
        for actor in self.actors:
            actor.greenlet = greenlet(self._enter(actor))
        last: Actor | None = None
        try:
            while not self.stopping and not all(actor.done for actor in self.actors):
                last = self._choose(last)
                self._go(last)
                last = self.current  # who came back, not necessarily who was sent
                self.current = self.outside
        finally:
            self.current = self.outside
            self._stop()

    def _enter(self, actor: Actor) -> Callable[[], None]:
        def enter() -> None:
            assert actor.body is not None
            try:
                actor.body()
            finally:
                actor.done = True

        return enter

    def _stop(self) -> None:
        self.stopping = True
        for actor in self.actors:
            if actor.greenlet is not None and not actor.greenlet.dead:
                try:
                    actor.greenlet.throw(GreenletExit)
                except BaseException:  # on the way out of code that was stopped in the middle
                    continue

    def point(self, label: str = "") -> None:
        """Somebody else may go on here."""
        actor = self.current
        if self.stopping or self._observing or actor is self.outside:
            return
        if self.trace is not None:
            self.trace.append((self.step, actor.index, label))
        self._look()
        chosen = self._choose(actor)
        if chosen is not actor:
            self._go(chosen)

    def _look(self) -> None:
        self._observing = True  # what is called to look at the log is no step of it
        try:
            self.observe()
        finally:
            self._observing = False

    def next_call(self) -> None:
        """The running actor begins another operation."""
        self.current.call += 1
        self.current.at = 0

    def wait(self, until: Callable[[], bool], what: str, *, timed: bool = False) -> bool:
        """Go on once ``until`` holds; False when a timed wait is the last way forward."""
        actor = self.current
        if self.stopping:
            return True
        if until():
            return True
        if actor is self.outside:
            raise self.fail("deadlock", f"nobody is left to end the wait for {what}")
        actor.waits_for, actor.may_time_out, actor.waiting = until, timed, what
        actor.timed_out = False
        self._look()
        chosen = self._choose(actor)
        if chosen is not actor:
            self._go(chosen)
        actor.waits_for = None
        return not actor.timed_out

    def _choose(self, current: Actor | None) -> Actor:
        if self.found is not None:
            raise self.found
        self.step += 1
        if self.step > STEP_LIMIT:
            raise self.fail("livelock", f"no end after {STEP_LIMIT} steps")
        if current is not None:
            current.at += 1
        runnable = [actor for actor in self.actors if actor.runnable]
        if not runnable:
            runnable = [self._time_out()]
        if len(runnable) == 1:
            return runnable[0]
        chosen = self.strategy.choose(self.step, runnable, current)
        if chosen is not default_choice(runnable, current):
            self.switches.append((self.step, chosen.index))
        return chosen

    def _time_out(self) -> Actor:
        for actor in self.actors:
            if not actor.done and actor.may_time_out:
                actor.waits_for, actor.timed_out = None, True
                self.on_time_out(actor)
                return actor
        told = [
            f"actor {actor.index} holds {actor.held} and waits for {actor.waiting}"
            for actor in self.actors
            if not actor.done
        ]
        raise self.fail("deadlock", "; ".join(told))

    def fail(self, kind: str, detail: str) -> Found:
        """The failure to raise: the first one, whatever goes wrong on the way out of it."""
        if self.found is None:
            self.found = Found(kind, detail)
        return self.found

    def _go(self, actor: Actor) -> None:
        self.current = actor
        assert actor.greenlet is not None
        actor.greenlet.switch()
        # Back here: whoever switched to us has said so.


def default_choice(runnable: list[Actor], current: Actor | None) -> Actor:
    """Go on with the same actor while it can, else the first one that can."""
    return current if current in runnable and current is not None else runnable[0]
