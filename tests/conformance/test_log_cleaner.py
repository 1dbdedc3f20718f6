"""Kafka's LogCleanerTest, LogCleanerManagerTest and their like, under their names: each rule of a
pass by itself, where tests/histories searches histories for what breaks a compacted log."""

from __future__ import annotations

import errno
import itertools
import random
import threading
from pathlib import Path
from typing import Any

import pytest

from checkpoints.offset_checkpoint import CLEANER, OffsetCheckpoint
from logstore.cleaner.cleanable import group_segments, log_to_clean
from logstore.cleaner.log_cleaner import Throttle
from logstore.common.config import BrokerConfig, LogConfig
from logstore.common.errors import ConfigError, LogCleaningAbortedError
from logstore.common.types import TopicPartition
from logstore.format.codecs.compression import Compression
from logstore.format.filenames import LOG_SUFFIX
from logstore.format.reader import iter_batches
from logstore.log import PartitionLog
from logstore.log.snapshot import LogView
from logstore.manager import LogManager, ManagerOwner, compact_directory
from logstore.segments.producer_state import AppendOrigin
from logstore.testing import FaultyStorage, ManualClock, SimulatedCrash
from tests.support.builders import all_offsets, batch, marker
from tests.support.leftovers import nothing_left
from tests.support.until import until

T0 = TopicPartition("t", 0)
DAY_MS = 86_400_000


class Machine:
    """A manager without threads over one directory in memory."""

    def __init__(self, **config: Any) -> None:
        self.clock = ManualClock()
        self.storage = FaultyStorage(clock=lambda: self.clock.wall_ms() / 1000)
        self.broker = BrokerConfig(
            log_cleaner_dedupe_buffer_size=config.pop("map_bytes", 24 * 1000),
            producer_id_expiration_ms=DAY_MS,
        )
        defaults: dict[str, Any] = {
            "cleanup_policy": ("compact",),
            "segment_index_bytes": 1200,
            "min_cleanable_dirty_ratio": 0.0,
            "retention_ms": -1,
        }
        self.config = LogConfig(**defaults | config)
        self.manager = self.start()
        self.log = self.manager.get_or_create(*T0)

    def start(self) -> LogManager:
        return LogManager(
            ["/d"],
            self.config,
            broker_config=self.broker,
            storage=self.storage,
            clock=self.clock,
            background=False,
            owner=ManagerOwner(run_later=lambda task: task()),
        )

    def restart(self) -> None:
        self.manager.close()
        self.manager = self.start()
        self.log = self.manager.get(*T0)

    def put(self, *pairs: tuple[str, str | None], roll: bool = False, **fields: Any) -> None:
        rows = [(k.encode(), None if v is None else v.encode()) for k, v in pairs]
        self.log.append(rows, **fields)
        if roll:
            self.log.roll()

    def clean(self) -> Any:
        return self.manager.cleaner.clean_by_hand(self.log.topic_partition)

    def checkpoint(self) -> dict[TopicPartition, int]:
        return OffsetCheckpoint("/d/" + CLEANER, self.storage).read()

    def batches(self) -> list[Any]:
        found: list[Any] = []
        for segment in self.log.segments:
            found += iter_batches(self.storage.read_file(segment.log_path))
        return found

    def names(self) -> list[str]:
        return [entry.name for entry in self.storage.scan_dir("/d/t-0")]


def pairs(log: PartitionLog) -> list[tuple[int, str, str | None]]:
    return [(r.offset, text(r.key), text(r.value)) for r in log.records()]


def text(data: bytes | None) -> Any:
    return None if data is None else data.decode()


class TestLogCleaner:
    def test_clean_segments(self) -> None:
        """testCleanSegments: the newest value of each key, at its old offset (F-299, F-307)."""
        machine = Machine()
        machine.put(("a", "0"), ("b", "1"), ("a", "2"), roll=True)
        machine.put(("c", "3"), ("b", "4"), roll=True)
        machine.put(("a", "5"))  # the active segment is never cleaned, nor does it count
        done = machine.clean()
        assert pairs(machine.log) == [(2, "a", "2"), (3, "c", "3"), (4, "b", "4"), (5, "a", "5")]
        assert (done.stats.end_offset, machine.checkpoint()) == (5, {T0: 5})
        assert machine.log.log_start_offset == 0
        assert machine.log.log_end_offset == 6
        machine.restart()
        assert pairs(machine.log)[0] == (2, "a", "2")

    @pytest.mark.parametrize("codec", list(Compression))
    def test_clean_with_deletes(self, codec: Compression) -> None:
        """testCleanWithDeletes and testTombstoneDeletionWithHorizon: a tombstone stays until the
        horizon that the first pass over it writes into its batch (F-95, F-300)."""
        machine = Machine(delete_retention_ms=1000)
        machine.put(("a", "0"), ("b", "1"), ("a", None), roll=True, compression=codec)
        machine.clean()
        (kept,) = machine.batches()
        assert kept.delete_horizon == machine.clock.wall_ms() + 1000
        assert kept.compression is codec
        assert pairs(machine.log) == [(1, "b", "1"), (2, "a", None)]
        stamps = [record.timestamp for record in machine.log.records()]
        assert stamps == [machine.clock.wall_ms()] * 2
        machine.clock.advance(999)
        machine.put(("c", "3"), roll=True)
        machine.clean()
        assert (2, "a", None) in pairs(machine.log)
        assert machine.batches()[0].delete_horizon == machine.clock.wall_ms() + 1  # never moved
        machine.clock.advance(1)
        machine.put(("c", "4"), roll=True)
        machine.clean()
        assert pairs(machine.log) == [(1, "b", "1"), (4, "c", "4")]

    def test_a_batch_of_which_nothing_goes_is_copied(self) -> None:
        machine = Machine()
        machine.put(("a", "0"), ("b", "1"), roll=True, compression="gzip")
        before = machine.storage.read_file(machine.log.segments[0].log_path)
        machine.put(("c", "2"), ("c", "3"), roll=True)
        machine.clean()
        assert machine.storage.read_file(machine.log.segments[0].log_path).startswith(before)

    def test_aborted_transaction_spanning_segments(self) -> None:
        """testAbortedTransactionSpanningSegments: aborted data goes from every segment at once;
        its marker and the index entry stay for one more pass, and then until the horizon."""
        machine = Machine(delete_retention_ms=1000)
        log = machine.log
        for sequence in range(2):
            log.append_as_leader(
                batch(
                    key=b"%d" % sequence,
                    producer_id=1,
                    producer_epoch=0,
                    base_sequence=sequence,
                    transactional=True,
                ),
                0,
            )
            log.roll()
        log.append_as_leader(marker(commit=False), 0, AppendOrigin.COORDINATOR)
        log.append_as_leader(batch(key=b"k", producer_id=1, producer_epoch=0, base_sequence=2), 0)
        log.roll()
        machine.clean()
        kept = [(b.base_offset, b.record_count, b.is_control) for b in machine.batches()]
        assert kept == [(2, 1, True), (3, 1, False)]
        assert len(log.reader.aborted_transactions(0, 3)) == 1
        assert machine.batches()[0].delete_horizon is None
        machine.put(("x", "y"), roll=True)
        machine.clean()
        horizon = machine.clock.wall_ms() + 1000
        assert [b.delete_horizon for b in machine.batches() if b.is_control] == [horizon]
        machine.clock.advance(1000)
        machine.put(("x", "z"), roll=True)
        machine.clean()
        assert not [b for b in machine.batches() if b.is_control]
        machine.restart()
        assert machine.log.producers.known.producers[1].last_sequence == 2

    def test_log_cleaner_retains_producer_last_sequence(self) -> None:
        """testLogCleanerRetainsProducerLastSequence: the batch of the last sequence number stays,
        if need be empty, and a retry is known after an unclean start too (F-305)."""
        machine = Machine()
        log = machine.log
        for sequence in range(3):
            log.append_as_leader(
                batch(key=b"k", producer_id=1, producer_epoch=0, base_sequence=sequence), 0
            )
        machine.put(("k", "new"), roll=True)
        machine.clean()
        assert [(b.base_offset, b.record_count) for b in machine.batches()] == [(2, 0), (3, 1)]
        machine.manager.crash()
        machine.storage.crash(mode="all_lost")
        machine.manager = machine.start()
        again = machine.manager.get(*T0).append_as_leader(
            batch(key=b"k", producer_id=1, producer_epoch=0, base_sequence=2), 0
        )
        assert (again.duplicate, again.first_offset) == (True, 2)

    def test_clean_segments_retaining_last_empty_batch(self) -> None:
        """testCleanSegmentsRetainingLastEmptyBatch: the last batch below the end of the range."""
        machine = Machine(delete_retention_ms=0)
        machine.put(("a", None), roll=True)
        machine.clean()
        machine.put(("a", None), roll=True)
        machine.clean()
        machine.put(("b", None), roll=True)
        machine.clean()
        assert machine.batches()[-1].next_offset == 3

    def test_no_record_at_or_above_an_open_transaction(self) -> None:
        """testCleanWithUncommitted: cleaning ends at the first transaction not decided (F-291)."""
        machine = Machine()
        machine.put(("a", "0"), ("a", "1"), roll=True)
        machine.log.append_as_leader(
            batch(key=b"k", producer_id=1, producer_epoch=0, base_sequence=0, transactional=True), 0
        )
        machine.log.roll()
        machine.put(("a", "3"), roll=True)
        done = machine.clean()
        assert (done.stats.end_offset, done.to_clean.stopped_by) == (
            2,
            "a transaction that is not decided",
        )
        assert all_offsets(machine.log) == [1, 2, 3]

    def test_partial_segment_clean(self) -> None:
        """testPartialSegmentClean, testBuildPartialOffsetMap: a full map ends a pass, perhaps in
        the middle of a batch; the next ones go on there (F-295, F-296)."""
        machine = Machine(map_bytes=24 * 4)  # three keys
        machine.put(*((k, "old") for k in "abcdef"), *((k, "new") for k in "abcdef"), roll=True)
        ends = []
        for _ in range(10):
            ends.append(machine.clean().stats.end_offset)
            assert {k: v for _, k, v in pairs(machine.log)} == dict.fromkeys("abcdef", "new")
        assert ends == [3, 6, 9, 12, 12, 12, 12, 12, 12, 12]
        assert all_offsets(machine.log) == [6, 7, 8, 9, 10, 11]

    def test_segment_grouping(self) -> None:
        """testSegmentGrouping: by size, by index size, never past 2³¹−1 offsets (F-308)."""
        machine = Machine()
        for n in range(6):
            machine.put((str(n), "x"), roll=True)
        sealed = machine.log.snapshot.sealed
        size = sealed[0].size

        def groups(end: int = 6, **changes: int) -> list[int]:
            config = LogConfig(**{"segment_bytes": 10**6} | changes)
            return [len(group) for group in group_segments(sealed, config, end)]

        assert groups() == [6]
        assert groups(segment_bytes=size) == [1] * 6
        assert groups(segment_bytes=2 * size) == [2] * 3
        assert groups(segment_bytes=4 * size) == [4, 2]
        assert groups(segment_index_bytes=12) == [1] * 6  # one time entry each
        assert groups(end=2**31) == [6]
        assert groups(end=2**31 + 1) == [5, 1]

    def at_work(self, segment_bytes: int) -> Machine:
        """Segments of which the second pass keeps nothing at the end of its first group."""
        machine = Machine(delete_retention_ms=0, segment_bytes=segment_bytes)
        machine.put(("stays", "x"), ("k3", "x"), ("gone", "x"), roll=True)
        for n in range(3):
            machine.put(*((f"k{i}", f"{n}") for i in range(3)), roll=True)
        machine.put(("gone", None), roll=True)
        machine.clean()
        machine.put(*((f"k{i}", "5") for i in range(4)), roll=True)
        machine.log.flush()
        return machine

    @pytest.mark.slow
    @pytest.mark.parametrize("segment_bytes", [200, 10**6])
    def test_recovery_after_crash(self, segment_bytes: int) -> None:
        """testRecoveryAfterCrash, at every change of the disk in a pass and in every mode: each
        group of segments is as before or as after, as a whole (F-309 … F-312)."""
        whole = self.at_work(segment_bytes)
        states = [pairs(whole.log)]
        count = whole.storage.operations
        replacing = type(whole.log.replacing)
        replace = replacing.replace

        def watched(self: Any, *args: Any) -> Any:
            made = replace(self, *args)
            states.append(pairs(whole.log))
            return made

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(replacing, "replace", watched)
            whole.clean()
        changes = whole.storage.operations - count
        assert len(states) == (3 if segment_bytes == 200 else 2)
        assert changes > 15
        for at in range(1, changes + 1):
            for mode in ("all_lost", "all_kept", "random"):
                machine = self.at_work(segment_bytes)
                machine.storage.crash_after(at)
                with pytest.raises(SimulatedCrash):
                    machine.clean()
                machine.storage.crash(random.Random(at), mode)  # type: ignore[arg-type]
                machine.manager = machine.start()
                machine.log = machine.manager.get(*T0)
                found = pairs(machine.log)
                assert found in states, (at, mode, found)
                assert not [n for n in machine.names() if n.endswith((".cleaned", ".swap", "nts"))]
                machine.clean()
                assert pairs(machine.log) == states[-1]

    @pytest.mark.parametrize("operation", ["write", "sync"])
    @pytest.mark.parametrize("glob", ["*.cleaned", "*/replaced-segments"])
    def test_full_disk_at_every_write(self, operation: str, glob: str) -> None:
        """Nothing is lost, the log goes on, and the pass is done once there is room."""
        for at in range(30):
            machine = Machine()
            machine.put(("a", "0"), ("a", "1"), roll=True)
            machine.put(("a", "2"), roll=True)
            fault = machine.storage.fail(operation, glob, after=at, error=errno.ENOSPC, times=10**6)
            machine.manager.cleaner.clean_filthiest()
            machine.storage.heal()
            if not fault.struck:
                assert at
                break
            assert not machine.log.failed
            assert pairs(machine.log)[-1] == (2, "a", "2")
            assert "space" in machine.manager.cleaner.uncleanable[T0].reason
            assert not [n for n in machine.names() if n.endswith((".cleaned", ".swap"))]
            assert machine.manager.cleaner.clean_filthiest() is None
            machine.clock.advance(60_000)
            assert machine.manager.cleaner.clean_filthiest() is not None
            assert pairs(machine.log) == [(2, "a", "2")]

    def test_a_segment_that_is_cut_in_a_pass_is_not_replaced(self) -> None:
        """testCleanSegmentsWithAbort, testTruncate…: whoever truncates does not wait."""
        machine = Machine()
        machine.put(("a", "0"), roll=True)
        machine.put(("a", "1"), roll=True)
        cleaner = machine.manager.cleaner
        wrote = type(machine.log.replacing).replace

        def cut_first(self: Any, *args: Any) -> Any:
            machine.log.truncate_to(1)
            return wrote(self, *args)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(machine.log.replacing), "replace", cut_first)
            with pytest.raises(LogCleaningAbortedError):
                cleaner.clean_by_hand(T0)
        assert pairs(machine.log) == [(0, "a", "0")]
        assert not [n for n in machine.names() if n.endswith((".cleaned", ".swap", "segments"))]
        assert machine.manager.cleaner.uncleanable == {}

    def test_snapshots_go_with_the_segments_that_are_merged(self) -> None:
        """F-130: each segment that is left keeps the one at its base, over checkpoints, too."""
        machine = Machine()
        for n in range(4):
            machine.put((f"{n}", "x"), roll=True)
        machine.put(("4", "x"))
        machine.log.flush()
        machine.manager.housekeeper.checkpoint_recovery_points()
        snapshots = [n for n in machine.names() if n.endswith(".snapshot")]
        assert snapshots == [f"{base:020}.snapshot" for base in (1, 2, 3, 4)]
        machine.clean()
        assert [segment.base_offset for segment in machine.log.segments] == [0, 4]
        machine.manager.housekeeper.checkpoint_recovery_points()
        snapshots = [n for n in machine.names() if n.endswith(".snapshot")]
        assert snapshots == [f"{4:020}.snapshot"]
        machine.restart()
        assert f"{4:020}.snapshot" in machine.names()

    def test_a_new_empty_log_has_no_snapshot(self) -> None:
        """F-130: not after a clean stop either."""
        machine = Machine()
        machine.restart()
        assert not [n for n in machine.names() if n.endswith(".snapshot")]

    def test_readers_of_replaced_segments_go_on(self) -> None:
        machine = Machine(segment_bytes=10**6, index_interval_bytes=0)
        for n in range(3):
            machine.put(*((f"k{i}", f"{n}") for i in range(20)), roll=True)
        old = machine.log.snapshot.sealed[1]
        before = old.read_at(0, old.size)
        reader = machine.log.records()
        first = next(reader)
        with old.window(0, old.size) as window:
            machine.clean()
            assert bytes(window) == before
        assert (first.offset, [r.offset for r in reader][-1]) == (0, 59)
        assert [r.offset for r in machine.log.records()] == list(range(40, 60))
        assert [n for n in machine.names() if n.endswith(".deleted")]
        machine.clock.advance(60_000)
        machine.manager.housekeeper.purge_deleted()
        assert not [n for n in machine.names() if n.endswith(".deleted")]
        assert machine.log.read(5).records()[0].offset == 40

    def test_records_without_a_key_go(self) -> None:
        """testCleanSegmentsWithUnkeyed…: those of a time when the topic was not compacted."""
        machine = Machine(cleanup_policy=("delete",))
        machine.log.append([(None, b"v"), (b"k", b"v")])
        machine.log.roll()
        machine.log.reconfigure(machine.config.with_properties({"cleanup.policy": "compact"}))
        assert machine.clean().stats.records_without_key == 1
        assert all_offsets(machine.log) == [1]


class TestLogCleanerManager:
    def two_logs(self) -> Machine:
        machine = Machine()
        machine.put(("a", "0"), ("a", "1"), roll=True)
        other = machine.manager.get_or_create("u", 0)
        other.append([(b"a", b"0"), (b"a", b"1"), (b"a", b"2")])
        other.roll()
        return machine

    def test_grab_filthiest_compacted_log(self) -> None:
        """testGrabFilthiestCompactedLogReturnsLogWithDirtiestRatio; strictly above the ratio."""
        machine = self.two_logs()
        machine.clean()
        machine.put(("b", "2"), roll=True)
        first, second = (machine.manager.cleaner.clean_filthiest() for _ in range(2))
        assert first is not None
        assert second is not None
        assert (first.partition.topic, second.partition.topic) == ("u", "t")
        assert machine.manager.cleaner.clean_filthiest() is None
        assert second.to_clean.ratio < first.to_clean.ratio == 1.0
        assert not first.to_clean.is_due(1.0)

    def test_logs_with_segments_to_delete_should_not_consider_uncleanable_partitions(self) -> None:
        """A damaged batch sets its partition aside, with the reason; the others are cleaned."""
        machine = self.two_logs()
        path = machine.log.segments[0].log_path
        machine.storage.flip(path, 70)
        cleaner = machine.manager.cleaner
        passes = [cleaner.clean_filthiest() for _ in range(3)]
        assert [p.partition.topic for p in passes if p is not None] == ["u"]
        why = cleaner.uncleanable[T0]
        assert path in why.reason
        assert "checksum" in why.reason
        assert cleaner.metrics.uncleanable_partitions == 1
        assert cleaner.metrics.uncleanable_bytes == {"/d": machine.log.size}
        assert machine.checkpoint() == {TopicPartition("u", 0): 3}
        assert machine.log.append([(b"k", b"v")]).first_offset == 2

    def test_cleanable_offsets_for_time(self) -> None:
        """testCleanableOffsetsForTime: nothing younger than min.compaction.lag.ms (F-291)."""
        machine = Machine(min_compaction_lag_ms=1000)
        machine.put(("a", "0"), roll=True)
        machine.clock.advance(1000)
        machine.put(("a", "1"), roll=True)
        to_clean = machine.clean().to_clean
        assert (to_clean.end, to_clean.stopped_by) == (1, "min.compaction.lag.ms")
        machine.clock.advance(1000)
        assert machine.clean().to_clean.end == 2
        assert pairs(machine.log) == [(1, "a", "1")]

    def test_max_compaction_lag(self) -> None:
        """testLogsUnderMaxLag…: a record that waits too long makes its log due (F-292)."""
        machine = Machine(min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=5000)
        machine.put(("a", "0"), ("a", "1"), roll=True)
        cleaner = machine.manager.cleaner
        assert cleaner.clean_filthiest() is None
        machine.clock.advance(5000)
        assert cleaner.clean_filthiest() is None
        machine.clock.advance(1)
        assert cleaner.clean_filthiest() is not None
        assert cleaner.metrics.max_compaction_delay_ms == 1

    @pytest.mark.parametrize("offset", [-5, 3, 10**12])
    def test_log_to_clean_with_a_checkpoint_outside_the_log(self, offset: int) -> None:
        """testCleanableOffsetsNeedsCheckpointReset (F-290)."""
        machine = Machine()
        machine.put(("a", "0"), ("a", "1"), roll=True)
        if offset < 0:
            to_clean = log_to_clean(LogView(machine.log.snapshot), machine.config, offset, 0)
            assert (to_clean.first_dirty, to_clean.checkpoint_is_wrong) == (0, True)
            return
        machine.manager.close()
        OffsetCheckpoint("/d/" + CLEANER, machine.storage).write({T0: offset})
        machine.manager = machine.start()
        machine.log = machine.manager.get(*T0)
        done = machine.manager.cleaner.clean_filthiest()
        assert done is not None
        assert all_offsets(machine.log) == [1]
        assert machine.checkpoint() == {T0: 2}

    def test_a_truncation_pulls_the_checkpoint_back(self) -> None:
        """testMaybeTruncateCheckpoint: to the base of the active segment (F-313)."""
        machine = Machine()
        for n in range(3):
            machine.put(("a", str(n)), (f"b{n}", "x"), roll=True)
        machine.clean()
        assert machine.checkpoint() == {T0: 6}
        machine.log.truncate_to(4)
        machine.put(("a", "again"))
        base = machine.log.segments[-1].base_offset
        assert base <= 4
        assert machine.checkpoint() == {T0: base}

    def test_a_pass_that_a_truncation_overtook_writes_no_checkpoint(self) -> None:
        machine = Machine()
        for n in range(3):
            machine.put(("a", str(n)), roll=True)
        cleaner = machine.manager.cleaner
        write = cleaner._write_checkpoint

        def cut_first(*args: Any) -> bool:
            machine.log.truncate_to(1)
            for n in range(5):
                machine.put(("a", f"new {n}"), roll=True)
            return write(*args)

        cleaner._write_checkpoint = cut_first  # type: ignore[method-assign]
        with pytest.raises(LogCleaningAbortedError):
            cleaner.clean_by_hand(T0)
        assert machine.checkpoint().get(T0, 0) <= 1

    def test_a_log_that_is_deleted_or_made_anew(self) -> None:
        """The entry goes with its log; another log of the name begins at its own start."""
        machine = Machine()
        machine.put(("a", "0"), ("a", "1"), roll=True)
        machine.clean()
        assert machine.checkpoint() == {T0: 2}
        machine.manager.delete(*T0)
        assert machine.checkpoint() == {}
        machine.log = machine.manager.get_or_create(*T0)
        machine.put(("a", "0"), ("a", "1"), ("a", "2"), roll=True)
        assert machine.clean().stats.first_dirty == 0
        machine.log.maintenance.truncate_fully_and_start_at(100)
        machine.put(("a", "0"), roll=True)
        assert T0 not in machine.checkpoint()

    def test_retention_of_a_compacted_log(self) -> None:
        """testLogsWithSegmentsToDelete…: cleanup.policy of both."""
        machine = Machine(cleanup_policy=("compact", "delete"), retention_ms=1000)
        machine.put(("a", "0"), ("a", "1"), roll=True)
        machine.clean()
        machine.clock.advance(1001)
        machine.put(("b", "2"))
        assert machine.manager.housekeeper.clean_up() == 1
        assert pairs(machine.log) == [(2, "b", "2")]
        machine.log.roll()
        assert machine.clean().stats.end_offset == 3

    def test_the_high_watermark(self) -> None:
        machine = Machine()
        view = LogView(machine.log.snapshot)
        assert log_to_clean(view, machine.config, None, 0).end == 0
        manager = LogManager(
            ["/r"],
            machine.config,
            storage=machine.storage,
            clock=machine.clock,
            background=False,
            owner=ManagerOwner(run_later=lambda task: task(), replicated=True),
        )
        log = manager.get_or_create(*T0, config=machine.config)
        for n in range(4):
            log.append([(b"a", b"%d" % n)])
            log.roll()
        log.replica.update_high_watermark(2)
        done = manager.cleaner.clean_by_hand(T0)
        assert (done.stats.end_offset, done.to_clean.stopped_by) == (2, "the high watermark")
        assert all_offsets(log) == [1, 2, 3]
        manager.close()

    def test_a_clock_that_jumps(self) -> None:
        """Back: a tombstone stays longer. Forward: it goes early, as far as the clock jumped."""
        machine = Machine(delete_retention_ms=1000)
        machine.put(("a", "0"), ("a", None), roll=True)
        machine.clean()
        machine.clock.set_wall_ms(machine.clock.wall_ms() - DAY_MS)
        machine.put(("b", "2"), roll=True)
        machine.clean()
        assert all_offsets(machine.log) == [1, 2]
        machine.clock.set_wall_ms(2**62)
        machine.put(("b", None), roll=True)
        machine.clean()
        assert all_offsets(machine.log) == [3]
        machine.clock.set_wall_ms(2**63 - 2)
        machine.put(("c", None), roll=True)
        machine.clean()
        assert machine.batches()[-1].delete_horizon == 2**63 - 1


class TestThreads:
    @pytest.mark.slow
    def test_the_manager_cleans_in_the_background(self, tmp_path: Path) -> None:
        """Beside somebody who appends and somebody who reads; both see one log all the time."""
        config = LogConfig(
            cleanup_policy=("compact",), min_cleanable_dirty_ratio=0.0, segment_bytes=100_000
        )
        broker = BrokerConfig(log_cleaner_backoff_ms=10, log_cleaner_dedupe_buffer_size=1 << 16)
        with (
            nothing_left(tmp_path),
            LogManager([tmp_path], config, broker_config=broker) as manager,
        ):
            log = manager.get_or_create("t", 0)
            newest: dict[bytes, bytes] = {}
            done, faults = threading.Event(), list[str]()

            def keep_reading() -> None:
                while not done.is_set():
                    offsets = [record.offset for record in log.records()]
                    if offsets != sorted(set(offsets)):
                        faults.append(f"{offsets}")

            reader = threading.Thread(target=keep_reading)
            reader.start()
            try:
                numbers = itertools.count()

                def cleaned_thrice() -> bool:
                    for n in itertools.islice(numbers, 20):
                        key, value = b"k%d" % (n % 7), b"%d" % n
                        log.append([(key, value)] * 20)
                        newest[key] = value
                    return manager.cleaner.metrics.passes >= 3

                until(cleaned_thrice)
            finally:
                done.set()
                reader.join()
            assert {r.key: r.value for r in log.records()} == newest
            assert faults == []

    def test_the_throttle_counts_over_all_threads(self) -> None:
        waits: list[float] = []

        class Stopping(threading.Event):
            def wait(self, timeout: float | None = None) -> bool:
                assert timeout is not None
                waits.append(timeout)
                clock.advance(int(timeout * 1000))
                return False

        clock = ManualClock()
        throttle = Throttle(1000.0, clock, Stopping())
        for _ in range(10):
            throttle.spend(500)
        assert sum(waits) == pytest.approx(5.0)
        Throttle(float("inf"), clock, threading.Event()).spend(10**9)
        with pytest.raises(ConfigError):
            BrokerConfig(log_cleaner_io_max_bytes_per_second=0.0)


def test_a_directory_by_hand(tmp_path: Path) -> None:
    with LogManager([tmp_path], LogConfig(segment_bytes=500), background=False) as manager:
        for topic, policy in (("c", "compact"), ("d", "delete")):
            (log,) = manager.create_topic(topic, 1, {"cleanup.policy": policy})
            for n in range(20):
                log.append([(b"k%d" % (n % 2), b"%d" % n)])
    logs = {path: path.read_bytes() for path in tmp_path.glob("*/*" + LOG_SUFFIX)}
    dry = compact_directory(tmp_path, dry_run=True)
    assert {path: path.read_bytes() for path in tmp_path.glob("*/*" + LOG_SUFFIX)} == logs
    done = compact_directory(tmp_path)
    (outcome,) = done.partitions
    assert outcome.partition == TopicPartition("c", 0)
    assert [p.size_after for p in dry.partitions] == [outcome.size_after]
    assert outcome.size_after < outcome.size_before
    assert outcome.error is None
    assert compact_directory(tmp_path, topics=["d"]).partitions[0].stats.records_kept < 20
    with pytest.raises(ConfigError):
        compact_directory(tmp_path, config={"log.cleaner.threads": 0})
    again = compact_directory(tmp_path, config={"log.cleaner.dedupe.buffer.size": 30})
    assert [p.error for p in again.partitions] == [None]  # nothing was left to do
