"""Segments that wait, as ``.log.swap``, for the one before them are checked as any other."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from logstore.common.config import LogConfig
from logstore.log import LogOwner, PartitionLog
from logstore.storage.base import File
from logstore.storage.local import LocalStorage
from logstore.verify import Finding, Severity, VerifyReport, verify

RECORDS = [(None, bytes(300))]
UNSETTLED = "warning leftover"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Segments 0, 2 and 4, of which the last two wait; each has two batches or one."""
    config = LogConfig(segment_bytes=1000)
    path = tmp_path / "t-0"
    log = PartitionLog.open(
        path, config, owner=LogOwner(managed=True, background=lambda task: None)
    )
    for _ in range(5):
        log.append(RECORDS)
    log.crash()
    assert roll(path, 2).exists()
    assert roll(path, 4).exists()
    return path


def roll(directory: Path, base: int) -> Path:
    return directory / f"{base:020}.log.swap"


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def told(report: VerifyReport) -> list[tuple[str, str]]:
    """Each finding but infos, with the name of its file. That a roll waits is one."""
    assert not report.unusable
    assert [f.severity for f in report.findings if "not settled" in f.message] == [
        Severity.INFO,
        Severity.INFO,
    ]
    found: list[Finding] = [f for f in report.findings if f.severity is not Severity.INFO]
    return [(f"{f.severity} {f.rule}", os.path.basename(f.file)) for f in found]


def test_intact_rolls_are_part_of_the_log(directory: Path) -> None:
    report = verify([directory])
    assert told(report) == []
    (partition,) = report.partitions
    assert (partition.segments, partition.log_end_offset) == (3, 5)


def test_a_roll_behind_a_clean_stop_is_told(directory: Path) -> None:
    """A clean stop settles all of them, so its marker is about other files."""
    (directory.parent / ".kafka_cleanshutdown").touch()
    found = [(f.severity, f.rule) for f in verify([directory]).findings]
    assert found.count((Severity.WARNING, "leftover")) == 2


@pytest.mark.parametrize("base", [2, 4])
def test_a_flipped_bit_of_a_roll_is_found(directory: Path, base: int) -> None:
    flip(roll(directory, base), 100)
    assert ("error log-checksum", roll(directory, base).name) in told(verify([directory]))


def test_a_flipped_bit_of_the_index_of_a_roll_is_found(directory: Path) -> None:
    name = f"{2:020}.timeindex"
    flip(directory / name, 7)
    assert [file for _, file in told(verify([directory]))] == [name]


def test_a_roll_behind_a_hole_is_told(directory: Path) -> None:
    before = directory / f"{0:020}.log"
    os.truncate(before, before.stat().st_size // 2)
    found = told(verify([directory]))
    assert (UNSETTLED, roll(directory, 2).name) in found
    assert (UNSETTLED, roll(directory, 4).name) not in found


def test_a_torn_segment_before_a_roll_is_what_a_crash_leaves(directory: Path) -> None:
    before = directory / f"{0:020}.log"
    os.truncate(before, before.stat().st_size - 1)
    found = told(verify([directory]))
    assert ("warning log-torn-end", before.name) in found
    assert (UNSETTLED, roll(directory, 2).name) in found


def test_a_roll_that_gets_its_name_meanwhile_is_read(directory: Path) -> None:
    class Live(LocalStorage):
        def open(self, path: str, *, create: bool = False, writable: bool = True) -> File:
            if path.endswith(".log.swap") and os.path.exists(path):
                os.rename(path, path.removesuffix(".swap"))
            return super().open(path, create=create, writable=writable)

    report = verify([directory], storage=Live())
    assert told(report) == []
    assert report.partitions[0].log_end_offset == 5
