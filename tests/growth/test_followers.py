"""A topic of many partitions, which a broker is told of in pieces."""

from __future__ import annotations

from checkpoints.types import TopicPartition
from replication.common.error_codes import ErrorCode
from replication.common.messages import FetchPartitionResponse, FetchResponse
from tests.growth.work import Act, Case, check, for_cases
from tests.support.fetchers import Stage

PIECE = 2
PAUSE_MS = 1000


def pieces(count: int) -> list[list[TopicPartition]]:
    return [[TopicPartition("a", PIECE * n + at) for at in range(PIECE)] for n in range(count)]


def held(count: int) -> Stage:
    stage = Stage()
    for tps in pieces(count):
        for tp in tps:
            stage.lead(1, tp=tp)
            stage.hold(tp=tp)
    return stage


def answer(stage: Stage, code: ErrorCode = ErrorCode.NONE) -> None:
    """Answer what is asked, as a leader with a session: with what has changed."""
    parts = stage.fetch_request().partitions
    stage.reply(
        FetchResponse(
            tuple(
                FetchPartitionResponse(
                    each.tp, high_watermark=0, log_start_offset=0, error_code=code
                )
                for each in parts
            ),
            session_id=7,
        )
    )


def follow_in_pieces(size: int) -> Act:
    """Each comes while a fetch of those before waits."""
    stage = held(size)

    def act() -> None:
        for tps in pieces(size):
            stage.follow(1, *tps)
            answer(stage)
            answer(stage)

    return act


def refused_in_pieces(size: int) -> Act:
    """The leader cannot serve each at first, and it comes back after a pause."""
    stage = held(size)

    def act() -> None:
        for tps in pieces(size):
            stage.follow(1, *tps)
            answer(stage, ErrorCode.KAFKA_STORAGE_ERROR)
            stage.runtime.advance(1)
        stage.runtime.advance(PAUSE_MS - size)
        for _ in range(size):
            stage.runtime.advance(1)
            answer(stage)

    return act


@for_cases(
    Case("follow in pieces", follow_in_pieces, smallest=2),
    Case("refused in pieces", refused_in_pieces, smallest=2),
)
def test_a_piece_costs_what_is_in_it(case: Case) -> None:
    check(case)
