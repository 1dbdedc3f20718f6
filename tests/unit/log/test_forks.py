"""A fork in the middle of a process's life: what the child has, and what the parent never sees."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest

from logstore.common.config import LogConfig
from logstore.common.errors import (
    ForkedError,
    LogClosedError,
    LogDirLockedError,
    StorageFailedError,
)
from logstore.log import PartitionLog
from logstore.manager import LogManager
from logstore.manager.duties import DutyThread
from logstore.segments import open_files
from logstore.storage import local
from logstore.testing import FaultyStorage
from tests.support.cases import for_each
from tests.support.forked import Child, ended_children, held_by_another_thread, in_child
from tests.support.until import until


@contextmanager
def orders(directory: Path, count: int = 10, **config: object) -> Iterator[PartitionLog]:
    """A log with ``count`` durable records, one in each batch."""
    with PartitionLog.open(directory / "orders-0", LogConfig(**config)) as log:  # type: ignore[arg-type]
        for number in range(count):
            log.append([(None, b"%d" % number)])
        log.flush()
        yield log


def values(log: PartitionLog) -> list[bytes | None]:
    return [record.value for record in log.records()]


def refused(call: Callable[[], object]) -> int:
    """The process that the refusal of a call names."""
    with pytest.raises(ForkedError) as caught:
        call()
    return caught.value.pid


class Gate:
    """Lets a child wait for its parent."""

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe()

    def open(self) -> None:
        os.write(self._writing, b"!")
        os.close(self._reading)
        os.close(self._writing)

    def wait(self) -> None:
        os.close(self._writing)  # so that the end of the parent ends the child, too
        assert os.read(self._reading, 1) == b"!"


# -- who owns what ---------------------------------------------------------------------------------


def test_the_error_says_who_opened_what() -> None:
    error = pickle.loads(pickle.dumps(ForkedError("/logs/orders-0", 17)))
    assert (error.name, error.pid) == ("/logs/orders-0", 17)
    assert str(error) == (
        f"/logs/orders-0 was opened by process 17, and this is process {os.getpid()}, which was "
        "forked from it: what it is to change it must open itself"
    )


def test_a_child_opens_what_is_free_and_not_what_its_parent_has(tmp_path: Path) -> None:
    def work() -> str:
        with orders(tmp_path / "own") as own:
            assert own.append([(None, b"more")], sync=True).first_offset == 10
        with pytest.raises(LogDirLockedError) as caught:
            PartitionLog.open(tmp_path / "orders-0")
        return caught.value.holder

    with orders(tmp_path) as log:
        assert in_child(work).get() == f"process {os.getpid()}"
        assert log.append([(None, b"more")]).first_offset == 10


def test_a_child_may_open_what_its_dead_parent_had(tmp_path: Path) -> None:
    def parent() -> None:
        log = PartitionLog.open(tmp_path / "orders-0")
        log.append([(None, b"durable")], sync=True)
        if os.fork():
            os._exit(0)  # without an answer, and without a close
        log.close()
        with until(opened, "the parent is gone") as own:
            own.append([(None, b"mine")], sync=True)

    def opened() -> PartitionLog | None:
        try:
            return PartitionLog.open(tmp_path / "orders-0")
        except LogDirLockedError:
            return None

    assert Child(parent).outcome().error is None
    with PartitionLog.open(tmp_path / "orders-0") as log:
        assert values(log) == [b"durable", b"mine"]


def test_a_grandchild_is_told_of_the_process_that_opened_the_log(tmp_path: Path) -> None:
    def append(to: PartitionLog) -> int:
        return refused(lambda: to.append([(None, b"?")]))

    def grandchild(own: PartitionLog) -> tuple[int, int, int]:
        return append(log), append(own), len(values(log))

    def child() -> bool:
        assert append(log) == origin
        with PartitionLog.open(tmp_path / "own/orders-0") as own:
            found = in_child(lambda: grandchild(own)).get()
        return bool(found == (origin, os.getpid(), 10))

    origin = os.getpid()
    with orders(tmp_path) as log:
        assert in_child(child).get()


def test_what_a_child_cannot_let_go_of_is_refused_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: object) -> None:
        raise OSError(5, "the server is gone")

    more = [(None, b"?")]
    with orders(tmp_path / "a") as log, orders(tmp_path / "b") as other:
        with monkeypatch.context() as patch:
            patch.setattr(local.LocalFile, "close", full)
            child = Child(lambda: [refused(partial(each.append, more)) for each in (log, other)])
        assert child.outcome().get() == [os.getpid()] * 2


def test_an_inherited_log_takes_no_room_from_the_childs_own(tmp_path: Path) -> None:
    def work() -> int:
        before = len(open_files._active)
        with orders(tmp_path / "own"):
            return len(open_files._active) - before

    with orders(tmp_path / "a"), orders(tmp_path / "b"):
        assert len(open_files._active) >= 2
        assert in_child(lambda: (len(open_files._active), work())).get() == (0, 1)


def test_the_close_of_a_child_wakes_nobody(tmp_path: Path) -> None:
    woken: list[int] = []
    with PartitionLog.open(tmp_path / "orders-0") as log:
        log.core.listeners.add(lambda: woken.append(os.getpid()))  # of a thread that waits

        def close() -> list[int]:
            log.close()
            return woken

        assert in_child(close).get() == []
        log.append([(None, b"0")])
        assert woken == [os.getpid()]


def test_a_log_that_was_over_before_the_fork_says_so(tmp_path: Path) -> None:
    with orders(tmp_path) as log:
        pass
    with pytest.raises(LogClosedError):
        in_child(lambda: log.append([(None, b"?")])).get()
    storage = FaultyStorage()
    failed = PartitionLog.open("/logs/orders-0", storage=storage)
    storage.fail("sync", "*.log")
    with pytest.raises(StorageFailedError):
        failed.append([(None, b"?")], sync=True)
    with pytest.raises(StorageFailedError):
        in_child(lambda: failed.append([(None, b"?")])).get()
    failed.close()


def test_a_log_in_memory_is_the_parents_too() -> None:
    with PartitionLog.open("/logs/orders-0", storage=FaultyStorage()) as log:
        log.append([(None, b"0")])
        with held_by_another_thread(log.segments[-1]._storage.guard):
            assert in_child(lambda: values(log)).get() == [b"0"]
        assert in_child(lambda: refused(lambda: log.append([(None, b"?")]))).get() == os.getpid()


def test_what_is_dropped_is_not_kept_for_a_fork(tmp_path: Path) -> None:
    import gc
    import weakref

    with orders(tmp_path) as log:
        writer = weakref.ref(log.writer)
    del log
    gc.collect()
    assert writer() is None


# -- threads and locks -----------------------------------------------------------------------------


def test_locks_that_other_threads_held_are_free(tmp_path: Path) -> None:
    def work() -> list[bytes | None]:
        refused(lambda: log.append([(None, b"?")]))
        refused(lambda: producer.append([(None, b"?")]))
        refused(lambda: log.producer("another"))
        refused(lambda: log.flush())
        refused(lambda: log.truncate_to(1))
        refused(lambda: log.delete_records(1))
        refused(lambda: cursor.commit(3))
        refused(lambda: list(log.follow(timeout=None)))
        assert producer.next_sequence == 0
        assert log.offset_for_timestamp(0) is not None
        found = values(log)
        log.close()
        return found

    with orders(tmp_path, index_interval_bytes=1) as log:
        cursor, producer = log.cursor("reader"), log.producer("writer")
        active = log.segments[-1]
        with ExitStack() as held:
            for lock in (
                log.producers._lock,
                producer._lock,
                log.maintenance.structure_lock,
                log.flusher.flush_lock,
                log.state.lock,
                active.offset_index._lock,
                active.time_index._lock,
                log.core.listeners._lock,
                open_files._lock,
            ):
                held.enter_context(lock)
            child = Child(work)
        assert child.outcome().get() == [b"%d" % number for number in range(10)]


def test_a_managers_locks_are_free(tmp_path: Path) -> None:
    def work() -> None:
        refused(lambda: manager.create_topic("fresh", 1))
        refused(lambda: manager.delete_topic("orders"))
        refused(lambda: manager.housekeeper.checkpoint_recovery_points())
        assert manager.topics() == {"orders": [0]}
        manager.close()

    with LogManager([tmp_path]) as manager:
        manager.create_topic("orders", 1)
        assert manager.duties is not None
        ((_, keeper, _), *_) = manager.duties._running
        assert isinstance(keeper, DutyThread)
        assert manager._flusher is not None
        (home,) = manager._directories.live()
        with (
            manager._closing,
            manager._topics.claims.of("orders"),
            home.offsets._lock,
            manager._directories._lock,
            keeper._wake._cond,
            manager._flusher._pool._shutdown_lock,
        ):
            child = Child(work)
        in_order = child.outcome()
        assert in_order.error is None, in_order
        assert manager.get("orders", 0).append([(None, b"0")]).first_offset == 0


@pytest.mark.slow
def test_forks_while_threads_append(tmp_path: Path) -> None:
    stop = threading.Event()
    ends: list[int] = []

    def append() -> None:
        while not stop.is_set():
            ends.append(log.append([(None, b"x")], sync=True).first_offset)

    def work() -> None:
        refused(lambda: log.append([(None, b"?")], sync=True))
        assert set(values(log)) <= {b"x"}
        log.close()

    with PartitionLog.open(tmp_path / "orders-0", LogConfig(segment_bytes=2048)) as log:
        threads = [threading.Thread(target=append) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(8):
                assert in_child(work).error is None
        finally:
            stop.set()
            for thread in threads:
                thread.join()
        assert sorted(ends) == list(range(log.log_end_offset))
    with PartitionLog.open(tmp_path / "orders-0") as log:
        assert log.recovery_report.clean
        assert values(log) == [b"x"] * len(ends)


def test_a_fork_in_a_thread(tmp_path: Path) -> None:
    found: list[int] = []

    def fork() -> None:
        found.append(in_child(lambda: refused(lambda: log.append([(None, b"?")]))).get())

    with orders(tmp_path) as log:
        thread = threading.Thread(target=fork)
        thread.start()
        thread.join()
        assert found == [os.getpid()]
        assert log.log_end_offset == 10


def test_workers_of_multiprocessing(tmp_path: Path) -> None:
    def work(number: int) -> None:
        try:
            log.append([(None, b"?")])
        except ForkedError:
            with PartitionLog.open(tmp_path / f"own-{number}/orders-0") as own:
                own.append(values_of_parent)
            sys.exit(3)

    context = multiprocessing.get_context("fork")
    with orders(tmp_path) as log:
        values_of_parent = [(None, value) for value in values(log)]
        workers = [context.Process(target=work, args=(number,)) for number in range(2)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert [worker.exitcode for worker in workers] == [3, 3]
        assert log.append([(None, b"more")]).first_offset == 10
    for number in range(2):
        with PartitionLog.open(tmp_path / f"own-{number}/orders-0") as own:
            assert own.log_end_offset == 10


# -- a child that leaves through the blocks of its parent ------------------------------------------


@for_each("kind", ["log", "manager", "filling"])
def test_a_child_that_unwinds_changes_nothing(kind: str, tmp_path: Path) -> None:
    gone: list[int] = []

    def fork_and_exit(*_: object) -> None:
        child = os.fork()
        if not child:
            sys.exit(7)
        gone.append(child)

    with ended_children():
        if kind == "log":
            with orders(tmp_path) as log:
                fork_and_exit()
                assert _leaves(gone) == 7
                assert not (tmp_path / "orders-0/clean-stop").exists()
                log.append([(None, b"more")])
        else:
            with LogManager([tmp_path]) as manager:
                if kind == "manager":
                    manager.create_topic("orders", 1)
                    fork_and_exit()
                else:
                    manager.create_topic("orders", 1, fill=fork_and_exit)
                assert _leaves(gone) == 7
                assert not (tmp_path / ".kafka_cleanshutdown").exists()
                manager.get("orders", 0).append([(None, b"more")])
    with LogManager([tmp_path]) as manager:
        assert values(manager.get("orders", 0))[-1] == b"more"


def _leaves(gone: list[int]) -> int:
    _, status = os.waitpid(gone[0], 0)
    return os.waitstatus_to_exitcode(status)


# -- reading in the child --------------------------------------------------------------------------


def test_an_inherited_reader_goes_on_and_never_waits(tmp_path: Path) -> None:
    def work() -> int:
        assert [record.value for record in follower.poll(3)] == [b"2", b"3", b"4"]
        assert [record.value for record in cursor.poll(1)] == [b"1"]
        assert len(follower.poll()) == 5
        assert follower.poll() == []
        assert cursor.poll(timeout=0.0) != []
        refused(lambda: follower.poll(timeout=None))
        refused(lambda: cursor.poll(timeout=60.0))
        refused(lambda: asyncio.run(first_new()))
        return refused(lambda: next(follower))

    async def first_new() -> None:
        async for _ in log.follow_async(10):
            raise AssertionError("there is none")

    with orders(tmp_path) as log:
        follower, cursor = log.follow(), log.cursor("reader")
        assert len(follower.poll(2)) == 2
        assert len(cursor.poll(1)) == 1
        assert in_child(work).get() == os.getpid()
        assert len(follower.poll(8)) == 8


def test_a_child_follows_its_parent_through_the_directory(tmp_path: Path) -> None:
    def work() -> list[bytes | None]:
        reader = PartitionLog.open_reader(tmp_path / "orders-0")
        gate.wait()
        return [record.value for record in reader.follow(9, timeout=0)]

    gate = Gate()
    with orders(tmp_path) as log:
        child = Child(work)
        log.append([(None, b"new")])
        gate.open()
        assert child.outcome().get() == [b"9", b"new"]


def test_a_child_reads_on_while_its_parent_rolls_and_appends(tmp_path: Path) -> None:
    def work() -> list[bytes | None]:
        gate.wait()
        return values(log)

    gate = Gate()
    with orders(tmp_path) as log:
        child = Child(work)
        log.append([(None, b"new")])
        log.roll()
        log.append([(None, b"new")])
        gate.open()
        assert child.outcome().get() == [b"%d" % number for number in range(10)]


def test_a_child_maps_nothing_that_its_parent_may_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_VIEW_READ_MAX", 1)
    monkeypatch.setattr(local, "_VIEW_KEPT_MIN", 1)
    maps: list[int] = []
    mapped = local.LocalFile._map_populated

    def counted(*args: int) -> object:
        maps.append(os.getpid())
        return mapped(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(local.LocalFile, "_map_populated", counted)

    def work() -> tuple[int, list[int]]:
        maps.clear()
        return len(values(log)), maps

    with orders(tmp_path) as log:
        log.roll()
        assert len(values(log)) == 10
        assert maps
        assert in_child(work).get() == (10, [])


@for_each("cut", ["shortened", "made anew", "deleted", "closed"])
def test_what_a_parent_cuts_is_an_error_of_the_child_and_never_its_end(
    cut: str, tmp_path: Path
) -> None:
    """The child has maps of the indexes, and a touch of a page that was cut off ends a process."""

    def work() -> list[bytes | None]:
        gate.wait()
        return [record.value for record in log.records(1500)]

    gate = Gate()
    with PartitionLog.open(tmp_path / "orders-0", LogConfig(index_interval_bytes=1)) as log:
        for number in range(2000):
            log.append([(None, b"%d" % number)])
        child = Child(work)
        if cut == "shortened":
            log.truncate_to(1)
            log.roll()
        elif cut == "made anew":
            log.maintenance.truncate_fully_and_start_at(0)
            log.append([(None, b"x")])
            log.roll()
            log.delete_records(1)
            log.maintenance.delete_old_segments()
        elif cut == "deleted":
            log.roll()
            log.delete_records(2000)
            log.maintenance.delete_old_segments()
            log.maintenance.purge_deleted(2**62)
        else:
            log.close()
        gate.open()
        outcome = child.outcome()
    if cut == "closed":
        assert len(outcome.get()) == 500
    elif outcome.error is None:
        assert outcome.value == [b"%d" % number for number in range(1500, 2000)]
    else:
        assert isinstance(outcome.error, ForkedError), outcome
