"""What waits, what wakes it, and that everybody is answered once (R-84 … R-96)."""

from __future__ import annotations

import itertools

import pytest

from checkpoints.types import TopicPartition
from logstore.segments.producer_state import AppendOrigin
from replication.common.error_codes import ErrorCode
from replication.common.messages import (
    DeleteRecordsResponse,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
)
from tests.support.builders import batch, marker, produced
from tests.support.replica_managers import BROKER, EPOCH, TP, Answers, Host, part

OTHER = TopicPartition("orders", 1)


def codes(answers: Answers) -> list[ErrorCode]:
    (response,) = answers
    return [each.error_code for each in response.partitions]


class TestProduce:
    def test_waits_for_the_high_watermark(self) -> None:
        """R-81: the fetch that proves replication commits it; the one that took it does not."""
        host = Host()
        host.lead()
        answers = host.produce()
        host.replicate(0)
        assert not answers
        host.replicate(1)
        assert codes(answers) == [ErrorCode.NONE]
        assert answers.only.base_offset == 0

    def test_alone_in_the_isr_it_is_committed_at_once(self) -> None:
        host = Host()
        host.lead(isr=(BROKER,), replicas=(BROKER,))
        assert codes(host.produce()) == [ErrorCode.NONE]

    @pytest.mark.parametrize("longest", [2**31, 2**63 - 1, 2**63, 2**70])
    def test_a_wait_longer_than_the_protocol_knows(self, longest: int) -> None:
        host = Host()
        host.lead()
        host.runtime.advance(5)
        produced, fetched = host.produce(timeout_ms=longest), host.fetch(part(0), wait_ms=longest)
        host.runtime.advance(10**6)
        assert not produced
        assert not fetched
        host.replicate(1)
        assert codes(produced) == codes(fetched) == [ErrorCode.NONE]

    def test_times_out_with_the_records_in_the_log(self) -> None:
        """R-85: each partition that is not committed counts as one expiration."""
        host = Host()
        host.lead()
        host.lead(OTHER, replicas=(BROKER,))
        answers = host.produce({TP: batch(), OTHER: batch()}, timeout_ms=300)
        host.runtime.advance(299)
        assert not answers
        host.runtime.advance(1)
        assert codes(answers) == [ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NONE]
        assert host.partition().log_end_offset == 1
        assert host.manager.stats.produce_expirations == 1
        host.replicate(1)  # too late for the answer, not for the record
        assert host.partition().high_watermark == 1

    def test_waits_for_all_partitions(self) -> None:
        host = Host()
        host.lead()
        host.lead(OTHER)
        answers = host.produce({TP: batch(), OTHER: batch()})
        host.replicate(1)
        assert not answers
        host.replicate(1, tp=OTHER)
        assert codes(answers) == [ErrorCode.NONE, ErrorCode.NONE]

    def test_a_duplicate_waits_for_the_original(self) -> None:
        """R-86, F-183."""
        host = Host()
        host.lead()
        first = host.produce(produced(sequence=0))
        again = host.produce(produced(sequence=0))
        assert not first
        assert not again
        assert host.partition().log_end_offset == 1
        host.replicate(1)
        assert [first.only.base_offset, again.only.base_offset] == [0, 0]

    def test_an_isr_that_shrank_below_the_minimum_after_the_append(self) -> None:
        """S-19 b, R-84: two must have it, only one is left; the record stays."""
        host = Host(log_config={"min.insync.replicas": 2}, replica_lag_time_max_ms=1000)
        host.lead(replicas=(1, 2, 3), isr=(1, 2, 3))
        host.fetch(part(0), replica=2)
        host.fetch(part(0), replica=3)
        answers = host.produce(timeout_ms=60_000)
        host.runtime.advance(2000)  # neither of them fetches any more
        host.isr_channel.commit()
        assert host.partition().isr.committed == (1,)
        assert not answers  # below the minimum the high watermark stands still
        host.runtime.advance(60_000)
        assert codes(answers) == [ErrorCode.REQUEST_TIMED_OUT]

    def test_committed_and_then_too_few(self) -> None:
        """R-84: the high watermark passed it, yet fewer than the minimum are in the ISR now."""
        host = Host(log_config={"min.insync.replicas": 2})
        partition = host.lead(replicas=(1, 2, 3), isr=(1, 2))
        answers = host.produce()
        log = partition.local_log()
        host.order(host.change(replicas=(1, 2, 3), isr=(1,), partition_epoch=1))
        log.replica.maybe_increment_high_watermark(1)
        host.manager.waiting.on_high_watermark(TP)
        assert codes(answers) == [ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND]

    def test_an_isr_change_commits_it_without_another_fetch(self) -> None:
        """S-15, R-24: the completion handler moves the high watermark and answers."""
        host = Host(replica_lag_time_max_ms=1000)
        host.lead(replicas=(1, 2, 3), isr=(1, 2, 3))
        answers = host.produce(timeout_ms=60_000)
        for _ in range(4):  # 2 keeps up, 3 is silent
            host.runtime.advance(400)
            host.replicate(1, replica=2)
        assert [broker for broker, _ in host.isr_channel.items[0].new_isr] == [1, 2]
        assert not answers  # a pending shrink keeps the old ISR
        host.isr_channel.commit()
        assert codes(answers) == [ErrorCode.NONE]

    @pytest.mark.parametrize("end", ["gone", "shutting down", "another epoch", "silent"])
    def test_a_replica_outside_the_isr_is_awaited_no_more(self, end: str) -> None:
        """R-22, R-24: nobody fetches or appends afterwards, so nothing else would commit it. The
        order with the smaller ISR comes before the metadata, and does not say who is gone."""
        host = Host(replica_lag_time_max_ms=1000)
        host.lead(replicas=(1, 2, 3), isr=(1, 2, 3))
        host.fetch(part(0), replica=2)
        host.fetch(part(0), replica=3)
        answers = host.produce(timeout_ms=60_000)
        host.replicate(1, replica=2)
        host.order(host.change(replicas=(1, 2, 3), isr=(1, 2), partition_epoch=1))
        assert not answers  # 3 has just been caught up, and may be about to join
        if end == "silent":
            host.runtime.advance(1500)
            assert host.partition().isr.committed == (1, 2)
        else:
            *others, third = host.brokers
            if end == "gone":
                host.brokers = (*others,)
            elif end == "another epoch":
                host.brokers = (*others, third._replace(broker_epoch=third.broker_epoch + 100))
            host.tell(shutting_down=(3,) if end == "shutting down" else ())
        assert codes(answers) == [ErrorCode.NONE]

    @pytest.mark.parametrize(
        ("end", "code"),
        [
            ("follow", ErrorCode.NOT_LEADER_OR_FOLLOWER),
            ("delete", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
            ("fail", ErrorCode.KAFKA_STORAGE_ERROR),
        ],
    )
    def test_ends_with_the_leadership(self, end: str, code: ErrorCode) -> None:
        """R-85, R-155: at once, not at the deadline. testDeltaToFollowerCompletesProduce (129)."""
        host = Host(directories=("/a", "/b"))
        partition = host.lead()
        answers = host.produce(timeout_ms=60_000)
        if end == "follow":
            host.order(host.change(leader=2, epoch=1))
        elif end == "delete":
            host.stop()
        else:
            host.storage.fail("write", f"{partition.local_log().directory}/*")
            host.produce(acks=1)
            host.report_failures()
        assert codes(answers) == [code]

    def test_names_the_new_leader(self) -> None:
        """KIP-951."""
        host = Host()
        host.lead()
        answers = host.produce()
        host.order(host.change(leader=2, epoch=1))
        assert answers.only.current_leader == (2, 1)

    def test_a_broken_answer_harms_nobody_else(self) -> None:
        """One that answers late must not fail the request that caused it."""
        host = Host()
        host.lead()

        def broken(response: ProduceResponse) -> None:
            raise RuntimeError("the client is gone")

        request = ProduceRequest(-1, 1000, (ProducePartition(TP, batch()),))
        host.manager.writes.produce(request, broken)
        second = host.produce()
        host.replicate(2)
        assert codes(second) == [ErrorCode.NONE]


class TestFetch:
    def test_a_follower_waits_for_the_log_end(self) -> None:
        host = Host()
        host.lead()
        answers = host.fetch(part(0), replica=2, wait_ms=500)
        assert not answers
        host.append()
        assert answers.only.records

    def test_a_high_watermark_alone_does_not_wake_a_follower(self) -> None:
        """R-95: 3 learns of it with its next answer, at the latest after the wait."""
        host = Host()
        host.lead(replicas=(1, 2, 3), isr=(1, 2, 3))
        host.append()
        host.replicate(1, replica=3)
        answers = host.fetch(part(1), replica=3, wait_ms=500)
        host.replicate(1, replica=2)
        assert host.partition().high_watermark == 1
        assert not answers
        host.runtime.advance(500)
        assert (answers.only.high_watermark, len(answers.only.records)) == (1, 0)
        assert host.manager.stats.follower_fetch_expirations == 1

    def test_a_consumer_waits_for_the_high_watermark(self) -> None:
        """R-95: not for the append; the bytes come with the high watermark that covers them."""
        host = Host()
        host.lead()
        answers = host.fetch(part(0), wait_ms=500)
        host.append()
        assert not answers
        host.replicate(1)
        assert answers.only.records
        assert answers.only.high_watermark == 1

    def test_a_committed_reader_waits_for_the_end_of_the_transaction(self) -> None:
        """R-93, R-95: the limit is the last stable offset."""
        host = Host()
        host.lead(replicas=(BROKER,))
        host.produce(produced(transactional=True))
        answers = host.fetch(part(0), wait_ms=500, committed=True)
        assert not answers
        host.produce(marker(commit=False), origin=AppendOrigin.COORDINATOR)
        assert answers.only.last_stable_offset == 2
        assert [txn.first_offset for txn in answers.only.aborted_transactions] == [0]

    @pytest.mark.parametrize("leads", [True, False])
    def test_a_committed_reader_of_a_deleted_transaction_does_not_wait(self, leads: bool) -> None:
        host = Host()
        partition = host.lead(replicas=(BROKER, 2))
        host.produce(produced(transactional=True), acks=1)
        host.replicate(1)
        if not leads:
            host.follow(epoch=1, replicas=(BROKER, 2))
        answers = host.fetch(part(0), wait_ms=500, committed=True)
        assert not answers
        if leads:
            host.delete_records(1)
        elif partition.follower.follow(1, 1, 1):
            host.manager.waiting.on_high_watermark(TP)
        assert codes(answers) == [ErrorCode.OFFSET_OUT_OF_RANGE]

    def test_gathers_the_minimum_over_all_partitions(self) -> None:
        """R-93."""
        host = Host()
        host.lead(replicas=(BROKER,))
        host.lead(OTHER, replicas=(BROKER,))
        size = len(batch())
        answers = host.fetch(part(0), part(0, OTHER), wait_ms=500, min_bytes=2 * size)
        host.append()
        assert not answers
        host.append(tp=OTHER)
        (response,) = answers
        assert [len(p.records) for p in response.partitions] == [size, size]

    def test_answers_at_the_deadline_with_what_there_is(self) -> None:
        host = Host()
        host.lead(replicas=(BROKER,))
        host.append()
        answers = host.fetch(part(0), wait_ms=500, min_bytes=10_000)
        host.runtime.advance(499)
        assert not answers
        host.runtime.advance(1)
        assert len(answers.only.records) == len(batch())
        assert host.manager.stats.consumer_fetch_expirations == 1

    def test_does_not_note_the_follower_again(self) -> None:
        """R-9, R-94: when it is answered the follower counts as at its first read."""
        host = Host()
        host.lead()
        answers = host.fetch(part(0), replica=2, wait_ms=500)
        at_first = host.partition().progress_of(2)
        host.runtime.advance(200)
        host.append()
        assert answers
        assert host.partition().progress_of(2) == at_first

    @pytest.mark.parametrize(
        ("leader", "code"),
        [(BROKER, ErrorCode.FENCED_LEADER_EPOCH), (2, ErrorCode.NOT_LEADER_OR_FOLLOWER)],
    )
    def test_ends_with_the_leader_epoch(self, leader: int, code: ErrorCode) -> None:
        """R-93: also when this broker leads on. testDeltaToFollowerCompletesFetch."""
        host = Host()
        host.lead(replicas=(1, 2, 3))
        answers = host.fetch(part(0, epoch=0), replica=3, wait_ms=500)
        host.order(host.change(leader=leader, epoch=1, replicas=(1, 2, 3)))
        assert codes(answers) == [code]
        assert answers.only.current_leader == (leader, 1)

    @pytest.mark.parametrize("replica", [-1, 2])
    def test_ends_when_the_partition_goes(self, replica: int) -> None:
        """R-93, R-155."""
        host = Host()
        host.lead()
        answers = host.fetch(part(0), replica=replica, wait_ms=500)
        host.stop()
        assert codes(answers) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]

    def test_a_whole_segment_is_reason_enough(self) -> None:
        """R-93: fetch offset on an older segment than the limit."""
        host = Host()
        partition = host.lead(replicas=(BROKER,))
        host.append()
        answers = host.fetch(part(0), wait_ms=500, min_bytes=10_000)
        partition.local_log().roll()
        host.append()
        assert answers.only.records

    def test_a_consumer_of_a_follower_is_woken_by_its_high_watermark(self) -> None:
        """R-95, R-149."""
        host = Host()
        partition = host.follow()
        partition.follower.append(batch(), 0)
        answers = host.fetch(part(0), wait_ms=500)
        assert not answers
        assert partition.follower.follow(1, 0, 0)
        host.manager._on_high_watermarks([TP])
        assert answers.only.records


class TestDeleteRecords:
    def test_waits_for_the_followers(self) -> None:
        """R-96."""
        host = Host()
        host.lead()
        host.append(5)
        host.replicate(5)
        answers = host.delete_records(3)
        assert not answers
        host.replicate(5, log_start=2)
        assert not answers
        host.replicate(5, log_start=3)
        assert (answers.only.error_code, answers.only.low_watermark) == (ErrorCode.NONE, 3)

    def test_a_dead_replica_is_not_waited_for(self) -> None:
        host = Host()
        host.lead()
        host.append(5)
        host.replicate(5)
        host.brokers = host.brokers[:1]
        host.tell()
        assert host.delete_records(3).only.low_watermark == 3

    def test_ends_when_the_replica_that_it_waits_for_dies(self) -> None:
        host = Host()
        host.lead()
        host.append(5)
        host.replicate(5)
        answers = host.delete_records(3)
        assert not answers
        host.brokers = host.brokers[:1]
        host.tell()
        assert (answers.only.error_code, answers.only.low_watermark) == (ErrorCode.NONE, 3)

    def test_times_out_with_the_low_watermark_so_far(self) -> None:
        host = Host()
        host.lead()
        host.append(5)
        host.replicate(5)
        answers = host.delete_records(-1, timeout_ms=400)
        host.runtime.advance(400)
        assert answers.only.error_code is ErrorCode.REQUEST_TIMED_OUT
        assert answers.only.low_watermark == 0
        assert host.manager.stats.delete_records_expirations == 1

    def test_ends_with_the_leadership(self) -> None:
        """R-85, R-96."""
        host = Host()
        host.lead()
        host.append(5)
        host.replicate(5)
        answers = host.delete_records(3)
        host.order(host.change(leader=2, epoch=1))
        (response,) = answers
        assert isinstance(response, DeleteRecordsResponse)
        assert codes(answers) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]

    def test_beyond_the_high_watermark(self) -> None:
        host = Host()
        host.lead()
        host.append(5)
        assert codes(host.delete_records(3)) == [ErrorCode.OFFSET_OUT_OF_RANGE]


class TestDeadlines:
    def test_nothing_is_armed_while_nothing_waits(self) -> None:
        """An idle broker sleeps: the only timers are those of its periodic tasks."""
        host = Host()
        host.lead()
        host.runtime.advance(0)
        before = len(host.runtime._timers)
        assert host.fetch(part(0), replica=2)
        assert len(host.runtime._timers) == before
        answers = host.fetch(part(0), replica=2, wait_ms=500)
        assert len(host.runtime._timers) == before + 1
        assert host.runtime.next_timer_ms() is not None
        host.runtime.advance(500)
        assert answers
        host.runtime.advance(1000)
        assert len(host.runtime._timers) <= before + 1  # one may be left for an empty bucket

    @pytest.mark.parametrize("order", list(itertools.permutations([50, 700, 9000])))
    def test_an_earlier_deadline_comes_first(self, order: tuple[int, ...]) -> None:
        host = Host()
        host.lead()
        answers = {wait: host.fetch(part(0), wait_ms=wait) for wait in order}
        for wait in sorted(order):
            host.runtime.advance(wait - 1 - (host.runtime.now_ms() - 1000))
            assert not answers[wait]
            host.runtime.advance(1)
            assert answers[wait]

    def test_shutdown_answers_everybody(self) -> None:
        host = Host()
        host.lead()
        produce, fetch = host.produce(timeout_ms=60_000), host.fetch(part(0), wait_ms=60_000)
        host.manager.shutdown()
        assert codes(produce) == [ErrorCode.REQUEST_TIMED_OUT]
        assert codes(fetch) == [ErrorCode.NONE]
        assert host.fetch(part(0), wait_ms=60_000)  # who comes later does not wait

    def test_a_crash_answers_nobody(self) -> None:
        host = Host()
        host.lead()
        answers = host.produce(timeout_ms=100)
        host.manager.abandon()
        host.runtime.advance(1000)
        assert not answers


def test_the_epoch_of_a_follower_is_its_broker_epoch() -> None:
    """R-8: what an earlier incarnation sends changes nothing and is refused."""
    host = Host()
    host.lead()
    host.replicate(0)
    before = host.partition().progress_of(2)
    answers = host.fetch(part(0), replica=2, replica_epoch=EPOCH + 1)
    assert codes(answers) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    assert host.partition().progress_of(2) == before
