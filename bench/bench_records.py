"""Python records in and out, against LMDB, SQLite, aiokafka's codec and the bare system calls."""

from __future__ import annotations

import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from workloads import CONFIG, KEY, START_MS, VALUE, in_turns, scaled

from logstore.kernels import crc32c
from logstore.log import ReplicaLog

BATCH = 1000
BATCHES = scaled(1000)
PEER_BATCHES = scaled(300)  # of the slower peers
ROUNDS = 3
KEYS = [KEY] * BATCH
VALUES = [VALUE] * BATCH
ROWS = list(zip(KEYS, VALUES, strict=True))
WINDOW = 4 << 20

# All runs below return seconds for a record.


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


def fresh(disk: Path) -> ReplicaLog:
    return ReplicaLog.open(disk / f"bench-{time.monotonic_ns()}-0", CONFIG)


def write_with(disk: Path, append: Callable[[ReplicaLog], object], batches: int) -> float:
    log = fresh(disk)
    append(log)
    started = time.perf_counter()
    for _ in range(batches):
        append(log)
    seconds = time.perf_counter() - started
    log.crash()
    shutil.rmtree(log.directory)
    return seconds / (batches * BATCH)


@pytest.mark.parametrize("how", ["columns", "tuples"])
def test_append_python_records(claim: Any, disk: Path, how: str) -> None:
    append = {
        "columns": lambda log: log.append_columns(VALUES, KEYS, START_MS),
        "tuples": lambda log: log.append(ROWS),
    }[how]
    best = in_turns(
        ROUNDS,
        ours=lambda: write_with(disk, append, BATCHES),
        aiokafka=lambda: aiokafka_write(disk / "aio", PEER_BATCHES),
        LMDB=lambda: lmdb_write(disk / "lmdb", PEER_BATCHES, sync=False),
        SQLite=lambda: sqlite_write(disk / "sqlite", scaled(30)),
    )
    for peer, what, goal in (
        ("aiokafka", "aiokafka's codec and a write", 3.3),
        ("LMDB", "LMDB without a sync", 6.0),
    ):
        claim(
            f"Python keys and values in batches of 1,000, {how}, against {peer}",
            1e-6 / best["ours"],
            "M records/s",
            peer=what,
            theirs=1e-6 / best[peer],
            goal=goal,
            note=f"SQLite WAL {1e-6 / best['SQLite']:.2f} M" if peer == "LMDB" else "",
        )


def test_append_python_records_with_a_sync_each(claim: Any, disk: Path) -> None:
    batches = scaled(200)

    def append(log: ReplicaLog) -> None:
        log.append_columns(VALUES, KEYS, START_MS)
        log.flush()

    best = in_turns(
        ROUNDS,
        ours=lambda: write_with(disk, append, batches),
        bare=lambda: bare_sync(disk / "bare", batches),
        LMDB=lambda: lmdb_write(disk / "lmdb", batches, sync=True),
    )
    claim(
        "Python keys and values in batches of 1,000, with a sync after each batch",
        1e-6 / best["ours"],
        "M records/s",
        peer="a bare write and fdatasync",
        theirs=1e-6 / best["bare"],
        goal=0.85,
        note=f"LMDB {1e-6 / best['LMDB']:.2f} M",
    )


@pytest.fixture
def filled(disk: Path) -> Iterator[ReplicaLog]:
    log = fresh(disk)
    for _ in range(BATCHES):
        log.append_columns(VALUES, KEYS, START_MS)
    yield log
    log.crash()


def timed(scan: Callable[[], int]) -> float:
    started = time.perf_counter()
    assert scan() == BATCH * BATCHES
    return (time.perf_counter() - started) / (BATCH * BATCHES)


def to_tuples(log: ReplicaLog) -> float:
    return timed(lambda: sum(len(chunk) for chunk in log.record_chunks()))


def to_arrow(log: ReplicaLog) -> float:
    return timed(lambda: sum(batch.num_rows for batch in log.to_arrow()))


def read_and_crc(log: ReplicaLog) -> float:
    """The log's bytes, read into one buffer again and again, and their checksum."""
    room = memoryview(bytearray(WINDOW))
    started = time.perf_counter()
    with open(log.active_segment.log_path, "rb", buffering=0) as file:
        while size := file.readinto(room):
            crc32c(room[:size])
    return (time.perf_counter() - started) / (BATCH * BATCHES)


def test_scan_to_tuples(claim: Any, disk: Path, filled: ReplicaLog) -> None:
    lmdb_write(disk / "lmdb", BATCHES, sync=False)
    best = in_turns(
        ROUNDS,
        ours=lambda: to_tuples(filled),
        LMDB=lambda: lmdb_read(disk / "lmdb"),
        aiokafka=lambda: aiokafka_read(PEER_BATCHES),
    )
    better, worse = sorted(("LMDB", "aiokafka"), key=lambda peer: best[peer])
    claim(
        "full scan to Python tuples, CRC checked",
        1e-6 / best["ours"],
        "M records/s",
        peer=better,
        theirs=1e-6 / best[better],
        goal=3,
        note=f"{worse} {1e-6 / best[worse]:.2f} M",
    )


def test_scan_to_arrow(claim: Any, filled: ReplicaLog) -> None:
    def on_two_threads() -> float:
        threads = [threading.Thread(target=to_arrow, args=(filled,)) for _ in range(2)]
        started = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return (time.perf_counter() - started) / (2 * BATCH * BATCHES)

    best = in_turns(
        ROUNDS,
        one=lambda: to_arrow(filled),
        two=on_two_threads,
        bare=lambda: read_and_crc(filled),
    )
    for name, what, goal in (("one", "", 0.6), ("two", " on two threads", 1.2)):
        claim(
            f"full scan to Arrow columns, CRC checked{what}",
            1e-6 / best[name],
            "M records/s",
            peer="read and CRC alone, on one thread",
            theirs=1e-6 / best["bare"],
            goal=goal,
        )
