"""Kafka's AbstractFetcherThreadTest, ReplicaFetcherThreadTest and AbstractFetcherManagerTest under
their names: whole conversations of a follower with a leader in each generation of the protocol, and
scenarios that need no cluster. The unit tests of the fetcher say its single steps."""

from __future__ import annotations

import pytest

from checkpoints.types import TopicPartition
from replication.common.error_codes import ErrorCode
from replication.common.errors import FencedLeaderEpochError, KafkaStorageError
from replication.common.messages import (
    FetchRequest,
    FetchResponse,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartitionResponse,
    Request,
)
from replication.decisions.truncation import (
    EPOCH_RULE,
    FETCH_RULE,
    HIGH_WATERMARK_RULE,
    TruncationRule,
)
from replication.fetcher.fetcher_state import InitialFetchState, Phase
from tests.support.fetchers import KIP_320_RULE, LEADER, TP, Stage, contents, fetched

OTHER = TopicPartition("orders", 1)
BACKOFF_MS = 1000
ASKING = pytest.mark.parametrize("rule", [EPOCH_RULE, KIP_320_RULE], ids=["epoch", "kip-320"])
FENCED = pytest.mark.parametrize("rule", [KIP_320_RULE, FETCH_RULE], ids=["kip-320", "fetch"])
BY_EPOCH = pytest.mark.parametrize(
    "rule", [EPOCH_RULE, KIP_320_RULE, FETCH_RULE], ids=["epoch", "kip-320", "fetch"]
)


def epochs_of(requests: list[tuple[Request, object]]) -> list[int]:
    """The epochs whose end a follower asked for, in either protocol."""
    asked = []
    for request, _ in requests:
        if isinstance(request, OffsetForLeaderEpochRequest):
            asked.append(request.partitions[0].leader_epoch)
        elif isinstance(request, FetchRequest) and request.partitions[0].last_fetched_epoch >= 0:
            asked.append(request.partitions[0].last_fetched_epoch)
    return asked


def end_of_epoch(
    epoch: int, end: int, error: ErrorCode = ErrorCode.NONE, tp: TopicPartition = TP
) -> OffsetForLeaderEpochResponse:
    return OffsetForLeaderEpochResponse((OffsetForLeaderPartitionResponse(tp, error, epoch, end),))


class TestAbstractFetcherThread:
    @FENCED
    def test_fenced_truncation_and_fetch(self, rule: TruncationRule) -> None:
        """testFencedTruncation, testFencedFetch (103, 104; R-124, R-139; T-D1.6): the partition is
        set aside until metadata brings a newer epoch."""
        stage = Stage(rule)
        stage.lead(3, (10, 1))
        stage.hold((13, 1), hw=10)
        stage.follow(1)
        stage.exchange()
        assert isinstance(stage.manager.failed_partitions[TP], FencedLeaderEpochError)
        assert stage.end == 13
        stage.runtime.advance(10 * BACKOFF_MS)
        assert stage.is_idle()
        stage.produce(4)
        stage.follow(3)
        assert not stage.manager.failed_partitions
        stage.settle()
        stage.assert_equal_logs()

    @FENCED
    def test_fenced_while_a_newer_epoch_came(self, rule: TruncationRule) -> None:
        """R-125: the newer epoch is not set aside for an answer to the older one."""
        stage = Stage(rule)
        stage.lead(3, (10, 1))
        stage.hold((10, 1), hw=10)
        stage.follow(1)
        stage.request()
        stage.follow(3)
        stage.exchange()
        assert not stage.manager.failed_partitions
        stage.runtime.advance(BACKOFF_MS)
        stage.settle()
        stage.assert_equal_logs()

    @FENCED
    def test_unknown_leader_epoch(self, rule: TruncationRule) -> None:
        """testUnknownLeaderEpochInTruncation, testUnknownLeaderEpochWhileFetching (105, 106; S-8,
        T-D1.7): no progress and no cut, again soon and then ever later, then it goes on."""
        stage = Stage(rule)
        stage.lead(1, (12, 0))
        stage.hold((10, 0), (5, 2), hw=10)
        stage.follow(3)
        before = stage.state().phase
        stage.exchange()
        assert stage.end == 15
        assert stage.state().phase is before
        for backoff_ms in (5, 10, 20, 40, 80, 160, 320, 640, BACKOFF_MS, BACKOFF_MS):
            stage.runtime.advance(backoff_ms - 1)
            assert stage.is_idle()
            stage.runtime.advance(1)
            stage.exchange()
        assert stage.end == 15
        stage.leader.become(LEADER, 3)
        stage.runtime.advance(BACKOFF_MS)
        stage.settle()
        stage.assert_equal_logs()

    def test_truncate_on_fetch_does_not_process_partition_data(self) -> None:
        """testTruncateOnFetchDoesNotProcessPartitionData (109; S-9, T-D3, KAFKA-14704)."""
        stage = Stage()
        stage.lead(2, (7, 1))
        stage.leader.write((2, 2))
        stage.leader.log().replica.update_high_watermark(9)
        stage.leader.log().replica.maybe_increment_log_start_offset(3)
        stage.hold((10, 1), hw=5)
        stage.follow(2)
        _, response = stage.exchange()
        assert isinstance(response, FetchResponse)
        answer = response.partitions[0]
        assert answer.diverging_epoch == (1, 7)
        assert (answer.high_watermark, answer.log_start_offset) == (9, 3)
        assert (stage.end, stage.hw, stage.follower.partition().log_start_offset) == (7, 5, 0)
        stage.exchange()
        assert (stage.end, stage.hw, stage.follower.partition().log_start_offset) == (9, 9, 3)
        stage.assert_equal_logs()

    @pytest.mark.parametrize("again", [None, 4, 3], ids=["removed", "newer epoch", "same epoch"])
    def test_truncation_on_fetch_skipped_if_partition_removed(self, again: int | None) -> None:
        """testTruncationOnFetchSkippedIfPartitionRemoved (110; S-10, KAFKA-13207)."""
        stage = Stage()
        stage.lead(3, (4, 1))
        stage.hold((8, 1), hw=2)
        stage.follow(3)
        answer = stage.leader.answer(stage.request())
        assert isinstance(answer, FetchResponse)
        assert answer.partitions[0].diverging_epoch == (1, 4)
        stage.manager.remove_fetchers([TP])
        if again is not None:
            stage.follow(again)
        stage.reply(answer)
        assert (stage.end, stage.hw) == (8, 2)
        assert stage.is_idle() is (again is None)

    @pytest.mark.parametrize("again", [None, 4, 3], ids=["removed", "newer epoch", "same epoch"])
    def test_data_skipped_if_partition_removed(self, again: int | None) -> None:
        """S-10, R-117: no append and no high watermark from an answer that came too late."""
        stage = Stage()
        stage.lead(3, (4, 1))
        stage.leader.log().replica.update_high_watermark(4)
        stage.hold((2, 1))
        stage.follow(3)
        answer = stage.leader.answer(stage.request())
        stage.manager.remove_fetchers([TP])
        if again is not None:
            stage.follow(again)
        stage.reply(answer)
        assert (stage.end, stage.hw, stage.moved) == (2, 0, [])

    @BY_EPOCH
    def test_follower_fetch_out_of_range_high(self, rule: TruncationRule) -> None:
        """testFollowerFetchOutOfRangeHigh (111; R-129, T-D3.6): cut to the leader's end."""
        stage = Stage(rule)
        stage.lead(7, (4, 0))
        stage.produce(2)
        stage.hold((4, 0), hw=4)
        stage.follow(7)
        stage.exchange()
        if stage.state().offset == 4:
            stage.exchange()
        assert stage.end == 6
        # Its log grows behind the fetcher's back: beyond the leader's, in an epoch of its own.
        stage.manager.remove_fetchers([TP])
        stage.follower.become(LEADER, 7)
        stage.follower.write((3, 9))
        initial = InitialFetchState(None, 7, stage.end)
        stage.manager.add_fetchers({TP: (LEADER, initial)})
        stage.exchange()  # what was on its way
        done = stage.settle()
        if rule is FETCH_RULE:
            kinds = [type(request) for request, _ in done[:3]]
            assert kinds == [FetchRequest, ListOffsetsRequest, FetchRequest]
        stage.assert_equal_logs()

    @BY_EPOCH
    def test_follower_fetch_out_of_range_low(self, rule: TruncationRule) -> None:
        """testFollowerFetchOutOfRangeLow (112; S-23): begin anew where the leader's log starts."""
        stage = Stage(rule)
        stage.lead(2, (31, 1))
        stage.leader.log().replica.update_high_watermark(31)
        stage.leader.partition().leader.delete_records(20)
        stage.hold((5, 1), hw=5)
        stage.follow(2)
        for _ in range(10):
            request, _ = stage.exchange()
            if isinstance(request, ListOffsetsRequest) and request.partitions[0].timestamp == -2:
                break
        partition = stage.follower.partition()
        assert (partition.log_start_offset, stage.hw, stage.end) == (20, 20, 20)
        assert stage.follower.log().epochs.entries == ()
        assert stage.state().lag == 11
        stage.settle()
        assert (partition.log_start_offset, stage.hw, stage.end) == (20, 31, 31)
        stage.assert_equal_logs()

    @BY_EPOCH
    def test_out_of_range_within_the_leaders_log(self, rule: TruncationRule) -> None:
        """R-129, last case: neither end calls for a cut, so fetch from our own end."""
        stage = Stage(rule)
        stage.lead(1, (8, 0))
        stage.hold((5, 0), hw=5)
        stage.follower.become(LEADER, 1)
        stage.manager.add_fetchers({TP: (LEADER, InitialFetchState(None, 1, -1))})
        assert stage.state().phase is Phase.RESETTING
        stage.settle()
        stage.assert_equal_logs()

    def test_retry_after_unknown_leader_epoch_in_latest_offset_fetch(self) -> None:
        """testRetryAfterUnknownLeaderEpochInLatestOffsetFetch."""
        stage = Stage()
        stage.lead(4, (5, 0))
        stage.hold((5, 0), (4, 1))
        stage.follow(4)
        stage.reply(fetched(error_code=ErrorCode.OFFSET_OUT_OF_RANGE))
        refused = ListOffsetsPartitionResponse(TP, ErrorCode.UNKNOWN_LEADER_EPOCH)
        stage.reply(ListOffsetsResponse((refused,)))
        assert stage.end == 9
        assert stage.is_idle()
        stage.runtime.advance(BACKOFF_MS)
        assert stage.fetch_request().partitions[0].fetch_offset == 9
        stage.settle()
        stage.assert_equal_logs()

    @pytest.mark.parametrize("second", [False, True])
    def test_fenced_offset_reset(self, second: bool) -> None:
        """testFencedOffsetResetAfterOutOfRange: as R-124, on both questions."""
        stage = Stage()
        stage.lead(4, (5, 0))
        stage.hold((5, 0))
        stage.follow(4)
        stage.reply(fetched(error_code=ErrorCode.OFFSET_OUT_OF_RANGE))
        if second:
            stage.exchange()
        fenced = ListOffsetsPartitionResponse(TP, ErrorCode.FENCED_LEADER_EPOCH)
        stage.reply(ListOffsetsResponse((fenced,)))
        assert list(stage.manager.failed_partitions) == [TP]
        assert stage.end == 5

    def test_corrupt_message(self) -> None:
        """testCorruptMessage (113; R-121): the same offset again, other partitions go on."""
        stage = Stage()
        for tp in (TP, OTHER):
            stage.lead(1, tp=tp)
            stage.hold(tp=tp)
            stage.produce(2, tp=tp)
        stage.follow(1, TP, OTHER)
        response = stage.leader.answer(stage.request())
        assert isinstance(response, FetchResponse)
        good, *rest = response.partitions
        damaged = bytearray(good.records)
        damaged[-1] ^= 1
        stage.reply(FetchResponse((good._replace(records=damaged), *rest)))
        assert (stage.end, stage.follower.log(OTHER).log_end_offset) == (0, 2)
        assert [p.tp for p in stage.fetch_request().partitions] == [OTHER]
        stage.runtime.advance(BACKOFF_MS)
        stage.exchange()
        asked = {part.tp: part.fetch_offset for part in stage.fetch_request().partitions}
        assert asked == {TP: 0, OTHER: 2}
        stage.settle()
        stage.assert_equal_logs((TP, OTHER))

    def test_leader_epoch_change_during_fetch_epochs_from_leader(self) -> None:
        """testLeaderEpochChangeDuring(Successful)FetchEpochsFromLeader (114; S-8, R-131)."""
        stage = Stage(KIP_320_RULE)
        stage.lead(4, (6, 0))
        stage.hold((6, 0), (4, 3), hw=6)
        stage.follow(4)
        stage.request()
        stage.follow(5)
        stage.reply(end_of_epoch(0, 2))
        assert stage.end == 10
        request = stage.request()
        assert isinstance(request, OffsetForLeaderEpochRequest)
        assert request.partitions[0].current_leader_epoch == 5

    def test_partition_failure_during_appending(self) -> None:
        """testFetcherThreadHandlingPartitionFailureDuringAppending (115; R-122): only that
        partition is set aside, until it is added again."""
        stage = Stage()
        for tp in (TP, OTHER):
            stage.lead(1, tp=tp)
            stage.hold(tp=tp)
            stage.produce(2, tp=tp)
        stage.follow(1, TP, OTHER)
        stage.request()
        stage.follower.log().core.refuse(KafkaStorageError("the disk is gone"))
        stage.settle()
        assert list(stage.manager.failed_partitions) == [TP]
        assert stage.follower.log(OTHER).log_end_offset == 2
        assert [p.tp for p in stage.fetch_request().partitions] == [OTHER]
        assert stage.manager.dead_workers == 0

    def test_partition_failure_during_truncation(self) -> None:
        """testFetcherThreadHandlingPartitionFailureDuringTruncation (R-139)."""
        stage = Stage(KIP_320_RULE)
        for tp in (TP, OTHER):
            stage.lead(4, (2, 0), tp=tp)
            stage.hold((2, 0), (2, 1), tp=tp)
        stage.follow(4, TP, OTHER)
        stage.request()
        stage.follower.log().core.refuse(KafkaStorageError("the disk is gone"))
        stage.settle()
        assert list(stage.manager.failed_partitions) == [TP]
        stage.assert_equal_logs([OTHER])

    def test_consumer_lag_removed_with_partition(self) -> None:
        """testConsumerLagRemovedWithPartition (R-161)."""
        stage = Stage()
        stage.lead(1, (5, 0))
        stage.hold((2, 0))
        stage.leader.log().replica.update_high_watermark(5)
        stage.follow(1)
        (fetcher,) = stage.manager.fetchers
        assert fetcher.lags() == {}
        stage.reply(fetched(high_watermark=5, log_start_offset=0))
        assert fetcher.lags() == {TP: 3}
        assert stage.manager.max_lag == 3
        stage.manager.remove_fetchers([TP])
        assert fetcher.lags() == {}

    @ASKING
    def test_truncate_to_high_watermark_if_leader_epoch_info_not_available(
        self, rule: TruncationRule
    ) -> None:
        """testTruncateToHighWatermarkIfLeaderEpochInfoNotAvailable (R-132)."""
        stage = Stage(rule)
        stage.lead(4)
        stage.hold((6, 0), hw=2)
        stage.follow(4)
        stage.reply(end_of_epoch(-1, -1))
        assert stage.end == 2

    def test_truncate_to_high_watermark_if_leader_epoch_request_not_supported(self) -> None:
        """testTruncateToHighWatermarkIfLeaderEpochRequestNotSupported,
        shouldNotIssueLeaderEpochRequestIfInterbrokerVersionBelow11: without a question; and no
        epoch in any request."""
        stage = Stage(HIGH_WATERMARK_RULE)
        stage.lead(4, (6, 0))
        stage.hold((6, 0), hw=2)
        stage.follow(4)
        (part,) = stage.fetch_request().partitions
        assert stage.end == part.fetch_offset == 2
        assert (part.current_leader_epoch, part.last_fetched_epoch) == (-1, -1)
        stage.settle()
        assert stage.end == 6


class TestReplicaFetcherThread:
    @BY_EPOCH
    def test_second_question_if_leader_replies_with_unknown_epoch(
        self, rule: TruncationRule
    ) -> None:
        """shouldFetchLeaderEpochSecondTimeIfLeaderRepliesWithEpochNotKnownToFollower,
        shouldTruncateIfLeaderRepliesWithEpochNotKnownToFollowerAndTruncationOnFetch (116; S-4)."""
        stage = Stage(rule)
        stage.lead(5, (10, 0), (10, 2))
        stage.produce(2)
        stage.hold((4, 0), (2, 1), (3, 3), (3, 4))
        assert stage.follower.log().epochs.entries == ((0, 0), (1, 4), (3, 6), (4, 9))
        stage.follow(5)
        kind = type(stage.request())
        assert kind is (FetchRequest if rule.on_fetch else OffsetForLeaderEpochRequest)
        stage.exchange()
        assert stage.end == 6
        assert type(stage.request()) is kind
        stage.exchange()
        assert stage.end == 4
        done = stage.settle()
        assert epochs_of(done[:1]) == ([0] if rule.on_fetch else [])
        assert isinstance(done[0][0], FetchRequest)
        stage.assert_equal_logs()

    @pytest.mark.parametrize(
        ("count", "end"), [(5, 15), (10, 20), (15, 20)], ids=["i", "ii", "iii"]
    )
    def test_end_offset_without_epoch(self, count: int, end: int) -> None:
        """shouldUseLeaderEndOffsetIfInterBrokerVersionBelow20 (R-133), and what T-C1 shows it to
        lose: the answer of version 0 leaves the follower's own records in place."""
        stage = Stage(EPOCH_RULE)
        stage.lead(3, (20, 1))
        stage.hold((10, 1), (count, 2), hw=10)
        stage.follow(3)
        stage.reply(end_of_epoch(-1, 20))
        assert stage.end == end

    @pytest.mark.parametrize(
        ("theirs", "ours", "cuts"),
        [
            pytest.param([(4, 1)], [(2, 1)], [], id="A"),
            pytest.param([(2, 1), (2, 2)], [(2, 1)], [], id="B"),
            pytest.param([(2, 1)], [(4, 1)], [2], id="C"),
            pytest.param([(2, 1)], [(2, 1), (2, 2)], [2], id="D"),
            pytest.param([(2, 1), (2, 3)], [(2, 1), (2, 2)], [2], id="E"),
            pytest.param([(2, 1)], [(1, 1), (2, 2)], [1], id="F"),
            pytest.param([(1, 1), (1, 3)], [(2, 2)], [0], id="G"),
        ],
    )
    @BY_EPOCH
    def test_seven_shapes(
        self,
        rule: TruncationRule,
        theirs: list[tuple[int, int]],
        ours: list[tuple[int, int]],
        cuts: list[int],
    ) -> None:
        """S-5."""
        stage = Stage(rule)
        stage.lead(4, *theirs)
        stage.hold(*ours)
        before = stage.end
        stage.follow(4)
        stage.exchange()
        if rule.on_fetch:
            assert [stage.end] == cuts or (not cuts and stage.end >= before)
        else:
            assert stage.end == (cuts[0] if cuts else before)
        stage.settle()
        stage.assert_equal_logs()

    @BY_EPOCH
    def test_election_in_which_nothing_is_written(self, rule: TruncationRule) -> None:
        """S-6 (KAFKA-10706, KAFKA-7415): an epoch without records is forgotten by a cut at our
        end, and the procedure goes on."""
        stage = Stage(rule)
        stage.lead(21, (27, 0), (2, 19))
        stage.hold((27, 0), (2, 19), hw=29)
        stage.follower.become(2, 20)
        assert stage.follower.log().epochs.entries[-1] == (20, 29)
        stage.follow(21)
        stage.settle()
        assert stage.follower.log().epochs.entries == ((0, 0), (19, 27))
        stage.produce(1)
        stage.exchange()
        stage.assert_equal_logs()

    @ASKING
    def test_poll_indefinitely_if_leader_returns_any_error(self, rule: TruncationRule) -> None:
        """shouldPollIndefinitelyIfLeaderReturnsAnyException (R-126, R-139)."""
        stage = Stage(rule)
        stage.lead(4, (2, 0))
        stage.hold((2, 0), (2, 1))
        stage.follow(4)
        errors = (
            ErrorCode.UNKNOWN_SERVER_ERROR,
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.UNKNOWN_TOPIC_ID,
            ErrorCode.INCONSISTENT_TOPIC_ID,
            ErrorCode.KAFKA_STORAGE_ERROR,
        )
        for error in errors:
            stage.reply(end_of_epoch(-1, -1, error))
            assert stage.is_idle()
            assert stage.end == 4
            stage.runtime.advance(BACKOFF_MS)
        stage.exchange()
        assert stage.end == 2
        for error in errors:
            stage.reply(fetched(error_code=error))
            assert stage.is_idle()
            stage.runtime.advance(BACKOFF_MS)
        stage.settle()
        stage.assert_equal_logs()

    def test_fetch_non_delayed_and_non_truncating_replicas(self) -> None:
        """shouldFetchNonDelayedAndNonTruncatingReplicas (R-114)."""
        stage = Stage(KIP_320_RULE)
        third = TopicPartition("orders", 2)
        for tp in (TP, OTHER, third):
            stage.lead(1, (2, 0), tp=tp)
            stage.hold((2, 0), tp=tp)
        stage.follow(1, TP, OTHER)
        stage.exchange()
        response = stage.leader.answer(stage.request())
        assert isinstance(response, FetchResponse)
        delayed, good = response.partitions
        refused = delayed._replace(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
        stage.reply(FetchResponse((refused, good)))
        assert [p.tp for p in stage.fetch_request().partitions] == [OTHER]
        stage.follow(1, third)
        stage.exchange()
        request = stage.request()
        assert isinstance(request, OffsetForLeaderEpochRequest)
        assert [p.tp for p in request.partitions] == [third]

    def test_batch_that_begins_before_the_log_start(self) -> None:
        """S-24.3 (KAFKA-6975, R-119): after DeleteRecords inside a batch, an empty replica takes
        the whole batch and does not turn in a circle."""
        stage = Stage()
        stage.leader.become(2, 0)
        stage.leader.write((10, 0), size=5)
        stage.leader.log().replica.update_high_watermark(10)
        stage.leader.become(LEADER, 1)
        stage.leader.partition().leader.delete_records(7)
        stage.hold()
        stage.follow(1)
        stage.settle()
        log = stage.follower.log()
        assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (7, 10, 10)
        assert contents(log, 7)[:8] == (5).to_bytes(8, "big")
        stage.assert_equal_logs()


class TestAbstractFetcherManager:
    def test_add_and_remove_partition(self) -> None:
        """testAddAndRemovePartition."""
        stage = Stage()
        stage.lead(15)
        stage.hold((10, 1))
        stage.follow(15)
        (fetcher,) = stage.manager.fetchers
        assert (fetcher.name, fetcher.partitions()) == ("ReplicaFetcherThread-0-1", [TP])
        stage.manager.remove_fetchers([TP, OTHER])
        assert fetcher.partitions() == []
        stage.manager.close_idle()
        assert stage.manager.fetchers == ()

    def test_failed_partition_count(self) -> None:
        """testMetricFailedPartitionCount: removing one forgets that it failed."""
        stage = Stage()
        stage.follower.partitions.clear()
        stage.manager.add_fetchers({TP: (LEADER, InitialFetchState(None, 1, 0))})
        assert len(stage.manager.failed_partitions) == 1
        stage.manager.remove_fetchers([TP])
        assert len(stage.manager.failed_partitions) == 0

    def test_dead_worker_count(self) -> None:
        """testDeadThreadCountMetric."""
        stage = Stage()
        stage.lead(1)
        stage.hold()
        stage.follow(1)
        assert stage.manager.dead_workers == 0
        stage.request()
        stage.manager.fetchers[0]._on_fetched = None  # type: ignore[method-assign, assignment]
        stage.exchange()
        assert stage.manager.dead_workers == 1
