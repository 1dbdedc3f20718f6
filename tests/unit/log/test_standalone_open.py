"""A log without a manager: one owner at a time, and a clean start after ``close``."""

from __future__ import annotations

import errno
import gc
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from checkpoints.clean_shutdown import CLEAN_SHUTDOWN
from checkpoints.offset_checkpoint import LOG_START, RECOVERY_POINT, OffsetCheckpoint
from checkpoints.types import TopicPartition
from logstore.common.config import LogConfig
from logstore.common.errors import (
    InvalidTopicError,
    LogDirLockedError,
    ResourceBusyError,
    StorageFailedError,
)
from logstore.format import filenames
from logstore.log import LogOwner, PartitionLog
from logstore.manager import LogManager
from logstore.storage.local import LocalStorage
from logstore.storage.memory import MemoryStorage
from logstore.testing import SimulatedCrash
from tests.support.builders import Disk
from tests.support.logs import check_invariants

TP = TopicPartition("orders", 0)
VALUES = [(None, b"value")] * 10

HOLDER = """
import signal, sys
from logstore import PartitionLog
log = PartitionLog.open(sys.argv[1])
log.append([(None, b"theirs")])
print("open", flush=True)
signal.pause()
"""


def in_another_process(code: str, *arguments: object) -> subprocess.Popen[str]:
    """A process that has printed its first line."""
    process = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline()
    return process


def end(process: subprocess.Popen[str]) -> None:
    """As kill -9."""
    process.send_signal(signal.SIGKILL)
    process.communicate()


def test_a_partition_is_open_once(tmp_path: Path) -> None:
    directory = tmp_path / "orders-0"
    with PartitionLog.open(directory):
        with pytest.raises(LogDirLockedError, match="this process"):
            PartitionLog.open(directory)
        (tmp_path / "link").mkdir()
        (tmp_path / "link" / "orders-0").symlink_to(directory)
        with pytest.raises(LogDirLockedError):
            PartitionLog.open(tmp_path / "link" / "orders-0", storage=LocalStorage())
    PartitionLog.open(directory).close()


def test_partitions_of_one_directory_share_its_lock(tmp_path: Path) -> None:
    with PartitionLog.open(tmp_path / "orders-0"):
        with PartitionLog.open(tmp_path / "orders-1", storage=LocalStorage()) as other:
            other.append(VALUES)
        with pytest.raises(LogDirLockedError, match="or use another directory"):  # one is open
            LogManager([tmp_path])
    with (
        LogManager([tmp_path]) as manager,
        pytest.raises(LogDirLockedError),
    ):
        PartitionLog.open(manager.get("orders", 1).directory)


def test_a_log_says_that_it_is_closed(tmp_path: Path) -> None:
    with PartitionLog.open(tmp_path / "orders-0") as log:
        log.append(VALUES)
        assert repr(log) == f"PartitionLog({tmp_path}/orders-0, [0, 10))"
    assert repr(log) == f"PartitionLog({tmp_path}/orders-0, [0, 10), closed)"


def test_an_offset_is_a_whole_number(tmp_path: Path) -> None:
    """Half an offset would be compared like a whole one, and cut or read beside what was meant."""
    half: Any = 0.5
    with PartitionLog.open(tmp_path / "orders-0") as log:
        log.append(VALUES)
        calls: list[Callable[[], object]] = [
            lambda: log.read(half),
            lambda: log.records(half),
            lambda: log.records(0, half),
            lambda: log.reader.available_bytes(half, 3),
            lambda: log.reader.aborted_transactions(half, 3),
            lambda: log.follow(half),
            lambda: log.delete_records(half),
            lambda: log.truncate_to(half),
            lambda: log.maintenance.truncate_fully_and_start_at(half),
        ]
        for call in calls:
            with pytest.raises(TypeError, match="'float' object cannot be interpreted"):
                call()
        assert log.log_end_offset == 10


def test_another_process_is_refused(tmp_path: Path) -> None:
    directory = tmp_path / "orders-0"
    process = in_another_process(HOLDER, directory)
    try:
        with pytest.raises(LogDirLockedError, match=str(process.pid)):
            PartitionLog.open(directory)
        with pytest.raises(LogDirLockedError, match=str(process.pid)):
            LogManager([tmp_path])
    finally:
        end(process)
    with PartitionLog.open(directory) as log:
        assert not log.recovery_report.clean
        assert [record.value for record in log.records()] == [b"theirs"]


@pytest.mark.parametrize("end", ["close", "crash"])
def test_the_lock_goes_with_the_log(end: str, tmp_path: Path) -> None:
    for storage in (LocalStorage(), MemoryStorage()):
        directory = str(tmp_path / "orders-0")
        for _ in range(2):
            log = PartitionLog.open(directory, storage=storage)
            getattr(log, end)()
            log.close()  # again


def test_what_cannot_be_opened_is_not_locked(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(InvalidTopicError):
            PartitionLog.open(tmp_path / "no partition")
    directory = tmp_path / "orders-0"
    (directory / "leader-epoch-checkpoint").mkdir(parents=True)
    (tmp_path / "other").write_text("")
    with pytest.raises(StorageFailedError):
        PartitionLog.open(tmp_path / "other" / "orders-0")
    PartitionLog.open(tmp_path / "orders-1").close()
    LogManager([tmp_path / "unlocked"]).close()


def test_a_log_that_was_dropped_is_not_locked_for_ever(tmp_path: Path) -> None:
    log = PartitionLog.open(tmp_path / "orders-0")
    log.maintenance.release()  # its files alone
    del log
    gc.collect()
    PartitionLog.open(tmp_path / "orders-0").close()


def test_after_close_the_start_is_clean(tmp_path: Path) -> None:
    directory = tmp_path / "orders-0"
    config = LogConfig(segment_bytes=200)
    with PartitionLog.open(directory, config) as log:
        for _ in range(5):
            log.append(VALUES)
        log.delete_records(23)
        log.maintenance.delete_old_segments()
    with PartitionLog.open(directory, config) as log:
        report = log.recovery_report
        assert (report.clean, report.segments_scanned) == (True, 0)
        assert (log.log_start_offset, log.log_end_offset) == (23, 50)
        assert log.recovery_point == 50
        assert not (directory / filenames.CLEAN_STOP).exists()


def test_a_crash_after_a_clean_start_is_recovered(tmp_path: Path) -> None:
    directory = tmp_path / "orders-0"
    with PartitionLog.open(directory) as log:
        log.append(VALUES)
    PartitionLog.open(directory).crash()  # nothing was written, but the mark is gone
    log = PartitionLog.open(directory)
    assert not log.recovery_report.clean
    log.close()
    with PartitionLog.open(
        directory, owner=LogOwner(clean_shutdown=False)
    ) as log:  # what is given counts
        assert not log.recovery_report.clean


@pytest.mark.parametrize("change", ["appended", "shorter", "touched", "unfinished", "damaged"])
def test_the_mark_is_believed_only_if_nobody_wrote_since(change: str, tmp_path: Path) -> None:
    directory = tmp_path / "orders-0"
    with PartitionLog.open(directory) as log:
        log.append(VALUES)
        log.append(VALUES)
    file = directory / "00000000000000000000.log"
    mark = directory / filenames.CLEAN_STOP
    if change == "appended":
        file.write_bytes(file.read_bytes() + bytes(100))
    elif change == "shorter":
        file.write_bytes(file.read_bytes()[:-1])
    elif change == "touched":
        os.utime(file, (1, 1))
    elif change == "unfinished":
        (directory / "00000000000000000020.log.swap").write_bytes(b"")
    else:
        mark.write_bytes(b"0\n1\n1 2\n")
    with PartitionLog.open(directory) as log:
        assert not log.recovery_report.clean
        assert log.log_end_offset == (10 if change == "shorter" else 20)


def test_a_manager_takes_the_mark_away(tmp_path: Path) -> None:
    directory = tmp_path / "orders-0"
    with PartitionLog.open(directory) as log:
        log.append(VALUES)
    LogManager([tmp_path]).crash()
    assert not (directory / filenames.CLEAN_STOP).exists()


def test_a_log_of_a_managed_directory(tmp_path: Path) -> None:
    """What its manager left is used, and is void from then on; the manager finds what it needs."""
    config = LogConfig(segment_bytes=200)
    with LogManager([tmp_path], config) as manager:
        log = manager.get_or_create("orders", 0)
        for _ in range(5):
            log.append(VALUES)
        log.delete_records(5)
    marker = tmp_path / CLEAN_SHUTDOWN
    assert marker.exists()
    log = PartitionLog.open(tmp_path / "orders-0", config)
    assert log.recovery_report.clean
    assert log.log_start_offset == 5
    assert not marker.exists()
    points = OffsetCheckpoint(str(tmp_path / RECOVERY_POINT), LocalStorage())
    starts = OffsetCheckpoint(str(tmp_path / LOG_START), LocalStorage())
    assert TP not in points.read()
    log.append(VALUES)
    log.delete_records(7)
    log.close()
    assert points.read()[TP] == 60
    assert starts.read()[TP] == 7
    with LogManager([tmp_path], config) as manager:
        assert not manager.get("orders", 0).recovery_report.clean
        assert manager.get("orders", 0).log_start_offset == 7


def test_entries_of_a_deleted_log_are_not_taken(tmp_path: Path) -> None:
    starts = OffsetCheckpoint(str(tmp_path / LOG_START), LocalStorage())
    starts.write({TP: 1000})
    log = PartitionLog.open(tmp_path / "orders-0")
    assert (log.log_start_offset, starts.read()) == (0, {})
    log.append(VALUES)
    log.crash()
    starts.write({TP: 1000})
    with PartitionLog.open(tmp_path / "orders-0") as log:
        assert (log.log_start_offset, log.log_end_offset) == (0, 10)


def test_a_forked_child_does_not_own_the_log(tmp_path: Path) -> None:
    log = PartitionLog.open(tmp_path / "orders-0")
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            PartitionLog.open(tmp_path / "orders-1")
        except LogDirLockedError:
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    log.close()


@pytest.mark.slow
def test_power_cuts_at_every_step() -> None:
    """What was acknowledged is there, whatever the mark said; a clean stop is one."""
    step = 0
    while True:
        step += 1
        for mode in ("all_lost", "all_kept", "random"):
            disk = Disk(segment_bytes=300)
            disk.storage.crash_after(step)
            synced = start = 0
            try:
                for _ in range(2):
                    log = disk.open(clean_shutdown=None)
                    log.append(VALUES, sync=True)
                    synced = log.log_end_offset
                    log.append(VALUES)
                    start = log.delete_records(synced - 3)
                    log.close()
                    synced = log.log_end_offset
            except SimulatedCrash:
                disk.storage.crash(random.Random(step), mode)  # type: ignore[arg-type]
            else:
                return
            with disk.open(clean_shutdown=None) as log:
                assert log.log_end_offset >= synced
                assert log.log_start_offset >= start
                check_invariants(log)
                records = [record.offset for record in log.records()]
                assert records == list(range(log.log_start_offset, log.log_end_offset))


def test_a_log_start_outlives_a_crash_but_not_its_records(tmp_path: Path) -> None:
    directory = tmp_path / "orders-0"
    log = PartitionLog.open(directory)
    for _ in range(3):
        log.append(VALUES)
    log.delete_records(15)
    log.crash()
    log = PartitionLog.open(directory)
    assert (log.log_start_offset, log.log_end_offset) == (15, 30)
    log.truncate_to(0)
    for _ in range(3):
        log.append(VALUES)
    log.crash()
    with PartitionLog.open(directory) as log:
        assert (log.log_start_offset, log.log_end_offset) == (0, 30)


def test_a_lack_of_descriptors_is_no_failed_disk() -> None:
    disk = Disk()
    for operation, path in (("open", "*.lock"), ("read", "*clean-stop")):
        with disk.open(clean_shutdown=None) as log:
            log.append(VALUES)
        disk.storage.fail(operation, path, error=errno.EMFILE)
        with pytest.raises(ResourceBusyError):
            disk.open(clean_shutdown=None)
        disk.storage.heal()
        disk.open(clean_shutdown=None).close()
