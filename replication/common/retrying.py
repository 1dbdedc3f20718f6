"""What is asked again until it is answered: how long to wait, and what each answer means.

A channel between two parts of the system has one table ``ErrorCode -> Reaction``, complete over
every code (``reactions`` sees to it), and one ``RetryingCall`` for each thing that it asks.
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
    """What follows from the outcome of one try."""

    DONE = "done"
    AGAIN = "again"  # after a pause
    FIND_CONTROLLER = "find the controller"  # whoever was asked is not it; then again after a pause
    GIVE_UP = "give up"  # the request can never succeed; what it was for goes on without it
    FATAL = "fatal"  # who asks must not go on as what it is

    @property
    def ends(self) -> bool:
        """Nothing more is asked after it."""
        return self not in (Reaction.AGAIN, Reaction.FIND_CONTROLLER)


R = TypeVar("R", bound=Enum)


def reactions(groups: Mapping[R, Iterable[ErrorCode]]) -> dict[ErrorCode, R]:
    """The table of a channel from its codes by reaction.

    Raises:
        ValueError: a code is missing, or stands twice.
    """
    table: dict[ErrorCode, R] = {}
    for reaction, codes in groups.items():
        for code in codes:
            if code in table:
                raise ValueError(f"{code.name} stands twice in a table of reactions")
            table[code] = reaction
    missing = [code.name for code in ErrorCode if code not in table]
    if missing:
        raise ValueError(f"a table of reactions lacks {', '.join(missing)}")
    return table


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses that grow with every failure in a row (Kafka's ``ExponentialBackoff``).

    Attributes:
        initial_ms, max_ms: the first pause, and the longest.
        multiplier: each is longer than the one before by this factor.
        jitter: a share in [0, 1) by which a pause is longer or shorter at random, so that those
            who failed together do not come back together.
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
        """The pause after ``failures`` failures in a row, of which the first is 1."""
        pause = self.initial_ms
        for _ in range(failures - 1):
            pause *= self.multiplier
            if pause >= self.max_ms or self.multiplier == 1:
                break
        return min(pause * source.uniform(1 - self.jitter, 1 + self.jitter), self.max_ms)


Settle: TypeAlias = Callable[[Reaction], None]
"""Takes the outcome of one try, from any thread; only the first call counts."""


class _State(Enum):
    IDLE = "idle"
    TRYING = "trying"
    WAITING = "waiting"
    CANCELLED = "cancelled"


class RetryingCall:
    """One thing that is asked again, after longer and longer pauses, until a reaction ends it.

    Never two tries at once. Only for its actor, on which everything is called back too.

    Args:
        attempt: one try. It sees to it that its ``Settle`` is called once, now or later; that it
            raises counts as AGAIN.
        on_end: told which reaction ended it; it may ``start`` anew.
        find_controller: called at FIND_CONTROLLER, before the pause.
        tries: how many there may be; the last that fails is told to ``on_end`` as it is.
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
        self._number = 0  # of the present try: what an earlier one brings is not heard any more
        self._failures = 0
        self._once_more = False
        self._timer: Cancellable | None = None

    @property
    def active(self) -> bool:
        """A try is under way, or will follow."""
        return self._state in (_State.TRYING, _State.WAITING)

    @property
    def failures(self) -> int:
        """How many tries failed in a row."""
        return self._failures

    def start(self) -> None:
        """Ask. Nothing new while it asks already, or waits to ask again, or was cancelled."""
        if self._state is _State.IDLE:
            self._failures = 0
            self._try()

    def renew(self) -> None:
        """As ``start``; and if a try is under way, which may miss what is new, one more follows."""
        if self._state is _State.TRYING:
            self._once_more = True
        self.start()

    def hurry(self) -> None:
        """End a pause now: what the last try lacked is there. Not to be called for each failure,
        which would leave no pauses at all."""
        if self._state is _State.WAITING:
            self._stop_timer()
            self._try()

    def cancel(self) -> None:
        """Ask no more, for good; a try under way has no consequences. Idempotent."""
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
