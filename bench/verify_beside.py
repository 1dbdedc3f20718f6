"""``python bench/verify_beside.py OTHER``: verification beside that of another checkout, in turns.

OTHER is a directory with its kernels built. CPU seconds of one thread, the best of three in each of
three rounds, over files in memory: batches of 160 records with and without a producer, and of 4.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from logstore.verify import VerifyOptions, verify

ROOT = Path(__file__).parents[1]
LOGS = {"plain": (160, False, 160), "producers": (160, True, 160), "small": (4, True, 96)}
"""Records in a batch, whether they have a producer, and MiB."""


def write(directory: str) -> None:
    """By this checkout; the other one may have its modules elsewhere."""
    from logstore.common.config import LogConfig
    from logstore.format.batch import encode_batch
    from logstore.manager import LogManager

    value, rng = random.Random(1).randbytes(90), random.Random(2)
    with LogManager([directory], LogConfig(segment_bytes=64 << 20)) as manager:
        for topic, (count, producers, mib) in LOGS.items():
            log, written, sequences = manager.create_topic(topic, 1)[0], 0, [0] * 8
            records = [(None, value, 1_700_000_000_000 + n) for n in range(count)]
            while written < mib << 20:
                at = rng.randrange(8)
                batch = encode_batch(
                    records,
                    producer_id=4000 + at if producers else -1,
                    producer_epoch=0 if producers else -1,
                    base_sequence=sequences[at] if producers else -1,
                )
                sequences[at] += count
                log.append_as_leader(batch, 0)
                written += len(batch)


def measure(directory: str) -> None:
    """Of the checkout that is on the path."""
    for topic in LOGS:
        for deep in (False, True):
            options, best = VerifyOptions(deep=deep, threads=1, compare=False), 1e9
            for _ in range(3):
                begun = time.process_time()
                report = verify([f"{directory}/{topic}-0"], options)
                best = min(best, time.process_time() - begun)
            assert report.clean
            size = report.partitions[0].bytes
            print(f"{topic} {'deep' if deep else 'batch level'}: {size / best / 1e9:.2f} GB/s")


def main() -> None:
    if sys.argv[1] == "--measure":
        measure(sys.argv[2])
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as home:
        write(home)
        for _ in range(3):
            for checkout in (sys.argv[1], str(ROOT)):
                print(checkout, flush=True)
                command = [sys.executable, __file__, "--measure", home]
                subprocess.run(command, env=os.environ | {"PYTHONPATH": checkout}, check=True)


if __name__ == "__main__":
    main()
