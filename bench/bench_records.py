"""Python records in and out, against LMDB, SQLite, aiokafka's codec and the bare system calls."""

from __future__ import annotations

import os
import shutil
import sqlite3
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from workloads import CONFIG, KEY, START_MS, VALUE, in_turns, rates, scaled

from logstore.kernels import crc32c
from logstore.log import PartitionLog

BATCH = 1000
BATCHES = scaled(1000)
PEER_BATCHES = scaled(300)  # of the slower peers
KEYS = [KEY] * BATCH
VALUES = [VALUE] * BATCH
ROWS = list(zip(KEYS, VALUES, strict=True))
WINDOW = 4 << 20

# All runs of the peers return seconds for a record.


def lmdb_write(path: Path, batches: int, sync: bool) -> float:
    import lmdb

    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    db = lmdb.open(str(path), map_size=4 << 30, sync=sync, metasync=sync)
    started = time.perf_counter()
    number = 0
    for _ in range(batches):
        with db.begin(write=True) as txn:
            rows = [((number + i).to_bytes(8, "big"), KEY + VALUE) for i in range(BATCH)]
            txn.cursor().putmulti(rows, append=True)
        number += BATCH
    seconds = time.perf_counter() - started
    db.close()
    return seconds / (batches * BATCH)


def lmdb_read(path: Path) -> float:
    import lmdb

    db = lmdb.open(str(path), map_size=4 << 30, readonly=True)
    started = time.perf_counter()
    with db.begin() as txn:
        count = sum(1 for _ in txn.cursor())
    seconds = time.perf_counter() - started
    db.close()
    return seconds / count


def sqlite_write(path: Path, batches: int) -> float:
    path.unlink(missing_ok=True)
    db = sqlite3.connect(path)
    db.execute("pragma journal_mode=wal")
    db.execute("pragma synchronous=normal")
    db.execute("create table log (number integer primary key, key blob, value blob)")
    started = time.perf_counter()
    for _ in range(batches):
        with db:
            db.executemany("insert into log (key, value) values (?, ?)", ROWS)
    seconds = time.perf_counter() - started
    db.close()
    return seconds / (batches * BATCH)


def aiokafka_batch() -> bytes:
    from aiokafka.record.default_records import DefaultRecordBatchBuilder

    builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 10 << 20)
    for i in range(BATCH):
        builder.append(i, START_MS, KEY, VALUE, [])
    return bytes(builder.build())


def aiokafka_write(path: Path, batches: int) -> float:
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644)
    started = time.perf_counter()
    for _ in range(batches):
        os.write(descriptor, aiokafka_batch())
    seconds = time.perf_counter() - started
    os.close(descriptor)
    return seconds / (batches * BATCH)


def aiokafka_read(batches: int) -> float:
    from aiokafka.record.default_records import DefaultRecordBatch

    data = aiokafka_batch()
    started = time.perf_counter()
    for _ in range(batches):
        batch = DefaultRecordBatch(data)
        assert batch.validate_crc()
        sum(1 for _ in batch)
    return (time.perf_counter() - started) / (batches * BATCH)


def bare_sync(path: Path, batches: int) -> float:
    data = aiokafka_batch()
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644)
    started = time.perf_counter()
    for _ in range(batches):
        os.write(descriptor, data)
        os.fdatasync(descriptor)
    seconds = time.perf_counter() - started
    os.close(descriptor)
    return seconds / (batches * BATCH)


def fresh(disk: Path) -> PartitionLog:
    return PartitionLog.open(disk / f"bench-{time.monotonic_ns()}-0", CONFIG)


def turns(benchmark: Any, records: int, ours: Any, **peers: Any) -> dict[str, list[float]]:
    """Millions of records a second, ours and the peers'."""
    took = in_turns(benchmark, ours, **peers)
    return {"ours": rates(records / 1e6, took.pop("ours"))} | {
        peer: rates(1e-6, times) for peer, times in took.items()
    }


def turns_of_writes(
    benchmark: Any,
    disk: Path,
    append: Callable[[PartitionLog], object],
    batches: int,
    **peers: Callable[[], float],
) -> dict[str, list[float]]:
    def opened() -> tuple[tuple[PartitionLog], dict[str, object]]:
        log = fresh(disk)
        append(log)
        return (log,), {}

    def write(log: PartitionLog) -> None:
        for _ in range(batches):
            append(log)

    def remove(log: PartitionLog) -> None:
        log.crash()
        shutil.rmtree(log.directory)

    return turns(benchmark, batches * BATCH, write, setup=opened, teardown=remove, **peers)


@pytest.mark.parametrize("how", ["columns", "tuples"])
def test_append_python_records(benchmark: Any, claim: Any, disk: Path, how: str) -> None:
    append = {
        "columns": lambda log: log.append_columns(VALUES, KEYS, START_MS),
        "tuples": lambda log: log.append(ROWS),
    }[how]
    found = turns_of_writes(
        benchmark,
        disk,
        append,
        BATCHES,
        aiokafka=lambda: aiokafka_write(disk / "aio", PEER_BATCHES),
        LMDB=lambda: lmdb_write(disk / "lmdb", PEER_BATCHES, sync=False),
        SQLite=lambda: sqlite_write(disk / "sqlite", scaled(30)),
    )
    for peer, what, goal in (
        ("aiokafka", "aiokafka's codec and a write", 3.5),
        ("LMDB", "LMDB without a sync", 5.0),
    ):
        claim(
            f"Python keys and values in batches of 1,000, {how}, against {peer}",
            found["ours"],
            "M records/s",
            peer=what,
            theirs=found[peer],
            goal=goal,
            note=f"SQLite WAL {statistics.median(found['SQLite']):.2f} M" * (peer == "LMDB"),
        )


def test_append_python_records_with_a_sync_each(benchmark: Any, claim: Any, disk: Path) -> None:
    batches = scaled(200)

    def append(log: PartitionLog) -> None:
        log.append_columns(VALUES, KEYS, START_MS)
        log.flush()

    found = turns_of_writes(
        benchmark,
        disk,
        append,
        batches,
        bare=lambda: bare_sync(disk / "bare", batches),
        LMDB=lambda: lmdb_write(disk / "lmdb", batches, sync=True),
    )
    claim(
        "Python keys and values in batches of 1,000, with a sync after each batch",
        found["ours"],
        "M records/s",
        peer="a bare write and fdatasync",
        theirs=found["bare"],
        goal=0.85,
        note=f"LMDB {statistics.median(found['LMDB']):.2f} M",
    )


@pytest.fixture
def filled(disk: Path) -> Iterator[PartitionLog]:
    log = fresh(disk)
    for _ in range(BATCHES):
        log.append_columns(VALUES, KEYS, START_MS)
    yield log
    log.crash()


def to_tuples(log: PartitionLog) -> None:
    assert sum(len(chunk) for chunk in log.record_chunks()) == BATCH * BATCHES


def to_arrow(log: PartitionLog) -> None:
    assert sum(batch.num_rows for batch in log.to_arrow()) == BATCH * BATCHES


def read_and_crc(log: PartitionLog) -> float:
    """The log's bytes, read into one buffer again and again, and their checksum."""
    room = memoryview(bytearray(WINDOW))
    started = time.perf_counter()
    with open(log.segments[-1].log_path, "rb", buffering=0) as file:
        while size := file.readinto(room):
            crc32c(room[:size])
    return (time.perf_counter() - started) / (BATCH * BATCHES)


def test_scan_to_tuples(benchmark: Any, claim: Any, disk: Path, filled: PartitionLog) -> None:
    lmdb_write(disk / "lmdb", BATCHES, sync=False)
    found = turns(
        benchmark,
        BATCH * BATCHES,
        lambda: to_tuples(filled),
        LMDB=lambda: lmdb_read(disk / "lmdb"),
        aiokafka=lambda: aiokafka_read(PEER_BATCHES),
    )
    worse, better = sorted(("LMDB", "aiokafka"), key=lambda peer: statistics.median(found[peer]))
    claim(
        "full scan to Python tuples, CRC checked",
        found["ours"],
        "M records/s",
        peer=better,
        theirs=found[better],
        goal=3,
        note=f"{worse} {statistics.median(found[worse]):.2f} M",
    )


@pytest.mark.parametrize("threads", [1, 2])
def test_scan_to_arrow(benchmark: Any, claim: Any, filled: PartitionLog, threads: int) -> None:
    def scan() -> None:
        others = [threading.Thread(target=to_arrow, args=(filled,)) for _ in range(threads - 1)]
        for thread in others:
            thread.start()
        to_arrow(filled)
        for thread in others:
            thread.join()

    records = threads * BATCH * BATCHES
    found = turns(benchmark, records, scan, bare=lambda: read_and_crc(filled))
    claim(
        f"full scan to Arrow columns, CRC checked{' on two threads' * (threads == 2)}",
        found["ours"],
        "M records/s",
        peer="read and CRC alone, on one thread",
        theirs=found["bare"],
        goal=0.6 if threads == 1 else 1.1,
    )
