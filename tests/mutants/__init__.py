"""Mutants: code that is broken on purpose, which a search or a test must notice.

A mutant is a function that breaks the product by pytest's ``MonkeyPatch``, so nothing of it stays.
Its name with hyphens is the name of the mutant, its docstring says what is wrong, and its decorator
says which search sees it in which run; plans and tests that see one are in ``searches``. No mutant
touches a search or its oracle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest

MonkeyPatch = pytest.MonkeyPatch
Plant = Callable[[MonkeyPatch], None]


class Mutant(NamedTuple):
    what: str
    plant: Plant
    under: Plant  # a correct variant of the product in which the fault matters
    seen: dict[str, Any]  # in which run of a search: mostly a seed


MUTANTS: dict[str, Mutant] = {}


def _the_product(patch: MonkeyPatch) -> None:
    """As it is."""


def mutant(*, under: Plant = _the_product, **seen: Any) -> Callable[[Plant], Plant]:
    def register(plant: Plant) -> Plant:
        name = plant.__name__.replace("_", "-")
        assert name not in MUTANTS, f"two mutants are called {name}"
        what = plant.__doc__ or f"{name.replace('-', ' ')}."
        MUTANTS[name] = Mutant(what, plant, under, seen)
        return plant

    return register


@contextmanager
def mutated(name: str) -> Iterator[None]:
    """Run the block with a mutant."""
    with unmutated(name), MonkeyPatch.context() as patch:
        MUTANTS[name].plant(patch)
        yield


@contextmanager
def unmutated(name: str) -> Iterator[None]:
    """Run the block with what a mutant is to be compared with."""
    with MonkeyPatch.context() as patch:
        MUTANTS[name].under(patch)
        yield
