"""Two brokers to compare, each a process of its own, and a client of a few lines."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from logstore.format.batch import encode_batch
from replication.protocol import ApiKey, decode_response, encode_request
from replication.protocol import messages as wire
from replication.protocol.headers import parse_response_header, request_header

ROOT = Path(__file__).resolve().parents[1]
TICKS = os.sysconf("SC_CLK_TCK")
START_S = 30
PRODUCE_VERSION, FETCH_VERSION, CREATE_VERSION, METADATA_VERSION = 9, 11, 5, 9

KAFKA_JVM = ("-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")
"""As Kafka's own start script has it: optimised code."""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def cpu_seconds(pid: int) -> float:
    """User and system time of a process and all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def resident_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


class Peer:
    """A running broker."""

    def __init__(self, name: str, port: int, pid: int) -> None:
        self.name, self.port, self.pid = name, port, pid
        self.address = f"127.0.0.1:{port}"

    def create_topic(self, topic: str, partitions: int = 1, replicas: int = 1) -> None:
        kind = wire.CreateTopicsRequest
        with RawClient(self.port) as client:
            asked = kind((kind.CreatableTopic(topic, partitions, replicas),), 30_000)
            answer = client.ask(ApiKey.CREATE_TOPICS, CREATE_VERSION, asked)
            assert not answer.topics[0].error_code, answer
            client.await_leader(topic)


@contextlib.contextmanager
def ours(directory: Path, times: Path | None = None) -> Iterator[Peer]:
    """``logstore serve``; with ``times`` as in ``served.py``."""
    port = free_port()
    program = "from replication.cli.serve import serve; serve()"
    command = [sys.executable, "-c", program, "--dir", str(directory)]
    command += ["--listen", f"127.0.0.1:{port}", "--config", "group.initial.rebalance.delay.ms=0"]
    if times is not None:
        script = str(ROOT / "bench" / "served.py")
        command = [sys.executable, script, str(directory), str(port), str(times)]
    with Path(f"{directory}.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        try:
            _await_port(port, process)
            yield Peer("logstore", port, process.pid)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            finally:
                process.kill()
                process.wait()


def _await_port(port: int, process: subprocess.Popen[bytes]) -> None:
    """Until the broker answers. Before it knows its cluster it closes connections."""
    deadline = time.monotonic() + START_S
    while True:
        try:
            with RawClient(port) as client:
                client.ask(ApiKey.METADATA, METADATA_VERSION, wire.MetadataRequest(()))
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise
            time.sleep(0.02)


@contextlib.contextmanager
def kafka(directory: Path) -> Iterator[Peer]:
    """A real Kafka with its own garbage collector and compiler."""
    import broker  # of tests/interop

    limits = {"log.cleaner.enable": "false"}
    with broker.KafkaBroker(
        directory, overrides=limits, heap="1g", jvm_options=KAFKA_JVM
    ) as running:
        yield Peer("Kafka", int(running.bootstrap.rpartition(":")[2]), running.pid)


@contextlib.contextmanager
def three_kafkas(directory: Path) -> Iterator[Peer]:
    """Three real brokers of one cluster; the first of them is the controller and stands for all."""
    import kafka_cluster  # of tests/interop

    with kafka_cluster.running(directory) as nodes:
        yield Peer("Kafka", int(nodes[0].bootstrap.rpartition(":")[2]), nodes[0].pid)


class RawClient:
    """One connection, one request at a time."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = memoryview(bytearray(4 << 20))

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, frame: bytes) -> None:
        self._socket.sendall(frame)

    def receive(self) -> memoryview:
        """The next answer, without its length; valid until the next call."""
        window, have, size = self._buffer, 0, 4
        while have < size:
            count = self._socket.recv_into(window[have:size] if size > 4 else window[have:])
            if not count:
                raise ConnectionError("the broker closed the connection")
            have += count
            if size == 4 and have >= 4:
                size = 4 + int.from_bytes(window[:4])
                if size > len(window):
                    raise ValueError(f"an answer of {size} bytes")
        return window[4:size]

    def ask(self, key: ApiKey, version: int, message: Any) -> Any:
        self.send(frame(key, version, message))
        body = self.receive()
        _, at = parse_response_header(body, key, version)
        return decode_response(key, version, body[at:])

    def await_leader(self, topic: str) -> None:
        kind = wire.MetadataRequest
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            asked = kind((kind.MetadataRequestTopic(name=topic),))
            (found,) = self.ask(ApiKey.METADATA, METADATA_VERSION, asked).topics
            if found.partitions and not any(p.error_code for p in found.partitions):
                return
            time.sleep(0.05)
        raise TimeoutError(f"{topic} has no leader")


def frame(key: ApiKey, version: int, message: Any) -> bytes:
    """A whole request with its length."""
    data = request_header(key, version, 7, "bench") + encode_request(message, version)
    return len(data).to_bytes(4) + data


def produce_frame(topic: str, value: bytes, records: int = 1, acks: int = 1) -> bytes:
    kind = wire.ProduceRequest
    now = time.time_ns() // 1_000_000
    batch = bytes(encode_batch([(None, value, now)] * records))
    data = (kind.TopicProduceData(topic, partition_data=(kind.PartitionProduceData(0, batch),)),)
    return frame(ApiKey.PRODUCE, PRODUCE_VERSION, kind(None, acks, 30_000, data))


def fetch_frame(topic: str, offset: int, max_bytes: int) -> bytes:
    kind = wire.FetchRequest
    part = kind.FetchPartition(0, fetch_offset=offset, partition_max_bytes=max_bytes)
    asked = kind(
        max_wait_ms=500,
        min_bytes=1,
        max_bytes=max_bytes,
        topics=(kind.FetchTopic(topic, partitions=(part,)),),
    )
    return frame(ApiKey.FETCH, FETCH_VERSION, asked)


def measured(peer: Peer, work: Callable[[], object]) -> tuple[float, float]:
    """Seconds by the clock, and seconds of the broker's processors."""
    cpu, begun = cpu_seconds(peer.pid), time.perf_counter()
    work()
    return time.perf_counter() - begun, cpu_seconds(peer.pid) - cpu
