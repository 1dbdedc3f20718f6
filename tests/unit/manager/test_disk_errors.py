"""Which errno means the disk: each row of the table, through a manager of two logs."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from checkpoints.files import UnusableFileError
from logstore import LogConfig, LogManager, PartitionLog
from logstore.common.disk_errors import MEANINGS, Concern, concern_of
from logstore.common.errors import (
    InvalidTopicError,
    LogUnavailableError,
    ResourceBusyError,
    StorageFailedError,
)
from logstore.manager import ManagerOwner
from logstore.testing import FaultyStorage
from logstore.testing.faulty import FOREVER

RECORD = [(b"k", b"v")]
UNKNOWN = 9999
ROWS = [(number, row.concern) for number, row in MEANINGS.items()] + [(UNKNOWN, Concern.DIRECTORY)]
EACH = pytest.mark.parametrize(("number", "concern"), ROWS, ids=lambda value: str(value))


@pytest.fixture
def storage() -> FaultyStorage:
    return FaultyStorage()


def opened(storage: FaultyStorage) -> LogManager:
    manager = LogManager(["/d"], LogConfig(), storage=storage, background=False)
    for topic in ("t", "other"):
        manager.get_or_create(topic, 0).append(RECORD)
    return manager


def goes_on(manager: LogManager, topic: str) -> bool:
    try:
        manager.get_or_create(topic, 0).append(RECORD, sync=True)
    except (StorageFailedError, LogUnavailableError):
        return False
    return True


def refused(concern: Concern) -> pytest.RaisesExc[Exception]:
    """Expect the error of a call that the storage refuses."""
    kind = ResourceBusyError if concern is Concern.MACHINE else StorageFailedError
    return pytest.raises(kind)


@EACH
def test_an_operation_that_changed_nothing(
    storage: FaultyStorage, number: int, concern: Concern
) -> None:
    manager = opened(storage)
    storage.fail("open", "*/t-0/*", error=number, times=FOREVER)
    with refused(concern):
        manager.get_or_create("t", 0).roll()
    storage.heal()
    assert goes_on(manager, "t") == (concern in (Concern.MACHINE, Concern.CALLER))
    assert goes_on(manager, "other") == (concern is not Concern.DIRECTORY)
    assert bool(manager.offline_directories) == (concern is Concern.DIRECTORY)
    manager.close()


@EACH
def test_a_write_that_may_be_there_in_part(
    storage: FaultyStorage, number: int, concern: Concern
) -> None:
    manager = opened(storage)
    storage.fail("write", "*/t-0/*.log", error=number)
    with pytest.raises(StorageFailedError):
        manager.get_or_create("t", 0).append(RECORD)
    assert not goes_on(manager, "t")
    assert goes_on(manager, "other") == (concern is not Concern.DIRECTORY)
    manager.close()
    with LogManager(["/d"], storage=storage, background=False) as again:
        assert len(list(again.get_or_create("t", 0).records())) == 1
        assert goes_on(again, "t")


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EROFS, errno.EDQUOT])
def test_a_sync_that_failed_is_never_tried_again(storage: FaultyStorage, number: int) -> None:
    manager = opened(storage)
    storage.fail("sync", "*/t-0/*", error=number)
    for _ in range(2):
        with pytest.raises(StorageFailedError):
            manager.get_or_create("t", 0).flush()
    assert not goes_on(manager, "other")
    manager.close()


@EACH
def test_a_log_that_cannot_be_loaded(storage: FaultyStorage, number: int, concern: Concern) -> None:
    opened(storage).close()
    storage.fail("open", "*/t-0/*", error=number, times=FOREVER)
    storage.fail("read", "*/t-0/*", error=number, times=FOREVER)
    storage.fail("list", "*/t-0", error=number, times=FOREVER)
    if concern is Concern.MACHINE:
        with pytest.raises(ResourceBusyError):
            LogManager(["/d"], storage=storage, background=False)
        return
    if concern is Concern.DIRECTORY:
        with pytest.raises(StorageFailedError):
            LogManager(["/d"], storage=storage, background=False)
        return
    manager = LogManager(["/d"], storage=storage, background=False)
    assert len(manager.unavailable_logs) == 1
    assert goes_on(manager, "other")
    storage.heal()
    manager.close()
    with LogManager(["/d"], storage=storage, background=False) as again:
        assert len(list(again.get_or_create("t", 0).records())) == 1


@EACH
def test_a_log_that_cannot_be_created(
    storage: FaultyStorage, number: int, concern: Concern
) -> None:
    manager = opened(storage)
    storage.fail("open", "*/new-0/*", error=number, times=FOREVER)
    with refused(concern):
        manager.get_or_create("new", 0)
    storage.heal()
    assert goes_on(manager, "other") == (concern is not Concern.DIRECTORY)
    manager.close()


@EACH
def test_a_topic_of_which_one_partition_cannot_be_created(
    storage: FaultyStorage, number: int, concern: Concern
) -> None:
    """All or none, and another try may have all."""
    manager = opened(storage)
    storage.fail("open", "*/new-1/*", error=number, times=FOREVER)
    with pytest.raises((ResourceBusyError, StorageFailedError)):
        manager.create_topic("new", 3)
    storage.heal()
    if concern is not Concern.DIRECTORY:
        assert "new" not in {tp.topic for tp in manager.logs}
        assert len(manager.create_topic("new", 3)) == 3
    manager.close()
    with LogManager(["/d"], storage=storage, background=False) as again:
        partitions = [tp for tp in again.logs if tp.topic == "new"]
        assert len(partitions) == (0 if concern is Concern.DIRECTORY else 3)


@EACH
def test_a_topic_that_cannot_be_altered(
    storage: FaultyStorage, number: int, concern: Concern
) -> None:
    manager = opened(storage)
    storage.fail("open", "*/t-0*", error=number, times=FOREVER)
    with refused(concern):
        manager.alter_topic("t", {"retention.ms": "5"})
    storage.heal()
    assert goes_on(manager, "other") == (concern is not Concern.DIRECTORY)
    manager.close()


@EACH
def test_a_topic_that_cannot_be_deleted(
    storage: FaultyStorage, number: int, concern: Concern
) -> None:
    """It waits for another try, and no new one takes its place before."""
    manager = opened(storage)
    storage.fail("rename", "*/t-0*", error=number, times=FOREVER)
    with refused(concern):
        manager.delete("t", 0)
    storage.heal()
    assert goes_on(manager, "other") == (concern is not Concern.DIRECTORY)
    if concern is not Concern.DIRECTORY:
        with pytest.raises(LogUnavailableError):
            manager.get_or_create("t", 0)
        manager.delete("t", 0)
        assert manager.get_or_create("t", 0).log_end_offset == 0
    manager.close()


@pytest.mark.parametrize(("topic", "partition"), [("x" * 249, 123456), ("x" * 245, 2**31 - 2)])
def test_a_name_that_is_too_long(tmp_path: Path, topic: str, partition: int) -> None:
    with LogManager([tmp_path], background=False) as manager:
        for refused in (
            lambda: manager.get_or_create(topic, partition),
            lambda: manager.create_topic(topic, partition),
        ):
            with pytest.raises(InvalidTopicError, match="characters"):
                refused()
        assert goes_on(manager, "orders")
        longest = "y" * (255 - len("-99999"))
        assert goes_on(manager, longest)
        assert manager.get_or_create(longest[:249], 99999).append(RECORD).first_offset == 0
    with pytest.raises(InvalidTopicError, match="characters"):
        PartitionLog.open(tmp_path / f"{topic}-{partition}")


def test_a_path_that_is_too_long(tmp_path: Path) -> None:
    """The file system refuses it, and the directory goes on."""
    deep = tmp_path
    while len(str(deep)) < 3700:
        deep = deep / ("d" * 200)
    deep.mkdir(parents=True)
    with LogManager([deep], background=False) as manager:
        with pytest.raises(StorageFailedError, match="name too long"):
            manager.get_or_create("x" * 249, 0)
        assert goes_on(manager, "orders")


@EACH
def test_the_owner_hears_of_each_failure(
    storage: FaultyStorage, number: int, concern: Concern
) -> None:
    logs: list[str] = []
    directories: list[str] = []
    with LogManager(
        ["/d"],
        storage=storage,
        background=False,
        owner=ManagerOwner(
            on_directory_failure=lambda path, _: directories.append(path),
            on_log_failure=lambda path, _: logs.append(path),
        ),
    ) as manager:
        storage.fail("write", "*/t-0/*.log", error=number)
        for _ in range(2):
            with pytest.raises(StorageFailedError):
                manager.get_or_create("t", 0).append(RECORD)
    assert directories == (["/d"] if concern is Concern.DIRECTORY else [])
    assert logs == ([] if concern is Concern.DIRECTORY else ["/d"])


def test_a_file_that_somebody_removes(tmp_path: Path) -> None:
    with LogManager([tmp_path], background=False) as manager:
        log = manager.get_or_create("t", 0)
        log.append(RECORD)
        for path in (tmp_path / "t-0").iterdir():
            path.unlink()
        (tmp_path / "t-0").rmdir()
        with pytest.raises(StorageFailedError):
            log.roll()
        assert goes_on(manager, "other")


def test_causes_are_looked_through() -> None:
    error = StorageFailedError("/d", "write", "x")
    error.__cause__ = OSError(errno.EACCES, "denied")
    assert concern_of(error) is Concern.PARTITION
    assert concern_of(UnusableFileError(errno.EIO, "is a FIFO", "/d/x")) is Concern.PARTITION
    assert concern_of(MemoryError()) is Concern.MACHINE
    assert concern_of(StorageFailedError("/d", "write", "x")) is Concern.DIRECTORY
