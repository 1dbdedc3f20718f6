"""Logs that know later epochs than the cluster: another one wrote them, or its tree was lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkpoints.types import TopicPartition
from logstore.common.clock import SystemClock
from logstore.format.batch import end_transaction_marker
from logstore.format.control import ControlType
from logstore.log import PartitionLog
from logstore.segments.leader_epochs import EpochEntry
from logstore.segments.producer_state import AppendOrigin
from replication.common.error_codes import ErrorCode
from replication.common.internal_topics import TRANSACTION_STATE
from replication.common.state import MAX_EPOCH_OF_A_LOG
from replication.server.serving import ServedCluster, serve
from tests.support.builders import batch
from tests.support.cases import for_each
from tests.support.controllers import T0, Brokers
from tests.support.replica_managers import TP, Host
from tests.support.served import connect
from tests.support.until import until
from tests.support.wire_producer import WireProducer

STATE = TopicPartition(TRANSACTION_STATE, 0)
FENCED = ErrorCode.FENCED_LEADER_EPOCH


class TestController:
    @for_each("broker", [1, 2])
    def test_it_elects_above_a_log_that_is_ahead(self, broker: int) -> None:
        """R-181: whether that of the leader or of a follower; nobody leaves the ISR for it."""
        b = Brokers()
        b.brokers[broker].log_epochs[T0] = 7
        b.create()
        now = b.partition()
        assert (now.leader, now.leader_epoch, now.isr) == (1, 8, (1, 2, 3))
        b.settle(60_000)  # what was refused is repeated, and changes nothing more
        assert b.partition() == now
        assert all(b.brokers[each].told[T0] == now for each in b.ids)
        b.check()

    def test_a_broker_that_comes_later_may_be_ahead(self) -> None:
        b = Brokers()
        b.create()
        b.kill(3)
        b.brokers[3].log_epochs[T0] = 40
        b.start(3)
        assert b.partition().leader_epoch == 41
        assert b.brokers[3].told[T0] == b.partition()

    def test_an_epoch_that_leaves_no_room_is_not_outranked(self) -> None:
        b = Brokers()
        b.brokers[1].log_epochs[T0] = MAX_EPOCH_OF_A_LOG + 1
        b.create()
        b.create("u")
        b.settle(60_000)
        assert b.partition().leader_epoch == 0
        assert b.brokers[1].told[TopicPartition("u", 0)].leader_epoch == 0

    def test_coordinators_begin_at_the_largest_epoch_of_any_log(self) -> None:
        """R-182: in a topic that comes later, in one that is there, and again for a broker that
        comes later; partitions that are above stay as they are."""
        b = Brokers()
        b.kill(2, 3)
        b.start(2, coordinator_epoch=14)
        b.create(TRANSACTION_STATE, ((1, 2), (1, 2)))
        b.create("t", ((1, 2),))
        other = TopicPartition(TRANSACTION_STATE, 1)
        epochs = [b.partition(tp).leader_epoch for tp in (STATE, other, T0)]
        assert epochs == [14, 14, 0]
        b.reassign((2, 1, 3), other)
        assert b.partition(other).leader_epoch > 14
        before = b.partition(other)
        b.start(3, coordinator_epoch=before.leader_epoch)
        assert b.partition(STATE).leader_epoch == before.leader_epoch
        assert b.partition(other).leader_epoch == before.leader_epoch
        assert b.partition(STATE).leader == 1


def _restarted(host: Host) -> Host:
    host.log_manager.crash()
    return Host(storage=host.storage)


class TestBroker:
    @staticmethod
    def with_epoch(epoch: int) -> Host:
        """A broker that has just started, on a log with a record of this epoch."""
        host = Host()
        log = host.lead(epoch=epoch).local_log()
        log.append_as_leader(batch(), epoch)
        return _restarted(host)

    @for_each("epoch, leader, refused", [(4, 1, 1), (5, 1, 1), (6, 1, 0), (4, 2, 1), (5, 2, 0)])
    def test_an_order_below_the_log_is_refused(self, epoch: int, leader: int, refused: int) -> None:
        """R-181: to lead in the log's own epoch, too; to follow there is what every start does."""
        host = self.with_epoch(5)
        change = host.change(epoch=epoch, leader=leader)
        response = host.order(change)
        if not refused:
            assert response.partitions == ((TP, ErrorCode.NONE),)
            assert not response.log_epochs
            return
        assert response.partitions == ((TP, FENCED),)
        assert response.log_epochs == {TP: 5}
        assert not host.partition().is_leader
        assert host.partition().local_log().epochs.entries == ((5, 0),)
        host.lead(epoch=6)
        host.append()
        assert host.partition().local_log().epochs.entries == ((5, 0), (6, 1))

    def test_an_epoch_without_a_record_may_be_begun_again(self) -> None:
        host = Host()
        host.lead(epoch=5)
        _restarted(host).lead(epoch=5)

    @for_each("leader, again", [(1, 2), (2, 2), (1, 1), (2, 1)])
    def test_elections_go_on_above_the_largest_that_a_log_may_bring(
        self, leader: int, again: int
    ) -> None:
        """R-181: it was outranked, and what this cluster elected itself is no damage."""
        above = MAX_EPOCH_OF_A_LOG + 1
        host = self.with_epoch(MAX_EPOCH_OF_A_LOG)
        host.lead(epoch=above)
        host.append()
        host = _restarted(host)
        if leader == 2:
            host.follow(epoch=above)
        response = host.order(host.change(epoch=above + 1, leader=again))
        assert response.partitions == ((TP, ErrorCode.NONE),)
        assert not host.failed_directories

    def test_one_log_with_an_impossible_epoch_does_not_stop_the_others(self) -> None:
        other = TopicPartition("others", 0)
        again = self.with_epoch(2**31 - 1)
        response = again.order(again.change(epoch=3), again.change(other, epoch=3, topic_id=None))
        assert dict(response.partitions) == {
            TP: ErrorCode.KAFKA_STORAGE_ERROR,
            other: ErrorCode.NONE,
        }
        assert not response.log_epochs


# -- through the front door ----------------------------------------------------------------------

CONFIG = {"transaction.state.log.num.partitions": 4, "offsets.topic.num.partitions": 4}


def _served(directory: Path) -> ServedCluster:
    return serve(directory, config=CONFIG)


def _ends(kafka: ServedCluster, tp: TopicPartition) -> bool:
    log = kafka.replica(tp, 0).local_log()
    return log.snapshot.last_stable_offset == log.log_end_offset


def _marked(directory: Path, producer_id: int, coordinator_epoch: int) -> tuple[EpochEntry, ...]:
    """Another cluster's coordinator aborts in this log. Its epochs."""
    with PartitionLog.open(directory) as log:
        marker = end_transaction_marker(
            ControlType.ABORT,
            producer_id=producer_id,
            producer_epoch=0,
            coordinator_epoch=coordinator_epoch,
            timestamp=SystemClock().wall_ms(),
        )
        log.append_as_leader(marker, 12, AppendOrigin.COORDINATOR)
        return log.epochs.entries


@pytest.mark.slow
def test_transactions_of_a_known_producer_go_on_in_logs_of_an_older_cluster(
    tmp_path: Path,
) -> None:
    """R-181, R-182: one is open, its log has markers and batches of much later elections."""
    with _served(tmp_path) as kafka:
        (tp,) = kafka.create_topic("t")
        with connect(kafka) as client:
            producer = WireProducer(kafka, client, "shop")
            producer.init()
            producer.add(tp)
            assert producer.send(tp) == 0
    entries = _marked(tmp_path / "broker-0" / "t-0", producer.producer_id, 14)
    assert entries[-1] == (12, 1)
    with _served(tmp_path) as kafka, connect(kafka) as client:
        again = WireProducer(kafka, client, "shop")
        assert again.init() == 0
        assert again.producer_id == producer.producer_id
        for sequence in range(2):
            assert again.add(tp) == [0]
            assert again.send(tp, sequence) == 0
            assert again.end() == 0
            until(lambda: _ends(kafka, tp), "the marker")
        found = kafka.replica(tp, 0).local_log().epochs.entries
        assert found[: len(entries)] == entries
        assert found[-1].epoch == 13
        known = kafka.broker(0).metadata.registration(STATE)
        assert known is not None
        assert known.leader_epoch >= 14
        consumer = kafka.consumer(tp, isolation="read_committed")
        assert [record.value for _, record in consumer.read_to_end()] == [b"shop-0", b"shop-1"]


@pytest.mark.slow
def test_an_impossible_coordinator_epoch_spoils_nothing_for_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """R-182: a hostile log of one producer; it is named."""
    with _served(tmp_path) as kafka:
        (tp,) = kafka.create_topic("t")
        with connect(kafka) as client:
            WireProducer(kafka, client, "shop").init()
    _marked(tmp_path / "broker-0" / "t-0", 5, 2**31 - 1)
    with _served(tmp_path) as kafka, connect(kafka) as client:
        for name in ("shop", "other"):
            producer = WireProducer(kafka, client, name)
            assert producer.init() == 0
            assert producer.producer_id != 5
            assert producer.add(tp) == [0]
            until(lambda producer=producer: producer.send(tp) == 0, "the topic has its leader")
            assert producer.end() == 0
            until(lambda: _ends(kafka, tp), "the marker")
        known = kafka.broker(0).metadata.registration(STATE)
        assert known is not None
        assert known.leader_epoch < 10
    assert [r for r in caplog.records if f"{2**31 - 1}, above" in r.getMessage()]
