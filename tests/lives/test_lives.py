"""The search: seeds that are the same each time, and new ones; both find nothing."""

from __future__ import annotations

import random

import pytest

from tests.lives.search import Run, run


def found(seed: int) -> Run:
    result = run(seed)
    if result.error is not None:
        trace = "\n".join(result.trace)
        pytest.fail(
            f"seed {seed}: {result.error}\n{trace}\n"
            f"Repeat it with: python -m tests.lives --one {seed}"
        )
    return result


@pytest.mark.slow
def test_nothing_outlives_its_log() -> None:
    crashes = sum(found(seed).crashes for seed in range(1, 201))
    assert crashes > 1000


@pytest.mark.slow
def test_nor_with_new_seeds() -> None:
    first = random.SystemRandom().randrange(10**9)
    print(f"seeds from {first} on")
    for seed in range(first, first + 200):
        found(seed)


def test_a_seed_repeats_its_run() -> None:
    traces = [[run(seed).trace for seed in range(10)] for _ in range(2)]
    assert traces[0] == traces[1]


def test_a_run_does_something() -> None:
    done = sum((run(seed).done for seed in range(20)), start=run(20).done)
    assert {"append", "begin_anew", "checkpoint", "create", "delete", "truncate"} <= done.keys()
