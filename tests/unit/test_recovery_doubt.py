"""Damage in a part that a start takes as it is: the log opens with what is good all the same."""

from __future__ import annotations

import pytest

from logstore.log import ReplicaLog
from tests.builders import Disk, all_offsets, batch, file_name, marker, produced

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
        batch(0), produced(transactional=True, base_offset=1), marker(commit=False, base_offset=2),
        batch(3), batch(4, 2, value=bytes(100)), batch(6), batch(7),
    ):  # fmt: skip
        log.append_as_follower(data)
    log.close()
    disk.remove_all(".snapshot")
    disk.write(file_name(3, ".snapshot"), b"nonsense")
    return disk


def flip(disk: Disk, name: str, position: int, mask: int = 0xFF) -> None:
    data = bytearray(disk.read(name))
    data[position] ^= mask
    disk.write(name, bytes(data))


def reopen(disk: Disk, clean: bool) -> ReplicaLog:
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
