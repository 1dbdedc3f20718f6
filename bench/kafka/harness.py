"""Front of ``KafkaBench.java``: each function is one workload in one warm JVM.

The record of every workload has a key of 16 bytes and a value of 100, uncompressed;
``batch_records`` of them make a batch. Results are dicts as printed: ``engine``, ``java``,
``workload``, sizes, and ``best_…`` and ``median_mb_per_s`` (1 MB is 1,000,000 bytes) or ``p50_ms``.
Nothing is fsynced except where Kafka itself does, and files are warm in the page cache.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "interop"), str(ROOT)]  # the one place that finds Kafka

import kafka_jars  # noqa: E402

SOURCE = Path(__file__).resolve().parent / "KafkaBench.java"
SEGMENT_BYTES = 256_000_000
OFFSET_MAP_SLOT_BYTES = 24

Result = dict[str, Any]


def _bench(
    workload: str, scratch: Path | None, *, timeout_s: float = 600, **options: object
) -> Result:
    with tempfile.TemporaryDirectory(prefix="kafka-bench-", dir=scratch) as directory:
        args = ["--scratch", directory]
        for name, value in options.items():
            text = str(value).lower() if isinstance(value, bool) else str(value)
            args += [f"--{name.replace('_', '-')}", text]
        result = kafka_jars.run_java(
            "logstore.bench.KafkaBench",
            workload,
            *args,
            classes=kafka_jars.compile_java([SOURCE]),
            # Batches are made before the clock starts, so all of them are in memory. The
            # collector is the broker's own.
            jvm_options=("-Xms4g", "-Xmx4g", "-XX:+UseG1GC", "-server"),
            timeout_s=timeout_s,
        )
    parsed: Result = json.loads(result.stdout)
    return parsed


def generate(
    path: Path,
    batch_records: int,
    size_bytes: int,
    *,
    equal_timestamps: bool = False,
    idempotent: bool = False,
) -> Result:
    """Write a ``.log`` file of at least ``size_bytes``; ``path`` is ``<base offset 0>.log``.

    ``size_bytes`` is bounded by the JVM's 4 GB: 1 GB with one record a batch fits.
    """
    return _bench(
        "generate",
        None,
        path=path,
        batch_records=batch_records,
        bytes=size_bytes,
        equal_timestamps=equal_timestamps,
        idempotent=idempotent,
    )


def recover(path: Path, *, runs: int = 5, warmups: int = 2, scratch: Path | None = None) -> Result:
    """Time ``LogSegment.recover`` of a ``.log`` file, or of all those below a directory.

    CRC of every batch, both sparse indexes, epochs and producer state. The segments are recovered
    one by one, each with empty producer state; opening, snapshots and fsync are not timed.
    """
    return _bench("recover", scratch, path=path, runs=runs, warmups=warmups)


def append(
    batch_records: int,
    size_bytes: int = SEGMENT_BYTES,
    *,
    runs: int = 5,
    warmups: int = 2,
    scratch: Path | None = None,
) -> Result:
    """Time ``LogSegment.append``, one ready batch a call: CRC check, offset and epoch set, indexes.

    ``append_leader`` is the whole way of a produce request through the log.
    """
    return _bench(
        "append",
        scratch,
        batch_records=batch_records,
        bytes=size_bytes,
        runs=runs,
        warmups=warmups,
    )


def append_leader(
    batch_records: int,
    size_bytes: int = SEGMENT_BYTES,
    *,
    runs: int = 5,
    warmups: int = 2,
    scratch: Path | None = None,
) -> Result:
    """Time ``UnifiedLog.appendAsLeader``: ``append`` with locks and validation of each record."""
    return _bench(
        "append-leader",
        scratch,
        batch_records=batch_records,
        bytes=size_bytes,
        runs=runs,
        warmups=warmups,
    )


def rawwrite(
    batch_records: int,
    size_bytes: int = SEGMENT_BYTES,
    *,
    runs: int = 5,
    warmups: int = 2,
    scratch: Path | None = None,
) -> Result:
    """Time ``FileChannel.write`` of the same batches, one a call: the bound for ``append``."""
    return _bench(
        "rawwrite",
        scratch,
        batch_records=batch_records,
        bytes=size_bytes,
        runs=runs,
        warmups=warmups,
    )


def truncate(
    batch_records: int = 100,
    *,
    equal_timestamps: bool = False,
    runs: int = 50,
    warmups: int = 10,
    scratch: Path | None = None,
) -> Result:
    """Time ``LogSegment.truncateTo`` that cuts 10 MB off a segment of 256 MB.

    With equal timestamps the time index has one entry, so Kafka scans the whole segment for the
    largest one.
    """
    return _bench(
        "truncate",
        scratch,
        batch_records=batch_records,
        bytes=SEGMENT_BYTES,
        equal_timestamps=equal_timestamps,
        runs=runs,
        warmups=warmups,
    )


def checkpoint(
    *, partitions: int = 1000, runs: int = 300, warmups: int = 50, scratch: Path | None = None
) -> Result:
    """Time ``OffsetCheckpointFile.write``: temporary file, fsync, rename, fsync of the directory.

    The figure is that of the disk below ``scratch``, which should be the one compared with.
    """
    return _bench("checkpoint", scratch, partitions=partitions, runs=runs, warmups=warmups)


def load(
    log_dir: Path,
    *,
    threads: int = 2,
    clean: bool = False,
    runs: int = 3,
    warmups: int = 1,
    scratch: Path | None = None,
) -> Result:
    """Time ``LogManager.loadLogs`` of a copy of ``log_dir``; after an unclean stop, or a clean one.

    ``threads`` is ``num.recovery.threads.per.data.dir``, whose default is 2. The recovery points
    are those of the directory's checkpoint.
    """
    return _bench(
        "load", scratch, path=log_dir, threads=threads, clean=clean, runs=runs, warmups=warmups
    )


def offset_map(
    *, keys: int = 2_000_000, runs: int = 5, warmups: int = 3, scratch: Path | None = None
) -> Result:
    """Time ``SkimpyOffsetMap``: put ``keys`` random ones of 16 bytes, then look each up.

    The map has room for them at the load factor of 0.9 that Kafka has by default. ``put_`` and
    ``get_m_keys_per_s`` are the best runs.
    """
    map_bytes = keys * OFFSET_MAP_SLOT_BYTES * 10 // 9 + OFFSET_MAP_SLOT_BYTES
    return _bench("offset-map", scratch, keys=keys, map_bytes=map_bytes, runs=runs, warmups=warmups)


def compact(
    directory: Path,
    *,
    segment_bytes: int,
    map_bytes: int = 128 << 20,
    io_bytes: int = 256 << 10,
    runs: int = 3,
    warmups: int = 1,
    scratch: Path | None = None,
) -> Result:
    """Time ``Cleaner.clean`` of a copy of a partition directory, as after a clean stop.

    All but the active segment is dirty, and the offset map has room for all keys. The copy, the
    opening and the closing are not timed; the sync of the new segments is. Both sizes are those of
    a broker with one cleaner thread.
    """
    return _bench(
        "compact",
        scratch,
        timeout_s=3600,
        path=directory,
        segment_bytes=segment_bytes,
        map_bytes=map_bytes,
        io_bytes=io_bytes,
        runs=runs,
        warmups=warmups,
    )
