"""A disk that refuses: S-42 … S-45, and directories that are not what they should be: S-47."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from logstore.common.config import BrokerConfig, LogConfig
from logstore.common.errors import LogstoreError, StorageFailedError
from logstore.log import PartitionLog
from logstore.manager import LogManager, ManagerOwner
from logstore.storage.base import Storage
from logstore.testing import FaultyStorage, ManualClock
from logstore.testing.faulty import FOREVER
from tests.crash.checks import check_lookups, check_state
from tests.crash.disk import T0, batches_of, disk_with, joined, log_bytes, open_log
from tests.crash.model import Batch, as_client, data_batch

BATCHES = batches_of(6)
VICTIM = data_batch(18, 0, [(b"k", b"v" * 900, T0)], producer=1, producer_epoch=0, sequence=0)


def log_on(storage: FaultyStorage) -> PartitionLog:
    log = open_log(storage)
    for batch in BATCHES:
        log.replica.append_as_follower(batch.data)
    log.flush()
    return log


def assert_failed(log: PartitionLog, storage: FaultyStorage, held: list[Batch]) -> None:
    """Nothing of the failed append counts, nothing more is taken, a reopening repairs it."""
    assert log.failed
    assert log.log_end_offset == held[-1].last + 1
    assert log.high_watermark == log.log_end_offset
    assert not log.producers.known.producers
    storage.heal()
    with pytest.raises(LogstoreError):
        log.append([(b"k", b"v")])
    with pytest.raises(LogstoreError):
        log.flush()
    log.close()
    again = open_log(storage)
    assert log_bytes(storage) == joined(held)
    check_state(again, held, whole=True)
    assert again.append([(b"k", b"v")]).first_offset == held[-1].last + 1


@pytest.mark.parametrize("room", [0, 1, 60, 61, 500, len(VICTIM.data) - 1])
def test_s42_disk_full_during_append(room: int) -> None:
    storage = disk_with({})
    log = log_on(storage)
    storage.fail("write", "*.log", error=errno.ENOSPC, partial=room, times=FOREVER)
    with pytest.raises(StorageFailedError):
        log.append_as_leader(as_client(VICTIM), 0)
    assert_failed(log, storage, BATCHES)


MORE = batches_of(8, base=18, epoch=1)


@pytest.mark.parametrize("operation", ["open", "map", "reserve", "write", "truncate", "rename"])
def test_s42_disk_full_anywhere_else(operation: str) -> None:
    """While rolling, growing an index or writing a checkpoint: refused, and nothing is lost."""
    for after in range(6):
        storage = disk_with({})
        log = log_on(storage)
        fault = storage.fail(operation, after=after, error=errno.ENOSPC)
        count = 0
        try:
            for batch in MORE:
                log.replica.append_as_follower(batch.data)
                count += 1
                if count % 3 == 2:
                    log.roll()
        except LogstoreError:
            assert fault.struck
            assert log.failed
        storage.heal()
        log.crash()
        storage.crash(mode="all_kept")
        again = open_log(storage)
        held = [*BATCHES, *MORE][: len(BATCHES) + count]
        if log_bytes(storage) != joined(held):  # the append that was refused may be there whole
            held.append(MORE[count])
        assert log_bytes(storage) == joined(held)
        check_lookups(again, held, random.Random(1))


def test_s42_a_failed_checkpoint_leaves_the_old_one() -> None:
    storage = FaultyStorage()
    with manager_on(storage, "/d") as manager:
        log = manager.get_or_create("t", 0)
        log.append([(b"k", b"v")])
        log.flush()
        manager.housekeeper.checkpoint_recovery_points()
        path = "/d/recovery-point-offset-checkpoint"
        before = storage.read_file(path)
        log.append([(b"k", b"v")])
        log.flush()
        storage.fail("write", path + "*", error=errno.ENOSPC)
        manager.housekeeper.checkpoint_recovery_points()
        assert storage.read_file(path) == before
        assert manager.offline_directories.keys() == {"/d"}


def test_s43_a_write_error() -> None:
    storage = disk_with({})
    log = log_on(storage)
    storage.fail("write", "*.log")
    with pytest.raises(StorageFailedError):
        log.append_as_leader(as_client(VICTIM), 7)
    assert_failed(log, storage, BATCHES)


def test_s43_a_write_error_in_the_epoch_file() -> None:
    """The batch is in the log already; its epoch is found in it when the log is opened again."""
    storage = disk_with({})
    log = log_on(storage)
    storage.fail("write", "*leader-epoch-checkpoint*")
    with pytest.raises(StorageFailedError):
        log.append_as_leader(as_client(VICTIM), 7)
    assert log.failed
    storage.heal()
    log.close()
    with open_log(storage) as again:
        assert again.epochs.entries[-1] == (7, 18)
        assert again.log_end_offset == 19


def test_s43_a_write_error_in_a_snapshot() -> None:
    storage = disk_with({})
    log = log_on(storage)
    storage.fail("write", "*.snapshot")
    with pytest.raises(StorageFailedError):
        log.roll()
    assert log.failed


def test_s43_a_read_error_cuts_nothing() -> None:
    storage = disk_with({})
    log = log_on(storage)
    before = log_bytes(storage)
    storage.fail("read", "*.log")
    with pytest.raises(StorageFailedError):
        log.read(0)
    assert not log.failed
    assert log.read(0).data == before
    log.crash()
    storage.fail("read", "*.log")
    with pytest.raises(StorageFailedError):
        open_log(storage)
    assert log_bytes(storage) == before
    assert open_log(storage).log_end_offset == 18


@pytest.mark.parametrize("path", ["*.log", "*.index", "*"])
def test_s44_a_failed_sync_is_never_taken_back(path: str) -> None:
    storage = disk_with({})
    log = log_on(storage)
    log.replica.append_as_follower(batches_of(1, base=18)[0].data)
    if path == "*.index":
        log.roll()
        log.replica.append_as_follower(batches_of(1, base=21)[0].data)
        point = log.recovery_point
        storage.fail("sync", path)
        with pytest.raises(StorageFailedError):
            log.roll()
    else:
        point = log.recovery_point
        storage.fail("sync", path)
        with pytest.raises(StorageFailedError):
            log.flush()
    assert log.recovery_point == point
    with pytest.raises(LogstoreError):
        log.flush()
    storage.crash(mode="all_lost")
    again = open_log(storage, recovery_point=point)
    assert point <= again.log_end_offset
    assert again.recovery_point <= again.log_end_offset


def manager_on(storage: Storage | None, *directories: str) -> LogManager:
    return LogManager(
        directories,
        LogConfig(segment_index_bytes=1200),
        storage=storage,
        clock=ManualClock(T0),
        broker_config=BrokerConfig(num_recovery_threads_per_data_dir=1),
        owner=ManagerOwner(cluster_id="c"),
    )


def test_s44_the_directory_goes_offline_and_the_others_go_on() -> None:
    storage = FaultyStorage()
    with manager_on(storage, "/a", "/b") as manager:
        first, second = (manager.get_or_create("t", at) for at in range(2))
        first.append([(b"k", b"v")])
        storage.fail("sync", f"{first.directory}/*.log")
        with pytest.raises(StorageFailedError):
            first.flush()
        assert len(manager.live_directories) == 1
        second.append([(b"k", b"v")])
        second.flush()


DESCRIPTORS = """
import resource, sys, os
from logstore.common.config import LogConfig
from logstore.common.errors import LogstoreError
from logstore.log import LogOwner, PartitionLog
directory = sys.argv[1]
config = LogConfig(segment_bytes=600, segment_index_bytes=120, index_interval_bytes=50)
count = lambda: len(os.listdir("/proc/self/fd"))
log = PartitionLog.open(directory, config)
for at in range(140):
    log.append([(b"k", b"v" * 90)] * 2)
assert len(log.segments) > 60
log.close()
log = PartitionLog.open(directory, config, owner=LogOwner(clean_shutdown=True))
baseline = count()
resource.setrlimit(resource.RLIMIT_NOFILE, (baseline + 16, 4096))
refused = 0
for round in range(2):
    for offset in range(0, 280, 5):
        try:
            log.read(offset).records()
        except LogstoreError:
            refused += 1
try:
    for at in range(20):
        log.append([(b"k", b"v" * 90)] * 2)
except LogstoreError:
    refused += 1
end = log.log_end_offset
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
log.crash()
log = PartitionLog.open(directory, config)
assert log.log_end_offset >= end, (log, end)
assert sum(1 for _ in log.records()) == log.log_end_offset
for segment in log.segments:
    assert os.path.exists(segment.log_path)
log.close()
del log
left = count()
assert left <= baseline, (left, baseline)
print("refused", refused)
"""


@pytest.mark.slow
def test_s45_descriptors_run_out(tmp_path: Path) -> None:
    """Typed refusals, no record lost, no descriptor leaked."""
    done = subprocess.run(
        [sys.executable, "-c", DESCRIPTORS, str(tmp_path / "t-0")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "refused" in done.stdout


def test_s47_a_missing_directory_is_made_and_durable() -> None:
    storage = FaultyStorage()
    manager = manager_on(storage, "/new")
    log = manager.get_or_create("t", 0)
    log.append([(b"k", b"v")])
    log.flush()
    storage.crash(mode="all_lost")
    assert manager_on(storage, "/new").get("t", 0).log_end_offset == 1


def test_s47_a_read_only_directory_is_offline() -> None:
    """Not by permission bits, which do not bind every user: the disk refuses to write."""
    storage = FaultyStorage()
    manager_on(storage, "/a", "/b").close()
    for operation in ("open", "write", "remove", "rename"):
        storage.fail(operation, "/a/*", error=errno.EROFS, times=FOREVER)
    with manager_on(storage, "/a", "/b") as manager:
        assert manager.live_directories == ["/b"]
        manager.get_or_create("t", 0).append([(b"k", b"v")])


def test_s47_all_directories_bad() -> None:
    storage = FaultyStorage()
    storage.fail("open", "*", error=errno.EACCES, times=FOREVER)
    with pytest.raises(StorageFailedError):
        manager_on(storage, "/a", "/b")


def test_s47_symbolic_links(tmp_path: Path) -> None:
    """A log directory or a partition may be a link; deleting one touches no sibling."""
    (tmp_path / "real").mkdir()
    (tmp_path / "other" / "u-0").mkdir(parents=True)
    (tmp_path / "logs").symlink_to(tmp_path / "real")
    (tmp_path / "real" / "u-0").symlink_to(tmp_path / "other" / "u-0")
    (tmp_path / "other" / "sibling").write_bytes(b"stays")
    with manager_on(None, str(tmp_path / "logs")) as manager:
        manager.get_or_create("t", 0).append([(b"k", b"v")])
        manager.get("u", 0).append([(b"k", b"v")])
        manager.delete("u", 0)
        manager._clock.advance(10**9)  # type: ignore[attr-defined]
        manager.housekeeper.purge_deleted()
    assert (tmp_path / "real" / "t-0").is_dir()
    assert not os.path.lexists(tmp_path / "real" / "u-0")
    assert (tmp_path / "other" / "sibling").read_bytes() == b"stays"


def test_s47_stray_names(caplog: pytest.LogCaptureFixture) -> None:
    """Files and directories with stray names are left alone; a warning names a directory."""
    storage = FaultyStorage()
    manager_on(storage, "/d").close()
    storage.write_file("/d/notes.txt", b"hello")
    manager_on(storage, "/d").close()
    assert storage.read_file("/d/notes.txt") == b"hello"
    storage.make_dir("/d/not a partition")
    manager_on(storage, "/d").close()
    assert "'not a partition'" in caplog.text
    assert storage.info("/d/not a partition") is not None


def test_s47_a_delete_directory_is_finished() -> None:
    storage = FaultyStorage()
    with manager_on(storage, "/d") as manager:
        manager.get_or_create("t", 0).append([(b"k", b"v")])
        manager.delete("t", 0)
    with manager_on(storage, "/d") as manager:
        assert not manager.logs
        manager.housekeeper.purge_deleted()
    assert [e.name for e in storage.scan_dir("/d") if e.is_dir] == []


def test_s46_two_owners_of_one_directory() -> None:
    storage = FaultyStorage()
    with manager_on(storage, "/d"):
        with pytest.raises(LogstoreError):
            manager_on(storage, "/d")
        with pytest.raises(LogstoreError):
            manager_on(storage, "/d/../d")
    manager_on(storage, "/d").close()
