"""The search can see: it finds each of these broken variants of our own code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from logstore.common.errors import ConfigError
from replication.simulator.search.mutants import MUTANTS, mutated, owner_of
from replication.simulator.search.run import run_seed
from replication.simulator.world.plan import SchedulePlan, SearchOptions
from tests.crash.simulated import run
from tests.unit.replication import test_controller_states, test_controller_topics
from tests.unit.replication import test_partition_roles as roles

# The first seed that finds it. A change of the code may shift events, and with them the seed: the
# ones after it are tried too.
FOUND = {
    "acknowledged-before-high-watermark": 312013652,
    "acknowledged-before-sync": 312013651,
    "append-wakes-no-follower": 312013650,
    "asks-on-without-settling": 312014433,
    "broker-epoch-not-checked": 312013887,
    "clean-marker-kept": 312014444,
    "committed-writes-time-out": 312013650,
    "configuration-change-not-applied": 312013669,
    "consumers-read-uncommitted": 312013655,
    "control-requests-of-earlier-incarnations": 312013651,
    "deposed-controller-writes": 312013960,
    "diverging-answer-raises-high-watermark": 312013680,
    "duplicates-not-recognised": 312013655,
    "election-outside-isr": 312013656,
    "epoch-not-assigned-at-election": 312013660,
    "epochs-not-fenced": 312013652,
    "flush-without-sync": 312013651,
    "follower-epoch-not-checked": 312013683,
    "high-watermark-of-committed-isr": 312013650,
    "high-watermark-wakes-no-consumer": 312013652,
    "high-watermark-without-followers": 312013650,
    "high-watermark-without-min-isr": 312013652,
    "isr-change-of-any-topic-id": 312014029,
    "isr-change-wakes-nobody": 312013805,
    "isr-change-without-compare-and-set": 312013947,
    "isr-never-shrinks": 312013718,
    "join-before-epoch-start": 312013735,
    "join-before-high-watermark": 312013652,
    "leader-counts-before-its-sync": 312014771,
    "leader-epoch-not-raised": 312013650,
    "list-offsets-of-any-epoch": 312013690,
    "log-start-inside-a-batch-not-met": 312013654,
    "log-start-wakes-nobody": 312013652,
    "newer-epochs-not-fenced": 312013685,
    "no-eligible-leader-replicas": 312013803,
    "no-truncation": 312013652,
    "older-epochs-not-fenced": 312013652,
    "producers-forgotten-in-recovery": 312013724,
    "reset-wakes-nobody": 312013799,
    "role-change-wakes-nobody": 312013652,
    "truncation-one-too-low": 312013652,
    "unclean-restart-keeps-isr": 312013678,
    "unsynced-records-counted-after-a-start": 312013675,
    "whole-disk-called-damaged": 312013651,
}
FOUND_WHERE_RECORDS_MAY_BE_LOST = {
    "unclean-election-before-isr": 312013692,
    "unclean-election-beside-a-leader-that-stops": 60085,
    "unclean-election-of-whoever-is-back-first": 312013692,
}
FOUND_WHERE_LOGS_ARE_COMPACTED = {"tombstones-dropped-at-once": 312013650}
TRIES = 300
REGRESSIONS = Path(__file__).parent / "regressions"


@pytest.mark.parametrize(
    ("name", "first", "faults"),
    [
        *((name, first, ("all",)) for name, first in FOUND.items()),
        *(
            (name, first, ("all", "unclean"))
            for name, first in FOUND_WHERE_RECORDS_MAY_BE_LOST.items()
        ),
        *(
            (name, first, ("all", "compaction"))
            for name, first in FOUND_WHERE_LOGS_ARE_COMPACTED.items()
        ),
    ],
)
def test_the_search_finds(name: str, first: int, faults: tuple[str, ...]) -> None:
    for seed in range(first, first + TRIES):
        if run_seed(seed, SearchOptions(faults=faults, mutant=name)).failed:
            assert run_seed(seed, SearchOptions(faults=faults)).violations == []
            return
    pytest.fail(f"{TRIES} schedules from seed {first} do not see {name}")


def a_fetch_whose_role_changes(replica: int, way: str) -> None:
    with pytest.MonkeyPatch.context() as patcher:
        roles.test_a_fetch_answers_for_the_epoch_that_it_checked(
            patcher, replica, "overwritten_and_led_again", roles.before, way
        )


def crashes_of_one_log(first: int) -> None:
    found = [run(seed) for seed in range(first, first + 12)]
    assert [result.error for result in found if result.failed] == []


# One thread carries a schedule out, so no role changes inside a read; and no controller takes over
# twice in one epoch, unless by an error that nobody foresaw. What two crashes of one log do at the
# right bytes is for the search that does nothing else.
SEEN_BY: list[tuple[str, Callable[[], None]]] = [
    ("read-not-confirmed", lambda: a_fetch_whose_role_changes(2, "read")),
    ("read-not-confirmed", lambda: a_fetch_whose_role_changes(-1, "read")),
    ("read-not-confirmed", lambda: a_fetch_whose_role_changes(-1, "read_recent")),
    (
        "numbers-begin-with-a-channel",
        test_controller_states.test_a_second_take_over_under_one_epoch_is_heard,
    ),
    (
        "isr-change-of-any-topic-id",
        test_controller_topics.TestDeletion().test_a_change_of_the_isr_is_of_the_topic_whose_id_it_names,
    ),
    ("torn-tail-not-cut", lambda: crashes_of_one_log(1)),
    ("cut-not-made-durable", lambda: crashes_of_one_log(475)),
]


def test_every_mutant_is_seen() -> None:
    """By a search, by a test of its own, or by a plan that is kept."""
    kept = (SchedulePlan.from_json(path.read_text()).mutant for path in REGRESSIONS.glob("*.json"))
    seen = {
        *FOUND,
        *FOUND_WHERE_RECORDS_MAY_BE_LOST,
        *FOUND_WHERE_LOGS_ARE_COMPACTED,
        *(name for name, _ in SEEN_BY),
        *kept,
    }
    assert set(MUTANTS) <= seen


@pytest.mark.parametrize(("name", "test"), SEEN_BY, ids=[name for name, _ in SEEN_BY])
def test_a_test_of_its_own_sees(name: str, test: Callable[[], None]) -> None:
    test()
    with mutated(name), pytest.raises(AssertionError):
        test()


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_leaves_nothing_behind(name: str) -> None:
    owners = [
        (owner_of(target, attribute), attribute) for target, attribute, _ in MUTANTS[name][1]()
    ]
    before = [(owner, attribute, owner.__dict__[attribute]) for owner, attribute in owners]
    with mutated(name):
        assert any(target.__dict__[attribute] is not value for target, attribute, value in before)
    assert all(target.__dict__[attribute] is value for target, attribute, value in before)


def test_an_unknown_mutant_is_told() -> None:
    with pytest.raises(ConfigError, match="none-such"), mutated("none-such"):
        pass
