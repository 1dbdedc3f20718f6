"""``kill -9`` of ``logstore mirror`` again and again: ``python -m tests.crash.mirror_killed``.

Each life of the mirror is ended at a drawn number of bytes, or before there are any. In the end it
has every batch of the source, once, and no other.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import tempfile
import uuid
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from logstore import LogConfig, LogManager
from replication import serve
from tests.support.commands import argv_of, logstore
from tests.support.until import until

ROOT = Path(__file__).resolve().parents[2]
PARTITIONS, BATCHES, VALUE = 3, 60, 30_000
KILLS = 6
SEGMENT_BYTES = 256 << 10


def make_source(directory: Path) -> int:
    """Fill the log directory of a source; returns the bytes of its logs."""
    with LogManager([directory], LogConfig(segment_bytes=SEGMENT_BYTES)) as manager:
        topic_id = uuid.uuid4()
        for number in range(PARTITIONS):
            log = manager.get_or_create("orders", number, topic_id=topic_id)
            for at in range(BATCHES):
                log.append([(b"%d" % at, bytes([at]) * VALUE)])
    return size_of(directory)


def size_of(directory: Path) -> int:
    """Bytes of the logs in it, now."""
    found = 0
    for path in directory.glob("*/*.log*"):
        try:
            found += path.stat().st_size
        except FileNotFoundError:  # it got its final name
            continue
    return found


def _has_grown(mirror: Path, bound: int) -> bool:
    return mirror.exists() and size_of(mirror) >= bound


def start(servers: str, mirror: Path, *arguments: str) -> subprocess.Popen[str]:
    command = argv_of("mirror", "--from", servers, "--dir", str(mirror), "--json", *arguments)
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
    )


def run(seed: int, directory: Path) -> int:
    """One search.

    Returns:
        how many lives ended by a kill, and not because all was there.
    Raises:
        AssertionError: the mirror is not as its source.
    """
    draw, mirror = random.Random(seed), directory / "mirror"
    total = make_source(directory / "source")
    killed = 0
    with serve(adopt=[directory / "source"], read_only=True) as kafka:
        servers = kafka.bootstrap_servers
        for _ in range(KILLS):
            process = start(servers, mirror, "--rate", "8MB")
            bound = draw.choice([0, draw.randrange(1, total)])
            until(partial(_has_grown, mirror, bound))
            process.kill()
            process.communicate()
            killed += 1
        process = start(servers, mirror, "--once")
        out, err = process.communicate()
        assert (process.returncode, err) == (0, ""), out
        told = json.loads(
            logstore("mirror", "check", "--from", servers, str(mirror), "--json").stdout
        )
    assert told["equal"]
    ends = [(part["offset"], part["endOffset"], part["notCompared"]) for part in told["partitions"]]
    assert ends == [(0, BATCHES, [])] * PARTITIONS, ends
    logstore("verify", str(mirror))
    return killed


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    wanted = parser.parse_args(arguments)
    for seed in range(wanted.seed, wanted.seed + wanted.runs):
        with tempfile.TemporaryDirectory() as directory:
            print(f"seed {seed}: {run(seed, Path(directory))} lives killed")


if __name__ == "__main__":
    main()
