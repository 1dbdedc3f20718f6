"""Log directories for the benchmarks of Spark, and what its processes take of the machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
from workloads import CONFIG, KEY, START_MS

from checkpoints.meta_properties import META_PROPERTIES
from checkpoints.offset_checkpoint import (
    HIGH_WATERMARK,
    LOG_START,
    RECOVERY_POINT,
    OffsetCheckpoint,
)
from checkpoints.types import TopicPartition
from logstore import AppendOrigin, LogManager
from logstore.format.batch import encode_batch
from logstore.format.codecs.compression import Compression
from logstore.storage.local import LocalStorage

TOPIC = "bench"
CONF = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # The whole heap is resident from the start, so that what a query adds to the JVM is native.
    "spark.driver.extraJavaOptions": "-Xms1g -XX:+AlwaysPreTouch",
}
_PYTHON = ("pyspark.daemon", "quiet_daemon", "columnar_daemon", "pyspark.worker")
_BLOCK = 1 << 20  # bytes handed to one append
# Values that compress to about a third: digits and letters of a log line, the same in every run.
_TEXT = b'{"carrier":"UA","flight":%d,"tailnum":"N14228","origin":"EWR","dest":"IAH","delay":%d}'


def make_directory(
    directory: Path,
    size: int,
    *,
    value_bytes: int = 100,
    records: int = 100,
    partitions: int = 4,
    segment_bytes: int = 1 << 30,
    compression: Compression = Compression.NONE,
    shuffled_by: int = 0,
) -> int:
    """A closed log directory with about ``size`` bytes in segments; how many records it has.

    Timestamps rise by a millisecond each record, in every partition from the same moment on. With
    ``shuffled_by`` those of each partition are spread over so many milliseconds (`stamp_of`).
    """
    config = CONFIG.with_properties({"segment.bytes": segment_bytes})
    with LogManager([directory], config) as manager:
        log = manager.get_or_create(TOPIC, 0)
        while log.size < size // partitions:
            block = _block(log.log_end_offset, records, value_bytes, compression, shuffled_by)
            log.append_as_leader(block, 0, AppendOrigin.COORDINATOR)
        count: int = log.log_end_offset
    # The other partitions are copies: what is measured does not look at what values say.
    for number in range(1, partitions):
        subprocess.run(
            ["cp", "-r", directory / f"{TOPIC}-0", directory / f"{TOPIC}-{number}"], check=True
        )
    for name, offset in ((HIGH_WATERMARK, count), (RECOVERY_POINT, count), (LOG_START, 0)):
        path = os.path.join(directory, name)
        offsets = {TopicPartition(TOPIC, number): offset for number in range(partitions)}
        OffsetCheckpoint(path, LocalStorage()).write(offsets)
    return count * partitions


def stamp_of(offset: int, shuffled_by: int) -> int:
    return START_MS + (offset * 48_271 % shuffled_by if shuffled_by else offset)


def _block(
    offset: int, records: int, value_bytes: int, compression: Compression, shuffled_by: int
) -> bytes:
    batches, size = [], 0
    while size < _BLOCK:
        batch = bytes(
            encode_batch(
                [
                    (KEY, _value(number, value_bytes), stamp_of(number, shuffled_by))
                    for number in range(offset, offset + records)
                ],
                compression=compression,
            )
        )
        batches.append(batch)
        size += len(batch)
        offset += records
    return b"".join(batches)


def _value(number: int, size: int) -> bytes:
    text = _TEXT % (number, number * 7919 % 1000)
    return (text * (size // len(text) + 1))[:size]


def copy_as_broker(source: Path, directory: Path, broker: int) -> None:
    """The same replicas in another broker's directory."""
    subprocess.run(["cp", "-r", source, directory], check=True)
    path = directory / META_PROPERTIES
    path.write_text(path.read_text().replace("node.id=0", f"node.id={broker}"))


def warm(directory: Path) -> int:
    """Bring all segments into the page cache; their bytes."""
    total = 0
    for path in sorted(directory.rglob("*.log")):
        with path.open("rb") as file:
            while block := file.read(16 << 20):
                total += len(block)
    return total


def cpu_seconds() -> float:
    """The processor time so far of the JVM and the Python processes of this process's Spark.

    That of a process which has ended is its parent's.
    """
    total = 0.0
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # ended meanwhile
            total += sum(child.cpu_times()[:4])  # its own, and that of the children it waited for
    return total


def cpu_of(work: Callable[[], object]) -> float:
    """The processor seconds that ``work`` takes of Spark's processes."""
    before = cpu_seconds()
    work()
    return cpu_seconds() - before


@contextmanager
def peak_of_workers() -> Iterator[list[int]]:
    """The most resident bytes that one Python worker of this process's Spark has had, in a list
    of one, by sampling. Pages of files that a worker has mapped are not its own and not counted.
    """
    with _peak(lambda: max(_resident(_is_python), default=0)) as peak:
        yield peak


@contextmanager
def peak_of_all() -> Iterator[list[int]]:
    """As ``peak_of_workers``, of the JVM and all Python processes together."""

    def ours(child: psutil.Process) -> bool:
        return child.name() == "java" or _is_python(child)

    with _peak(lambda: sum(_resident(ours))) as peak:
        yield peak


def _is_python(child: psutil.Process) -> bool:
    command = " ".join(child.cmdline())
    return child.name() != "java" and any(name in command for name in _PYTHON)


def _resident(wanted: Callable[[psutil.Process], bool]) -> Iterator[int]:
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if wanted(child):
                memory = child.memory_info()
                yield memory.rss - memory.shared


@contextmanager
def _peak(now: Callable[[], int]) -> Iterator[list[int]]:
    peak, done = [0], threading.Event()

    def sample() -> None:
        while not done.wait(0.02):
            peak[0] = max(peak[0], now())

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


@contextmanager
def served(directory: Path) -> Iterator[str]:
    """``logstore serve`` over a log directory, as it is; its address."""
    command = [
        "serve",
        "--adopt",
        str(directory),
        "--read-only",
        "--listen",
        "127.0.0.1:0",
        "--json",
    ]
    with subprocess.Popen(
        [sys.executable, "-m", "logstore", *command], stdout=subprocess.PIPE
    ) as server:
        try:
            assert server.stdout is not None
            (address,) = json.loads(server.stdout.readline())["bootstrapServers"]
            yield address
        finally:
            server.terminate()


@contextmanager
def native(spark: Any, wanted: bool) -> Iterator[None]:
    """Whether tasks decode in the JVM, or Python workers do. Read when a query is planned."""
    conf = spark.sparkContext._jsc.sc().conf()
    conf.set("spark.logstore.native", str(wanted).lower())
    try:
        yield
    finally:
        conf.remove("spark.logstore.native")


def remove(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
