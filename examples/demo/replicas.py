"""Read the files of brokers: of a dead one, and of all in the end."""

from __future__ import annotations

import os
from collections.abc import Sequence

from checkpoints.types import TopicPartition
from examples.demo.flights import Rows
from examples.demo.outcome import ReplicatedPartition
from examples.demo.topic import compare_records
from logstore.common.types import Record
from logstore.format import filenames
from logstore.format.reader import read_records
from logstore.storage.local import LocalStorage
from logstore.verify import Severity, VerifyOptions, verify


def log_bytes(log_dir: str, tp: TopicPartition) -> bytes:
    """All batches of a partition, whatever segments they are in. Takes no lock."""
    storage = LocalStorage()
    directory = os.path.join(log_dir, filenames.partition_dir_name(tp))
    names = sorted(e.name for e in storage.scan_dir(directory) if e.name.endswith(".log"))
    pieces = []
    for name in names:
        file = storage.open(os.path.join(directory, name), writable=False)
        try:
            pieces.append(file.read_at(0, file.size()))
        finally:
            file.close()
    return b"".join(pieces)


def tail(log_dir: str, tp: TopicPartition, offset: int) -> list[Record]:
    """The records of a dead broker from ``offset`` on."""
    return read_records(log_bytes(log_dir, tp), from_offset=offset)


def differences(
    log_dirs: Sequence[str], tps: Sequence[TopicPartition], sent: Sequence[Rows]
) -> list[str]:
    """Where the logs differ from each other, byte by byte, or from the sent records."""
    found = []
    for tp, rows in zip(tps, sent, strict=True):
        first, *others = (log_bytes(log_dir, tp) for log_dir in log_dirs)
        found += [
            f"{tp}: the logs in {log_dirs[0]} and {log_dir} differ"
            for log_dir, other in zip(log_dirs[1:], others, strict=True)
            if other != first
        ]
        count, difference = compare_records([read_records(first)], rows)
        if difference or count != len(rows):
            found.append(f"{tp}: {difference or f'{count:,} of {len(rows):,} records'}")
    return found


def verified(
    log_dirs: Sequence[str], partitions: Sequence[ReplicatedPartition]
) -> tuple[int, list[str]]:
    """``logstore verify`` on each directory: files read, faults. Fills in what it counts."""
    faults, files = [], 0
    for log_dir in log_dirs:
        report = verify([log_dir], VerifyOptions(fingerprint=True))
        files += report.files
        faults += report.unusable
        faults += [str(f) for f in report.findings if f.severity is not Severity.INFO]
        of_number = {p.partition: p for p in report.partitions}
        for partition in partitions:
            seen = of_number.get(partition.partition)
            if seen is None:
                faults.append(f"{log_dir}: no partition {partition.partition}")
            elif log_dir == log_dirs[0]:
                partition.records, partition.size = seen.records, seen.bytes
                partition.fingerprint = seen.fingerprint
            elif (seen.records, seen.fingerprint) != (partition.records, partition.fingerprint):
                faults.append(f"{seen.directory}: another fingerprint than in {log_dirs[0]}")
    return files, faults
