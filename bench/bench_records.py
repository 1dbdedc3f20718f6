"""Python records in and out, against LMDB, SQLite and aiokafka's codec."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from workloads import CONFIG, KEY, START_MS, VALUE

from logstore import PartitionLog

BATCH = 1000
BATCHES = 1000
KEYS = [KEY] * BATCH
VALUES = [VALUE] * BATCH
ROWS = list(zip(KEYS, VALUES, strict=True))


def lmdb_write(path: Path, batches: int, sync: bool) -> float:
    import lmdb

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
    return batches * BATCH / seconds


def lmdb_read(path: Path) -> float:
    import lmdb

    lmdb_write(path, BATCHES, sync=False)
    db = lmdb.open(str(path), map_size=4 << 30, readonly=True)
    best = 0.0
    for _ in range(3):
        started = time.perf_counter()
        with db.begin() as txn:
            count = sum(1 for _ in txn.cursor())
        best = max(best, count / (time.perf_counter() - started))
    db.close()
    return best


def sqlite_write(path: Path, batches: int) -> float:
    db = sqlite3.connect(path)
    db.execute("pragma journal_mode=wal")
    db.execute("pragma synchronous=normal")
    db.execute("create table log (number integer primary key, key blob, value blob)")
    started = time.perf_counter()
    for _ in range(batches):
        with db:
            db.executemany("insert into log (key, value) values (?, ?)", ROWS_SQL)
    seconds = time.perf_counter() - started
    db.close()
    return batches * BATCH / seconds


ROWS_SQL = [(KEY, VALUE)] * BATCH


def aiokafka_batch() -> bytes:
    from aiokafka.record.default_records import DefaultRecordBatchBuilder

    builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 10 << 20)
    for i in range(BATCH):
        builder.append(i, START_MS, KEY, VALUE, [])
    return bytes(builder.build())


def aiokafka_write(path: Path, batches: int) -> float:
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY, 0o644)
    started = time.perf_counter()
    for _ in range(batches):
        os.write(descriptor, aiokafka_batch())
    seconds = time.perf_counter() - started
    os.close(descriptor)
    return batches * BATCH / seconds


def aiokafka_read(batches: int) -> float:
    from aiokafka.record.default_records import DefaultRecordBatch

    data = aiokafka_batch()
    started = time.perf_counter()
    for _ in range(batches):
        batch = DefaultRecordBatch(data)
        assert batch.validate_crc()
        sum(1 for _ in batch)
    return batches * BATCH / (time.perf_counter() - started)


def fresh(disk: Path) -> PartitionLog:
    return PartitionLog.open(disk / f"bench-{time.monotonic_ns()}-0", CONFIG)


def write_with(disk: Path, append: Callable[[PartitionLog], object], batches: int) -> float:
    log = fresh(disk)
    append(log)
    started = time.perf_counter()
    for _ in range(batches):
        append(log)
    seconds = time.perf_counter() - started
    log.crash()
    for file in Path(log.directory).iterdir():
        file.unlink()
    return seconds


@pytest.mark.parametrize("how", ["columns", "tuples"])
def test_append_python_records(benchmark: Any, claim: Any, disk: Path, how: str) -> None:
    append = {
        "columns": lambda log: log.append_columns(VALUES, KEYS, START_MS),
        "tuples": lambda log: log.append(ROWS),
    }[how]
    benchmark.pedantic(lambda: write_with(disk, append, BATCHES), rounds=7, warmup_rounds=1)
    rate = BATCHES * BATCH / benchmark.stats.stats.min / 1e6
    peers = {
        "LMDB": max(lmdb_write(disk / f"lmdb{i}", 300, sync=False) for i in range(3)),
        "SQLite WAL": sqlite_write(disk / "sqlite", 100),
        "aiokafka codec and a write": max(aiokafka_write(disk / "aio", 300) for _ in range(3)),
    }
    claim(
        what=f"Python keys and values in batches of 1,000, {how}",
        ours=round(rate, 2),
        unit="M records/s",
        peer=", ".join(f"{name} {value / 1e6:.2f} M" for name, value in peers.items()),
        ratio=round(rate * 1e6 / max(peers.values()), 1),
        goal="at least 8 M",
        met=rate >= 8,
    )


def test_append_python_records_with_a_sync_each(benchmark: Any, claim: Any, disk: Path) -> None:
    batches = 200

    def append(log: PartitionLog) -> None:
        log.append_columns(VALUES, KEYS, START_MS)
        log.flush()

    peer = max(lmdb_write(disk / f"lmdb{i}", batches, sync=True) for i in range(3))
    bare = min(bare_sync(disk / "bare", batches) for _ in range(3))
    benchmark.pedantic(lambda: write_with(disk, append, batches), rounds=5, warmup_rounds=1)
    rate = batches * BATCH / benchmark.stats.stats.min / 1e6
    claim(
        what="the same, with a sync after each batch",
        ours=round(rate, 2),
        unit="M records/s",
        peer=f"LMDB {peer / 1e6:.2f} M",
        ratio=round(rate * 1e6 / peer, 1),
        goal="at least 2.8 M",
        met=rate >= 2.8,
        note=f"write and fdatasync alone allow {batches * BATCH / bare / 1e6:.2f} M",
    )


def bare_sync(path: Path, batches: int) -> float:
    data = aiokafka_batch()
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o644)
    started = time.perf_counter()
    for _ in range(batches):
        os.write(descriptor, data)
        os.fdatasync(descriptor)
    seconds = time.perf_counter() - started
    os.close(descriptor)
    return seconds


@pytest.fixture
def filled(disk: Path) -> PartitionLog:
    log = fresh(disk)
    for _ in range(BATCHES):
        log.append_columns(VALUES, KEYS, START_MS)
    return log


def test_scan_to_tuples(benchmark: Any, claim: Any, disk: Path, filled: PartitionLog) -> None:
    count = benchmark.pedantic(
        lambda: sum(len(chunk) for chunk in filled.record_chunks()), rounds=7, warmup_rounds=1
    )
    assert count == BATCH * BATCHES
    filled.crash()
    rate = count / benchmark.stats.stats.min / 1e6
    peers = {
        "LMDB": lmdb_read(disk / "lmdb"),
        "aiokafka": max(aiokafka_read(300) for _ in range(3)),
    }
    claim(
        what="full scan to Python tuples, CRC checked",
        ours=round(rate, 2),
        unit="M records/s",
        peer=", ".join(f"{name} {value / 1e6:.2f} M" for name, value in peers.items()),
        ratio=round(rate * 1e6 / max(peers.values()), 1),
        goal="at least 7 M",
        met=rate >= 7,
    )


def test_scan_to_arrow(benchmark: Any, claim: Any, filled: PartitionLog) -> None:
    count = benchmark.pedantic(
        lambda: sum(batch.num_rows for batch in filled.to_arrow()), rounds=7, warmup_rounds=1
    )
    assert count == BATCH * BATCHES
    filled.crash()
    rate = count / benchmark.stats.stats.min / 1e6
    claim(
        what="full scan to Arrow columns, CRC checked",
        ours=round(rate, 1),
        unit="M records/s",
        peer="",
        ratio="",
        goal="at least 40 M",
        met=rate >= 40,
    )
