"""Log directories for the benchmarks of Spark, and what its processes take of the machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
CONF = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
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
) -> int:
    """A closed log directory with about ``size`` bytes in segments; how many records it has.

    Timestamps rise by a millisecond each record, in every partition from the same moment on.
    """
    config = CONFIG.with_properties({"segment.bytes": segment_bytes})
    with LogManager([directory], config) as manager:
        log = manager.get_or_create(TOPIC, 0)
        while log.size < size // partitions:
            block = _block(log.log_end_offset, records, value_bytes, compression)
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


def _block(offset: int, records: int, value_bytes: int, compression: Compression) -> bytes:
    batches, size = [], 0
    while size < _BLOCK:
        stamp = START_MS + offset
        batch = bytes(
            encode_batch(
                [(KEY, _value(offset + i, value_bytes), stamp + i) for i in range(records)],
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


@contextmanager
def peak_of_workers() -> Iterator[list[int]]:
    """The most resident bytes that one Python worker of this process's Spark has had, in a list
    of one, by sampling. Pages of files that a worker has mapped are not its own and not counted.
    """
    peak, done = [0], threading.Event()

    def sample() -> None:
        while not done.wait(0.02):
            for child in psutil.Process().children(recursive=True):
                try:
                    command = " ".join(child.cmdline())
                    if "pyspark.daemon" in command or "columnar_daemon" in command:
                        memory = child.memory_info()
                        peak[0] = max(peak[0], memory.rss - memory.shared)
                except psutil.Error:
                    continue

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()


def remove(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
