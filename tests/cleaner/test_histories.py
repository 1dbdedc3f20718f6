"""A few histories of each kind; ``python -m tests.cleaner`` runs thousands."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.cleaner.search import run

SEEDS = 120


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.slow
def test_what_a_compacted_log_must_hold() -> None:
    done: Counter[str] = Counter()
    for seed in range(SEEDS):
        found = run(seed)
        assert found.error is None, f"seed {seed}: {found.error}; python -m tests.cleaner --one"
        done += found.done
    for kind in ("crashed", "crashed at a start", "refused", "clean", "truncate", "jump"):
        assert done[kind], f"no history met {kind!r}"


@pytest.mark.parametrize("seed", [762, 50250])
def test_histories_that_once_failed(seed: int) -> None:
    """762: a crash moved the log start back, behind a pass that had gone by it. 50250: recovery
    wrote a transaction index anew, below the recovery point, and did not sync it."""
    assert run(seed).error is None
