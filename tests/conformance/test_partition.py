"""Kafka's PartitionTest under its names (cases 117 to 126), and rules R-7 … R-41."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from checkpoints.types import TopicPartition
from logstore.common.config import LogConfig
from logstore.common.errors import InconsistentTopicIdError, OffsetOutOfRangeError
from logstore.log.reading.reading import EARLIEST, LATEST
from logstore.manager import LogManager
from logstore.storage.memory import MemoryStorage
from logstore.testing import ManualClock
from replication.common.config import ReplicationConfig
from replication.common.error_codes import ErrorCode, error_code_of
from replication.common.errors import (
    FencedLeaderEpochError,
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
    OffsetNotAvailableError,
    ReplicationError,
    UnknownLeaderEpochError,
)
from replication.common.messages import (
    AlterPartitionItem,
    AlterPartitionResult,
    EpochEndOffset,
    FetchPartition,
    IsolationLevel,
    PartitionChange,
)
from replication.common.state import PartitionRegistration, RecoveryState
from replication.partition import FetchRead, Partition, PartitionContext
from tests.support.builders import batch

TP = TopicPartition("orders", 0)
LAG_MS = 30_000


@dataclass
class Metadata:
    """What the leader knows of the cluster: everybody is alive until a test says otherwise."""

    epochs: dict[int, int] = field(default_factory=dict)
    barred: set[int] = field(default_factory=set)

    def eligible(self, broker_id: int, broker_epoch: int) -> bool:
        return broker_id not in self.barred and broker_epoch in (-1, self.broker_epoch(broker_id))

    def broker_epoch(self, broker_id: int) -> int:
        return self.epochs.get(broker_id, 100 + broker_id)


@dataclass
class Channel:
    """Holds each proposal until the test answers it."""

    sent: list[tuple[AlterPartitionItem, Callable[[AlterPartitionResult], None]]] = field(
        default_factory=list
    )

    def submit(
        self, item: AlterPartitionItem, on_result: Callable[[AlterPartitionResult], None]
    ) -> bool:
        self.sent.append((item, on_result))
        return True

    def answer(self, error: ErrorCode = ErrorCode.NONE, **changes: Any) -> None:
        item, on_result = self.sent.pop(0)
        result = AlterPartitionResult(
            item.tp,
            error,
            1,
            item.leader_epoch,
            tuple(r for r, _ in item.new_isr),
            item.partition_epoch + 1,
        )
        on_result(result._replace(**changes))


class Stage:
    """Broker 1 with one partition of the replicas 1, 2 and 3."""

    def __init__(self, min_isr: int = 1) -> None:
        self.clock = ManualClock()
        self.metadata, self.channel = Metadata(), Channel()
        self.moved: list[TopicPartition] = []
        config = LogConfig(min_insync_replicas=min_isr, segment_index_bytes=256)
        self.logs = LogManager(
            ["/logs"], config, storage=MemoryStorage(), clock=self.clock, replicated=True
        )
        self.partition = Partition(
            TP,
            PartitionContext(
                1,
                self.logs,
                ReplicationConfig(),
                self.metadata,
                self.channel,
                now_ms=lambda: self.clock.monotonic_ns() // 1_000_000,
                own_epoch=lambda: 101,
                on_high_watermark=self.moved.append,
            ),
        )

    def change(
        self,
        epoch: int,
        isr: Sequence[int] = (1, 2, 3),
        leader: int = 1,
        partition_epoch: int | None = None,
        replicas: Sequence[int] = (1, 2, 3),
        topic_id: uuid.UUID | None = None,
    ) -> PartitionChange:
        version = epoch if partition_epoch is None else partition_epoch
        registration = PartitionRegistration(tuple(replicas), tuple(isr), leader, epoch, version)
        return PartitionChange(TP, registration, topic_id)

    def lead(self, epoch: int = 1, isr: Sequence[int] = (1, 2, 3), **more: Any) -> Partition:
        self.partition.make_leader(self.change(epoch, isr, **more))
        return self.partition

    def append(self, count: int = 1, acks: int = 1) -> int:
        return self.partition.append_as_leader(batch(count=count), acks).info.last_offset

    def fetch(
        self,
        replica: int,
        offset: int,
        *,
        epoch: int | None = None,
        last_epoch: int = -1,
        broker_epoch: int | None = None,
        update: bool = True,
        max_bytes: int = 1 << 20,
    ) -> FetchRead:
        current = self.partition.leader_epoch if epoch is None else epoch
        part = FetchPartition(TP, offset, 1 << 20, current, last_epoch, 0)
        known = self.metadata.broker_epoch(replica) if broker_epoch is None else broker_epoch
        return self.partition.fetch(
            part,
            replica_id=replica,
            replica_epoch=known,
            max_bytes=max_bytes,
            minimum_one=True,
            isolation=IsolationLevel.READ_UNCOMMITTED,
            update_follower=update,
        )

    def consume(self, offset: int, epoch: int = -1) -> FetchRead:
        return self.partition.fetch(
            FetchPartition(TP, offset, 1 << 20, epoch),
            replica_id=-1,
            replica_epoch=-1,
            max_bytes=1 << 20,
            minimum_one=True,
            isolation=IsolationLevel.READ_UNCOMMITTED,
        )

    @property
    def hw(self) -> int:
        return self.partition.high_watermark


class TestPartition:
    def test_last_fetched_offset_validation(self) -> None:
        """testLastFetchedOffsetValidation: which (last epoch, offset) pairs part from the log."""
        stage = Stage()
        for epoch, count in ((0, 2), (3, 3), (3, 3), (4, 5), (7, 1), (9, 3)):
            if epoch > stage.partition.leader_epoch:
                stage.lead(epoch)
            stage.append(count)
        stage.lead(10)

        def parted(last_epoch: int, offset: int) -> EpochEndOffset | None:
            return stage.fetch(2, offset, last_epoch=last_epoch).diverging

        assert parted(0, 2) is None
        assert parted(0, 4) == (0, 2)
        assert parted(3, 6) is None
        assert parted(3, 9) == (3, 8)
        assert parted(4, 14) == (4, 13)
        assert parted(5, 13) == (4, 13)
        assert parted(6, 13) == (4, 13)
        assert parted(7, 14) is None
        assert parted(8, 14) == (7, 14)
        assert parted(9, 17) is None
        assert parted(10, 17) is None
        with pytest.raises(OffsetOutOfRangeError):  # an epoch nobody had yet
            parted(11, 17)

    def test_leader_epoch_validation_on_leader(self) -> None:
        """testLeaderEpochValidationOnLeader: older 74, newer 75, equal or absent accepted (S-7)."""
        stage = Stage()
        stage.lead(5)
        stage.append(3)
        before = stage.partition.follower(2)
        with pytest.raises(FencedLeaderEpochError):
            stage.fetch(2, 3, epoch=4)
        with pytest.raises(UnknownLeaderEpochError):
            stage.fetch(2, 3, epoch=6)
        assert stage.partition.follower(2) == before
        assert stage.hw == 0
        stage.fetch(3, 3, epoch=-1)
        stage.fetch(2, 3, epoch=5)
        assert stage.hw == 3

    def test_leader_epoch_validation_on_follower(self) -> None:
        """A replica fetch needs the leader; a consumer may read a follower (KIP-392)."""
        stage = Stage()
        stage.partition.make_follower(stage.change(5, leader=2))
        with pytest.raises(NotLeaderOrFollowerError):
            stage.fetch(3, 0)
        assert stage.consume(0, epoch=5).records == b""
        with pytest.raises(FencedLeaderEpochError):
            stage.consume(0, epoch=4)

    def test_monotonic_offsets_after_leader_change(self) -> None:
        """testMonotonicOffsetsAfterLeaderChange: LATEST does not go back (R-150, S-22)."""
        stage = Stage()
        stage.lead(1)
        stage.append(5)
        stage.fetch(2, 5)
        stage.fetch(3, 5)
        stage.append(2)
        assert stage.partition.offset_for_timestamp(LATEST) == (-1, 5, 1)
        stage.partition.make_follower(stage.change(2, leader=2))
        stage.partition.follow(3, 0, 2)  # the next leader starts behind
        stage.lead(3)
        with pytest.raises(OffsetNotAvailableError):
            stage.partition.offset_for_timestamp(LATEST)
        assert stage.partition.offset_for_timestamp(EARLIEST) == (-1, 0, 1)
        assert stage.partition.offset_for_timestamp(LATEST, replica_id=2) == (-1, 7, 3)
        stage.fetch(2, 7)
        stage.fetch(3, 7)
        assert stage.partition.offset_for_timestamp(LATEST) == (-1, 7, 3)

    def test_follower_does_not_join_isr_until_caught_up_to_offset_within_current_leader_epoch(
        self,
    ) -> None:
        """S-14, T-F1 (KAFKA-7128): the high watermark alone may lag behind what was committed."""
        stage = Stage()
        stage.lead(1, isr=(1, 2))
        stage.append(10)
        stage.partition.make_follower(stage.change(2, leader=2))
        stage.partition.follow(5, 0, 2)
        stage.lead(3, isr=(1, 2))
        assert (stage.hw, stage.partition.epoch_start_offset) == (5, 10)
        stage.fetch(3, 6)
        assert not stage.channel.sent
        stage.fetch(3, 10)
        ((item, _),) = stage.channel.sent
        assert item.new_isr == ((1, 101), (2, -1), (3, 103))

    def test_isr_not_expanded_if_replica_is_fenced_or_shutdown(self) -> None:
        """S-17: no proposal, and the high watermark does not wait for it."""
        stage = Stage()
        stage.lead(1, isr=(1, 2))
        stage.metadata.barred.add(3)
        stage.append(2)
        stage.fetch(3, 0)
        stage.fetch(2, 2)
        assert stage.hw == 2
        stage.fetch(3, 2)
        assert not stage.channel.sent
        stage.metadata.barred.clear()
        stage.fetch(3, 2)
        assert len(stage.channel.sent) == 1

    def test_fence_follower_fetch_with_stale_broker_epoch(self) -> None:
        """S-16, R-8: a fetch of an earlier incarnation changes nothing."""
        stage = Stage()
        stage.lead(1)
        stage.append(2)
        before = stage.partition.follower(2)
        with pytest.raises(NotLeaderOrFollowerError):
            stage.fetch(2, 2, broker_epoch=50)
        assert stage.partition.follower(2) == before
        stage.fetch(2, 2, broker_epoch=102)

    def test_high_watermark_advance_should_not_advance_when_under_min_isr(self) -> None:
        """S-19, T-E2 (KAFKA-15583): the gate of R-21; readers do not see the record."""
        stage = Stage(min_isr=2)
        stage.lead(1, isr=(1,))
        with pytest.raises(NotEnoughReplicasError):
            stage.append(acks=-1)
        assert stage.partition.log_end_offset == 0
        stage.append(acks=1)
        assert stage.hw == 0
        assert stage.consume(0).records == b""
        assert stage.partition.under_min_isr

    def test_alter_isr_leader_and_isr_race(self) -> None:
        """S-15: a shrink keeps the old ISR until it is confirmed; then the HW moves by itself."""
        stage = Stage()
        stage.lead(1)
        stage.append(4)
        for replica in (2, 3):
            stage.fetch(replica, 4)
        stage.append(4)
        stage.clock.advance(LAG_MS)
        stage.fetch(2, 8)
        stage.clock.advance(1)
        stage.partition.maybe_shrink_isr()
        assert [r for r, _ in stage.channel.sent[0][0].new_isr] == [1, 2]
        assert stage.hw == 4
        stage.partition.maybe_shrink_isr()  # no second proposal while one is in flight
        assert len(stage.channel.sent) == 1
        stage.channel.answer()
        assert (stage.hw, stage.moved) == (8, [TP])
        assert stage.partition.isr.committed == (1, 2)

    def test_new_metadata_overtakes_the_answer(self) -> None:
        """R-35: the answer to a proposal of an earlier state is dropped."""
        stage = Stage()
        stage.lead(1, isr=(1, 2))
        stage.fetch(3, 0)
        stage.lead(2, isr=(1,))
        stage.channel.answer()
        assert stage.partition.isr.committed == (1,)

    @pytest.mark.parametrize(
        "code", [ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED]
    )
    def test_a_refused_proposal_is_taken_back(self, code: ErrorCode) -> None:
        """R-38."""
        stage = Stage()
        stage.lead(1, isr=(1, 2))
        stage.fetch(3, 0)
        assert stage.partition.isr.maximal == (1, 2, 3)
        stage.channel.answer(code)
        assert stage.partition.isr.maximal == (1, 2)

    @pytest.mark.parametrize(
        "code", [ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.INVALID_UPDATE_VERSION]
    )
    def test_an_undecided_proposal_stays_pending(self, code: ErrorCode) -> None:
        """R-39, R-41: it may have been applied, so the larger ISR counts (T-F3)."""
        stage = Stage()
        stage.lead(1, isr=(1, 2))
        stage.append(2)
        stage.fetch(3, 0)
        stage.fetch(3, 2)
        stage.channel.answer(code)
        assert stage.partition.isr.in_flight
        stage.append(2)
        stage.fetch(2, 4)
        assert stage.hw == 2
        assert not stage.channel.sent

    def test_a_repeated_leader_request_keeps_the_pending_change(self) -> None:
        """T-F3: the high watermark still waits for the replica that may have joined."""
        stage = Stage()
        stage.lead(1, isr=(1, 2))
        stage.append(2)
        stage.fetch(3, 0)
        stage.fetch(3, 2)
        stage.lead(1, isr=(1, 2))
        stage.append(2)
        stage.fetch(2, 4)
        assert stage.hw == 2

    def test_should_not_shrink_isr_if_follower_caught_up_to_log_end(self) -> None:
        """testShouldNotShrinkIsrIfFollowerCaughtUpToLogEnd: an idle but complete one stays."""
        stage = Stage()
        stage.lead(1)
        stage.append(2)
        for replica in (2, 3):
            stage.fetch(replica, 2)
        stage.clock.advance(10 * LAG_MS)
        stage.partition.maybe_shrink_isr()
        assert not stage.channel.sent

    def test_do_not_reset_replica_state_if_leader_epoch_is_not_bumped(self) -> None:
        """testDoNotResetReplicaStateIfLeaderEpochIsNotBumped (R-11)."""
        stage = Stage()
        stage.lead(1, partition_epoch=1)
        stage.append(2)
        stage.fetch(2, 2)
        known = stage.partition.follower(2)
        stage.lead(1, partition_epoch=2, isr=(1, 2))
        assert stage.partition.follower(2) == known
        stage.lead(2, partition_epoch=3, isr=(1, 2))
        renewed = stage.partition.follower(2)
        assert renewed is not None
        assert (renewed.log_end, renewed.leader_end_at_fetch) == (2, 2)

    def test_an_old_partition_epoch_is_ignored(self) -> None:
        """R-12."""
        stage = Stage()
        stage.lead(2, partition_epoch=7)
        assert not stage.partition.make_follower(stage.change(2, leader=2, partition_epoch=6))
        assert stage.partition.is_leader
        assert not stage.partition.make_leader(stage.change(3, partition_epoch=6))
        assert stage.partition.leader_epoch == 2

    def test_the_epoch_is_noted_before_the_first_record(self) -> None:
        """R-13, S-6 (KAFKA-7415)."""
        stage = Stage()
        stage.lead(4)
        log = stage.partition.local_log()
        assert [tuple(entry) for entry in log.epoch_entries] == [(4, 0)]

    def test_the_high_watermark_of_a_fetch_is_the_one_before_it(self) -> None:
        """R-106, R-107: a follower learns of the commit of its own fetch one round later."""
        stage = Stage()
        stage.lead(1, isr=(1, 2))
        stage.append(3)
        read = stage.fetch(2, 3)
        assert (read.high_watermark, read.hw_moved, stage.hw) == (0, True, 3)
        assert stage.fetch(2, 3).high_watermark == 3

    def test_a_diverging_answer_changes_nothing(self) -> None:
        """R-9, S-9, T-D3."""
        stage = Stage()
        stage.lead(1)
        stage.append(3)
        stage.lead(2)
        before = stage.partition.follower(2)
        read = stage.fetch(2, 5, last_epoch=1)
        assert (read.diverging, read.records) == ((1, 3), b"")
        assert stage.partition.follower(2) == before

    def test_a_waiting_fetch_does_not_note_progress(self) -> None:
        """R-9, R-94."""
        stage = Stage()
        stage.lead(1)
        before = stage.partition.follower(2)
        stage.fetch(2, 0, update=False)
        assert stage.partition.follower(2) == before

    def test_an_unknown_replica_is_refused(self) -> None:
        """R-101."""
        stage = Stage()
        stage.lead(1)
        with pytest.raises(UnknownLeaderEpochError):
            stage.fetch(9, 0)
        with pytest.raises(NotLeaderOrFollowerError):
            stage.fetch(9, 0, epoch=-1)

    def test_an_unknown_log_end_blocks_the_high_watermark(self) -> None:
        """R-25: until the first fetch of every member after an election."""
        stage = Stage()
        stage.lead(1)
        stage.append(3)
        stage.fetch(2, 3)
        assert stage.hw == 0
        stage.fetch(3, 3)
        assert stage.hw == 3

    def test_acks_are_judged_by_the_maximal_isr(self) -> None:
        """R-84: not enough after the append once the ISR has shrunk below the minimum."""
        stage = Stage(min_isr=2)
        stage.lead(1, isr=(1, 2))
        stage.append(acks=-1)
        assert stage.partition.acks_satisfied(1, 1) == (False, ErrorCode.NONE)
        stage.fetch(2, 1)
        assert stage.partition.acks_satisfied(1, 1) == (True, ErrorCode.NONE)
        stage.lead(1, isr=(1,), partition_epoch=2)
        assert stage.partition.acks_satisfied(1, 1) == (
            True,
            ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        )
        stage.partition.make_follower(stage.change(3, leader=2))
        with pytest.raises(NotLeaderOrFollowerError):
            stage.partition.acks_satisfied(1, 1)

    def test_another_topic_of_that_name_is_refused(self) -> None:
        """R-18: the log on disk belongs to a topic that was deleted since."""
        stage = Stage()
        old, new = (uuid.UUID(int=random.Random(n).getrandbits(128)) for n in (1, 2))
        stage.lead(1, topic_id=old)
        with pytest.raises(InconsistentTopicIdError) as caught:
            stage.lead(2, topic_id=new)
        assert error_code_of(caught.value) is ErrorCode.INCONSISTENT_TOPIC_ID
        assert stage.partition.leader_epoch == 1

    def test_recovering_leader_reports_recovered(self) -> None:
        """R-13, R-58: its next ISR change says that it recovered."""
        stage = Stage()
        change = stage.change(1, isr=(1,))
        recovering = change.registration._replace(recovery_state=RecoveryState.RECOVERING)
        stage.partition.make_leader(change._replace(registration=recovering))
        stage.fetch(2, 0)
        assert stage.channel.sent[0][0].recovery_state is RecoveryState.RECOVERED

    def test_a_zombie_does_not_append_what_it_fetched(self) -> None:
        """S-10: the answer comes after the role changed."""
        stage = Stage()
        stage.partition.make_follower(stage.change(1, leader=2))
        stage.partition.append_as_follower(batch(0, 2, epoch=1), 1)
        stage.lead(2)
        for late in (
            lambda: stage.partition.append_as_follower(batch(2, epoch=1), 1),
            lambda: stage.partition.truncate_to(0, 1),
            lambda: stage.partition.follow(2, 0, 1),
        ):
            with pytest.raises(ReplicationError):
                late()
        assert (stage.partition.log_end_offset, stage.hw) == (2, 0)

    def test_fetch_limit(self) -> None:
        """R-93, R-95: what ends a wait, and what it would get."""
        stage = Stage()
        stage.lead(1)
        stage.append(2)

        def look(offset: int, replica: int = 2, min_bytes: int = 1) -> tuple[bool, int]:
            part = FetchPartition(TP, offset, 1 << 20, 1)
            isolation = IsolationLevel.READ_UNCOMMITTED
            return stage.partition.fetch_limit(part, replica, isolation, min_bytes)

        assert look(2) == (False, 0)
        assert look(0) == (False, 1)
        size = stage.partition.local_log().size
        assert look(0, min_bytes=10) == (False, size)
        assert look(0, replica=-1) == (False, 0)  # nothing is committed yet
        assert look(3) == (True, 0)  # beyond the log end
        stage.lead(2)
        with pytest.raises(FencedLeaderEpochError):
            look(2)
