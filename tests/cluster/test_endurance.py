"""A short run of ``python -m tests.cluster.endurance``; and its look at the end sees faults."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster import endurance
from tests.cluster.load import Count, Failure, Lane, check_prefix, check_values

LANE = Lane("s", 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", endurance.DISTURBANCES)
def test_nothing_acknowledged_is_lost_under_disturbances(tmp_path: Path, name: str) -> None:
    """S-22, S-25, T-A1, R-63, I-22."""
    result = endurance.run(endurance.Embedded(), tmp_path / "cluster", 2, [name])
    assert result.found >= result.acknowledged >= 2 * endurance.SENDERS


def values(*numbers: int) -> dict[int, list[bytes]]:
    return {0: [LANE.value(number) for number in numbers]}


def test_what_was_in_flight_may_be_there_or_not() -> None:
    assert check_values(values(0, 1), {LANE: Count(2, 4)}) == 2
    assert check_values(values(0, 1, 2, 3), {LANE: Count(2, 4)}) == 4


@pytest.mark.parametrize(
    "numbers",
    [(0,), (1,), (0, 0, 1), (1, 0), (0, 1, 2), (0, 1, 3)],
    ids=["lost end", "lost start", "twice", "out of order", "half a batch", "gap"],
)
def test_a_fault_is_seen(numbers: tuple[int, ...]) -> None:
    with pytest.raises(Failure):
        check_values(values(*numbers), {LANE: Count(2, 4)})


def test_what_nobody_sent_is_seen() -> None:
    with pytest.raises(Failure, match="nobody sent"):
        check_values(values(0), {})


def test_what_moved_after_it_was_read_is_seen() -> None:
    check_prefix(values(0, 1), values(0, 1, 2))
    for later in (values(0, 2), values(0)):
        with pytest.raises(Failure, match="offset 1"):
            check_prefix(values(0, 1), later)
