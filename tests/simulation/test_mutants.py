"""The search can see: it finds each of these broken variants of our own code."""

from __future__ import annotations

import pytest

from logstore.errors import ConfigError
from replication.simulator.mutants import MUTANTS, mutated, owner_of
from replication.simulator.plan import Options
from replication.simulator.run import run_seed

# The first seed that finds it. A change of the code may shift events, and with them the seed: the
# ones after it are tried too.
FOUND = {
    "acknowledged-before-sync": 60000000,
    "append-wakes-no-follower": 60000000,
    "committed-writes-time-out": 60000000,
    "deposed-controller-writes": 60000000,
    "epochs-not-fenced": 60000000,
    "high-watermark-wakes-no-consumer": 60000000,
    "list-offsets-of-any-epoch": 60000000,
    "log-start-wakes-nobody": 60000000,
    "older-epochs-not-fenced": 60000000,
    "role-change-wakes-nobody": 60000000,
    "whole-disk-called-damaged": 60000000,
    "acknowledged-before-high-watermark": 2,
    "broker-epoch-not-checked": 1869,
    "clean-marker-kept": 1601,
    "consumers-read-uncommitted": 3,
    "control-requests-of-earlier-incarnations": 4,
    "diverging-answer-raises-high-watermark": 109,
    "duplicates-not-recognised": 1,
    "election-outside-isr": 5,
    "flush-without-sync": 14,
    "follower-epoch-not-checked": 286,
    "high-watermark-of-committed-isr": 1,
    "high-watermark-without-followers": 1,
    "high-watermark-without-min-isr": 2,
    "isr-change-without-compare-and-set": 30,
    "join-before-epoch-start": 18,
    "join-before-high-watermark": 4,
    "leader-epoch-not-raised": 1,
    "log-start-inside-a-batch-not-met": 21,
    "no-eligible-leader-replicas": 88,
    "no-truncation": 4,
    "producers-forgotten-in-recovery": 88,
    "truncation-one-too-low": 2,
    "unclean-restart-keeps-isr": 121,
}
TRIES = 300


@pytest.mark.parametrize(("name", "first"), FOUND.items())
def test_the_search_finds(name: str, first: int) -> None:
    for seed in range(first, first + TRIES):
        if run_seed(seed, Options(mutant=name)).failed:
            assert run_seed(seed, Options()).violations == []
            return
    pytest.fail(f"{TRIES} schedules from seed {first} do not see {name}")


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_leaves_nothing_behind(name: str) -> None:
    owners = [(owner_of(target, attribute), attribute)
              for target, attribute, _ in MUTANTS[name][1]()]  # fmt: skip
    before = [(owner, attribute, owner.__dict__[attribute]) for owner, attribute in owners]
    with mutated(name):
        assert any(target.__dict__[attribute] is not value for target, attribute, value in before)
    assert all(target.__dict__[attribute] is value for target, attribute, value in before)


def test_an_unknown_mutant_is_told() -> None:
    with pytest.raises(ConfigError, match="none-such"), mutated("none-such"):
        pass
