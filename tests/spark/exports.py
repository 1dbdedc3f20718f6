"""``python -m tests.spark.exports --runs 50 --seed 1``: exports that a real ``kill -9`` ends.

A child exports a log again and again while it grows; the parent kills the child, alone or with its
JVM, at a moment drawn from the seed. After each kill the table has whole runs only: of each
partition the records from the first one on, each once. In the end it has all.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow.parquet as pq

from logstore import LogConfig, LogManager
from logstore.spark.delta_log import DeltaLog

PARTITIONS = 5
FIRST_S = 8.0  # what a first run takes, of which each later one takes a part
CONFIG = LogConfig(segment_bytes=20_000, index_interval_bytes=400, retention_ms=-1)
Rows = list[tuple[int, int, bytes]]


def in_table(table: Path) -> Rows:
    """The committed rows, without Spark, in order."""
    rows: Rows = []
    for path in DeltaLog(str(table)).files():
        found = pq.ParquetFile(path).read(["partition", "offset", "value"])
        rows += zip(*(found.column(at).to_pylist() for at in range(3)), strict=True)
    return sorted(rows)


def child(data: str, table: str, once: bool) -> None:
    from logstore.spark import export, session
    from tests.spark.conftest import TEST_CONF

    spark = session("local[2]", conf=TEST_CONF)
    print("ready", flush=True)
    while True:
        export(spark, data, "t", table)
        print("done", flush=True)
        if once:
            break
    spark.stop()


def append(manager: LogManager, rng: random.Random, steps: int) -> None:
    for _ in range(steps):
        log = manager.get_or_create("t", rng.randrange(PARTITIONS))
        end = log.log_end_offset
        log.append([(b"k", b"%d" % (end + at), 0) for at in range(rng.randint(1, 20))])


def check(manager: LogManager, table: Path) -> int:
    """Compare the table with the logs, and return how many rows it has."""
    rows = in_table(table) if (table / "_delta_log").exists() else []
    for tp, log in manager.logs.items():
        mine = [row[1:] for row in rows if row[0] == tp.partition]
        held = [(record.offset, record.value) for record in log.records()]
        assert mine == held[: len(mine)], f"{tp}: {len(mine)} rows are not the first of the log"
    return len(rows)


def run(runs: int, seed: int, place: Path) -> None:
    rng, data, table = random.Random(seed), place / "data", place / "table"
    command = [sys.executable, "-m", "tests.spark.exports", "--child", str(data), str(table)]
    with LogManager([data], CONFIG) as manager:
        manager.create_topic("t", PARTITIONS)
        for number in range(runs):
            append(manager, rng, 20)
            with subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
            ) as process:
                assert process.stdout is not None
                assert process.stdout.readline() == b"ready\n"
                took = FIRST_S
                for _ in range(rng.randint(0, 3)):  # whole runs before the one that is killed
                    began = time.monotonic()
                    append(manager, rng, 5)
                    assert process.stdout.readline() == b"done\n"
                    took = time.monotonic() - began
                append(manager, rng, 5)
                time.sleep(rng.random() * took)
                if rng.random() < 0.5:
                    os.killpg(process.pid, signal.SIGKILL)
                else:
                    process.kill()
            print(f"seed {seed}, kill {number}: {check(manager, table)} rows", flush=True)
        subprocess.run([*command, "--once"], check=True, stdout=subprocess.DEVNULL)
        total = sum(len(list(log.records())) for log in manager.logs.values())
        assert check(manager, table) == total
        print(f"seed {seed}: all {total} rows are there, each once")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--child", nargs=2)
    parser.add_argument("--once", action="store_true")
    options = parser.parse_args()
    if options.child:
        child(*options.child, options.once)
        return
    with tempfile.TemporaryDirectory() as place:
        run(options.runs, options.seed, Path(place))


if __name__ == "__main__":
    main()
