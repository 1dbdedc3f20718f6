"""The names that dashboards know, and values that are true when they are read (R-157 … R-168)."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from checkpoints.types import TopicPartition
from logstore.format.batch import encode_batch
from replication.broker.metrics import collector
from replication.controller.context import ControllerStats
from tests.support.builders import batch, produced
from tests.support.replica_managers import BROKER, Host, part

prometheus = pytest.importorskip("prometheus_client")
OTHER = TopicPartition("orders", 1)
ORDERS_0 = {"topic": "orders", "partition": "0"}


def broker_of(host: Host, broker_id: int = BROKER) -> Any:
    """As much of a ``Broker`` as metrics read."""
    return SimpleNamespace(
        broker_id=broker_id,
        replica_manager=host.manager,
        log_manager=host.log_manager,
        controller=SimpleNamespace(stats=ControllerStats(offline_partitions_count=4)),
    )


class Scrape:
    def __init__(self, *brokers: Any) -> None:
        self.registry = prometheus.CollectorRegistry()
        self.registry.register(collector(*brokers))

    def __call__(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, {"broker": str(BROKER), **labels})


@pytest.fixture
def host() -> Host:
    host = Host(log_config={"min.insync.replicas": 2}, replica_lag_time_max_ms=1000)
    host.lead(replicas=(1, 2, 3), isr=(1, 2))
    host.follow(OTHER)
    return host


@pytest.fixture
def scrape(host: Host) -> Scrape:
    return Scrape(broker_of(host))


def test_replica_manager(host: Host, scrape: Scrape) -> None:
    """R-157, R-174."""
    prefix = "kafka_server_replicamanager_"
    assert scrape(prefix + "leadercount") == 1
    assert scrape(prefix + "partitioncount") == 2
    assert scrape(prefix + "underreplicatedpartitions") == 1
    assert scrape(prefix + "atminisrpartitioncount") == 1
    assert scrape(prefix + "underminisrpartitioncount") == 0
    assert scrape(prefix + "isrshrinks_total") == 0
    host.append()
    host.runtime.advance(2000)
    host.isr_channel.commit()
    assert scrape(prefix + "isrshrinks_total") == 1
    assert scrape(prefix + "atminisrpartitioncount") == 0
    assert scrape(prefix + "underminisrpartitioncount") == 1
    host.produce(produced(), acks=1)
    assert scrape(prefix + "produceridcount") == 1


def test_partition_and_log(host: Host, scrape: Scrape) -> None:
    """R-158, R-159."""
    host.append(4)
    host.replicate(3)
    assert scrape("kafka_cluster_partition_insyncreplicascount", **ORDERS_0) == 2
    assert scrape("kafka_cluster_partition_replicascount", **ORDERS_0) == 3
    assert scrape("kafka_cluster_partition_underreplicated", **ORDERS_0) == 1
    assert scrape("kafka_cluster_partition_laststableoffsetlag", **ORDERS_0) == 0
    assert scrape("kafka_log_log_logendoffset", **ORDERS_0) == 4
    assert scrape("kafka_log_log_numlogsegments", **ORDERS_0) == 1
    assert scrape("kafka_log_log_size", **ORDERS_0) == len(batch(count=4))
    host.stop()
    assert scrape("kafka_log_log_size", **ORDERS_0) is None


def test_waiting_requests(host: Host, scrape: Scrape) -> None:
    """R-163, R-164: followers and consumers are one kind in Kafka's purgatory."""
    host.produce(timeout_ms=100)
    host.fetch(part(1), wait_ms=200)
    host.fetch(part(1), replica=2, wait_ms=300)

    def waiting(kind: str) -> float | None:
        name = "kafka_server_delayedoperationpurgatory_numdelayedoperations"
        return scrape(name, delayedOperation=kind)

    def expired(fetcher: str) -> float | None:
        return scrape("kafka_server_delayedfetchmetrics_expires_total", fetcherType=fetcher)

    # The follower's fetch has committed the record, so that its producer has its answer.
    assert [waiting(kind) for kind in ("Produce", "Fetch", "DeleteRecords")] == [0, 2, 0]
    host.produce(timeout_ms=100)
    assert (waiting("Produce"), waiting("Fetch")) == (1, 1)  # the append answered the follower
    host.runtime.advance(1000)
    assert waiting("Produce") == 0
    assert scrape("kafka_server_delayedproducemetrics_expires_total") == 1
    assert expired("consumer") == 1
    assert expired("follower") == 0


def test_traffic(host: Host, scrape: Scrape) -> None:
    """R-166."""
    host.append(5)
    host.replicate(0)
    host.replicate(5)
    host.fetch(part(0))
    size = len(batch(count=5))
    prefix = "kafka_server_brokertopicmetrics_"
    assert scrape(prefix + "messagesin_total") == 5
    assert scrape(prefix + "bytesin_total") == size
    assert scrape(prefix + "bytesout_total") == size
    assert scrape(prefix + "replicationbytesout_total") == size
    assert scrape(prefix + "replicationbytesin_total") == 0


def test_fetch_sessions(host: Host, scrape: Scrape) -> None:
    """R-165."""
    host.fetch(part(0), session_epoch=0)
    prefix = "kafka_server_fetchsessioncache_"
    assert scrape(prefix + "numincrementalfetchsessions") == 1
    assert scrape(prefix + "numincrementalfetchpartitionscached") == 1
    assert scrape(prefix + "incrementalfetchsessionevictions_total") == 0


def test_fetchers(host: Host, scrape: Scrape) -> None:
    """R-160, R-162."""
    host.runtime.run_until_idle()
    assert scrape("kafka_server_replicafetchermanager_maxlag", clientId="Replica") == 0
    assert (
        scrape("kafka_server_replicafetchermanager_failedpartitionscount", clientId="Replica") == 0
    )
    (fetcher,) = host.manager.fetchers.fetchers
    labels = {"clientId": fetcher.name, "leader": "2"}
    assert scrape("kafka_server_fetcherstats_requests_total", **labels) == 1


def test_log_directories() -> None:
    """R-168, R-157: a directory that failed, and the replicas in it."""
    host = Host(directories=("/a", "/b"))
    host.lead()
    scrape = Scrape(broker_of(host))
    assert scrape("kafka_log_logmanager_offlinelogdirectorycount") == 0
    host.storage.fail("write", "/a/*")
    host.log_manager.housekeeper.checkpoint_high_watermarks()
    host.report_failures()
    assert scrape("kafka_log_logmanager_offlinelogdirectorycount") == 1
    assert scrape("kafka_log_logmanager_logdirectoryoffline", logDirectory="/a") == 1
    assert scrape("kafka_log_logmanager_logdirectoryoffline", logDirectory="/b") == 0
    assert scrape("kafka_server_replicamanager_offlinereplicacount") == 1


def test_compaction() -> None:
    host = Host(broker_config={"log.cleaner.backoff.ms": 100, "log.initial.task.delay.ms": 0})
    host.order(host.change(config={"cleanup.policy": "compact", "segment.bytes": "100"}))
    scrape = Scrape(broker_of(host))
    log = host.partition().local_log()

    def clean(damaged: int | None = None) -> None:
        for _ in range(4):
            log.append_as_leader(bytes(encode_batch([(b"k", b"v")], default_timestamp=1)), 0)
        log.replica.update_high_watermark(log.log_end_offset)
        if damaged is not None:
            file = host.storage.open(log.segments[damaged].log_path)
            file.write_at(68, b"?")
            file.close()
        host.runtime.advance(1000)

    clean()
    assert scrape("kafka_log_logcleaner_passes_total") == 1
    assert scrape("kafka_log_logcleanermanager_uncleanable_partitions_count") == 0
    clean(damaged=-2)
    assert scrape("kafka_log_logcleanermanager_uncleanable_partitions_count") == 1
    size = scrape("kafka_log_logcleanermanager_uncleanable_bytes", logDirectory="/logs")
    assert size == log.size


def test_a_hostile_label_does_not_end_the_scrape() -> None:
    """The client takes no lone surrogates, and leaves all but line breaks as they are."""
    registry = prometheus.CollectorRegistry()
    registry.register(collector(broker_of(Host(directories=("/a\x1b\r\udcff",)))))
    text = prometheus.generate_latest(registry).decode()
    assert r'logDirectory="/a\\x1b\\r\\xff"' in text
    assert all(line.isprintable() for line in text.split("\n"))


def test_controller(scrape: Scrape) -> None:
    """R-172, R-173."""
    assert scrape("kafka_controller_kafkacontroller_offlinepartitionscount") == 4
    assert scrape("kafka_controller_controllerstats_uncleanleaderelections_total") == 0


def test_several_brokers_share_a_registry() -> None:
    """One process, several brokers: one family each, told apart by a label."""
    first, second = Host(), Host()
    first.lead()
    registry = prometheus.CollectorRegistry()
    registry.register(collector(broker_of(first, 1), broker_of(second, 2)))
    name = "kafka_server_replicamanager_leadercount"
    assert [registry.get_sample_value(name, {"broker": b}) for b in "12"] == [1, 0]
    text = prometheus.generate_latest(registry).decode()
    assert text.count(f"# TYPE {name} gauge") == 1


@pytest.mark.slow
def test_the_client_is_loaded_only_when_a_collector_is_made() -> None:
    """It is an extra, and takes 68 ms."""
    code = "import sys, replication.broker.metrics; print('prometheus_client' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
