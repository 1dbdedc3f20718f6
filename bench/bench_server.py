"""The broker's front door beside a real Kafka: both run at the same time, and take turns.

Wall time has the client in it, which shares two cores with the broker. So each line has the
broker's own CPU seconds too, from ``/proc``.
"""

from __future__ import annotations

import contextlib
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

from replication.protocol import ApiKey, decode_response
from replication.protocol.headers import parse_response_header

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "5"))
SCALE = float(os.environ.get("BENCH_SCALE", "1"))  # of the amounts, for a first look
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
    """Ours, and Kafka where there is one."""
    sys.path.append(str(ROOT / "tests" / "interop"))
    import kafka_jars

    with contextlib.ExitStack() as stack:
        running = [stack.enter_context(ours(directory / "ours"))]
        try:
            kafka_jars.helper_classes()
        except kafka_jars.KafkaUnavailable as error:
            print(f"no Kafka to compare with: {error}")
        else:
            running.append(stack.enter_context(kafka(directory / "kafka")))
        yield running


def turns(
    benchmark: Any, peers: list[Peer], run: Callable[[Peer, int], Any], rounds: int = ROUNDS
) -> dict[str, list[Any]]:
    """What ``run`` gave for each peer, round by round; the first round is not counted."""
    found: dict[str, list[Any]] = {peer.name: [] for peer in peers}
    number = iter(range(1000))

    def turn() -> None:
        at = next(number)
        for peer in peers if at % 2 else peers[::-1]:
            result = run(peer, at)
            if at:
                found[peer.name].append(result)

    benchmark.pedantic(turn, rounds=rounds, warmup_rounds=1)
    return found


def medians(results: list[tuple[float, ...]]) -> list[float]:
    return [statistics.median(column) for column in zip(*results, strict=True)]


def throughput(
    claim: Callable[..., None],
    what: str,
    found: dict[str, list[Any]],
    size_bytes: int,
    goal: float,
    *,
    unit_bytes: int = 100 * MB,
    unit: str = "100 MB",
) -> None:
    """Two lines: bytes a second by the clock, and CPU of the broker for so many bytes."""
    wall, cpu = medians(found["logstore"])
    rate, cost = size_bytes / MB / wall, cpu * unit_bytes / size_bytes
    peer: dict[str, Any] = {}
    cpu_peer: dict[str, Any] = {}
    met = cpu_met = None
    if "Kafka" in found:
        their_wall, their_cpu = medians(found["Kafka"])
        their_rate, their_cost = size_bytes / MB / their_wall, their_cpu * unit_bytes / size_bytes
        peer = {"peer": f"Kafka {their_rate:.0f} MB/s", "ratio": round(rate / their_rate, 2)}
        cpu_peer = {"peer": f"Kafka {their_cost:.2f} s", "ratio": round(cost / their_cost, 2)}
        met, cpu_met = rate >= goal * their_rate, cost <= their_cost
    load = f"{os.getloadavg()[0]:.1f}"
    claim(
        what=what,
        ours=round(rate),
        unit="MB/s",
        goal=f"at least {goal}x Kafka",
        met=met,
        note=f"median of {len(found['logstore'])}, load {load}",
        **peer,
    )
    claim(
        what=f"{what}: CPU of the broker for {unit}",
        ours=round(cost, 2),
        unit="s",
        goal="at most Kafka's",
        met=cpu_met,
        note=f"{100 * cpu / wall:.0f} % of a core",
        **cpu_peer,
    )


# -- produce ------------------------------------------------------------------------------------


def test_produce_librdkafka(benchmark: Any, claim: Callable[..., None], peers: list[Peer]) -> None:
    """Values of 100 bytes, one partition, acks=1, all else as librdkafka has it."""
    confluent = pytest.importorskip("confluent_kafka")
    count, value = int(1_000_000 * SCALE), bytes(range(100))

    def run(peer: Peer, at: int) -> tuple[float, float]:
        topic = f"librdkafka-{at}"
        peer.create_topic(topic)
        producer = confluent.Producer({"bootstrap.servers": peer.address, "acks": 1})
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

    found = turns(benchmark, peers, run)
    throughput(claim, "produce, librdkafka, 100-byte values, acks=1", found, count * 100, 1.0)


def test_produce_java(benchmark: Any, claim: Callable[..., None], peers: list[Peer]) -> None:
    """Kafka's own ProducerPerformance: values of 1,000 bytes."""
    import kafka_jars

    count = int(300_000 * SCALE)

    def run(peer: Peer, at: int) -> tuple[float, float]:
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

    found = turns(benchmark, peers, run, rounds=max(3, ROUNDS - 2))
    throughput(
        claim, "produce, Java's ProducerPerformance, 1,000-byte values", found, count * 1000, 0.8
    )


# -- consume ------------------------------------------------------------------------------------


def test_consume(benchmark: Any, claim: Callable[..., None], peers: list[Peer]) -> None:
    """A socket that asks for 1 MiB at a time, of data that lies in the page cache."""
    size, max_bytes, topic = int(200 * MB * SCALE), 1 << 20, "consume"
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

    def run(peer: Peer, at: int) -> tuple[float, float]:
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

    found = turns(benchmark, peers, run)
    throughput(
        claim,
        "consume, fetches of 1 MiB from the page cache",
        found,
        1,
        1.0,
        unit_bytes=1000 * MB,
        unit="1 GB",
    )


# -- latency ------------------------------------------------------------------------------------


def test_round_trip(benchmark: Any, claim: Callable[..., None], peers: list[Peer]) -> None:
    """One record, acks=1, one request after the other."""
    count, topic = int(3000 * SCALE), "one"
    request = produce_frame(topic, bytes(100))
    for peer in peers:
        peer.create_topic(topic)

    def run(peer: Peer, at: int) -> tuple[float, float, float]:
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

    found = turns(benchmark, peers, run)
    p50, p99, cpu = medians(found["logstore"])
    facts: dict[str, Any] = {"met": None}
    note = f"p99 {p99:.0f} µs; {cpu:.0f} µs of CPU a record"
    if "Kafka" in found:
        their50, their99, their_cpu = medians(found["Kafka"])
        facts = {"peer": f"Kafka {their50:.0f} µs", "ratio": round(p50 / their50, 2)}
        facts["met"] = p50 <= 0.8 * their50
        note += f"; Kafka's p99 {their99:.0f} µs, CPU {their_cpu:.0f} µs"
    claim(
        what="produce of one record, acks=1, end to end",
        ours=round(p50),
        unit="µs p50",
        goal="at most 0.8x Kafka",
        note=f"{note}; load {os.getloadavg()[0]:.1f}",
        **facts,
    )


def test_inside_the_broker(benchmark: Any, claim: Callable[..., None], directory: Path) -> None:
    """From the last byte of a request to the answer being handed to the network, at 2,000 a
    second."""
    answer = directory / "latency.json"
    count, pause = int(10_000 * SCALE), 1 / 2000
    with ours(directory / "measured", answer) as peer:
        peer.create_topic("one")
        request = produce_frame("one", bytes(100))

        def run() -> None:
            due = time.perf_counter()
            with RawClient(peer.port) as client:
                for _ in range(count):
                    client.send(request)
                    client.receive()
                    due += pause
                    rest = due - time.perf_counter()
                    if rest > 0:
                        time.sleep(rest)

        benchmark.pedantic(run, rounds=1, warmup_rounds=0)
    times = sorted(json.loads(answer.read_text()))
    assert len(times) >= count
    p50, p99 = times[len(times) // 2] / 1e3, times[int(len(times) * 0.99)] / 1e3
    for name, value, most in (("p50", p50, 100), ("p99", p99, 1000)):
        claim(
            what="produce of one record inside the broker, 2,000 a second",
            ours=round(value),
            unit=f"µs {name}",
            goal=f"at most {most} µs",
            met=value <= most,
            note=f"of {len(times)}; load {os.getloadavg()[0]:.1f}",
        )


# -- start and memory ---------------------------------------------------------------------------


def test_start(benchmark: Any, claim: Callable[..., None], directory: Path) -> None:
    found: list[dict[str, float]] = []

    def run() -> None:
        command = [sys.executable, "bench/start_time.py", str(directory / f"start-{len(found)}")]
        environment = {
            **os.environ,
            "PYTHONPATH": f"{ROOT}:{ROOT / 'bench'}",
            "PYTHONDONTWRITEBYTECODE": "",  # compiled modules, as an installation has them
            "PYTHONPYCACHEPREFIX": str(directory / "pycache"),
        }
        answer = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, check=True, timeout=60
        )
        found.append(json.loads(answer.stdout))

    benchmark.pedantic(run, rounds=ROUNDS, warmup_rounds=1)
    took = statistics.median(each["serve"] for each in found[1:]) * 1e3
    imports = statistics.median(each["import"] for each in found[1:]) * 1e3
    claim(
        what="serve, called until the first acknowledged record",
        ours=round(took),
        unit="ms",
        goal="at most 150 ms",
        met=took <= 150,
        note=f"the import before it {imports:.0f} ms; load {os.getloadavg()[0]:.1f}",
    )


def test_group(benchmark: Any, claim: Callable[..., None], peers: list[Peer]) -> None:
    """A new consumer of a new group, from subscribe to its first record; no delay of the first
    rebalance."""
    confluent = pytest.importorskip("confluent_kafka")
    for peer in peers:
        peer.create_topic("group")
        with RawClient(peer.port) as client:
            client.send(produce_frame("group", bytes(100)))
            client.receive()

    def run(peer: Peer, at: int) -> tuple[float]:
        consumer = confluent.Consumer(
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
        return (took,)

    found = turns(benchmark, peers, run)
    (took,) = medians(found["logstore"])
    peer = {}
    if "Kafka" in found:
        (theirs,) = medians(found["Kafka"])
        peer = {"peer": f"Kafka {theirs * 1e3:.0f} ms", "ratio": round(took / theirs, 2)}
    claim(
        what="a consumer group of one, subscribe until the first record",
        ours=round(took * 1e3),
        unit="ms",
        goal="at most 150 ms",
        met=took <= 0.15,
        note=f"confluent-kafka; load {os.getloadavg()[0]:.1f}",
        **peer,
    )


def test_memory(benchmark: Any, claim: Callable[..., None], directory: Path) -> None:
    def note(what: str, value: float, most: int) -> None:
        claim(
            what=what, ours=round(value, 1), unit="MB", goal=f"at most {most} MB", met=value <= most
        )

    with ours(directory / "memory") as peer:
        peer.create_topic("one")
        with RawClient(peer.port) as client:
            client.send(produce_frame("one", bytes(100)))
            client.receive()
        small = resident_mb(peer.pid)
        note("memory of a broker with one record", small, 60)
        peer.create_topic("many", 1000)
        many = resident_mb(peer.pid)
        note("memory with 1,000 partitions", many, 150)
        idle = [socket.create_connection(("127.0.0.1", peer.port)) for _ in range(1000)]
        with RawClient(peer.port) as client:  # behind the others in the queue of the acceptor
            client.send(produce_frame("one", bytes(100)))
            client.receive()
        time.sleep(0.5)
        note("memory of 1,000 idle connections", resident_mb(peer.pid) - many, 20)
        for each in idle:
            each.close()
    benchmark.pedantic(lambda: None, rounds=1)
