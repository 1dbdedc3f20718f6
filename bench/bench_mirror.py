"""`logstore mirror` of a topic of a real Kafka, beside Kafka's own consumer and MirrorMaker 2.

The source, and MirrorMaker's target, share the machine with what is measured.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mirror_peers
import pytest
from server_peers import Peer, cpu_seconds, kafka, resident_mb
from workloads import ROUNDS, rates, scaled

TOPIC, PARTITIONS = "copied", 4
COUNT = scaled(1_000_000)  # records of 1 KiB
MB = COUNT * 1024 / 1e6
MANY, TOPICS = scaled(1000, 10), 5  # a topic of 1,000 is not ready in time
IDLE_S, SETTLE_S = scaled(20, 2), scaled(10, 3)
number = itertools.count()


@pytest.fixture(scope="module")
def source(directory: Path) -> Iterator[Peer]:
    with kafka(directory / "source") as peer:
        mirror_peers.fill(peer, TOPIC, PARTITIONS, COUNT)
        yield peer


def mirrored(source: Peer, directory: Path) -> mirror_peers.Ran:
    """The whole process, from its start to its end."""
    copy = directory / f"mirror-{next(number)}"
    command = ["mirror", "--from", source.address, "--dir", copy, "--topics", TOPIC, "--once"]
    try:
        ran = mirror_peers.run(mirror_peers.logstore_command(*command), copy.with_suffix(".out"))
        kept = sum(each.stat().st_size for each in copy.glob(f"{TOPIC}-*/*.log"))
        assert kept > MB * 1e6, f"{kept} bytes of {MB:.0f} MB"
        return ran
    finally:
        shutil.rmtree(copy, ignore_errors=True)


def test_mirror(benchmark: Any, claim: Any, directory: Path, source: Peer) -> None:
    """Ours from the start of the process to its end, with all on disk. The peer's figure is its
    own, without the start of its process."""
    found: list[tuple[mirror_peers.Ran, float, float]] = []

    def turn() -> None:
        theirs = mirror_peers.consumer_perf(source, TOPIC, COUNT)
        found.append((mirrored(source, directory), *theirs))

    benchmark.pedantic(turn, rounds=ROUNDS, warmup_rounds=1)
    ran, whole, fetches = zip(*found[1:], strict=True)
    claim(
        "mirror of 1 KiB records, the whole process",
        rates(MB, [each.wall_s for each in ran]),
        "MB/s",
        peer="kafka-consumer-perf-test",
        theirs=whole,
        goal=0.9,
        note=f"its fetches alone {max(fetches):.0f}",
    )
    with kafka(directory / "target") as target:
        before = cpu_seconds(target.pid)
        wall, cpu = mirror_peers.mirror_maker(source, target, TOPIC, PARTITIONS, COUNT, directory)
        writing = cpu_seconds(target.pid) - before
    shutil.rmtree(directory / "target", ignore_errors=True)
    claim(
        "mirror of 1 KiB records: CPU of the process for 1 GB",
        [each.cpu_s * 1000 / MB for each in ran],
        "s",
        peer="MirrorMaker 2",
        theirs=cpu * 1000 / MB,
        goal=2,
        less=True,
        note=f"it copied {MB / wall:.0f} MB/s; the Kafka that it wrote to "
        f"{writing * 1000 / MB:.1f} s more",
    )
    peak = [each.peak_mb for each in ran]
    claim("mirror of 1 KiB records: memory", peak, "MB", limit=200, less=True)


def test_idle_mirror(benchmark: Any, claim: Any, directory: Path, source: Peer) -> None:
    """Of 1,000 partitions, a record in none of them."""
    for each in range(TOPICS):
        source.create_topic(f"idle-{each}", MANY // TOPICS)
    copy = directory / "idle"
    pattern = "idle-.*"

    def turn() -> tuple[float, float, float]:
        with running_mirror(source, copy, pattern) as process:
            deadline = time.monotonic() + mirror_peers.WAIT_S
            while len([*copy.glob("idle-*-*")]) < MANY:
                assert process.poll() is None, copy.with_suffix(".out").read_text()
                assert time.monotonic() < deadline, "the mirror has not made its logs in time"
                time.sleep(0.1)
            time.sleep(SETTLE_S)
            before = cpu_seconds(process.pid), cpu_seconds(source.pid)
            time.sleep(IDLE_S)
            after = cpu_seconds(process.pid), cpu_seconds(source.pid)
            mine, theirs = (100 * (b - a) / IDLE_S for a, b in zip(before, after, strict=True))
            return mine, theirs, resident_mb(process.pid)

    ours, broker, memory = benchmark.pedantic(turn)
    claim(
        "mirror of 1,000 idle partitions",
        ours,
        "% of a core",
        limit=0.5,
        less=True,
        note=f"the source {broker:.1f} %; memory {memory:.0f} MB",
    )


@contextlib.contextmanager
def running_mirror(source: Peer, copy: Path, pattern: str) -> Iterator[subprocess.Popen[bytes]]:
    args = ["mirror", "--from", source.address, "--dir", copy, "--topics", pattern]
    command = mirror_peers.logstore_command(*args)
    with copy.with_suffix(".out").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=mirror_peers.environment())
    try:
        yield process
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0, copy.with_suffix(".out").read_text()
    finally:
        process.kill()
        process.wait()
