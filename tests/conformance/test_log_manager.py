"""Kafka's LogManagerTest, its checkpoint tests and DumpLogSegmentsTest, under their names."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from checkpoints import clean_shutdown
from checkpoints.errors import MalformedCheckpointError
from checkpoints.offset_checkpoint import HIGH_WATERMARK, RECOVERY_POINT, OffsetCheckpoint
from logstore.cli import main
from logstore.common.errors import ConfigError, LogDirLockedError, StorageFailedError
from logstore.common.types import TopicPartition
from logstore.log import ReplicaLog
from logstore.manager import LogManager
from logstore.testing import FaultyStorage, ManualClock
from tests.support.builders import NOW, all_offsets, batch, file_name, log_config

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

    def test_two_log_managers_using_same_dir_fails(self, tmp_path: Path) -> None:
        """testTwoLogManagersUsingSameDirFails: the second opener is refused, and the first one
        goes on (F-9, F-236)."""
        machine = Machine()
        with machine.start() as logs:
            with pytest.raises(LogDirLockedError):
                machine.start()
            logs.create_topic("t", 1)
        machine.start().close()
        with LogManager([tmp_path], log_config()) as logs:
            with pytest.raises(LogDirLockedError):
                LogManager([tmp_path], log_config())
            logs.create_topic("t", 1)
        LogManager([tmp_path], log_config()).close()

    def test_create_log_with_invalid_log_dir(self) -> None:
        """testCreateLogWithInvalidLogDir: a bad directory is skipped; all bad is fatal."""
        machine = Machine("/bad", "/good")
        machine.storage.fail("make_dir", "/bad", times=2)
        with machine.start() as logs:
            assert list(logs.offline_directories) == ["/bad"]
            assert logs.create_topic("t", 1)[0].directory == "/good/t-0"
        only = Machine("/bad")
        only.storage.fail("make_dir", "/bad")
        with pytest.raises(StorageFailedError):
            only.start()

    def test_least_loaded_assignment(self) -> None:
        """testLeastLoadedAssignment (F-8)."""
        with Machine("/a", "/b", "/c").start() as logs:
            logs.create_topic("t", 20)
            counts = [
                sum(log.directory.startswith(d) for log in logs.logs.values())
                for d in ("/a", "/b", "/c")
            ]
            assert sorted(counts) == [6, 7, 7]

    def test_recovery_directory_mapping_with_duplicate_partition(self) -> None:
        """testDoesntLoad…/duplicate partition: the same partition in two directories is fatal
        (F-7)."""
        machine = Machine("/a", "/b")
        for directory in ("/a/t-0", "/b/t-0"):
            machine.storage.make_dir(directory)
        with pytest.raises(ConfigError, match="t-0"):
            machine.start()

    def test_a_directory_that_fails_leaves_the_others_alone(self) -> None:
        """testHandlingExceptionsDuringShutdown, F-236 step 7: only it goes offline, and it gets no
        marker."""
        machine = Machine("/a", "/b")
        with machine.start() as logs:
            first, second = logs.create_topic("t", 2)
            first.append_as_leader(batch(), 0)
            machine.storage.fail("sync", f"{first.directory}/*.log")
            with pytest.raises(StorageFailedError):
                first.flush()
            second.append_as_leader(batch(), 0)
            assert list(logs.offline_directories) == [os.path.dirname(first.directory)]
        assert not machine.has(os.path.dirname(first.directory), MARKER)
        assert machine.has(os.path.dirname(second.directory), MARKER)
        machine.storage.heal()
        with machine.start() as logs:
            assert all_offsets(logs.get("t", 0)) == [0]
            assert logs.get("t", 1).recovery_report.clean

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

    def test_time_based_flush(self) -> None:
        """testTimeBasedFlush: the flusher takes logs whose last flush is ``flush.ms`` ago
        (F-221)."""
        machine = Machine(flush_ms=1000)
        with machine.start() as logs:
            log = logs.create_topic("t", 1)[0]
            log.append_as_leader(batch(), 0)
            machine.clock.advance(999)
            assert logs.flush_dirty_logs() == 0
            machine.clock.advance(1)
            assert logs.flush_dirty_logs() == 1
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

    def test_cleanup_segments_to_maintain_size(self) -> None:
        """testCleanupSegmentsToMaintainSize: retention over all logs; files go after the delay."""
        machine = Machine(retention_bytes=500, segment_bytes=200, file_delete_delay_ms=1000)
        with machine.start() as logs:
            log = logs.create_topic("t", 1)[0]
            for _ in range(10):
                log.append_as_leader(batch(count=2), 0)
            assert logs.clean_up() == 7
            assert log.log_start_offset == 14
            assert all_offsets(log) == list(range(14, 20))
            machine.clock.advance(1000)
            logs.purge_deleted()
            assert (
                len([e for e in machine.storage.scan_dir(log.directory) if e.name.endswith(".log")])
                == 3
            )

    def test_high_watermarks_survive(self) -> None:
        """testWriteHighWatermark…, F-13, F-250: the checkpoint is clamped to the log."""
        machine = Machine()
        with machine.start(replicated=True) as logs:
            for partition in (0, 1):
                log = logs.get_or_create("t", partition)
                for _ in range(4):
                    log.append_as_leader(batch(), 0)
                log.update_high_watermark(partition + 2)
            logs.checkpoint_high_watermarks()
            assert machine.checkpoint(HIGH_WATERMARK) == {
                TopicPartition("t", 0): 2,
                TopicPartition("t", 1): 3,
            }
            logs.crash()
        path = "/logs/" + HIGH_WATERMARK
        OffsetCheckpoint(path, machine.storage).write({TopicPartition("t", 1): 99})
        with machine.start(replicated=True) as logs:
            assert logs.get("t", 0).high_watermark == 0
            assert logs.get("t", 1).high_watermark == 4


class TestCheckpointFiles:
    def test_should_throw_if_version_is_not_recognised(self) -> None:
        """OffsetCheckpointFileWithFailureHandlerTest.shouldThrowIfVersionIsNotRecognised: an error,
        not an empty map. At start-up a log manager goes on without the file (F-32)."""
        machine = Machine()
        with machine.start() as logs:
            logs.create_topic("t", 1)[0].append_as_leader(batch(), 0)
        path = f"/logs/{RECOVERY_POINT}"
        machine.storage.write_file(path, b"1\n1\nt 0 1\n")
        with pytest.raises(MalformedCheckpointError):
            machine.checkpoint(RECOVERY_POINT)
        machine.storage.remove(f"/logs/{MARKER}")
        with machine.start() as logs:
            assert logs.get("t", 0).recovery_point == 0
            assert all_offsets(logs.get("t", 0)) == [0]

    def test_clean_shutdown_file_can_parse_with_unknown_fields(self) -> None:
        """CleanShutdownFileHandlerTest.testCleanShutdownFileCanParseWithUnknownFields: extra fields
        are ignored (F-46)."""
        machine = Machine()
        machine.start().close()
        content = b'{"version":0,"brokerEpoch":10,"unknown":[1,{}]}'
        machine.storage.write_file(f"/logs/{MARKER}", content)
        assert clean_shutdown.read(f"/logs/{MARKER}", machine.storage) == 10
        with machine.start() as logs:
            logs.create_topic("t", 1)
        for content in (b"", b"{", b'{"brokerEpoch":"x"}'):
            machine.storage.write_file(f"/logs/{MARKER}", content)
            with machine.start() as logs:
                assert all(report.clean for report in logs.recovery_reports)


class TestDumpLogSegments:
    """``logstore verify`` reports planted errors and nothing else."""

    @pytest.fixture
    def partition(self, tmp_path: Path) -> Path:
        directory = tmp_path / "t-0"
        config = log_config(index_interval_bytes=200, segment_index_bytes=1200)
        with ReplicaLog.open(directory, config, clock=ManualClock()) as log:
            for i in range(30):
                log.append_as_leader(batch(count=2, timestamp=NOW + i), 0)
            log.roll()
            log.append_as_leader(batch(), 0)
        return directory

    @staticmethod
    def findings(directory: Path) -> list[dict[str, Any]]:
        result = CliRunner().invoke(main, ["verify", "--json", str(directory)])
        report = json.loads(result.stdout)
        found = [f for f in report["findings"] if f["severity"] != "info"]
        assert result.exit_code == (1 if found else 0)
        return found

    @staticmethod
    def plant(path: Path, change: Callable[[bytearray], None]) -> None:
        data = bytearray(path.read_bytes())
        change(data)
        path.write_bytes(data)

    def test_dump_index_mismatches(self, partition: Path) -> None:
        """testDumpIndexMismatches."""
        assert self.findings(partition) == []

        def planted(data: bytearray) -> None:
            data[8 * 4 : 8 * 4 + 4] = (19).to_bytes(4, "big")  # an offset that lies elsewhere

        self.plant(partition / file_name(0, ".index"), planted)
        (found,) = self.findings(partition)
        assert os.path.basename(found["file"]) == file_name(0, ".index")
        assert found["position"] == 8 * 4

    def test_dump_time_index_errors(self, partition: Path) -> None:
        """testDumpTimeIndexErrors."""

        def planted(data: bytearray) -> None:
            data[12 * 4 : 12 * 4 + 8] = (NOW + 10_000).to_bytes(8, "big")

        self.plant(partition / file_name(0, ".timeindex"), planted)
        (found,) = self.findings(partition)
        assert os.path.basename(found["file"]) == file_name(0, ".timeindex")
        assert found["position"] == 12 * 4
