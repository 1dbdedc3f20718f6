"""The core, as a user of the library would write it: open, append what is missing, compare."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence

from examples.demo.flights import Rows
from logstore import AppendInfo, LogConfig, LogManager, ManagerOwner, PartitionLog
from logstore.common.types import Record

TOPIC = "flights"
CLUSTER_ID = "logstore-demo"  # in meta.properties, to recognise a demo's own directory
# The flights are of 2013: by time alone they would begin a new segment for every week.
CONFIG = LogConfig(segment_bytes=4 << 20, segment_ms=2**62, retention_ms=-1)


def open_logs(
    directory: str | os.PathLike[str], partition_count: int
) -> tuple[LogManager, list[PartitionLog]]:
    """Open or create the topic. After a crash this recovers it."""
    manager = LogManager([directory], CONFIG, owner=ManagerOwner(cluster_id=CLUSTER_ID))
    return manager, [manager.get_or_create(TOPIC, p) for p in range(partition_count)]


def append_missing(
    logs: Sequence[PartitionLog], sent: Sequence[Rows], batch_records: int
) -> Iterator[AppendInfo]:
    """Append what the logs lack, one batch to each partition in turn.

    A log ends where its last writer, or the crash, left it. So its end offset is also the position
    in the input to continue from: nothing is sent twice, and nothing is left out.
    """
    remaining = True
    while remaining:
        remaining = False
        for log, rows in zip(logs, sent, strict=True):
            start = log.log_end_offset
            if start < len(rows):
                part = slice(start, start + batch_records)
                yield log.append_columns(rows.values[part], rows.keys[part], rows.timestamps[part])
                remaining = True


def compare(log: PartitionLog, rows: Rows) -> str:
    """Read the whole log and compare key, value and timestamp of every record with what was sent.

    Returns "" if the log is a prefix of it, else the first difference.
    """
    found, difference = compare_records(log.record_chunks(), rows)
    if difference:
        return f"{log.name}: {difference}"
    if found != log.log_end_offset:
        return f"{log.name}: {found} records, but the log ends at {log.log_end_offset}"
    return ""


def compare_records(chunks: Iterable[Sequence[Record]], rows: Rows) -> tuple[int, str]:
    """The number of records, and the first difference from the beginning of ``rows``, or ""."""
    expected = 0
    for chunk in chunks:
        start, end = expected, expected + len(chunk)
        if (
            [record.offset for record in chunk] != list(range(start, end))
            or [record.key for record in chunk] != rows.keys[start:end]
            or [record.value for record in chunk] != rows.values[start:end]
            or [record.timestamp for record in chunk] != rows.timestamps[start:end]
        ):
            return expected, f"a record in [{start}, {end}) is not what was sent"
        expected = end
    return expected, ""


def read_all(logs: Sequence[PartitionLog]) -> int:
    """Read every record with its checksum. Returns their number."""
    return sum(len(chunk) for log in logs for chunk in log.record_chunks())
