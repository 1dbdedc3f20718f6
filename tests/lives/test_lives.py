"""The search finds nothing with these seeds; ``python -m tests.lives`` takes new ones."""

from __future__ import annotations

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
    crashes = sum(found(seed).done["crashes"] for seed in range(1, 201))
    assert crashes > 1000


def test_a_seed_repeats_its_run() -> None:
    traces = [[run(seed).trace for seed in range(10)] for _ in range(2)]
    assert traces[0] == traces[1]


def test_a_run_does_something() -> None:
    done = sum((run(seed).done for seed in range(20)), start=run(20).done)
    assert {"append", "begin_anew", "checkpoint", "create", "delete", "truncate"} <= done.keys()
