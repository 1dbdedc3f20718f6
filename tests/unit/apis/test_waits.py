"""Answers that wait for others, and for what a broker will know."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from replication.apis.common.waits import MetadataWaits
from replication.common.gathering import Gathering
from replication.common.messages import UpdateMetadataRequest
from replication.replica_manager.metadata_cache import MetadataCache
from tests.support.replication import ManualRuntime


class TestGathering:
    @pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
    def test_answers_come_in_the_order_of_the_questions(self, order: tuple[int, ...]) -> None:
        found: list[Sequence[str]] = []
        gathering: Gathering[str] = Gathering(3, found.append)
        for at in order:
            assert not found
            gathering.take_answer(at, "abc"[at])
        assert found == [["a", "b", "c"]]

    def test_the_first_answer_counts(self) -> None:
        found: list[Sequence[str]] = []
        gathering: Gathering[str] = Gathering(2, found.append)
        for at, answer in ((0, "a"), (0, "x"), (1, "b"), (1, "y")):
            gathering.take_answer(at, answer)
        assert found == [["a", "b"]]

    def test_of_nothing(self) -> None:
        found: list[Sequence[str]] = []
        Gathering(0, found.append)
        assert found == [()]


class Waiting:
    """One condition, looked at by the waits of a broker whose metadata change."""

    def __init__(self) -> None:
        self.runtime = ManualRuntime()
        self.metadata = MetadataCache(1)
        self.waits = MetadataWaits(1, self.runtime, self.metadata)
        self.holds = False
        self.looks = 0
        self.found: list[bool] = []

    def _look(self) -> bool:
        self.looks += 1
        return self.holds

    def until(self, timeout_ms: int) -> None:
        self.waits.until(self._look, timeout_ms, self.found.append)
        self.runtime.run_until_idle()

    def update(self) -> None:
        self.metadata.update(UpdateMetadataRequest(1, 1, 1, (), ()))
        self.runtime.run_until_idle()


class TestMetadataWaits:
    def test_what_holds_already(self) -> None:
        w = Waiting()
        w.holds = True
        w.until(1000)
        assert w.found == [True]

    @pytest.mark.parametrize("timeout_ms", [0, -1])
    def test_without_time(self, timeout_ms: int) -> None:
        w = Waiting()
        w.until(timeout_ms)
        assert w.found == [False]

    def test_looks_after_each_update(self) -> None:
        w = Waiting()
        w.until(1000)
        w.update()
        assert w.found == []
        w.holds = True
        w.update()
        assert w.found == [True]
        assert w.runtime.next_timer_ms() is None
        w.update()
        w.runtime.advance(5000)
        assert w.found == [True]

    def test_ends_with_its_time(self) -> None:
        w = Waiting()
        w.until(1000)
        w.runtime.advance(999)
        assert w.found == []
        w.runtime.advance(1)
        assert w.found == [False]
        w.holds = True
        w.update()
        assert w.found == [False]

    def test_a_wait_that_begins_looks_at_itself_alone(self) -> None:
        """W-237. A request may begin thousands of them."""
        w = Waiting()
        for _ in range(10):
            w.until(1000)
        assert w.looks == 10

    def test_many_updates_have_one_look(self) -> None:
        w = Waiting()
        w.until(1000)
        for _ in range(5):
            w.metadata.update(UpdateMetadataRequest(1, 1, 1, (), ()))
        w.runtime.run_until_idle()
        assert w.looks == 2
        w.holds = True
        w.update()
        assert w.found == [True]
