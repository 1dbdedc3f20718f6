"""Every record that a replica still holds comes back, once, in order; what is missing is told."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.rescue.search import run

SEEDS = 100


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("start", range(0, SEEDS, 5))
def test_after_random_damage(start: int) -> None:
    """``python -m tests.rescue --seeds 0:10000`` goes on."""
    for seed in range(start, start + 5):
        outcome = run(seed)
        assert not outcome.problems, (seed, outcome.done)
