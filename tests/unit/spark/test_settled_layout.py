"""Listings of a log that rolls while it is listed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from logstore.common.errors import ResourceBusyError
from logstore.directory.listing import ListedSegment, PartitionLayout, settled_layout
from tests.support.cases import for_each

BASES = {"a": 0, "b": 15, "c": 28}


def listing(text: str) -> PartitionLayout:
    """``a10 B b5``: segment 0 with 10 bytes, 15 as a roll mark, 15 with 5 bytes."""
    segments, rolled = [], []
    for word in text.split():
        base, size = BASES[word[0].lower()], int(word[1:] or 0)
        (rolled if word[0].isupper() else segments).append(
            ListedSegment(base, size, 0, 0, 0, 1000 + size)
        )
    return PartitionLayout("file:///logs/t-0", "", "t", 0, tuple(segments), 0, rolled=tuple(rolled))


def looks(*texts: str) -> Callable[[], PartitionLayout]:
    """The listings one after the other; the last one again and again."""
    left = [listing(text) for text in texts]
    return lambda: left.pop(0) if len(left) > 1 else left[0]


def shown(layout: PartitionLayout) -> dict[int, int]:
    return {each.base_offset: each.size for each in (*layout.segments, *layout.rolled)}


@for_each(
    "listings, expected",
    [
        pytest.param(["a10"], {0: 10}, id="nothing happens"),
        pytest.param([""], {}, id="no segment yet"),
        pytest.param(["a10 B", "a10", "a10 b5"], {0: 10, 15: 5}, id="the second misses a rename"),
        pytest.param(["a10", "a10 b5"], {0: 10, 15: 5}, id="the first misses a rename"),
        pytest.param(["a8", "a10 b5"], {0: 10, 15: 5}, id="a roll between two listings"),
        pytest.param(["a10 b5", "a10"], {0: 10}, id="a segment is cut"),
        pytest.param(["a10 b5", "b5"], {15: 5}, id="retention"),
        pytest.param(
            ["a10", "a10 b5", "a10 b7 c1", "a10 b7 c1"],
            {0: 10, 15: 7},
            id="it rolls again and again",
        ),
    ],
)
def test_what_two_listings_agree_on(listings: list[str], expected: dict[int, int]) -> None:
    assert shown(settled_layout(looks(*listings))) == expected


def test_a_segment_below_the_newest_that_grows_is_listed_again() -> None:
    """Its size was read before it grew and rolled: records would be missing in between."""
    assert shown(settled_layout(looks("a8", "a8 b5", "a10 b5"))) == {0: 10, 15: 5}


def test_listings_that_never_agree_are_busy() -> None:
    left = [f"a{n} b1" for n in range(100)]
    with pytest.raises(ResourceBusyError):
        settled_layout(lambda: listing(left.pop()))
