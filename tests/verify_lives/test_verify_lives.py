"""Lives that are the same each time, and new ones; and that a wrong verification is noticed."""

from __future__ import annotations

from collections import Counter

import pytest

from logstore.verify.segment import producers
from tests.verify_lives.life import Life, live


def found(seed: int) -> Life:
    life = live(seed)
    if life.told:
        pytest.fail(
            "\n".join(
                [
                    f"seed {seed}:",
                    *life.trace,
                    *life.told,
                    f"Repeat it with: python -m tests.verify_lives --first {seed} --lives 1",
                ]
            )
        )
    return life


@pytest.mark.slow
def test_nothing_is_wrong_with_a_log_that_lives() -> None:
    done: Counter[str] = Counter()
    for seed in range(60):
        done += found(seed).done
    assert min(done.values()) > 10
    assert len(done) == 19


def test_a_seed_repeats_its_life() -> None:
    one, two = live(7), live(7)
    assert one.trace == two.trace
    assert one.checks == two.checks > 3


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [200])
def test_a_replay_that_forgets_nothing_is_noticed(
    seeds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that begins inside its first segment has forgotten what lies before: without that rule
    sound directories are called faulty."""
    init = producers.Replay.__init__

    def without(self: producers.Replay, floor: int = 0, *, known: bool = True) -> None:
        init(self, 0, known=known)

    monkeypatch.setattr(producers.Replay, "__init__", without)
    monkeypatch.setattr(producers.ProducerFacts, "floor", property(lambda self: 0, lambda *_: None))
    assert any(live(seed).told for seed in range(seeds))
