"""Requests that are retried until they are answered: the pauses, and reactions to answers.

A channel between two parts of the system has one table ``ErrorCode → Reaction``, made by
``reactions``, and one ``RetryingCall`` for each of its requests.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TypeAlias, TypeVar

from replication.common.error_codes import ErrorCode
from replication.common.runtime import Actor, Cancellable, Runtime


class Reaction(Enum):
    """The reaction to the outcome of one try."""

    DONE = "done"
    AGAIN = "again"  # retry after a pause
    FIND_CONTROLLER = (
        "find the controller"  # the broker that was asked is not it; then again after a pause
    )
    GIVE_UP = "give up"  # the request can never succeed; go on without it
    FATAL = "fatal"  # the sender must give up its role

    @property
    def ends(self) -> bool:
        """Whether it ends the call."""
        return self not in (Reaction.AGAIN, Reaction.FIND_CONTROLLER)


R = TypeVar("R", bound=Enum)


def reactions(groups: Mapping[R, Iterable[ErrorCode]], otherwise: R) -> dict[ErrorCode, R]:
    """The table of a channel, complete over every code: its codes by reaction, and the reaction to
    all others.

    Raises:
        ValueError: a code is repeated.
    """
    table: dict[ErrorCode, R] = {}
    for reaction, codes in groups.items():
        for code in codes:
            if code in table:
                raise ValueError(f"{code.name} stands twice in a table of reactions")
            table[code] = reaction
    return dict.fromkeys(ErrorCode, otherwise) | table


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses that grow with consecutive failures (Kafka's ``ExponentialBackoff``).

    Attributes:
        initial_ms, max_ms: the first pause, and the longest.
        multiplier: the factor from one pause to the next.
        jitter: a share in [0, 1) by which a pause is randomly longer or shorter, so that callers
            that failed together do not retry together.
    """

    initial_ms: float
    max_ms: float
    multiplier: float = 2.0
    jitter: float = 0.2

    def __post_init__(self) -> None:
        if not (0 < self.initial_ms <= self.max_ms and self.multiplier >= 1):
            raise ValueError(f"{self} does not grow from a pause to a longer one")
        if not 0 <= self.jitter < 1:
            raise ValueError(f"jitter {self.jitter} is not in [0, 1)")

    def delay_ms(self, failures: int, source: random.Random) -> float:
        """The pause after ``failures`` consecutive failures, at least 1."""
        pause = self.initial_ms
        for _ in range(failures - 1):
            pause *= self.multiplier
            if pause >= self.max_ms or self.multiplier == 1:
                break
        return min(pause * source.uniform(1 - self.jitter, 1 + self.jitter), self.max_ms)


Settle: TypeAlias = Callable[[Reaction], None]
"""Takes the outcome of one try, on any thread. Only the first call counts."""


class _State(Enum):
    IDLE = "idle"
    TRYING = "trying"
    WAITING = "waiting"
    CANCELLED = "cancelled"


class RetryingCall:
    """A call that is retried after growing pauses until a reaction ends it.

    There are never two tries at once. It is used only on its actor, which also runs all callbacks.

    Args:
        attempt: makes one try, and calls its ``Settle`` once, now or later. An exception counts as
            AGAIN.
        on_end: called with the reaction that ended the call. It may ``start`` it again.
        find_controller: called at FIND_CONTROLLER, before the pause.
        tries: the most tries. ``on_end`` gets the reaction of the last one that fails.
    """

    def __init__(
        self,
        runtime: Runtime,
        actor: Actor,
        backoff: Backoff,
        attempt: Callable[[Settle], None],
        on_end: Callable[[Reaction], None] = lambda reaction: None,
        *,
        find_controller: Callable[[], None] = lambda: None,
        tries: int | None = None,
    ) -> None:
        self._runtime, self._actor, self._backoff = runtime, actor, backoff
        self._attempt, self._on_end = attempt, on_end
        self._find_controller = find_controller
        self._tries = tries
        self._state = _State.IDLE
        self._number = 0  # the present try; outcomes of earlier ones do not count
        self._failures = 0
        self._once_more = False
        self._timer: Cancellable | None = None

    @property
    def active(self) -> bool:
        """Whether a try is under way or will follow."""
        return self._state in (_State.TRYING, _State.WAITING)

    @property
    def failures(self) -> int:
        """The number of consecutive tries that failed."""
        return self._failures

    def start(self) -> None:
        """Start the call. Does nothing while it is active or after ``cancel``."""
        if self._state is _State.IDLE:
            self._failures = 0
            self._try()

    def renew(self) -> None:
        """As ``start``. If a try is under way, which may miss a new state, another one follows."""
        if self._state is _State.TRYING:
            self._once_more = True
        self.start()

    def hurry(self) -> None:
        """End a pause now, because what the last try lacked is there.

        Do not call it after each failure, since there would be no pauses.
        """
        if self._state is _State.WAITING:
            self._stop_timer()
            self._try()

    def cancel(self) -> None:
        """Stop for good. The present try has no effect. Idempotent."""
        self._state = _State.CANCELLED
        self._number += 1
        self._stop_timer()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _try(self) -> None:
        self._state = _State.TRYING
        self._once_more = False
        self._number += 1
        number = self._number

        def settle(reaction: Reaction) -> None:
            self._actor.post(partial(self._settled, number, reaction))

        try:
            self._attempt(settle)
        except Exception:
            settle(Reaction.AGAIN)
            raise

    def _settled(self, number: int, reaction: Reaction) -> None:
        if number != self._number or self._state is not _State.TRYING:
            return
        if not reaction.ends:
            self._failures += 1
        if reaction.ends or self._failures == self._tries:
            self._state = _State.IDLE
            once_more = self._once_more
            self._on_end(reaction)
            if once_more:
                self.start()
            return
        self._state = _State.WAITING
        delay_ms = self._backoff.delay_ms(self._failures, self._runtime.random)
        self._timer = self._runtime.call_later(
            delay_ms, lambda: self._actor.post(partial(self._again, number))
        )
        if reaction is Reaction.FIND_CONTROLLER:
            self._find_controller()

    def _again(self, number: int) -> None:
        if number == self._number and self._state is _State.WAITING:
            self._timer = None
            self._try()
