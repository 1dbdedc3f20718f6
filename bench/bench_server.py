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
from typing import Any

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
from workloads import ROUNDS, rates, scaled

from replication.protocol import ApiKey, decode_response
from replication.protocol.headers import parse_response_header

MB = 1_000_000


@pytest.fixture(scope="module")
def peers(directory: Path) -> Iterator[list[Peer]]:
    """Ours and Kafka."""
    with ours(directory / "ours") as logstore, kafka(directory / "kafka") as theirs:
        yield [logstore, theirs]


Figures = tuple[float, ...]
number = itertools.count()


def turns(
    benchmark: Any, peers: list[Peer], work: Callable[[Peer, int], Figures]
) -> list[list[Figures]]:
    """For each peer, each figure that ``work`` gave, in all rounds. The first turn is not counted;
    who goes first changes."""
    found: dict[str, list[Figures]] = {peer.name: [] for peer in peers}
    orders = itertools.cycle([peers, peers[::-1]])

    def turn() -> None:
        for peer in next(orders):
            found[peer.name].append(work(peer, next(number)))

    benchmark.pedantic(turn, rounds=ROUNDS, warmup_rounds=1)
    return [list(zip(*found[peer.name][1:], strict=True)) for peer in peers]


def claim_throughput(
    claim: Any,
    what: str,
    found: list[list[Figures]],
    size_bytes: int,
    goal: float,
    *,
    unit_mb: int = 100,
) -> None:
    """Two lines: bytes a second by the clock, and CPU of the broker for so many bytes."""
    (wall, cpu), (their_wall, their_cpu) = found
    size = size_bytes / MB
    ours, theirs = rates(size, wall), rates(size, their_wall)
    claim(what, ours, "MB/s", peer="Kafka", theirs=theirs, goal=goal)
    claim(
        f"{what}: CPU of the broker for {unit_mb:,} MB",
        [each * unit_mb / size for each in cpu],
        "s",
        peer="Kafka",
        theirs=[each * unit_mb / size for each in their_cpu],
        goal=1,
        less=True,
        note=f"{100 * sum(cpu) / sum(wall):.0f} % of a core",
    )


# -- produce ------------------------------------------------------------------------------------


def test_produce_librdkafka(benchmark: Any, claim: Any, peers: list[Peer]) -> None:
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

    found = turns(benchmark, peers, produce_all)
    what = "produce, librdkafka, 100-byte values, acks=1"
    claim_throughput(claim, what, found, count * 100, 1)


def test_produce_java(benchmark: Any, claim: Any, peers: list[Peer]) -> None:
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

    found = turns(benchmark, peers, produce_all)
    what = "produce, Java's ProducerPerformance, 1,000-byte values"
    claim_throughput(claim, what, found, count * 1000, 0.8)


# -- consume ------------------------------------------------------------------------------------


def test_consume(benchmark: Any, claim: Any, peers: list[Peer]) -> None:
    """A socket that asks for 1 MiB at a time, of data that lies in the page cache."""
    size, max_bytes, topic = scaled(200 * MB), 1 << 20, "consume"
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

    found = turns(benchmark, peers, consume_all)
    what = "consume, fetches of 1 MiB from the page cache"
    claim_throughput(claim, what, found, 1, 1, unit_mb=1000)


# -- latency ------------------------------------------------------------------------------------


def test_round_trip(benchmark: Any, claim: Any, peers: list[Peer]) -> None:
    """One record, acks=1, one request after the other."""
    count, topic = scaled(3000, 100), "one"
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

    (p50, p99, cpu), (their50, their99, their_cpu) = turns(benchmark, peers, ask)
    claim(
        "produce of one record, acks=1, end to end",
        p50,
        "µs p50",
        peer="Kafka",
        theirs=their50,
        goal=1 / 0.8,
        less=True,
        note="p99 {:.0f}, CPU {:.0f}; Kafka's p99 {:.0f}, CPU {:.0f}".format(
            *map(statistics.median, (p99, cpu, their99, their_cpu))
        ),
    )


def test_inside_the_broker(benchmark: Any, claim: Any, directory: Path) -> None:
    """From the last byte of a request to the answer being handed to the network, at 2,000 a
    second."""
    answer = directory / "latency.json"
    count, pause = scaled(10_000, 200), 1 / 2000
    found: list[list[float]] = []

    def ask() -> None:
        with ours(directory / f"measured-{len(found)}", answer) as peer:
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
        found.append(sorted(json.loads(answer.read_text())))
        assert len(found[-1]) >= count

    benchmark.pedantic(ask, rounds=ROUNDS)
    for name, share, most in (("p50", 0.5, 60), ("p99", 0.99, 1000)):
        claim(
            f"produce of one record inside the broker, 2,000 a second, {name}",
            [times[int(len(times) * share)] / 1e3 for times in found],
            "µs",
            limit=most,
            less=True,
        )


# -- start and memory ---------------------------------------------------------------------------


def test_start(benchmark: Any, claim: Any, directory: Path) -> None:
    starts: list[dict[str, float]] = []

    def start() -> None:
        where = directory / f"start-{len(starts)}"
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
        starts.append({name: took * 1e3 for name, took in json.loads(answer.stdout).items()})

    benchmark.pedantic(start, rounds=3 * ROUNDS, warmup_rounds=1)
    serve, imports = ([each[name] for each in starts[1:]] for name in ("serve", "import"))
    claim(
        "serve, called until the first acknowledged record",
        serve,
        "ms",
        limit=150,
        less=True,
        note=f"the import before it {statistics.median(imports):.0f} ms",
    )


def test_group(benchmark: Any, claim: Any, peers: list[Peer]) -> None:
    """A new consumer of a new group, from subscribe to its first record; no delay of the first
    rebalance."""
    for peer in peers:
        peer.create_topic("group")
        with RawClient(peer.port) as client:
            client.send(produce_frame("group", bytes(100)))
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
        consumer.subscribe(["group"])
        message = consumer.poll(30)
        took = time.perf_counter() - begun
        assert message is not None
        assert message.error() is None
        consumer.close()
        return (took * 1e3,)

    ours_ms, theirs_ms = (took for (took,) in turns(benchmark, peers, first_record))
    what = "a consumer group of one, subscribe until the first record"
    claim(what, ours_ms, "ms", limit=150, less=True, note="confluent-kafka")
    claim(f"{what}, beside Kafka", ours_ms, "ms", peer="Kafka", theirs=theirs_ms, less=True)


def test_memory(benchmark: Any, claim: Any, directory: Path) -> None:
    def grow() -> Figures:
        with ours(directory / "memory") as peer:
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
        return small, many, connected

    small, many, connected = benchmark.pedantic(grow)
    claim("memory of a broker with one record", small, "MB", limit=60, less=True)
    claim("memory with 1,000 partitions", many, "MB", limit=150, less=True)
    claim("memory of 1,000 idle connections", connected - many, "MB", limit=20, less=True)
