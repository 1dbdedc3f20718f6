"""A name may stand for one log after the other: nothing of the first says anything of the next."""

from __future__ import annotations

import threading

import pytest

from checkpoints.offset_checkpoint import (
    CLEANER,
    HIGH_WATERMARK,
    LOG_START,
    RECOVERY_POINT,
    OffsetCheckpoint,
)
from logstore.common.errors import LogClosedError, StorageFailedError
from logstore.common.types import TopicPartition
from logstore.log import PartitionLog
from logstore.manager import LogManager
from logstore.testing import SimulatedCrash
from tests.support.builders import all_offsets, batch
from tests.support.until import patience
from tests.unit.manager.test_log_manager import Machine

T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)
NAMES = (RECOVERY_POINT, LOG_START, HIGH_WATERMARK, CLEANER)


def stored(machine: Machine, name: str, directory: str = "/logs") -> dict[TopicPartition, int]:
    return OffsetCheckpoint(f"{directory}/{name}", machine.storage).read()


def store(machine: Machine, offsets: dict[TopicPartition, int], *names: str) -> None:
    for name in names or NAMES:
        OffsetCheckpoint(f"/logs/{name}", machine.storage).write(offsets)


def fill(log: PartitionLog, count: int, value: bytes = b"x") -> None:
    for _ in range(count):
        log.append_as_leader(batch(value=value), 0)


def killed(machine: Machine, manager: LogManager) -> None:
    machine.storage.crash(mode="all_kept")
    manager.crash()


def with_entries(machine: Machine, count: int = 60) -> LogManager:
    """Two partitions, and an entry of each in all four checkpoints."""
    machine.start().close()
    store(machine, {T0: 5, T1: 5}, CLEANER)
    for tp in (T0, T1):
        machine.storage.make_dir(f"/logs/{tp}")
    manager = machine.start(replicated=True)
    for tp in (T0, T1):
        log = manager.get(*tp)
        fill(log, count)
        log.flush()
        log.replica.update_high_watermark(50)
        log.delete_records(50)
    manager.housekeeper.checkpoint_recovery_points()
    manager.housekeeper.checkpoint_high_watermarks()
    assert all(stored(machine, name).keys() == {T0, T1} for name in NAMES)
    return manager


class TestDeletion:
    def test_drops_all_entries_before_it_returns(self) -> None:
        machine = Machine()
        manager = with_entries(machine)
        manager.delete(*T0)
        assert all(stored(machine, name).keys() == {T1} for name in NAMES)
        machine.storage.crash(mode="all_lost")
        assert all(stored(machine, name).keys() == {T1} for name in NAMES)
        manager.crash()

    @pytest.mark.parametrize("mode", ["all_kept", "all_lost"])
    def test_at_each_step_of_a_crash_there_is_the_log_or_no_log(self, mode: str) -> None:
        """And what it left says nothing of a log made by that name."""
        step, done = 0, False
        while not done:
            step += 1
            machine = Machine()
            manager = with_entries(machine)
            machine.storage.crash_after(step)
            try:
                manager.delete(*T0)
                done = True
            except SimulatedCrash:
                pass
            machine.storage.heal()
            machine.storage.crash(mode=mode)  # type: ignore[arg-type]
            manager.crash()
            manager = machine.start(replicated=True)
            if T0 in manager.logs:
                log = manager.get(*T0)
                assert not done
                assert (log.log_start_offset, log.log_end_offset) == (50, 60)
                assert (log.recovery_point, log.high_watermark) == (60, 50)
                manager.delete(*T0)
            fill(manager.get_or_create(*T0), 3)
            killed(machine, manager)
            manager = machine.start(replicated=True)
            log = manager.get(*T0)
            assert (log.log_start_offset, log.log_end_offset) == (0, 3)
            assert (log.recovery_point, log.high_watermark) == (0, 0)
            manager.crash()
        assert step > 8

    def test_a_flush_of_the_next_log_syncs_it(self) -> None:
        """With the recovery point of the log before, it would find nothing to do."""
        machine = Machine()
        manager = with_entries(machine)
        manager.delete(*T0)
        fill(manager.get_or_create(*T0), 60)
        killed(machine, manager)
        manager = machine.start(replicated=True)
        manager.get(*T0).flush()
        manager.housekeeper.checkpoint_recovery_points()
        machine.storage.crash(mode="all_lost")
        manager.crash()
        with machine.start(replicated=True) as manager:
            assert manager.get(*T0).log_end_offset == 60

    def test_who_has_the_log_meets_its_end(self) -> None:
        machine = Machine()
        with machine.start() as manager:
            (log,) = manager.create_topic("t", 1)
            fill(log, 1)
            manager.delete(*T0)
            with pytest.raises(LogClosedError):
                log.append_as_leader(batch(), 0)
            with pytest.raises(LogClosedError):
                log.read(0)

    def test_one_write_serves_a_whole_topic(self) -> None:
        machine = Machine()
        manager = with_entries(machine)
        before = machine.storage.operations
        manager.delete_topic("t")
        # Two renames and their sync; of four checkpoints each file, its sync, name and directory.
        assert machine.storage.operations - before <= 3 + 4 * 6
        assert all(stored(machine, name) == {} for name in NAMES)
        manager.crash()

    def test_a_disk_that_refuses_takes_the_directory_offline(self) -> None:
        machine = Machine()
        manager = with_entries(machine)
        machine.storage.fail("sync", f"/logs/{LOG_START}*")
        with pytest.raises(StorageFailedError):
            manager.delete(*T0)
        assert list(manager.offline_directories) == ["/logs"]
        manager.crash()


class TestLoading:
    def test_entries_without_a_directory_are_dropped_at_once(self) -> None:
        machine = Machine()
        machine.start().close()
        store(machine, {TopicPartition("gone", 0): 500})
        with machine.start() as manager:
            assert all(stored(machine, name) == {} for name in NAMES)
            log = manager.get_or_create("gone", 0)
            assert (log.log_start_offset, log.log_end_offset) == (0, 0)

    def test_a_future_log_keeps_its_entries(self) -> None:
        """Kafka moves a log through a ``-future`` directory; its recovery point is here already."""
        machine = Machine()
        machine.start().close()
        machine.storage.make_dir(f"/logs/t-0.{'ab' * 16}-future")
        store(machine, {T0: 7}, RECOVERY_POINT)
        manager = machine.start()
        assert stored(machine, RECOVERY_POINT) == {T0: 7}
        assert not manager.logs
        log = manager.get_or_create(*T0)  # another log: not that one's
        assert stored(machine, RECOVERY_POINT) == {}
        assert log.log_end_offset == 0
        manager.close()

    @pytest.mark.parametrize("suffix", ["-stray", "-future", "-delete"])
    def test_set_aside_directories_are_no_logs(self, suffix: str) -> None:
        machine = Machine()
        machine.start().close()
        machine.storage.make_dir(f"/logs/t-0.{'ab' * 16}{suffix}")
        with machine.start() as manager:
            assert not manager.logs

    def test_a_high_watermark_above_the_log_is_told(self) -> None:
        """And lowered on the disk: the log may grow to it with other records (F-13, F-250)."""
        machine = Machine()
        manager = with_entries(machine)
        killed(machine, manager)
        store(machine, {T0: 90, T1: 50}, HIGH_WATERMARK)
        manager = machine.start(replicated=True)
        log = manager.get(*T0)
        assert log.high_watermark == 60
        assert log.recovery_report.warnings == ["high watermark 90 is above the log end 60"]
        assert not manager.get(*T1).recovery_report.warnings
        assert stored(machine, HIGH_WATERMARK) == {T0: 60, T1: 50}
        manager.crash()

    def test_a_recovery_point_above_the_log_is_lowered(self) -> None:
        machine = Machine()
        manager = with_entries(machine)
        killed(machine, manager)
        store(machine, {T0: 90, T1: 60}, RECOVERY_POINT)
        manager = machine.start(replicated=True)
        fill(manager.get(*T0), 40)
        killed(machine, manager)
        manager = machine.start(replicated=True)
        assert manager.get(*T0).recovery_point < 60
        manager.crash()

    def test_recovery_points_that_cannot_be_read_cost_time_alone(self) -> None:
        """shouldThrowIfVersionIsNotRecognised: as if there were none (F-32)."""
        machine = Machine()
        with machine.start() as manager:
            fill(manager.get_or_create(*T0), 1)
        machine.storage.write_file(f"/logs/{RECOVERY_POINT}", b"1\n1\nt 0 1\n")
        machine.storage.remove("/logs/.kafka_cleanshutdown")
        with machine.start() as manager:
            assert manager.get(*T0).recovery_point == 0
            assert all_offsets(manager.get(*T0)) == [0]

    def test_a_directory_in_the_place_of_its_identity_concerns_a_log_directory(self) -> None:
        machine = Machine("/a", "/b")
        machine.start().close()
        machine.storage.remove("/a/meta.properties")
        machine.storage.make_dir("/a/meta.properties")
        with machine.start() as manager:
            assert manager.live_directories == ["/b"]
            assert "/a/meta.properties" in str(manager.offline_directories["/a"])
            manager.create_topic("t", 2)

    def test_a_directory_of_no_log_is_left_alone(self, caplog: pytest.LogCaptureFixture) -> None:
        machine = Machine()
        names = ["lost+found", "a b-0", "-0", "t-00", "t-2147483648", "t-0\n", "\udcff-0", "t"]
        for name in names:
            machine.storage.make_dir(f"/logs/{name}")
        for _ in range(2):
            caplog.clear()
            with machine.start() as manager:
                manager.get_or_create(*T0)
                assert list(manager.logs) == [T0]
            warnings = [record.getMessage() for record in caplog.records]
            assert [sum(repr(name) in text for text in warnings) for name in names] == [1] * 8
            assert all(text.isprintable() and text.isascii() for text in warnings)
        for name in names:
            assert machine.storage.info(f"/logs/{name}") is not None
        assert machine.storage.info("/logs/.kafka_cleanshutdown") is not None


class TestCreation:
    def test_a_directory_in_the_way_is_set_aside(self) -> None:
        """It is nobody's that we know: neither taken over nor removed."""
        machine = Machine()
        with machine.start() as manager:
            machine.storage.make_dir("/logs/t-0")
            machine.storage.write_file("/logs/t-0/00000000000000000000.log", batch())
            assert manager.get_or_create(*T0).log_end_offset == 0
            names = [entry.name for entry in machine.storage.scan_dir("/logs") if entry.is_dir]
            (stray,) = [name for name in names if name.endswith("-stray")]
            assert machine.storage.read_file(f"/logs/{stray}/00000000000000000000.log") == batch()


class TestBeginningAnew:
    @pytest.mark.parametrize("by", ["truncate_fully", "truncate_to"])
    def test_the_log_forgets_what_is_stored_of_it(self, by: str) -> None:
        """But not what was deleted, where that stays in its files."""
        machine = Machine()
        manager = with_entries(machine)
        log = manager.get(*T0)
        if by == "truncate_fully":
            log.maintenance.truncate_fully_and_start_at(0)
        else:
            log.truncate_to(50)
            assert log.log_end_offset == 50
        start = 0 if by == "truncate_fully" else 50
        starts = {T0: 50} if start else {}
        for name in NAMES:
            kept = {tp: offset for tp, offset in stored(machine, name).items() if tp != T1}
            assert kept == (starts if name == LOG_START else {})
        fill(log, 60 - log.log_end_offset)
        killed(machine, manager)
        manager = machine.start(replicated=True)
        log = manager.get(*T0)
        assert (log.recovery_point, log.high_watermark, log.log_start_offset) == (start,) * 3
        assert log.log_end_offset == 60
        manager.crash()

    def test_a_checkpoint_meanwhile_leaves_it_out(self) -> None:
        """The log shows its new offsets, its old records may still come back: another thread that
        checkpoints writes the entries of the old ones, until these are gone."""
        machine = Machine()
        manager = with_entries(machine)
        log = manager.get(*T0)
        log_dir = manager._directories.live()[0]
        seen: list[dict[TopicPartition, int]] = []
        before = [stored(machine, name) for name in NAMES[:3]]

        def checkpoint() -> None:
            log_dir.offsets.write_recovery_points(log_dir.items)
            manager.housekeeper.checkpoint_high_watermarks()
            seen.extend(stored(machine, name) for name in NAMES[:3])

        rename = machine.storage.rename

        def beside(source: str, target: str) -> None:
            if target.endswith(".log.deleted"):
                thread = threading.Thread(target=checkpoint)
                thread.start()
                thread.join(patience())
                assert not thread.is_alive()
            rename(source, target)

        machine.storage.rename = beside  # type: ignore[method-assign]
        log.maintenance.truncate_fully_and_start_at(0)
        assert seen == before
        assert all(stored(machine, name).keys() == {T1} for name in NAMES)
        fill(log, 3)
        log.flush()
        manager.housekeeper.checkpoint_recovery_points()
        assert stored(machine, RECOVERY_POINT)[T0] == 3
        manager.crash()

    def test_where_nothing_is_cut_it_is_not_left_out(self) -> None:
        """A follower cuts its empty log at its start; what it gets then is checkpointed again."""
        machine = Machine()
        manager = machine.start()
        log = manager.get_or_create(*T0)
        log.truncate_to(0)
        fill(log, 5)
        log.flush()
        manager.housekeeper.checkpoint_recovery_points()
        assert stored(machine, RECOVERY_POINT) == {T0: 5}
        manager.crash()

    def test_a_disk_that_refuses_to_forget_takes_no_new_records(self) -> None:
        """The old ones are gone, as was asked; a log that begins where they ended is left."""
        machine = Machine()
        manager = with_entries(machine)
        log = manager.get(*T0)
        machine.storage.fail("sync", f"/logs/{LOG_START}*")
        with pytest.raises(StorageFailedError):
            log.maintenance.truncate_fully_and_start_at(0)
        assert list(manager.offline_directories) == ["/logs"]
        killed(machine, manager)
        manager = machine.start(replicated=True)
        assert all_offsets(manager.get(*T0)) == []
        assert manager.get(*T0).log_start_offset == 50
        manager.crash()


class TestDeletedRecords:
    def test_that_were_never_flushed_may_be_damaged(self) -> None:
        """The recovery point stands at the log start, and says nothing of the segments below: a
        roll there was not settled, however high the recovery point is."""
        machine = Machine()
        manager = machine.start()
        log = manager.get_or_create(*T0)
        fill(log, 3)
        log.roll()
        fill(log, 3)
        log.delete_records(4)
        manager.housekeeper.checkpoint_recovery_points()
        assert stored(machine, RECOVERY_POINT) == stored(machine, LOG_START) == {T0: 4}
        killed(machine, manager)
        first = f"{log.directory}/{0:020d}.log"
        data = machine.storage.read_file(first)
        machine.storage.write_file(first, data[: len(data) // 3] + bytes(len(data) * 2 // 3))
        machine.storage.remove(f"{log.directory}/{3:020d}.snapshot")
        with machine.start() as manager:
            log = manager.get(*T0)
            assert log.log_start_offset == 4
            assert log.log_end_offset in (4, 6)  # nothing of it was flushed
            assert log.recovery_report.bytes_cut


class TestOrderOfCheckpoints:
    def test_no_recovery_points_without_the_log_starts(self) -> None:
        """A recovery point that stands at a log start says that nothing below it is needed."""
        machine = Machine()
        manager = machine.start()
        log = manager.get_or_create(*T0)
        fill(log, 20)
        manager.housekeeper.checkpoint_recovery_points()
        log.delete_records(10)
        assert log.recovery_point == 10
        machine.storage.fail("sync", f"/logs/{LOG_START}*")
        manager.housekeeper.checkpoint_recovery_points()
        assert list(manager.offline_directories) == ["/logs"]
        assert stored(machine, RECOVERY_POINT) == {T0: 0}
        manager.crash()

    def test_a_log_start_that_rises_meanwhile_stays_ahead(self) -> None:
        machine = Machine()
        manager = machine.start()
        log = manager.get_or_create(*T0)
        fill(log, 20)
        log.delete_records(5)
        rename = machine.storage.rename

        def beside(source: str, target: str) -> None:
            if target.endswith(LOG_START):
                log.delete_records(15)
            rename(source, target)

        machine.storage.rename = beside  # type: ignore[method-assign]
        manager.housekeeper.checkpoint_recovery_points()
        assert stored(machine, LOG_START) == {T0: 5}
        assert stored(machine, RECOVERY_POINT) == {T0: 5}
        manager.crash()

    def test_a_cut_writes_the_checkpoints_of_its_directories_once(self) -> None:
        machine = Machine("/a", "/b")
        manager = machine.start()
        logs = manager.create_topic("t", 8)
        for log in logs:
            fill(log, 4)
            log.flush()
        manager.housekeeper.checkpoint_recovery_points()
        written: list[str] = []
        rename = machine.storage.rename

        def counted(source: str, target: str) -> None:
            if target.endswith(RECOVERY_POINT):
                written.append(target)
            rename(source, target)

        machine.storage.rename = counted  # type: ignore[method-assign]
        cut = [log for log in logs if log.directory.startswith("/a")]
        manager.truncate_to({log.topic_partition: 2 for log in cut})
        assert written == [f"/a/{RECOVERY_POINT}"]
        found = stored(machine, RECOVERY_POINT, "/a")
        assert found == {log.topic_partition: 2 for log in cut}
        manager.crash()

    def test_a_cut_lowers_the_high_watermark_on_the_disk(self) -> None:
        machine = Machine()
        manager = with_entries(machine)
        manager.get(*T1).replica.update_high_watermark(60)
        manager.housekeeper.checkpoint_high_watermarks()
        manager.truncate_to({T1: 55})
        assert stored(machine, HIGH_WATERMARK)[T1] == 55
        manager.crash()
