"""A few histories; ``python -m tests.groups`` runs thousands."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.groups.search import run

SEEDS = 25


@pytest.mark.slow
def test_what_groups_promise() -> None:
    """At most one generation has an assignment, and each partition is in it once; nobody of an
    older one commits; offsets never go back; the log says what the coordinator says."""
    done: Counter[str] = Counter()
    for seed in range(SEEDS):
        found = run(seed)
        assert found.error is None, f"seed {seed}: {found.error}; python -m tests.groups --one"
        done += found.done
    for kind in ("synced", "committed", "leader", "time-out", "commit marker", "deleted", "over"):
        assert done[kind], f"no history met {kind!r}"


@pytest.mark.parametrize("seed", [80, 192])
def test_histories_that_once_failed(seed: int) -> None:
    """A static member whose return was not written kept the address of whoever came back."""
    assert run(seed).error is None
