"""What a mirrored partition does about a source whose log is shorter, other, or not valid."""

from __future__ import annotations

from typing import Any

import pytest

from replication.common.error_codes import ErrorCode
from replication.common.messages import (
    EpochEndOffset,
    FetchRequest,
    FetchResponse,
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartitionResponse,
)
from replication.mirror import SourceContradictsError
from replication.mirror.follower import USELESS_MAX
from tests.support.builders import batch
from tests.support.fetchers import TP, contents, fetched
from tests.support.mirrors import MirrorStage


def following(*runs: tuple[int, int], epoch: int, here: Any = None, **more: Any) -> MirrorStage:
    """A source in ``epoch`` with records ``(count, epoch)``, and a mirror of it with those, or
    with others."""
    stage = MirrorStage(**more)
    stage.lead(epoch, *[run for run in runs if run[1] < epoch])
    for count in [count for count, written in runs if written == epoch]:
        for offset in range(end := stage.leader.log().log_end_offset, end + count):
            records = batch(value=b"%d@%d" % (offset, epoch))
            stage.leader.partition().leader.append(records, 1)
    stage.hold(*(runs if here is None else here))
    stage.follow(epoch)
    return stage


class TestHowItAsks:
    def test_it_asks_as_a_consumer(self) -> None:
        """Who has READ rights alone is no replica (X-171)."""
        stage = following((2, 0), epoch=1)
        first, _ = stage.exchange()
        assert isinstance(first, OffsetForLeaderEpochRequest)
        assert (first.replica_id, first.partitions[0].current_leader_epoch) == (-1, 1)
        request = stage.fetch_request()
        assert (request.replica_id, request.replica_epoch) == (-1, -1)
        part = request.partitions[0]
        assert (part.fetch_offset, part.current_leader_epoch, part.last_fetched_epoch) == (2, 1, 0)

    def test_a_source_that_compares_at_no_fetch_is_asked_until_the_logs_meet(self) -> None:
        """Before Fetch 12 an answer has no diverging epoch: epochs decide before the first fetch
        of each leadership."""
        stage = following((2, 0), (2, 2), epoch=4, here=((2, 0), (2, 1), (2, 3)))
        asked = []
        while isinstance(request := stage.request(), OffsetForLeaderEpochRequest):
            asked.append(request.partitions[0].leader_epoch)
            stage.exchange()
        assert asked == [3, 1]
        assert stage.end == 2
        stage.settle()
        stage.assert_equal_logs()

    def test_it_waits_while_a_quota_is_exceeded(self) -> None:
        """The source would not read what comes before (X-176)."""
        stage = following((1, 0), epoch=1)
        stage.exchange()
        stage.reply(fetched(high_watermark=1, log_start_offset=0)._replace(throttle_time_ms=7000))
        assert stage.is_idle()
        stage.runtime.advance(6999)
        assert stage.is_idle()
        stage.runtime.advance(1)
        assert isinstance(stage.request(), FetchRequest)

    def test_a_quota_without_end_is_not_believed(self) -> None:
        stage = following((1, 0), epoch=1)
        stage.exchange()
        endless = fetched(high_watermark=1, log_start_offset=0)._replace(throttle_time_ms=2**31 - 1)
        stage.reply(endless)
        stage.runtime.advance(300_000)
        assert isinstance(stage.request(), FetchRequest)


class TestCuts:
    def test_an_unclean_election_cuts_what_stays_beside_the_log(self) -> None:
        """The source elected a leader without these records: they go, and are in the report and
        in a file (X-172)."""
        stage = following((2, 0), (1, 2), epoch=2, here=((2, 0), (3, 1)))
        gone = contents(stage.follower.log(), 2)
        stage.settle()
        stage.assert_equal_logs()
        assert stage.events() == [("cut", 2, 5)]
        assert stage.kept() == [gone]
        assert stage.side.cuts == 1
        (event,) = stage.report.events
        assert (event.details["leader_epoch"], event.details["epoch_here"]) == (2, 1)

    def test_a_second_cut_at_the_same_place_keeps_both(self) -> None:
        stage = following((1, 0), epoch=2, here=((1, 0), (1, 1)))
        stage.settle()
        stage.follower.write((1, 2))
        stage.leader.become(1, 3)
        stage.follow(3)
        stage.exchange()  # of the former leadership
        stage.runtime.advance(1000)
        stage.settle()
        assert stage.events() == [("cut", 1, 2), ("cut", 1, 2)]
        assert len(stage.kept()) == 2

    def test_nothing_is_cut_if_it_cannot_be_kept(self, monkeypatch: pytest.MonkeyPatch) -> None:
        stage = following((1, 0), epoch=2, here=((1, 0), (1, 1)))

        def refuse(source: str, target: str) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(stage.storage, "rename", refuse)
        stage.settle()
        assert stage.end == 2
        assert isinstance(stage.failure, OSError)

    def test_records_of_this_leadership_are_not_cut(self) -> None:
        """A source that lost its tail without an election says two things of one epoch."""
        stage = following((2, 1), epoch=1, here=((4, 1),))
        stage.settle()
        assert stage.end == 4
        assert isinstance(stage.failure, SourceContradictsError)
        assert stage.events() == [("contradiction", 2, 4)]
        assert stage.kept() == []

    def test_an_end_below_ours_cuts_nothing(self) -> None:
        """A high watermark may be behind for a moment, and epochs say what differs."""
        stage = following((4, 1), epoch=2)
        stage.exchange()
        stage.reply(fetched(error_code=ErrorCode.OFFSET_OUT_OF_RANGE))
        stage.reply(ListOffsetsResponse((ListOffsetsPartitionResponse(TP, offset=2),)))
        assert stage.end == 4
        assert isinstance(stage.failure, SourceContradictsError)

    def test_a_source_without_epochs_cuts_nothing(self) -> None:
        """A leader knows its own epoch, which is no earlier: so this is another history."""
        stage = following((4, 1), epoch=1)
        answer = OffsetForLeaderPartitionResponse(TP, ErrorCode.NONE, -1, -1)
        stage.reply(OffsetForLeaderEpochResponse((answer,)))
        assert stage.end == 4
        assert isinstance(stage.failure, SourceContradictsError)

    @pytest.mark.parametrize("keep", [False, True])
    def test_logs_that_differ_below_the_start_of_the_source(self, keep: bool) -> None:
        """Only its log ends prove where it starts. What was cut is beside the log."""
        stage = following((2, 0), (6, 2), epoch=3, here=((2, 0), (2, 1)), keep_deleted=keep)
        gone = contents(stage.follower.log(), 2)
        epochs = OffsetForLeaderPartitionResponse(TP, ErrorCode.NONE, 1, 4)  # it knew them then
        stage.reply(OffsetForLeaderEpochResponse((epochs,)))
        stage.request()
        stage.leader.log().replica.update_high_watermark(8)
        stage.leader.log().delete_records(5)
        differs = fetched(
            diverging_epoch=EpochEndOffset(0, 2), high_watermark=8, log_start_offset=5
        )
        stage.reply(differs)
        stage.settle()
        assert stage.events() == [("cut", 2, 4), ("lost", 2, 5)]
        assert stage.kept() == [gone]
        log = stage.follower.log()
        assert [record.offset for record in log.records()] == [*([0, 1] if keep else []), 5, 6, 7]

    @pytest.mark.parametrize("keep", [False, True])
    def test_logs_that_differ_from_the_start_of_the_source_on(self, keep: bool) -> None:
        stage = following((2, 0), (6, 2), epoch=3, here=((2, 0), (2, 1)), keep_deleted=keep)
        epochs = OffsetForLeaderPartitionResponse(TP, ErrorCode.NONE, 1, 4)
        stage.reply(OffsetForLeaderEpochResponse((epochs,)))
        stage.request()
        stage.leader.log().replica.update_high_watermark(8)
        stage.leader.log().delete_records(2)
        differs = fetched(
            diverging_epoch=EpochEndOffset(0, 2), high_watermark=8, log_start_offset=2
        )
        stage.reply(differs)
        stage.settle()
        assert stage.events() == [("cut", 2, 4), *([] if keep else [("cut", 0, 2)])]
        first = 0 if keep else 2
        assert [record.offset for record in stage.follower.log().records()] == [*range(first, 8)]

    def test_a_log_that_starts_behind_our_end_begins_again_there(self) -> None:
        """What expired before it was read is reported, and what is here of it goes as well."""
        stage = following((4, 1), epoch=2)
        stage.exchange()
        stage.reply(fetched(error_code=ErrorCode.OFFSET_OUT_OF_RANGE))
        stage.reply(ListOffsetsResponse((ListOffsetsPartitionResponse(TP, offset=9),)))
        stage.reply(ListOffsetsResponse((ListOffsetsPartitionResponse(TP, offset=6),)))
        log = stage.follower.log()
        assert (log.log_start_offset, log.log_end_offset) == (6, 6)
        assert stage.events() == [("lost", 4, 6)]

    def test_a_log_that_starts_above_its_end_is_not_followed(self) -> None:
        stage = following((4, 1), epoch=2)
        stage.exchange()
        stage.reply(fetched(error_code=ErrorCode.OFFSET_OUT_OF_RANGE))
        stage.reply(ListOffsetsResponse((ListOffsetsPartitionResponse(TP, offset=9),)))
        stage.reply(ListOffsetsResponse((ListOffsetsPartitionResponse(TP, offset=1 << 40),)))
        assert stage.end == 4
        assert isinstance(stage.failure, SourceContradictsError)


class TestWhatIsNotAppended:
    @pytest.mark.parametrize(
        ("records", "reason"),
        [
            (batch(1, epoch=1)[:-1] + b"\xff", "checksum"),
            (batch(0, epoch=1), "begins at offset 0"),
            (batch(1, epoch=9), "leader epoch 9"),
            (batch(2, epoch=1) + batch(1, epoch=1), "ascend"),
        ],
        ids=["a wrong checksum", "an offset below", "an epoch above", "offsets that fall"],
    )
    def test_a_batch_that_is_not_valid(self, records: bytes, reason: str) -> None:
        """The log stays, the report has the reason once, and the next good answer is appended."""
        stage = following((1, 1), epoch=1)
        stage.exchange()
        before = contents(stage.follower.log(), 0)
        for _ in range(3):
            stage.reply(fetched(high_watermark=5, log_start_offset=0, records=records))
            stage.runtime.advance(1000)
            if stage.failure is not None:
                break
        assert contents(stage.follower.log(), 0) == before
        (event,) = stage.report.events
        assert (event.kind.word, event.first_offset) == ("refused", 1)
        assert reason in event.reason

    def test_what_is_not_committed(self) -> None:
        """A consumer is given no record at the high watermark, so no mirror keeps one (X-178)."""
        stage = following((1, 1), epoch=1)
        stage.exchange()
        more = batch(1, epoch=1) + batch(2, epoch=1) + batch(3, epoch=1)
        stage.reply(fetched(high_watermark=2, log_start_offset=0, records=more))
        assert stage.end == 2
        assert stage.events() == []

    def test_nothing_committed_again_and_again(self) -> None:
        """It happens to an honest source; and it is asked again after a while."""
        stage = following((1, 1), epoch=1)
        stage.exchange()
        more = batch(1, epoch=1)
        for times in range(USELESS_MAX + 1):
            assert stage.events() == [], times
            if stage.is_idle():
                stage.runtime.advance(10_000)
            stage.reply(fetched(high_watermark=1, log_start_offset=0, records=more))
        assert stage.events() == [("refused", 1, 1)]
        assert stage.end == 1

    @pytest.mark.parametrize(
        "answer",
        [
            FetchResponse(()),
            fetched(high_watermark=1, log_start_offset=0),
            fetched(high_watermark=1, log_start_offset=0, records=batch(1, epoch=1)),
        ],
        ids=["no partitions", "no records", "nothing committed"],
    )
    def test_answers_that_are_empty_at_once(self, answer: FetchResponse) -> None:
        """A source that should wait for records and does not: we wait in its place (X-179)."""
        stage = following((1, 1), epoch=1)
        stage.exchange()
        times = 0
        while not stage.is_idle():
            times += 1
            assert times < 10
            stage.reply(answer)
        stage.produce()
        stage.runtime.advance(10_000)
        stage.settle()
        stage.assert_equal_logs()

    @pytest.mark.parametrize(
        ("high_watermark", "log_start", "reason"),
        [(-1, 0, "high watermark -1"), (2, 3, "starts at 3, above its high watermark 2")],
    )
    def test_watermarks_that_no_log_has(
        self, high_watermark: int, log_start: int, reason: str
    ) -> None:
        stage = following((1, 1), epoch=1)
        stage.exchange()
        stage.reply(
            fetched(
                high_watermark=high_watermark,
                log_start_offset=log_start,
                records=batch(1, epoch=1),
            )
        )
        assert stage.end == 1
        assert stage.events() == [("refused", 1, 1)]
        assert reason in stage.report.events[0].reason

    def test_a_refusal_whose_numbers_change_is_said_once(self) -> None:
        """It is asked for again each second, and each line is synced."""
        stage = following((1, 1), epoch=1)
        stage.exchange()
        for high_watermark in (-1, -2, -30):
            stage.reply(fetched(high_watermark=high_watermark, records=batch(1, epoch=1)))
            stage.runtime.advance(10_000)
        assert stage.events() == [("refused", 1, 1)]

    def test_a_batch_over_our_end_does_not_begin_the_log_again(self) -> None:
        """A broker would: its leader's log may start inside of a batch. Here one answer would have
        destroyed all that is mirrored."""
        stage = following((4, 1), epoch=1)
        stage.exchange()
        over = batch(2, 5, epoch=1)
        stage.reply(fetched(high_watermark=7, log_start_offset=7, records=over))
        assert stage.end == 4
        assert contents(stage.follower.log(), 0) == contents(stage.leader.log(), 0)
        assert stage.events() == [("refused", 4, 4)]

    def test_it_goes_on_behind_a_refused_batch(self) -> None:
        stage = following((1, 1), epoch=1)
        stage.produce(2)
        stage.exchange()
        broken = batch(1, epoch=1)[:-1] + b"\xff"
        stage.reply(fetched(high_watermark=5, log_start_offset=0, records=broken))
        stage.runtime.advance(1000)
        stage.settle()
        stage.assert_equal_logs()
        assert stage.events() == [("refused", 1, 1)]


class TestWatermarks:
    def test_the_high_watermark_does_not_fall(self) -> None:
        """All records here were committed; that of a new leader may be behind."""
        stage = following((4, 1), epoch=1)
        stage.settle()
        assert stage.hw == 4
        stage.reply(fetched(high_watermark=1, log_start_offset=0))
        assert stage.hw == 4

    def test_a_log_start_above_the_end_is_not_taken_over(self) -> None:
        stage = following((4, 1), epoch=1)
        stage.exchange()
        stage.reply(fetched(high_watermark=4, log_start_offset=1 << 40))
        assert stage.end == 4
        assert stage.failure is None

    def test_deleted_records_stay_if_they_are_to_be_kept(self) -> None:
        stage = following((4, 1), epoch=1, keep_deleted=True)
        stage.exchange()
        stage.reply(fetched(high_watermark=4, log_start_offset=3))
        assert stage.follower.log().log_start_offset == 0
