"""What a flush after a restart is worth: pages that a failed sync left out, recovery points."""

from __future__ import annotations

import errno
import os
import random
import tracemalloc
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest

from logstore.common.clock import SystemClock
from logstore.common.config import LogConfig
from logstore.common.errors import StorageFailedError
from logstore.common.types import Buffer
from logstore.format.producer_snapshot import decode_snapshot
from logstore.log import LogOwner, PartitionLog
from logstore.log.maintenance import LogMaintenance
from logstore.recovery.crash_recovery import CrashRecovery
from logstore.segments import rebuild, unwritten
from logstore.storage.memory import MemoryFile
from logstore.testing import FaultyStorage, ManualClock, SimulatedCrash
from tests.crash.disk import CONFIG, DIRECTORY, T0, batches_of, open_log
from tests.crash.model import data_batch

Rewrites = list[tuple[str, int, int]]


@pytest.fixture
def disk() -> FaultyStorage:
    storage = FaultyStorage()
    storage.make_dir(DIRECTORY)
    for path in ("/", "/d"):
        storage.sync_dir(path)
    return storage


@pytest.fixture
def rewrites(monkeypatch: pytest.MonkeyPatch) -> Rewrites:
    """File name, position and size of each write to a ``.log``."""
    found: Rewrites = []
    write_at = MemoryFile.write_at

    def spy(self: MemoryFile, position: int, *buffers: Buffer) -> int:
        written = write_at(self, position, *buffers)
        if self.path.endswith(".log"):
            found.append((self.path.rpartition("/")[2], position, written))
        return written

    monkeypatch.setattr(MemoryFile, "write_at", spy)
    return found


def flushed_again(disk: FaultyStorage, rewrites: Rewrites, **stop: int) -> Rewrites:
    """What a flush writes after a start by ``stop``, and the start does not."""
    disk.crash(mode="all_kept")
    log = open_log(disk, **stop)
    rewrites.clear()
    log.flush()
    found = list(rewrites)
    log.flush()
    assert rewrites == found
    log.crash()
    return found


def filled(storage: FaultyStorage, flushed: int, count: int = 10) -> PartitionLog:
    """``count`` batches of 3 records, those of the first ``flushed`` on the disk."""
    log = open_log(storage)
    for at, batch in enumerate(batches_of(count)):
        if at == flushed:
            log.flush()
        log.replica.append_as_follower(batch.data)
    return log


def killed(storage: FaultyStorage, log: PartitionLog) -> None:
    storage.crash(mode="all_kept")
    log.crash()


def test_a_flush_after_a_failed_one_and_a_restart_holds(disk: FaultyStorage) -> None:
    """F-224, I-13: the kernel shows pages that are not on the disk, and takes them for clean."""
    log = filled(disk, flushed=4)
    path = log.segments[-1].log_path
    disk.fail("sync", "*.log")
    with pytest.raises(StorageFailedError):
        log.flush()
    killed(disk, log)
    log = open_log(disk, recovery_point=log.recovery_point)
    assert (log.log_end_offset, log.recovery_point) == (30, 12)
    assert log.flusher.write_again(1)
    disk.evict(path)  # memory is short: pages that are written again are not let go of
    log.flush()
    assert log.recovery_point == 30
    disk.crash(mode="all_lost")
    log.crash()
    log = open_log(disk, recovery_point=30)
    assert log.recovery_report.bytes_cut == 0
    assert [r.offset for r in log.records()] == list(range(30))
    log.crash()


def test_a_recovery_that_believes_its_sync_is_seen(
    disk: FaultyStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CrashRecovery, "_expect_unwritten", lambda self, segment: None)
    with pytest.raises(AssertionError):
        test_a_flush_after_a_failed_one_and_a_restart_holds(disk)


def test_a_page_that_the_kernel_drops_before_it_is_written_again_is_not_flushed(
    disk: FaultyStorage,
) -> None:
    """I-13: then the disk has lost records, and the log says so in place of a recovery point."""
    log = filled(disk, flushed=4)
    path = log.segments[-1].log_path
    disk.fail("sync", "*.log")
    with pytest.raises(StorageFailedError):
        log.flush()
    killed(disk, log)
    log = open_log(disk, recovery_point=12)
    disk.evict(path)
    with pytest.raises(StorageFailedError) as error:
        log.flush()
    assert isinstance(error.value.__cause__, OSError)
    assert error.value.__cause__.errno == errno.EIO  # the directory's, not this log's alone
    assert (log.failed, log.recovery_point) == (True, 12)
    killed(disk, log)
    log = open_log(disk, recovery_point=12)
    assert log.log_end_offset == 12
    log.crash()


def test_only_what_no_flush_has_reached_is_written_again(
    disk: FaultyStorage, rewrites: Rewrites
) -> None:
    log = filled(disk, flushed=4)
    size, batch_size = log.segments[-1].size, log.segments[-1].size // 10
    killed(disk, log)
    name = f"{0:020d}.log"
    late = [(name, 4 * batch_size, 6 * batch_size)]
    assert flushed_again(disk, rewrites, recovery_point=12) == late
    # Inside a batch: all of it.
    assert flushed_again(disk, rewrites, recovery_point=13) == late
    assert flushed_again(disk, rewrites, recovery_point=30) == []
    # A recovery point that rests on the log start was reached by no flush (F-222), and a later
    # scan begins at the base of the segment.
    found = flushed_again(disk, rewrites, recovery_point=12, log_start_offset=12)
    assert found == [(name, 0, size)]


def test_segments_behind_the_recovery_point_are_written_again(
    disk: FaultyStorage, rewrites: Rewrites
) -> None:
    log = filled(disk, flushed=9, count=4)
    log.roll()  # the segment before is flushed
    for batch in batches_of(3, base=12):
        log.replica.append_as_follower(batch.data)
    killed(disk, log)
    names = [f"{0:020d}.log", f"{12:020d}.log"]
    assert [name for name, *_ in flushed_again(disk, rewrites, recovery_point=12)] == names[1:]
    assert [name for name, *_ in flushed_again(disk, rewrites, recovery_point=3)] == names


def test_a_clean_start_writes_nothing_again(disk: FaultyStorage, rewrites: Rewrites) -> None:
    filled(disk, flushed=4).close()
    log = open_log(disk, clean=True)
    rewrites.clear()
    assert not log.flusher.write_again(1)
    log.close()
    assert rewrites == []


def test_a_disk_that_refuses_is_an_error(disk: FaultyStorage) -> None:
    log = filled(disk, flushed=4)
    killed(disk, log)
    before = disk.read_file(log.segments[-1].log_path)
    log = open_log(disk, recovery_point=12)
    fault = disk.fail("write", "*.log")
    with pytest.raises(StorageFailedError):
        log.flusher.write_again(1)
    assert (log.failed, fault.struck) == (True, 1)
    assert disk.read_file(log.segments[-1].log_path) == before


@pytest.mark.parametrize("step", [1, 200, 1 << 20])
def test_it_is_written_again_in_steps_beside_appends_and_a_truncation(
    disk: FaultyStorage, rewrites: Rewrites, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """A step writes whole batches, and nothing at or behind the place of a truncation."""
    monkeypatch.setattr(unwritten, "WINDOW", 300)  # some batches
    log = filled(disk, flushed=4)
    batch_size = log.segments[-1].size // 10
    killed(disk, log)
    log = open_log(disk, recovery_point=12)
    rewrites.clear()
    assert log.flusher.write_again(step)
    log.truncate_to(27)
    (batch,) = batches_of(1, base=27, epoch=1)
    log.replica.append_as_follower(batch.data)
    first = rewrites[:-1]
    rewrites.clear()
    while log.flusher.write_again(step):
        assert rewrites[-1][1] < 9 * batch_size
    end = 4 * batch_size
    for _, position, size in (*first, *rewrites):
        assert (position, size % batch_size) == (end, 0)
        end += size
    assert end == (10 if step > 1000 else 9) * batch_size
    log.flush()
    disk.crash(mode="all_lost")
    log.crash()
    log = open_log(disk, recovery_point=log.log_end_offset)
    assert [r.offset for r in log.records()] == list(range(30))
    log.crash()


@pytest.mark.parametrize("windows", [4, 16, 64])
def test_a_recovery_reads_each_window_once_and_writes_nothing(
    disk: FaultyStorage, rewrites: Rewrites, monkeypatch: pytest.MonkeyPatch, windows: int
) -> None:
    """And then each is read and written once: so the work grows with the bytes alone."""
    window = 4 * 268 + 17  # of four batches, and not a part of the next one but its size
    for module in (rebuild, unwritten):
        monkeypatch.setattr(module, "WINDOW", window)
    filled(disk, flushed=0, count=4 * windows).crash()
    disk.crash(mode="all_kept")
    rewrites.clear()
    views: list[int] = []
    view = MemoryFile.view

    def spy(self: MemoryFile, position: int, size: int) -> AbstractContextManager[memoryview]:
        views.append(position)
        return view(self, position, size)

    monkeypatch.setattr(MemoryFile, "view", spy)
    log = open_log(disk, recovery_point=0)
    # After the first one a window has room for another batch.
    assert 0.8 * windows <= len(views) <= windows
    assert rewrites == []
    views.clear()
    while log.flusher.write_again(window):
        pass
    assert (len(views), len(rewrites)) == (windows, windows)
    log.crash()


def test_an_append_writes_again_what_no_manager_does(
    disk: FaultyStorage, rewrites: Rewrites
) -> None:
    log = filled(disk, flushed=4)
    batch_size = log.segments[-1].size // 10
    killed(disk, log)
    owner = LogOwner(clean_shutdown=False, recovery_point=12)
    log = PartitionLog.open(DIRECTORY, CONFIG, storage=disk, clock=ManualClock(T0), owner=owner)
    (batch,) = batches_of(1, base=30)
    log.replica.append_as_follower(batch.data)
    assert (f"{0:020d}.log", 4 * batch_size, 6 * batch_size) in rewrites
    assert log.recovery_point == 12
    log.crash()


@pytest.mark.parametrize(
    "cut", [LogMaintenance.truncate_to, LogMaintenance.truncate_fully_and_start_at]
)
def test_a_recovery_point_of_records_that_were_cut_says_nothing(
    disk: FaultyStorage, cut: Callable[[LogMaintenance, int], object]
) -> None:
    """F-247: a checkpoint from before a truncation is above the log end; Kafka takes the log end
    for the recovery point then, and a flush does nothing."""
    log = filled(disk, flushed=4)
    log.flush()
    checkpoint = log.recovery_point
    cut(log.maintenance, 15)
    for batch in batches_of(3, base=15, epoch=1):
        log.replica.append_as_follower(batch.data)
    killed(disk, log)
    log = open_log(disk, recovery_point=checkpoint)
    assert log.recovery_point == log.segments[-1].base_offset
    assert log.recovery_report.warnings
    log.flush()
    disk.crash(mode="all_lost")
    log.crash()
    log = open_log(disk, recovery_point=24)
    assert log.log_end_offset == 24
    log.crash()


def snapshot_path(offset: int) -> str:
    return f"{DIRECTORY}/{offset:020}.snapshot"


@pytest.mark.parametrize("damage", ["flipped", "empty", "many producers", "too many producers"])
def test_a_damaged_snapshot_goes_even_if_it_is_not_needed(disk: FaultyStorage, damage: str) -> None:
    """A replay from an older one makes up for it; it must not wait for the next who needs it."""
    log = open_log(disk)
    for at in range(9):
        if at in (3, 6):
            log.roll()
        rows = [(b"k", b"v", T0)]
        batch = data_batch(at, 0, rows, producer=7, producer_epoch=0, sequence=at)
        log.replica.append_as_follower(batch.data)
    killed(disk, log)
    data = bytearray(disk.read_file(snapshot_path(6)))
    if damage == "flipped":
        data[20] ^= 1
    elif damage == "empty":
        data.clear()
    else:
        data[6:10] = (1000 if damage == "many producers" else 2**31 - 1).to_bytes(4, "big")
    disk.write_file(snapshot_path(6), bytes(data))
    log = open_log(disk, recovery_point=7)
    assert log.producers.known.producers[7].last_sequence == 8
    entries = decode_snapshot(disk.read_file(snapshot_path(6)))  # made anew
    assert [entry.last_sequence for entry in entries] == [5]
    assert any(f"{6:020}.snapshot" in action for action in log.recovery_report.actions)
    log.crash()


def test_producers_survive_a_truncation_that_takes_their_newest_snapshot(
    disk: FaultyStorage,
) -> None:
    """The segment that begins at the new log end goes, and its snapshot with it."""
    config = LogConfig(segment_index_bytes=24, index_interval_bytes=60, retention_ms=-1)
    log = open_log(disk, config)

    def append(base: int, count: int, epoch: int, producer: int = -1) -> None:
        known = {"producer": producer, "producer_epoch": 0, "sequence": 0} if producer >= 0 else {}
        batch = data_batch(base, epoch, [(b"k", b"v", T0)] * count, **known)
        log.replica.append_as_follower(batch.data)

    append(0, 1, 1)
    append(1, 1, 1)
    append(2, 2, 1, producer=2)
    log.truncate_to(2)
    append(2, 3, 2, producer=1)
    log.truncate_to(1)
    append(1, 1, 3, producer=2)
    log.close()
    log = open_log(disk, config, clean=True, recovery_point=2)
    assert set(log.producers.known.producers) == {2}
    log.crash()


def test_a_truncation_that_is_cut_short_leaves_no_snapshot_of_less(disk: FaultyStorage) -> None:
    """Killed before the segment behind the new end goes: its snapshot must still be of its base."""
    log = open_log(disk)

    def append(base: int, producer: int) -> None:
        batch = data_batch(
            base, 0, [(b"k", b"v", T0)] * 3, producer=producer, producer_epoch=0, sequence=0
        )
        log.replica.append_as_follower(batch.data)

    append(0, 1)
    append(3, 2)
    log.flush()
    log.roll()
    append(6, 3)
    log.flush()
    disk.fail("rename", "*.log", error=errno.EIO)
    with pytest.raises(StorageFailedError):
        log.truncate_to(3)
    killed(disk, log)
    log = open_log(disk, recovery_point=6)
    assert log.log_end_offset == 9
    assert set(log.producers.known.producers) == {1, 2, 3}
    log.crash()


def test_a_snapshot_takes_no_more_memory_than_its_header_asks_for(tmp_path: Path) -> None:
    directory = tmp_path / "t-0"
    log = PartitionLog.open(str(directory))
    now_ms = SystemClock().wall_ms()  # producers of long ago are forgotten
    batch = data_batch(0, 0, [(b"k", b"v", now_ms)], producer=7, producer_epoch=0, sequence=0)
    log.replica.append_as_follower(batch.data)
    log.roll()
    log.crash()
    os.truncate(directory / f"{1:020}.snapshot", 1 << 40)
    tracemalloc.start()
    try:
        log = PartitionLog.open(str(directory), owner=LogOwner(recovery_point=1))
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    assert (directory / f"{1:020}.snapshot").stat().st_size == 56
    assert log.producers.known.producers[7].last_sequence == 0
    log.crash()


def test_the_time_of_a_recovery_comes_from_the_clock() -> None:
    """So that a simulation repeats its reports too."""
    reports = []
    for _ in range(2):
        log = open_log(FaultyStorage(), CONFIG)
        reports.append(log.recovery_report.to_dict())
        log.crash()
    assert reports[0] == reports[1]


def test_a_log_that_was_emptied_never_comes_back_beside_the_new_one() -> None:
    """S-37: names that are removed while a log is opened are gone before a new segment begins."""

    def interrupted() -> FaultyStorage:
        """Killed in a truncation whose removals are not on the disk yet."""
        storage = FaultyStorage()
        storage.make_dir(DIRECTORY)
        storage.sync_dir("/")
        storage.sync_dir("/d")
        log = filled(storage, flushed=3, count=3)
        log.flush()
        storage.fail("sync_dir", DIRECTORY)
        with pytest.raises(StorageFailedError):
            log.maintenance.truncate_fully_and_start_at(1)
        killed(storage, log)
        return storage

    points = 0
    while True:
        points += 1
        for seed in range(8):
            storage = interrupted()
            storage.crash_after(points)
            try:
                open_log(storage, recovery_point=7, log_start_offset=1).crash()
            except SimulatedCrash:
                storage.crash(random.Random(seed))
            else:
                assert points > 5
                return
            log = open_log(storage, recovery_point=7, log_start_offset=1)
            held = [r.offset for r in log.records()]
            assert (log.log_end_offset, held) in ((1, []), (9, list(range(1, 9)))), (points, seed)
            assert len(log.segments) == 1
            log.crash()


def test_each_warning_of_a_recovery_is_a_line_of_the_logger(
    disk: FaultyStorage, caplog: pytest.LogCaptureFixture
) -> None:
    log = filled(disk, flushed=10)
    log.flush()
    path = log.segments[-1].log_path
    killed(disk, log)
    data = bytearray(disk.read_file(path))
    data[len(data) // 2] ^= 1
    disk.write_file(path, bytes(data))
    with caplog.at_level("WARNING", "logstore"):
        report = open_log(disk, recovery_point=30).recovery_report
    assert report.offsets_lost == (15, 30)
    assert len(report.warnings) == 2
    assert caplog.messages == [f"{DIRECTORY}: {warning}" for warning in report.warnings]


class TestFlushMessages:
    """What the limit does not allow to stay unsynced is on the disk before anybody counts on it."""

    CONFIG_OF_ONE = replace(CONFIG, flush_messages=1)

    def test_a_start_after_a_kill_syncs_what_the_limit_asks_for(self, disk: FaultyStorage) -> None:
        log = filled(disk, flushed=4)
        killed(disk, log)
        log = open_log(disk, self.CONFIG_OF_ONE, recovery_point=12)
        assert (log.log_end_offset, log.recovery_point) == (30, 30)
        disk.crash(mode="all_lost")
        log.crash()
        assert open_log(disk, recovery_point=12).log_end_offset == 30

    def test_up_to_the_limit_it_may_wait(self, disk: FaultyStorage) -> None:
        log = filled(disk, flushed=4)
        killed(disk, log)
        config = replace(CONFIG, flush_messages=19)  # 18 are not synced
        assert open_log(disk, config, recovery_point=12).recovery_point == 12

    def test_a_lower_limit_holds_at_once(self, disk: FaultyStorage) -> None:
        log = filled(disk, flushed=4)
        log.reconfigure(self.CONFIG_OF_ONE)
        assert log.recovery_point == 30

    def test_a_sync_that_fails_at_the_start_is_told(self, disk: FaultyStorage) -> None:
        killed(disk, filled(disk, flushed=4))
        disk.fail("sync", "*.log")
        with pytest.raises(StorageFailedError):
            open_log(disk, self.CONFIG_OF_ONE, recovery_point=12)
