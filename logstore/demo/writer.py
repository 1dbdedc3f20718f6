"""The writer process: ``python -m logstore.demo.writer DIRECTORY RECORDS PARTITIONS BATCH``.

It talks in JSON lines. When the flights are loaded and the logs open it says so and waits for a
line on stdin, then appends at full speed, a word before each batch and after each flush. Before
the last batch of all it waits for a second line: who wants to kill it in mid-append cannot be late.
"""

from __future__ import annotations

import json
import os
import sys
import time

from logstore.demo.flights import by_partition, flights
from logstore.demo.topic import append_missing, open_logs

FLUSHES = 12  # in a whole run


def say(**fields: object) -> None:
    """One line in one system call: the reader sees all of it or nothing."""
    os.write(1, json.dumps(fields).encode() + b"\n")


def main(directory: str, record_count: int, partition_count: int, batch_records: int) -> None:
    """Append all flights that the logs lack, with a flush of every log now and then."""
    manager, logs = open_logs(directory, partition_count)
    with manager:
        sent = by_partition(flights(record_count), partition_count)
        say(ready=sum(len(rows) for rows in sent))
        sys.stdin.readline()
        interval = max(1, record_count // batch_records // FLUSHES)
        appended = size = 0
        started = time.perf_counter()
        batches = append_missing(logs, sent, batch_records)
        for number in range(1, sys.maxsize):
            if sum(len(rows) for rows in sent) - appended <= batch_records:
                say(waiting=appended)
                sys.stdin.readline()
            say(appending=appended, size=size, seconds=time.perf_counter() - started)
            info = next(batches, None)
            if info is None:
                return
            appended += info.record_count
            size += info.size
            if number % interval == 0:
                for log in logs:
                    log.flush()
                say(flushed=[log.recovery_point for log in logs])
                manager.checkpoint_recovery_points()  # recovery will scan from here on only


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
