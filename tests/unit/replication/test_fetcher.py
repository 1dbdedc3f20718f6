"""The fetcher's steps: what it asks when, order, delays, quota, answers that are wrong or late."""

from __future__ import annotations

import logging
import threading
import uuid
from typing import Any

import pytest

from checkpoints.types import TopicPartition
from logstore.common.errors import LogClosedError
from logstore.testing import ManualClock
from replication.common.config import ReplicationConfig
from replication.common.error_codes import ErrorCode
from replication.common.errors import NotLeaderOrFollowerError
from replication.common.messages import (
    INITIAL_SESSION_EPOCH,
    EpochEndOffset,
    FetchPartition,
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    Request,
    TopicResponse,
)
from replication.common.runtime import Task, ThreadRuntime
from replication.common.transport import LocalNetwork, LocalTransport, OnReply
from replication.decisions.truncation import EPOCH_RULE, FETCH_RULE, HIGH_WATERMARK_RULE
from replication.fetcher.fetch_failures import FetcherContext
from replication.fetcher.fetcher import LARGE_BYTES, LIGHT_BYTES, Fetcher
from replication.fetcher.fetcher_manager import FetcherManager
from replication.fetcher.fetcher_state import InitialFetchState, OffsetMismatchError, Phase
from tests.support.builders import batch, produced
from tests.support.fetchers import FOLLOWER, KIP_320_RULE, LEADER, TP, Replica, Stage, fetched
from tests.support.until import patience

BACKOFF_MS = 1000
A, B, C = (TopicPartition("a", i) for i in range(3))


def following(*tps: TopicPartition, records: int = 1, **more: Any) -> Stage:
    """Broker 2 follows broker 1 in epoch 1, both with the same records of epoch 0."""
    stage = Stage(**more)
    for tp in tps:
        stage.lead(1, (records, 0), tp=tp)
        stage.hold((records, 0), tp=tp)
    stage.follow(1, *tps)
    return stage


def order(stage: Stage) -> list[TopicPartition]:
    return [part.tp for part in stage.fetch_request().partitions]


def answer(*parts: FetchPartitionResponse) -> FetchResponse:
    return FetchResponse(parts)


def part(tp: TopicPartition, **fields: Any) -> FetchPartitionResponse:
    return FetchPartitionResponse(tp, **{"high_watermark": 0, "log_start_offset": 0, **fields})


class TestRequest:
    @pytest.mark.parametrize(("wait_ms", "timeout_ms"), [(500, 12_340), (9000, 14_000)])
    def test_how_long_it_waits_for_an_answer(self, wait_ms: int, timeout_ms: int) -> None:
        """Longer than the leader may let it wait (X-54)."""
        stage = Stage(replica_socket_timeout_ms=12_340, replica_fetch_wait_max_ms=wait_ms)
        stage.lead(1)
        stage.hold()
        stage.follow(1)
        stage.request()
        assert stage.wire.sent[0].timeout_ms == timeout_ms

    def test_fields(self) -> None:
        """R-116."""
        stage = Stage(
            replica_fetch_max_bytes=111,
            replica_fetch_response_max_bytes=222,
            replica_fetch_min_bytes=3,
            replica_fetch_wait_max_ms=44,
        )
        stage.hold((9, 4), hw=9)
        stage.follower.log().replica.maybe_increment_log_start_offset(6)
        topic_id = uuid.UUID(int=7)
        stage.follower.become(LEADER, 5)
        stage.manager.add_fetchers({TP: (LEADER, InitialFetchState(topic_id, 5, 9))})
        asked = FetchPartition(TP, 9, 111, 5, 4, 6, topic_id)
        assert stage.fetch_request() == FetchRequest(
            (asked,),
            2,
            102,
            44,
            3,
            222,
            session_epoch=INITIAL_SESSION_EPOCH,
            topic_names={topic_id: TP.topic},
        )

    @pytest.mark.parametrize(
        ("rule", "current", "last"),
        [
            (FETCH_RULE, 1, 0),
            (KIP_320_RULE, 1, -1),
            (EPOCH_RULE, -1, -1),
            (HIGH_WATERMARK_RULE, -1, -1),
        ],
        ids=lambda value: getattr(value, "name", None),
    )
    def test_epochs(self, rule: Any, current: int, last: int) -> None:
        """What each generation of the protocol sends (R-110), in all three requests."""
        stage = following(TP, rule=rule)
        request = stage.request()
        if isinstance(request, OffsetForLeaderEpochRequest):
            assert request.partitions == (OffsetForLeaderPartition(TP, 0, current),)
            assert request.replica_id == 2
            stage.exchange()
        (asked,) = stage.fetch_request().partitions
        assert (asked.current_leader_epoch, asked.last_fetched_epoch) == (current, last)
        stage.reply(fetched(error_code=ErrorCode.OFFSET_OUT_OF_RANGE))
        request = stage.request()
        assert isinstance(request, ListOffsetsRequest)
        assert (request.partitions, request.replica_id) == (
            (ListOffsetsPartition(TP, -1, current),),
            2,
        )

    def test_log_start_is_reported(self) -> None:
        """What the leader waits for after DeleteRecords (R-96)."""
        stage = following(TP, records=5)
        stage.settle()
        stage.leader.partition().leader.delete_records(2)
        stage.exchange()
        assert stage.fetch_request().partitions[0].log_start_offset == 2
        assert stage.leader.partition().leader.low_watermark == 0
        stage.exchange()
        assert stage.leader.partition().leader.low_watermark == 2

    @pytest.mark.parametrize(
        ("rule", "records", "phase"),
        [
            (FETCH_RULE, 3, Phase.FETCHING),
            (FETCH_RULE, 0, Phase.TRUNCATING),
            (EPOCH_RULE, 3, Phase.TRUNCATING),
            (HIGH_WATERMARK_RULE, 3, Phase.TRUNCATING),
        ],
    )
    def test_first_phase(self, rule: Any, records: int, phase: Phase) -> None:
        """R-113."""
        assert following(TP, records=records, rule=rule).state().phase is phase

    def test_no_epoch_known_cuts_to_the_high_watermark(self) -> None:
        """R-130, R-177: with an empty cache there is nothing to ask for."""
        stage = Stage()
        stage.lead(1)
        stage.hold((4, 0), hw=2)
        stage.follower.log().truncate_to(4)
        stage.follower.log().state.epochs.clear()
        stage.follow(1)
        assert stage.fetch_request().partitions[0].fetch_offset == 2
        assert stage.end == 2

    def test_all_requests_name_the_topic(self) -> None:
        """By its id, so that a later topic of the name is not taken for it."""
        topic_id = uuid.UUID(int=7)
        stage = Stage(KIP_320_RULE)
        stage.lead(1, (1, 0))
        stage.hold((1, 0))
        stage.follower.become(LEADER, 1)
        stage.manager.add_fetchers({TP: (LEADER, InitialFetchState(topic_id, 1, 0))})
        ends = stage.request()
        assert isinstance(ends, OffsetForLeaderEpochRequest)
        stage.exchange()
        fetch = stage.fetch_request()
        stage.reply(fetched(error_code=ErrorCode.OFFSET_OUT_OF_RANGE))
        listed = stage.request()
        assert isinstance(listed, ListOffsetsRequest)
        for request in (ends, fetch, listed):
            assert [part.topic_id for part in request.partitions] == [topic_id]


class TestOrder:
    def test_progress_goes_to_the_end(self) -> None:
        """R-115: whom a limited answer did not serve comes first next time."""
        stage = following(A, B, C)
        empty = [part(tp) for tp in (A, B, C)]
        stage.reply(answer(*empty))
        assert order(stage) == [A, B, C]
        record = batch(1, epoch=1)
        stage.reply(answer(part(A, records=record), *empty[1:]))
        assert order(stage) == [B, C, A]
        stage.reply(answer(*empty))
        assert order(stage) == [B, C, A]
        stage.reply(answer(part(B, records=record), part(C, records=record)))
        assert order(stage) == [A, B, C]

    def test_who_is_far_behind_asks_for_more(self) -> None:
        """While answers are full, and not of what a quota holds back (X-141)."""
        size, end, asked = len(batch(1, epoch=1)), 1, []
        stage = following(A, B, replica_fetch_max_bytes=size, rate=10**9)
        assert stage.quota is not None
        stage.quota.throttle("a", [B.partition])
        for number, count in enumerate((1, 2, 4, 4, 1), 1):
            many = b"".join(batch(end + at, epoch=1) for at in range(count))
            end += count
            stage.reply(answer(part(A, records=many), part(B, records=batch(number, epoch=1))))
            parts = stage.fetch_request().partitions
            asked.append([each.partition_max_bytes // size for each in parts])
        assert asked == [[2, 1], [4, 1], [4, 1], [4, 1], [1, 1]]

    @pytest.mark.parametrize(
        ("size", "in_turn"), [(100, 0), (LIGHT_BYTES, 1), (100_000, 1), (LARGE_BYTES, 0)]
    )
    def test_copies_of_some_batches_take_turns(
        self, size: int, in_turn: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A few bytes are the work of any thread, and many that of another core."""
        turns: list[Task] = []

        def take(task: Task) -> None:
            turns.append(task)
            task()

        monkeypatch.setattr("replication.fetcher.fetcher.in_turn", take)
        stage = following(A)
        stage.reply(answer(part(A, records=batch(1, epoch=1, value=bytes(size)))))
        assert stage.follower.log(A).log_end_offset == 2
        assert len(turns) == in_turn

    def test_a_limited_response_serves_all(self) -> None:
        """R-108 and R-115 together: each fetch takes one batch, yet nobody starves. The first
        answer moves all to the end, as it tells their lag."""
        stage = Stage(replica_fetch_response_max_bytes=1)
        for tp in (A, B, C):
            stage.lead(1, tp=tp)
            stage.hold(tp=tp)
            stage.produce(3, tp)
        stage.follow(1, A, B, C)
        ends = []
        for _ in range(9):
            stage.exchange()
            ends.append([stage.follower.log(tp).log_end_offset for tp in (A, B, C)])
        assert ends[:6] == [[1, 0, 0], [2, 0, 0], [2, 1, 0], [2, 1, 1], [3, 1, 1], [3, 2, 1]]
        stage.assert_equal_logs((A, B, C))

    def test_delay_goes_to_the_end(self) -> None:
        stage = following(A, B)
        stage.reply(answer(part(A), part(B)))
        stage.reply(answer(part(A, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER), part(B)))
        assert order(stage) == [B]
        stage.runtime.advance(BACKOFF_MS)
        stage.reply(answer(part(B)))
        assert order(stage) == [B, A]

    def test_truncation_groups_by_topic(self) -> None:
        """R-115."""
        other = TopicPartition("b", 0)
        stage = Stage()
        for tp in (A, other, B):
            stage.lead(1, (2, 0), tp=tp)
        stage.hold((2, 0), (2, 1), tp=A)
        for tp in (other, B):
            stage.hold((2, 0), tp=tp)
        stage.follow(2, A, other, B)
        for tp in (A, other, B):
            stage.leader.become(LEADER, 2, tp)
        assert order(stage) == [A, other, B]
        stage.reply(answer(part(A, diverging_epoch=EpochEndOffset(0, 2)), part(other), part(B)))
        assert order(stage) == [A, B, other]

    def test_added_again_in_the_same_epoch(self) -> None:
        """R-113: the old state is kept."""
        stage = following(A, B)
        stage.reply(answer(part(A, records=batch(1, epoch=1)), part(B)))
        state = stage.state(A)
        stage.manager.add_fetchers({A: (LEADER, InitialFetchState(None, 1, 0))})
        assert stage.state(A) is state
        assert state.offset == 2


class TestDelay:
    def test_lost_reply(self) -> None:
        """R-127: all partitions wait for the backoff."""
        stage = following(A, B)
        stage.reply(None)
        assert stage.is_idle()
        stage.runtime.advance(BACKOFF_MS - 1)
        assert stage.is_idle()
        stage.runtime.advance(1)
        assert order(stage) == [A, B]

    @pytest.mark.parametrize(
        "response", [FetchResponse((), ErrorCode.STALE_BROKER_EPOCH), TopicResponse(ErrorCode.NONE)]
    )
    def test_refused_as_a_whole(self, response: Any) -> None:
        stage = following(A, B)
        stage.reply(response)
        assert stage.is_idle()
        stage.runtime.advance(BACKOFF_MS)
        assert order(stage) == [A, B]

    @pytest.mark.parametrize("kind", [OffsetForLeaderEpochResponse, ListOffsetsResponse])
    def test_empty_or_foreign_answer(self, kind: Any) -> None:
        """What was asked without an answer is asked again, after the backoff."""
        stage = following(A, rule=EPOCH_RULE)
        for _ in range(2):
            stage.reply(kind(()))
            assert stage.is_idle()
            stage.runtime.advance(BACKOFF_MS)
        stage.exchange()
        stage.reply(answer(part(A, error_code=ErrorCode.OFFSET_OUT_OF_RANGE)))
        assert isinstance(stage.request(), ListOffsetsRequest)
        stage.reply(kind(()))
        assert stage.is_idle()
        stage.runtime.advance(BACKOFF_MS)
        assert order(stage) == [A]

    @pytest.mark.parametrize("offset", [-1, -(2**63)])
    def test_end_of_log_that_cannot_be(self, offset: int) -> None:
        stage = following(A)
        stage.reply(answer(part(A, error_code=ErrorCode.OFFSET_OUT_OF_RANGE)))
        stage.reply(ListOffsetsResponse((ListOffsetsPartitionResponse(A, offset=offset),)))
        assert stage.is_idle()
        assert stage.follower.log(A).log_end_offset == 1
        assert not stage.manager.failed_partitions

    def test_first_delay_is_kept(self) -> None:
        """R-128. Who comes back from a delay comes last."""
        stage = following(A, B)
        stage.reply(answer(part(A, error_code=ErrorCode.KAFKA_STORAGE_ERROR), part(B)))
        stage.request()
        stage.runtime.advance(600)
        stage.reply(None)
        stage.runtime.advance(BACKOFF_MS - 600)
        assert order(stage) == [A]
        stage.reply(answer(part(A)))
        stage.request()
        stage.runtime.advance(600)
        stage.reply(answer(part(A)))
        assert order(stage) == [A, B]

    def test_adding_wakes_a_resting_fetcher(self) -> None:
        """R-114.3; and the timer of the delay does not start a second round."""
        stage = following(A)
        stage.lead(1, (1, 0), tp=B)
        stage.hold((1, 0), tp=B)
        stage.reply(None)
        assert stage.is_idle()
        stage.follow(1, B)
        assert order(stage) == [B]
        stage.runtime.advance(BACKOFF_MS)
        assert len(stage.wire.sent) == 1
        stage.reply(answer(part(B)))
        assert order(stage) == [B, A]

    def test_idle_without_partitions(self) -> None:
        """No timer, no request: an idle broker sleeps."""
        stage = following(A)
        stage.request()
        stage.manager.remove_fetchers([A])
        stage.exchange()
        assert stage.is_idle()
        assert stage.runtime.next_timer_ms() is None


class TestAnswers:
    def test_one_request_in_flight(self) -> None:
        stage = following(A)
        stage.request()
        for tp in (B, C):
            stage.lead(1, tp=tp)
            stage.hold(tp=tp)
            stage.follow(1, tp)
            stage.runtime.advance(5 * BACKOFF_MS)
        assert len(stage.wire.sent) == 1
        stage.exchange()
        assert order(stage) == [B, C, A]

    def test_second_reply_to_a_request(self) -> None:
        """Only the first counts, also when the fetcher rests by then."""
        stage = following(A)
        stage.request()
        sent = stage.wire.take()
        sent.reply(None)
        stage.runtime.run_until_idle()
        sent.reply(answer(part(A, records=batch(1, epoch=1))))
        assert stage.is_idle()
        assert stage.follower.log(A).log_end_offset == 1

    def test_partition_twice_in_an_answer(self) -> None:
        stage = following(A)
        record = part(A, records=batch(1, epoch=1))
        stage.reply(answer(record, record))
        assert stage.follower.log(A).log_end_offset == 2
        assert not stage.manager.failed_partitions

    def test_partition_that_was_not_asked_for(self) -> None:
        stage = following(A)
        stage.hold(tp=B)
        stage.reply(answer(part(B, records=batch(0, epoch=1))))
        assert stage.follower.log(B).log_end_offset == 0
        assert order(stage) == [A]

    def test_partial_batch_alone(self) -> None:
        """F-163: nothing whole, so no progress and no failure."""
        stage = following(A)
        stage.reply(answer(part(A, records=batch(1, epoch=1)[:40])))
        assert stage.fetch_request().partitions[0].fetch_offset == 1
        assert not stage.manager.failed_partitions

    def test_records_are_not_copied(self) -> None:
        """The log gets the leader's memory itself."""
        stage = following(A)
        partition = stage.follower.partition(A)
        given, append = [], partition.follower.append
        partition.follower.append = (  # type: ignore[method-assign]
            lambda records, *rest: given.append(records) or append(records, *rest)  # type: ignore[func-returns-value]
        )
        view = memoryview(batch(1, epoch=1))
        stage.reply(answer(part(A, records=view)))
        assert given[0] is view
        view.release()  # nobody holds on to it

    def test_no_memory_of_the_leader_is_kept(self) -> None:
        stage = following(A)
        memory = bytearray(8)
        view = memoryview(memory)
        stage.reply(answer(part(A, records=view[:0])))
        view.release()
        memory.extend(b"x")  # raises BufferError if a view were left

    @pytest.mark.parametrize(("ours", "moved"), [(5, 5), (3, 3)])
    def test_own_high_watermark(self, ours: int, moved: int) -> None:
        """R-26: the leader's, clamped to our end; it may go back."""
        stage = following(TP, records=5)
        stage.reply(fetched(high_watermark=9, log_start_offset=0))
        assert (stage.hw, stage.moved) == (5, [TP])
        stage.reply(fetched(high_watermark=ours, log_start_offset=0))
        assert stage.hw == moved

    def test_same_answer_after_a_cut_counts(self) -> None:
        """What was seen before our log changed is void."""
        stage = following(TP, records=5)
        stage.reply(fetched(high_watermark=5, log_start_offset=0))
        stage.reply(fetched(diverging_epoch=EpochEndOffset(0, 3), high_watermark=5))
        assert (stage.end, stage.hw) == (3, 3)
        stage.reply(fetched(high_watermark=5, log_start_offset=0))
        assert stage.state().lag == 2
        stage.reply(fetched(records=batch(3, 2), high_watermark=5, log_start_offset=0))
        assert (stage.end, stage.hw) == (5, 5)

    def test_what_the_leader_deleted_may_part_from_ours(self) -> None:
        """Its log starts where it tells us to cut: it has forgotten which epochs were below. What
        we have there may never have been committed, and a producer that we know from there would
        take what it sends again for written."""
        stage = Stage()
        stage.lead(0)
        stage.produce(1)
        stage.hold((1, 0))
        ours = stage.follower.partition()
        stage.follower.become(FOLLOWER, 1)
        for sequence in range(4):  # a leadership of which nobody copied anything
            ours.leader.append(produced(7, sequence), 1)
        stage.leader.become(LEADER, 2)
        stage.produce(4)
        stage.leader.log().replica.update_high_watermark(5)
        stage.leader.partition().leader.delete_records(3)
        stage.follow(2)
        stage.settle()
        stage.assert_equal_logs()
        assert ours.local_log().log_start_offset == 3
        assert ours.local_log().producers.known.empty

    def test_it_may_part_where_nothing_is_to_be_cut(self) -> None:
        """Our log ends where the leader's begins."""
        stage = Stage()
        stage.lead(0)
        stage.hold()
        ours = stage.follower.partition()
        stage.follower.become(FOLLOWER, 1)
        for sequence in range(3):
            ours.leader.append(produced(7, sequence, transactional=True), 1)
        stage.leader.become(LEADER, 2)
        stage.produce(5)
        stage.leader.log().replica.update_high_watermark(5)
        stage.leader.partition().leader.delete_records(3)
        stage.follow(2)
        stage.settle()
        stage.assert_equal_logs()
        assert ours.local_log().producers.known.empty
        ours.local_log().replica.update_high_watermark(5)
        assert ours.local_log().last_stable_offset == 5

    def test_what_both_have_stays_though_the_leader_deleted_it(self) -> None:
        stage = following(TP, records=5)
        stage.reply(fetched(diverging_epoch=EpochEndOffset(0, 4), log_start_offset=3))
        assert (stage.follower.log().log_start_offset, stage.end) == (0, 4)
        stage.reply(fetched(diverging_epoch=EpochEndOffset(0, 3), log_start_offset=3))
        assert (stage.follower.log().log_start_offset, stage.end) == (3, 3)
        assert stage.fetch_request().partitions[0].fetch_offset == 3

    def test_a_log_that_begins_inside_a_batch_which_is_bad(self) -> None:
        """The log has begun there when the batch is refused; what is fetched next fits it."""
        stage = following(TP, records=5)
        stage.reply(fetched(diverging_epoch=EpochEndOffset(0, 8), log_start_offset=8))
        assert stage.fetch_request().partitions[0].fetch_offset == 8
        stage.reply(fetched(records=batch(7, 3, epoch=5), log_start_offset=8))
        assert stage.end == 7
        stage.runtime.advance(BACKOFF_MS)
        assert stage.fetch_request().partitions[0].fetch_offset == 7
        stage.reply(fetched(records=batch(7, 3, epoch=1), log_start_offset=8, high_watermark=10))
        assert (stage.end, stage.hw) == (10, 10)
        assert not stage.manager.failed_partitions

    def test_role_changed_under_way(self) -> None:
        """The partition leads by now, though its fetcher was not told yet: nothing is done to it,
        and it does not count as failed."""
        stage = following(TP)
        stage.request()
        stage.follower.become(2, 2)
        stage.reply(fetched(records=batch(1, epoch=1), high_watermark=2, log_start_offset=0))
        assert stage.end == 1
        assert not stage.manager.failed_partitions
        assert stage.follower.partition().is_leader

    def test_role_changed_after_the_append(self) -> None:
        """What was appended is not asked for again."""
        stage = following(TP)
        partition = stage.follower.partition()
        follow = partition.follower.follow

        def refuse(*args: Any) -> bool:
            partition.follower.follow = follow  # type: ignore[method-assign]
            raise NotLeaderOrFollowerError("not in this epoch")

        partition.follower.follow = refuse  # type: ignore[method-assign]
        stage.reply(fetched(records=batch(1, epoch=1), high_watermark=2, log_start_offset=0))
        stage.runtime.advance(BACKOFF_MS)
        assert stage.fetch_request().partitions[0].fetch_offset == 2

    def test_log_cut_behind_our_back(self) -> None:
        """R-118: records must not leave a gap."""
        stage = following(TP, records=5)
        stage.request()
        stage.follower.log().truncate_to(3)
        stage.reply(fetched(records=batch(5, epoch=1), high_watermark=0, log_start_offset=0))
        assert stage.end == 3
        assert isinstance(stage.manager.failed_partitions[TP], OffsetMismatchError)

    @pytest.mark.parametrize("records", [b"", batch(1, epoch=1)], ids=["nothing new", "a batch"])
    def test_log_closed_under_way(self, caplog: pytest.LogCaptureFixture, records: bytes) -> None:
        """The broker ends. That is no trouble to be looked at."""
        stage = following(TP)
        stage.request()
        stage.follower.log().close()
        with caplog.at_level(logging.INFO):
            stage.reply(fetched(records=records, high_watermark=1, log_start_offset=0))
        assert isinstance(stage.manager.failed_partitions[TP], LogClosedError)
        assert [(each.levelname, each.exc_info) for each in caplog.records] == [("INFO", None)]

    @pytest.mark.parametrize("error", [OSError("gone"), NotLeaderOrFollowerError("not now")])
    def test_removed_while_it_is_applied(self, error: Exception) -> None:
        """A failing disk takes partitions away from within: they neither fail nor come back, and
        nothing of the rest of the answer is applied to them."""
        stage = following(A, B, C)
        stage.request()
        partition = stage.follower.partition(B)

        def fail(*args: Any) -> Any:
            stage.manager.remove_fetchers([A, B, C])
            raise error

        partition.follower.append = fail  # type: ignore[method-assign]
        record = batch(1, epoch=1)
        stage.reply(
            answer(
                part(A, diverging_epoch=EpochEndOffset(0, 0)),
                part(B, records=record),
                part(C, records=record),
            )
        )
        assert [stage.follower.log(tp).log_end_offset for tp in (A, B, C)] == [1, 1, 1]
        assert not stage.manager.failed_partitions
        assert stage.is_idle()
        assert stage.runtime.next_timer_ms() is None

    def test_consumer_that_fails_does_not_stop_replication(self) -> None:
        stage = Stage()

        def fail(tps: list[TopicPartition]) -> None:
            raise RuntimeError("a consumer's callback")

        fetcher = Fetcher(
            "f",
            LEADER,
            FetcherContext(
                2,
                stage.runtime,
                stage.wire,
                ReplicationConfig(),
                FETCH_RULE,
                stage.follower.partition,
                lambda: 102,
                fail,
                lambda tps: None,
            ),
        )
        stage.hold((2, 0))
        stage.follower.become(LEADER, 1)
        fetcher.add({TP: InitialFetchState(None, 1, 2)})
        stage.reply(fetched(high_watermark=2, log_start_offset=0))
        assert not stage.is_idle()
        assert not fetcher.dead

    def test_transport_that_raises(self) -> None:
        """As no answer (R-127)."""
        stage = following(A)
        send = stage.wire.send

        def fail(*args: Any) -> None:
            raise RuntimeError("no route")

        stage.wire.send = fail  # type: ignore[method-assign]
        assert stage.is_idle()
        stage.wire.send = send  # type: ignore[method-assign]
        stage.runtime.advance(BACKOFF_MS)
        assert order(stage) == [A]

    def test_closed(self) -> None:
        stage = following(A)
        late = answer(part(A, records=batch(1, epoch=1)))
        stage.request()
        stage.manager.close()
        stage.reply(late)
        stage.runtime.advance(5 * BACKOFF_MS)
        assert stage.follower.log(A).log_end_offset == 1
        assert stage.is_idle()


class TestQuota:
    def test_throttled_partition_is_left_out(self) -> None:
        """R-145, R-146: listed, over the rate and behind; not otherwise."""
        stage = following(A, B, C, rate=100)
        assert stage.quota is not None
        stage.quota.throttle("a", [0, 1])
        record = batch(1, epoch=1)
        stage.reply(
            answer(part(A, records=record, high_watermark=9), part(B, high_watermark=1), part(C))
        )
        assert stage.quota.byte_rate == len(record)
        assert order(stage) == [B, C]  # A is behind, B in sync, C not listed
        stage.reply(answer(part(B, high_watermark=1), part(C)))
        assert order(stage) == [B, C]
        stage.clock.advance(11_000)
        stage.reply(answer(part(B, high_watermark=1), part(C)))
        assert order(stage) == [A, B, C]

    def test_rests_while_all_are_throttled(self) -> None:
        """It looks again after the backoff, not at once."""
        stage = following(A, rate=100)
        assert stage.quota is not None
        stage.quota.throttle("a", None)
        record = batch(1, epoch=1)
        stage.reply(answer(part(A, records=record, high_watermark=9)))
        assert stage.is_idle()
        waited = 0
        while stage.is_idle() and waited < 20:
            stage.runtime.advance(BACKOFF_MS)
            waited += 1
        assert waited == -(-len(record) * 10 // 1000)
        assert order(stage) == [A]

    def test_size_in_sync_counts_too(self) -> None:
        stage = following(A, rate=10**9)
        assert stage.quota is not None
        stage.quota.throttle("a", [0])
        record = batch(1, epoch=1)
        stage.reply(answer(part(A, records=record)))
        assert stage.quota.byte_rate == len(record)


class _Broker:
    """Answers a fetch when there is something new, or after a moment, as a broker does."""

    def __init__(self, replica: Replica, runtime: ThreadRuntime) -> None:
        self.replica, self.runtime = replica, runtime

    def handle(self, request: Request, reply: OnReply) -> None:
        response = self.replica.answer(request)
        assert isinstance(response, FetchResponse)
        if any(p.records or p.error_code for p in response.partitions):
            reply(response)
        else:
            self.runtime.call_later(1, lambda: reply(self.replica.answer(request)))


@pytest.mark.slow
def test_with_threads() -> None:
    """Real actors: partitions are removed and added again while records flow; once removed nothing
    is applied, and in the end all is there."""
    clock = ManualClock()
    leader, follower = Replica(1, clock), Replica(2, clock)
    tps = [TopicPartition("threads", i) for i in range(6)]
    for tp in tps:
        leader.become(LEADER, 1, tp)
        follower.become(LEADER, 1, tp)
    runtime, network = ThreadRuntime(), LocalNetwork()
    network.bind(1, _Broker(leader, runtime).handle)
    network.bind(2, lambda request, reply: reply(None))
    arrived = threading.Event()

    def on_high_watermarks(moved: list[TopicPartition]) -> None:
        if all(follower.partition(tp).high_watermark == 200 for tp in tps):
            arrived.set()

    manager = FetcherManager(
        FetcherContext(
            2,
            runtime,
            LocalTransport(network, 2, runtime),
            ReplicationConfig(num_replica_fetchers=2),
            FETCH_RULE,
            follower.partition,
            lambda: 102,
            on_high_watermarks,
            follower.logs.housekeeper.checkpoint_truncations,
        )
    )

    def add(some: list[TopicPartition]) -> None:
        manager.add_fetchers(
            {
                tp: (LEADER, InitialFetchState(None, 1, follower.log(tp).log_end_offset))
                for tp in some
            }
        )

    def produce() -> None:
        for _ in range(200):
            for tp in tps:
                leader.partition(tp).leader.append(batch(), 1)

    producer = threading.Thread(target=produce)
    try:
        add(tps)
        producer.start()
        for i in range(100):
            some = tps[i % 3 :: 3]
            manager.remove_fetchers(some)
            before = [follower.log(tp).log_end_offset for tp in some]
            assert before == [follower.log(tp).log_end_offset for tp in some]
            add(some)
        producer.join()
        assert arrived.wait(patience())
        assert not manager.failed_partitions
        assert manager.dead_workers == 0
        for tp in tps:
            assert follower.log(tp).log_end_offset == 200
    finally:
        manager.close()
        runtime.close()
