"""Which stored segments make up a log: each offset from one segment, of one history (L-12)."""

from __future__ import annotations

from itertools import combinations, product
from typing import NamedTuple

import pytest

from logstore.tiers.lineage import Hole, NotShown, choose, is_within, rank
from logstore.tiers.manifest import Epochs
from tests.support.cases import for_each


class Copy(NamedTuple):
    """A segment with offsets ``[base_offset, end_offset)``."""

    name: str
    base_offset: int
    end_offset: int
    leader_epochs: Epochs = ()


# Two brokers with other borders of segments; the second leads from offset 210 on, and loses its
# last records in an unclean election, after which epoch 2 begins at 205.
A = Copy("A", 0, 100, ((0, 0),))
B = Copy("B", 100, 200, ((0, 100),))
C = Copy("C", 0, 150, ((0, 0),))
D = Copy("D", 150, 220, ((0, 150), (1, 210)))
E = Copy("E", 200, 260, ((0, 200), (2, 205)))
CLEAN: Epochs = ((0, 0), (1, 210))
UNCLEAN: Epochs = ((0, 0), (2, 205))


@for_each(
    "there, history, pieces, left, holes",
    [
        pytest.param([A], CLEAN, "A 0-100", "", (), id="one leader"),
        pytest.param([A, C], CLEAN, "C 0-150", "A", (), id="an overlap from the beginning"),
        pytest.param([A, B, C], CLEAN, "C 0-100 B 100-200", "A", (), id="the furthest follows"),
        pytest.param([A, B, D], CLEAN, "A 0-100 B 100-150 D 150-220", "", (), id="one is cut"),
        pytest.param([A, C, D], CLEAN, "C 0-150 D 150-220", "A", (), id="the next leader's own"),
        pytest.param([A, B, D, E], UNCLEAN, "A 0-100 B 100-200 E 200-260", "D", (), id="unclean"),
        pytest.param(
            [C, D, E],
            UNCLEAN,
            "C 0-150 E 200-260",
            "D",
            (Hole(150, 200),),
            id="a hole where the lost ones were",
        ),
    ],
)
def test_overlaps_and_lineage(
    there: list[Copy], history: Epochs, pieces: str, left: str, holes: tuple[Hole, ...]
) -> None:
    found = choose(there, history)
    assert found.holes == holes
    shown = [f"{p.segment.name} {p.segment.base_offset}-{p.end}" for p in found.pieces]
    assert " ".join(shown) == pieces
    assert " ".join(segment.name for segment, _ in found.left) == left


def test_the_latest_epoch_decides_then_the_longest() -> None:
    assert max([A, B, C, D, E], key=rank) is E
    assert max([A, B, C], key=rank) is B
    assert max([A, Copy("no epochs", 0, 10**6)], key=rank) is A


@for_each(
    "epochs, base, end, expected",
    [
        pytest.param(((0, 0), (3, 40)), 0, 60, True, id="whole epochs and a part"),
        pytest.param(((0, 20), (3, 40), (5, 70)), 20, 90, True, id="the later part of the first"),
        pytest.param(((0, 0),), 0, 41, False, id="more of an epoch than it had"),
        pytest.param(((0, 0), (3, 30)), 0, 60, False, id="an epoch that began elsewhere"),
        pytest.param(((0, 0), (5, 70)), 0, 90, False, id="an epoch between is missing"),
        pytest.param(((0, 0), (2, 30), (3, 40)), 0, 60, False, id="an epoch of nobody"),
        pytest.param(((0, 0), (2, 40), (3, 40)), 0, 60, True, id="an epoch without records"),
        pytest.param(((3, 30),), 30, 60, False, id="begins before its epoch"),
        pytest.param(((3, 0),), 45, 60, True, id="an entry below the base"),
        pytest.param(((6, 80),), 80, 90, False, id="later than all that is known"),
        pytest.param((), 0, 60, True, id="no epochs at all"),
    ],
)
def test_what_is_of_a_history(epochs: Epochs, base: int, end: int, expected: bool) -> None:
    history = ((0, 0), (3, 40), (5, 70))
    assert is_within(Copy("x", base, end, epochs), history) is expected


def test_a_history_that_begins_inside_its_first_epoch() -> None:
    """A log start cuts the first entry of an epoch file, not the segments below it."""
    history = ((3, 50), (5, 70))
    assert is_within(Copy("x", 40, 60, ((3, 40),)), history)
    assert not is_within(Copy("x", 30, 60, ((2, 30), (3, 40))), history)


def test_the_log_start_leaves_out_what_lies_below() -> None:
    found = choose([A, B, C], CLEAN, log_start=120)
    assert [p.segment.name for p in found.pieces] == ["B"]
    assert choose([B], CLEAN, log_start=50).holes == (Hole(50, 100),)
    assert choose([A], CLEAN, log_start=500) == choose([])


def test_offsets_above_31_and_40_bits() -> None:
    far = Copy("far", 2**40, 2**62, ((0, 2**40),))
    near = Copy("near", 0, 2**40 + 1, ((0, 0),))
    found = choose([far, near], ((0, 0),))
    assert [(p.segment.name, p.end) for p in found.pieces] == [("near", 2**40), ("far", 2**62)]


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_every_small_case(count: int) -> None:
    """All sets of segments over five offsets: what some segment has is shown once, in order."""
    spans = [(a, b) for a, b in product(range(5), range(1, 6)) if a < b]
    for chosen in combinations(spans, count):
        there = [Copy(f"{a}-{b}", a, b) for a, b in chosen]
        found = choose(there)
        shown = [o for p in found.pieces for o in range(p.segment.base_offset, p.end)]
        assert shown == sorted({o for a, b in chosen for o in range(a, b)})
        gaps = [o for hole in found.holes for o in range(hole.start, hole.end)]
        assert gaps == [o for o in range(min(shown), max(shown)) if o not in shown]
        assert len(found.pieces) + len(found.left) == count
        assert {reason for _, reason in found.left} <= {NotShown.COVERED}
