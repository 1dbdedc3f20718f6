"""Who goes on: by random priorities, at random, as recorded, or every way in turn."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from tests.interleavings.scheduler import Actor, Strategy, default_choice

PATIENCE = 3_000  # steps one actor may take in a row before it must give way, as after a yield


class Priorities:
    """Probabilistic concurrency testing (PCT): the runnable actor of the highest priority goes on.

    At each of a few change points the running actor falls below all others. A bug that needs ``d``
    ordering constraints is found with probability of at least ``1 / (actors * steps ** (d - 1))``.
    """

    def __init__(self, rng: random.Random, actors: int, steps: int, changes: int) -> None:
        order = list(range(actors))
        rng.shuffle(order)
        self._priority = dict(enumerate(order))
        self._changes = {rng.randrange(1, max(2, steps)) for _ in range(changes)}
        self._lowest = 0
        self._since = 0

    def changes_at(self, step: int, current: Actor) -> bool:
        return step in self._changes

    def choose(self, step: int, runnable: list[Actor], current: Actor | None) -> Actor:
        self._since += 1
        if current is not None and (self._since > PATIENCE or self.changes_at(step, current)):
            self._lowest -= 1
            self._priority[current.index] = self._lowest
        chosen = max(runnable, key=lambda actor: self._priority[actor.index])
        if chosen is not current:
            self._since = 0
        return chosen


class Aimed(Priorities):
    """As ``Priorities``, with change points in operations instead of in the run as a whole.

    A read takes five steps where an append with a roll takes sixty; so each operation is as likely
    to be interrupted, whatever its length, and most likely in its first steps.
    """

    def __init__(
        self, rng: random.Random, lengths: Sequence[int], changes: int, *, longer: int = 1
    ) -> None:
        """``lengths``: operations of each actor; ``longer``: how many times the usual steps."""
        super().__init__(rng, len(lengths), 1, 0)
        self._aims = set()
        for _ in range(changes):
            actor = rng.randrange(len(lengths))
            within = rng.choice((4, 12, 12, 60)) * longer
            self._aims.add((actor, rng.randint(1, lengths[actor]), rng.randint(1, within)))

    def changes_at(self, step: int, current: Actor) -> bool:
        return (current.index, current.call, current.at) in self._aims


class Walk:
    """At each step somebody else with a fixed probability."""

    def __init__(self, rng: random.Random, probability: float) -> None:
        self._rng = rng
        self._probability = probability

    def choose(self, step: int, runnable: list[Actor], current: Actor | None) -> Actor:
        if current in runnable and self._rng.random() >= self._probability:
            assert current is not None
            return current
        return self._rng.choice(runnable)


class Recorded:
    """The same actor goes on, except at the recorded steps."""

    def __init__(self, switches: Sequence[tuple[int, int]]) -> None:
        self._switches = dict(switches)

    def choose(self, step: int, runnable: list[Actor], current: Actor | None) -> Actor:
        wanted = self._switches.get(step)
        for actor in runnable:
            if actor.index == wanted:
                return actor
        return default_choice(runnable, current)


class _Prefix:
    """Follows a list of choices, then the default; notes the choices there were."""

    def __init__(self, prefix: Sequence[int], preemptions: int) -> None:
        self._prefix = prefix
        self._left = preemptions
        self.options: list[tuple[int, int]] = []  # (chosen, how many there were)

    def choose(self, step: int, runnable: list[Actor], current: Actor | None) -> Actor:
        first = default_choice(runnable, current)
        others = [actor for actor in runnable if actor is not first]
        free = first is not current  # the running one cannot go on: any choice costs nothing
        ways = [first, *others] if free or self._left else [first]
        at = len(self.options)
        chosen = self._prefix[at] if at < len(self._prefix) else 0
        self.options.append((chosen, len(ways)))
        if chosen and not free:
            self._left -= 1
        return ways[chosen]


def every_way(preemptions: int) -> Iterator[Strategy]:
    """All schedules with at most so many switches away from an actor that could go on.

    Depth first. The caller runs each strategy to its end before it asks for the next.
    """
    prefix: list[int] = []
    while True:
        strategy = _Prefix(prefix, preemptions)
        yield strategy
        options = strategy.options
        while options and options[-1][0] + 1 >= options[-1][1]:
            options.pop()
        if not options:
            return
        chosen, _ = options.pop()
        prefix = [before for before, _ in options] + [chosen + 1]
