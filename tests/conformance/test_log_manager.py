"""Kafka's LogManagerTest under its names: what a manager keeps of its logs over a stop, which its
unit tests do not look at."""

from __future__ import annotations

import os
from typing import Any

import pytest

from checkpoints import clean_shutdown
from checkpoints.offset_checkpoint import RECOVERY_POINT, OffsetCheckpoint
from logstore.common.types import TopicPartition
from logstore.manager import LogManager
from logstore.testing import FaultyStorage, ManualClock
from tests.support.builders import batch, log_config

MARKER = clean_shutdown.CLEAN_SHUTDOWN


class Machine:
    """Log directories in memory, with one log manager after the other."""

    def __init__(self, *directories: str, **config: Any) -> None:
        self.clock = ManualClock()
        self.storage = FaultyStorage(clock=lambda: self.clock.wall_ms() / 1000)
        self.directories = directories or ("/logs",)
        self.config = log_config(**config)

    def start(self, **arguments: Any) -> LogManager:
        options: dict[str, Any] = {"storage": self.storage, "clock": self.clock}
        options |= {"background": False}  # what is due is done when a test says so
        return LogManager(self.directories, self.config, **options | arguments)

    def has(self, *path: str) -> bool:
        return self.storage.info(os.path.join(*path)) is not None

    def checkpoint(self, name: str, directory: str = "/logs") -> dict[TopicPartition, int]:
        return OffsetCheckpoint(os.path.join(directory, name), self.storage).read()


class TestLogManager:
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
            logs.checkpoint_recovery_points()
            assert machine.checkpoint(RECOVERY_POINT) == expected
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
        assert machine.has("/logs", MARKER)

        def interrupt(_: object) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            machine.start(progress=interrupt)
        assert not machine.has("/logs", MARKER)
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
            second.delete_old_segments()
            logs.checkpoint_log_start_offsets()
            name = "log-start-offset-checkpoint"
            assert machine.checkpoint(name) == {TopicPartition("t", 0): 2}
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
            logs.checkpoint_recovery_points()
            logs.delete("t", 0)
            (left,) = [e.name for e in machine.storage.scan_dir("/logs") if e.is_dir]
            assert left.startswith("t-0.")
            assert left.endswith("-delete")
            again = logs.get_or_create("t", 0)
            assert again.log_end_offset == 0
            machine.clock.advance(1000)
            assert logs.purge_deleted() == 1
            assert not machine.has("/logs", left)
            logs.delete("t", 0)
            logs.checkpoint_recovery_points()
            assert machine.checkpoint(RECOVERY_POINT) == {}
            logs.crash()
        with machine.start() as logs:
            assert not logs.logs
            logs.purge_deleted()
            assert not [e for e in machine.storage.scan_dir("/logs") if e.is_dir]

    def test_flush_after_so_many_messages(self) -> None:
        """F-161 step 12, F-221: LEO − RP ≥ ``flush.messages``."""
        with Machine(flush_messages=5).start() as logs:
            log = logs.create_topic("t", 1)[0]
            points = []
            for _ in range(7):
                log.append_as_leader(batch(count=2), 0)
                points.append(log.recovery_point)
            assert points == [0, 0, 6, 6, 6, 12, 12]
