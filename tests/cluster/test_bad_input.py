"""What a cluster is asked that it must refuse, and what it meets that it must survive, end to end.

Each time: a typed error, nothing changed by it, and the cluster goes on.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from checkpoints.types import TopicPartition
from logstore.common.errors import ConfigError, OffsetOutOfRangeError
from logstore.testing import FaultyStorage
from replication.broker.broker import BrokerState
from replication.client import Producer
from replication.common.config import ReplicationConfig
from replication.common.error_codes import ErrorCode
from replication.common.errors import (
    BrokerUnavailableError,
    NotEnoughReplicasError,
    UnknownPartitionError,
)
from replication.common.messages import (
    AlterPartitionItem,
    AlterPartitionRequest,
    DeleteTopicRequest,
    FetchPartition,
    FetchRequest,
    LeaderAndIsrRequest,
    ListOffsetsPartition,
    ListOffsetsRequest,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    PartitionChange,
    ProducePartition,
    ProduceRequest,
    Request,
    StopReplicaPartition,
    StopReplicaRequest,
    UpdateMetadataRequest,
)
from replication.coordination import SessionState
from replication.embedded.cluster import Cluster
from tests.cluster.load import check_replicas
from tests.support.builders import batch
from tests.support.until import patience

pytestmark = pytest.mark.slow

FAST = ReplicationConfig(
    replica_lag_time_max_ms=400,
    replica_fetch_wait_max_ms=50,
    replica_fetch_backoff_ms=50,
    controlled_shutdown_retry_backoff_ms=50,
)
TWO = {"min.insync.replicas": 2}
UNKNOWN = TopicPartition("nothing", 0)

Make = Callable[..., Cluster]


@pytest.fixture
def make(make_logstore_cluster: Make) -> Make:
    def build(brokers: int = 3, **options: object) -> Cluster:
        return make_logstore_cluster(brokers, **{"config": FAST, **options})

    return build


def ask(cluster: Cluster, broker_id: int, request: Request) -> object:
    return cluster.client.call(broker_id, request, patience())


def values(cluster: Cluster, topic: str = "orders") -> list[bytes | None]:
    return [record.value for record in cluster.read_all(topic)[0]]


class Orders:
    """A cluster with one partition and two committed records; ``unchanged`` looks at the end."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        (self.tp,) = cluster.create_topic("orders", config=TWO)
        cluster.produce("orders", b"one")
        cluster.produce("orders", b"two")
        self.leader = cluster.wait_for_leader(self.tp)
        cluster.wait_for_isr(self.tp, (0, 1, 2))
        self.before = self.state()

    def state(self) -> list[object]:
        """Once every replica knows of the last change of the ISR."""
        replicas = [self.cluster.replica(self.tp, b) for b in self.cluster.broker_ids]
        self.cluster.wait_until(lambda: len({r.partition_epoch for r in replicas}) == 1)
        return [
            (r.is_leader, r.leader_id, r.leader_epoch, r.partition_epoch, r.log_end_offset)
            for r in replicas
        ]

    def epoch(self) -> int:
        return self.cluster.replica(self.tp, self.leader).leader_epoch

    def check_goes_on(self) -> None:
        assert self.state() == self.before
        self.cluster.produce("orders", b"three")
        assert values(self.cluster) == [b"one", b"two", b"three"]
        check_replicas(self.cluster, [self.tp])


@pytest.fixture
def orders(make: Make) -> Orders:
    """No broker leaves the in-sync set by itself, however long the machine stalls it."""
    return Orders(make(config=replace(FAST, replica_lag_time_max_ms=300_000)))


class TestRequests:
    """R-52, R-79 … R-82, R-97 … R-105: codes of Kafka, one for each partition."""

    @pytest.mark.parametrize(
        ("records", "acks", "code"),
        [
            (batch(), 2, ErrorCode.INVALID_REQUIRED_ACKS),
            (batch(), -2, ErrorCode.INVALID_REQUIRED_ACKS),
            (batch(value=bytes(2 << 20)), -1, ErrorCode.MESSAGE_TOO_LARGE),
            (batch()[:-1] + b"x", -1, ErrorCode.CORRUPT_MESSAGE),
            (batch()[:40], -1, ErrorCode.INVALID_RECORD),
            (b"no batch at all", -1, ErrorCode.INVALID_RECORD),
        ],
        ids=["acks 2", "acks -2", "too large", "checksum", "cut short", "garbage"],
    )
    def test_produce(self, orders: Orders, records: bytes, acks: int, code: ErrorCode) -> None:
        request = ProduceRequest(acks, 1000, (ProducePartition(orders.tp, records),))
        (part,) = ask(orders.cluster, orders.leader, request).partitions
        assert (part.error_code, part.base_offset) == (code, -1)
        orders.check_goes_on()

    def test_one_bad_partition_does_not_stop_the_others(self, orders: Orders) -> None:
        request = ProduceRequest(
            -1, 5000, (ProducePartition(UNKNOWN, batch()), ProducePartition(orders.tp, batch()))
        )
        bad, good = ask(orders.cluster, orders.leader, request).partitions
        assert bad.error_code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert (good.error_code, good.base_offset) == (ErrorCode.NONE, 2)

    def test_produce_to_a_follower(self, orders: Orders) -> None:
        follower = (orders.leader + 1) % 3
        request = ProduceRequest(-1, 1000, (ProducePartition(orders.tp, batch()),))
        (part,) = ask(orders.cluster, follower, request).partitions
        assert part.error_code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert part.current_leader == (orders.leader, orders.epoch())
        orders.check_goes_on()

    @pytest.mark.parametrize(
        ("offset", "epoch", "code"),
        [
            (3, 0, ErrorCode.OFFSET_OUT_OF_RANGE),
            (-1, 0, ErrorCode.OFFSET_OUT_OF_RANGE),
            (2**62, 0, ErrorCode.OFFSET_OUT_OF_RANGE),
            (0, -1, ErrorCode.FENCED_LEADER_EPOCH),
            (0, 1, ErrorCode.UNKNOWN_LEADER_EPOCH),
        ],
        ids=["beyond the end", "negative", "far beyond", "old epoch", "future epoch"],
    )
    def test_fetch(self, make: Make, offset: int, epoch: int, code: ErrorCode) -> None:
        """R-97 … R-103; ``epoch`` is relative to the leader's."""
        cluster = make()
        orders = Orders(cluster)
        cluster.crash(orders.leader)  # so that there is an epoch before this one
        after = cluster.wait_for_leader(orders.tp, orders.leader)
        cluster.start(orders.leader)
        cluster.wait_for_isr(orders.tp, (0, 1, 2))
        orders.leader, orders.before = after, orders.state()
        part = FetchPartition(
            orders.tp,
            offset,
            current_leader_epoch=cluster.replica(orders.tp, after).leader_epoch + epoch,
        )
        (answer,) = ask(cluster, after, FetchRequest((part,), max_wait_ms=0)).partitions
        assert (answer.error_code, bytes(answer.records)) == (code, b"")
        orders.check_goes_on()

    def test_fetch_below_the_start(self, orders: Orders) -> None:
        """R-102, R-96: after DeleteRecords; a consumer without a reset learns where records are."""
        from replication.common.messages import DeleteRecordsRequest

        cluster = orders.cluster
        (deleted,) = ask(
            cluster, orders.leader, DeleteRecordsRequest(((orders.tp, 1),), 5000)
        ).partitions
        assert (deleted.error_code, deleted.low_watermark) == (ErrorCode.NONE, 1)
        consumer = cluster.consumer(orders.tp, reset=None)
        consumer.seek(orders.tp, 0)
        with pytest.raises(OffsetOutOfRangeError):
            consumer.poll(0)
        assert values(cluster) == [b"two"]

    def test_a_broker_that_holds_no_replica_fetches(self, orders: Orders) -> None:
        request = FetchRequest(
            (FetchPartition(orders.tp, 0, current_leader_epoch=orders.epoch()),),
            replica_id=9,
            max_wait_ms=0,
        )
        (answer,) = ask(orders.cluster, orders.leader, request).partitions
        assert answer.error_code is ErrorCode.UNKNOWN_LEADER_EPOCH
        assert orders.cluster.isr(orders.tp) == (0, 1, 2)
        orders.check_goes_on()

    def test_an_unknown_partition(self, orders: Orders) -> None:
        """Every request that names one."""
        cluster, leader = orders.cluster, orders.leader
        requests: list[Request] = [
            ProduceRequest(-1, 1000, (ProducePartition(UNKNOWN, batch()),)),
            FetchRequest((FetchPartition(UNKNOWN, 0),), max_wait_ms=0),
            ListOffsetsRequest((ListOffsetsPartition(UNKNOWN, -1),)),
            OffsetForLeaderEpochRequest((OffsetForLeaderPartition(UNKNOWN, 0),)),
        ]
        for request in requests:
            (part,) = ask(cluster, leader, request).partitions
            assert part.error_code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        with pytest.raises(UnknownPartitionError):
            cluster.producer(delivery_timeout_s=0.5).send("nothing", b"v")
        refused = cluster._topics._ask_controller(DeleteTopicRequest("nothing"))
        assert refused.error_code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        orders.check_goes_on()

    def test_a_deleted_topic(self, orders: Orders) -> None:
        """Whoever still asks hears that it is unknown, and files are gone from every broker."""
        cluster = orders.cluster
        request = FetchRequest((FetchPartition(orders.tp, 0),), max_wait_ms=0)
        cluster.delete_topic("orders")
        for broker_id in cluster.broker_ids:
            (part,) = ask(cluster, broker_id, request).partitions
            assert part.error_code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert orders.tp not in cluster.broker(broker_id).log_manager.logs
        cluster.create_topic("orders", config=TWO)
        cluster.produce("orders", b"new")
        assert values(cluster) == [b"new"]


class TestOldOrders:
    """S-11, R-16, R-18, R-52: a controller, an order or a leader of an earlier time."""

    def change(self, orders: Orders, **fields: object) -> PartitionChange:
        known = orders.cluster.broker(0).metadata.registration(orders.tp)
        topic_id = orders.cluster.broker(0).metadata.topic_id("orders")
        assert known is not None
        return PartitionChange(orders.tp, known._replace(**fields), topic_id)

    def test_a_controller_that_was_replaced(self, orders: Orders) -> None:
        cluster = orders.cluster
        epoch = cluster.broker(0).replica_manager.controller_epoch
        change = self.change(orders, leader=0, leader_epoch=orders.epoch() + 9)
        stop = StopReplicaPartition(orders.tp, orders.epoch() + 9, delete=True)
        for broker_id in cluster.broker_ids:
            header = (1, epoch - 1, cluster.broker(broker_id).broker_epoch)
            for request in (
                LeaderAndIsrRequest(*header, (change,), ()),
                UpdateMetadataRequest(*header, (change,), ()),
                StopReplicaRequest(*header, (stop,)),
            ):
                answer = ask(cluster, broker_id, request)
                assert answer.error_code is ErrorCode.STALE_CONTROLLER_EPOCH
        orders.check_goes_on()

    def test_an_order_to_an_earlier_incarnation(self, orders: Orders) -> None:
        cluster = orders.cluster
        header = (1, cluster.broker(0).replica_manager.controller_epoch)
        stop = StopReplicaPartition(orders.tp, orders.epoch(), delete=True)
        broker_epoch = cluster.broker(0).broker_epoch - 1
        answer = ask(cluster, 0, StopReplicaRequest(*header, broker_epoch, (stop,)))
        assert answer.error_code is ErrorCode.STALE_BROKER_EPOCH
        orders.check_goes_on()

    def test_an_order_of_an_old_leader_epoch(self, orders: Orders) -> None:
        cluster = orders.cluster
        header = (
            1,
            cluster.broker(0).replica_manager.controller_epoch,
            cluster.broker(0).broker_epoch,
        )
        live = tuple(cluster.broker(0).metadata.live_brokers.values())
        change = self.change(orders, leader=0, leader_epoch=orders.epoch() - 1, partition_epoch=0)
        answer = ask(cluster, 0, LeaderAndIsrRequest(*header, (change,), live))
        assert answer.partitions == ((orders.tp, ErrorCode.STALE_CONTROLLER_EPOCH),)
        orders.check_goes_on()

    @pytest.mark.parametrize("what", ["leader epoch", "partition epoch", "broker epoch", "member"])
    def test_a_zombie_asks_for_another_isr(self, orders: Orders, what: str) -> None:
        """R-42 … R-49: it is judged by what the controller knows."""
        cluster, leader = orders.cluster, orders.leader
        replica = cluster.replica(orders.tp, leader)
        epochs = [replica.leader_epoch, replica.partition_epoch]
        members = [(b, cluster.broker(b).broker_epoch) for b in (leader, (leader + 1) % 3)]
        broker_epoch = cluster.broker(leader).broker_epoch
        if what == "leader epoch":
            epochs[0] -= 1
        elif what == "partition epoch":
            epochs[1] -= 1
        elif what == "broker epoch":
            broker_epoch -= 1
        else:
            members[1] = (members[1][0], members[1][1] - 1)
        topic_id = cluster.broker(leader).metadata.topic_id(orders.tp.topic)
        item = AlterPartitionItem(orders.tp, *epochs, tuple(members), topic_id=topic_id)
        controller = cluster.controller_id
        assert controller is not None
        answer = ask(cluster, controller, AlterPartitionRequest(leader, broker_epoch, (item,)))
        if what == "broker epoch":
            assert answer.error_code is ErrorCode.STALE_BROKER_EPOCH
        else:
            wanted = {
                "leader epoch": ErrorCode.FENCED_LEADER_EPOCH,
                "partition epoch": ErrorCode.INVALID_UPDATE_VERSION,
                "member": ErrorCode.INELIGIBLE_REPLICA,
            }
            assert [result.error_code for result in answer.partitions] == [wanted[what]]
        assert cluster.isr(orders.tp) == (0, 1, 2)
        orders.check_goes_on()


class TestCoordinator:
    def test_no_coordinator_for_a_while(self, make: Make) -> None:
        """Known leaders serve on; roles change, and topics are made, when it is back."""
        cluster = make(session_timeout_ms=60_000)
        orders = Orders(cluster)
        for broker_id in cluster.broker_ids:
            cluster.session(broker_id).suspend()
        cluster.produce("orders", b"three")
        with pytest.raises(BrokerUnavailableError):
            cluster.client.new_producer_id(timeout_s=0.1)
        made = threading.Thread(target=cluster.create_topic, args=("later",))
        made.start()
        cluster.produce("orders", b"four")
        assert orders.state()[orders.leader][:4] == orders.before[orders.leader][:4]
        assert made.is_alive()
        for broker_id in cluster.broker_ids:
            cluster.session(broker_id).resume()
        made.join(patience())
        cluster.crash(orders.leader)
        cluster.wait_for_leader(orders.tp, orders.leader)
        cluster.start(orders.leader)
        cluster.produce("later", b"v")
        assert values(cluster) == [b"one", b"two", b"three", b"four"]
        check_replicas(cluster, [orders.tp])

    @pytest.mark.parametrize("who", ["leader", "follower", "all"])
    def test_a_session_expires(self, orders: Orders, who: str) -> None:
        """R-63: the process lives on, registers under a higher epoch, and lost nothing."""
        cluster = orders.cluster
        chosen = {
            "leader": [orders.leader],
            "follower": [(orders.leader + 1) % 3],
            "all": [0, 1, 2],
        }[who]
        before = {b: cluster.broker(b).broker_epoch for b in chosen}
        sessions = [cluster.session(b) for b in chosen]
        for session in sessions:
            cluster.coordinator.expire(session)
        assert all(session.state is SessionState.EXPIRED for session in sessions)
        cluster.wait_until(lambda: all(cluster.broker(b).broker_epoch > before[b] for b in chosen))
        cluster.wait_for_isr(orders.tp, (0, 1, 2))
        # What is sent again after an unknown outcome is there once only with idempotence.
        Producer(cluster.client, idempotent=True).send("orders", b"three")
        assert values(cluster) == [b"one", b"two", b"three"]
        check_replicas(cluster, [orders.tp])


class TestDisks:
    def test_a_followers_disk_fills(self, make: Make) -> None:
        """R-122, R-151: its only directory fails, it is gone as after a crash, the others go on."""
        disk = FaultyStorage()
        cluster = make(storages={2: disk}, session_timeout_ms=600)
        (tp,) = cluster.create_topic("orders", assignment=[[0, 1, 2]], config=TWO)
        cluster.produce("orders", b"before")
        cluster.wait_for_isr(tp, (0, 1, 2))
        disk.capacity = 0
        for _ in range(3):
            cluster.produce("orders", bytes(1000))
        cluster.wait_for_isr(tp, (0, 1))
        assert disk.struck["disk_full"] > 0
        cluster.wait_until(lambda: cluster._brokers[2].state is BrokerState.STOPPED)
        with pytest.raises(BrokerUnavailableError):
            cluster.broker(2)
        assert len(values(cluster)) == 4
        disk.capacity = None
        cluster.start(2)
        check_replicas(cluster, [tp])

    def test_one_of_two_directories_fails(self, make: Make, tmp_path: Path) -> None:
        """R-151 … R-155, R-66: what was in it is offline and led elsewhere, the rest goes on."""
        disk = FaultyStorage()
        cluster = make(storages={0: disk}, log_dirs_per_broker=2)
        tps = cluster.create_topic("orders", assignment=[[0, 1, 2]] * 4, config=TWO)
        for tp in tps:
            cluster.produce("orders", b"before", partition=tp.partition)
            cluster.wait_for_isr(tp, (0, 1, 2))
        bad, good = cluster.log_dirs(0)
        lost = [tp for tp in tps if cluster.replica(tp, 0).local_log().directory.startswith(bad)]
        kept = [tp for tp in tps if tp not in lost]
        assert len(lost) == len(kept) == 2
        disk.fail("write", f"{bad}/*", error=errno.EIO, times=1 << 30)
        for tp in tps:
            cluster.produce("orders", b"after", partition=tp.partition)
        assert cluster.broker(0).log_manager.live_directories == [good]
        for tp in lost:
            assert cluster.wait_for_leader(tp, 0) in (1, 2)
            cluster.wait_for_isr(tp, (1, 2))
            request = FetchRequest((FetchPartition(tp, 0),), max_wait_ms=0)
            (answer,) = ask(cluster, 0, request).partitions
            assert answer.error_code is ErrorCode.KAFKA_STORAGE_ERROR
        for tp in kept:
            assert cluster.leader(tp) == 0
        check_replicas(cluster, kept)
        disk.heal()
        cluster.restart(0)
        check_replicas(cluster, tps)
        found = cluster.read_all("orders")
        assert all(
            [r.value for r in records] == [b"before", b"after"] for records in found.values()
        )

    @pytest.mark.parametrize("number", [errno.EACCES, errno.ENOENT, errno.EPERM])
    def test_one_log_of_a_directory_fails(self, make: Make, number: int) -> None:
        """It is led elsewhere, and the only directory of its broker goes on."""
        disk = FaultyStorage()
        cluster = make(storages={0: disk})
        tps = cluster.create_topic("orders", assignment=[[0, 1, 2]] * 2, config=TWO)
        for tp in tps:
            cluster.produce("orders", b"before", partition=tp.partition)
            cluster.wait_for_isr(tp, (0, 1, 2))
        lost, kept = tps
        disk.fail("write", f"*/{lost}/*", error=number, times=1 << 30)
        for tp in tps:
            cluster.produce("orders", b"after", partition=tp.partition)
        assert cluster.wait_for_leader(lost, 0) in (1, 2)
        assert cluster.leader(kept) == 0
        check_replicas(cluster, [kept])
        disk.heal()
        cluster.restart(0)
        check_replicas(cluster, tps)
        found = cluster.read_all("orders")
        assert all(
            [r.value for r in records] == [b"before", b"after"] for records in found.values()
        )


class TestUncleanElection:
    def test_allowed_it_is_made_and_reported(self, make: Make) -> None:
        """R-59, R-69, S-18: the topic is available again without what only the dead one had."""
        cluster = make()
        (tp,) = cluster.create_topic(
            "orders", assignment=[[0, 1]], config={"unclean.leader.election.enable": "true"}
        )
        cluster.produce("orders", b"both have it")
        cluster.crash(1)
        cluster.wait_for_isr(tp, (0,))
        cluster.produce("orders", b"lost")
        epoch = cluster.replica(tp, 0).leader_epoch
        cluster.crash(0)
        cluster.start(1)
        assert cluster.wait_for_leader(tp) == 1
        assert cluster.replica(tp, 1).leader_epoch > epoch
        counted = [b.controller.stats.unclean_leader_elections for b in cluster.running()]
        assert sum(counted) == 1
        cluster.produce("orders", b"goes on")
        cluster.start(0)
        check_replicas(cluster, [tp])
        assert values(cluster) == [b"both have it", b"goes on"]

    def test_too_few_replicas_are_named(self, orders: Orders) -> None:
        """R-83: nothing is written while the ISR is too small."""
        cluster = orders.cluster
        others = [b for b in (0, 1, 2) if b != orders.leader]
        for broker_id in others:
            cluster.crash(broker_id)
        cluster.wait_for_isr(orders.tp, (orders.leader,))
        with pytest.raises(NotEnoughReplicasError):
            cluster.producer(delivery_timeout_s=1.0).send("orders", b"refused")
        for broker_id in others:
            cluster.start(broker_id)
        cluster.wait_for_isr(orders.tp, (0, 1, 2))
        cluster.produce("orders", b"three")
        assert values(cluster) == [b"one", b"two", b"three"]


@pytest.mark.parametrize("brokers", [0, (), (1, 1)])
def test_a_cluster_has_brokers_and_each_once(tmp_path: Path, brokers: Any) -> None:
    with pytest.raises(ConfigError, match="one at least, and each id once"):
        Cluster(brokers, tmp_path / "cluster")
    assert not (tmp_path / "cluster").exists()
