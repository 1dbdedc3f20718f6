"""Times of names that anybody may make up: what is recent is known, and nobody waits."""

from __future__ import annotations

from collections import OrderedDict

from hypothesis import given
from hypothesis import strategies as st

from replication.network.limits import RecentTimes

WINDOW = 10


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 5), st.integers(0, 30))))
def test_a_recent_time_is_known(steps: list[tuple[str, int, int]]) -> None:
    """As if nothing were ever forgotten."""
    times, model, now = RecentTimes(), dict[str, float](), 100
    for name, passed, ahead in steps:
        now += passed
        old = now - WINDOW
        assert max(times.get(name), old) == max(model.get(name, 0.0), old)
        model[name] = now + ahead
        times.put(name, now + ahead, old)
        recent = {each for each, time in model.items() if time > old}
        assert recent <= set(times._times)


class Counting(OrderedDict[str, float]):
    looks = 0

    def move_to_end(self, key: str, last: bool = True) -> None:
        self.looks += 1
        super().move_to_end(key, last)

    def __delitem__(self, key: str) -> None:
        self.looks += 1
        super().__delitem__(key)


def test_a_new_name_looks_at_two_others_however_many_there_are() -> None:
    times = RecentTimes()
    times._times = found = Counting()
    for number in range(30_000):
        before = found.looks
        times.put(str(number), 1000.0, 0.0)
        assert found.looks <= before + 2
    assert len(times) == 30_000
    before = found.looks
    times.put("7", 2000.0, 0.0)
    assert found.looks == before


def test_old_names_go_twice_as_fast_as_new_ones_come() -> None:
    times = RecentTimes()
    for number in range(1000):
        times.put(str(number), 1.0, 0.0)
    for number in range(1000, 2000):
        times.put(str(number), 2.0, 1.0)
    assert len(times) == 1000
    assert times.get("0") == 0.0
