"""A real ``kill -9``: a child appends to real files, the parent kills it and looks at the disk.

What a process had appended is in the page cache and survives its end, flushed or not. The child
reports each append and each flush over a pipe after it returned; the parent kills it after some of
them, opens the directory, and compares. Where in its next steps the kill meets it is the only thing
that the seed does not repeat exactly; what the child appends follows from the seed.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile

from logstore.common.config import LogConfig
from logstore.log import PartitionLog
from logstore.manager import LogManager

PARTITIONS = 3
REPORTS = 500  # at most, before the kill
REPORT = struct.Struct(">cHqq16s")  # kind, partition, first offset, end offset, hash of the bytes
CONFIG = LogConfig(segment_bytes=20_000, segment_index_bytes=2400, index_interval_bytes=200)


class Failure(AssertionError):
    """What the disk holds is not what was appended."""


def batch_of(seed: int, partition: int, offset: int) -> list[tuple[bytes, bytes, int]]:
    """The records that are appended at an offset: from the seed alone."""
    rng = random.Random(f"{seed} {partition} {offset}")
    return [
        (b"%d" % (offset + at), rng.randbytes(rng.choice((3, 30, 300))), 1_700_000_000_000 + at)
        for at in range(rng.randint(1, 4))
    ]


def digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


# -- the child -------------------------------------------------------------------------------------


def child(directory: str, seed: int) -> None:
    """Append until killed."""
    rng = random.Random(seed)
    out = sys.stdout.fileno()
    manager = LogManager([directory], CONFIG)
    logs = [manager.get_or_create("t", at) for at in range(PARTITIONS)]
    while True:
        partition = rng.randrange(PARTITIONS)
        log = logs[partition]
        if rng.random() < 0.02:
            log.flush()
            os.write(out, REPORT.pack(b"f", partition, 0, log.recovery_point, bytes(16)))
        elif rng.random() < 0.005:
            manager.housekeeper.checkpoint_recovery_points()
        else:
            first = log.log_end_offset
            info = log.append(batch_of(seed, partition, first))
            data = log.read(first).data[: info.size]
            os.write(out, REPORT.pack(b"a", partition, first, info.last_offset + 1, digest(data)))


# -- the parent ------------------------------------------------------------------------------------


def reports_of(process: subprocess.Popen[bytes], count: int) -> bytes:
    """Read that many reports, kill the child, which goes on meanwhile, and read the rest."""
    assert process.stdout is not None
    pipe = process.stdout.fileno()
    found = bytearray()
    while len(found) < count * REPORT.size and (data := os.read(pipe, 1 << 16)):
        found += data
    process.send_signal(signal.SIGKILL)
    while data := os.read(pipe, 1 << 16):
        found += data
    process.wait()
    return bytes(found[: len(found) // REPORT.size * REPORT.size])


def run(seed: int, directory: str) -> tuple[int, int]:
    """One child, killed; (appends reported, records found).

    Raises:
        Failure: an acknowledged record is missing or differs.
    """
    rng = random.Random(seed)
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.crash.killed", "--child", directory, "--seed", str(seed)],
        stdout=subprocess.PIPE,
    )
    try:
        reports = list(REPORT.iter_unpack(reports_of(process, rng.randint(1, REPORTS))))
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
    with LogManager([directory], CONFIG) as manager:
        logs = [manager.get_or_create("t", at) for at in range(PARTITIONS)]
        for kind, partition, first, end, wanted in reports:
            log = logs[partition]
            if log.log_end_offset < end:
                raise Failure(f"partition {partition} ends at {log.log_end_offset}, not {end}")
            if kind == b"a":
                fetched = log.read(first)
                assert fetched.slice is not None
                if digest(fetched.data[: fetched.slice.first_batch.size]) != wanted:
                    raise Failure(f"the batch at {first} of partition {partition} differs")
        records = sum(check_prefix(log, seed) for log in logs)
        for log in logs:
            log.append([(b"k", b"and on it goes")])
    return sum(report[0] == b"a" for report in reports), records


def check_prefix(log: PartitionLog, seed: int) -> int:
    """What is there is what was sent, from the beginning, with nothing else in between."""
    expected: list[tuple[int, bytes | None, bytes | None]] = []
    offset, partition = 0, log.topic_partition.partition
    while offset < log.log_end_offset:
        batch = batch_of(seed, partition, offset)
        expected += [(offset + at, key, value) for at, (key, value, _) in enumerate(batch)]
        offset += len(batch)
    if offset != log.log_end_offset:
        raise Failure(f"partition {partition} ends inside a batch, at {log.log_end_offset}")
    if [(r.offset, r.key, r.value) for r in log.records()] != expected:
        raise Failure(f"the records of partition {partition} are not those that were sent")
    return offset


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash.killed", description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1, help="of the first run")
    parser.add_argument("--child", metavar="DIRECTORY", help=argparse.SUPPRESS)
    args = parser.parse_args()
    logging.disable(logging.CRITICAL)
    if args.child:
        child(args.child, args.seed)
    appends, records = 0, 0
    for seed in range(args.seed, args.seed + args.runs):
        directory = tempfile.mkdtemp(prefix="killed-")
        try:
            done = run(seed, directory)
        except Exception as error:
            print(f"seed {seed} failed: {error}; its files are in {directory}")
            print(f"Repeat it with: python -m tests.crash.killed --runs 1 --seed {seed}")
            return 1
        appends, records = appends + done[0], records + done[1]
        shutil.rmtree(directory)
    print(
        f"{args.runs} kills, {appends} acknowledged appends, {records} records found: "
        "nothing was lost"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
