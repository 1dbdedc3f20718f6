"""Transactions in the simulator: a few schedules.

``logstore simulate --transactions --schedules N`` runs as many as are asked for.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from replication.coordinators.transactions import state, transitions
from replication.simulator.search.run import run_seed
from replication.simulator.search.search import run_seeds
from replication.simulator.world.plan import SearchOptions

TRIES = 40  # schedules until something rare must have happened
OPTIONS = SearchOptions(transactions=True, events=80)


WANTED = frozenset(
    {
        "coordinated commits answered",
        "coordinated commits asked for",
        "coordinated commits not asked for",
        "transactions that copy",
        "transactions abandoned",
        "transactional producers fenced",
        "committed records read",
        "elections",
    }
)


@pytest.mark.slow
def test_transactions_on_brokers_that_fail() -> None:
    """Schedule after schedule, until everything has happened."""
    seen: Counter[str] = Counter()
    for seed in range(TRIES):
        result = run_seed(seed, OPTIONS)
        assert result.violations == [], f"seed {seed}"
        seen.update(result.counters)
        if +seen >= Counter(WANTED):
            break
    assert not WANTED - (+seen).keys()


@pytest.mark.slow
def test_a_seed_repeats_its_run() -> None:
    options = replace(OPTIONS, events=20, groups=True)
    assert run_seed(7, options) == run_seed(7, options)


@pytest.mark.slow
def test_producers_that_have_used_all_epochs_get_another_id(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_few_epochs(monkeypatch)
    results = run_seeds(0, 3, OPTIONS)
    assert [result.violations for result in results] == [[], [], []]
    assert any(result.counters.get("producer ids used up") for result in results)


def use_few_epochs(patch: pytest.MonkeyPatch, most: int = 3) -> None:
    for module in (state, transitions):
        patch.setattr(module, "LAST_CLIENT_EPOCH", most)
    patch.setattr(transitions, "MAX_EPOCH", most + 1)
