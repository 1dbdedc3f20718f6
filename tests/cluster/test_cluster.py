"""The embedded cluster end to end: real files, real threads, clients that retry."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from checkpoints.meta_properties import MetaPropertiesFile
from checkpoints.types import TopicPartition
from logstore.common.errors import ConfigError, InvalidRecordError
from logstore.common.partitioner import murmur2, murmur3, partitioner
from logstore.format.batch import encode_batch
from logstore.storage.local import LocalStorage
from logstore.verify import Severity, verify
from replication.common.config import ReplicationConfig
from replication.common.error_codes import ErrorCode
from replication.common.errors import (
    InvalidRequiredAcksError,
    LeaderNotAvailableError,
    LogTruncationError,
    NotEnoughReplicasError,
    ReplicationError,
    ResponseError,
    TopicRecreatedError,
    UnknownPartitionError,
)
from replication.embedded.cluster import Cluster

pytestmark = pytest.mark.slow

FAST = ReplicationConfig(
    replica_lag_time_max_ms=400,
    replica_fetch_wait_max_ms=50,
    replica_fetch_backoff_ms=50,
    controlled_shutdown_retry_backoff_ms=50,
)
TWO = {"min.insync.replicas": 2}

Make = Callable[..., Cluster]


@pytest.fixture
def make(make_logstore_cluster: Make) -> Make:
    def build(brokers: int = 3, **options: object) -> Cluster:
        return make_logstore_cluster(brokers, **{"config": FAST, **options})

    return build


@pytest.fixture
def cluster(make: Make) -> Cluster:
    return make()


def numbered(count: int, start: int = 0) -> Iterator[bytes]:
    return (b"record-%06d" % number for number in range(start, start + count))


def values(cluster: Cluster, topic: str, partition: int = 0) -> list[bytes | None]:
    return [record.value for record in cluster.read_all(topic)[partition]]


def assert_equal_replicas(cluster: Cluster, tp: TopicPartition) -> None:
    """I-22: the same bytes on every live replica, up to the same end."""
    leader = cluster.wait_for_leader(tp)
    replicas = cluster.replica(tp, leader).replicas
    cluster.wait_for_isr(tp, replicas)
    end = cluster.replica(tp, leader).log_end_offset
    cluster.wait_until(
        lambda: all(cluster.replica(tp, b).log_end_offset == end for b in replicas), "equal ends"
    )
    images = {
        b"".join(s.log.read_at(0, s.size) for s in cluster.replica(tp, b).local_log().segments)
        for b in replicas
    }
    assert len(images) == 1


class TestProduceAndConsume:
    def test_what_is_acknowledged_is_read(self, cluster: Cluster) -> None:
        (tp,) = cluster.create_topic("orders", config=TWO)
        sent = list(numbered(50))
        for value in sent:
            cluster.produce("orders", value)
        assert values(cluster, "orders") == sent
        assert_equal_replicas(cluster, tp)

    @pytest.mark.parametrize(("name", "hash_key"), [("murmur2", murmur2), ("murmur3", murmur3)])
    def test_keys_choose_the_partition(
        self, cluster: Cluster, name: str, hash_key: Callable[[bytes], int]
    ) -> None:
        cluster.create_topic("orders", 5)
        producer = cluster.producer(partitioner_name=name)
        for number in range(20):
            key = b"key-%d" % number
            sent = producer.send("orders", b"v", key)
            assert sent.tp.partition == (hash_key(key) & 0x7FFFFFFF) % 5

    def test_acks_0_and_1(self, cluster: Cluster) -> None:
        cluster.create_topic("orders")
        for acks in (0, 1):
            cluster.producer(acks=acks).send("orders", b"%d" % acks)
        cluster.wait_until(lambda: len(values(cluster, "orders")) == 2)

    def test_consumer_waits_for_what_comes(self, cluster: Cluster) -> None:
        (tp,) = cluster.create_topic("orders")
        consumer = cluster.consumer(tp)
        assert consumer.poll(10) == []
        sender = threading.Thread(target=cluster.produce, args=("orders", b"late"))
        sender.start()
        found = consumer.poll(10_000)
        sender.join()
        assert [record.value for _, record in found] == [b"late"]

    def test_an_idempotent_producer_writes_once(self, cluster: Cluster) -> None:
        """S-56: the same batch again, on another leader, too."""
        (tp,) = cluster.create_topic("orders", config=TWO)
        producer_id = cluster.client.new_producer_id()
        batch = encode_batch(
            [(None, b"a"), (None, b"b")], producer_id=producer_id, producer_epoch=0, base_sequence=0
        )
        producer = cluster.producer()
        first = producer.send_encoded(tp, batch)
        assert producer.send_encoded(tp, batch) == first
        leader = cluster.leader(tp)
        assert leader is not None
        cluster.crash(leader)
        assert producer.send_encoded(tp, batch) == first
        assert values(cluster, "orders") == [b"a", b"b"]

    def test_a_batch_of_unknown_outcome_does_not_take_the_place_of_the_next(
        self, make: Make
    ) -> None:
        """KIP-360: the next one goes under another epoch; also where it has as many records."""
        cluster = make(config=ReplicationConfig(**_fields(FAST, replica_lag_time_max_ms=60_000)))
        (tp,) = cluster.create_topic("orders", config=TWO)
        producer = cluster.producer(idempotent=True, delivery_timeout_s=2.0, request_timeout_ms=500)
        producer.send("orders", b"zero")
        leader = cluster.wait_for_leader(tp)
        for follower in cluster.broker_ids:
            cluster.network.cut(follower, leader)  # appended, and nobody hears of it
        with pytest.raises(ReplicationError):
            producer.send("orders", b"one")
        cluster.heal()
        assert producer.send("orders", b"two").base_offset == 2
        assert producer.send_batch("orders", 0, [(None, b"3"), (None, b"4")]).base_offset == 3
        assert values(cluster, "orders") == [b"zero", b"one", b"two", b"3", b"4"]

    def test_records_with_keys_are_one_batch_for_each_partition(self, cluster: Cluster) -> None:
        cluster.create_topic("orders", 3, config=TWO)
        keyed = [(b"key-%d" % n, b"%d" % n) for n in range(20)]
        sent = cluster.producer().send_keyed("orders", keyed)
        assert {each.base_offset for each in sent.values()} == {0}
        found = cluster.read_all("orders")
        assert {p: each.record_count for p, each in sent.items()} == {
            p: len(records) for p, records in found.items() if records
        }
        spread = partitioner("murmur2")
        for partition, records in found.items():
            assert [(record.key, record.value) for record in records] == [
                each for each in keyed if spread.partition(each[0], 3) == partition
            ]

    def test_one_idempotent_producer_of_many_threads(self, cluster: Cluster) -> None:
        """Each thread's batches are there once and in order."""
        cluster.create_topic("orders", 2, config=TWO)
        producer = cluster.producer(idempotent=True)

        def send(thread: int) -> None:
            for number in range(25):
                for partition in (0, 1):
                    producer.send("orders", b"%d:%d" % (thread, number), partition=partition)

        threads = [threading.Thread(target=send, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for records in cluster.read_all("orders").values():
            found = [bytes(record.value or b"").split(b":") for record in records]
            for n in range(4):
                mine = [int(number) for thread, number in found if int(thread) == n]
                assert mine == list(range(25))

    def test_acks_0_tells_no_offset(self, cluster: Cluster) -> None:
        cluster.create_topic("orders")
        assert cluster.producer(acks=0).send("orders", b"v").base_offset == -1

    @pytest.mark.parametrize("acks", [0, 1])
    def test_an_idempotent_producer_needs_all_acks(self, cluster: Cluster, acks: int) -> None:
        with pytest.raises(ConfigError):
            cluster.producer(idempotent=True, acks=acks)


class TestConsumersNotice:
    """KIP-320, KIP-516: what was read may be gone, and other records in its place."""

    @pytest.mark.parametrize("reset", ["earliest", None])
    def test_a_truncation(self, make: Make, reset: str | None) -> None:
        cluster = make()
        config = {"unclean.leader.election.enable": "true", "min.insync.replicas": 1}
        (tp,) = cluster.create_topic("orders", assignment=[[0, 1, 2]], config=config)
        for number in range(5):
            cluster.produce("orders", b"old %d" % number)
        cluster.crash(1)
        cluster.crash(2)
        cluster.wait_for_isr(tp, (0,))
        for number in range(5, 10):
            cluster.produce("orders", b"old %d" % number)
        consumer = cluster.consumer(tp, reset=reset)
        assert len(consumer.read_to_end()) == 10
        cluster.crash(0)
        cluster.start(1)
        cluster.start(2)
        cluster.wait_for_leader(tp, not_broker=0)
        for number in range(5, 13):  # beyond the position, so that no offset is out of range
            cluster.produce("orders", b"new %d" % number)
        if reset is None:
            with pytest.raises(LogTruncationError) as caught:
                consumer.poll(1000)
            error = caught.value
            assert (error.tp, error.position, error.divergent_offset) == (tp, 10, 5)
            consumer.seek(tp, 5)
        found = [record.value for _, record in consumer.read_to_end()]
        assert found == [b"new %d" % number for number in range(5, 13)]

    def test_a_topic_made_anew(self, cluster: Cluster) -> None:
        (tp,) = cluster.create_topic("orders")
        for number in range(5):
            cluster.produce("orders", b"old %d" % number)
        follows, asks = cluster.consumer(tp), cluster.consumer(tp, reset=None)
        for consumer in (follows, asks):
            assert len(consumer.read_to_end()) == 5
        cluster.delete_topic("orders")
        cluster.create_topic("orders")
        new = [b"new %d" % number for number in range(8)]
        for value in new:
            cluster.produce("orders", value)
        assert [record.value for _, record in follows.read_to_end()] == new
        with pytest.raises(TopicRecreatedError) as caught:
            asks.poll()
        assert (caught.value.tp, caught.value.position) == (tp, 5)
        asks.seek(tp, 0)
        assert [record.value for _, record in asks.read_to_end()] == new


class TestBadInput:
    def test_acks_out_of_range(self, cluster: Cluster) -> None:
        """R-82."""
        (tp,) = cluster.create_topic("orders")
        with pytest.raises(InvalidRequiredAcksError):
            cluster.producer(acks=2).send("orders", b"v")
        assert cluster.end_offset(tp) == 0

    def test_unknown_topic(self, cluster: Cluster) -> None:
        with pytest.raises(UnknownPartitionError):
            cluster.producer(delivery_timeout_s=0.5).send("nothing", b"v")

    def test_a_batch_too_large(self, cluster: Cluster) -> None:
        (tp,) = cluster.create_topic("orders", config={"max.message.bytes": 1000})
        with pytest.raises(ReplicationError) as caught:
            cluster.produce("orders", bytes(2000))
        assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
        assert cluster.end_offset(tp) == 0
        cluster.produce("orders", b"fits")

    def test_no_records(self, cluster: Cluster) -> None:
        cluster.create_topic("orders")
        with pytest.raises((InvalidRecordError, ReplicationError)):
            cluster.producer(delivery_timeout_s=0.5).send_batch("orders", 0, [])

    @pytest.mark.parametrize(
        ("arguments", "code"),
        [
            ({"topic": "a/b"}, ErrorCode.INVALID_TOPIC_EXCEPTION),
            ({"topic": "orders"}, ErrorCode.TOPIC_ALREADY_EXISTS),
            ({"topic": "n", "partitions": 0}, ErrorCode.INVALID_PARTITIONS),
            ({"topic": "n", "replication_factor": 4}, ErrorCode.INVALID_REPLICATION_FACTOR),
            ({"topic": "n", "assignment": [[0, 0]]}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
            ({"topic": "n", "config": {"no.such.key": 1}}, ErrorCode.INVALID_CONFIG),
        ],
    )
    def test_a_topic_that_cannot_be(
        self, cluster: Cluster, arguments: dict[str, object], code: ErrorCode
    ) -> None:
        cluster.create_topic("orders")
        with pytest.raises(ReplicationError) as caught:
            cluster.create_topic(**arguments)  # type: ignore[arg-type]
        assert caught.value.code is code

    def test_a_deleted_topic(self, cluster: Cluster) -> None:
        (tp,) = cluster.create_topic("orders")
        cluster.produce("orders", b"v")
        cluster.delete_topic("orders")
        with pytest.raises(UnknownPartitionError):
            cluster.producer(delivery_timeout_s=0.5).send("orders", b"v")
        cluster.create_topic("orders")
        assert cluster.end_offset(tp) == 0


class TestFailures:
    def test_a_dead_leader_costs_nothing_that_was_acknowledged(self, cluster: Cluster) -> None:
        """S-1, T-A1: crash the leader twice in a row; each comes back as a follower."""
        (tp,) = cluster.create_topic("orders", config=TWO)
        producer = cluster.producer(idempotent=True)
        sent = list(numbered(60))
        for number, value in enumerate(sent):
            if number in (20, 40):
                leader = cluster.wait_for_leader(tp)
                epoch = cluster.replica(tp, leader).leader_epoch
                cluster.crash(leader)
                after = cluster.wait_for_leader(tp, leader)
                assert cluster.replica(tp, after).leader_epoch > epoch
                cluster.start(leader)
                cluster.wait_for_isr(tp, (0, 1, 2))
            producer.send("orders", value)
        assert values(cluster, "orders") == sent
        assert_equal_replicas(cluster, tp)

    def test_a_dead_leader_is_found_by_its_session(self, make: Make) -> None:
        cluster = make(session_timeout_ms=600)
        (tp,) = cluster.create_topic("orders", config=TWO)
        leader = cluster.wait_for_leader(tp)
        cluster.crash(leader, notice=False)
        cluster.wait_for_leader(tp, leader)
        cluster.produce("orders", b"v")

    def test_the_controller_dies(self, cluster: Cluster) -> None:
        """S-25."""
        (tp,) = cluster.create_topic("orders", config=TWO)
        cluster.produce("orders", b"before")
        first = cluster.controller_id
        assert first is not None
        cluster.crash(first)
        cluster.wait_until(lambda: cluster.controller_id not in (None, first), "a new controller")
        cluster.create_topic("more", replication_factor=2)
        cluster.produce("orders", b"after")
        cluster.start(first)
        cluster.wait_for_isr(tp, (0, 1, 2))
        assert values(cluster, "orders") == [b"before", b"after"]

    def test_controlled_shutdown_moves_leaders_first(self, cluster: Cluster) -> None:
        """R-65: all partitions have a leader when the broker is gone, and its start is clean."""
        tps = cluster.create_topic("orders", 6)
        cluster.produce("orders", b"v", partition=0)
        cluster.stop(0)
        assert all(cluster.leader(tp) in (1, 2) for tp in tps)
        cluster.start(0)
        for tp in tps:
            cluster.wait_for_isr(tp, (0, 1, 2))
        assert all(r.clean for r in cluster.broker(0).log_manager.recovery_reports)
        cluster.elect_preferred()
        cluster.wait_until(lambda: any(cluster.leader(tp) == 0 for tp in tps), "0 leads again")

    def test_a_zombie_leader_acknowledges_nothing(self, make: Make) -> None:
        """S-11: cut off from all but its clients; what it wrote alone is cut on its return."""
        cluster = make(session_timeout_ms=2000)
        (tp,) = cluster.create_topic("orders", config=TWO)
        cluster.produce("orders", b"committed")
        zombie = cluster.wait_for_leader(tp)
        cluster.cut_off(zombie)
        partition = cluster.replica(tp, zombie)
        partition.leader.append(_batch(b"only here"), acks=1)
        assert partition.log_end_offset == 2
        cluster.wait_for_leader(tp, zombie)
        cluster.client.refresh()
        # The zombie may be asked first who leads, and takes the request.
        cluster.producer(request_timeout_ms=300).send("orders", b"elsewhere")
        assert partition.high_watermark == 1
        cluster.heal()
        cluster.wait_for_isr(tp, (0, 1, 2))
        assert values(cluster, "orders") == [b"committed", b"elsewhere"]
        assert_equal_replicas(cluster, tp)

    def test_isr_shrinks_and_grows(self, cluster: Cluster) -> None:
        """R-30, R-32, S-19: a stopped follower leaves, and joins again once it has caught up."""
        leader = cluster.controller_id  # so that it may still ask for the change
        assert leader is not None
        others = [b for b in (0, 1, 2) if b != leader]
        (tp,) = cluster.create_topic("orders", assignment=[[leader, *others]], config=TWO)
        for gone in others:
            cluster.network.cut(gone, leader)
        # A follower that holds everything is in sync however long it is silent.
        cluster.producer(acks=1).send("orders", b"alone")
        cluster.wait_for_isr(tp, (leader,))
        with pytest.raises(NotEnoughReplicasError):
            cluster.producer(delivery_timeout_s=1.0).send("orders", b"refused")
        cluster.heal()
        cluster.wait_for_isr(tp, (0, 1, 2))
        cluster.produce("orders", b"taken")
        assert values(cluster, "orders") == [b"alone", b"taken"]

    def test_no_unclean_election_unless_allowed(self, make: Make) -> None:
        """S-18: offline with a clear error, until somebody returns who has everything."""
        cluster = make(config=ReplicationConfig(**_fields(FAST, eligible_leader_replicas=False)))
        (tp,) = cluster.create_topic("orders", assignment=[[0, 1]])
        cluster.produce("orders", b"one")
        cluster.crash(1)
        cluster.wait_for_isr(tp, (0,))
        cluster.produce("orders", b"two")
        cluster.crash(0)
        cluster.start(1)
        cluster.wait_until(lambda: cluster.controller_id is not None, "a controller")
        with pytest.raises(LeaderNotAvailableError):
            cluster.producer(delivery_timeout_s=0.5).send("orders", b"v")
        cluster.start(0)
        cluster.wait_for_leader(tp)
        assert values(cluster, "orders") == [b"one", b"two"]

    def test_everything_stops_and_comes_back(self, make: Make, tmp_path: Path) -> None:
        """S-22: a whole cluster crashes; nobody truncates to a stale high watermark."""
        directory = tmp_path / "all"
        sent = list(numbered(30))
        cluster = make(directory=directory)
        cluster.create_topic("orders", 2, config=TWO)
        for number, value in enumerate(sent):
            cluster.produce("orders", value, partition=number % 2)
        for broker_id in (0, 1, 2):
            cluster.crash(broker_id)
        cluster.close()
        again = make(directory=directory)
        for tp in again.client.partitions("orders"):
            again.wait_for_isr(tp, (0, 1, 2))
        assert values(again, "orders", 0) == sent[::2]
        assert values(again, "orders", 1) == sent[1::2]

    def test_the_directories_pass_verification(self, make: Make, tmp_path: Path) -> None:
        cluster = make(directory=tmp_path / "all")
        (tp,) = cluster.create_topic("orders", config=TWO)
        for value in numbered(20):
            cluster.produce("orders", value)
        leader = cluster.wait_for_leader(tp)
        cluster.crash(leader)
        cluster.wait_for_leader(tp, leader)
        cluster.produce("orders", b"more")
        cluster.start(leader)
        cluster.wait_for_isr(tp, (0, 1, 2))
        directories = [path for b in (0, 1, 2) for path in cluster.log_dirs(b)]
        cluster.close()
        report = verify(directories)
        assert not report.unusable
        assert [f for f in report.findings if f.severity is not Severity.INFO] == []


def _batch(value: bytes) -> bytes:
    from tests.support.builders import batch

    return batch(value=value)


def _fields(config: ReplicationConfig, **changes: object) -> dict[str, object]:
    from dataclasses import fields

    return {f.name: getattr(config, f.name) for f in fields(config)} | changes


def test_all_brokers_carry_one_cluster_id_and_keep_it(tmp_path: Path) -> None:
    """Also the one whose directory was lost (F-41)."""

    def ids() -> set[str | None]:
        files = [
            MetaPropertiesFile(str(path), LocalStorage()).read()
            for path in tmp_path.glob("broker-*/meta.properties")
        ]
        assert len(files) == 3
        return {meta.cluster_id for meta in files if meta is not None}

    with Cluster(3, tmp_path):
        pass
    first = ids()
    assert len(first) == 1
    shutil.rmtree(tmp_path / "broker-0")
    with Cluster(3, tmp_path):
        pass
    assert ids() == first


PAGE = Path(__file__).resolve().parents[2] / "docs" / "replication.md"


@pytest.mark.slow
def test_the_example_of_the_page_runs_twice(tmp_path: Path) -> None:
    """On one directory, as a program that is started again does."""
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (example,) = (each for each in examples if "with Cluster(3" in each)
    example = example.replace('"orders-cluster"', repr(str(tmp_path / "c")))
    for _ in range(2):
        exec(compile(example, PAGE.name, "exec"), {})


def test_a_topic_that_is_there_already(tmp_path: Path) -> None:
    with Cluster(1, tmp_path) as cluster:
        made = cluster.create_topic("t", partitions=2)
        assert cluster.create_topic("t", partitions=5, if_not_exists=True) == made
        with pytest.raises(ResponseError) as refused:
            cluster.create_topic("t")
        assert str(refused.value) == "TOPIC_ALREADY_EXISTS: topic 't' already exists"
        with pytest.raises(ReplicationError):
            cluster.create_topic("no good", if_not_exists=True)
