"""Why ``verify`` may call a changed byte clean: one reason for each kind of file and field."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from tests.fuzz.mutations import Mutation
from tests.fuzz.tree import Tree


class Explanation(NamedTuple):
    """``label`` is matched against the whole label; ``applies`` may look at both trees."""

    label: str
    reason: str
    applies: Callable[[Mutation, Tree, Tree], bool] = lambda mutation, before, after: True


EXPLANATIONS: tuple[Explanation, ...] = ()

used: Counter[str] = Counter()
"""How often each reason was needed in this process."""


def explain(mutation: Mutation, before: Tree, after: Tree) -> str | None:
    for explanation in EXPLANATIONS:
        if re.fullmatch(explanation.label, mutation.label) and explanation.applies(
            mutation, before, after
        ):
            used[explanation.reason] += 1
            return explanation.reason
    return None
