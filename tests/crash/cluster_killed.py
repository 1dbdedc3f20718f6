"""A real ``kill -9`` of a whole cluster: a child runs three brokers and their coordinator on one
directory, the parent kills it and looks.

The child's producers send with acks=all; each acknowledgement is reported over a pipe before the
next batch is sent. The parent kills the child at a random moment, also while it starts and
recovers, and opens a cluster on the same directory: everything reported is there once and in order,
what an earlier look found is still where it was, and all replicas are equal. Then the next child
goes on with the same directory, which is left in order every other time.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from shutil import rmtree
from typing import NamedTuple

from checkpoints.types import TopicPartition
from logstore.common.config import LogConfig
from replication.common.config import ReplicationConfig
from replication.common.errors import UnknownPartitionError
from replication.embedded.cluster import Cluster
from tests.cluster.load import (
    MAX_BATCH,
    Count,
    Failure,
    Lane,
    Sender,
    Values,
    check_prefix,
    check_replicas,
    check_values,
    values_of,
)
from tests.support.until import patience

BROKERS = 3
PARTITIONS = 3
SENDERS = 3
TOPIC = "killed"
START_S = 0.6  # a start takes about half of it
REPORTS = 200  # at most, before a kill under load
CONFIG = ReplicationConfig(
    replica_lag_time_max_ms=1000,
    replica_fetch_wait_max_ms=100,
    replica_fetch_backoff_ms=50,
    high_watermark_checkpoint_interval_ms=100,
)
LOG_CONFIG = LogConfig(segment_bytes=50_000, segment_index_bytes=2400, index_interval_bytes=400)


def open_cluster(directory: Path) -> tuple[Cluster, list[TopicPartition]]:
    """With the topic, which may not have been created before the first kill."""
    cluster = Cluster(BROKERS, directory, config=CONFIG, log_config=LOG_CONFIG)
    try:
        tps = cluster.client.partitions(TOPIC)
    except UnknownPartitionError:
        tps = cluster.create_topic(TOPIC, PARTITIONS, config={"min.insync.replicas": 2})
    return cluster, tps


# -- the child -------------------------------------------------------------------------------------


def child(directory: Path, run: int) -> None:
    """Serve and produce until killed."""
    out, lock = sys.stdout.fileno(), threading.Lock()

    def report(*what: object) -> None:
        with lock:
            os.write(out, json.dumps(what).encode() + b"\n")

    report("starting")
    cluster, tps = open_cluster(directory)
    senders = [
        Sender(
            f"run-{run}-{number}",
            cluster.producer(idempotent=True),
            TOPIC,
            len(tps),
            on_ack=lambda lane, count: report(*lane, *count),
        )
        for number in range(SENDERS)
    ]
    for sender in senders:
        sender.start()
    for sender in senders:
        sender.join()
    raise Failure(f"a producer ended: {[sender.error for sender in senders]}")


# -- the parent ------------------------------------------------------------------------------------


class Look(NamedTuple):
    """What the parent knows after a kill."""

    acknowledged: dict[Lane, int]  # values of each lane
    values: Values  # as the last look found them


class Kill(NamedTuple):
    starting: bool  # it came before the first acknowledgement
    acknowledged: int
    found: int


def reports_of(process: subprocess.Popen[bytes], rng: random.Random) -> list[list[object]]:
    """Read reports until the moment of the kill, kill, and read what is left in the pipe."""
    assert process.stdout is not None
    pipe = process.stdout.fileno()
    data = bytearray(os.read(pipe, 1 << 16))
    if not data:
        raise Failure(f"the child ended with {process.wait()}")
    lines = 1 + rng.randint(1, REPORTS) if rng.random() < 0.7 else 1
    while data.count(b"\n") < lines:
        if not select.select([pipe], [], [], patience())[0]:
            raise Failure(f"nothing was acknowledged within {patience():.0f} s")
        if not (more := os.read(pipe, 1 << 16)):
            raise Failure(f"the child ended with {process.wait()}")
        data += more
    if lines == 1:  # it starts meanwhile
        select.select([pipe], [], [], rng.uniform(0.0, START_S))
    process.send_signal(signal.SIGKILL)
    while more := os.read(pipe, 1 << 16):
        data += more
    process.wait()
    lines = data[: data.rfind(b"\n")].split(b"\n")
    return [json.loads(line) for line in lines[1:]]


def kill_one(directory: Path, run: int, seed: int, before: Look) -> tuple[Kill, Look]:
    """One child, killed, and the look at what it left.

    Raises:
        Failure, TimeoutError: something acknowledged is not there, or the cluster does not come
            back.
    """
    rng = random.Random(f"{seed} {run}")
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tests.crash.cluster_killed",
            "--child",
            str(directory),
            "--number",
            str(run),
        ],
        stdout=subprocess.PIPE,
    )
    try:
        reports = reports_of(process, rng)
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
    acknowledged = dict(before.acknowledged)
    for sender, partition, count, _ in reports:
        acknowledged[Lane(str(sender), int(str(partition)))] = int(str(count))
    cluster, tps = open_cluster(directory)
    try:
        check_replicas(cluster, tps)
        values = values_of(cluster, TOPIC)
        check_prefix(before.values, values)
        check_reported(values, acknowledged)
        if rng.random() < 0.5:
            for broker_id in cluster.broker_ids:
                cluster.crash(broker_id)
    finally:
        cluster.close()
    found = sum(map(len, values.values()))
    return Kill(not reports, len(reports), found), Look(acknowledged, values)


def check_reported(values: Values, acknowledged: dict[Lane, int]) -> None:
    """A lane may have one batch more than was reported: nobody was told of it any more."""
    sent: dict[Lane, int] = dict(acknowledged)
    for partition, found in values.items():
        for value in found:
            sender, _, number = value.decode().rpartition(":")
            lane = Lane(sender, partition)
            sent[lane] = max(sent.get(lane, 0), int(number) + 1)
    counts = {lane: Count(acknowledged.get(lane, 0), end) for lane, end in sent.items()}
    for lane, (known, end) in counts.items():
        if end - known > MAX_BATCH:
            raise Failure(f"{lane}: {known} values were acknowledged, and {end} are there")
    check_values(values, counts)


def run(directory: Path, runs: int, seed: int) -> list[Kill]:
    """Raises as ``kill_one``."""
    kills, look = [], Look({}, {})
    for number in range(runs):
        kill, look = kill_one(directory, number, seed, look)
        kills.append(kill)
    return kills


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.crash.cluster_killed", description=__doc__
    )
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--child", type=Path, metavar="DIRECTORY", help=argparse.SUPPRESS)
    parser.add_argument("--number", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    logging.disable(logging.CRITICAL)
    if args.child:
        child(args.child, args.number)
        return 1
    directory = Path(tempfile.mkdtemp(prefix="cluster-killed-"))
    try:
        kills = run(directory, args.runs, args.seed)
    except BaseException:
        print(f"seed {args.seed} failed; its files are in {directory}", file=sys.stderr)
        raise
    rmtree(directory)
    print(
        f"{len(kills)} kills, {sum(kill.starting for kill in kills)} of them before the first "
        f"acknowledgement, {sum(kill.acknowledged for kill in kills)} acknowledged batches, "
        f"{kills[-1].found} values found: nothing was lost"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
