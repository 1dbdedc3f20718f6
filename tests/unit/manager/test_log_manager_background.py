"""The work of a log manager that nobody asks for, and its end beside everybody else's work."""

from __future__ import annotations

import gc
import logging
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import pytest

from checkpoints.offset_checkpoint import RECOVERY_POINT, OffsetCheckpoint
from logstore.common.config import BrokerConfig, LogConfig
from logstore.common.errors import LogClosedError, StorageFailedError
from logstore.common.parallel import LaterThread
from logstore.common.types import TopicPartition
from logstore.log import PartitionLog, run_inline
from logstore.manager import LogManager
from logstore.manager.directories import Directories
from logstore.manager.duties import (
    BACKGROUND,
    CHECKPOINT_PAUSE_MS,
    RECOVERY_POINT_CHECKPOINT,
    SHORTEST_WAIT_MS,
    Duty,
    Housekeeper,
    Schedule,
    log_duties,
)
from logstore.storage.local import LocalStorage
from tests.support.builders import batch
from tests.support.leftovers import nothing_left
from tests.support.until import patience, until
from tests.support.waiting import race
from tests.unit.manager.test_log_manager import Machine

T0 = TopicPartition("t", 0)
SOON = BrokerConfig(log_initial_task_delay_ms=0, log_flush_offset_checkpoint_interval_ms=50)


def background(threads: list[threading.Thread]) -> list[threading.Thread]:
    return [thread for thread in threads if thread.name == "logstore-background"]


def recovery_points(directory: Path) -> dict[TopicPartition, int]:
    return OffsetCheckpoint(str(directory / RECOVERY_POINT), LocalStorage()).read()


class TestByDefault:
    def test_flush_ms_is_kept(self, tmp_path: Path) -> None:
        """From the first append on, whatever the delay of other work at the start."""
        with LogManager([tmp_path], LogConfig(flush_ms=20)) as manager:
            log = manager.get_or_create("t", 0)
            log.append([(b"k", b"v")])
            until(lambda: log.recovery_point == 1)

    def test_flush_ms_of_a_topic_is_kept(self, tmp_path: Path) -> None:
        with LogManager([tmp_path]) as manager:
            (log,) = manager.create_topic("t", 1)
            log.append([(b"k", b"v")])
            manager.alter_topic("t", {"flush.ms": "20"})
            until(lambda: log.recovery_point == 1)

    def test_recovery_points_reach_the_disk(self, tmp_path: Path) -> None:
        with LogManager([tmp_path], broker_config=SOON) as manager:
            log = manager.get_or_create("t", 0)
            log.append([(b"k", b"v")])
            log.flush()
            until(lambda: recovery_points(tmp_path) == {T0: 1})

    def test_a_rolled_segment_need_not_be_looked_through_again(self, tmp_path: Path) -> None:
        """Soon after it was flushed, not only when the next checkpoint is due."""
        with LogManager([tmp_path]) as manager:
            log = manager.get_or_create("t", 0)
            log.append([(b"k", b"v")])
            log.roll()
            until(lambda: recovery_points(tmp_path) == {T0: 1})

    def test_there_is_no_thread_without(self, tmp_path: Path) -> None:
        with nothing_left(tmp_path) as threads, LogManager([tmp_path], background=False):
            assert not background(threads)

    def test_it_can_be_started(self, tmp_path: Path) -> None:
        with (
            nothing_left(tmp_path) as threads,
            LogManager([tmp_path], LogConfig(flush_ms=20), background=False) as manager,
        ):
            manager.start()
            manager.start()
            assert len(background(threads)) == 1
            log = manager.get_or_create("t", 0)
            log.append([(b"k", b"v")])
            until(lambda: log.recovery_point == 1)

    @pytest.mark.filterwarnings("ignore::ResourceWarning")
    def test_a_manager_that_nobody_holds_is_collected(self, tmp_path: Path) -> None:
        with nothing_left() as threads:
            manager = LogManager([tmp_path], background=True)
            manager.create_topic("t", 1)
            assert background(threads)
            gone = weakref.ref(manager)
            del manager
            gc.collect()
            assert gone() is None
        LogManager([tmp_path], background=False).close()  # it has not kept the lock


class TestSchedule:
    """With a clock that stands still until it is told."""

    def schedule(self, machine: Machine, manager: LogManager, **config: int) -> Schedule:
        own = BrokerConfig(**config)
        duties = log_duties(manager.housekeeper, manager.cleaner, own)
        mine = [duty for duty in duties if duty.thread == BACKGROUND]
        return Schedule(mine, machine.clock, own.log_initial_task_delay_ms)

    def test_the_first_round_waits_except_for_flushes(self) -> None:
        machine = Machine(flush_ms=100)
        manager = machine.start()
        schedule = self.schedule(machine, manager)
        log = manager.get_or_create(*T0)
        log.append_as_leader(batch(), 0)
        machine.clock.advance(100)
        schedule.run_due()
        assert log.recovery_point == 1
        assert machine.storage.info(f"/logs/{RECOVERY_POINT}") is None
        machine.clock.advance(30_000)
        schedule.run_due()
        assert machine.storage.info(f"/logs/{RECOVERY_POINT}") is not None
        manager.close()

    def test_it_comes_again_when_the_next_log_is_due(self) -> None:
        """testTimeBasedFlush (F-221)."""
        machine = Machine()
        manager = machine.start()
        schedule = self.schedule(machine, manager)
        assert schedule.run_due() == 30_000  # until the first round of all others
        slow, fast = manager.create_topic("t", 2)
        manager.alter_topic("t", {"flush.ms": "700"})
        assert schedule.run_due() == 700
        slow.append_as_leader(batch(), 0)
        machine.clock.advance(300)
        assert schedule.run_due() == 400
        fast.reconfigure(LogConfig(flush_ms=50))
        assert schedule.run_due() == 50
        machine.clock.advance(395)
        assert schedule.run_due() == SHORTEST_WAIT_MS
        assert slow.log_end_offset > slow.recovery_point
        machine.clock.advance(5)
        schedule.run_due()
        assert slow.log_end_offset == slow.recovery_point
        manager.close()

    def test_logs_are_looked_at_once_a_turn(self) -> None:
        """There may be thousands, and a turn a second."""
        looks: list[int] = []
        rounds: list[int] = []
        waits = [700, 0, 50]

        def may_wait_ms() -> int:
            looks.append(1)
            return waits[len(looks) - 1]

        duty = Duty("flush", 60_000, lambda: rounds.append(1), BACKGROUND, may_wait_ms=may_wait_ms)
        schedule = Schedule([duty], Machine().clock, 60_000)
        assert schedule.run_due() == 700
        assert (len(looks), len(rounds)) == (1, 0)
        assert schedule.run_due() == 50  # it was due, and is so again as the logs say then
        assert (len(looks), len(rounds)) == (3, 1)

    def test_a_task_that_fails_does_not_end_the_others(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        machine = Machine(flush_ms=100)
        manager = machine.start()

        def broken(self: Housekeeper) -> int:
            raise ZeroDivisionError

        monkeypatch.setattr(Housekeeper, "clean_up", broken)
        schedule = self.schedule(machine, manager, log_initial_task_delay_ms=0)
        log = manager.get_or_create(*T0)
        log.append_as_leader(batch(), 0)
        machine.clock.advance(100)
        with pytest.raises(ZeroDivisionError):
            schedule.run_due()
        schedule.run_due()
        assert log.recovery_point == 1
        manager.close()

    def test_a_thread_outlives_a_task_that_fails(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def broken(self: Housekeeper) -> int:
            raise ZeroDivisionError

        monkeypatch.setattr(Housekeeper, "clean_up", broken)
        soon = BrokerConfig(log_initial_task_delay_ms=0)
        with LogManager([tmp_path], LogConfig(flush_ms=20), broker_config=soon) as manager:
            log = manager.get_or_create("t", 0)
            log.append([(b"k", b"v")])
            until(lambda: log.recovery_point == 1)
            until(lambda: "ZeroDivisionError" in caplog.text)

    def test_rolls_ask_for_a_checkpoint_at_most_once_a_second(self) -> None:
        machine = Machine()
        manager = machine.start()
        schedule = self.schedule(machine, manager)
        written = []
        log = manager.get_or_create(*T0)
        for _ in range(10):
            log.append_as_leader(batch(), 0)
            log.flush()
            schedule.hurry(RECOVERY_POINT_CHECKPOINT, CHECKPOINT_PAUSE_MS)
            machine.clock.advance(300)
            schedule.run_due()
            written.append(OffsetCheckpoint(f"/logs/{RECOVERY_POINT}", machine.storage).read())
        points = [found.get(T0) for found in written]
        assert points == [1, 1, 1, 1, 5, 5, 5, 5, 9, 9]
        manager.close()

    def test_a_log_that_failed_is_left_alone(self, caplog: pytest.LogCaptureFixture) -> None:
        machine = Machine(flush_ms=0)
        manager = machine.start()
        schedule = self.schedule(machine, manager)
        log = manager.get_or_create(*T0)
        log.append_as_leader(batch(), 0)
        log.crash()
        caplog.set_level(logging.ERROR)
        assert schedule.run_due() == 30_000
        assert not caplog.records
        manager.close()


class TestClosing:
    @pytest.mark.parametrize("attempt", range(5))
    def test_an_appender_meets_the_end_of_its_log(self, attempt: int, tmp_path: Path) -> None:
        """Also one whose append rolls: the flush of the segment comes too late, and is dropped."""
        manager = LogManager([tmp_path], LogConfig(segment_bytes=3000))
        log = manager.get_or_create("t", 0)
        begun = threading.Event()

        def append() -> None:
            while True:
                log.append([(b"k", b"v" * 400)] * 3)
                begun.set()

        def close() -> None:
            begun.wait(patience())
            manager.close()

        with pytest.raises(LogClosedError):
            race(append, close)
        with LogManager([tmp_path]) as again:
            assert again.get("t", 0).recovery_report.clean
            assert again.get("t", 0).log_end_offset == log.log_end_offset

    def test_from_several_threads_each_returns_when_all_is_closed(self, tmp_path: Path) -> None:
        manager = LogManager([tmp_path])
        logs = manager.create_topic("t", 20)

        def close() -> None:
            manager.close()
            assert all(log.failed for log in logs)
            assert (tmp_path / ".kafka_cleanshutdown").exists()

        race(close, close, close)
        manager.close()

    def test_beside_creations_and_deletions(self, tmp_path: Path) -> None:
        """What was made before the end is there; nothing is made after it."""
        manager = LogManager([tmp_path])
        made: list[int] = []

        def change() -> None:
            for number in range(10**6):
                manager.get_or_create("t", number)
                if number % 3:
                    manager.delete("t", number)
                else:
                    made.append(number)

        def close() -> None:
            until(lambda: len(made) > 5)
            manager.close()

        with pytest.raises(LogClosedError):
            race(change, close)
        with LogManager([tmp_path]) as again:
            assert set(made) <= set(again.topics()["t"])
            assert all(report.clean for report in again.recovery_reports)

    def test_there_is_nothing_after_it(self, tmp_path: Path) -> None:
        with nothing_left(tmp_path):
            manager = LogManager([tmp_path])
            manager.create_topic("t", 1)
            manager.close()
        assert manager.logs == {}
        for use in (
            lambda: manager.get("t", 0),
            lambda: manager.get_or_create("t", 0),
            lambda: manager.create_topic("u", 1),
            lambda: manager.delete_topic("t"),
            lambda: manager.alter_topic("t", {}),
        ):
            with pytest.raises(LogClosedError):
                use()
        with nothing_left(tmp_path) as threads:
            manager.start()
        assert not background(threads)

    def test_tasks_for_later_are_dropped_after_it(self) -> None:
        later, ran = LaterThread("x"), threading.Event()
        later.submit(ran.set)
        later.close()
        assert ran.is_set()
        later.submit(lambda: pytest.fail("it ran"))
        later.close()


class TestFailures:
    def test_the_lock_of_a_directory_is_given_up_later(self) -> None:
        """Who meets the failure may hold the lock of a log: no disk is waited for."""
        machine = Machine("/a", "/b")
        manager = machine.start()
        first, _ = manager.create_topic("t", 2)
        first.append_as_leader(batch(), 0)
        machine.storage.fail("sync", f"{first.directory}/*.log")
        with pytest.raises(StorageFailedError):
            first.flush()
        assert manager.live_directories == ["/b"]
        assert machine.later
        for task in machine.later:
            task()
        machine.storage.heal()
        machine.directories = ("/a",)
        machine.start().close()
        manager.close()


def test_a_removal_that_failed_is_tried_again() -> None:
    machine = Machine()
    machine.storage.make_dir("/logs/t-0.x-delete")
    pending = Directories(machine.storage, run_inline, None)
    for path in ("/logs/t-0.x-delete", "/logs/missing"):
        pending.remove_later(5, path)
    assert pending.purge(4) == 0
    machine.storage.fail("remove", "*")
    machine.storage.fail("list", "*-delete")
    assert pending.purge(5) == 0
    machine.storage.heal()
    assert pending.purge(60_004) == 0
    assert pending.purge(60_005) == 1


AT_THE_END = """
import atexit, sys
from logstore import LogManager, PartitionLog

manager = LogManager([sys.argv[1]])
logs = manager.create_topic("orders", 3)


class Last:
    def __init__(self, log):
        self.log = log

    def __del__(self):  # while the interpreter takes its modules apart
        self.log.flush()
        self.log.close()


last = Last(PartitionLog.open(sys.argv[2]))
last.log.append([(None, b"last")])


@atexit.register
def close():
    logs[0].append([(None, b"first")], sync=True)
    manager.close()
"""


def test_the_end_of_the_interpreter(tmp_path: Path) -> None:
    """What an exit handler or a finalizer calls neither fails nor hangs."""
    command = [sys.executable, "-c", AT_THE_END, tmp_path / "all", tmp_path / "one" / "orders-0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience())
    assert (done.returncode, done.stderr) == (0, "")
    with LogManager([tmp_path / "all"], background=False) as manager:
        assert all(report.clean for report in manager.recovery_reports)
    with PartitionLog.open(tmp_path / "one" / "orders-0") as log:
        assert [record.value for record in log.records()] == [b"last"]
