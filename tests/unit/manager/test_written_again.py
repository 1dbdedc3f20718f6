"""After a crash a manager writes again in the background what no flush has reached."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from logstore import LogManager
from logstore.common.errors import StorageFailedError
from logstore.common.parallel import LaterThread
from logstore.log import PartitionLog
from logstore.manager import duties
from logstore.testing import FaultyStorage
from tests.support.until import until

RECORD = [(b"k", b"v")]
Tasks = list[Callable[[], None]]


def start(storage: FaultyStorage) -> LogManager:
    return LogManager(["/d", "/e"], storage=storage, background=False)


def failed_in_a_sync() -> FaultyStorage:
    """Two logs of ten batches, of which the kernel shows all and the disk has none."""
    storage = FaultyStorage()
    manager = start(storage)
    for number in range(2):
        log = manager.get_or_create("t", number)
        for _ in range(10):
            log.append(RECORD)
    storage.fail("sync", "*.log", times=2)
    for log in manager.logs.values():
        with pytest.raises(StorageFailedError):
            log.flush()
    manager.crash()
    storage.crash(mode="all_kept")
    return storage


def unwritten(manager: LogManager) -> list[int]:
    return [log.flusher.unwritten_bytes for log in logs(manager)]


def logs(manager: LogManager) -> list[PartitionLog]:
    return [manager.get("t", number) for number in range(2)]


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch) -> Tasks:
    """What is left to the flusher, which stands still."""
    found: Tasks = []
    monkeypatch.setattr(LaterThread, "submit", lambda self, task: found.append(task))
    return found


def test_in_the_background() -> None:
    storage = failed_in_a_sync()
    manager = start(storage)
    until(lambda: unwritten(manager) == [0, 0])
    assert [log.recovery_point for log in logs(manager)] == [0, 0]
    for log in logs(manager):
        storage.evict(log.segments[-1].log_path)
        assert len(list(log.records())) == 10
    manager.crash()


def test_other_tasks_come_in_between(tasks: Tasks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duties, "WRITTEN_AT_ONCE", 1)
    storage = failed_in_a_sync()
    tasks.clear()
    manager = start(storage)
    size = logs(manager)[0].size
    assert unwritten(manager) == [size, size]
    left = []
    while tasks:
        tasks.pop(0)()
        left.append(sum(unwritten(manager)))
        assert len(tasks) <= 1
    assert left == [size, 0, 0]  # a window is larger than a log
    manager.crash()


def test_a_clean_start_leaves_nothing_to_do(tasks: Tasks) -> None:
    storage = failed_in_a_sync()
    start(storage).close()
    tasks.clear()
    manager = start(storage)
    assert (tasks, unwritten(manager)) == ([], [0, 0])
    manager.crash()


def test_a_stop_does_not_wait_for_the_background(tasks: Tasks) -> None:
    storage = failed_in_a_sync()
    tasks.clear()
    manager = start(storage)
    manager.close()
    tasks.pop()()  # late
    storage.crash(mode="all_lost")
    manager = start(storage)
    assert [report.clean for report in manager.recovery_reports] == [True, True]
    assert [len(list(log.records())) for log in logs(manager)] == [10, 10]
    manager.crash()


@pytest.mark.parametrize("fault", [("write", errno.EIO), ("write", errno.ENOSPC)])
def test_a_disk_that_refuses_is_offline(tasks: Tasks, fault: tuple[str, int]) -> None:
    """Its records are nowhere else, and the other directory goes on."""
    storage = failed_in_a_sync()
    tasks.clear()
    manager = start(storage)
    storage.fail(fault[0], "/d/*.log", error=fault[1])
    while tasks:
        tasks.pop(0)()
    assert list(manager.offline_directories) == ["/d"]
    assert [log.flusher.unwritten_bytes for log in manager.logs.values()] == [0]
    manager.crash()
