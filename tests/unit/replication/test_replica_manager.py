"""Serving producers, consumers and followers (R-79 … R-109, R-145 … R-150)."""

from __future__ import annotations

import itertools
import uuid

import pytest

from checkpoints.types import TopicPartition
from logstore.log.reading.fetching import EARLIEST, LATEST
from logstore.testing import FaultyStorage
from replication.common.error_codes import ErrorCode
from replication.common.errors import (
    KafkaStorageError,
    NotLeaderOrFollowerError,
    UnknownPartitionError,
)
from replication.common.messages import (
    CONSUMER,
    EpochEndOffset,
    ListOffsetsPartition,
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
)
from replication.decisions.replica_selector import ReplicaView, select_replica
from tests.support.builders import batch, produced
from tests.support.replica_managers import BROKER, EPOCH, TOPIC_ID, TP, Host, part

OTHER = TopicPartition("orders", 1)
SIZE = len(batch())
UNKNOWN = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


class TestProduce:
    @pytest.mark.parametrize("acks", [-2, 2, 3])
    def test_acks_that_are_not_known(self, acks: int) -> None:
        """R-82: for every partition, and nothing is appended."""
        host = Host()
        host.lead()
        host.lead(OTHER)
        (response,) = host.produce({TP: batch(), OTHER: batch()}, acks=acks)
        codes = [p.error_code for p in response.partitions]
        assert codes == [ErrorCode.INVALID_REQUIRED_ACKS] * 2
        assert host.partition().log_end_offset == host.partition(OTHER).log_end_offset == 0

    @pytest.mark.parametrize("acks", [0, 1])
    def test_does_not_wait_for_followers(self, acks: int) -> None:
        """R-79, R-80."""
        host = Host()
        host.lead()
        host.append()
        answer = host.produce(acks=acks).only
        assert (answer.error_code, answer.base_offset) == (ErrorCode.NONE, 1)
        assert host.partition().high_watermark == 0

    def test_one_bad_partition_does_not_stop_the_others(self) -> None:
        host = Host()
        host.lead(replicas=(BROKER,))
        host.follow(OTHER)
        unknown = TopicPartition("nowhere", 0)
        (response,) = host.produce({OTHER: batch(), unknown: batch(), TP: batch()})
        assert [p.error_code for p in response.partitions] == [
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.NONE,
        ]

    def test_only_failures_are_answered_at_once(self) -> None:
        """R-86: acks=all waits only if something was appended."""
        host = Host()
        host.follow()
        assert host.produce().only.error_code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert host.produce().only.current_leader == (2, 0)
        assert len(host.produce({})) == 1

    def test_too_small_an_isr_appends_nothing(self) -> None:
        """S-19 a, R-83; with acks=1 it is appended, and not visible (S-19 c, R-21)."""
        host = Host(log_config={"min.insync.replicas": 2})
        partition = host.lead(isr=(BROKER,))
        assert host.produce().only.error_code is ErrorCode.NOT_ENOUGH_REPLICAS
        assert partition.log_end_offset == 0
        host.append()
        assert (partition.log_end_offset, partition.high_watermark) == (1, 0)
        assert partition.under_min_isr
        assert not host.fetch(part(0)).only.records

    def test_a_refused_batch_is_explained_and_counted(self) -> None:
        """R-166: BytesRejected."""
        host = Host(log_config={"max.message.bytes": 100})
        host.lead()
        answer = host.produce(acks=1).only
        assert answer.error_code is ErrorCode.MESSAGE_TOO_LARGE
        assert answer.error_message
        assert host.manager.stats.bytes_rejected == SIZE
        assert host.manager.stats.messages_in == 0

    def test_counts_each_batch_once(self) -> None:
        """R-166: a duplicate is neither a message nor bytes."""
        host = Host()
        host.lead()
        for _ in range(2):
            host.produce(produced(count=3), acks=1)
        assert host.manager.stats.messages_in == 3
        assert host.manager.stats.bytes_in == len(produced(count=3))


class TestFetch:
    def test_answers_at_once_without_a_wait_or_partitions(self) -> None:
        """R-92."""
        host = Host()
        host.lead()
        assert not host.fetch(part(0)).only.records
        (response,) = host.fetch(wait_ms=500)
        assert response.partitions == ()

    @pytest.mark.parametrize("replica", [CONSUMER, 2])
    def test_an_error_ends_the_wait_for_all(self, replica: int) -> None:
        """R-92."""
        host = Host()
        host.lead()
        host.lead(OTHER, epoch=3)
        (response,) = host.fetch(part(0), part(0, OTHER, epoch=1), replica=replica, wait_ms=500)
        codes = [p.error_code for p in response.partitions]
        assert codes == [ErrorCode.NONE, ErrorCode.FENCED_LEADER_EPOCH]

    def test_what_is_not_known_does_not_end_the_wait(self) -> None:
        """R-92: the deadline answers, or what comes in the partition that is known."""
        host = Host()
        host.lead()
        late = host.fetch(part(0), part(0, OTHER), wait_ms=500)
        soon = host.fetch(part(0, OTHER), part(0), wait_ms=500)
        assert (late, soon) == ([], [])
        host.runtime.advance(499)
        assert (late, soon) == ([], [])
        host.produce(produced(), acks=1)
        host.fetch(part(1), replica=2)  # it is committed
        assert [p.error_code for p in soon[0].partitions] == [UNKNOWN, ErrorCode.NONE]
        assert [len(p.records) for p in late[0].partitions] == [SIZE, 0]

    def test_a_follower_hears_at_once_of_what_is_not_known(self) -> None:
        """R-92."""
        host = Host()
        host.lead()
        (response,) = host.fetch(part(0), part(0, OTHER), replica=2, wait_ms=500)
        assert [p.error_code for p in response.partitions] == [ErrorCode.NONE, UNKNOWN]

    def test_a_deadline_answers_what_is_not_known(self) -> None:
        """R-92."""
        host = Host()
        host.lead()
        answers = host.fetch(part(0), part(0, OTHER), wait_ms=500)
        host.runtime.advance(500)
        assert [p.error_code for p in answers[0].partitions] == [ErrorCode.NONE, UNKNOWN]

    def test_what_becomes_known_is_waited_for(self) -> None:
        """R-92, R-93."""
        host = Host()
        host.lead()
        answers = host.fetch(part(0), part(0, OTHER), wait_ms=500)
        host.lead(OTHER, replicas=(BROKER,))
        assert answers == []
        host.append(tp=OTHER)
        assert [p.error_code for p in answers[0].partitions] == [ErrorCode.NONE] * 2
        assert [len(p.records) for p in answers[0].partitions] == [0, SIZE]

    def test_what_is_gone_ends_the_wait_once(self) -> None:
        """R-93, R-92: who waits hears that it is gone, and waits with the next request."""
        host = Host()
        host.lead()
        host.lead(OTHER)
        first = host.fetch(part(0), part(0, OTHER), wait_ms=500)
        host.stop(OTHER)
        assert [p.error_code for p in first[0].partitions] == [ErrorCode.NONE, UNKNOWN]
        assert host.fetch(part(0), part(0, OTHER), wait_ms=500) == []

    def test_nothing_known_is_nothing_to_wait_for(self) -> None:
        """R-92."""
        host = Host()
        (response,) = host.fetch(part(0), part(0, OTHER), wait_ms=500)
        assert [p.error_code for p in response.partitions] == [UNKNOWN] * 2

    def test_a_session_waits_for_its_resting_partitions(self) -> None:
        """R-92, R-142: what rests is known, and not read. Without it there is nothing to wait
        for."""
        host = Host()
        host.lead()
        (opened,) = host.fetch(part(0), part(0, OTHER), session_epoch=0)
        session = {"session_id": opened.session_id, "wait_ms": 500}
        told = host.fetch(session_epoch=1, **session)
        assert told == []
        host.runtime.advance(500)
        assert [(p.tp, p.error_code) for p in told[0].partitions] == [(OTHER, UNKNOWN)]
        again = host.fetch(session_epoch=2, **session)
        assert again == []  # the other one rests by now
        host.runtime.advance(500)
        assert [(p.tp, p.error_code) for p in again[0].partitions] == [(OTHER, UNKNOWN)]
        alone = host.fetch(session_epoch=3, forgotten=((TP, None),), **session)
        assert [p.error_code for p in alone[0].partitions] == [UNKNOWN]

    def test_a_diverging_epoch_ends_the_wait(self) -> None:
        """R-92, R-104; and the follower's progress is not noted (R-9)."""
        host = Host()
        host.lead(epoch=0)
        host.append(3)
        host.lead(epoch=2)
        before = host.partition().progress_of(2)
        answer = host.fetch(part(4, epoch=2, last_epoch=1), replica=2, wait_ms=500).only
        assert answer.diverging_epoch == EpochEndOffset(0, 3)
        assert host.partition().progress_of(2) == before

    def test_reads_in_order_until_the_response_is_full(self) -> None:
        """R-108: the rest is empty, and comes first next time."""
        host = Host()
        tps = [TopicPartition("orders", n) for n in range(3)]
        for tp in tps:
            host.lead(tp, replicas=(BROKER,))
            host.append(tp=tp)
        (response,) = host.fetch(*(part(0, tp) for tp in tps), max_bytes=2 * SIZE)
        assert [len(p.records) for p in response.partitions] == [SIZE, SIZE, 0]

    def test_the_first_batch_is_whole_beyond_all_limits(self) -> None:
        """R-108; the partition after it gets no exception."""
        host = Host()
        host.lead(replicas=(BROKER,))
        host.lead(OTHER, replicas=(BROKER,))
        host.append()
        host.append(tp=OTHER)
        (response,) = host.fetch(part(0, max_bytes=1), part(0, OTHER, max_bytes=1), max_bytes=10)
        assert len(response.partitions[0].records) == SIZE
        assert len(response.partitions[1].records) <= 1

    def test_a_minimum_above_the_maximum_is_cut(self) -> None:
        """What fills the answer is enough."""
        host = Host()
        host.lead(replicas=(BROKER,))
        host.append(10)
        assert host.fetch(part(0), wait_ms=500, min_bytes=10_000, max_bytes=SIZE)

    def test_consumers_see_what_is_committed(self) -> None:
        host = Host()
        host.lead()
        host.append()
        assert not host.fetch(part(0)).only.records
        assert host.fetch(part(0), replica=2).only.records
        host.replicate(1)
        assert host.fetch(part(0)).only.records

    def test_the_answer_carries_the_high_watermark_from_before(self) -> None:
        """R-106, R-107."""
        host = Host()
        host.lead()
        host.append()
        host.replicate(0)
        assert host.replicate(1).high_watermark == 0
        assert host.partition().high_watermark == 1
        assert host.replicate(1).high_watermark == 1

    def test_counts_bytes_to_consumers_and_followers(self) -> None:
        """R-166."""
        host = Host()
        host.lead(replicas=(BROKER, 2), isr=(BROKER,))
        host.append()
        host.fetch(part(0))
        host.fetch(part(0), replica=2)
        host.fetch(part(0), replica=2)
        assert host.manager.stats.bytes_out == SIZE
        assert host.manager.stats.replication_bytes_out == 2 * SIZE

    def test_a_failed_read_is_told_and_changes_nothing(self) -> None:
        """S-43: the directory stays online, the follower where it was."""
        host = Host()
        host.lead()
        host.append()
        host.replicate(0)
        host.partition().local_log().replica.keep_recent(None)
        before = host.partition().progress_of(2)
        host.storage.fail("read", "*.log", times=1)
        host.runtime.advance(10)
        answer = host.fetch(part(0), replica=2).only
        assert answer.error_code is ErrorCode.KAFKA_STORAGE_ERROR
        assert host.partition().progress_of(2) == before
        assert not host.failed_directories
        assert host.fetch(part(0), replica=2).only.records


class TestIdleFollowers:
    """The short way for partitions without news must say what the long way says."""

    @pytest.fixture
    def host(self) -> Host:
        host = Host(replica_lag_time_max_ms=1000)
        host.lead(replicas=(1, 2, 3), isr=(1, 2))
        host.append()
        for _ in range(3):  # the last two find nothing new
            host.fetch(self.wanted(1), replica=2)
        return host

    @staticmethod
    def wanted(offset: int, epoch: int = 0):
        return part(offset, epoch=epoch, last_epoch=epoch, log_start=0, topic_id=TOPIC_ID)

    def count_reads(self, host: Host) -> list[int]:
        reads = [0]
        partition = host.partition()
        fetch = partition.leader.fetch

        def counted(*args, **kwargs):
            reads[0] += 1
            return fetch(*args, **kwargs)

        partition.leader.fetch = counted  # type: ignore[method-assign]
        return reads

    @pytest.mark.parametrize(
        "event", ["append", "high watermark", "log start", "epoch", "isr", "offset", "broker"]
    )
    def test_any_change_is_seen(self, host: Host, event: str) -> None:
        reads = self.count_reads(host)
        asked, replica_epoch = self.wanted(1), EPOCH + 2
        if event == "append":
            host.append()
        elif event == "high watermark":
            host.append()
            host.fetch(self.wanted(2), replica=2)
            reads[0] = 0
            asked = self.wanted(2)
        elif event == "log start":
            host.delete_records(1)
        elif event == "epoch":
            host.lead(epoch=1, replicas=(1, 2, 3), isr=(1, 2))
        elif event == "isr":
            host.lead(partition_epoch=1, replicas=(1, 2, 3), isr=(1,))
        elif event == "offset":
            asked = self.wanted(0)
        else:
            replica_epoch += 10
        answer = host.fetch(asked, replica=2, replica_epoch=replica_epoch).only
        assert reads == [1]
        if event == "append":
            assert answer.records
        elif event == "high watermark":
            assert answer.high_watermark == 2
        elif event == "log start":
            assert answer.log_start_offset == 1
        elif event == "epoch":
            assert answer.error_code is ErrorCode.FENCED_LEADER_EPOCH
        elif event == "isr":
            assert [b for b, _ in host.isr_channel.items[0].new_isr] == [1, 2]

    def test_a_refused_incarnation_is_not_idle(self, host: Host) -> None:
        """R-8."""
        host.brokers = tuple(b._replace(broker_epoch=b.broker_epoch + 50) for b in host.brokers)
        host.tell()
        answer = host.fetch(self.wanted(1), replica=2).only
        assert answer.error_code is ErrorCode.NOT_LEADER_OR_FOLLOWER

    def test_one_outside_the_isr_may_join_at_any_time(self, host: Host) -> None:
        """R-30: each of its fetches counts."""
        reads = self.count_reads(host)
        for _ in range(3):
            host.fetch(self.wanted(1), replica=3)
        assert reads == [3]


class TestQuota:
    def test_a_throttled_replica_gets_nothing_until_it_is_in_sync(self) -> None:
        """R-145, R-146: 3 is not in the ISR; 2 is, and its bytes are counted."""
        host = Host(leader_throttled_rate=1)
        host.lead(replicas=(1, 2, 3), isr=(1, 2))
        host.manager.leader_quota.throttle(TP.topic, None)
        host.append()
        assert host.fetch(part(0), replica=3).only.records
        assert not host.fetch(part(0), replica=3).only.records
        assert host.fetch(part(0), replica=2).only.records
        assert host.manager.leader_quota.byte_rate > 0

    def test_it_waits_like_one_without_news(self) -> None:
        """R-93: it is not answered before its time, whatever is appended or rolled."""
        host = Host(leader_throttled_rate=1)
        partition = host.lead(replicas=(1, 2, 3), isr=(1, 2))
        host.manager.leader_quota.throttle(TP.topic, None)
        host.append()
        host.fetch(part(0), replica=3)
        answers = host.fetch(part(0), replica=3, wait_ms=500)
        partition.local_log().roll()
        host.append()
        assert not answers
        host.runtime.advance(500)
        assert not answers.only.records

    @pytest.mark.parametrize(
        ("value", "throttled"),
        [("*", True), ("0:1", True), ("0:2,1:1", False), ("", False), ("0:x", False)],
    )
    def test_the_topic_says_which(self, value: str, throttled: bool) -> None:
        """R-145; with the next order it may say otherwise."""
        key = "replication.throttled.replicas"
        host = Host()
        host.lead(config={f"leader.{key}": value})
        assert host.manager.leader_quota.is_throttled(TP) is throttled
        assert not host.manager.follower_quota.is_throttled(TP)
        host.follow(epoch=1, config={f"follower.{key}": value})
        assert not host.manager.leader_quota.is_throttled(TP)
        assert host.manager.follower_quota.is_throttled(TP) is throttled

    def test_others_are_not_throttled(self) -> None:
        host = Host(leader_throttled_rate=1)
        host.lead(OTHER, replicas=(1, 2, 3), isr=(1, 2))
        host.manager.leader_quota.throttle(TP.topic, [TP.partition])
        host.append(tp=OTHER)
        for _ in range(3):
            assert host.fetch(part(0, OTHER), replica=3).only.records


class TestFetchFromFollower:
    def test_a_follower_serves_up_to_its_high_watermark(self) -> None:
        """R-149: above it an empty answer, beyond the log an error."""
        host = Host()
        partition = host.follow(epoch=5)
        partition.follower.append(batch(count=3), 5)
        partition.follower.follow(2, 0, 5)
        assert host.fetch(part(0, epoch=5)).only.records
        assert not host.fetch(part(3)).only.records
        assert host.fetch(part(4)).only.error_code is ErrorCode.OFFSET_OUT_OF_RANGE
        assert host.fetch(part(0, epoch=4)).only.error_code is ErrorCode.FENCED_LEADER_EPOCH
        assert host.fetch(part(0, epoch=6)).only.error_code is ErrorCode.UNKNOWN_LEADER_EPOCH
        answer = host.fetch(part(0), replica=3).only
        assert answer.error_code is ErrorCode.NOT_LEADER_OR_FOLLOWER

    def prefer(self, host: Host, rack: str, offset: int = 0) -> int:
        return host.fetch(part(offset), wait_ms=500, rack_id=rack).only.preferred_read_replica

    @pytest.fixture
    def racks(self) -> Host:
        racks = {1: "a", 2: "b", 3: "c"}
        host = Host(racks=racks, replica_selector=RACK_AWARE)
        host.lead(replicas=(1, 2, 3), isr=(1, 2))
        host.append(2)
        host.replicate(2, replica=2)
        return host

    def test_a_consumer_is_sent_to_its_rack(self, racks: Host) -> None:
        """R-147, R-148: at once, without data."""
        assert self.prefer(racks, "b") == 2

    @pytest.mark.parametrize("rack", ["a", "c", "d", ""])
    def test_or_stays(self, racks: Host, rack: str) -> None:
        """With the leader's rack, that of a replica out of sync, an unknown one, or none."""
        assert self.prefer(racks, rack) == -1

    def test_not_to_one_that_lacks_the_offset(self, racks: Host) -> None:
        racks.append(2)
        racks.replicate(2, replica=2)
        assert racks.fetch(part(3), rack_id="b").only.preferred_read_replica == -1

    def test_followers_are_never_sent_away(self, racks: Host) -> None:
        answer = racks.fetch(part(0), replica=2, rack_id="b").only
        assert answer.preferred_read_replica == -1
        assert answer.records

    def test_without_a_selector_the_leader_serves(self) -> None:
        host = Host(racks={1: "a", 2: "b"})
        host.lead()
        host.append()
        host.replicate(1)
        assert self.prefer(host, "b") == -1

    def test_the_most_caught_up_of_a_rack(self) -> None:
        """R-148: by log end, then by the time it had everything."""
        leader = ReplicaView(1, "a", 10, 0)
        views = [ReplicaView(2, "b", 8, 0), ReplicaView(3, "b", 9, 50), ReplicaView(4, "b", 9, 20)]
        for order in itertools.permutations(views):
            assert select_replica("b", leader, order) == 4


class TestOffsets:
    def test_the_end_of_an_epoch(self) -> None:
        """R-109."""
        host = Host()
        host.lead(epoch=1)
        host.append(3)
        host.lead(epoch=4)

        def ask(epoch: int, current: int = -1, tp: TopicPartition = TP):
            parts = (OffsetForLeaderPartition(tp, epoch, current),)
            request = OffsetForLeaderEpochRequest(parts, 2)
            (found,) = host.manager.offsets_for_leader_epoch(request).partitions
            return found.error_code, found.leader_epoch, found.end_offset

        assert ask(1) == (ErrorCode.NONE, 1, 3)
        assert ask(3, current=4) == (ErrorCode.NONE, 1, 3)
        assert ask(9) == (ErrorCode.NONE, -1, -1)
        assert ask(1, current=3)[0] is ErrorCode.FENCED_LEADER_EPOCH
        assert ask(1, current=5)[0] is ErrorCode.UNKNOWN_LEADER_EPOCH
        assert ask(1, tp=OTHER)[0] is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def test_listing(self) -> None:
        """R-150: a consumer's latest is the high watermark, a follower's the log end."""
        host = Host()
        host.lead()
        host.append(3)
        host.replicate(2)

        def ask(timestamp: int, replica: int = CONSUMER):
            request = ListOffsetsRequest((ListOffsetsPartition(TP, timestamp),), replica)
            (found,) = host.manager.list_offsets(request).partitions
            return found.error_code, found.offset

        assert ask(LATEST) == (ErrorCode.NONE, 2)
        assert ask(LATEST, 2) == (ErrorCode.NONE, 3)
        assert ask(EARLIEST) == (ErrorCode.NONE, 0)

    def test_questions_about_another_topic_of_the_name(self) -> None:
        host = Host()
        host.lead()
        host.append(3)
        for topic_id, code in (
            (TOPIC_ID, ErrorCode.NONE),
            (None, ErrorCode.NONE),
            (uuid.UUID(int=99), ErrorCode.INCONSISTENT_TOPIC_ID),
        ):
            listed = ListOffsetsRequest((ListOffsetsPartition(TP, EARLIEST, topic_id=topic_id),))
            epochs = OffsetForLeaderEpochRequest(
                (OffsetForLeaderPartition(TP, 0, topic_id=topic_id),)
            )
            for response in (
                host.manager.list_offsets(listed),
                host.manager.offsets_for_leader_epoch(epochs),
            ):
                assert response.partitions[0].error_code is code

    def test_latest_is_not_available_before_the_epoch_is_settled(self) -> None:
        """R-150, S-22 (testMonotonicOffsetsAfterLeaderChange): a consumer would see it go back."""
        host = Host()
        host.lead(epoch=0)
        host.append(3)
        host.replicate(2)
        host.lead(epoch=1)

        def ask(timestamp: int, replica: int = CONSUMER):
            request = ListOffsetsRequest((ListOffsetsPartition(TP, timestamp),), replica)
            (found,) = host.manager.list_offsets(request).partitions
            return found.error_code, found.offset, found.leader_epoch

        assert host.partition().epoch_start_offset == 3
        assert ask(LATEST)[0] is ErrorCode.OFFSET_NOT_AVAILABLE
        assert ask(LATEST, 2) == (ErrorCode.NONE, 3, 1)
        assert ask(EARLIEST) == (ErrorCode.NONE, 0, 0)
        host.replicate(3)
        assert ask(LATEST) == (ErrorCode.NONE, 3, 1)


class TestLookUp:
    def test_each_reason_has_its_error(self) -> None:
        host = Host()
        with pytest.raises(UnknownPartitionError):
            host.manager.partition(TP)
        host.tell(host.change(leader=2, replicas=(2, 3)))
        with pytest.raises(NotLeaderOrFollowerError):
            host.manager.partition(TP)
        host.lead(epoch=1)
        host.manager.partition(TP).mark_offline()
        with pytest.raises(KafkaStorageError):
            host.manager.partition(TP)


def test_the_same_requests_over_a_disk_that_stays() -> None:
    """A restart of the manager finds log and high watermark again (R-15, R-29)."""
    storage = FaultyStorage()
    host = Host(storage=storage)
    host.lead()
    host.append(4)
    host.replicate(3)
    host.manager.shutdown()
    host.log_manager.close()
    again = Host(storage=storage, runtime=host.runtime)
    partition = again.lead(epoch=1)
    assert (partition.high_watermark, partition.log_end_offset) == (3, 4)
