"""``LogManager`` for those who build on it: one thread, failed directories, epochs, ids."""

from __future__ import annotations

import errno
import gc
import os
import random
import threading
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from checkpoints import clean_shutdown
from checkpoints.offset_checkpoint import (
    HIGH_WATERMARK,
    LOG_START,
    RECOVERY_POINT,
    OffsetCheckpoint,
)
from checkpoints.types import TopicPartition
from logstore.common.config import LogConfig
from logstore.common.errors import ConfigError, LogstoreError, ResourceBusyError, StorageFailedError
from logstore.log import PartitionLog
from logstore.manager import LogManager, ManagerOwner
from logstore.manager.opener import BIRTHS_AT_ONCE
from logstore.rescue import rescue
from logstore.testing import FaultyStorage, ManualClock, SimulatedCrash
from logstore.verify import verify
from tests.support.builders import batch, log_config
from tests.support.until import patience

Task = Callable[[], None]


class Machine:
    """A disk, a clock, and a queue for what may happen later."""

    def __init__(self, *directories: str, seed: int = 1, **config: Any) -> None:
        self.storage = FaultyStorage()
        self.clock = ManualClock()
        self.rng = random.Random(seed)
        self.directories = directories or ("/logs",)
        self.config = log_config(**config)
        self.later: list[Task] = []
        self.failures: list[tuple[str, LogstoreError]] = []

    def start(self, **arguments: Any) -> LogManager:
        own = [each.name for each in fields(ManagerOwner) if each.name in arguments]
        owner: dict[str, Any] = {
            "run_later": self.later.append,
            "on_directory_failure": lambda *failure: self.failures.append(failure),
            "random_id": lambda: f"{self.rng.getrandbits(128):032x}",
            **{name: arguments.pop(name) for name in own},
        }
        options = {"storage": self.storage, "clock": self.clock, **arguments}
        return LogManager(self.directories, self.config, owner=ManagerOwner(**owner), **options)

    def marker(self, directory: str) -> int | None:
        return clean_shutdown.read(f"{directory}/{clean_shutdown.CLEAN_SHUTDOWN}", self.storage)

    def checkpoint(self, directory: str, name: str) -> dict[TopicPartition, int]:
        return OffsetCheckpoint(f"{directory}/{name}", self.storage).read()

    def tree(self, path: str = "/") -> list[tuple[str, bytes]]:
        found = []
        for entry in self.storage.scan_dir(path):
            inner = f"{path.rstrip('/')}/{entry.name}"
            found += self.tree(inner) if entry.is_dir else [(inner, self.storage.read_file(inner))]
        return found


class TestOneThread:
    def test_no_other_thread_ever_runs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        machine = Machine("/a", "/b", segment_bytes=200)
        started: list[threading.Thread] = []
        monkeypatch.setattr(threading.Thread, "start", lambda thread: started.append(thread))
        for end in (LogManager.crash, LogManager.close, LogManager.close):
            manager = machine.start()
            for partition in range(4):
                log = manager.get_or_create("t", partition)
                for _ in range(4):
                    log.append_as_leader(batch(count=2), 0)
            end(manager)
        assert started == []
        assert machine.later

    def test_the_flush_of_a_rolled_segment_waits_for_its_turn(self) -> None:
        """F-147: nothing is flushed until the task that was handed over runs."""
        machine = Machine(segment_bytes=200)
        manager = machine.start()
        log = manager.get_or_create("t", 0)
        while len(log.segments) < 2:
            log.append_as_leader(batch(count=2), 0)
        assert log.recovery_point == 0
        assert len(machine.later) == 1
        machine.later.pop()()
        assert log.recovery_point == log.segments[-1].base_offset
        manager.close()

    def test_a_task_that_comes_after_the_end_does_nothing(self) -> None:
        machine = Machine(segment_bytes=200)
        manager = machine.start()
        log = manager.get_or_create("t", 0)
        for _ in range(10):
            log.append_as_leader(batch(count=2), 0)
        manager.close()
        before = machine.tree()
        assert len(machine.later) > 1
        for task in machine.later:
            task()
        assert machine.tree() == before

    def test_a_flush_that_fails_takes_the_directory_offline(self) -> None:
        """F-224: the task itself raises nothing into the caller's loop."""
        machine = Machine(segment_bytes=200)
        manager = machine.start()
        log = manager.get_or_create("t", 0)
        while len(log.segments) < 2:
            log.append_as_leader(batch(count=2), 0)
        machine.storage.fail("sync", "*.log")
        machine.later.pop()()
        assert log.failed
        assert [path for path, _ in machine.failures] == ["/logs"]
        manager.close()

    @pytest.mark.parametrize("end", [LogManager.close, LogManager.crash])
    def test_a_crash_of_the_machine_comes_through(self, end: Callable[[LogManager], None]) -> None:
        """While loading and while closing, and what was open is let go of all the same."""
        machine = Machine()
        manager = machine.start()
        for partition in range(3):
            manager.get_or_create("t", partition).append_as_leader(batch(), 0)
        machine.storage.crash_after(3)
        with pytest.raises(SimulatedCrash):
            manager.close()
        machine.storage.crash(mode="all_kept")
        machine.storage.crash_after(6)
        with pytest.raises(SimulatedCrash):
            machine.start()
        machine.storage.crash(mode="all_kept")
        manager = machine.start()
        assert len(manager.logs) == 3
        end(manager)


class TestDirectoryFailure:
    def test_is_told_once_after_the_logs_refuse_work(self) -> None:
        """F-224, F-236 step 7: and without a lock of the manager, so another thread may ask it."""
        machine = Machine("/a", "/b")
        told: list[tuple[str, bool, list[str]]] = []

        def on_failure(path: str, failure: LogstoreError) -> None:
            assert isinstance(failure, StorageFailedError)
            refused = first.failed and third.failed and not second.failed
            live: list[list[str]] = []
            asker = threading.Thread(target=lambda: live.append([*manager.logs, "answered"]))
            asker.start()
            asker.join(patience())
            assert live
            assert live[0][-1] == "answered"
            told.append((path, refused, manager.live_directories))

        manager = machine.start(on_directory_failure=on_failure)
        first, second, third = manager.create_topic("t", 3)
        first.append_as_leader(batch(), 0)
        machine.storage.fail("sync", f"{first.directory}/*.log")
        with pytest.raises(StorageFailedError):
            first.flush()
        for log in (first, third):
            with pytest.raises(StorageFailedError):
                log.append_as_leader(batch(), 0)
        second.append_as_leader(batch(), 0)
        assert told == [("/a", True, ["/b"])]
        manager.close()
        assert (machine.marker("/a"), machine.marker("/b")) == (None, -1)

    @pytest.mark.parametrize(
        ("operation", "path"),
        [("make_dir", "/a"), ("open", "/a/t-0/*"), ("list", "/a"), ("rename", "/a/meta.*")],
    )
    def test_is_told_at_the_start_too(self, operation: str, path: str) -> None:
        """testCreateLogWithInvalidLogDir: a bad directory is passed over; all bad is fatal."""
        machine = Machine("/a", "/b")
        if operation in ("open", "list"):
            with machine.start() as manager:
                manager.create_topic("t", 4)
        machine.storage.fail(operation, path, times=9)
        manager = machine.start()
        assert [p for p, _ in machine.failures] == ["/a"]
        assert manager.live_directories == ["/b"]
        assert [log.directory[:2] for log in manager.logs.values()] in ([], ["/b", "/b"])
        manager.close()
        machine.directories = ("/a",)
        with pytest.raises(StorageFailedError):
            machine.start()

    @pytest.mark.parametrize("path", ["/a/t-0", "/a/t-0/leader-epoch-checkpoint"])
    def test_f224_is_told_when_a_log_cannot_be_created(self, path: str) -> None:
        """Whatever of it: a replica that nobody knows to have failed stays away for good."""
        machine = Machine("/a")
        manager = machine.start()
        machine.storage.fail("make_dir" if path.endswith("t-0") else "open", path)
        with pytest.raises(StorageFailedError, match="t-0"):
            manager.get_or_create("t", 0)
        assert [p for p, _ in machine.failures] == ["/a"]
        assert list(manager.offline_directories) == ["/a"]
        manager.close()

    def test_logs_that_were_loaded_before_the_failure_are_let_go_of(self) -> None:
        machine = Machine("/a", "/b")
        with machine.start() as manager:
            manager.create_topic("t", 4)
        machine.storage.remove(f"/a/{clean_shutdown.CLEAN_SHUTDOWN}")
        machine.storage.fail("read", "/a/t-2/*", times=99)
        with machine.start() as manager:
            assert list(manager.offline_directories) == ["/a"]
            assert sorted(tp.partition for tp in manager.logs) == [1, 3]
        assert machine.marker("/a") is None

    def test_a_truncation_without_its_checkpoint_is_no_truncation(self) -> None:
        """F-231: else a log start above the cut comes back after a crash."""
        machine = Machine()
        manager = machine.start()
        log = manager.get_or_create("t", 0)
        log.append_as_leader(batch(count=4), 0)
        log.append_as_leader(batch(count=4), 0)
        log.delete_records(6)
        manager.housekeeper.checkpoint_recovery_points()
        machine.storage.fail("sync", "/logs/*checkpoint*")
        with pytest.raises(StorageFailedError):
            manager.truncate_to({log.topic_partition: 4})
        assert list(manager.offline_directories) == ["/logs"]
        manager.close()

    def test_where_none_can_be_opened_the_error_alone_tells(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        paths = [tmp_path / "file" / "a", tmp_path / "file" / "b"]
        (tmp_path / "file").touch()
        with pytest.raises(StorageFailedError) as error:
            LogManager(paths[:1])
        assert (error.value.path, error.value.operation) == (str(paths[0]), "open")
        with pytest.raises(StorageFailedError, match="open any log directory failed"):
            LogManager(paths)
        assert caplog.text == ""
        with LogManager([paths[0], tmp_path / "c"]) as manager:
            assert repr(manager) == f"LogManager({paths[0]}, {tmp_path}/c)"
        assert repr(manager).endswith(", closed)")
        assert caplog.text.count("is offline") == 1

    def test_a_slash_at_the_end_of_a_directory_means_nothing(self) -> None:
        machine = Machine("/a/", "/b/")
        with machine.start() as manager:
            manager.create_topic("t", 1)
            manager.delete("t", 0)
            assert manager.live_directories == ["/a", "/b"]


class TestBrokerEpoch:
    """KIP-966: who stopped in order can say under which epoch."""

    def test_of_an_orderly_stop_is_known_at_the_next_start(self) -> None:
        machine = Machine("/a", "/b")
        manager = machine.start()
        assert manager.previous_broker_epoch == -1
        manager.close(broker_epoch=25)
        manager = machine.start()
        assert manager.previous_broker_epoch == 25
        assert (machine.marker("/a"), machine.marker("/b")) == (None, None)
        manager.close()
        manager = machine.start()
        assert manager.previous_broker_epoch == -1
        manager.crash()

    def test_is_unknown_after_a_crash(self) -> None:
        machine = Machine()
        machine.start().close(broker_epoch=3)
        machine.start().crash()
        machine.storage.crash(mode="all_kept")
        assert machine.start().previous_broker_epoch == -1

    @pytest.mark.parametrize("content", [None, b"", b"{"])
    def test_is_unknown_unless_all_directories_agree(self, content: bytes | None) -> None:
        machine = Machine("/a", "/b")
        machine.start().close(broker_epoch=7)
        marker = f"/b/{clean_shutdown.CLEAN_SHUTDOWN}"
        if content is None:
            machine.storage.remove(marker)
        else:
            machine.storage.write_file(marker, content)
        with machine.start() as manager:
            assert manager.previous_broker_epoch == -1

    def test_is_unknown_where_a_log_is_not_as_the_stop_left_it(self) -> None:
        """Whole batches are cut off it: the marker says nothing of what is left."""
        machine = Machine()
        with machine.start() as manager:
            log = manager.get_or_create("t", 0)
            for value in (b"one", b"two"):
                log.append([(None, value)])
            path = log.segments[0].log_path
            manager.close(broker_epoch=7)
        data = machine.storage.read_file(path)
        machine.storage.write_file(path, bytes(20) + data[20:])
        with machine.start() as manager:
            assert manager.get("t", 0).recovery_report.bytes_cut
            assert manager.previous_broker_epoch == -1

    @pytest.mark.parametrize("operation", ["list", "read"])
    def test_is_unknown_when_a_directory_is_offline(self, operation: str) -> None:
        """What the lost directory held may be lost: nobody may count on this broker's logs."""
        machine = Machine("/a", "/b")
        machine.start().close(broker_epoch=7)
        machine.storage.fail(operation, "/b*")
        with machine.start() as manager:
            assert list(manager.offline_directories) == ["/b"]
            assert manager.previous_broker_epoch == -1

    def test_is_unknown_when_a_directory_failed_before_the_stop(self) -> None:
        """The next start may name only those that are left, and they agree."""
        machine = Machine("/a", "/b")
        machine.storage.fail("list", "/b*")
        machine.start().close(broker_epoch=7)
        assert machine.marker("/a") is not None
        machine.directories = ("/a",)
        with machine.start() as manager:
            assert manager.previous_broker_epoch == -1


class TestRepeatable:
    def test_a_seed_repeats_every_name_and_byte(self) -> None:
        """Ids of the cluster, of directories and of topics, and the name of a deleted log."""
        trees = []
        for seed in (1, 1, 2):
            machine = Machine("/a", "/b", seed=seed, file_delete_delay_ms=10_000)
            manager = machine.start()
            manager.create_topic("t", 2)
            manager.create_topic("u", 1)
            manager.delete("t", 0)
            manager.close()
            trees.append(machine.tree())
        assert trees[0] == trees[1] != trees[2]
        names = [[path for path, _ in tree if "-delete" in path] for tree in trees]
        assert names[0]
        assert names[0] == names[1] != names[2]

    def test_the_jitter_of_a_roll_comes_from_the_same_source(self) -> None:
        """F-144: ``segment.jitter.ms`` spreads the rolls of logs that began together."""
        config = LogConfig(segment_ms=10_000, segment_jitter_ms=9_999, segment_index_bytes=1200)
        drawn = []
        for seed in (1, 1, 2):
            machine = Machine(seed=seed)
            machine.config = config
            with machine.start() as manager:
                log = manager.get_or_create("t", 0)
                log.append_as_leader(batch(), 0)
                drawn.append(log.segments[-1].state.max_segment_ms)
        assert drawn[0] == drawn[1] != drawn[2]
        assert all(1 <= ms <= 10_000 for ms in drawn)

    def test_two_directories_never_share_an_id(self) -> None:
        """F-45: a source that repeats itself would be found out at the next start."""
        machine = Machine("/a", "/b")
        machine.start(random_id=lambda: "0123456789abcdef" * 2).close()
        with pytest.raises(ConfigError, match=r"directory\.id"):
            machine.start()


class TestCheckpointOfCuts:
    """After truncations of many logs: one write of a file, and only where one is needed."""

    def _prepared(self, machine: Machine, count: int) -> tuple[LogManager, list[PartitionLog]]:
        manager = machine.start(replicated=True)
        logs = [manager.get_or_create("t", number) for number in range(count)]
        for log in logs:
            log.append_as_leader(batch(count=4), 0)
            log.append_as_leader(batch(count=4), 0)
            log.flush()
            log.replica.update_high_watermark(8)
        manager.housekeeper.checkpoint_recovery_points()
        manager.housekeeper.checkpoint_high_watermarks()
        return manager, logs

    @staticmethod
    def _writes(machine: Machine, manager: LogManager, logs: list[PartitionLog]) -> list[str]:
        written: list[str] = []
        before = machine.storage.rename

        def rename(source: str, target: str) -> None:
            written.append(os.path.basename(target))
            before(source, target)

        machine.storage.rename = rename  # type: ignore[method-assign]
        try:
            manager.housekeeper.checkpoint_truncations([log.topic_partition for log in logs])
        finally:
            del machine.storage.rename
        return written

    def test_one_write_serves_all(self) -> None:
        machine = Machine()
        manager, logs = self._prepared(machine, 20)
        for log in logs[:15]:
            log.truncate_to(4)
        assert sorted(self._writes(machine, manager, logs)) == [RECOVERY_POINT, HIGH_WATERMARK]
        points = machine.checkpoint("/logs", RECOVERY_POINT)
        assert [points[log.topic_partition] for log in logs] == [4] * 15 + [8] * 5
        assert self._writes(machine, manager, logs) == []
        manager.close()

    def test_a_tail_that_nobody_counted_on_costs_nothing(self) -> None:
        machine = Machine()
        manager, logs = self._prepared(machine, 3)
        for log in logs:
            log.append_as_leader(batch(), 0)
            log.truncate_to(8)
        assert self._writes(machine, manager, logs) == []
        manager.close()

    @pytest.mark.parametrize("name", [RECOVERY_POINT, HIGH_WATERMARK])
    def test_what_a_short_resource_prevented_is_still_owed(self, name: str) -> None:
        """Also where nobody asks again: before the first record behind the cut."""
        for asks_again in (True, False):
            machine = Machine()
            manager, (log,) = self._prepared(machine, 1)
            log.truncate_to(4)
            machine.storage.fail("open", f"*{name}*", error=errno.EMFILE)
            with pytest.raises(ResourceBusyError):
                manager.housekeeper.checkpoint_truncations([log.topic_partition])
            if asks_again:
                manager.housekeeper.checkpoint_truncations([log.topic_partition])
            else:
                log.append_as_leader(batch(), 0)
            assert machine.checkpoint("/logs", name) == {log.topic_partition: 4}
            manager.close()


class TestKept:
    """Kafka's LogManagerTest under its names: what a manager keeps of its logs over a stop."""

    def test_checkpoint_recovery_points(self) -> None:
        """testCheckpointRecoveryPoints: after a load, recovery points equal what was flushed
        (F-222, F-247)."""
        machine = Machine()
        with machine.start() as logs:
            first, second = logs.create_topic("t", 2)
            for log in (first, second):
                for _ in range(5):
                    log.append_as_leader(batch(), 0)
            first.flush()
            second.flush(3)  # the sync covers what is there; Kafka counts up to 3
            expected = {TopicPartition("t", 0): 5, TopicPartition("t", 1): 5}
            logs.housekeeper.checkpoint_recovery_points()
            assert machine.checkpoint("/logs", RECOVERY_POINT) == expected
            first.append_as_leader(batch(), 0)
            logs.crash()
        with machine.start() as logs:
            assert {tp: log.recovery_point for tp, log in logs.logs.items()} == expected
            assert logs.get("t", 0).log_end_offset == 6

    def test_clean_shutdown_file_when_shutdown_called_before_startup_complete(self) -> None:
        """testCleanShutdownFileWhenShutdownCalledBeforeStartupComplete: no marker for directories
        that were not fully loaded (F-48)."""
        machine = Machine()
        with machine.start() as logs:
            logs.create_topic("t", 3)
        assert machine.marker("/logs") is not None

        def interrupt(_: object) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            machine.start(progress=interrupt)
        assert machine.marker("/logs") is None
        with machine.start() as logs:
            assert not any(report.clean for report in logs.recovery_reports)

    def test_least_loaded_assignment(self) -> None:
        """testLeastLoadedAssignment (F-8)."""
        with Machine("/a", "/b", "/c").start() as logs:
            logs.create_topic("t", 20)
            counts = [
                sum(log.directory.startswith(d) for log in logs.logs.values())
                for d in ("/a", "/b", "/c")
            ]
            assert sorted(counts) == [6, 7, 7]

    def test_checkpoint_for_only_affected_logs(self) -> None:
        """testCheckpointForOnlyAffectedLogs, F-12: a start that is a segment's base is left out."""
        machine = Machine()
        with machine.start() as logs:
            first, second = logs.create_topic("t", 2)
            for log in (first, second):
                for _ in range(4):
                    log.append_as_leader(batch(), 0)
                log.roll()
            first.delete_records(2)
            second.delete_records(4)
            second.maintenance.delete_old_segments()
            logs.housekeeper.checkpoint_log_start_offsets()
            assert machine.checkpoint("/logs", LOG_START) == {TopicPartition("t", 0): 2}
            logs.crash()
        with machine.start() as logs:
            assert logs.get("t", 0).log_start_offset == 2
            assert logs.get("t", 1).log_start_offset == 4

    def test_file_references_after_async_delete(self) -> None:
        """testFileReferencesAfterAsyncDelete: renamed now, unlinked after the delay; the name is
        free at once; its checkpoint entries vanish with the next write (F-289)."""
        machine = Machine(file_delete_delay_ms=1000)
        with machine.start() as logs:
            log = logs.create_topic("t", 1)[0]
            log.append_as_leader(batch(), 0)
            logs.housekeeper.checkpoint_recovery_points()
            logs.delete("t", 0)
            (left,) = [e.name for e in machine.storage.scan_dir("/logs") if e.is_dir]
            assert left.startswith("t-0.")
            assert left.endswith("-delete")
            again = logs.get_or_create("t", 0)
            assert again.log_end_offset == 0
            machine.clock.advance(1000)
            assert logs.housekeeper.purge_deleted() == 1
            assert machine.storage.info(f"/logs/{left}") is None
            logs.delete("t", 0)
            logs.housekeeper.checkpoint_recovery_points()
            assert machine.checkpoint("/logs", RECOVERY_POINT) == {}
            logs.crash()
        with machine.start() as logs:
            assert not logs.logs
            logs.housekeeper.purge_deleted()
            assert not [e for e in machine.storage.scan_dir("/logs") if e.is_dir]

    def test_time_based_flush(self) -> None:
        """testTimeBasedFlush: the flusher takes logs whose last flush is ``flush.ms`` ago
        (F-221)."""
        machine = Machine(flush_ms=1000)
        with machine.start() as logs:
            log = logs.create_topic("t", 1)[0]
            log.append_as_leader(batch(), 0)
            machine.clock.advance(999)
            assert logs.housekeeper.flush_dirty_logs() == 0
            machine.clock.advance(1)
            assert logs.housekeeper.flush_dirty_logs() == 1
            assert log.recovery_point == 1

    def test_flush_after_so_many_messages(self) -> None:
        """F-161 step 12, F-221: LEO − RP ≥ ``flush.messages``."""
        with Machine(flush_messages=5).start() as logs:
            log = logs.create_topic("t", 1)[0]
            points = []
            for _ in range(7):
                log.append_as_leader(batch(count=2), 0)
                points.append(log.recovery_point)
            assert points == [0, 0, 6, 6, 6, 12, 12]

    def test_a_clean_start_opens_only_what_it_believes(self) -> None:
        """Four small files and the last segment, however many there are."""
        opened: list[str] = []

        class Counting(FaultyStorage):
            def open(self, path: str, **options: Any) -> Any:
                opened.append(path)
                return super().open(path, **options)

            def read_file(self, path: str, limit: int = -1) -> bytes:
                opened.append(path)
                return super().read_file(path, limit)

        machine = Machine()
        machine.storage = Counting()
        with machine.start() as manager:
            for log in manager.create_topic("t", 3):
                for _ in range(4):
                    log.append_as_leader(batch(), 0)
                    log.roll()
                log.append_as_leader(batch(), 0)
        opened.clear()
        with machine.start() as manager:
            of_one = [os.path.basename(path) for path in opened if "/t-1/" in path]
            assert sorted(of_one) == [
                "00000000000000000004.log",
                "00000000000000000005.snapshot",
                "leader-epoch-checkpoint",
                "partition.metadata",  # not there, as the next
                "topic.properties",
            ]

    @pytest.mark.parametrize("logs", [BIRTHS_AT_ONCE - 1, BIRTHS_AT_ONCE])
    @pytest.mark.parametrize("frozen", [0, 3])
    def test_the_collector_counts_what_a_start_loads_as_old(
        self, frozen: int, logs: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Otherwise its next look at the young ones takes as long as half of the start. But what a
        caller has frozen stays so, and a start of few logs does not ask, as that takes longer."""
        machine = Machine()
        with machine.start() as manager:
            manager.create_topic("t", logs)
        calls: list[str] = []

        def asked() -> int:
            calls.append("ask")
            return frozen

        monkeypatch.setattr(gc, "get_freeze_count", asked)
        for name in ("disable", "freeze", "unfreeze", "enable"):
            monkeypatch.setattr(gc, name, partial(calls.append, name))
        with machine.start():
            spared = [] if logs < BIRTHS_AT_ONCE else ["ask", *["freeze", "unfreeze"][frozen:]]
            assert calls == ["disable", *spared, "enable"]


def test_a_text_is_one_directory_and_not_its_letters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever one path or several may be given."""
    monkeypatch.chdir(tmp_path)
    with LogManager("data", background=False) as manager:
        manager.get_or_create("t", 0).append([(None, b"v")])
        assert manager.live_directories == [str(tmp_path / "data")]
    assert rescue("data", Path("new")).whole
    assert [each.topic for each in verify("new").partitions] == ["t"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "new"]
