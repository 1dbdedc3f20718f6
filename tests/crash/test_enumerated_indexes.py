"""Damaged indexes change no answer: S-32, S-33, S-34, and recovery points of any age: S-35."""

from __future__ import annotations

import random
import struct
from functools import partial
from itertools import product

import pytest

from logstore.common.config import LogConfig
from logstore.format import filenames
from logstore.log import PartitionLog
from logstore.recovery import RecoveryOptions
from tests.crash.checks import check_lookups, check_state, end_of
from tests.crash.disk import (
    CONFIG,
    DIRECTORY,
    T0,
    Disk,
    Files,
    batches_of,
    disk_with,
    joined,
    log_bytes,
    open_log,
    opening_crashes,
    written,
)
from tests.crash.model import Batch, data_batch, marker_batch

BATCHES = batches_of(40, size=40)
FILES = written(BATCHES, rolls=8)
BASES = [0, 48, 96]  # the first, a middle and the active segment
DAMAGES = (
    "missing",
    "0 bytes",
    "4 bytes",
    "7 bytes",
    "one byte more",
    "seven more",
    "zeros",
    "random",
)


def path_of(base: int, suffix: str) -> str:
    return f"{DIRECTORY}/{filenames.segment_file_name(base, suffix)}"


def damaged(files: Files, path: str, damage: str) -> Files:
    data = files[path]
    changed = {
        "0 bytes": b"",
        "4 bytes": data[:4],
        "7 bytes": data[:7],
        "one byte more": data + b"\x01",
        "seven more": data + bytes(7),
        "zeros": bytes(1 << 16),
        "random": random.Random(path).randbytes(len(data) // 24 * 24 or 24),
    }
    files = dict(files)
    if damage == "missing":
        del files[path]
    else:
        files[path] = changed[damage]
    return files


def assert_same_answers(log: PartitionLog, batches: list[Batch] = BATCHES) -> None:
    assert log_bytes(log.core.storage) == joined(batches)
    check_state(log, batches, whole=True)
    for seed in range(3):
        check_lookups(log, batches, random.Random(seed))
    for batch in batches:
        got = log.read(batch.base, 1).slice
        assert got is not None
        assert got.first_batch.base_offset == batch.base


@pytest.mark.parametrize("damage", DAMAGES)
def test_s32_offset_index(damage: str) -> None:
    for base, clean in product((0, 48, 96), (True, False)):
        files = damaged(FILES, path_of(base, ".index"), damage)
        assert_same_answers(open_log(disk_with(files), clean=clean, recovery_point=96))


ENTRY_DAMAGES: dict[str, tuple[int, int]] = {
    "position past the end": (0, 1 << 20),
    "position inside a batch": (0, 61),
    "position below the one before": (0, -200),
    "offset above the last": (1 << 20, 0),
    "offset negative": (-(1 << 30), 0),
    "offset equal to the one before": (-3, 0),
}


@pytest.mark.parametrize("damage", list(ENTRY_DAMAGES))
def test_s33_one_entry_is_wrong(damage: str) -> None:
    for entry in (0, 3, -1):
        path = path_of(0, ".index")
        data = bytearray(FILES[path])
        count = len(data) // 8
        assert count > 4
        at = entry % count * 8
        offset, position = struct.unpack_from(">ii", data, at)
        more_offset, more_position = ENTRY_DAMAGES[damage]
        struct.pack_into(">ii", data, at, offset + more_offset, position + more_position)
        files = FILES | {path: bytes(data)}
        assert_same_answers(open_log(disk_with(files), clean=True))


@pytest.mark.parametrize("damage", DAMAGES)
def test_s34_time_index(damage: str) -> None:
    for base, clean in product(BASES, (True, False)):
        log = open_log(
            disk_with(damaged(UNEVEN, path_of(base, ".timeindex"), damage)),
            clean=clean,
            recovery_point=96,
        )
        assert_same_answers(log, UNEVEN_BATCHES)


def uneven() -> list[Batch]:
    """Timestamps that go up and down."""
    rng = random.Random(7)
    found: list[Batch] = []
    for at in range(40):
        rows = [(b"k", b"v" * 40, T0 + at * 10 + rng.randint(-200, 200)) for _ in range(3)]
        found.append(data_batch(at * 3, 0, rows))
    return found


UNEVEN_BATCHES = uneven()
UNEVEN = written(UNEVEN_BATCHES, rolls=8)


def transactions() -> list[Batch]:
    """Three producers; two aborted transactions which span a roll, one committed."""
    found: list[Batch] = []
    sequences = {1: 0, 2: 0, 3: 0}

    def add(producer: int) -> None:
        rows = [(b"k", b"v" * 30, T0 + len(found))] * 2
        base = found[-1].last + 1 if found else 0
        found.append(
            data_batch(
                base,
                0,
                rows,
                producer=producer,
                producer_epoch=0,
                sequence=sequences[producer],
                transactional=True,
            )
        )
        sequences[producer] += 2

    for producer in (1, 2, 3, 1, 2, 3):
        add(producer)
    for producer, commit in ((1, False), (2, True), (3, False)):
        add(producer)
        base = found[-1].last + 1
        found.append(marker_batch(base, 0, producer, 0, commit, T0 + len(found)))
    return found


TXN_BATCHES = transactions()
TXN_FILES = written(TXN_BATCHES, rolls=4)
TXN_INDEXES = sorted(path for path in TXN_FILES if path.endswith(".txnindex"))


def committed(log: PartitionLog) -> list[int]:
    offsets, position = [], log.log_start_offset
    while position < log.last_stable_offset:
        fetched = log.read(position, 1 << 20, committed=True)
        offsets += [record.offset for record in fetched.records()]
        position = end_of(fetched, TXN_BATCHES)
    return offsets


WANTED = [
    o
    for b in TXN_BATCHES
    if b.producer == 2 and b.commit is None
    for o in range(b.base, b.last + 1)
]


@pytest.mark.parametrize("damage", ["missing", "0 bytes", "random", "zeros", "below the base"])
def test_s34_transaction_index_unclean(damage: str) -> None:
    """Recovery writes it anew, whatever was there."""
    assert TXN_INDEXES
    for path in TXN_INDEXES:
        if damage == "below the base":
            entry = struct.pack(">hqqqq", 0, 1, -5, -1, 0)
            files = TXN_FILES | {path: entry}
        else:
            files = damaged(TXN_FILES, path, damage)
        log = open_log(disk_with(files))
        check_lookups(log, TXN_BATCHES, random.Random(1))
        assert committed(log) == WANTED


@pytest.mark.parametrize("damage", ["random", "zeros", "below the base"])
def test_s34_transaction_index_clean(damage: str) -> None:
    """One that breaks its rules is rebuilt, with the producer state of the snapshot before.

    A missing file cannot be told from a segment without aborts: Kafka and we trust a clean stop.
    """
    for path in TXN_INDEXES:
        if damage == "below the base":
            files = TXN_FILES | {path: struct.pack(">hqqqq", 0, 1, -5, -1, 0)}
        else:
            files = damaged(TXN_FILES, path, damage)
        log = open_log(disk_with(files), clean=True)
        check_lookups(log, TXN_BATCHES, random.Random(1))
        assert committed(log) == WANTED


TXN_END = TXN_BATCHES[-1].last + 1


@pytest.mark.slow
@pytest.mark.parametrize("way", ["clean", "unclean", "scan_all"])
@pytest.mark.parametrize("gone", [".index", ".txnindex", "both"])
def test_s34_no_crash_takes_a_transaction_index_that_was_rebuilt(gone: str, way: str) -> None:
    """Below the recovery point no later start looks for what it lacks."""
    options = RecoveryOptions(scan_all=way == "scan_all")
    for path in TXN_INDEXES:
        files = damaged(TXN_FILES, path, "zeros") if gone == ".txnindex" else TXN_FILES
        if gone != ".txnindex":
            files = damaged(files, path.replace(".txnindex", ".index"), "missing")
        if gone == "both":
            files = damaged(files, path, "missing")

        def opened(disk: Disk) -> PartitionLog:
            return open_log(disk, clean=way == "clean", recovery_point=TXN_END, options=options)

        for storage, place in opening_crashes(partial(disk_with, files), opened):
            log = open_log(storage, recovery_point=TXN_END)
            assert committed(log) == WANTED, place
            log.crash()


POINTS = (0, 45, 96, 120, 5000, -1)


@pytest.mark.parametrize("point", POINTS)
def test_s35_a_recovery_point_of_any_age_gives_the_same_log(point: int) -> None:
    log = open_log(disk_with(FILES), recovery_point=point)
    assert log.recovery_point <= log.log_end_offset == 120
    assert log.recovery_report.segments_scanned >= 1
    assert_same_answers(log)


@pytest.mark.parametrize("point", POINTS)
def test_s35_a_torn_tail_is_found_in_any_case(point: int) -> None:
    path = path_of(96, ".log")
    log = open_log(disk_with(FILES | {path: FILES[path][:-3]}), recovery_point=point)
    assert log.log_end_offset == 117
    assert log.recovery_point <= 117
    assert_same_answers(log, BATCHES[:-1])


def test_s35_recovery_does_not_advance_the_recovery_point() -> None:
    log = open_log(disk_with(FILES), recovery_point=40)
    assert log.recovery_point == 40
    log.flush()
    assert log.recovery_point == 120


def test_s35_a_lost_tail_may_lie_below_an_early_point_only_in_the_last_segment() -> None:
    """Rolled segments are synced before the next one exists, so this is all that can be torn."""
    config = LogConfig(segment_index_bytes=1200, segment_bytes=1000)
    files = written(BATCHES, config, closed=False)
    logs = sorted(path for path in files if path.endswith(".log"))
    log = open_log(disk_with(files | {logs[-1]: files[logs[-1]][:-1]}), CONFIG)
    assert log.log_end_offset == 117
