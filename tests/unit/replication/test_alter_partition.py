"""ISR changes on their way to the controller: one table of reactions, pauses, and each verdict for
its own partition (R-34 … R-40)."""

from __future__ import annotations

import uuid

import pytest

from checkpoints.types import TopicPartition
from replication.broker.alter_partition import AlterPartitionManager
from replication.broker.controller_channel import REACTIONS, ControllerChannel
from replication.common.error_codes import ErrorCode
from replication.common.messages import (
    AlterPartitionItem,
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionResult,
    ControlledShutdownResponse,
    Response,
)
from replication.common.retrying import Reaction
from tests.support.cases import for_each
from tests.support.replication import ManualRuntime, RecordingTransport

A, B = TopicPartition("orders", 0), TopicPartition("orders", 1)
MINUTE = 60_000


class Stage:
    def __init__(self) -> None:
        self.runtime, self.transport = ManualRuntime(), RecordingTransport()
        self.controller: int | None = 7
        self.searches = 0
        self.told: list[tuple[TopicPartition, ErrorCode]] = []
        channel = ControllerChannel(
            self.runtime, self.transport, lambda: self.controller, self._search, 500
        )
        self.manager = AlterPartitionManager(1, self.runtime, channel, lambda: 42)

    def _search(self) -> None:
        self.searches += 1

    def submit(self, tp: TopicPartition, epoch: int = 3, **more: object) -> bool:
        item = AlterPartitionItem(tp, epoch, 9, ((1, 42),))._replace(**more)  # type: ignore[arg-type]
        done = self.manager.submit(item, lambda r: self.told.append((r.tp, r.error_code)))
        self.runtime.run_until_idle()
        return done

    def asked(self) -> list[TopicPartition]:
        """What the one request under way asks."""
        (sent,) = self.transport.sent
        assert isinstance(sent.request, AlterPartitionRequest)
        assert (sent.broker_id, sent.request.broker_id, sent.request.broker_epoch) == (7, 1, 42)
        return [item.tp for item in sent.request.partitions]

    def answer(self, codes: dict[TopicPartition, ErrorCode] | ErrorCode | None) -> None:
        response: Response | None = None
        if isinstance(codes, ErrorCode):
            response = AlterPartitionResponse(codes)
        elif codes is not None:
            results = tuple(AlterPartitionResult(tp, code) for tp, code in codes.items())
            response = AlterPartitionResponse(ErrorCode.NONE, results)
        self.transport.reply(response)
        self.runtime.run_until_idle()

    def requests_in(self, ms: int, codes: dict[TopicPartition, ErrorCode] | ErrorCode) -> int:
        """How many come while each is answered at once."""
        count, end = 0, self.runtime.now_ms() + ms
        while self.runtime.now_ms() < end:
            while self.transport.sent:
                count += 1
                self.answer(codes)
            self.runtime.advance(1)
        return count


@for_each("code", list(ErrorCode))
def test_every_code_of_a_partition_is_a_verdict_or_asked_again(code: ErrorCode) -> None:
    stage = Stage()
    stage.submit(A)
    stage.answer({A: code})
    if REACTIONS[code].ends:
        assert stage.told == [(A, code)]
        assert stage.requests_in(5000, {A: code}) == 0
    else:
        assert stage.told == []
        assert stage.searches == (REACTIONS[code] is Reaction.FIND_CONTROLLER)
        assert 5 <= stage.requests_in(5000, {A: code}) <= 12
        stage.runtime.advance(2000)
        stage.answer({A: ErrorCode.NONE})
        assert stage.told == [(A, ErrorCode.NONE)]


@for_each("code", [code for code in ErrorCode if code is not ErrorCode.NONE])
def test_a_refusal_of_the_whole_request_judges_nothing(code: ErrorCode) -> None:
    stage = Stage()
    stage.submit(A)
    assert 5 <= stage.requests_in(5000, code) <= 13
    assert stage.told == []
    stage.runtime.advance(2000)
    stage.answer({A: ErrorCode.NONE})
    assert stage.told == [(A, ErrorCode.NONE)]


def test_no_pause_where_there_is_no_failure() -> None:
    stage = Stage()
    for _ in range(50):
        stage.submit(A)
        stage.answer({A: ErrorCode.NONE})
    assert len(stage.told) == 50


def test_one_request_at_a_time_and_what_came_meanwhile_goes_with_the_next() -> None:
    stage = Stage()
    stage.submit(A)
    stage.submit(B)
    assert stage.asked() == [A]
    stage.answer({A: ErrorCode.NONE})
    assert stage.asked() == [B]


@pytest.mark.parametrize(
    "lost",
    [None, AlterPartitionResponse(ErrorCode.NONE), ControlledShutdownResponse(ErrorCode.NONE)],
    ids=["no answer", "no verdict", "another answer"],
)
def test_what_was_not_judged_is_asked_again(lost: Response | None) -> None:
    stage = Stage()
    stage.submit(A)
    stage.transport.reply(lost)
    stage.runtime.advance(100)
    assert stage.asked() == [A]
    stage.answer({A: ErrorCode.NONE})
    assert stage.told == [(A, ErrorCode.NONE)]


def test_each_request_has_the_timeout_of_the_channel() -> None:
    stage = Stage()
    stage.submit(A)
    assert stage.transport.sent[0].timeout_ms == 500


def test_one_that_must_wait_does_not_hold_up_the_others() -> None:
    stage = Stage()
    stage.submit(A)
    stage.answer(None)
    stage.submit(B)
    stage.runtime.advance(100)
    assert stage.asked() == [A, B]
    stage.answer({A: ErrorCode.UNKNOWN_SERVER_ERROR, B: ErrorCode.INELIGIBLE_REPLICA})
    assert stage.told == [(B, ErrorCode.INELIGIBLE_REPLICA)]
    stage.runtime.advance(200)
    assert stage.asked() == [A]


def test_without_a_controller_nothing_is_sent_until_there_is_one() -> None:
    stage = Stage()
    stage.controller = None
    stage.submit(A)
    stage.runtime.advance(5000)
    assert not stage.transport.sent
    assert 5 <= stage.searches <= 12
    stage.controller = 7
    stage.manager.hurry()
    stage.runtime.run_until_idle()
    assert stage.asked() == [A]


def test_a_verdict_that_fails_does_not_take_the_others_with_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stage = Stage()

    def fail(result: AlterPartitionResult) -> None:
        raise RuntimeError("a bug")

    stage.controller = None
    stage.manager.submit(AlterPartitionItem(A, 3, 9, ((1, 42),)), fail)
    stage.submit(B)
    stage.controller = 7
    stage.runtime.advance(2000)
    assert stage.asked() == [A, B]
    stage.answer({A: ErrorCode.NONE, B: ErrorCode.NONE})
    assert stage.told == [(B, ErrorCode.NONE)]
    assert "orders-0: the verdict on its ISR was not taken over" in caplog.text
    assert stage.requests_in(5000, ErrorCode.NONE) == 0


def test_the_same_proposal_twice_is_refused() -> None:
    stage = Stage()
    assert stage.submit(A)
    assert not stage.submit(A)


@pytest.mark.parametrize(
    "newer", [{"leader_epoch": 4}, {"partition_epoch": 10}, {"topic_id": uuid.UUID(int=5)}]
)
@pytest.mark.parametrize("under_way", [True, False])
def test_a_newer_proposal_takes_the_place_of_a_forgotten_one(
    newer: dict[str, object], under_way: bool
) -> None:
    """The verdict on the old one is nobody's any more."""
    stage = Stage()
    stage.submit(A)
    if not under_way:
        stage.answer(None)
    assert stage.submit(A, **newer)
    if under_way:
        stage.answer({A: ErrorCode.FENCED_LEADER_EPOCH})
        assert stage.told == []
    stage.runtime.advance(1000)
    assert stage.asked() == [A]
    stage.answer({A: ErrorCode.NONE})
    assert stage.told == [(A, ErrorCode.NONE)]


def test_closed_it_is_silent() -> None:
    stage = Stage()
    stage.submit(A)
    stage.manager.close()
    stage.answer({A: ErrorCode.NONE})
    stage.runtime.advance(MINUTE)
    assert stage.told == []
    assert not stage.transport.sent
