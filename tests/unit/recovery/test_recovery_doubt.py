"""Damage in a part that a start takes as it is: the log opens with what is good all the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from logstore.common.config import LogConfig
from logstore.common.errors import CorruptBatchError
from logstore.log import PartitionLog
from logstore.log.reading.directory_reader import DirectoryReader
from logstore.recovery import crash_recovery
from logstore.segments.rebuild import replay_from
from logstore.segments.segment import Segment
from tests.support.builders import (
    PAIR,
    VALUE,
    Disk,
    all_offsets,
    batch,
    file_name,
    marker,
    produced,
)

FIRST = file_name(0, ".log")


def at_of(data: bytes, number: int) -> int:
    at = 0
    for _ in range(number):
        at += 12 + int.from_bytes(data[at + 8 : at + 12], "big")
    return at


@pytest.fixture
def disk() -> Disk:
    """Segments 0, with an aborted transaction, 3 and 6; closed, without a producer snapshot."""
    disk = Disk(segment_bytes=400)
    log = disk.open(clean_shutdown=True, managed=True)
    for data in (
        batch(0),
        produced(transactional=True, base_offset=1),
        marker(commit=False, base_offset=2),
        batch(3),
        batch(4, 2, value=bytes(100)),
        batch(6),
        batch(7),
    ):
        log.replica.append_as_follower(data)
    log.close()
    disk.remove_all(".snapshot")
    disk.write(file_name(3, ".snapshot"), b"nonsense")
    return disk


def flip(disk: Disk, name: str, position: int, mask: int = 0xFF) -> None:
    data = bytearray(disk.read(name))
    data[position] ^= mask
    disk.write(name, bytes(data))


def reopen(disk: Disk, clean: bool) -> PartitionLog:
    return disk.open(clean_shutdown=clean, recovery_point=8, managed=True)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("byte", [58, 61, 65, 77])
def test_damage_below_the_recovery_point(disk: Disk, clean: bool, byte: int) -> None:
    """In the count of records of a marker, in the length of its record, of its key, of headers."""
    before = disk.read(FIRST)
    later = disk.read(file_name(3, ".log"))
    flip(disk, FIRST, at_of(before, 2) + byte)
    log = reopen(disk, clean)
    report = log.recovery_report
    assert all_offsets(log) == [0, 1]
    assert report.offsets_lost == (2, 8)
    assert report.bytes_set_aside == report.bytes_cut > 0
    assert file_name(0, ".log") in report.warnings[0]
    assert bool(report.clean_doubt) is clean
    assert not report.clean
    kept = b"".join(disk.read(name) for name in disk.names(".cut"))
    assert later in kept
    log.close()
    again = disk.open(clean_shutdown=True, recovery_point=2, managed=True)
    assert again.recovery_report.warnings == []
    assert not again.recovery_report.has_findings


@pytest.mark.parametrize("below", [0, 1])
@pytest.mark.parametrize("clean", [True, False])
def test_a_batch_at_the_highest_offset(clean: bool, below: int) -> None:
    """Its end would be no offset."""
    base = 2**63 - 1 - below
    disk = Disk()
    disk.write(file_name(base, ".log"), batch(base))
    log = disk.open(clean_shutdown=clean, managed=True)
    report = log.recovery_report
    assert log.log_end_offset == base + below
    assert report.bytes_set_aside == report.bytes_cut == (0 if below else len(batch(base)))
    assert bool(report.clean_doubt) == (clean and not below)


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """Offsets 0 to 59 in batches of 2, in segments 0, 20 and 40, after a clean stop."""
    with PartitionLog.open(tmp_path / "t-0", LogConfig(segment_bytes=10 * PAIR)) as log:
        for _ in range(30):
            log.append([(None, VALUE)] * 2)
    assert sorted(int(path.stem) for path in (tmp_path / "t-0").glob("*.log")) == [0, 20, 40]
    return tmp_path / "t-0"


def read(read_all: Callable[[Path], Iterator[list[int]]], directory: Path) -> tuple[list[int], str]:
    found: list[int] = []
    try:
        for offsets in read_all(directory):
            found += offsets
    except CorruptBatchError as error:
        return found, str(error)
    return found, ""


def in_chunks(directory: Path) -> Iterator[list[int]]:
    with PartitionLog.open(directory) as log:
        for chunk in log.record_chunks():
            yield [record.offset for record in chunk]


def in_columns(directory: Path) -> Iterator[list[int]]:
    with PartitionLog.open(directory) as log:
        for batch in log.to_arrow():
            yield batch.column(0).to_pylist()


def beside(directory: Path) -> Iterator[list[int]]:
    for record in DirectoryReader(directory).follow(timeout=0.1):
        yield [record.offset]


@pytest.mark.parametrize("way", [in_chunks, in_columns, beside])
def test_a_batch_that_lies_there_twice_ends_a_read(plain: Path, way: Any) -> None:
    path = plain / file_name(20, ".log")
    data = path.read_bytes()
    path.write_bytes(data[: 5 * PAIR] + data[4 * PAIR :])
    found, error = read(way, plain)
    assert found == list(range(30))
    assert file_name(20, ".log") in error
    assert f"byte {5 * PAIR}" in error


@pytest.mark.parametrize("start", [0, 38])
@pytest.mark.parametrize("offset", [58, 2**31])
def test_an_offset_of_another_segment_ends_a_read(plain: Path, offset: int, start: int) -> None:
    """It would hide all records up to it."""
    path = plain / file_name(20, ".log")
    data = bytearray(path.read_bytes())
    data[9 * PAIR : 9 * PAIR + 8] = offset.to_bytes(8, "big")
    path.write_bytes(data)
    with PartitionLog.open(plain) as log:
        for rows in (log.records(start), (None for batch in log.to_arrow(start))):
            with pytest.raises(CorruptBatchError, match=f"byte {9 * PAIR}"):
                list(rows)
        assert [r.offset for r in log.records(0, 38)] == list(range(38))


@pytest.mark.parametrize("name", [21, 24])
def test_a_segment_under_a_higher_name_ends_a_read(plain: Path, name: int) -> None:
    """What it holds below its name is not passed over."""
    (plain / file_name(20, ".log")).rename(plain / file_name(name, ".log"))
    for suffix in (".index", ".timeindex"):
        (plain / file_name(20, suffix)).unlink()
    with PartitionLog.open(plain) as log:
        assert [w for w in log.recovery_report.warnings if file_name(name, ".log") in w]
    for way in (in_chunks, in_columns):
        found, error = read(way, plain)
        assert found == list(range(20))
        assert file_name(name, ".log") in error
    with PartitionLog.open(plain) as log:
        assert log.recovery_report.warnings == []


@pytest.mark.parametrize("clean", [True, False])
def test_each_segment_is_replayed_once_for_the_indexes_of_all(
    clean: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk()
    for base in range(40):
        disk.write(file_name(base, ".log"), batch(base))
    replayed: list[int] = []

    def counted(producers: Any, segment: Segment, start: int, end: int) -> None:
        replayed.append(segment.base_offset)
        replay_from(producers, segment, start, end)

    monkeypatch.setattr(crash_recovery, "replay_from", counted)
    log = disk.open(clean_shutdown=clean, recovery_point=40, managed=True)
    assert len(log.segments) == 40
    assert len(disk.names(".index")) == 40
    assert len(replayed) <= 80
