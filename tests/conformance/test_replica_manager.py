"""Kafka's ReplicaManagerTest, under its names. C 123 to C 129 of the replica manager are here; the
others of that range are in PartitionTest."""

from __future__ import annotations

import uuid
from collections.abc import Iterable

import pytest

from checkpoints.types import TopicPartition
from logstore.producer_state import AppendOrigin
from logstore.testing import FaultyStorage
from replication.error_codes import ErrorCode
from replication.errors import KafkaStorageError
from replication.messages import FetchPartitionResponse, FetchRequest, FetchResponse
from tests.builders import batch, marker, produced
from tests.replica_manager_support import BROKER, TOPIC_ID, TP, Answers, Host, part

OTHER = TopicPartition("orders", 1)
RACKS = {1: "a", 2: "b"}
RACK_AWARE = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


def code(answers: Answers) -> ErrorCode:
    found = answers.only.error_code
    assert isinstance(found, ErrorCode)
    return found


def stopped(host: Host, **stop: object) -> ErrorCode:
    (result,) = host.stop(**stop).partitions  # type: ignore[arg-type]
    return result[1]


class TestReplicaManager:
    def test_illegal_required_acks(self) -> None:
        """testIllegalRequiredAcks."""
        host = Host()
        host.lead()
        assert code(host.produce(acks=3)) is ErrorCode.INVALID_REQUIRED_ACKS

    def test_clear_purgatory_on_becoming_follower(self) -> None:
        """testClearPurgatoryOnBecomingFollower."""
        host = Host()
        host.lead()
        produce = host.produce()
        fetch = host.fetch(part(0, epoch=0), wait_ms=1000, min_bytes=100_000)
        assert not produce
        assert not fetch
        host.follow(epoch=1)
        assert code(produce) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert code(fetch) is ErrorCode.FENCED_LEADER_EPOCH

    @pytest.mark.parametrize("loop_epoch_change", [0, 1])
    def test_fenced_error_caused_by_become_leader(self, loop_epoch_change: int) -> None:
        """testFencedErrorCausedByBecomeLeader, C 127: this broker is promoted while the answer to
        its fetch, FENCED, is on the way: the partition is not marked as failed."""
        host = Host()
        host.follow()
        host.runtime.run_until_idle()
        sent = host.transport.take()
        assert isinstance(sent.request, FetchRequest)
        for epoch in range(1, loop_epoch_change + 1):
            host.follow(epoch=epoch)
        host.lead(epoch=loop_epoch_change + 1)
        fenced = FetchPartitionResponse(TP, ErrorCode.FENCED_LEADER_EPOCH)
        sent.reply(FetchResponse((fenced,)))
        host.runtime.run_until_idle()
        assert TP not in host.manager.fetchers.failed_partitions
        assert not host.manager.fetchers.fetchers
        assert host.produce(acks=1).only.error_code is ErrorCode.NONE

    def test_receive_out_of_order_sequence_exception_with_log_start_offset(self) -> None:
        """testReceiveOutOfOrderSequenceExceptionWithLogStartOffset."""
        host = Host()
        host.lead()
        for sequence in range(3):
            host.produce(produced(sequence=sequence), acks=1)
        answers = host.produce(produced(sequence=20), acks=1)
        assert code(answers) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    def test_producer_id_count_metrics(self) -> None:
        """testProducerIdCountMetrics: each partition counts its own."""
        host = Host()
        for tp in (TP, OTHER):
            host.lead(tp)
            for producer_id in (1, 1, 2):
                host.produce({tp: produced(producer_id)}, acks=1)
        counts = [
            len(host.partition(tp).local_log().producers.producers) for tp in (TP, OTHER)
        ]  # fmt: skip
        assert counts == [2, 2]

    def test_read_committed_fetch_limited_at_lso(self) -> None:
        """testReadCommittedFetchLimitedAtLSO."""
        host = Host()
        host.lead()
        for sequence in range(3):
            host.produce(produced(sequence=sequence, transactional=True), acks=1)
        host.replicate(3)
        answer = host.fetch(part(0), committed=True).only
        assert (answer.last_stable_offset, len(answer.records)) == (0, 0)
        waiting = host.fetch(part(0), committed=True, wait_ms=1000, min_bytes=1000)
        assert not waiting
        host.runtime.advance(1001)
        assert (waiting.only.last_stable_offset, len(waiting.only.records)) == (0, 0)
        host.produce(marker(commit=True), acks=1, origin=AppendOrigin.COORDINATOR)
        # The marker is not replicated: nothing of the transaction is visible.
        assert not host.fetch(part(0), committed=True).only.records
        host.replicate(4)
        answer = host.fetch(part(0), committed=True).only
        assert answer.last_stable_offset == 4
        assert answer.aborted_transactions == ()
        assert len(answer.records) == host.partition().local_log().size

    def test_delayed_fetch_includes_aborted_transactions(self) -> None:
        """testDelayedFetchIncludesAbortedTransactions."""
        host = Host()
        host.lead()
        for sequence in range(3):
            host.produce(produced(sequence=sequence, transactional=True), acks=1)
        host.produce(marker(commit=False), acks=1, origin=AppendOrigin.COORDINATOR)
        host.replicate(4)
        waiting = host.fetch(part(0), committed=True, wait_ms=1000, min_bytes=10_000)
        assert not waiting
        host.runtime.advance(1001)
        answer = waiting.only
        assert answer.last_stable_offset == 4
        (aborted,) = answer.aborted_transactions
        assert (aborted.producer_id, aborted.first_offset) == (1, 0)

    def test_fetch_beyond_high_watermark(self) -> None:
        """testFetchBeyondHighWatermark: a consumer there gets nothing, and no error."""
        host = Host()
        host.lead(replicas=(1, 2, 3), isr=(1, 2, 3))
        host.append(2)
        follower = host.fetch(part(1), replica=2).only
        assert (follower.high_watermark, len(follower.records)) == (0, len(batch(count=2)))
        consumer = host.fetch(part(1)).only
        assert (consumer.error_code, len(consumer.records)) == (ErrorCode.NONE, 0)

    def test_follower_state_not_updated_if_log_read_fails(self) -> None:
        """testFollowerStateNotUpdatedIfLogReadFails, C 128, S-43."""
        host = Host()
        host.lead()
        host.append(1)
        host.replicate(0)
        before = host.partition().follower(2)
        host.append(1)
        host.storage.fail("read", "*.log")
        host.runtime.advance(5)
        failed = host.fetch(part(1), replica=2)
        assert code(failed) is ErrorCode.KAFKA_STORAGE_ERROR
        assert host.partition().follower(2) == before
        assert host.partition().high_watermark == 0

    def test_fetch_messages_with_inconsistent_topic_id(self) -> None:
        """testFetchMessagesWithInconsistentTopicId; without an id the name is enough."""
        host = Host()
        host.lead()
        assert code(host.fetch(part(0, topic_id=TOPIC_ID))) is ErrorCode.NONE
        other = host.fetch(part(0, topic_id=uuid.UUID(int=99)), wait_ms=500)
        assert code(other) is ErrorCode.INCONSISTENT_TOPIC_ID
        assert code(host.fetch(part(0))) is ErrorCode.NONE

    def test_fetch_messages_when_not_follower_for_one_partition(self) -> None:
        """testFetchMessagesWhenNotFollowerForOnePartition: at once, with an error for that one."""
        host = Host()
        host.lead(replicas=(1, 2))
        host.lead(OTHER, replicas=(1, 3))
        for tp in (TP, OTHER):
            host.append(tp=tp)
        answers = host.fetch(part(0), part(0, OTHER), replica=2, wait_ms=500)
        (response,) = answers
        first, second = response.partitions
        assert (first.error_code, bool(first.records)) == (ErrorCode.NONE, True)
        assert second.error_code is ErrorCode.NOT_LEADER_OR_FOLLOWER

    @pytest.mark.parametrize("rule", ["fetch", "epoch", "hw"])
    def test_become_follower_when_leader_is_unchanged_but_missed_leader_update(
        self, rule: str
    ) -> None:
        """testBecomeFollowerWhenLeaderIsUnchangedButMissedLeaderUpdate: a later epoch of the same
        leader restarts the fetcher: another one may have led between."""
        host = Host(truncation_rule=rule)
        host.follow(epoch=1)
        (fetcher,) = host.manager.fetchers.fetchers
        (before,) = fetcher._states
        host.follow(epoch=3)
        (after,) = fetcher._states
        assert after is not before
        assert after.leader_epoch == 3

    def test_preferred_replica_as_follower(self) -> None:
        """testPreferredReplicaAsFollower: a follower sends nobody away."""
        host = Host(racks=RACKS, replica_selector=RACK_AWARE)
        host.follow()
        assert host.fetch(part(0), rack_id="b").only.preferred_read_replica == -1

    def test_preferred_replica_as_leader(self) -> None:
        """testPreferredReplicaAsLeader: the leader serves its own rack."""
        host = Host(racks=RACKS, replica_selector=RACK_AWARE)
        host.lead()
        assert host.fetch(part(0), rack_id="a").only.preferred_read_replica == -1

    def test_preferred_replica_as_leader_when_same_rack_follower_is_out_of_isr(self) -> None:
        """testPreferredReplicaAsLeaderWhenSameRackFollowerIsOutOfIsr."""
        host = Host(racks=RACKS, replica_selector=RACK_AWARE)
        host.lead(isr=(BROKER,))
        host.append()
        host.fetch(part(0), replica=2)
        assert host.fetch(part(0), rack_id="b").only.preferred_read_replica == -1

    def test_fetch_should_return_immediately_when_preferred_read_replica_is_defined(self) -> None:
        """testFetchShouldReturnImmediatelyWhenPreferredReadReplicaIsDefined."""
        host = Host(racks=RACKS, replica_selector=RACK_AWARE)
        host.lead()
        host.append()
        host.replicate(1)
        answer = host.fetch(part(0), wait_ms=1000, min_bytes=100_000, rack_id="b").only
        assert (answer.preferred_read_replica, len(answer.records)) == (2, 0)

    def test_follower_fetch_with_default_selector_no_forced_hw_propagation(self) -> None:
        """testFollowerFetchWithDefaultSelectorNoForcedHwPropagation: R-95."""
        host = Host()
        host.lead()
        host.append()
        host.replicate(0)
        waiting = host.fetch(part(1), replica=2, wait_ms=1000, min_bytes=1000)
        assert host.partition().high_watermark == 1
        assert not waiting
        host.runtime.advance(1000)
        assert waiting.only.high_watermark == 1

    def test_become_follower_while_new_client_fetch_in_purgatory(self) -> None:
        """testBecomeFollowerWhileNewClientFetchInPurgatory: its epoch is fenced."""
        host = Host()
        host.lead()
        waiting = host.fetch(part(0, epoch=0), wait_ms=1000, min_bytes=10)
        assert not waiting
        host.follow(epoch=1)
        assert code(waiting) is ErrorCode.FENCED_LEADER_EPOCH

    def test_clear_fetch_purgatory_on_stop_replica(self) -> None:
        """testClearFetchPurgatoryOnStopReplica: the topic is known, the replica is gone."""
        host = Host()
        host.tell(host.change())
        host.lead()
        waiting = host.fetch(part(0, epoch=0), wait_ms=1000, min_bytes=10)
        assert not waiting
        assert stopped(host, epoch=1) is ErrorCode.NONE
        assert code(waiting) is ErrorCode.NOT_LEADER_OR_FOLLOWER

    def test_clear_produce_purgatory_on_stop_replica(self) -> None:
        """testClearProducePurgatoryOnStopReplica."""
        host = Host()
        host.tell(host.change())
        host.lead()
        waiting = host.produce()
        assert not waiting
        assert stopped(host, epoch=1) is ErrorCode.NONE
        assert code(waiting) is ErrorCode.NOT_LEADER_OR_FOLLOWER

    def test_stop_replica_with_stale_controller_epoch(self) -> None:
        """testStopReplicaWithStaleControllerEpoch."""
        host = Host()
        host.controller_epoch = 2
        host.lead()
        host.controller_epoch = 1
        assert host.stop().error_code is ErrorCode.STALE_CONTROLLER_EPOCH
        assert host.partition().is_leader

    def test_stop_replica_with_offline_partition(self) -> None:
        """testStopReplicaWithOfflinePartition."""
        host = Host()
        host.lead().mark_offline()
        assert stopped(host) is ErrorCode.KAFKA_STORAGE_ERROR

    @pytest.mark.parametrize("delete", [False, True])
    def test_stop_replica_with_inexistent_partition(self, delete: bool) -> None:
        """testStopReplicaWithInexistentPartition, …AndPartitionsDelete: the log goes if told so."""
        host = Host()
        host.log_manager.get_or_create(*TP, topic_id=TOPIC_ID)
        assert stopped(host, delete=delete) is ErrorCode.NONE
        assert (TP in host.log_manager.logs) is not delete

    def test_stop_replica_with_inexistent_partition_and_io_exception(self) -> None:
        """testStopReplicaWithInexistentPartitionAndPartitionsDeleteAndIOException."""
        host = Host()
        host.log_manager.get_or_create(*TP, topic_id=TOPIC_ID)
        host.storage.fail("rename")
        assert stopped(host) is ErrorCode.KAFKA_STORAGE_ERROR

    @pytest.mark.parametrize("delete", [False, True])
    @pytest.mark.parametrize(
        ("epoch", "expected"),
        [
            pytest.param(2, ErrorCode.NONE, id="NewerLeaderEpoch"),
            pytest.param(0, ErrorCode.FENCED_LEADER_EPOCH, id="OlderLeaderEpoch"),
            pytest.param(1, ErrorCode.NONE, id="EqualLeaderEpoch"),
            pytest.param(-2, ErrorCode.NONE, id="DeleteSentinel"),
            pytest.param(-1, ErrorCode.NONE, id="LeaderEpochNotProvided"),
        ],
    )
    def test_stop_replica_with_existing_partition(
        self, epoch: int, expected: ErrorCode, delete: bool
    ) -> None:
        """testStopReplicaWith(DeletePartitionAnd)ExistingPartitionAnd…: a waiting fetch ends where
        the partition goes."""
        host = Host()
        host.lead(epoch=1)
        waiting = host.fetch(part(0, epoch=1), wait_ms=1000)
        assert stopped(host, epoch=epoch, delete=delete) is expected
        gone = delete and expected is ErrorCode.NONE
        assert (TP in host.manager.partitions) is not gone
        assert (TP in host.log_manager.logs) is not gone
        assert bool(waiting) is gone

    @pytest.mark.parametrize("replica", [-1, 2])
    def test_offset_out_of_range_exception_when_fetch_messages(self, replica: int) -> None:
        """testOffsetOutOfRangeExceptionWhenFetchMessages: at once."""
        host = Host()
        host.lead()
        answers = host.fetch(part(1), replica=replica, wait_ms=1000)
        assert code(answers) is ErrorCode.OFFSET_OUT_OF_RANGE

    def test_partition_metadata_file(self) -> None:
        """testPartitionMetadataFile, testPartitionMetadataFileCreatedWithExistingLog: for a new
        log, and for one that had no id."""
        host = Host()
        host.log_manager.get_or_create(*OTHER)
        for tp in (TP, OTHER):
            host.lead(tp)
            log = host.partition(tp).local_log()
            assert log.topic_id == TOPIC_ID
            assert host.storage.info(f"{log.directory}/partition.metadata") is not None

    def test_partition_metadata_file_created_after_previous_request_without_ids(self) -> None:
        """testPartitionMetadataFileCreatedAfterPreviousRequestWithoutIds."""
        host = Host()
        assert host.lead(topic_id=None).local_log().topic_id is None
        assert host.lead(epoch=1).local_log().topic_id == TOPIC_ID

    def test_inconsistent_id_returns_error(self) -> None:
        """testInconsistentIdReturnsError: also in the same and in a later epoch."""
        host = Host()
        host.lead()
        for epoch in (0, 1, 2):
            response = host.order(host.change(epoch=epoch, topic_id=uuid.UUID(int=99)))
            assert response.partitions == ((TP, ErrorCode.INCONSISTENT_TOPIC_ID),)
        host.lead(epoch=3, topic_id=None)

    @pytest.mark.parametrize("become_leader", [True, False])
    def test_partition_marked_offline_if_log_cant_be_created(self, become_leader: bool) -> None:
        """testPartitionMarkedOfflineIfLogCantBeCreated."""
        host = Host()
        host.storage.fail("make_dir")
        response = host.order(host.change(leader=BROKER if become_leader else 2))
        assert response.partitions == ((TP, ErrorCode.KAFKA_STORAGE_ERROR),)
        with pytest.raises(KafkaStorageError):
            host.partition()

    def test_get_or_create_partition_should_not_create_offline_partition(self) -> None:
        """testGetOrCreatePartitionShouldNotCreateOfflinePartition."""
        host = Host()
        host.lead().mark_offline()
        response = host.order(host.change(epoch=1))
        assert response.partitions == ((TP, ErrorCode.KAFKA_STORAGE_ERROR),)

    def test_delta_from_leader_to_follower(self) -> None:
        """testDeltaFromLeaderToFollower: appends here end, fetching from the other begins."""
        host = Host()
        host.lead()
        host.append()
        host.replicate(0)
        host.follow(epoch=1)
        assert code(host.produce()) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert code(host.fetch(part(0), replica=2)) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert [f.leader_id for f in host.manager.fetchers.fetchers] == [2]

    def test_delta_from_follower_to_leader(self) -> None:
        """testDeltaFromFollowerToLeader."""
        host = Host()
        host.follow()
        assert code(host.produce()) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        host.lead(epoch=1)
        waiting = host.produce()
        host.replicate(1)
        assert code(waiting) is ErrorCode.NONE
        assert not host.manager.fetchers.fetchers

    def test_delta_to_follower_completes_produce(self) -> None:
        """testDeltaToFollowerCompletesProduce, C 129."""
        host = Host()
        host.lead()
        waiting = host.produce(timeout_ms=30_000)
        assert not waiting
        host.follow(epoch=1)
        assert code(waiting) is ErrorCode.NOT_LEADER_OR_FOLLOWER

    def test_delta_to_follower_completes_fetch(self) -> None:
        """testDeltaToFollowerCompletesFetch."""
        host = Host()
        host.lead()
        waiting = host.fetch(part(0), replica=2, wait_ms=30_000)
        assert not waiting
        host.follow(epoch=1)
        assert code(waiting) is ErrorCode.NOT_LEADER_OR_FOLLOWER

    def test_delta_follower_stop_fetcher_before_creating_initial_fetch_offset(self) -> None:
        """testDeltaFollowerStopFetcherBeforeCreatingInitialFetchOffset: what the old fetcher
        appends last is not fetched again."""
        host = Host()
        log = host.follow().local_log()
        remove = host.manager.fetchers.remove_fetchers

        def append_at_last(tps: Iterable[TopicPartition]) -> object:
            if not log.log_end_offset:
                log.append_as_follower(batch(count=3))
            return remove(tps)

        host.manager.fetchers.remove_fetchers = append_at_last  # type: ignore
        host.follow(epoch=1)
        (state,) = host.manager.fetchers.fetchers[0]._states
        assert state.offset == 3

    def test_fetcher_are_not_restarted_if_leader_epoch_is_not_bumped_with_zk_path(self) -> None:
        """testFetcherAreNotRestartedIfLeaderEpochIsNotBumpedWithZkPath."""
        host = Host()
        host.follow(replicas=(1, 2), isr=(1, 2))
        (before,) = host.manager.fetchers.fetchers[0]._states
        host.follow(replicas=(1, 2, 3), isr=(1, 2), partition_epoch=1)
        assert list(host.manager.fetchers.fetchers[0]._states) == [before]
        host.follow(replicas=(1, 2, 3), isr=(2,), epoch=1, partition_epoch=2)
        (after,) = host.manager.fetchers.fetchers[0]._states
        assert after is not before

    def test_replicas_are_stopped_while_in_controlled_shutdown(self) -> None:
        """testReplicasAreStoppedWhileInControlledShutdownWithKRaft: out of the ISR, without a
        leader, and in the ISR."""
        host = Host()
        tps = [TopicPartition("orders", n) for n in range(3)]
        for tp in tps:
            host.follow(tp, isr=(1, 2))
        host.manager.begin_controlled_shutdown()
        host.order(
            host.change(tps[0], leader=2, epoch=1, isr=(2,)),
            host.change(tps[1], leader=-1, epoch=1, isr=(1, 2)),
            host.change(tps[2], leader=2, epoch=1, isr=(1, 2)),
        )
        assert [s.tp for f in host.manager.fetchers.fetchers for s in f._states] == [tps[2]]

    def test_checkpoint_hw_on_shutdown(self) -> None:
        """testCheckpointHwOnShutdown."""
        storage = FaultyStorage()
        host = Host(storage=storage)
        host.lead()
        host.append(2)
        host.replicate(2)
        host.manager.shutdown()
        host.log_manager.crash()
        again = Host(storage=storage)
        assert again.lead(epoch=1).high_watermark == 2

    def test_metadata_log_dir_failure_in_zk_should_not_halt_broker(self) -> None:
        """testMetadataLogDirFailureInZkShouldNotHaltBroker: one of two directories fails."""
        host = Host(directories=("/a", "/b"))
        host.lead()
        host.lead(OTHER)
        host.storage.fail("write", "/a/*")
        host.log_manager.checkpoint_high_watermarks()
        host.report_failures()
        assert host.log_manager.live_directories == ["/b"]
        assert host.produce({OTHER: batch()}, acks=1).only.error_code is ErrorCode.NONE
