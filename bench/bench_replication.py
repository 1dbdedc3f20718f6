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
from logstore.log import ReplicaLog
from logstore.manager import LogManager
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
    """1,000 partitions that nobody writes to: the processor time of the whole process. The peers
    are the same brokers without fetch sessions, and with one partition."""
    shares: dict[str, float] = {}

    def measure(name: str, partitions: int, **config: int) -> None:
        cluster = make(config=ReplicationConfig(**config))
        cluster.create_topic("bench", assignment=[[0, 1, 2]] * partitions)
        time.sleep(10)  # what a new topic causes is over
        rounds = []
        for _ in range(3):
            started, used = time.perf_counter(), time.process_time()
            time.sleep(10)
            rounds.append((time.process_time() - used) / (time.perf_counter() - started) * 100)
        shares[name] = statistics.median(rounds)
        cluster.close()

    def all_three() -> None:
        measure("sessions", 1000)
        measure("none", 1000, fetch_session_slots=0)
        measure("one", 1)

    benchmark.pedantic(all_three, rounds=1)
    share, without = shares["sessions"], shares["none"]
    claim(
        what="1,000 idle partitions, two followers",
        ours=round(share, 2),
        unit="% of a core",
        goal="at most 0.5 %",
        met=share <= 0.5,
        note=f"without fetch sessions {without:.2f} %, {without / share:.0f} times as much; "
        f"with one partition {shares['one']:.2f} %",
    )


CUTS = 1000


def test_mass_truncation(benchmark: Any, claim: Any, disk: Path) -> None:
    """What a fail-over makes a follower do: a tail to cut from each log, and checkpoints that say
    no more than is left, durable. The peer is one cut on its own, ten times: one for each 100."""
    manager = LogManager([disk / "cuts"], CONFIG, replicated=True, background=False)
    logs = [manager.get_or_create("t", number) for number in range(CUTS)]
    data = bytearray(ONE)

    def grow() -> None:
        """Two records more, flushed and believed to be committed."""
        for log in logs:
            for _ in range(2):
                data[:8] = log.log_end_offset.to_bytes(8, "big")
                log.append_as_follower(bytes(data))
            log.flush()
            log.update_high_watermark(log.log_end_offset)
        manager.checkpoint_recovery_points()
        manager.checkpoint_high_watermarks()

    def cut(some: list[ReplicaLog]) -> float:
        started = time.perf_counter()
        for log in some:
            log.truncate_to(log.log_end_offset - 1)
        manager.checkpoint_cuts([log.topic_partition for log in some])
        return time.perf_counter() - started

    grow()
    ratios: list[float] = []
    times: list[tuple[float, float]] = []

    def compare() -> None:
        one = statistics.median([cut([log]) for log in logs[:20]])
        grow()
        all_of_them = cut(logs)
        grow()
        times.append((all_of_them, one))
        ratios.append(all_of_them / (one * CUTS / 100))

    benchmark.pedantic(compare, rounds=3, warmup_rounds=1)
    ratio = statistics.median(ratios)
    seconds, one = times[ratios.index(ratio)] if ratio in ratios else times[-1]
    claim(
        what="1,000 cuts of a fail-over, durable: one cut for each 100 of them",
        ours=round(seconds, 2),
        unit="s",
        peer=round(one * CUTS / 100, 2),
        ratio=round(ratio, 1),
        goal="at most 5 times as long",
        met=ratio <= 5,
        note=f"one cut {one * 1e3:.1f} ms",
    )
    manager.close()
