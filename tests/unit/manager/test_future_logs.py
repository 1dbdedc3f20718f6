"""Logs move between the directories of a manager (X-156, KIP-113): what goes with them, and what a
crash or a failed disk leaves."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from checkpoints.offset_checkpoint import CLEANER, HIGH_WATERMARK, LOG_START, RECOVERY_POINT
from logstore.common.errors import (
    ConfigError,
    InconsistentTopicIdError,
    InvalidTopicError,
    LogClosedError,
    LogstoreError,
    StorageFailedError,
    UnknownTopicOrPartitionError,
)
from logstore.common.locks import replace_factory
from logstore.common.types import TopicPartition
from logstore.log import PartitionLog
from logstore.log.moving import LogCopy
from logstore.log.writing.state import TruncationPhase
from logstore.manager import LogManager
from logstore.testing import SimulatedCrash
from logstore.testing.faulty import FOREVER, CrashMode
from logstore.verify import Severity, verify
from tests.support.builders import batch
from tests.support.checked_locks import CheckedLock
from tests.unit.manager.test_log_manager import Machine

TP = TopicPartition("t", 0)


@pytest.fixture(autouse=True)
def checked_locks() -> Iterator[None]:
    with replace_factory(CheckedLock):
        yield


def at_once(replace: Callable[[], None]) -> bool:
    replace()
    return True


def values(log: PartitionLog) -> list[bytes | None]:
    return [record.value for record in log.records()]


def append(log: PartitionLog, *texts: bytes, epoch: int = 0) -> None:
    for text in texts:
        log.append([(b"k", text)], leader_epoch=epoch)


def move(manager: LogManager, path: str, *, piece: int = 100) -> LogCopy:
    copy = manager.futures.begin(TP, path)
    while copy.advance(piece):
        pass
    assert manager.futures.end(copy, at_once)
    return copy


def names(machine: Machine, path: str) -> list[str]:
    """The directories in a log directory, ids left out."""
    entries = machine.storage.scan_dir(path)
    found = sorted(each.name for each in entries if each.is_dir)
    return [name[:4] + name[36:] if "." in name else name for name in found]


@contextmanager
def two(**config: Any) -> Iterator[tuple[Machine, LogManager, PartitionLog]]:
    """A log in ``/a``, whose manager has ``/b``, too."""
    machine = Machine("/a", "/b", **config)
    with machine.start() as manager:
        (log,) = manager.create_topic("t", 1)
        assert log.directory == "/a/t-0"
        yield machine, manager, log


class TestMove:
    def test_a_log_moves_and_goes_on(self) -> None:
        with two(segment_bytes=300) as (machine, manager, log):
            append(log, *(b"value-%d" % n for n in range(20)))
            copy = manager.futures.begin(TP, "/b")
            assert (manager.futures.place_of(TP), copy.lag) == ("/b", 20)
            assert names(machine, "/b") == ["t-0.-future"]
            assert copy.advance(200)
            assert manager.get(*TP) is log
            append(log, b"more")
            while copy.advance(200):
                append(log, b"even more") if copy.lag > 10 else None
            assert manager.futures.end(copy, at_once)
            moved = manager.get(*TP)
            assert (moved is copy.future, moved.directory) == (True, "/b/t-0")
            assert len(moved.segments) > 2
            assert manager.futures.place_of(TP) is None
            with pytest.raises(LogClosedError, match="was moved to /b/t-0"):
                append(log, b"late")
            append(moved, *(b"after-%d" % n for n in range(20)))
            expected = values(moved)
            assert expected[:20] == [b"value-%d" % n for n in range(20)]
            assert len(expected) == moved.log_end_offset > 41
            assert names(machine, "/b") == ["t-0"]
            assert [name[-7:] for name in names(machine, "/a")] == ["-delete"]
            machine.clock.advance(60_000)
            manager.housekeeper.purge_deleted()
            assert names(machine, "/a") == []
        with machine.start() as manager:
            assert (values(manager.get(*TP)), manager.get(*TP).recovery_report.clean) == (
                expected,
                True,
            )
        assert not verify(["/a", "/b"], storage=machine.storage).findings

    def test_everything_about_it_goes_with_it(self) -> None:
        """Log start, high watermark, epochs, also one without a record, producers, topic id, role,
        configuration, checkpoints."""
        machine = Machine("/a", "/b", segment_bytes=300)
        with machine.start(replicated=True) as manager:
            log = manager.get_or_create("t", 0, config={"retention.ms": "77"})
            log.replica.lead(3)
            log.epochs.assign(3)
            producer = {"producer_id": 9, "producer_epoch": 0}
            for n in range(8):
                log.append_as_leader(batch(count=2, base_sequence=2 * n, **producer), 3)
            log.replica.update_high_watermark(12)
            log.replica.maybe_increment_log_start_offset(5)
            log.replica.lead(7)
            log.epochs.assign(7)
            manager.housekeeper.checkpoint_high_watermarks()
            before = (
                log.log_start_offset,
                log.high_watermark,
                log.log_end_offset,
                log.epochs.entries,
                log.topic_id,
                log.config,
                [(e.producer_id, e.last_sequence) for e in log.producers.entries()],
            )
            move(manager, "/b")
            moved = manager.get(*TP)
            after = (
                moved.log_start_offset,
                moved.high_watermark,
                moved.log_end_offset,
                moved.epochs.entries,
                moved.topic_id,
                moved.config,
                [(e.producer_id, e.last_sequence) for e in moved.producers.entries()],
            )
            assert after == before
            with pytest.raises(LogstoreError):
                moved.append_as_leader(batch(count=1), 3)
            moved.append_as_leader(batch(count=2, base_sequence=16, **producer), 7)
            assert machine.checkpoint("/b", HIGH_WATERMARK)[TP] == 12
            assert machine.checkpoint("/b", LOG_START)[TP] == 5
            assert machine.checkpoint("/b", RECOVERY_POINT)[TP] == 16
            assert TP not in machine.checkpoint("/a", HIGH_WATERMARK)
        machine.storage.crash(mode="all_kept")
        with machine.start(replicated=True) as manager:
            moved = manager.get(*TP)
            assert (moved.log_start_offset, moved.high_watermark) == (5, 12)
            assert moved.epochs.entries[-1][0] == 7

    def test_what_was_clean_stays_clean(self) -> None:
        with two(segment_bytes=300, cleanup_policy="compact") as (machine, manager, log):
            append(log, *(b"value-%d" % n for n in range(20)))
            manager.cleaner.clean_by_hand(TP)
            cleaned = machine.checkpoint("/a", CLEANER)[TP]
            before = values(log)
            manager.futures.begin(TP, "/b")
            move(manager, "/b")
            assert machine.checkpoint("/b", CLEANER) == {TP: cleaned}
            assert values(manager.get(*TP)) == before

    def test_there_and_back(self) -> None:
        with two() as (machine, manager, log):
            append(log, b"1")
            for path in ("/b", "/a", "/b"):
                move(manager, path)
                append(manager.get(*TP), path.encode())
            assert values(manager.get(*TP)) == [b"1", b"/b", b"/a", b"/b"]
            machine.storage.crash(mode="all_lost")
        with machine.start() as manager:
            assert manager.get(*TP).directory == "/b/t-0"

    def test_a_log_start_inside_a_batch(self) -> None:
        with two() as (_, manager, log):
            log.append([(b"k", b"%d" % n) for n in range(10)])
            log.delete_records(4)
            move(manager, "/b")
            moved = manager.get(*TP)
            assert (moved.log_start_offset, moved.log_end_offset) == (4, 10)
            assert values(moved) == [b"%d" % n for n in range(4, 10)]

    def test_an_empty_log_that_does_not_begin_at_0(self) -> None:
        with two() as (_, manager, log):
            log.maintenance.truncate_fully_and_start_at(70)
            move(manager, "/b")
            assert manager.get(*TP).log_end_offset == 70

    def test_deleted_records_are_not_copied(self) -> None:
        with two() as (_, manager, log):
            append(log, *(b"%d" % n for n in range(10)))
            copy = manager.futures.begin(TP, "/b")
            copy.advance(1)
            log.delete_records(8)
            while copy.advance(1):
                pass
            assert manager.futures.end(copy, at_once)
            assert values(manager.get(*TP)) == [b"8", b"9"]

    def test_a_truncation_in_the_middle_cuts_the_copy(self) -> None:
        """Also where the log has grown above the end of the copy again, under the same epoch."""
        with two() as (_, manager, log):
            append(log, *(b"%d" % n for n in range(10)))
            copy = manager.futures.begin(TP, "/b")
            while copy.advance(1):
                pass
            log.truncate_to(4)
            append(log, *(b"new-%d" % n for n in range(10)))
            assert not manager.futures.end(copy, at_once)
            while copy.advance(1):
                pass
            assert manager.futures.end(copy, at_once)
            expected = [b"%d" % n for n in range(4)] + [b"new-%d" % n for n in range(10)]
            assert values(manager.get(*TP)) == expected

    def test_a_truncation_while_nobody_copies(self) -> None:
        """The epochs tell: the copy goes on after a restart."""
        with two() as (machine, manager, log):
            append(log, *(b"%d" % n for n in range(10)), epoch=1)
            copy = manager.futures.begin(TP, "/b")
            while copy.advance(1):
                pass
            log.truncate_to(4)
            append(log, *(b"new-%d" % n for n in range(10)), epoch=2)
        with machine.start() as manager:
            assert manager.futures.place_of(TP) == "/b"
            move(manager, "/b")
            expected = [b"%d" % n for n in range(4)] + [b"new-%d" % n for n in range(10)]
            assert values(manager.get(*TP)) == expected

    def test_appends_in_every_gap(self) -> None:
        """What comes after the last look is copied while appends wait."""
        with two() as (_, manager, log):
            append(log, b"0")
            copy = manager.futures.begin(TP, "/b")
            assert manager.futures.end(copy, at_once)
            assert values(manager.get(*TP)) == [b"0"]

    def test_segments_that_are_replaced_under_a_read(self) -> None:
        """By the cleaner, while the rest is copied: it is read again with the next step."""
        with two() as (machine, manager, log):
            append(log, b"0")
            copy = manager.futures.begin(TP, "/b")
            fault = machine.storage.fail("read", "/a/*.log", times=FOREVER)
            assert not manager.futures.end(copy, at_once)
            assert fault.struck
            machine.storage.heal()
            assert copy.advance(100)
            assert manager.futures.end(copy, at_once)
            assert values(manager.get(*TP)) == [b"0"]

    def test_a_sync_that_meets_the_move(self) -> None:
        """The record is in the log once, and durable, when its append returns."""
        with two(flush_messages=1) as (machine, manager, log):
            append(log, b"0")
            after_append, moved = log.flusher.after_append, []

            def late(*arguments: Any, **more: Any) -> None:
                if not moved:
                    moved.append(move(manager, "/b"))
                after_append(*arguments, **more)

            log.flusher.after_append = late  # type: ignore[method-assign]
            append(log, b"1", epoch=1)  # whose file is to be written, too
            machine.storage.crash(mode="all_lost")
        with machine.start() as manager:
            log = manager.get(*TP)
            assert (log.directory, values(log)) == ("/b/t-0", [b"0", b"1"])
            assert log.epochs.entries == ((0, 0), (1, 1))

    def test_producers_whose_records_are_deleted(self) -> None:
        machine = Machine("/a", "/b", segment_bytes=300)
        with machine.start(replicated=True) as manager:
            log = manager.get_or_create("t", 0)
            producer = {"producer_id": 9, "producer_epoch": 0}
            log.append_as_leader(batch(count=2, base_sequence=0, **producer), 0)
            for _ in range(9):
                log.append_as_leader(batch(), 0)
            log.replica.update_high_watermark(11)
            log.replica.maybe_increment_log_start_offset(10)
            log.maintenance.delete_old_segments()
            move(manager, "/b")
            log = manager.get(*TP)
            assert [each.last_sequence for each in log.producers.entries()] == [1]
            duplicate = log.append_as_leader(batch(count=2, base_sequence=0, **producer), 0)
            assert duplicate.duplicate

    def test_entries_of_a_copy_that_lost_its_end(self) -> None:
        """They are lowered: else records would count as flushed that are not."""
        with two() as (machine, manager, log):
            append(log, *(b"%d" % n for n in range(10)))
            log.flush()
            copy = manager.futures.begin(TP, "/b")
            while copy.advance(1000):
                pass
            copy.future.flush()
            manager.housekeeper.checkpoint_recovery_points()
            name = f"{copy.future.directory}/{0:020d}.log"
            assert machine.checkpoint("/b", RECOVERY_POINT) == {TP: 10}
        with closing(machine.storage.open(name)) as file:
            file.truncate(file.size() // 2)
        with machine.start() as manager:
            end = manager.futures.begin(TP).future.log_end_offset
            assert end < 10
            assert machine.checkpoint("/b", RECOVERY_POINT)[TP] <= end

    def test_a_copy_that_nobody_recovered_is_not_called_clean(self) -> None:
        """A start after a crash in which nobody goes on, then a clean stop: what the copy has lost
        would be believed by the next one."""
        with two() as (machine, manager, log):
            append(log, *(b"%d" % n for n in range(10)))
            copy = manager.futures.begin(TP, "/b")
            while copy.advance(1000):
                pass
            name = f"{copy.future.directory}/{0:020d}.log"
            manager.crash()
        with closing(machine.storage.open(name)) as file:
            file.write_at(file.size() - 60, bytes(60))
        machine.start().close()
        report = verify(["/b"], storage=machine.storage)
        assert not [each for each in report.findings if each.severity is Severity.ERROR]
        with machine.start() as manager:
            assert manager.futures.begin(TP).lag
            move(manager, "/b")
            assert values(manager.get(*TP)) == [b"%d" % n for n in range(10)]

    def test_a_copy_of_what_the_log_has_lost(self) -> None:
        """Power fails where the copy is durable and the log is not; then the log gets others."""
        with two() as (machine, manager, log):
            append(log, b"0")
            log.flush()
            append(log, b"lost-1", b"lost-2")
            copy = manager.futures.begin(TP, "/b")
            while copy.advance(1000):
                pass
            assert not manager.futures.end(copy, lambda replace: False)
            manager.crash()
            machine.storage.crash(random.Random(1), "all_lost")
        with machine.start() as manager:
            append(manager.get(*TP), b"1", b"2", b"3")
            move(manager, "/b")
            assert values(manager.get(*TP)) == [b"0", b"1", b"2", b"3"]

    def test_not_now(self) -> None:
        """Appends wait while the answer is awaited, and go on after it."""
        with two() as (machine, manager, log):
            append(log, b"0")
            copy = manager.futures.begin(TP, "/b")
            phases = []

            def switch(replace: Callable[[], None]) -> bool:
                phases.append(log.state.truncation)
                return False

            assert not manager.futures.end(copy, switch)
            assert (phases, log.state.truncation) == ([TruncationPhase.HELD], TruncationPhase.NONE)
            append(log, b"1", b"2")
            assert names(machine, "/b") == ["t-0.-future"]
            assert manager.futures.end(copy, at_once)
            assert values(manager.get(*TP)) == [b"0", b"1", b"2"]


class TestEnds:
    def test_a_move_is_dropped(self) -> None:
        with two() as (machine, manager, log):
            append(log, b"0")
            copy = manager.futures.begin(TP, "/b")
            copy.advance(100)
            manager.futures.drop(TP)
            manager.futures.drop(TP)
            with pytest.raises(LogClosedError):
                copy.advance(100)
            with pytest.raises(UnknownTopicOrPartitionError):
                manager.futures.end(copy, at_once)
            assert [name[-7:] for name in names(machine, "/b")] == ["-delete"]
            manager.housekeeper.purge_deleted()
            assert names(machine, "/b") == []
            assert values(log) == [b"0"]

    def test_a_topic_is_deleted_and_comes_again(self) -> None:
        with two() as (_, manager, log):
            append(log, b"0")
            copy = manager.futures.begin(TP, "/b")
            copy.advance(100)
            manager.delete_topic("t")
            manager.create_topic("t", 1)
            with pytest.raises(LogClosedError):
                copy.advance(100)
            assert manager.futures.place_of(TP) is None
            assert values(manager.get(*TP)) == []

    def test_the_place_of_a_log_that_is_to_come(self) -> None:
        machine = Machine("/a", "/b")
        with machine.start() as manager:
            manager.futures.preferred[TP] = "/b"
            assert manager.get_or_create(*TP).directory == "/b/t-0"
            assert not manager.futures.preferred

    def test_no_such_place(self) -> None:
        with two() as (_, manager, _):
            for path in ("/c", None):
                with pytest.raises(UnknownTopicOrPartitionError):
                    manager.futures.begin(TP, path)
            with pytest.raises(UnknownTopicOrPartitionError):
                manager.futures.begin(TopicPartition("u", 0), "/b")
            manager.create_topic("x" * 240, 1)
            with pytest.raises(InvalidTopicError, match="directory name of"):
                manager.futures.begin(TopicPartition("x" * 240, 0), "/b")

    def test_the_new_disk_fails(self) -> None:
        with two() as (machine, manager, log):
            append(log, b"0")
            copy = manager.futures.begin(TP, "/b")
            machine.storage.fail("write", "/b/*", times=FOREVER)
            with pytest.raises(StorageFailedError):
                copy.advance(100)
            assert manager.live_directories == ["/a"]
            assert manager.futures.place_of(TP) is None
            append(log, b"1")
            assert values(log) == [b"0", b"1"]

    def test_the_old_disk_fails_at_the_last_step(self) -> None:
        """The new log goes on, and a start takes it for the log, too."""
        with two() as (machine, manager, log):
            append(log, b"0")
            copy = manager.futures.begin(TP, "/b")
            copy.advance(100)
            machine.storage.fail("rename", "/a/t-0", times=FOREVER)
            assert manager.futures.end(copy, at_once)
            assert manager.live_directories == ["/b"]
            append(manager.get(*TP), b"1")
        machine.storage.heal()
        with machine.start() as manager:
            assert manager.get(*TP).directory == "/b/t-0"
            assert values(manager.get(*TP)) == [b"0", b"1"]
            assert manager.live_directories == ["/a", "/b"]
            assert names(machine, "/a") == ["t-0.-delete"]

    def test_the_new_disk_fails_at_the_last_step(self) -> None:
        with two() as (machine, manager, log):
            append(log, b"0")
            copy = manager.futures.begin(TP, "/b")
            copy.advance(100)
            machine.storage.fail("rename", "/b/*-future", times=1)
            with pytest.raises(StorageFailedError):
                manager.futures.end(copy, at_once)
            append(log, b"1")
            assert values(manager.get(*TP)) == [b"0", b"1"]

    @staticmethod
    def ending(machine: Machine, manager: LogManager, *, old: str, new: str) -> None:
        """Stop where the directories ``/a`` and ``/b`` have these names."""
        copy = manager.futures.begin(TP, "/b")
        copy.advance(1000)
        future = copy.future.directory
        storage = machine.storage
        storage.fail("rename", "/a/t-0")  # so the word about the move stays
        assert manager.futures.end(copy, at_once)
        manager.crash()
        storage.heal()
        unique_id = future.rpartition(".")[2].removesuffix("-future")
        if old == "-delete":
            storage.rename("/a/t-0", f"/a/t-0.{unique_id}-delete")
        if new == "-future":
            storage.rename("/b/t-0", future)

    @pytest.mark.parametrize(("broken", "left"), [("/a", ["/b"]), ("/b", ["/a"])])
    def test_a_disk_that_fails_while_a_start_ends_a_move(
        self, broken: str, left: list[str]
    ) -> None:
        """It is offline, and the other one goes on."""
        with two() as (machine, manager, log):
            append(log, b"0")
            names_of = ("", "") if broken == "/a" else ("-delete", "-future")
            self.ending(machine, manager, old=names_of[0], new=names_of[1])
        machine.storage.fail("rename", f"{broken}/t-0*", times=FOREVER)
        with machine.start() as manager:
            assert manager.live_directories == left
            assert {tp: values(log) for tp, log in manager.logs.items()} == (
                {TP: [b"0"]} if left == ["/b"] else {}
            )
            manager.housekeeper.purge_deleted()
        machine.storage.heal()
        with machine.start() as manager:
            assert manager.get(*TP).directory == "/b/t-0"
            assert values(manager.get(*TP)) == [b"0"]

    @pytest.mark.parametrize("old", ["", "-delete"])
    def test_a_start_without_the_new_disk(self, old: str) -> None:
        """What it goes on with is the log; what it cannot go on with is kept for the next one."""
        with two() as (machine, manager, log):
            append(log, b"0")
            self.ending(machine, manager, old=old, new="-future" if old else "")
        machine.storage.fail("list", "/b", times=FOREVER)
        with machine.start() as manager:
            assert manager.live_directories == ["/a"]
            if not old:
                manager.get(*TP).append([(b"k", b"1")], sync=True, leader_epoch=1)
            machine.clock.advance(120_000)
            manager.housekeeper.purge_deleted()
        machine.storage.heal()
        with machine.start() as manager:
            assert values(manager.get(*TP)) == ([b"0"] if old else [b"0", b"1"])

    def test_two_copies_of_one_log(self) -> None:
        """Without a word about a move a start is refused, as ever (F-7)."""
        with two() as (machine, manager, log):
            append(log, b"0")
            move(manager, "/b")
        (old,) = (each.name for each in machine.storage.scan_dir("/a") if each.is_dir)
        machine.storage.rename(f"/a/{old}", "/a/t-0")
        with pytest.raises(ConfigError, match="F-7"):
            machine.start()

    def test_a_lone_copy_stays(self) -> None:
        """As in Kafka: it is cut to what the next log has."""
        with two() as (machine, manager, log):
            append(log, b"0", b"1")
            topic_id = log.topic_id
            copy = manager.futures.begin(TP, "/b")
            copy.advance(1000)
        machine.storage.remove_tree("/a/t-0")
        with machine.start() as manager:
            assert manager.futures.place_of(TP) == "/b"
            assert TP not in manager.logs
            log = manager.get_or_create(*TP, topic_id=topic_id)
            append(log, b"other", epoch=1)
            copy = manager.futures.begin(TP)
            while copy.advance(100):
                pass
            assert values(copy.future) == [b"other"]

    def test_a_lone_copy_of_another_topic_goes(self) -> None:
        with two() as (machine, manager, log):
            append(log, b"0", b"1")
            manager.futures.begin(TP, "/b").advance(1000)
        machine.storage.remove_tree("/a/t-0")
        with machine.start() as manager:
            manager.create_topic("t", 1)
            with pytest.raises(InconsistentTopicIdError):
                manager.futures.begin(TP)
            assert manager.futures.place_of(TP) is None


LIVES = 3
MODES: tuple[tuple[CrashMode, int], ...] = (
    ("all_kept", 0),
    ("all_lost", 0),
    *(("random", seed) for seed in range(LIVES)),
)


class _Life:
    """A log that moves while it is written, and what of it was promised."""

    def __init__(self) -> None:
        self.machine = Machine("/a", "/b", segment_bytes=250)
        self.appended: list[bytes] = []
        self.synced = 0

    def append(self, log: PartitionLog, *, sync: bool) -> None:
        text = b"value-%d" % len(self.appended)
        self.appended.append(text)
        log.append([(b"k", text)], sync=sync, leader_epoch=1)
        if sync:
            self.synced = len(self.appended)

    def prepare(self) -> LogManager:
        manager = self.machine.start()
        (log,) = manager.create_topic("t", 1)
        for n in range(6):
            self.append(log, sync=n == 3)
        return manager

    def move(self, manager: LogManager, path: str) -> None:
        def log() -> PartitionLog:
            return manager.get(*TP)

        copy = manager.futures.begin(TP, path)
        copy.advance(100)
        self.append(log(), sync=True)
        while copy.advance(100):
            pass
        self.append(log(), sync=False)
        while not manager.futures.end(copy, at_once):
            copy.advance(1000)
        self.append(log(), sync=False)
        self.append(log(), sync=True)
        manager.housekeeper.checkpoint_recovery_points()
        self.append(log(), sync=False)
        self.machine.clock.advance(120_000)
        manager.housekeeper.purge_deleted()

    def check(self, *, keeps_all: bool) -> None:
        """Start on what is left, and go on."""
        machine = self.machine
        manager = machine.start()
        found = values(manager.get(*TP))
        assert found == self.appended[: len(found)]
        # The last one may have reached the log before the machine went down.
        least = len(self.appended) - 1 if keeps_all else self.synced
        assert len(found) >= least, (found, self.appended, self.synced)
        live = [path for path in ("/a", "/b") if "t-0" in names(machine, path)]
        assert live == [manager.get(*TP).directory[:2]]
        self.appended, self.synced = self.appended[: len(found)], len(found)
        path = manager.futures.place_of(TP)
        if path is not None:
            copy = manager.futures.begin(TP)
            while copy.advance(100):
                pass
            assert values(copy.future) == found
            assert manager.futures.end(copy, at_once)
        self.append(manager.get(*TP), sync=True)
        manager.close()
        report = verify(["/a", "/b"], storage=machine.storage)
        assert not [each for each in report.findings if each.severity is Severity.ERROR]
        with machine.start() as manager:
            assert values(manager.get(*TP)) == self.appended


def _changes(path: str) -> int:
    life = _Life()
    manager = life.prepare()
    before = life.machine.storage.operations
    life.move(manager, path)
    manager.crash()
    return life.machine.storage.operations - before


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "seed"), MODES)
def test_a_crash_at_every_change(mode: CrashMode, seed: int) -> None:
    """One log is live, and nothing is lost that was promised: what was appended where only the
    process ends, what was synced where the power fails."""
    for count in range(1, _changes("/b") + 1):
        life = _Life()
        manager = life.prepare()
        life.machine.storage.crash_after(count)
        with pytest.raises(SimulatedCrash):
            life.move(manager, "/b")
        life.machine.storage.crash(random.Random(1000 * seed + count), mode)
        life.check(keeps_all=mode == "all_kept")


def test_verify_and_ls_of_a_move_under_way() -> None:
    """A copy is checked like a log, and is none; its checkpoint entries have a place."""
    with two(segment_bytes=300) as (machine, manager, log):
        append(log, *(b"value-%d" % n for n in range(20)))
        copy = manager.futures.begin(TP, "/b")
        copy.advance(900)
        assert not manager.futures.end(copy, lambda replace: False)
        manager.housekeeper.checkpoint_recovery_points()
        manager.housekeeper.checkpoint_high_watermarks()
        end = copy.future.log_end_offset
        assert machine.checkpoint("/b", RECOVERY_POINT) == {TP: end}
    report = verify(["/a", "/b"], storage=machine.storage)
    assert [(each.rule, each.severity) for each in report.findings] == []
    with machine.start() as manager:
        copy = manager.futures.begin(TP)
        assert (copy.future.recovery_report.clean, copy.future.log_end_offset) == (True, end)
        assert list(manager.logs) == [TP]
