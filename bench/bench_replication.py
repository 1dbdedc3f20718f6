"""Three brokers in one process: throughput, latency, failover, role changes, idle cost."""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from workloads import CONFIG

from checkpoints.types import TopicPartition
from logstore.format.batch import encode_batch
from replication.cluster import Cluster
from replication.config import ReplicationConfig
from replication.error_codes import ErrorCode
from replication.messages import (
    LeaderAndIsrRequest,
    PartitionChange,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    Response,
)
from replication.state import PartitionRegistration

BATCH = bytes(encode_batch([(None, bytes(1000), 1_700_000_000_000 + i) for i in range(64)]))
ONE = bytes(encode_batch([(b"key", bytes(100), 1_700_000_000_000)]))
TWO = {"min.insync.replicas": 2}
THROUGHPUT_BYTES = 200_000_000  # times three replicas; more would wait for the disk
IN_FLIGHT = 64  # batches without an answer yet: 4 MB, as a few Kafka producers would have
FAILOVERS = 40


@pytest.fixture
def make(disk: Path) -> Iterator[Callable[..., Cluster]]:
    clusters: list[Cluster] = []

    def build(**options: Any) -> Cluster:
        options.setdefault("log_config", CONFIG)
        clusters.append(Cluster(3, disk / f"cluster-{len(clusters)}", **options))
        return clusters[-1]

    yield build
    for cluster in clusters:
        cluster.close()


class Pipeline:
    """Sends batches to one leader with a bounded number in flight; counts what is acknowledged."""

    def __init__(self, cluster: Cluster, tp: TopicPartition) -> None:
        leader = cluster.wait_for_leader(tp)
        self._handle = cluster.broker(leader).handle
        self._room = threading.Semaphore(IN_FLIGHT)
        self._tp = tp
        self.acknowledged = 0

    def _on_reply(self, response: Response | None) -> None:
        assert isinstance(response, ProduceResponse)
        assert response.partitions[0].error_code is ErrorCode.NONE, response
        self.acknowledged += 1
        self._room.release()

    def run(self, count: int) -> float:
        request = ProduceRequest(-1, 30_000, (ProducePartition(self._tp, BATCH),))
        started = time.perf_counter()
        for _ in range(count):
            self._room.acquire()
            self._handle(request, self._on_reply)
        for _ in range(IN_FLIGHT):
            self._room.acquire()
        seconds = time.perf_counter() - started
        self._room.release(IN_FLIGHT)
        return seconds


def test_acks_all_throughput(benchmark: Any, claim: Any, make: Any) -> None:
    """One leader, two followers, 64 KiB batches."""
    cluster = make()
    (tp,) = cluster.create_topic("bench", assignment=[[0, 1, 2]], config=TWO)
    pipeline = Pipeline(cluster, tp)
    count = THROUGHPUT_BYTES // len(BATCH)
    pipeline.run(count // 10)
    seconds: list[float] = []
    benchmark.pedantic(lambda: seconds.append(pipeline.run(count)), rounds=3)
    rate = count * len(BATCH) / min(seconds) / 1e6
    claim(
        what="acks=all, three replicas in one process, 64 KiB batches",
        ours=round(rate),
        unit="MB/s",
        goal="at least 500 MB/s",
        met=rate >= 500,
        note=f"{IN_FLIGHT} batches in flight; median of three "
        f"{count * len(BATCH) / statistics.median(seconds) / 1e6:.0f} MB/s",
    )


@pytest.mark.parametrize("synced", [False, True], ids=["page cache", "fsync"])
def test_acks_all_round_trip(benchmark: Any, claim: Any, make: Any, synced: bool) -> None:
    """One record, idle cluster; with ``synced`` each replica syncs before it counts."""
    cluster = make()
    config = {**TWO, **({"flush.messages": 1} if synced else {})}
    (tp,) = cluster.create_topic("bench", assignment=[[0, 1, 2]], config=config)
    producer = cluster.producer()
    times: list[float] = []

    def send() -> None:
        started = time.perf_counter()
        producer.send_encoded(tp, ONE)
        times.append(time.perf_counter() - started)

    benchmark.pedantic(send, rounds=500, warmup_rounds=50)
    times = sorted(times[50:])
    p50, p99 = times[len(times) // 2] * 1e3, times[len(times) * 99 // 100] * 1e3
    limit = 2.0 if synced else 1.0
    claim(
        what=f"acks=all round trip, one record{', fsync before the answer' if synced else ''}",
        ours=round(p50, 2),
        unit="ms p50",
        goal=f"at most {limit:g} ms",
        met=p50 <= limit,
        note=f"p99 {p99:.2f} ms" + (f"; a bare fsync {_fsync_ms():.2f} ms" if synced else ""),
    )


def _fsync_ms() -> float:
    path = Path(".cache") / "fsync"
    times = []
    with open(path, "wb") as file:
        for _ in range(100):
            file.write(ONE)
            file.flush()
            started = time.perf_counter()
            os.fsync(file.fileno())
            times.append(time.perf_counter() - started)
    path.unlink()
    return statistics.median(times) * 1e3


def test_failover(benchmark: Any, claim: Any, make: Any) -> None:
    """From the moment the death of the leader is known to the first success on the new one."""
    cluster = make(config=ReplicationConfig(replica_fetch_backoff_ms=50))
    (tp,) = cluster.create_topic("bench", assignment=[[0, 1, 2]], config=TWO)
    producer = cluster.producer()
    times: list[float] = []

    def fail_over() -> None:
        leader = cluster.wait_for_leader(tp)
        cluster.wait_for_isr(tp, (0, 1, 2))
        producer.send_encoded(tp, ONE)
        cluster.crash(leader)
        started = time.perf_counter()
        producer.send_encoded(tp, ONE)
        times.append(time.perf_counter() - started)
        cluster.start(leader)

    benchmark.pedantic(fail_over, rounds=FAILOVERS)
    times.sort()
    p99 = times[min(len(times) - 1, len(times) * 99 // 100)] * 1e3
    claim(
        what="leader dead, its death known -> first acks=all success",
        ours=round(p99, 1),
        unit="ms p99",
        goal="at most 50 ms",
        met=p99 <= 50,
        note=f"p50 {times[len(times) // 2] * 1e3:.1f} ms, {len(times)} fail-overs",
    )


@pytest.mark.parametrize("partitions", [250, 1000])
def test_role_change(benchmark: Any, claim: Any, make: Any, partitions: int) -> None:
    """One request turns every partition of a broker from follower to leader."""
    cluster = make()
    tps = cluster.create_topic("bench", assignment=[[0, 1, 2]] * partitions)
    broker = cluster.broker(1)
    manager = broker.replica_manager
    epochs = [10]

    def lead() -> None:
        epochs[0] += 10
        registration = PartitionRegistration((0, 1, 2), (0, 1, 2), 1, epochs[0], epochs[0])
        request = LeaderAndIsrRequest(
            0, 1000, broker.broker_epoch,
            tuple(PartitionChange(tp, registration) for tp in tps),
            tuple(broker.metadata.live_brokers.values()),
        )  # fmt: skip
        response = manager.leader_and_isr(request)
        assert all(code is ErrorCode.NONE for _, code in response.partitions), response

    def follow() -> None:
        registration = PartitionRegistration((0, 1, 2), (0, 1, 2), 2, epochs[0] + 5, epochs[0] + 5)
        request = LeaderAndIsrRequest(
            0, 1000, broker.broker_epoch,
            tuple(PartitionChange(tp, registration) for tp in tps),
            tuple(broker.metadata.live_brokers.values()),
        )  # fmt: skip
        manager.leader_and_isr(request)

    benchmark.pedantic(lead, setup=follow, rounds=3)
    seconds = benchmark.stats.stats.median
    claim(
        what=f"role change of {partitions:,} partitions to leader",
        ours=round(seconds, 2),
        unit="s",
        goal="at most 1 s for 1,000, linear",
        met=seconds <= partitions / 1000,
        note=f"{seconds / partitions * 1e3:.2f} ms a partition, each with a durable epoch",
    )


def test_idle(benchmark: Any, claim: Any, make: Any) -> None:
    """1,000 partitions that nobody writes to: the processor time of the whole process."""
    cluster = make()
    cluster.create_topic("bench", assignment=[[0, 1, 2]] * 1000)
    time.sleep(3)  # what a new topic causes is over
    shares: list[float] = []

    def idle() -> None:
        started, used = time.perf_counter(), time.process_time()
        time.sleep(5)
        shares.append((time.process_time() - used) / (time.perf_counter() - started) * 100)

    benchmark.pedantic(idle, rounds=3)
    share = statistics.median(shares)
    claim(
        what="1,000 idle partitions, two followers",
        ours=round(share, 1),
        unit="% of a core",
        goal="below 5 %",
        met=share < 5,
    )
