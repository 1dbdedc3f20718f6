"""Three broker processes beside three of a real Kafka: all six run, and the clusters take turns.

Both keep their trees in one ZooKeeper, with sessions of the same time. CPU is that of the brokers
alone.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import pytest
from process_clusters import IDS, ProcessCluster, clusters, wait_until
from server_peers import ROOT, RawClient, cpu_seconds, produce_frame, resident_mb
from workloads import ROUNDS, rates, scaled

from replication.protocol import ApiKey, decode_response
from replication.protocol.headers import parse_response_header

MB = 1_000_000
IDLE_S = scaled(8, 2)
TOPICS = [f"many-{number}" for number in range(5)]  # of a fifth of the partitions each
PARTITIONS = scaled(1000, 10)
SEGMENTS = 5
ROLLING = {"segment.ms": 1, "segment.index.bytes": 4096}  # a segment for each record

Figures = tuple[float, ...]
number = itertools.count()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ProcessCluster]]:
    """Ours and Kafka's."""
    import os
    import shutil

    directory = ROOT / ".cache" / f"bench-processes-{os.getpid()}"
    directory.mkdir(parents=True)
    try:
        with clusters(directory) as found:
            yield found
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def turns(
    benchmark: Any,
    pair: list[ProcessCluster],
    work: Callable[[ProcessCluster, int], Figures],
    warmup_rounds: int = 1,
    rounds: int = ROUNDS,
) -> list[list[Figures]]:
    """For each cluster, each figure that ``work`` gave, in all rounds. Who goes first changes."""
    found: dict[str, list[Figures]] = {cluster.name: [] for cluster in pair}
    orders = itertools.cycle([pair, pair[::-1]])

    def turn() -> None:
        for cluster in next(orders):
            found[cluster.name].append(work(cluster, next(number)))

    benchmark.pedantic(turn, rounds=rounds, warmup_rounds=warmup_rounds)
    return [list(zip(*found[cluster.name][warmup_rounds:], strict=True)) for cluster in pair]


def claim_less(
    claim: Any,
    what: str,
    unit: str,
    ours: Figures,
    theirs: Figures,
    goal: float | None,
    **more: Any,
) -> None:
    claim(what, ours, unit, peer="Kafka", theirs=theirs, goal=goal, less=True, **more)


# -- acks=all -------------------------------------------------------------------------------------


def test_acks_all_one_record(benchmark: Any, claim: Any, pair: list[ProcessCluster]) -> None:
    """One record of 100 bytes after the other, three replicas."""
    count, topic = scaled(1000, 50), "one"
    request = produce_frame(topic, bytes(100), acks=-1)
    for cluster in pair:
        cluster.create_topic(topic, [[1, 2, 3]])

    def ask(cluster: ProcessCluster, at: int) -> Figures:
        times, before = [], cluster.cpu()
        with RawClient(cluster.port(1)) as client:
            for _ in range(count):
                begun = time.perf_counter()
                client.send(request)
                answer = client.receive()
                times.append(time.perf_counter() - begun)
            _, start = parse_response_header(answer, ApiKey.PRODUCE, 9)
            (told,) = decode_response(ApiKey.PRODUCE, 9, answer[start:]).responses
            assert told.partition_responses[0].error_code == 0
        cpu = (cluster.cpu() - before) / count
        times.sort()
        return times[count // 2] * 1e6, times[int(count * 0.99)] * 1e6, cpu * 1e6

    (p50, p99, cpu), (their50, their99, their_cpu) = turns(benchmark, pair, ask)
    what = "three processes, acks=all of one record"
    tails = statistics.median(p99), statistics.median(their99)
    note = "p99 {:,.0f}; Kafka's {:,.0f}".format(*tails)
    claim_less(claim, what, "µs p50", p50, their50, 0.7, note=note)
    claim_less(claim, f"{what}: CPU of the brokers", "µs", cpu, their_cpu, 0.7)


def test_acks_all_batches(benchmark: Any, claim: Any, pair: list[ProcessCluster]) -> None:
    """Batches of 64 KiB from librdkafka, one partition, three replicas."""
    size = scaled(200 * MB, 4 * MB)
    value = bytes(8000)
    settings = {"acks": "all", "batch.size": 65_536, "batch.num.messages": 8, "linger.ms": 5}

    def produce_all(cluster: ProcessCluster, at: int) -> Figures:
        topic = f"batches-{at}"
        cluster.create_topic(topic, [[1, 2, 3]])
        producer = confluent_kafka.Producer({"bootstrap.servers": cluster.bootstrap, **settings})
        failed: list[object] = []

        def on_delivery(error: object, _: object) -> None:
            if error is not None:
                failed.append(error)

        cpu, begun = cluster.cpu(), time.perf_counter()
        for at in range(size // len(value)):
            while True:
                try:
                    producer.produce(topic, value, partition=0, on_delivery=on_delivery)
                    break
                except BufferError:
                    producer.poll(0.01)
            if not at % 64:
                producer.poll(0)
        assert producer.flush(120) == 0
        took = time.perf_counter() - begun
        assert not failed, failed[:3]
        return took, (cluster.cpu() - cpu) * 1000 * MB / size

    (wall, cpu), (their_wall, their_cpu) = turns(benchmark, pair, produce_all)
    what = "three processes, acks=all, batches of 64 KiB"
    mine, theirs = rates(size / MB, wall), rates(size / MB, their_wall)
    claim(what, mine, "MB/s", peer="Kafka", theirs=theirs, goal=0.7)
    claim_less(claim, f"{what}: CPU of the brokers for 1,000 MB", "s", cpu, their_cpu, 0.7)


# -- catching up ----------------------------------------------------------------------------------


def test_catch_up(benchmark: Any, claim: Any, pair: list[ProcessCluster]) -> None:
    """A broker gets a replica of what another one has in the page cache, until it is in sync."""
    size, topic = scaled(500 * MB, 8 * MB), "catch-up"
    request = produce_frame(topic, bytes(1000), 900, acks=1)
    for cluster in pair:
        cluster.create_topic(topic, [[1]], {"min.insync.replicas": 1})
        with RawClient(cluster.port(1)) as client:
            while cluster.count_records([topic]) * 1000 < size:  # some may be refused at first
                for _ in range(20):
                    client.send(request)
                    client.receive()

    def catch_up(cluster: ProcessCluster, at: int) -> Figures:
        leader, follower = (cluster.pid(broker_id) for broker_id in (1, 2))
        before, begun = [cpu_seconds(each) for each in (leader, follower)], time.perf_counter()
        cluster.reassign(topic, [1, 2])
        took = time.perf_counter() - begun
        used = [
            cpu_seconds(each) - old for each, old in zip((leader, follower), before, strict=True)
        ]
        cluster.reassign(topic, [1])
        gone = cluster.nodes[2].directory / f"{topic}-0"
        wait_until(lambda: not gone.exists(), "the replica is deleted")
        return took, *(each * 1000 * MB / size for each in used)

    (wall, *cpu), (their_wall, *their_cpu) = turns(benchmark, pair, catch_up)
    what = "three processes, a follower catches up"
    mine, theirs = rates(size / MB, wall), rates(size / MB, their_wall)
    claim(what, mine, "MB/s", peer="Kafka", theirs=theirs, goal=1)
    for name, used, their_used in zip(("leader", "follower"), cpu, their_cpu, strict=True):
        row = f"{what}: CPU of the {name} for 1,000 MB"
        claim_less(claim, row, "s", used, their_used, 1)


# -- a broker dies --------------------------------------------------------------------------------


def test_fail_over(benchmark: Any, claim: Any, pair: list[ProcessCluster]) -> None:
    """``kill -9`` of a leader that is not the controller, until the next record is acknowledged."""
    followers = {}
    for cluster in pair:
        others = [each for each in IDS if each != cluster.controller]
        cluster.create_topic("fail-over", [[*others, cluster.controller]])
        followers[cluster.name] = others

    def fail_over(cluster: ProcessCluster, at: int) -> Figures:
        leader = next(iter(cluster.leaders(["fail-over"])))
        cluster.produce_to_all(["fail-over"], b"before")
        known = begun = time.perf_counter()
        cluster.nodes[leader].kill()
        while cluster.tree.exists(f"/brokers/ids/{leader}") is not None:
            known = time.perf_counter()
        # No librdkafka, which looks for leaders once a second.
        wait_until(lambda: leader not in cluster.leaders(["fail-over"]), "another leads", 0.002)
        wait_until(lambda: cluster.produce_to_all(["fail-over"], b"after"), "it takes it", 0.002)
        took, since = (time.perf_counter() - each for each in (begun, known))
        cluster.nodes[leader].start()
        cluster.until_in_sync(["fail-over"], 3)
        return took * 1e3, since * 1e3

    ours, theirs = turns(benchmark, pair, fail_over, warmup_rounds=0)
    what = "three processes, kill -9 of a leader until the next acknowledgement"
    claim_less(claim, what, "ms", ours[0], theirs[0], 1, note="sessions of the same time")
    claim_less(claim, f"{what}, once its session has ended", "ms", ours[1], theirs[1], 1)


# -- many partitions ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def many(pair: list[ProcessCluster]) -> list[ProcessCluster]:
    """With 1,000 partitions of three replicas."""
    assignment = [[*itertools.islice(itertools.cycle(IDS), at, at + 3)] for at in range(3)]
    for cluster, topic in itertools.product(pair, TOPICS):
        parts = [assignment[at % 3] for at in range(PARTITIONS // len(TOPICS))]
        cluster.create_topic(topic, parts)
    return pair


def test_memory(benchmark: Any, claim: Any, pair: list[ProcessCluster]) -> None:
    """Resident in all three brokers, after the work above."""

    def resident(cluster: ProcessCluster, at: int) -> Figures:
        return (sum(resident_mb(cluster.pid(each)) for each in IDS),)

    (ours,), (theirs,) = turns(benchmark, pair, resident, warmup_rounds=0)
    claim_less(claim, "three processes, memory after the work", "MB", ours, theirs, 1 / 0.3)


def test_idle(benchmark: Any, claim: Any, many: list[ProcessCluster]) -> None:
    def idle(cluster: ProcessCluster, at: int) -> Figures:
        before = cluster.cpu()
        time.sleep(IDLE_S)
        used = cluster.cpu() - before
        return used / IDLE_S / len(IDS) * 100, sum(resident_mb(cluster.pid(each)) for each in IDS)

    (cpu, memory), (their_cpu, their_memory) = turns(benchmark, many, idle)
    what = f"three processes, {PARTITIONS:,} partitions"
    claim(f"{what}, idle: of a core a broker", cpu, "%", limit=0.5, less=True)
    claim_less(claim, f"{what}, idle: of a core a broker, beside Kafka", "%", cpu, their_cpu, 1)
    claim_less(claim, f"{what}, memory", "MB", memory, their_memory, 1 / 0.3)


@pytest.fixture(scope="module")
def more(many: list[ProcessCluster]) -> list[ProcessCluster]:
    """With 2,000 partitions, of which a half have five segments."""
    assignment = [[*itertools.islice(itertools.cycle(IDS), at, at + 3)] for at in range(3)]
    for cluster in many:
        for topic in TOPICS:
            parts = [assignment[at % 3] for at in range(PARTITIONS // len(TOPICS))]
            cluster.create_topic(f"more-{topic}", parts, ROLLING)
        for _ in range(SEGMENTS):
            cluster.produce_to_all([f"more-{topic}" for topic in TOPICS], bytes(200))
    return many


def test_start(benchmark: Any, claim: Any, more: list[ProcessCluster]) -> None:
    """One of three is killed and started again; its partitions have other leaders meanwhile."""
    topics = [*TOPICS, *(f"more-{topic}" for topic in TOPICS)]

    def start(cluster: ProcessCluster, at: int) -> Figures:
        controller = cluster.controller
        killed = next(each for each in IDS if each != controller)
        begun = time.perf_counter()
        cluster.nodes[killed].kill()
        wait_until(lambda: killed not in cluster.leaders(topics), "the others lead")
        moved = time.perf_counter() - begun
        cluster.produce_to_all(topics, bytes(200), controller)
        begun = time.perf_counter()
        cluster.nodes[killed].start()
        serves = time.perf_counter() - begun
        cluster.until_in_sync(topics, 3, controller)
        took = time.perf_counter() - begun
        return moved, serves, took, cpu_seconds(cluster.pid(killed))

    ours, theirs = turns(benchmark, more, start, warmup_rounds=0)
    what = f"three processes, {2 * PARTITIONS:,} partitions"
    rows = (
        ("kill -9 of a broker until none of its partitions is led by it", 1),
        ("start until it serves", 5),
        ("start until all are in sync", 5),
        ("start until all are in sync: its CPU", 1),
    )
    for (row, goal), mine, their in zip(rows, ours, theirs, strict=True):
        claim_less(claim, f"{what}, {row}", "s", mine, their, goal)


def test_start_of_all(benchmark: Any, claim: Any, more: list[ProcessCluster]) -> None:
    """All three are killed and started again: what was acknowledged is there, and more can be
    written to each partition."""
    topics = [*TOPICS, *(f"more-{topic}" for topic in TOPICS)]

    def start(cluster: ProcessCluster, at: int) -> Figures:
        written = cluster.count_records(topics) + cluster.produce_to_all(topics, bytes(200))
        cluster.kill_all()
        cluster.until_missed()
        begun = time.perf_counter()
        cluster.start_all()
        wait_until(lambda: -1 not in cluster.leaders(topics), "all are led")
        cluster.until_in_sync(topics, 3)
        took = time.perf_counter() - begun
        used = cluster.cpu()
        # A new leader knows no high watermark at first: "offset not available" is asked again.
        wait_until(lambda: cluster.count_records(topics) == written, "all records are there")
        cluster.produce_to_all(topics, bytes(200))
        return took, used

    ours, theirs = turns(benchmark, more, start, warmup_rounds=0, rounds=1)
    what = f"three processes, {2 * PARTITIONS:,} partitions, all killed and started"
    claim_less(claim, f"{what}, until all are in sync", "s", ours[0], theirs[0], 5)
    claim_less(claim, f"{what}: CPU of the brokers", "s", ours[1], theirs[1], 1)
