"""The smallest sequence that still shows a difference."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable

from tests.differential.broker import Broker
from tests.differential.comparison import Difference, Sequence, compare
from tests.differential.steps import Step, dump

MAX_TRIES = 80


class Shrinker:
    """Carries out parts of a sequence that parted, each time under a name of its own.

    Args:
        name: of the sequence, which all its topics, groups and ids begin with.
        difference: what has to come again: at the same request, with an answer of the same shape.
    """

    def __init__(
        self,
        kafka: Broker,
        ours: Broker,
        name: str,
        difference: Difference,
        shape_of: Callable[[Difference], str],
    ) -> None:
        self._brokers = kafka, ours
        self._name = name
        self._shape_of = shape_of
        self._wanted = shape_of(difference)
        self._numbers = itertools.count(1)

    def again(self, steps: list[Step]) -> Difference | None:
        """The difference at the last of ``steps``; None if it does not come again."""
        name = f"{self._name}r{next(self._numbers)}"
        renamed = [_renamed(each, self._name, name) for each in steps]
        try:
            run = compare(_as_recorded(renamed), *self._brokers)
        except KeyError:  # a symbol of an answer that is not asked for any more
            return None
        for each in run.differences:
            if each.number == len(steps) - 1 and self._shape_of(each) == self._wanted:
                return each
        return None

    def smallest(self, steps: list[Step]) -> tuple[list[Step], Difference] | None:
        """Without the steps that it does not need; None if it does not come again at all."""
        found = self.again(steps)
        if found is None:
            return None
        size, tries = len(steps) // 2, MAX_TRIES
        while size:
            end = len(steps) - 1  # the last one stays
            while end > 0 and tries:
                start, tries = max(0, end - size), tries - 1
                shorter = steps[:start] + steps[end:]
                if (again := self.again(shorter)) is not None:
                    steps, found = shorter, again
                end = start
            size //= 2
        return steps, found


def _as_recorded(steps: list[Step]) -> Sequence:
    return (each for each in steps)


def _renamed(step: Step, old: str, new: str) -> Step:
    return Step.from_json(json.loads(dump(step.to_json()).replace(old, new)))
