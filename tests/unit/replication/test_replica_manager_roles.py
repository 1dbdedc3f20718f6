"""What the controller orders, and what a failed log directory ends (R-16 … R-19, R-29, R-52,
R-151 … R-155)."""

from __future__ import annotations

import errno
import logging
import threading
import uuid
from collections.abc import Callable

import pytest

from checkpoints.offset_checkpoint import HIGH_WATERMARK, OffsetCheckpoint
from checkpoints.types import TopicPartition
from logstore.cleaner import LogCleaner
from logstore.format.batch import encode_batch
from logstore.manager.duties import LOG_CLEANER
from replication.common.error_codes import ErrorCode
from replication.common.errors import FencedLeaderEpochError, KafkaStorageError
from replication.common.limited_log import LimitedLogger
from replication.common.messages import (
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    PartitionChange,
    StopReplicaPartition,
    StopReplicaRequest,
    UpdateMetadataRequest,
)
from replication.common.retrying import Reaction
from replication.common.runtime import ThreadRuntime
from replication.common.state import UNKNOWN_EPOCH
from replication.controller.channels import STOP_REACTIONS
from replication.partition.follower import FollowerSide
from replication.replica_manager import role_changes
from tests.support.builders import batch
from tests.support.replica_managers import BROKER, EPOCH, TP, Host, live, part
from tests.support.replication import ManualRuntime
from tests.support.until import patience

OTHER = TopicPartition("orders", 1)
CLEANS_SOON = {"log.cleaner.backoff.ms": 100, "log.initial.task.delay.ms": 0}


def codes(response: LeaderAndIsrResponse) -> list[ErrorCode]:
    return [code for _, code in response.partitions]


def followed(host: Host) -> dict[TopicPartition, tuple[int, int]]:
    """Partition -> (leader, epoch) of what the fetchers follow."""
    return {
        state.tp: (fetcher.leader_id, state.leader_epoch)
        for fetcher in host.manager.fetchers.fetchers
        for state in fetcher._states
    }


class TestFencing:
    def test_an_old_controller(self) -> None:
        """R-18, R-52: refused as a whole, and for each partition."""
        host = Host()
        host.controller_epoch = 5
        host.lead()
        host.controller_epoch = 4
        response = host.order(host.change(leader=2, epoch=9), host.change(OTHER))
        assert response.error_code is ErrorCode.STALE_CONTROLLER_EPOCH
        assert codes(response) == [ErrorCode.STALE_CONTROLLER_EPOCH] * 2
        assert host.partition().is_leader
        assert host.tell(host.change(OTHER)) is ErrorCode.STALE_CONTROLLER_EPOCH
        assert host.metadata.registration(OTHER) is None
        assert host.stop().error_code is ErrorCode.STALE_CONTROLLER_EPOCH
        assert host.manager.controller_epoch == 5

    def test_a_new_controller_is_known_by_any_of_its_requests(self) -> None:
        host = Host()
        host.controller_epoch = 7
        assert host.tell() is ErrorCode.NONE
        host.controller_epoch = 6
        assert host.order(host.change()).error_code is ErrorCode.STALE_CONTROLLER_EPOCH

    @pytest.mark.parametrize(
        ("epoch", "code"),
        [
            (EPOCH + BROKER - 1, ErrorCode.STALE_BROKER_EPOCH),
            (EPOCH + BROKER, ErrorCode.NONE),
            (EPOCH + BROKER + 1, ErrorCode.NONE),  # the controller knows it before we do
            (UNKNOWN_EPOCH, ErrorCode.NONE),
        ],
    )
    def test_what_was_meant_for_an_earlier_incarnation(self, epoch: int, code: ErrorCode) -> None:
        """R-52."""
        host = Host()
        assert host.order(host.change(), broker_epoch=epoch).error_code is code
        assert (TP in host.manager.partitions) == (code is ErrorCode.NONE)

    @pytest.mark.parametrize(
        ("epoch", "partition_epoch", "code"),
        [
            (2, 9, ErrorCode.STALE_CONTROLLER_EPOCH),
            (3, 4, ErrorCode.STALE_CONTROLLER_EPOCH),
            (3, 5, ErrorCode.NONE),
            (3, 6, ErrorCode.NONE),
            (4, 4, ErrorCode.STALE_CONTROLLER_EPOCH),
            (4, 5, ErrorCode.NONE),
        ],
    )
    def test_old_news_of_a_partition(
        self, epoch: int, partition_epoch: int, code: ErrorCode
    ) -> None:
        """R-12, R-18: an equal leader epoch goes on from an equal or newer partition epoch."""
        host = Host()
        partition = host.lead(epoch=3, partition_epoch=5)
        for take, leader in ((partition.make_leader, BROKER), (partition.make_follower, 2)):
            assert not take(host.change(leader=leader, epoch=4, partition_epoch=4))
            assert (partition.is_leader, partition.leader_epoch) == (True, 3)
        assert codes(host.order(host.change(epoch=epoch, partition_epoch=partition_epoch))) == [
            code
        ]

    @pytest.mark.parametrize("leader", [BROKER, 2])
    @pytest.mark.parametrize(("epoch", "partition_epoch"), [(-2, 0), (0, -2)])
    def test_epochs_that_no_partition_has(
        self, leader: int, epoch: int, partition_epoch: int
    ) -> None:
        """They are refused for a partition that is not here; the others have their answer."""
        host = Host()
        response = host.order(
            host.change(leader=leader, epoch=epoch, partition_epoch=partition_epoch),
            host.change(OTHER, leader=leader),
        )
        assert codes(response) == [ErrorCode.STALE_CONTROLLER_EPOCH, ErrorCode.NONE]
        assert [*host.manager.partitions] == [OTHER]

    def test_one_that_cannot_be_kept_does_not_stop_the_others(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        host = Host()
        flush = FollowerSide.flush_overdue

        def fail(side: FollowerSide) -> None:
            if side._replica.tp == TP:
                raise ValueError("odd")
            flush(side)

        monkeypatch.setattr(FollowerSide, "flush_overdue", fail)
        response = host.order(host.change(leader=2), host.change(OTHER, leader=2))
        assert codes(response) == [ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.NONE]

    def test_not_in_the_assignment(self) -> None:
        host = Host()
        response = host.order(host.change(leader=2, replicas=(2, 3)))
        assert codes(response) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert not host.manager.partitions

    def test_another_topic_of_that_name(self) -> None:
        host = Host()
        host.lead()
        response = host.order(host.change(epoch=1, topic_id=uuid.UUID(int=99)))
        assert codes(response) == [ErrorCode.INCONSISTENT_TOPIC_ID]
        assert host.partition().leader_epoch == 0

    def test_another_topic_of_that_name_in_the_log(self) -> None:
        """Also after a restart, when only the log knows."""
        host = Host()
        host.log_manager.get_or_create(*TP, topic_id=uuid.UUID(int=99))
        assert codes(host.order(host.change())) == [ErrorCode.INCONSISTENT_TOPIC_ID]
        assert TP not in host.manager.partitions


class TestOrder:
    def test_a_copy_that_was_overtaken_is_refused(self) -> None:
        """A broker that came back stays known, although older news of its death comes late."""
        host = Host()
        news = UpdateMetadataRequest(
            9, host.controller_epoch, EPOCH + BROKER, (), live(1, 2), sequence=2
        )
        assert host.control(news).error_code is ErrorCode.NONE
        late = news._replace(live_brokers=live(1), sequence=1)
        refused = ErrorCode.STALE_CONTROLLER_EPOCH
        assert host.control(late).error_code is refused
        assert host.metadata.is_alive(2)
        assert host.control(news).error_code is ErrorCode.NONE

    def test_a_late_order_does_not_bring_a_stopped_replica_back(self) -> None:
        host = Host()
        order = LeaderAndIsrRequest(
            9, host.controller_epoch, EPOCH + BROKER, (host.change(),), host.brokers, sequence=1
        )
        host.control(order)
        stop = StopReplicaRequest(
            9,
            host.controller_epoch,
            EPOCH + BROKER,
            (StopReplicaPartition(TP, -2, True),),
            sequence=2,
        )
        host.control(stop)
        response = host.control(order)
        assert codes(response) == [ErrorCode.STALE_CONTROLLER_EPOCH]
        assert TP not in host.manager.partitions

    def test_each_incarnation_and_each_controller_counts_anew(self) -> None:
        host = Host()
        first = UpdateMetadataRequest(9, 5, EPOCH + BROKER, (), live(1), sequence=7)
        for later in (
            first,
            first._replace(broker_epoch=EPOCH + BROKER + 1, sequence=1),
            first._replace(controller_epoch=6, sequence=1),
        ):
            assert host.control(later).error_code is ErrorCode.NONE


class TestRepetition:
    def test_changes_nothing(self) -> None:
        host = Host()
        host.lead()
        host.append()
        host.replicate(0)
        known, epochs = host.partition().progress_of(2), host.partition().local_log().epochs.entries
        for partition_epoch in (0, 1):  # testDoNotResetReplicaStateIfLeaderEpochIsNotBumped
            order = host.change(partition_epoch=partition_epoch)
            assert codes(host.order(order)) == [ErrorCode.NONE]
            assert host.partition().progress_of(2) == known
        assert host.partition().local_log().epochs.entries == epochs
        assert host.produce(acks=1).only.base_offset == 1

    def test_does_not_restart_a_fetcher(self) -> None:
        """R-14: exactly a new leader epoch does."""
        host = Host()
        host.follow()
        host.runtime.run_until_idle()
        (state,) = host.manager.fetchers.fetchers[0]._states
        host.follow(partition_epoch=1)
        assert list(host.manager.fetchers.fetchers[0]._states) == [state]
        host.follow(epoch=1)
        assert list(host.manager.fetchers.fetchers[0]._states) != [state]


class TestFollowing:
    def test_fetches_from_the_leader(self) -> None:
        """R-112, R-116: with an empty log from offset 0, as broker 1 of this epoch."""
        host = Host()
        host.follow()
        host.runtime.run_until_idle()
        (sent,) = host.transport.sent
        assert sent.broker_id == 2
        assert isinstance(sent.request, FetchRequest)
        assert (sent.request.replica_id, sent.request.replica_epoch) == (BROKER, EPOCH + BROKER)
        assert [p.fetch_offset for p in sent.request.partitions] == [0]

    @pytest.mark.parametrize("leader", [-1, 7])
    def test_without_a_live_leader_only_the_log_is_made(self, leader: int) -> None:
        """R-16: so that its high watermark is in the checkpoint (KAFKA-1647)."""
        host = Host()
        partition = host.follow(leader=leader)
        assert partition.log is not None
        assert not partition.is_leader
        assert not followed(host)

    def test_loses_its_leader(self) -> None:
        host = Host()
        host.follow()
        assert followed(host) == {TP: (2, 0)}
        host.follow(leader=-1, epoch=1)
        assert not followed(host)
        assert not host.manager.fetchers.fetchers  # an idle one is closed
        host.follow(leader=3, epoch=2, replicas=(1, 2, 3))
        assert followed(host) == {TP: (3, 2)}

    def test_to_lead_ends_the_fetching(self) -> None:
        host = Host()
        host.follow()
        host.lead(epoch=1)
        assert not host.manager.fetchers.fetchers
        host.follow(epoch=2)
        assert followed(host) == {TP: (2, 2)}

    @pytest.mark.parametrize("answered", ["before", "after"])
    def test_to_lead_ends_a_fetching_that_was_fenced(self, answered: str) -> None:
        """testFencedErrorCausedByBecomeLeader (127): by the epoch in which its own broker leads."""
        host = Host()
        host.follow()
        host.runtime.run_until_idle()
        fenced = FetchResponse((FetchPartitionResponse(TP, ErrorCode.FENCED_LEADER_EPOCH),))
        if answered == "before":
            host.transport.reply(fenced)
            host.runtime.run_until_idle()
            failed = host.manager.fetchers.failed_partitions
            assert isinstance(failed[TP], FencedLeaderEpochError)
        host.lead(epoch=1)
        if answered == "after":
            host.transport.reply(fenced)
            host.runtime.run_until_idle()
        assert not host.manager.fetchers.failed_partitions
        assert host.manager.fetchers.fetchers == ()
        assert host.manager.fetchers.dead_workers == 0
        assert host.append().base_offset == 0

    def test_many_at_once(self) -> None:
        host = Host()
        tps = [TopicPartition("orders", n) for n in range(6)]
        leaders = [1, 2, 3, 2, 1, -1]
        changes = [
            host.change(tp, leader=leader, replicas=(1, 2, 3))
            for tp, leader in zip(tps, leaders, strict=True)
        ]
        assert codes(host.order(*changes)) == [ErrorCode.NONE] * 6
        assert [host.partition(tp).is_leader for tp in tps] == [b == 1 for b in leaders]
        assert followed(host) == {tps[1]: (2, 0), tps[2]: (3, 0), tps[3]: (2, 0)}

    def test_while_it_shuts_down(self) -> None:
        """R-17: without a leader, or out of the ISR, it stops fetching; else it goes on."""
        host = Host()
        host.follow(isr=(1, 2))
        host.follow(OTHER, isr=(1, 2))
        host.manager.begin_controlled_shutdown()
        host.follow(isr=(2,), partition_epoch=1)
        host.follow(OTHER, epoch=1, isr=(1, 2))
        assert followed(host) == {OTHER: (2, 1)}
        host.follow(OTHER, epoch=2, isr=(2,))
        assert not followed(host)


class TestStopping:
    def test_deletes_the_log(self) -> None:
        host = Host()
        directory = host.lead().local_log().directory
        assert host.stop().partitions == ((TP, ErrorCode.NONE),)
        assert TP not in host.manager.partitions
        assert host.storage.info(directory) is None
        assert host.stop().partitions == ((TP, ErrorCode.NONE),)  # again

    def test_stays_when_told_so(self) -> None:
        host = Host()
        host.follow()
        assert host.stop(epoch=0, delete=False).partitions == ((TP, ErrorCode.NONE),)
        assert not followed(host)
        assert host.partition().log is not None

    def test_a_log_from_before_a_restart(self) -> None:
        host = Host()
        directory = host.log_manager.get_or_create(*TP).directory
        host.stop()
        assert host.storage.info(directory) is None

    def test_a_later_topic_of_that_name_stays(self) -> None:
        host = Host()
        host.lead()
        response = host.stop(topic_id=uuid.UUID(int=99))
        assert response.partitions == ((TP, ErrorCode.NONE),)
        assert host.partition().is_leader

    def test_a_failing_disk(self) -> None:
        host = Host()
        host.lead()
        host.storage.fail("rename", "*")
        assert host.stop().partitions == ((TP, ErrorCode.KAFKA_STORAGE_ERROR),)

    def test_a_lack_of_descriptors_is_answered_too(self) -> None:
        host = Host()
        host.lead()
        host.storage.fail("rename", "*", error=errno.EMFILE)
        ((_, code),) = host.stop().partitions
        assert STOP_REACTIONS[code] is Reaction.AGAIN


class TestDirectoryFailure:
    @pytest.fixture
    def host(self) -> Host:
        """Two directories with a partition each: the first leads, the second follows."""
        host = Host(directories=("/a", "/b"))
        host.lead()
        host.follow(OTHER)
        assert host.partition().local_log().directory.startswith("/a")
        assert host.partition(OTHER).local_log().directory.startswith("/b")
        return host

    @staticmethod
    def lose(host: Host, directory: str) -> None:
        host.storage.fail("write", f"{directory}/*")
        host.log_manager.housekeeper.checkpoint_high_watermarks()
        assert [path for path, _ in host.failed_directories] == [directory]
        host.report_failures()

    def test_only_its_partitions_go_offline(self, host: Host) -> None:
        """R-152."""
        self.lose(host, "/a")
        assert host.manager.partitions[TP].offline
        assert host.produce(acks=1).only.error_code is ErrorCode.KAFKA_STORAGE_ERROR
        assert host.fetch(part(0)).only.error_code is ErrorCode.KAFKA_STORAGE_ERROR
        assert not host.manager.partitions[OTHER].offline
        assert followed(host) == {OTHER: (2, 0)}

    def test_a_follower_stops_fetching(self, host: Host) -> None:
        self.lose(host, "/b")
        assert not followed(host)
        assert host.partition().is_leader

    def test_it_stays_offline(self, host: Host) -> None:
        """R-18, R-154: whatever the controller orders, until the broker starts again."""
        self.lose(host, "/a")
        for order in (host.change(epoch=1), host.change(leader=2, epoch=2)):
            assert codes(host.order(order)) == [ErrorCode.KAFKA_STORAGE_ERROR]
        assert host.stop().partitions == ((TP, ErrorCode.KAFKA_STORAGE_ERROR),)
        assert TP not in host.log_manager.logs

    def test_an_order_before_the_news_does_not_begin_an_empty_log(self, host: Host) -> None:
        """The directory failed, and nobody has told the replica manager yet: a new log in the
        other directory would stand for the lost one."""
        host.append(3)
        host.storage.fail("write", "/a/*")
        host.log_manager.housekeeper.checkpoint_high_watermarks()
        assert codes(host.order(host.change(epoch=1))) == [ErrorCode.KAFKA_STORAGE_ERROR]
        assert TP not in host.log_manager.logs
        host.report_failures()

    @pytest.mark.parametrize(
        ("change", "code"),
        [
            ({"epoch": 3}, ErrorCode.KAFKA_STORAGE_ERROR),  # it leads
            ({"epoch": 3, "leader": 2}, ErrorCode.KAFKA_STORAGE_ERROR),  # it is in the ISR
            ({"epoch": 3, "leader": 2, "isr": (2,)}, ErrorCode.NONE),  # nobody counts on it
            ({"epoch": 0}, ErrorCode.NONE),  # nobody has anything yet
        ],
    )
    def test_nor_after_a_restart(self, change: dict[str, object], code: ErrorCode) -> None:
        """Kafka's ``isNew``: a replica that others count on is not begun anew."""
        host = Host(directories=("/a", "/b"))
        host.storage.fail("write", "/a/*")
        host.log_manager.housekeeper.checkpoint_high_watermarks()
        assert codes(host.order(host.change(**change))) == [code]  # type: ignore[arg-type]

    def test_a_full_disk_takes_a_follower_offline_and_nothing_else(self, host: Host) -> None:
        """S-42: the append is refused; the leader here goes on."""
        host.storage.fail("write", "/b/*.log", error=errno.ENOSPC)
        follower = host.partition(OTHER)
        with pytest.raises(KafkaStorageError):
            follower.follower.append(batch(), 0)
        host.report_failures()
        assert host.manager.partitions[OTHER].offline
        assert host.produce(acks=1).only.error_code is ErrorCode.NONE

    def test_a_failed_sync_acknowledges_nothing(self) -> None:
        """S-44: with flush.messages=1 the append that could not be synced is refused, and the
        directory stays offline although the next sync would succeed."""
        host = Host(log_config={"flush.messages": 1}, directories=("/a", "/b"))
        host.lead(replicas=(BROKER,))
        host.storage.fail("sync", "/a/*", times=1)
        assert host.produce().only.error_code is ErrorCode.KAFKA_STORAGE_ERROR
        assert host.produce().only.error_code is ErrorCode.KAFKA_STORAGE_ERROR
        host.report_failures()
        assert host.manager.partitions[TP].offline

    @pytest.mark.parametrize("leads", [True, False])
    def test_one_that_cannot_be_opened_does_not_stop_the_others(self, leads: bool) -> None:
        """R-19."""
        host = Host(directories=("/a", "/b"))
        host.storage.fail("make_dir", "/a/orders-0*")
        leader = BROKER if leads else 2
        response = host.order(host.change(leader=leader), host.change(OTHER, leader=leader))
        assert codes(response) == [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NONE]
        assert host.manager.partitions[TP].offline
        assert host.partition(OTHER).is_leader is leads


def test_leaders_begin_together_on_real_threads() -> None:
    """R-19: where syncs overlap, each partition still has its own outcome."""
    host = Host(threads=True)
    tps = [TopicPartition("orders", n) for n in range(40)]
    host.log_manager.get_or_create(*tps[3], topic_id=uuid.UUID(int=99))
    found = codes(host.order(*map(host.change, tps)))
    refused = ErrorCode.INCONSISTENT_TOPIC_ID
    assert found == [refused if n == 3 else ErrorCode.NONE for n in range(40)]
    assert list(host.manager.partitions) == [tp for tp in tps if tp != tps[3]]
    assert all(partition.is_leader for partition in host.manager.partitions.values())
    host.log_manager.close()


class TestPeriodicWork:
    def checkpoint(self, host: Host) -> dict[TopicPartition, int]:
        path = f"/logs/{HIGH_WATERMARK}"
        if host.storage.info(path) is None:
            return {}
        return OffsetCheckpoint(path, host.storage).read()

    def test_high_watermarks_are_written_after_the_first_order(self) -> None:
        """R-29."""
        host = Host(high_watermark_checkpoint_interval_ms=100)
        host.runtime.advance(1000)
        assert self.checkpoint(host) == {}
        host.lead()
        host.append(3)
        host.replicate(2)
        host.runtime.advance(100)
        assert self.checkpoint(host) == {TP: 2}

    def test_and_at_shutdown(self) -> None:
        """R-29."""
        host = Host()
        host.lead()
        host.append(3)
        host.replicate(3)
        host.manager.shutdown()
        assert self.checkpoint(host) == {TP: 3}

    def test_a_silent_follower_leaves_the_isr(self) -> None:
        """R-32: between 1 and 1.5 times the lag time after it was last caught up."""
        host = Host(replica_lag_time_max_ms=1000)
        host.lead()
        host.append()
        host.runtime.advance(1000)
        assert not host.isr_channel.items
        host.runtime.advance(500)
        assert [b for b, _ in host.isr_channel.items[0].new_isr] == [BROKER]
        host.isr_channel.commit()
        assert host.manager.stats.isr_shrinks == 1
        host.replicate(1)
        host.isr_channel.commit()
        assert host.manager.stats.isr_expands == 1

    def test_the_log_manager_needs_no_thread(self) -> None:
        """Recovery points, log starts and deletions are looked after by the runtime's tasks."""
        host = Host()
        host.lead()
        host.append(3)
        host.partition().local_log().flush()
        host.runtime.advance(60_000)
        recovery = OffsetCheckpoint("/logs/recovery-point-offset-checkpoint", host.storage)
        assert recovery.read() == {TP: 3}
        host.stop()
        assert [e.name for e in host.storage.scan_dir("/logs") if e.is_dir]
        host.runtime.advance(70_000)
        assert not [e.name for e in host.storage.scan_dir("/logs") if e.is_dir]

    def test_a_round_that_is_still_queued_is_not_queued_again(self) -> None:
        runtime = ManualRuntime()
        host = Host(runtime=runtime)
        runtime.run_until_idle()
        duties = host.log_manager.duties
        assert duties is not None
        for name in [duty.name for duty in duties.list] * 2:
            duties.wake(name)
        assert len(runtime._queue) == len({duty.thread for duty in duties.list})

    def test_compaction_waits_for_a_role(self) -> None:
        """The configuration on the disk may be an old one. The order brings that of today."""
        compacted = {"cleanup.policy": "compact", "segment.bytes": "100"}
        host = Host(broker_config=CLEANS_SOON)
        log = host.log_manager.get_or_create(*TP, config=compacted)
        for _ in range(4):
            log.append_as_leader(bytes(encode_batch([(b"k", b"v")], default_timestamp=1)), 0)
        log.replica.update_high_watermark(4)
        log.flush()
        host.runtime.advance(1000)
        assert log.size == 4 * 70
        host.order(host.change(config=compacted))
        log.replica.update_high_watermark(4)
        host.runtime.advance(1000)
        assert log.size == 2 * 70
        assert host.log_manager.cleaner.metrics.passes == 1

    def test_a_log_without_a_role_any_more_is_not_compacted(self) -> None:
        host = Host(broker_config=CLEANS_SOON)
        host.lead()
        assert [*host.manager._configured()] == [TP]
        host.stop(delete=False)
        host.manager._hosted.remove(TP)
        assert [*host.manager._configured()] == []

    def test_a_stop_waits_for_a_pass(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It is told to end, and logs are closed once it has: it may be writing beside them."""
        begun, ended = threading.Event(), threading.Event()

        def clean(cleaner: LogCleaner) -> None:
            begun.set()
            cleaner._stopping.wait(patience())
            ended.set()

        monkeypatch.setattr(LogCleaner, "clean_filthiest", clean)
        runtime = ThreadRuntime()
        host = Host(runtime=runtime, broker_config=CLEANS_SOON)  # type: ignore[arg-type]
        assert begun.wait(patience())
        assert not ended.is_set()
        host.manager.shutdown()
        assert ended.is_set()
        host.log_manager.close()
        runtime.close()

    def test_the_cleaner_is_a_matter_of_configuration(self) -> None:
        for threads, enabled in ((3, True), (3, False)):
            keys = {"log.cleaner.threads": threads, "log.cleaner.enable": enabled}
            host = Host(broker_config=keys)
            duties = host.log_manager.duties
            assert duties is not None
            cleaners = [duty for duty in duties.list if duty.name == LOG_CLEANER]
            assert len({duty.thread for duty in cleaners}) == (threads if enabled else 0)


@pytest.mark.parametrize(
    "order",
    [
        pytest.param(lambda host, tps: [host.change(tp) for tp in tps], id="lead"),
        pytest.param(lambda host, tps: [host.change(tp, leader=2) for tp in tps], id="follow"),
    ],
)
def test_cost_of_an_order_grows_with_its_partitions(
    order: Callable[[Host, list[TopicPartition]], list[PartitionChange]],
) -> None:
    """1,000 partitions are one request: the work for each must not depend on how many there are."""

    def operations(count: int) -> int:
        """Changes of the disk, syncs included."""
        host = Host()
        changes = order(host, [TopicPartition("orders", n) for n in range(count)])
        before = host.storage.operations
        host.order(*changes)
        return host.storage.operations - before

    assert 0 < operations(40) <= 4 * operations(10)


def test_a_restarted_broker_is_another_incarnation() -> None:
    """R-52: what it hears of the others counts for its own epoch too."""
    host = Host()
    host.brokers = live(1, 2)
    host.lead()
    assert host.metadata.eligible(2, EPOCH + 2)
    assert not host.metadata.eligible(3, EPOCH + 3)


def test_a_role_that_cannot_be_taken_is_spoken_of_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The controller asks again as long as the topic is there."""
    monkeypatch.setattr(role_changes, "limited", LimitedLogger(role_changes.logger))
    host = Host()
    tp = TopicPartition("__cluster_metadata", 0)
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            response = host.order(host.change(tp))
            assert response.partitions == ((tp, ErrorCode.INVALID_TOPIC_EXCEPTION),)
    assert len([line for line in caplog.messages if "keeps its role" in line]) == 1
