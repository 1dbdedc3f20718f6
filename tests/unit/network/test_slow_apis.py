"""When requests that are quick as a rule leave the network thread."""

from __future__ import annotations

from replication.network.limits import SlowApis
from tests.support.cases import for_each

MS = 1_000_000
KEY, OTHER = 0, 1


@for_each(
    "took_ms, is_slow",
    [
        ([5] * 100, False),
        ([6], False),
        ([6, 6], True),
        ([21], True),
        ([6, 1, 6], False),
        ([6, 1, 6, 6], True),  # of four, three
        ([6, 1, 1, 1, 1] * 50, False),  # one of five: a busy machine
        ([6, 1] * 5, True),  # one of two: a topic that syncs beside one that does not
    ],
)
def test_an_api_is_slow_if_it_is_so_again_and_again(took_ms: list[int], is_slow: bool) -> None:
    slow, now = SlowApis(), 0
    for each in took_ms:
        now += each * MS
        slow.note(KEY, each * MS, now)
        if slow.has(KEY, now):
            break
    assert slow.has(KEY, now) is is_slow
    assert not slow.has(OTHER, now)


def test_it_gets_another_chance_after_a_second() -> None:
    slow = SlowApis()
    slow.note(KEY, 30 * MS, 100 * MS)
    assert slow.has(KEY, 1099 * MS)
    assert not slow.has(KEY, 1100 * MS)
    slow.note(KEY, 6 * MS, 1106 * MS)
    assert not slow.has(KEY, 1106 * MS)  # what was counted before is forgotten
    slow.note(KEY, 6 * MS, 1112 * MS)
    assert slow.has(KEY, 1112 * MS)
