"""How long a process that died stays away, and when it is given up (X-150)."""

from __future__ import annotations

import pytest

from replication.supervisor.processes import NS_PER_S, RestartRule, Restarts

S = NS_PER_S


def pauses(lives_s: list[float]) -> list[float | None]:
    """Of a process with these lives, each begun when the pause before it was over."""
    restarts, now, found = Restarts(RestartRule()), 0, []
    for life_s in lives_s:
        started = now
        now += int(life_s * S)
        pause = restarts.died(now, started)
        found.append(pause)
        if pause is not None:
            now += int(pause * S)
    return found


@pytest.mark.parametrize(
    ("lives_s", "expected"),
    [
        ([0] * 5, [1, 2, 4, 8, None]),  # five within 15 s
        ([10] * 5, [1, 2, 4, 8, None]),  # the fifth 55 s after the first
        ([14] * 8, [1, 2, 4, 8, 16, 30, 30, 30]),  # never five in a minute
        ([0, 0, 61, 0], [1, 2, 1, 2]),  # a life of a minute begins anew
        ([0, 0, 59.9, 0], [1, 2, 4, 8]),
        ([3600] * 6, [1] * 6),
    ],
)
def test_pauses_grow_until_it_is_given_up(
    lives_s: list[float], expected: list[float | None]
) -> None:
    assert pauses(lives_s) == expected


def test_a_start_that_was_asked_for_begins_anew() -> None:
    restarts = Restarts(RestartRule())
    assert [restarts.died(at, at) for at in range(4)] == [1, 2, 4, 8]
    restarts.started()
    assert [restarts.died(at, at) for at in range(5)] == [1, 2, 4, 8, None]
