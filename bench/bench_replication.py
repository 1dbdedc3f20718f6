"""Three brokers in one process: throughput, latency, failover, role changes, idle cost."""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
from workloads import CONFIG

from checkpoints.types import TopicPartition
from logstore.format.batch import encode_batch
from logstore.log import PartitionLog, ReplicaLog
from logstore.manager import LogManager
from replication.common.config import ReplicationConfig
from replication.common.error_codes import ErrorCode
from replication.common.messages import (
    LeaderAndIsrRequest,
    PartitionChange,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    Response,
)
from replication.common.state import PartitionRegistration
from replication.embedded.cluster import Cluster

BATCH = bytes(encode_batch([(None, bytes(1000), 1_700_000_000_000 + i) for i in range(64)]))
ONE = bytes(encode_batch([(b"key", bytes(100), 1_700_000_000_000)]))
TWO = {"min.insync.replicas": 2}
THROUGHPUT_BYTES = 200_000_000  # times three replicas; more would wait for the disk
IN_FLIGHT = 64  # batches without an answer yet: 4 MB, as a few Kafka producers would have
FAILOVERS = 40
TURNS = 9


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


class BareCopies:
    """What replication cannot do without: the bytes written three times and read twice, by bare
    system calls on one thread, with nothing around them."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        flags = os.O_RDWR | os.O_CREAT
        self._files = [os.open(directory / str(n), flags) for n in range(3)]
        self._at = 0

    def run(self, count: int) -> float:
        first, size = self._files[0], len(BATCH)
        started = time.perf_counter()
        for _ in range(count):
            for file in self._files:
                os.write(file, BATCH)
            for _ in range(2):
                os.pread(first, size, self._at)
            self._at += size
        return time.perf_counter() - started

    def close(self) -> None:
        for file in self._files:
            os.close(file)


def test_acks_all_throughput(benchmark: Any, claim: Any, make: Any, disk: Path) -> None:
    """One leader, two followers, 64 KiB batches; in turns with the bare copies."""
    cluster = make()
    (tp,) = cluster.create_topic("bench", assignment=[[0, 1, 2]], config=TWO)
    pipeline, bare = Pipeline(cluster, tp), BareCopies(disk / "bare")
    count = THROUGHPUT_BYTES // len(BATCH) // TURNS
    pipeline.run(count)
    bare.run(count)
    ours: list[float] = []
    peer: list[float] = []

    def turn() -> None:
        peer.append(bare.run(count))
        ours.append(pipeline.run(count))

    benchmark.pedantic(turn, rounds=TURNS)
    bare.close()
    mine, theirs = statistics.median(ours), statistics.median(peer)
    size = count * len(BATCH) / 1e6
    claim(
        what="acks=all, three replicas in one process, 64 KiB batches: the same bytes written "
        "three times and read twice by bare system calls on one thread",
        ours=round(size / mine),
        unit="MB/s",
        peer=f"{size / theirs:.0f} MB/s",
        ratio=round(theirs / mine, 2),
        goal="0.6x",
        met=theirs / mine >= 0.6,
        note=f"medians of {TURNS} turns; {IN_FLIGHT} batches in flight; best against best "
        f"{min(peer) / min(ours):.2f}x",
    )


class BareRoundTrip:
    """Four hops between threads and three appends: what a round trip of acks=all consists of."""

    def __init__(self, directory: Path) -> None:
        self._logs = [PartitionLog.open(directory / f"bare-{n}", CONFIG) for n in range(3)]
        self._queues: list[SimpleQueue[bytes | None]] = [SimpleQueue() for _ in range(4)]
        self._threads = [threading.Thread(target=self._pass, args=(n,)) for n in range(3)]
        for thread in self._threads:
            thread.start()

    def _pass(self, number: int) -> None:
        get, put = self._queues[number].get, self._queues[number + 1].put
        while (batch := get()) is not None:
            self._logs[number].append_as_leader(batch, 0)
            put(batch)
        put(None)

    def run(self) -> None:
        self._queues[0].put(ONE)
        self._queues[3].get()

    def close(self) -> None:
        self._queues[0].put(None)
        for thread in self._threads:
            thread.join()
        for log in self._logs:
            log.close()


def test_acks_all_bare_round_trip(benchmark: Any, claim: Any, make: Any, disk: Path) -> None:
    """One record, idle cluster; in turns with the bare round trip."""
    cluster = make()
    (tp,) = cluster.create_topic("bench", assignment=[[0, 1, 2]], config=TWO)
    producer, bare = cluster.producer(), BareRoundTrip(disk)
    ours: list[float] = []
    peer: list[float] = []

    def timed(run: Callable[[], object], times: list[float]) -> None:
        for _ in range(100):
            started = time.perf_counter()
            run()
            times.append(time.perf_counter() - started)

    def turn() -> None:
        timed(bare.run, peer)
        timed(lambda: producer.send_encoded(tp, ONE), ours)

    benchmark.pedantic(turn, rounds=TURNS, warmup_rounds=1)
    bare.close()
    mine, theirs = (statistics.median(times[100:]) for times in (ours, peer))
    claim(
        what="acks=all round trip, one record: four bare hops between threads and three appends",
        ours=round(mine * 1e3, 2),
        unit="ms p50",
        peer=f"{theirs * 1e3:.3f} ms",
        ratio=round(mine / theirs, 1),
        goal="1.5x",
        met=mine <= 1.5 * theirs,
        note=f"medians of {100 * TURNS}, in turns of 100",
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


def test_producer_over_bare_requests(benchmark: Any, claim: Any, make: Any) -> None:
    """What the producer adds to a request: its state, its retries, its wait."""
    cluster = make()
    (tp,) = cluster.create_topic("bench", assignment=[[0]])
    producer, client = cluster.producer(acks=1), cluster.client
    request = ProduceRequest(1, 10_000, (ProducePartition(tp, ONE),))
    times: dict[str, list[float]] = {"bare": [], "producer": []}

    def both() -> None:
        for name, send in (
            ("bare", lambda: client.call(0, request, 10.0)),
            ("producer", lambda: producer.send_encoded(tp, ONE)),
        ):
            started = time.perf_counter()
            send()
            times[name].append(time.perf_counter() - started)

    benchmark.pedantic(both, rounds=5000, warmup_rounds=100)
    bare, ours = (statistics.median(found[100:]) for found in times.values())
    claim(
        what="acks=1 round trip through the producer, over a bare request on the same transport",
        ours=round(ours / bare, 2),
        unit="x",
        goal="at most 1.5x",
        met=ours <= 1.5 * bare,
        note=f"{ours * 1e6:.0f} µs",
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
            0,
            1000,
            broker.broker_epoch,
            tuple(PartitionChange(tp, registration) for tp in tps),
            tuple(broker.metadata.live_brokers.values()),
        )
        response = manager.leader_and_isr(request)
        assert all(code is ErrorCode.NONE for _, code in response.partitions), response

    def follow() -> None:
        registration = PartitionRegistration((0, 1, 2), (0, 1, 2), 2, epochs[0] + 5, epochs[0] + 5)
        request = LeaderAndIsrRequest(
            0,
            1000,
            broker.broker_epoch,
            tuple(PartitionChange(tp, registration) for tp in tps),
            tuple(broker.metadata.live_brokers.values()),
        )
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
    no more than is left, durable. The peer is one cut with its own checkpoint, ten times: one for
    each 100."""
    manager = LogManager([disk / "cuts"], CONFIG, replicated=True, background=False)
    logs = [manager.get_or_create("t", number) for number in range(CUTS)]

    def grow() -> None:
        """Two records more, flushed and believed to be committed."""
        for log in logs:
            for _ in range(2):
                end = log.log_end_offset
                record = (b"key", bytes(100), 1_700_000_000_000)
                log.append_as_follower(encode_batch([record], base_offset=end, leader_epoch=0))
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
        singles = []
        for log in logs[:20]:
            started = time.perf_counter()
            manager.truncate_to({log.topic_partition: log.log_end_offset - 1})
            singles.append(time.perf_counter() - started)
        one = statistics.median(singles)
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
