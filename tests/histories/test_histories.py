"""Some histories of each kind, in blocks; ``python -m tests.histories NAME`` runs thousands."""

from __future__ import annotations

import pytest

from tests.histories.history import hold, run_one


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1, 201, 25))
def test_nothing_outlives_its_log(first: int) -> None:
    assert hold("lives", range(first, first + 25))["crashes"] > 100


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 120, 30))
def test_what_a_compacted_log_must_hold(first: int) -> None:
    done = hold("cleaner", range(first, first + 30))
    for kind in ("crashed", "crashed at a start", "refused", "clean", "truncate", "jump"):
        assert done[kind], f"no history met {kind!r}"


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 24, 4))
def test_what_groups_promise(first: int) -> None:
    """At most one generation has an assignment, and each partition is in it once; nobody of an
    older one commits; offsets never go back; the log says what the coordinator says."""
    done = hold("groups", range(first, first + 4))
    for kind in ("synced", "committed", "leader", "time-out", "commit marker", "deleted", "over"):
        assert done[kind], f"no history met {kind!r}"


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 100, 20))
def test_what_a_rescue_brings_back(first: int) -> None:
    """Every record that a replica still holds, once, in order; what is missing is told."""
    hold("rescue", range(first, first + 20))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 20, 4))
def test_what_transactions_promise(first: int) -> None:
    """Seeds take turns with the two versions of the protocol."""
    done = hold("transactions", range(first, first + 4))
    assert min(done[fate] for fate in ("COMMITTED", "ABORTED", "UNKNOWN")) > 0


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 60, 20))
def test_nothing_is_wrong_with_a_log_that_lives(first: int) -> None:
    done = hold("verify", range(first, first + 20))
    assert len(done) == 23
    assert min(done.values()) > 2


@pytest.mark.slow
@pytest.mark.parametrize("first", range(2000, 2024, 6))
def test_what_a_mirror_holds(first: int) -> None:
    """Nothing that its source never had, whatever that said; and in the end all of it."""
    done = hold("mirror", range(first, first + 6))
    assert min(done[kind] for kind in ("lies", "grows", "restarts", "moves")) > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["cleaner", "groups", "lives", "mirror", "rescue", "transactions", "verify"]
)
def test_a_seed_repeats_its_run(name: str) -> None:
    one, two = run_one(name, 7), run_one(name, 7)
    assert one.trace == two.trace
    assert one.done == two.done
    assert one.done


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        ("cleaner", 762),
        ("cleaner", 50250),
        ("groups", 80),
        ("groups", 192),
        ("rescue", 109),
        ("rescue", 1075),
        ("rescue", 1758),
        ("rescue", 1944),
    ],
)
def test_a_history_that_once_failed(name: str, seed: int) -> None:
    """762: a crash moved the log start back, behind a pass that had gone by it. 50250: recovery
    wrote a transaction index anew, below the recovery point, and did not sync it. 80, 192: a static
    member whose return was not written kept the address of whoever came back. 109, 1075: a batch
    from another replica moved the beginning of an epoch that an epoch file knows. 1758: a batch out
    of place behind the last good one was not taken back. 1944: a copy became a batch that was
    missing."""
    hold(name, [seed])
