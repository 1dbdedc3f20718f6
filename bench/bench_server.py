"""The broker's front door beside a real Kafka: both run at the same time, and take turns.

Wall time has the client in it, which shares two cores with the broker. So each line has the
broker's own CPU seconds too, from ``/proc``.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import confluent_kafka
import kafka_jars
import pytest
from server_peers import (
    ROOT,
    Peer,
    RawClient,
    cpu_seconds,
    fetch_frame,
    kafka,
    measured,
    ours,
    produce_frame,
    resident_mb,
)
from workloads import scaled

from replication.protocol import ApiKey, decode_response
from replication.protocol.headers import parse_response_header

MB = 1_000_000


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    import shutil

    path = ROOT / ".cache" / f"bench-server-{os.getpid()}"
    path.mkdir(parents=True)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="module")
def peers(directory: Path) -> Iterator[list[Peer]]:
    """Ours and Kafka."""
    with ours(directory / "ours") as logstore, kafka(directory / "kafka") as theirs:
        yield [logstore, theirs]


Figures = tuple[float, ...]
turn = itertools.count()


def turns(run: int, peers: list[Peer], work: Callable[[Peer, int], Figures]) -> list[Figures]:
    """What ``work`` gave for each peer. The first run of a benchmark has a turn before, which is
    not counted; who goes first changes."""
    if not run:
        for peer in peers:
            work(peer, next(turn))
    found = {peer.name: work(peer, next(turn)) for peer in (peers if run % 2 else peers[::-1])}
    return [found[peer.name] for peer in peers]


def claim_throughput(
    claim: Callable[..., None],
    what: str,
    found: list[Figures],
    size_bytes: int,
    goal: float,
    *,
    unit_mb: int = 100,
) -> None:
    """Two lines: bytes a second by the clock, and CPU of the broker for so many bytes."""
    (wall, cpu), (their_wall, their_cpu) = found
    size = size_bytes / MB
    claim(what, size / wall, "MB/s", peer="Kafka", theirs=size / their_wall, goal=goal)
    claim(
        f"{what}: CPU of the broker for {unit_mb:,} MB",
        cpu * unit_mb / size,
        "s",
        peer="Kafka",
        theirs=their_cpu * unit_mb / size,
        goal=1,
        less=True,
        note=f"{100 * cpu / wall:.0f} % of a core",
    )


# -- produce ------------------------------------------------------------------------------------


def test_produce_librdkafka(run: int, claim: Callable[..., None], peers: list[Peer]) -> None:
    """Values of 100 bytes, one partition, acks=1, all else as librdkafka has it."""
    count, value = scaled(1_000_000), bytes(range(100))

    def produce_all(peer: Peer, at: int) -> Figures:
        topic = f"librdkafka-{at}"
        peer.create_topic(topic)
        producer = confluent_kafka.Producer({"bootstrap.servers": peer.address, "acks": 1})
        failed: list[object] = []

        def on_delivery(error: object, _: object) -> None:
            if error is not None:
                failed.append(error)

        def work() -> None:
            produce, poll = producer.produce, producer.poll
            for number in range(count):
                while True:
                    try:
                        produce(topic, value, partition=0)
                        break
                    except BufferError:
                        poll(0.01)
                if not number % 1000:
                    poll(0)
            produce(topic, value, partition=0, on_delivery=on_delivery)
            assert producer.flush(60) == 0

        result = measured(peer, work)
        assert not failed
        return result

    found = turns(run, peers, produce_all)
    what = "produce, librdkafka, 100-byte values, acks=1"
    claim_throughput(claim, what, found, count * 100, 1)


def test_produce_java(run: int, claim: Callable[..., None], peers: list[Peer]) -> None:
    """Kafka's own ProducerPerformance: values of 1,000 bytes."""
    count = scaled(300_000)

    def produce_all(peer: Peer, at: int) -> Figures:
        topic = f"java-{at}"
        peer.create_topic(topic)
        before = cpu_seconds(peer.pid)
        answer = kafka_jars.run_java(
            "org.apache.kafka.tools.ProducerPerformance",
            *("--topic", topic, "--num-records", str(count), "--record-size", "1000"),
            *("--throughput", "-1", "--producer-props"),
            *(f"bootstrap.servers={peer.address}", "acks=1"),
            jvm_options=("-Xmx512m", "-server"),
            timeout_s=180,
        )
        cpu = cpu_seconds(peer.pid) - before
        last = [line for line in answer.stdout.splitlines() if "MB/sec" in line][-1]
        rate = re.search(r"([\d.]+) records/sec", last)
        assert rate is not None
        return count / float(rate[1]), cpu

    found = turns(run, peers, produce_all)
    what = "produce, Java's ProducerPerformance, 1,000-byte values"
    claim_throughput(claim, what, found, count * 1000, 0.8)


# -- consume ------------------------------------------------------------------------------------


def test_consume(run: int, claim: Callable[..., None], peers: list[Peer]) -> None:
    """A socket that asks for 1 MiB at a time, of data that lies in the page cache."""
    size, max_bytes, topic = scaled(200 * MB), 1 << 20, f"consume-{run}"
    request = produce_frame(topic, bytes(1000), 900)
    offsets = range(0, -(-size // len(request)) * 900, 900)
    for peer in peers:
        peer.create_topic(topic)
        with RawClient(peer.port) as client:
            for _ in offsets:
                client.send(request)
                client.receive()
    step = max_bytes // len(request) or 1
    frames = [fetch_frame(topic, offset, max_bytes) for offset in offsets[::step]]
    done = 0

    def consume_all(peer: Peer, at: int) -> Figures:
        nonlocal done

        def work() -> None:
            nonlocal done
            done = 0
            with RawClient(peer.port) as client:
                for each in frames:
                    client.send(each)
                    done += len(client.receive())

        result = measured(peer, work)
        assert done > 0.9 * len(frames) * step * len(request)
        return result[0] / done, result[1] / done

    found = turns(run, peers, consume_all)
    what = "consume, fetches of 1 MiB from the page cache"
    claim_throughput(claim, what, found, 1, 1, unit_mb=1000)


# -- latency ------------------------------------------------------------------------------------


def test_round_trip(run: int, claim: Callable[..., None], peers: list[Peer]) -> None:
    """One record, acks=1, one request after the other."""
    count, topic = scaled(3000, 100), f"one-{run}"
    request = produce_frame(topic, bytes(100))
    for peer in peers:
        peer.create_topic(topic)

    def ask(peer: Peer, at: int) -> Figures:
        times = []
        cpu = cpu_seconds(peer.pid)
        with RawClient(peer.port) as client:
            for _ in range(count):
                begun = time.perf_counter()
                client.send(request)
                answer = client.receive()
                times.append(time.perf_counter() - begun)
            _, start = parse_response_header(answer, ApiKey.PRODUCE, 9)
            (told,) = decode_response(ApiKey.PRODUCE, 9, answer[start:]).responses
            assert told.partition_responses[0].error_code == 0
        cpu = (cpu_seconds(peer.pid) - cpu) / count
        times.sort()
        return times[count // 2] * 1e6, times[int(count * 0.99)] * 1e6, cpu * 1e6

    (p50, p99, cpu), (their50, their99, their_cpu) = turns(run, peers, ask)
    claim(
        "produce of one record, acks=1, end to end",
        p50,
        "µs p50",
        peer="Kafka",
        theirs=their50,
        goal=1 / 0.8,
        less=True,
        note=f"p99 {p99:.0f}, CPU {cpu:.0f}; Kafka's p99 {their99:.0f}, CPU {their_cpu:.0f}",
    )


def test_inside_the_broker(run: int, claim: Callable[..., None], directory: Path) -> None:
    """From the last byte of a request to the answer being handed to the network, at 2,000 a
    second."""
    answer = directory / f"latency-{run}.json"
    count, pause = scaled(10_000, 200), 1 / 2000
    with ours(directory / f"measured-{run}", answer) as peer:
        peer.create_topic("one")
        request = produce_frame("one", bytes(100))
        due = time.perf_counter()
        with RawClient(peer.port) as client:
            for _ in range(count):
                client.send(request)
                client.receive()
                due += pause
                rest = due - time.perf_counter()
                if rest > 0:
                    time.sleep(rest)
    times = sorted(json.loads(answer.read_text()))
    assert len(times) >= count
    for name, share, most in (("p50", 0.5, 100), ("p99", 0.99, 1000)):
        claim(
            f"produce of one record inside the broker, 2,000 a second, {name}",
            times[int(len(times) * share)] / 1e3,
            "µs",
            limit=most,
            less=True,
        )


# -- start and memory ---------------------------------------------------------------------------


def test_start(run: int, claim: Callable[..., None], directory: Path) -> None:
    def start(number: int) -> dict[str, float]:
        where = directory / f"start-{run}-{number}"
        command = [sys.executable, "bench/start_time.py", str(where)]
        environment = {
            **os.environ,
            "PYTHONPATH": f"{ROOT}:{ROOT / 'bench'}",
            "PYTHONDONTWRITEBYTECODE": "",  # compiled modules, as an installation has them
            "PYTHONPYCACHEPREFIX": str(directory / "pycache"),
        }
        answer = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, check=True, timeout=60
        )
        return {name: took * 1e3 for name, took in json.loads(answer.stdout).items()}

    starts = [start(number) for number in range(4)][1:]
    serve, imports = (statistics.median(s[name] for s in starts) for name in ("serve", "import"))
    claim(
        "serve, called until the first acknowledged record",
        serve,
        "ms",
        limit=150,
        less=True,
        note=f"the import before it {imports:.0f} ms",
    )


def test_group(run: int, claim: Callable[..., None], peers: list[Peer]) -> None:
    """A new consumer of a new group, from subscribe to its first record; no delay of the first
    rebalance."""
    for peer in peers:
        peer.create_topic(f"group-{run}")
        with RawClient(peer.port) as client:
            client.send(produce_frame(f"group-{run}", bytes(100)))
            client.receive()

    def first_record(peer: Peer, at: int) -> Figures:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": peer.address,
                "group.id": f"group-{at}",
                "auto.offset.reset": "earliest",
            }
        )
        begun = time.perf_counter()
        consumer.subscribe([f"group-{run}"])
        message = consumer.poll(30)
        took = time.perf_counter() - begun
        assert message is not None
        assert message.error() is None
        consumer.close()
        return (took,)

    ours_ms, theirs_ms = (took * 1e3 for (took,) in turns(run, peers, first_record))
    what = "a consumer group of one, subscribe until the first record"
    claim(what, ours_ms, "ms", limit=150, less=True, note="confluent-kafka")
    claim(f"{what}, beside Kafka", ours_ms, "ms", peer="Kafka", theirs=theirs_ms, less=True)


def test_memory(run: int, claim: Callable[..., None], directory: Path) -> None:
    with ours(directory / f"memory-{run}") as peer:
        peer.create_topic("one")
        with RawClient(peer.port) as client:
            client.send(produce_frame("one", bytes(100)))
            client.receive()
        small = resident_mb(peer.pid)
        for number in range(5):  # a topic of 1,000 is not ready in time
            peer.create_topic(f"many-{number}", scaled(200))
        many = resident_mb(peer.pid)
        idle = [socket.create_connection(("127.0.0.1", peer.port)) for _ in range(scaled(1000))]
        with RawClient(peer.port) as client:  # behind the others in the queue of the acceptor
            client.send(produce_frame("one", bytes(100)))
            client.receive()
        time.sleep(0.5)
        connected = resident_mb(peer.pid)
        for each in idle:
            each.close()
    claim("memory of a broker with one record", small, "MB", limit=60, less=True)
    claim("memory with 1,000 partitions", many, "MB", limit=150, less=True)
    claim("memory of 1,000 idle connections", connected - many, "MB", limit=20, less=True)
