"""What copies a topic off a Kafka, each a process: ours, Kafka's own consumer, MirrorMaker 2."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import kafka_jars  # of tests/interop
from server_peers import KAFKA_JVM, ROOT, Peer, RawClient, cpu_seconds

from replication.protocol import ApiKey
from replication.protocol import messages as wire

MIRROR_MAKER = ROOT / "bench" / "kafka" / "mirror-maker.xml"
WAIT_S, LIST_VERSION, LATEST = 180, 5, -1


@dataclass(frozen=True)
class Ran:
    """A process that has ended: seconds by the clock from its start on, seconds of processors with
    its children, most memory, and what it printed."""

    wall_s: float
    cpu_s: float
    peak_mb: float
    output: str


def run(command: list[str], output: Path, **more: str) -> Ran:
    """Run a command to its end; fails with what it printed unless its status is 0."""
    begun = time.perf_counter()
    with output.open("wb") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment(**more),
        )
        _, status, usage = os.wait4(process.pid, 0)
    wall, printed = time.perf_counter() - begun, output.read_text(errors="replace")
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, (command, process.returncode, printed[-4000:])
    return Ran(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1000, printed)


def environment(**more: str) -> dict[str, str]:
    """Of a process of this tree's code, which is compiled once."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "", **more}


def logstore_command(*args: object) -> list[str]:
    return [sys.executable, "-m", "logstore", *map(str, args)]


def fill(source: Peer, topic: str, partitions: int, count: int) -> None:
    """``count`` records of 1 KiB by Kafka's own producer, in batches of 64 KiB."""
    source.create_topic(topic, partitions)
    kafka_jars.run_java(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", topic, "--num-records", str(count), "--record-size", "1024"),
        *("--throughput", "-1", "--producer-props", f"bootstrap.servers={source.address}"),
        *("acks=1", "batch.size=65536", "linger.ms=5", "compression.type=none"),
        jvm_options=("-Xmx512m", "-server"),
        timeout_s=WAIT_S,
    )


def ends(port: int, topic: str, partitions: int) -> int:
    """The sum of the log ends of a topic on the one broker at ``port``."""
    kind = wire.ListOffsetsRequest
    parts = tuple(
        kind.ListOffsetsPartition(number, timestamp=LATEST) for number in range(partitions)
    )
    with RawClient(port) as client:
        asked = kind(topics=(kind.ListOffsetsTopic(topic, parts),))
        (answer,) = client.ask(ApiKey.LIST_OFFSETS, LIST_VERSION, asked).topics
    return sum(max(0, part.offset) for part in answer.partitions)


def consumer_perf(source: Peer, topic: str, count: int) -> tuple[float, float]:
    """Kafka's ConsumerPerformance: MB/s (of 1,000,000) from its own first to its own last moment,
    and of its fetches alone, without the group's joining."""
    answer = kafka_jars.run_java(
        "org.apache.kafka.tools.ConsumerPerformance",
        *("--bootstrap-server", source.address, "--topic", topic, "--hide-header"),
        *("--num-records", str(count), "--timeout", "30000"),
        jvm_options=("-Xmx512m", "-server"),
        timeout_s=WAIT_S,
    )
    # start, end, MB (of 2^20), MB/s, records, records/s, joining in ms, fetching in ms, MB/s of it
    fields = [each.strip() for each in answer.stdout.strip().splitlines()[-1].split(",")]
    assert int(fields[4]) == count, answer.stdout
    return float(fields[3]) * 1.048576, float(fields[8]) * 1.048576


def mirror_maker(
    source: Peer, target: Peer, topic: str, partitions: int, count: int, directory: Path
) -> tuple[float, float]:
    """Seconds by the clock and of MirrorMaker's processors for the topic, without its start.

    Both are counted from when the first records are in the target, and scaled up to all. It does
    nothing else: no checkpoints, heartbeats, configs. Its batches are large.
    """
    copied = f"source.{topic}"
    target.create_topic(copied, partitions)
    properties = directory / f"{topic}.mm2.properties"
    settings = {
        "clusters": "source, target",
        "source.bootstrap.servers": source.address,
        "target.bootstrap.servers": target.address,
        "source->target.enabled": "true",
        "source->target.topics": topic,
        "target->source.enabled": "false",
        "tasks.max": 2,
        "replication.factor": 1,
        "offset-syncs.topic.replication.factor": 1,
        "heartbeats.topic.replication.factor": 1,
        "checkpoints.topic.replication.factor": 1,
        "offset.storage.replication.factor": 1,
        "status.storage.replication.factor": 1,
        "config.storage.replication.factor": 1,
        "emit.heartbeats.enabled": "false",
        "emit.checkpoints.enabled": "false",
        "sync.topic.configs.enabled": "false",
        "sync.topic.acls.enabled": "false",
        "source.consumer.max.poll.records": 2000,
        "source.consumer.fetch.min.bytes": 262144,
        "source.consumer.max.partition.fetch.bytes": 4194304,
        "target.producer.batch.size": 262144,
        "target.producer.linger.ms": 20,
        "target.producer.buffer.memory": 134217728,
    }
    properties.write_text("".join(f"{name} = {value}\n" for name, value in settings.items()))
    command = kafka_jars.java_command(
        "org.apache.kafka.connect.mirror.MirrorMaker",
        str(properties),
        jvm_options=(*KAFKA_JVM, "-Xmx1g"),
        pom=MIRROR_MAKER,
    )
    with (directory / f"{topic}.mm2.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            return _watched(process, target.port, copied, partitions, count)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()


def _watched(
    process: subprocess.Popen[bytes], port: int, topic: str, partitions: int, count: int
) -> tuple[float, float]:
    deadline, first = time.monotonic() + WAIT_S, (0, 0.0, 0.0)
    while True:
        assert process.poll() is None, "MirrorMaker has ended"
        assert time.monotonic() < deadline, f"MirrorMaker has not copied {topic} in time"
        there = ends(port, topic, partitions)
        now = (there, time.perf_counter(), cpu_seconds(process.pid))
        if there and not first[0]:
            first = now
        if there >= count:
            share = count / max(1, there - first[0])
            return (now[1] - first[1]) * share, (now[2] - first[2]) * share
        time.sleep(0.02 if not first[0] else 0.1)
