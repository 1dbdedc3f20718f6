"""Three brokers in one process: throughput, latency, failover, role changes, idle cost."""

from __future__ import annotations

import itertools
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
from server_peers import await_replicas, three_kafkas
from workloads import CONFIG, in_turns, rates, scaled, seconds, timed

from checkpoints.types import TopicPartition
from logstore.format.batch import encode_batch
from logstore.log import PartitionLog
from logstore.manager import LogManager, ManagerOwner
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
THROUGHPUT_BYTES = scaled(
    200_000_000, 10_000_000
)  # times three replicas; more would wait for the disk
IN_FLIGHT = 64  # batches without an answer yet: 4 MB, as a few Kafka producers would have
FAILOVERS = scaled(20, 2)
TURNS = 9
PARTITIONS = scaled(1000, 20)
LARGER = scaled(4, 2)  # times as many partitions: what each costs is to stay the same
IDLE_S = scaled(5)


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

    def run(self, count: int) -> None:
        request = ProduceRequest(-1, 30_000, (ProducePartition(self._tp, BATCH),))
        for _ in range(count):
            self._room.acquire()
            self._handle(request, self._on_reply)
        for _ in range(IN_FLIGHT):
            self._room.acquire()
        self._room.release(IN_FLIGHT)


class BareCopies:
    """What replication cannot do without: the bytes written three times and read twice, by bare
    system calls on one thread, with nothing around them."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        flags = os.O_RDWR | os.O_CREAT
        self._files = [os.open(directory / str(n), flags) for n in range(3)]
        self._at = 0

    def run(self, count: int) -> None:
        first, size = self._files[0], len(BATCH)
        for _ in range(count):
            for file in self._files:
                os.write(file, BATCH)
            for _ in range(2):
                os.pread(first, size, self._at)
            self._at += size

    def close(self) -> None:
        for file in self._files:
            os.close(file)


def test_acks_all_throughput(benchmark: Any, claim: Any, make: Any, disk: Path) -> None:
    """One leader, two followers, 64 KiB batches; in turns with the bare copies."""
    cluster = make()
    (tp,) = cluster.create_topic("bench", assignment=[[0, 1, 2]], config=TWO)
    pipeline, bare = Pipeline(cluster, tp), BareCopies(disk / "bare")
    count = THROUGHPUT_BYTES // len(BATCH) // TURNS
    took = in_turns(
        benchmark,
        lambda: pipeline.run(count),
        rounds=TURNS,
        bare=lambda: seconds(lambda: bare.run(count)),
    )
    bare.close()
    size = count * len(BATCH) / 1e6
    claim(
        "acks=all, three replicas in one process, 64 KiB batches",
        rates(size, took["ours"]),
        "MB/s",
        peer="written three times and read twice by bare system calls on one thread",
        theirs=rates(size, took["bare"]),
        goal=0.6,
        note=f"{IN_FLIGHT} batches in flight",
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


def test_acks_all_round_trip(benchmark: Any, claim: Any, make: Any, disk: Path) -> None:
    """One record, idle cluster; in turns with the bare round trip."""
    cluster = make()
    (tp,) = cluster.create_topic("bench", assignment=[[0, 1, 2]], config=TWO)
    producer, bare = cluster.producer(), BareRoundTrip(disk)
    ours: list[list[float]] = []

    def hundred(trip: Callable[[], object]) -> list[float]:
        return [seconds(trip) * 1e3 for _ in range(100)]

    peer = in_turns(
        benchmark,
        lambda: ours.append(hundred(lambda: producer.send_encoded(tp, ONE))),
        rounds=TURNS,
        bare=lambda: statistics.median(hundred(bare.run)),
    )
    bare.close()
    what, mine = "acks=all round trip, one record", [statistics.median(trips) for trips in ours[1:]]
    note = f"p99 {p99([*itertools.chain(*ours[1:])]):.2f} ms"
    claim(what, mine, "ms p50", limit=1, less=True, note=note)
    claim(
        f"{what}, beside its bare parts",
        mine,
        "ms p50",
        peer="four hops between threads and three appends",
        theirs=peer["bare"],
        goal=1 / 4,  # two fetches of each of two followers lie between the bare parts
        less=True,
    )


def p99(times: list[float]) -> float:
    return sorted(times)[len(times) * 99 // 100]


def test_acks_all_synced(benchmark: Any, claim: Any, make: Any, disk: Path) -> None:
    """Each replica syncs before it counts."""
    cluster = make()
    config = {**TWO, "flush.messages": 1}
    (tp,) = cluster.create_topic("bench", assignment=[[0, 1, 2]], config=config)
    producer = cluster.producer()
    benchmark.pedantic(producer.send_encoded, (tp, ONE), rounds=500, warmup_rounds=50)
    send = [each * 1e3 for each in timed(benchmark)]
    claim(
        "acks=all round trip, one record, fsync before the answer",
        statistics.median(send),
        "ms p50",
        limit=2,
        less=True,
        note=f"p99 {p99(send):.2f} ms; a bare fsync {_fsync_ms(disk):.2f} ms",
    )


def test_producer_over_bare_requests(benchmark: Any, claim: Any, make: Any) -> None:
    """What the producer adds to a request: its state, its retries, its wait."""
    cluster = make()
    (tp,) = cluster.create_topic("bench", assignment=[[0]])
    producer, client = cluster.producer(acks=1), cluster.client
    request = ProduceRequest(1, 10_000, (ProducePartition(tp, ONE),))
    took = in_turns(
        benchmark,
        lambda: producer.send_encoded(tp, ONE),
        rounds=scaled(5000, 200),
        bare=lambda: seconds(lambda: client.call(0, request, 10.0)),
    )
    ours, bare = (statistics.median(times[100:]) * 1e6 for times in took.values())
    claim(
        "acks=1 round trip through the producer",
        ours,
        "µs p50",
        peer="a bare request on the same transport",
        theirs=bare,
        goal=1 / 1.5,
        less=True,
    )


def _fsync_ms(disk: Path) -> float:
    with open(disk / "fsync", "wb", buffering=0) as file:
        times = [file.write(ONE) and seconds(lambda: os.fsync(file.fileno())) for _ in range(100)]
    return statistics.median(times) * 1e3


def test_failover(benchmark: Any, claim: Any, make: Any) -> None:
    """From the moment the death of the leader is known to the first success on the new one."""
    cluster = make(config=ReplicationConfig(replica_fetch_backoff_ms=50))
    (tp,) = cluster.create_topic("bench", assignment=[[0, 1, 2]], config=TWO)
    producer = cluster.producer()

    def kill() -> tuple[tuple[int], dict[str, object]]:
        leader = cluster.wait_for_leader(tp)
        cluster.wait_for_isr(tp, (0, 1, 2))
        producer.send_encoded(tp, ONE)
        cluster.crash(leader)
        return (leader,), {}

    benchmark.pedantic(
        lambda leader: producer.send_encoded(tp, ONE),
        setup=kill,
        teardown=cluster.start,
        rounds=FAILOVERS,
    )
    times = [each * 1e3 for each in timed(benchmark)]
    claim(
        "leader dead, its death known, until the first acks=all success",
        p99(times),
        "ms p99",
        limit=50,
        less=True,
        note=f"p50 {statistics.median(times):.1f} ms, {len(times)} fail-overs",
    )


def create(cluster: Cluster, partitions: int = PARTITIONS) -> list[TopicPartition]:
    return cluster.create_topic("bench", assignment=[[0, 1, 2]] * partitions)


def test_topic_of_many_partitions(
    benchmark: Any, claim: Any, make: Any, kafka: Any, disk: Path
) -> None:
    """One topic is created, grown to twice as many partitions and deleted, each until every broker
    has done it. Kafka answers sooner, so both are timed until the directories are there or gone."""
    ours: list[float] = []
    cluster = make()
    benchmark.pedantic(lambda: ours.append(seconds(lambda: create(cluster))))
    grown = 2 * PARTITIONS, [[0, 1, 2]] * PARTITIONS
    ours.append(seconds(lambda: cluster.create_partitions("bench", grown[0], assignment=grown[1])))
    ours.append(seconds(lambda: cluster.delete_topic("bench")))
    cluster.close()
    with three_kafkas(disk / "kafkas") as peer:
        peer.create_topic("first", 1, 3)

        def until_there(change: Callable[[], None], replicas: int) -> float:
            def act() -> None:
                change()
                await_replicas(disk / "kafkas", "bench", replicas)

            return seconds(act)

        count = PARTITIONS
        theirs = [
            until_there(lambda: peer.create_topic("bench", count, 3), 3 * count),
            until_there(lambda: peer.grow_topic("bench", 2 * count), 6 * count),
            until_there(lambda: peer.delete_topic("bench"), 0),
        ]
    whats = (
        "1,000 partitions of three replicas created, one topic",
        "a topic grown by 1,000 partitions of three replicas",
        "a topic of 2,000 partitions of three replicas deleted",
    )
    for what, mine, his in zip(whats, ours, theirs, strict=True):
        claim(what, mine, "s", peer="three Kafka brokers", theirs=his, goal=1, less=True)


def reopen(cluster: Cluster) -> None:
    Cluster(3, cluster.directory, log_config=CONFIG).close()


def test_start_of_many_partitions(benchmark: Any, claim: Any, make: Any, disk: Path) -> None:
    """A cluster is opened again, until every broker knows all topics; beside a smaller one."""
    took = []
    for size in (PARTITIONS, LARGER * PARTITIONS):
        cluster = make()
        created = seconds(partial(create, cluster, size))
        cluster.close()
        opened = seconds(partial(reopen, cluster))
        took.append([each / size * 1e3 for each in (created, opened)])
    benchmark.pedantic(lambda: None)
    for what, (few, many) in zip(
        ("created", "opened and closed"), zip(*took, strict=True), strict=True
    ):
        claim(
            f"a partition of three replicas {what}, of {LARGER} times as many",
            many,
            "ms",
            peer="of 1,000",
            theirs=few,
            goal=1 / 1.3,
            less=True,
        )


def test_idle_and_role_change(benchmark: Any, claim: Any, make: Any) -> None:
    """1,000 partitions that nobody writes to: the processor time of the whole process. Then one
    request turns every partition of a broker from follower to leader."""

    def idle(partitions: Callable[[Cluster], object], **config: int) -> tuple[float, Cluster]:
        cluster = make(config=ReplicationConfig(**config))
        partitions(cluster)
        time.sleep(IDLE_S)  # what a new topic causes is over
        shares = []
        for _ in range(3):
            used = time.process_time()
            took = seconds(lambda: time.sleep(IDLE_S))
            shares.append((time.process_time() - used) / took * 100)
        return statistics.median(shares), cluster

    one, cluster = idle(lambda cluster: cluster.create_topic("one", assignment=[[0, 1, 2]]))
    cluster.close()
    without, cluster = idle(create, fetch_session_slots=0)
    cluster.close()
    share, cluster = idle(create)
    what, unit = "1,000 idle partitions, two followers", "% of a core"
    claim(what, share, unit, limit=0.5, less=True, note=f"with one partition {one:.2f} %")
    claim(f"{what}, fetch sessions", share, unit, peer="none", theirs=without, less=True)

    broker = cluster.broker(1)
    tps = sorted(broker.replica_manager.partitions)

    def change(leader: int, epoch: int) -> None:
        registration = PartitionRegistration((0, 1, 2), (0, 1, 2), leader, epoch, epoch)
        request = LeaderAndIsrRequest(
            0,
            1000,
            broker.broker_epoch,
            tuple(PartitionChange(tp, registration) for tp in tps),
            tuple(broker.metadata.live_brokers.values()),
        )
        answers: SimpleQueue[Any] = SimpleQueue()
        broker.replica_manager.control(request, answers.put)
        response = answers.get()
        assert all(code is ErrorCode.NONE for _, code in response.partitions), response

    epochs = itertools.count(20, 10)
    benchmark.pedantic(
        lambda: change(1, next(epochs)), setup=lambda: change(2, next(epochs)), rounds=3
    )
    times = timed(benchmark)
    claim(
        "role change of 1,000 partitions to leader",
        times,
        "s",
        limit=1,
        less=True,
        note=f"{statistics.median(times) / len(tps) * 1e3:.2f} ms a partition, of logs without "
        "records",
    )


CUTS = scaled(1000, 100)


def test_mass_truncation(benchmark: Any, claim: Any, disk: Path) -> None:
    """What a fail-over makes a follower do: a tail to cut from each log, and checkpoints that say
    no more than is left, durable. The peer is one cut with its own checkpoint, ten times: one for
    each 100. Each is one call of a manager, as the main thread pays for each with a thread."""
    manager = LogManager(
        [disk / "cuts"], CONFIG, background=False, owner=ManagerOwner(replicated=True)
    )
    logs = [manager.get_or_create("t", number) for number in range(CUTS)]

    def grow() -> None:
        """Two records more, flushed and believed to be committed."""
        for log in logs:
            for _ in range(2):
                end = log.log_end_offset
                record = (b"key", bytes(100), 1_700_000_000_000)
                log.replica.append_as_follower(
                    encode_batch([record], base_offset=end, leader_epoch=0)
                )
            log.flush()
            log.replica.update_high_watermark(log.log_end_offset)
        manager.housekeeper.checkpoint_recovery_points()
        manager.housekeeper.checkpoint_high_watermarks()

    def cut() -> None:
        manager.truncate_to({log.topic_partition: log.log_end_offset - 1 for log in logs})

    # The first round is not counted: its snapshots of producers are not like the others.
    times = in_turns(benchmark, cut, setup=grow)["ours"]
    singles = []
    grow()
    for log in logs[:20]:
        end = log.log_end_offset - 1
        singles.append(
            seconds(lambda log=log, end=end: manager.truncate_to({log.topic_partition: end}))
        )
    one = statistics.median(singles)
    claim(
        "1,000 cuts of a fail-over, durable",
        times,
        "s",
        peer="one cut for each 100 of them",
        theirs=one * CUTS / 100,
        goal=1 / 5,
        less=True,
        note=f"one cut {one * 1e3:.1f} ms",
    )
    manager.close()
