"""Kafka's LogLoaderTest under its names, and the outcomes of F-253 … F-267: what a start does to
each file; what it believes of replacements and of damage is in tests/unit/recovery."""

from __future__ import annotations

import random

import pytest

from logstore.log import PartitionLog
from logstore.manager import LogManager
from logstore.recovery.recovery import RecoveryOptions
from logstore.segments.producer_state import AppendOrigin
from logstore.testing import SimulatedCrash
from tests.support.builders import (
    NOW,
    PAIR,
    Disk,
    all_offsets,
    batch,
    file_name,
    log_config,
    marker,
    produced,
)

EPOCHS = "leader-epoch-checkpoint"


def lookups(log: PartitionLog) -> list[object]:
    """What a reader can see: every offset, every timestamp."""
    found: list[object] = [log.log_start_offset, log.log_end_offset, list(log.records())]
    found += [log.read(o, 1).records()[0] for o in range(log.log_start_offset, log.log_end_offset)]
    return found + [log.offset_for_timestamp(t) for t in range(NOW - 1, NOW + 30)]


def bases(log: PartitionLog) -> list[int]:
    return [segment.base_offset for segment in log.segments]


def filled(disk: Disk, *rolls: int, end: int = 24) -> PartitionLog:
    """Batches of two records of epoch 0 from offset 0 to ``end``; a new segment at each roll."""
    log = disk.open(replicated=True)
    for base in range(0, end, 2):
        if base in rolls:
            log.roll()
        log.replica.append_as_follower(batch(base, 2, timestamp=NOW + base // 2))
    log.replica.update_high_watermark(end)
    return log


class TestLogLoader:
    def test_log_recovery_is_called_upon_broker_crash(self) -> None:
        """testLogRecoveryIsCalledUponBrokerCrash: recovery runs if and only if there is no clean
        marker, also after a crash during loading (F-47)."""
        disk = Disk()
        filled(disk, 8).close()

        def recovered() -> bool:
            with manager(disk) as logs:
                return not logs.get("topic", 0).recovery_report.clean

        assert recovered()
        assert not recovered()
        with manager(disk) as logs:
            logs.crash()
        assert recovered()
        assert not recovered()
        disk.remove_all(".index")  # something to do while loading
        disk.storage.crash_after(4)
        with pytest.raises(SimulatedCrash):
            manager(disk)
        disk.storage.crash(mode="all_kept")
        assert recovered()
        assert not recovered()

    def test_log_recovers_to_correct_offset(self) -> None:
        """testLogRecoversToCorrectOffset, testCleanShutdownFile: LEO and lookups are equal before
        and after; the recovery point is honoured, and after a clean stop it is LEO (F-247)."""
        disk = Disk(index_interval_bytes=100)
        with filled(disk, 8, 16) as log:
            before = lookups(log)
        for clean, point, scanned in ((True, 24, 0), (False, 24, 1), (False, 9, 2), (False, 0, 3)):
            log = disk.open(clean_shutdown=clean, recovery_point=point)
            assert lookups(log) == before
            assert log.recovery_point == point
            assert log.recovery_report.segments_scanned == scanned
            log.close()

    @pytest.mark.parametrize(
        ("clean", "garbage"), [(True, False), (False, False), (False, True)], ids=str
    )
    def test_index_rebuild(self, clean: bool, garbage: bool) -> None:
        """testIndexRebuild, testCorruptIndexRebuild, testRecoveryFixesCorruptIndex,
        …CorruptTimeIndex: indexes that are gone, or full of garbage, make no visible difference
        (F-232, F-242)."""
        disk = Disk(index_interval_bytes=100)
        with filled(disk, 8, 16) as log:
            before = lookups(log)
        rng = random.Random(3)
        for name in disk.names("index"):
            if garbage:
                disk.write(name, rng.randbytes(len(disk.read(name))))
            else:
                disk.remove(name)
        with disk.open(clean_shutdown=clean) as log:
            assert lookups(log) == before

    def test_bogus_index_segments_are_removed(self) -> None:
        """testBogusIndexSegmentsAreRemoved: index files without a log are deleted (F-241)."""
        disk = Disk()
        filled(disk, 8).close()
        for suffix in (".index", ".timeindex", ".txnindex"):
            disk.write(file_name(5, suffix), b"\0" * 24)
        with disk.open(clean_shutdown=True) as log:
            assert all_offsets(log) == list(range(24))
        assert disk.bases("index") == [0, 0, 8, 8]

    def test_open_deletes_obsolete_files(self) -> None:
        """testOpenDeletesObsoleteFiles: ``.deleted`` leftovers disappear on open (F-238)."""
        disk = Disk(file_delete_delay_ms=1000)
        with filled(disk, 8, 16) as log:
            log.replica.maybe_increment_log_start_offset(16)
            assert log.maintenance.delete_old_segments() == 2
            assert len(disk.names(".deleted")) == 7
            log.crash()
        with disk.open() as log:
            assert all_offsets(log) == list(range(16, 24))
        assert not disk.names(".deleted")

    @pytest.mark.parametrize("seed", range(3))
    def test_corrupt_log(self, seed: int) -> None:
        """testCorruptLog: random garbage behind log and index costs nothing that was valid
        (F-233)."""
        rng = random.Random(seed)
        disk = Disk(index_interval_bytes=100)
        with filled(disk, 8, 16) as log:
            before = lookups(log)
        for suffix in (".log", ".index"):
            name = file_name(16, suffix)
            disk.write(name, disk.read(name) + rng.randbytes(rng.randint(1, 100)))
        with disk.open() as log:
            assert lookups(log) == before

    @pytest.mark.parametrize(
        ("lost", "point"),
        [
            (b"", 0),
            (b"0\n0\n", 0),
            (b"0\n1\n0 0\n", 0),
            (b"0\n2\n0 0\n1 4\n", 0),
            (b"0\n3\n0 0\n1 4\n2 5\n", 7),
        ],
    )
    def test_log_recovers_for_leader_epoch(self, lost: bytes, point: int) -> None:
        """testLogRecoversForLeaderEpoch, testRecoveryRebuildsEpochCache: the epoch cache is
        restored from the batches when the file lost entries."""
        disk = Disk()
        log = disk.open(replicated=True)
        for offset, epoch in ((0, 0), (4, 1), (5, 2), (7, 2), (9, 5)):
            if offset == 7:
                log.roll()
            log.replica.append_as_follower(batch(offset, epoch=epoch))
        expected = log.epochs.entries
        log.close()
        disk.write(EPOCHS, lost)
        with disk.open(recovery_point=point) as log:
            assert log.epochs.entries == expected == ((0, 0), (1, 4), (2, 5), (5, 9))

    @pytest.mark.parametrize("lost", ["all indexes", "all snapshots", "last segment", "both"])
    def test_full_transaction_index_recovery(self, lost: str) -> None:
        """testFullTransactionIndexRecovery, testRecoverOnlyLastSegment,
        testRecoverLastSegmentWithNoSnapshots, testRecoverTransactionIndex: aborted ranges are
        complete whichever files were lost, also of transactions that begin in an earlier segment
        (F-122, F-234)."""
        disk = Disk()
        log = with_transactions(disk)
        expected = log.reader.aborted_transactions(0, log.log_end_offset)
        state = log.replica.first_unstable_offset, producer_facts(log)
        assert len(expected) == 4
        log.close()
        last = log.segments[-1].base_offset
        if lost in ("all indexes", "both"):
            disk.remove_all(".txnindex")
        if lost in ("all snapshots", "both"):
            disk.remove_all(".snapshot")
        if lost == "last segment":
            disk.remove(file_name(last, ".txnindex"))
        point = last if lost in ("last segment", "all snapshots") else 0
        with disk.open(recovery_point=point) as log:
            assert log.reader.aborted_transactions(0, log.log_end_offset) == expected
            assert (log.replica.first_unstable_offset, producer_facts(log)) == state

    def test_recover_with_empty_active_segment(self) -> None:
        """testRecoverWithEmptyActiveSegment: an empty last segment without index is fine."""
        for clean in (True, False):
            disk = Disk()
            log = filled(disk, 8)
            log.roll()
            log.close()
            disk.remove(file_name(24, ".index"), file_name(24, ".timeindex"))
            with disk.open(clean_shutdown=clean) as log:
                assert [s.base_offset for s in log.segments] == [0, 8, 24]
                assert log.log_end_offset == 24
                log.append_as_leader(batch(), 0)
                assert all_offsets(log) == list(range(25))

    def test_producer_snapshots_recovery_after_unclean_shutdown(self) -> None:
        """testProducerSnapshotsRecoveryAfterUncleanShutdownCurrentMessageFormat: after recovery
        there is a snapshot for each segment that was scanned and for the end; only what lies above
        the newest usable one is replayed."""
        disk = Disk()
        log = disk.open()
        for sequence in range(12):
            if sequence and sequence % 3 == 0:
                log.roll()
            log.append_as_leader(produced(1, sequence), 0)
        expected = producer_facts(log)
        log.crash()
        assert disk.bases(".snapshot") == [3, 6, 9]
        disk.remove(file_name(9, ".snapshot"))
        with disk.open(recovery_point=6) as log:
            assert log.recovery_report.segments_scanned == 2
            assert disk.bases(".snapshot") == [3, 6, 9, 12]
            assert producer_facts(log)[1][-1] == expected[1][-1]

    def test_load_producers_after_delete_records_mid_segment(self) -> None:
        """testLoadProducersAfterDeleteRecordsMidSegment: deleting records does not forget producers
        (F-286), and whoever has a record left is known after a reload."""
        disk = Disk()
        log = disk.open()
        log.append_as_leader(produced(1, 0), 0)
        log.append_as_leader(produced(2, 0), 0)
        assert log.delete_records(1) == 1
        assert set(log.producers.known.producers) == {1, 2}
        log.crash()
        with disk.open(log_start_offset=1) as log:
            assert log.log_start_offset == 1
            assert log.producers.known.producers[2].last_sequence == 0
            assert log.append_as_leader(produced(2, 0), 0).duplicate


def manager(disk: Disk) -> LogManager:
    return LogManager(["/logs"], disk.config, storage=disk.storage, clock=disk.clock)


def with_transactions(disk: Disk) -> PartitionLog:
    """Five transactions over four segments, the last one open; four of them aborted."""
    log = disk.open()

    def end(producer_id: int, commit: bool = False) -> None:
        data = marker(commit=commit, producer_id=producer_id)
        log.append_as_leader(data, 0, AppendOrigin.COORDINATOR)

    def data(producer_id: int, sequence: int) -> None:
        log.append_as_leader(produced(producer_id, sequence, 2, transactional=True), 0)

    data(1, 0)
    data(2, 0)
    log.append_as_leader(batch(), 0)
    end(1)
    log.roll()
    data(1, 2)
    data(3, 0)
    log.roll()
    end(2)
    end(3)
    data(1, 4)
    log.roll()
    end(1)
    data(2, 2)
    return log


def producer_facts(log: PartitionLog) -> dict[int, tuple[int, ...]]:
    return {
        p.producer_id: (
            p.producer_epoch,
            p.coordinator_epoch,
            p.current_txn_first_offset,
            p.last_sequence,
        )
        for p in log.producers.known.producers.values()
    }


@pytest.mark.parametrize(
    ("new", "old", "replaced"),
    [
        pytest.param({0: ".cleaned", 4: ".cleaned"}, "", False, id="phase1: only copies"),
        pytest.param({0: ".cleaned", 4: ".swap"}, "", False, id="phase2: one is complete"),
        pytest.param({0: ".swap", 4: ".swap"}, "", True, id="phase3: both are"),
        pytest.param({0: ".swap", 4: ".swap"}, ".deleted", True, id="phase4: the original is gone"),
        pytest.param({0: "", 4: ".swap"}, ".deleted", True, id="phase5: one has its name"),
        pytest.param({0: ".swap", 4: ""}, ".deleted", True, id="phase5: the other has"),
    ],
)
def test_recovery_after_crash_during_split(new: dict[int, str], old: str, replaced: bool) -> None:
    """testRecoveryAfterCrashDuringSplitPhase1 … 5: a segment is replaced by two, and a crash comes
    in between (F-238 … F-240, F-265, F-266, F-309)."""
    source, split, disk = Disk(), Disk(), Disk()
    filled(source, end=8).close()
    filled(split, 4, end=8).close()
    for name in source.names():
        if name.endswith((".log", "index")):
            disk.write(name + old, source.read(name))
    for base, suffix in new.items():
        for kind in (".log", ".index", ".timeindex"):
            disk.write(file_name(base, kind) + suffix, split.read(file_name(base, kind)))
    for _ in range(2):
        with disk.open() as log:
            assert all_offsets(log) == list(range(8))
            assert bases(log) == ([0, 4] if replaced else [0])
        assert not disk.names(".swap") + disk.names(".cleaned") + disk.names(".deleted")


@pytest.fixture
def stopped() -> Disk:
    """Segments 0, 8, 16 with two-record batches, LEO 24, stopped cleanly (F-253 … F-267)."""
    disk = Disk()
    filled(disk, 8, 16).close()
    return disk


class TestOutcomes:
    def test_clean_without_snapshots(self, stopped: Disk) -> None:
        """F-253: empty snapshots at 8, 16, 24; nothing scanned; RP 24."""
        stopped.remove_all(".snapshot")
        with stopped.open(clean_shutdown=True) as log:
            assert log.recovery_report.batches_scanned == 0
            assert log.recovery_point == 24
            assert stopped.bases(".snapshot") == [8, 16, 24]
        for name in stopped.names(".snapshot"):
            assert stopped.read(name).hex() == "000148674bc700000000"

    def test_unclean_from_the_start(self, stopped: Disk) -> None:
        """F-254: all segments rebuilt, snapshots 8, 16, 24, epochs rebuilt, RP stays 0."""
        stopped.remove_all("index")
        stopped.remove_all(".snapshot")
        stopped.write(EPOCHS, b"")
        with stopped.open() as log:
            assert log.recovery_report.segments_scanned == 3
            assert log.epochs.entries == ((0, 0),)
            assert log.recovery_point == 0
            assert stopped.bases(".snapshot") == [8, 16, 24]
            assert all_offsets(log) == list(range(24))

    def test_unclean_with_a_recovery_point(self, stopped: Disk) -> None:
        """F-255: only segment 16 rebuilt. Stricter: a lost epoch file is derived from all batches;
        Kafka rebuilds it from segment 16 alone and forgets where the epoch began."""
        stopped.remove(EPOCHS)
        with stopped.open(recovery_point=16) as log:
            assert log.recovery_report.segments_scanned == 1
            assert log.recovery_point == 16
            assert log.epochs.entries == ((0, 0),)

    def _damage(self, disk: Disk) -> None:
        """One bit in the second batch of segment 8."""
        disk.storage.flip(disk.path(file_name(8, ".log")), PAIR + 80)

    def test_damage_above_the_recovery_point(self, stopped: Disk) -> None:
        """F-256: segment 8 cut to offset 10, segment 16 gone; LEO 10; snapshot 10; RP 8."""
        self._damage(stopped)
        options = RecoveryOptions(keep_cut="never")
        with stopped.open(recovery_point=8, options=options) as log:
            assert bases(log) == [0, 8]
            assert log.log_end_offset == 10
            assert log.recovery_point == 8
            assert stopped.bases(".snapshot") == [8, 10]
            assert all_offsets(log) == list(range(10))
        assert stopped.bases(".log") == [0, 8]

    def test_cut_batches_are_kept_aside(self, stopped: Disk) -> None:
        """F-256, stricter: whole batches behind the damage are not thrown away."""
        self._damage(stopped)
        stopped.open(recovery_point=8).close()
        assert stopped.names(".cut") == [file_name(8, ".log.175.cut"), file_name(16, ".log.0.cut")]

    def test_damage_below_the_recovery_point(self, stopped: Disk) -> None:
        """F-257: not noticed; a reader of the batch is told."""
        self._damage(stopped)
        with stopped.open(recovery_point=16) as log:
            assert log.log_end_offset == 24
            assert log.recovery_report.bytes_cut == 0

    def test_clean_with_a_torn_last_batch(self, stopped: Disk) -> None:
        """F-258, F-268: LEO 22. Kafka leaves the torn bytes, and its next append follows them;
        here they are cut when the log is opened."""
        name = file_name(16, ".log")
        whole = stopped.read(name)
        stopped.write(name, whole[:-10])
        with stopped.open(clean_shutdown=True) as log:
            assert log.log_end_offset == 22
            assert stopped.read(name) == whole[:-PAIR]
            log.append_as_leader(batch(), 0)
            assert all_offsets(log) == list(range(23))

    @pytest.mark.parametrize("tail", ["torn", "zeros", "torn and zeros"])
    def test_unclean_with_a_bad_tail(self, stopped: Disk, tail: str) -> None:
        """F-259: cut, LEO 22."""
        name = file_name(16, ".log")
        whole = stopped.read(name)
        kept = {"torn": 100, "zeros": 0, "torn and zeros": 100}[tail]
        stopped.write(name, whole[: -PAIR + kept] + bytes(PAIR - kept if "zeros" in tail else 0))
        with stopped.open(recovery_point=16) as log:
            assert log.log_end_offset == 22
            assert stopped.read(name) == whole[:-PAIR]

    def test_clean_without_an_index(self, stopped: Disk) -> None:
        """F-260: that segment is rebuilt."""
        stopped.remove(file_name(8, ".index"))
        with stopped.open(clean_shutdown=True) as log:
            assert [a for a in log.recovery_report.actions if file_name(8, ".log") in a]
            assert log.read(13, 1).records()[0].offset == 13

    def test_clean_without_a_time_index(self, stopped: Disk) -> None:
        """F-261: Kafka starts it empty; here it is rebuilt, so that lookups stay right."""
        name = file_name(8, ".timeindex")
        before = stopped.read(name)
        stopped.remove(name)
        with stopped.open(clean_shutdown=True):
            assert stopped.read(name) == before

    @pytest.mark.parametrize("clean", [True, False])
    def test_without_a_log(self, stopped: Disk, clean: bool) -> None:
        """F-262: its indexes are deleted, a gap remains, no error."""
        stopped.remove(file_name(8, ".log"))
        with stopped.open(clean_shutdown=clean) as log:
            assert bases(log) == [0, 16]
            assert all_offsets(log) == [*range(8), *range(16, 24)]
            assert log.read(10).records()[0].offset == 16
        assert stopped.bases("index") == [0, 0, 16, 16]

    def test_log_start_inside(self, stopped: Disk) -> None:
        """F-263: LST 10; all three segments are kept until retention."""
        with stopped.open(clean_shutdown=True, log_start_offset=10) as log:
            assert log.log_start_offset == 10
            assert bases(log) == [0, 8, 16]
            assert log.maintenance.delete_old_segments() == 1
            assert bases(log) == [8, 16]
            assert log.log_start_offset == 10
            assert all_offsets(log) == list(range(10, 24))

    @pytest.mark.parametrize("clean", [True, False])
    def test_log_start_beyond(self, stopped: Disk, clean: bool) -> None:
        """F-264: everything deleted, an empty segment at 100, LEO 100."""
        with stopped.open(clean_shutdown=clean, log_start_offset=100) as log:
            assert bases(log) == [100]
            assert log.log_start_offset == log.log_end_offset == log.high_watermark == 100
            assert log.epochs.entries == ()
            log.append_as_leader(batch(), 0)
            assert all_offsets(log) == [100]

    def test_swap_below_a_cleaned_file(self, stopped: Disk) -> None:
        """F-238: a ``.swap`` at 0 is complete although a ``.cleaned`` at 8 is not."""
        for kind in (".log", ".index", ".timeindex"):
            stopped.write(file_name(0, kind) + ".swap", stopped.read(file_name(0, kind)))
        stopped.write(file_name(8, ".log") + ".cleaned", b"unfinished")
        with stopped.open(clean_shutdown=True) as log:
            assert all_offsets(log) == list(range(24))
        assert any("swap to" in action for action in log.recovery_report.actions)

    def test_epochs_are_cut_on_both_sides(self, stopped: Disk) -> None:
        """F-249, F-267: epochs {1@0, 2@8, 3@16, 9@24, 10@30}, LST 10 → {2@10, 3@16}."""
        stopped.write(EPOCHS, b"0\n5\n1 0\n2 8\n3 16\n9 24\n10 30\n")
        with stopped.open(clean_shutdown=True, log_start_offset=10) as log:
            assert log.epochs.entries == ((2, 10), (3, 16))
        assert stopped.read(EPOCHS) == b"0\n2\n2 10\n3 16\n"

    @pytest.mark.parametrize(("point", "expected"), [(0, 10), (10, 10), (12, 12), (40, 16)])
    def test_recovery_point_after_an_unclean_load(
        self, stopped: Disk, point: int, expected: int
    ) -> None:
        """F-247, F-250: the checkpoint, raised to LST, never raised by recovery. One above the
        LEO is of records that were cut, and says nothing of the last segment (Kafka: the LEO)."""
        with stopped.open(recovery_point=point, log_start_offset=10) as log:
            assert log.recovery_point == expected

    def test_opening_twice_is_opening_once(self, stopped: Disk) -> None:
        self._damage(stopped)
        stopped.open().close()
        once = stopped.files()
        log = stopped.open()
        assert log.recovery_report.bytes_cut == 0
        log.close()
        assert stopped.files() == once

    def test_an_empty_directory_starts_at_the_log_start(self) -> None:
        """F-246: no segments at all: a new one at the checkpointed LST."""
        with Disk().open(log_start_offset=7) as log:
            assert (log.log_start_offset, log.log_end_offset) == (7, 7)
            assert bases(log) == [7]

    def test_a_partition_on_its_way_out_is_not_recovered(self) -> None:
        """F-244."""
        disk = Disk()
        disk.directory = "/logs/topic-0.0123456789abcdef0123456789abcdef-delete"
        disk.storage.make_dir(disk.directory)
        disk.write(file_name(0, ".log"), batch(0, 2)[:-1] + b"?")
        log = disk.open(config=log_config())
        assert log.recovery_report.segments_scanned == 0
        log.crash()
