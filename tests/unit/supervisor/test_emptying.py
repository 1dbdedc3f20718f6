"""A broker's replicas move away, also if somebody begins in the middle of it."""

from __future__ import annotations

from typing import Any

import pytest

from checkpoints.types import TopicPartition
from logstore.common.errors import ConfigError
from replication.admin import Answered, WireError
from replication.admin.reassignments import Ongoing, Placement
from replication.common.error_codes import ErrorCode
from replication.supervisor import emptying
from replication.supervisor.emptying import MAX_DOUBTS, Emptying

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)


class Controller:
    """Begins every move, and ends those that it is told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, brokers: int = 4) -> None:
        self.racks = dict.fromkeys(range(brokers))
        self.present: dict[TopicPartition, tuple[int, ...]] = {A: (0, 1, 2), B: (1, 2, 3)}
        self.ongoing: dict[TopicPartition, Ongoing] = {}
        self.began: list[dict[TopicPartition, tuple[int, ...]]] = []
        self.rates: list[int | None] = []
        self.answer = Answered(0)
        monkeypatch.setattr(emptying, "list_reassignments", lambda admin: dict(self.ongoing))
        monkeypatch.setattr(
            emptying, "look", lambda admin: Placement(dict(self.racks), dict(self.present))
        )
        monkeypatch.setattr(emptying, "alter_reassignments", self.alter)
        monkeypatch.setattr(emptying, "throttle", lambda *given: self.rates.append(given[-1]))
        monkeypatch.setattr(emptying, "unthrottle", lambda *given: self.rates.append(None))

    def alter(self, admin: Any, targets: dict[TopicPartition, Any]) -> dict[Any, Answered]:
        self.began.append(targets)
        for tp, target in targets.items():
            before = self.present[tp]
            adding = tuple(each for each in target if each not in before)
            removing = tuple(each for each in before if each not in target)
            self.present[tp] = (*target, *removing)
            self.ongoing[tp] = Ongoing(self.present[tp], adding, removing)
        return dict.fromkeys(targets, self.answer)

    def end(self, tp: TopicPartition) -> None:
        removing = self.ongoing.pop(tp).removing
        self.present[tp] = tuple(each for each in self.present[tp] if each not in removing)


def test_each_move_begins_once(monkeypatch: pytest.MonkeyPatch) -> None:
    controller = Controller(monkeypatch)
    with Emptying("127.0.0.1:1", 2, None) as moves:
        assert moves.step() == moves.step() == "2 partitions have a replica on broker 2"
        ended = controller.ongoing.pop(A)  # and the metadata do not know it yet
        assert moves.step() == "2 partitions have a replica on broker 2"
        controller.ongoing[A] = ended
        controller.end(A)
        assert moves.step() == "1 partitions have a replica on broker 2"
        controller.end(B)
        assert moves.step() == ""
    assert controller.began == [{A: (0, 1, 3), B: (1, 3, 0)}]
    assert controller.rates == []


def test_another_one_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a partition moves it shows as many replicas as there are brokers."""
    controller = Controller(monkeypatch)
    with Emptying("127.0.0.1:1", 2, 1000) as moves:
        moves.step()
    with Emptying("127.0.0.1:1", 2, 5000) as moves:
        assert moves.step()
        controller.end(A)
        controller.end(B)
        assert moves.step() == ""
    assert len(controller.began) == 1
    assert controller.rates == [1000, 5000, None]  # the second one has its own rate


def test_too_few_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    controller = Controller(monkeypatch, brokers=3)
    controller.present = {A: (0, 1, 2)}
    refusal = "has 3 replicas, and without 2 only 2 brokers are left"
    with Emptying("127.0.0.1:1", 2, None) as moves:
        for _ in range(MAX_DOUBTS):
            moves.step()
        with pytest.raises(ConfigError, match=refusal):
            moves.step()


def test_a_move_that_is_shown_longer_than_it_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else began it: it is no reason to give up."""
    controller = Controller(monkeypatch, brokers=3)
    controller.present = {A: (0, 1, 2)}
    with Emptying("127.0.0.1:1", 2, None) as moves:
        assert moves.step() == "1 partitions have a replica on broker 2"
        controller.present = {A: (0, 1)}
        assert moves.step() == ""


def test_a_refused_move(monkeypatch: pytest.MonkeyPatch) -> None:
    controller = Controller(monkeypatch)
    controller.answer = Answered(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "no")
    with (
        Emptying("127.0.0.1:1", 2, None) as moves,
        pytest.raises(WireError, match="orders-0: INVALID_REPLICA_ASSIGNMENT: no"),
    ):
        moves.step()
