"""The writer process: ``python -m examples.demo.writer DIRECTORY RECORDS PARTITIONS BATCH``.

It writes JSON lines. When the flights are loaded and the logs are open it says so and waits for a
line on stdin. Then it appends at full speed, with a line before each batch and after each flush.
Before the very last batch it waits for a second line on stdin, so a kill in mid-append cannot come
too late.
"""

from __future__ import annotations

import json
import os
import sys
import time

from examples.demo.flights import by_partition, flights
from examples.demo.topic import append_missing, open_logs

FLUSHES = 12  # flushes in a whole run


def say(**fields: object) -> None:
    """Write one line in one system call, so that the reader sees all of it or nothing."""
    os.write(1, json.dumps(fields).encode() + b"\n")


def wait_for_word() -> None:
    if not sys.stdin.readline():
        raise SystemExit("nobody listens any more")


def main(directory: str, record_count: int, partition_count: int, batch_records: int) -> None:
    """Append all flights that the logs lack, with a flush of every log now and then."""
    manager, logs = open_logs(directory, partition_count)
    with manager:
        sent = by_partition(flights(record_count), partition_count)
        missing = sum(len(rows) - log.log_end_offset for rows, log in zip(sent, logs, strict=True))
        say(ready=missing)
        wait_for_word()
        interval = max(1, missing // batch_records // FLUSHES)
        batches = append_missing(logs, sent, batch_records)
        appended = size = number = 0
        started = time.perf_counter()
        while appended < missing:
            if missing - appended <= batch_records:
                say(waiting=appended)
                wait_for_word()
            say(appending=appended, size=size, seconds=time.perf_counter() - started)
            info = next(batches)
            appended, size, number = appended + info.record_count, size + info.size, number + 1
            if number % interval == 0:
                for log in logs:
                    log.flush()
                say(flushed=[log.recovery_point for log in logs])
                # A recovery will scan from here on only.
                manager.housekeeper.checkpoint_recovery_points()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
