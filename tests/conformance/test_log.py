"""Kafka's UnifiedLogTest and LocalLogTest under their names; rolling, truncation and retention
(F-142 … F-147, F-269 … F-287): what a log does to its segments, offsets and epochs, where
tests/property has its records alone."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable

import pytest

from logstore.common.errors import (
    InconsistentTopicIdError,
    InvalidRecordError,
    OffsetOutOfRangeError,
    OffsetsOutOfOrderError,
    OutOfOrderSequenceError,
    PolicyViolationError,
    RecordListTooLargeError,
    RecordTooLargeError,
    StorageFailedError,
    UnexpectedAppendOffsetError,
)
from logstore.format.codecs.compression import Compression
from logstore.log import PartitionLog
from logstore.segments.producer_state import AppendOrigin
from tests.support.builders import (
    NOW,
    PAIR,
    Disk,
    all_offsets,
    batch,
    file_name,
    marker,
    offsets,
    produced,
)
from tests.support.logs import check_invariants, take_producer_snapshot

TOPIC_ID = uuid.UUID(int=0x0102030405060708090A0B0C0D0E0F10)


def lead(log: PartitionLog, count: int, *, timestamp: int = NOW) -> None:
    """``count`` batches of two records, one a call."""
    for i in range(count):
        log.append_as_leader(batch(count=2, timestamp=timestamp + i), 0)


def bases(log: PartitionLog) -> list[int]:
    return [segment.base_offset for segment in log.segments]


def epochs(log: PartitionLog) -> list[tuple[int, ...]]:
    return [tuple(entry) for entry in log.epochs.entries]


def segmented(disk: Disk, *, replicated: bool = True) -> PartitionLog:
    """Segments 0, 8, 16 of two-record batches of epochs 1, 2, 3; LEO = HW = 24."""
    log = disk.open(replicated=replicated)
    for epoch, base in enumerate((0, 8, 16), 1):
        if base:
            log.roll()
        for offset in range(base, base + 8, 2):
            log.replica.append_as_follower(batch(offset, 2, epoch=epoch, timestamp=NOW + offset))
    if replicated:
        log.replica.update_high_watermark(24)
    return log


class TestUnifiedLog:
    def test_high_watermark_maintenance(self) -> None:
        """testHighWatermarkMaintenance: HW starts at the log start, is clamped to LEO, falls with
        a truncation (F-250, F-277)."""
        with Disk().open(replicated=True, log_start_offset=3) as log:
            assert log.high_watermark == 3
            lead(log, 2)
            assert log.high_watermark == 3
            assert log.replica.update_high_watermark(5) == 5
            assert log.replica.update_high_watermark(1) == 3
            assert log.replica.update_high_watermark(100) == 7
            assert log.replica.maybe_increment_high_watermark(5) is None
            log.truncate_to(5)
            assert log.high_watermark == 5
            log.maintenance.truncate_fully_and_start_at(50)
            assert log.high_watermark == 50
            with pytest.raises(ValueError):
                log.replica.maybe_increment_high_watermark(51)

    def test_fetch_up_to_last_stable_offset(self) -> None:
        """testFetchUpToLastStableOffset: read_committed stops at the first open transaction."""
        with Disk().open() as log:
            lead(log, 2)
            log.append_as_leader(produced(1, 0, 2, transactional=True), 0)
            lead(log, 1)
            for start in range(4):
                assert offsets(log.read(start, committed=True).records()) == [*range(start, 4)]
            assert log.read(5, committed=True).data == b""
            log.append_as_leader(marker(commit=False), 0, AppendOrigin.COORDINATOR)
            fetched = log.read(0, committed=True)
            assert offsets(fetched.records()) == [0, 1, 2, 3, 6, 7]
            assert [(t.producer_id, t.first_offset) for t in fetched.aborted] == [(1, 4)]

    @pytest.mark.parametrize("target", [0, 7, 8, 9, 23, 24, 25])
    def test_truncate_to(self, target: int) -> None:
        """testTruncateTo: sizes and counts are exact; a batch that contains the target is gone, and
        the log ends where it began, so that it can be fetched again. Kafka's log ends at the target
        and refuses that batch ever after (F-272, F-281)."""
        disk = Disk(index_interval_bytes=100)
        with segmented(disk) as log:
            assert log.truncate_to(target) is (target < 24)
            end = min(target, 24) // 2 * 2
            assert log.log_end_offset == end
            assert log.size == end // 2 * PAIR
            assert all_offsets(log) == list(range(end))
            assert bases(log) == [b for b in (0, 8, 16) if b <= end or b == 0]
            log.replica.append_as_follower(batch(end, 2, epoch=4))
            assert all_offsets(log) == list(range(end + 2))
            with pytest.raises(ValueError):
                log.truncate_to(-1)  # F-280
        with disk.open() as log:
            assert all_offsets(log) == list(range(end + 2))

    def test_truncate_below_first_unstable_offset(self) -> None:
        """testTruncateBelowFirstUnstableOffset: open transactions above the cut disappear."""
        with Disk().open(replicated=True) as log:
            lead(log, 2)
            log.append_as_leader(produced(1, 0, transactional=True), 0)
            lead(log, 1)
            log.replica.update_high_watermark(7)
            assert (log.replica.first_unstable_offset, log.last_stable_offset) == (4, 4)
            log.truncate_to(4)
            assert log.replica.first_unstable_offset is None
            assert log.last_stable_offset == 4
            assert 1 not in log.producers.known.producers

    def test_read_out_of_range(self) -> None:
        """testReadOutOfRange: below the start or above the end is an error; equal to the end is
        empty (F-155)."""
        with Disk().open(log_start_offset=1024) as log:
            lead(log, 1)
            assert log.read(1026).data == b""
            for offset in (0, 1023, 1027):
                with pytest.raises(OffsetOutOfRangeError) as caught:
                    log.read(offset)
                assert (caught.value.start, caught.value.end) == (1024, 1026)
            assert offsets(log.read(1024).records()) == [1024, 1025]
            # The limit of the reader lies below: nothing for it, but no error.
            assert log.read(1025, up_to=1025).data == b""

    def test_read_with_min_message(self) -> None:
        """testReadWithMinMessage: at least one whole batch, also above the limit (F-158)."""
        with segmented(Disk()) as log:
            for offset in range(8):
                whole = (8 - offset + 1) // 2 * PAIR
                for max_bytes in (0, PAIR - 1, PAIR + 1):
                    fetched = log.read(offset, max_bytes)
                    assert len(fetched) == min(max(max_bytes, PAIR), whole)
                    assert fetched.records()[0].offset == offset
                    without = log.read(offset, max_bytes, minimum_one=False)
                    assert len(without) == min(max_bytes, whole)

    def test_append_with_out_of_order_offsets_throws_exception(self) -> None:
        """testAppendWithOutOfOrderOffsetsThrowsException: followers keep the order of a call
        (F-163)."""
        for order in ((5, 3), (3, 3), (0, 1, 0)):
            with Disk().open() as log:
                data = b"".join(batch(offset) for offset in order)
                with pytest.raises(OffsetsOutOfOrderError):
                    log.replica.append_as_follower(data)
                assert log.log_end_offset == 0

    def test_append_below_expected_offset_throws_exception(self) -> None:
        """testAppendBelowExpectedOffsetThrowsException: nothing below LEO; gaps are fine
        (F-164)."""
        with Disk().open() as log:
            lead(log, 2)
            for base in (0, 2, 3):
                with pytest.raises(UnexpectedAppendOffsetError) as caught:
                    log.replica.append_as_follower(batch(base, 2))
                assert (caught.value.first_offset, caught.value.last_offset) == (base, base + 1)
            log.replica.append_as_follower(batch(9, 2))
            assert all_offsets(log) == [0, 1, 2, 3, 9, 10]

    def test_duplicate_appends(self) -> None:
        """testDuplicateAppends: retries of the last five batches return the original offsets and
        append nothing, on the leader, on who takes over, and after recovery (F-182, F-183, S-56).
        An older one is out of order."""
        leader, follower = Disk(), Disk()
        with leader.open() as log, follower.open() as copy:
            infos = []
            for sequence in range(0, 12, 2):
                data = produced(1, sequence, 2, timestamp=NOW + sequence)
                infos.append(log.append_as_leader(data, 0))
            copy.replica.append_as_follower(log.read(0).data)
            for replica in (log, copy):
                for sequence in range(2, 12, 2):
                    info = replica.append_as_leader(produced(1, sequence, 2), 0)
                    assert info.duplicate
                    assert info.first_offset == infos[sequence // 2].first_offset
                    assert info.last_offset == infos[sequence // 2].last_offset
                    assert info.max_timestamp == NOW + sequence
                assert replica.log_end_offset == 12
                for sequence, count in ((0, 2), (10, 1), (10, 3), (11, 1)):
                    with pytest.raises(OutOfOrderSequenceError):
                        replica.append_as_leader(produced(1, sequence, count), 0)
        with follower.open() as copy:
            assert copy.append_as_leader(produced(1, 10, 2), 0).duplicate
            assert not copy.append_as_leader(produced(1, 12, 2), 0).duplicate

    def test_multiple_producers_with_duplicates_in_single_append(self) -> None:
        """testMultipleProducersWithDuplicatesInSingleAppend: one follower append of batches of
        several producers, the same sequences twice: stored as the leader has them (F-192)."""
        data = b"".join(
            produced(producer, sequence, base_offset=offset)
            for offset, (producer, sequence) in enumerate([(1, 0), (2, 0), (1, 0), (2, 0), (1, 1)])
        )
        with Disk().open() as log:
            info = log.replica.append_as_follower(data)
            assert (info.first_offset, info.last_offset, info.duplicate) == (0, 4, False)
            assert log.read(0).data == data
            assert {i: p.last_sequence for i, p in log.producers.known.producers.items()} == {
                1: 1,
                2: 0,
            }

    def test_a_producer_appends_one_batch_a_call(self) -> None:
        """F-165, F-183: else a retry of the first batch would answer for the second one too.
        Batches without a producer may be several, unlike in Kafka: nothing depends on the call."""
        with Disk().open() as log:
            log.append_as_leader(produced(1, 0), 0)
            with pytest.raises(InvalidRecordError, match="one batch"):
                log.append_as_leader(produced(1, 0) + produced(1, 1), 0)
            assert log.log_end_offset == 1
            log.append_as_leader(batch(count=2) + batch(count=3), 0)
            assert log.log_end_offset == 6

    def test_a_leader_epoch_is_not_negative(self) -> None:
        """F-204, F-219: neither a leader's nor that of a fetched batch of magic 2."""
        with Disk().open() as log:
            calls: tuple[Callable[[], object], ...] = (
                lambda: log.append_as_leader(batch(), -1),
                lambda: log.replica.append_as_follower(batch(epoch=-1)),
                lambda: log.replica.append_as_follower(batch(0, epoch=3) + batch(1, epoch=-1)),
            )
            for refused in calls:
                with pytest.raises(InvalidRecordError, match="epoch"):
                    refused()
            assert log.log_end_offset == 0

    def test_message_size_check(self) -> None:
        """testMessageSizeCheck: the leader refuses a batch above ``max.message.bytes``."""
        with Disk(max_message_bytes=PAIR).open() as log:
            lead(log, 1)
            for data in (batch(count=3), batch() + batch(count=3)):
                with pytest.raises(RecordTooLargeError):
                    log.append_as_leader(data, 0)
            with pytest.raises(RecordTooLargeError):
                log.append([(None, bytes(PAIR))])
            assert log.log_end_offset == 2

    def test_message_size_check_in_append_as_follower(self) -> None:
        """testMessageSizeCheckInAppendAsFollower: a follower accepts what its leader took; here
        also more than a segment, which Kafka refuses (F-161, step 6): segment.bytes may have been
        larger when the leader took it, and the follower would never get past it."""
        with Disk(max_message_bytes=PAIR, segment_bytes=1000).open() as log:
            log.replica.append_as_follower(batch(0, 10, value=b""))
            assert log.log_end_offset == 10
            large = batch(10, 20)
            assert len(large) > 1000
            log.replica.append_as_follower(large)
            assert [s.base_offset for s in log.segments] == [0, 10]
            log.replica.append_as_follower(batch(30, 1))
            assert [s.base_offset for s in log.segments] == [0, 10, 30]
            assert [record.offset for record in log.records()] == list(range(31))
        with Disk(segment_bytes=1000).open() as log, pytest.raises(RecordListTooLargeError):
            log.append_as_leader(batch(0, 20), 0)

    def test_compacted_topic_constraints(self) -> None:
        """testCompactedTopicConstraints: records without key are refused (F-171)."""
        with Disk(cleanup_policy=("compact",)).open() as log:
            log.append_as_leader(batch(key=b"k"), 0)
            log.append([(b"k", b"v")])
            log.append_columns([b"v"], [b"k"])
            log.append_as_leader(marker(commit=True), 0, AppendOrigin.COORDINATOR)
            calls: tuple[Callable[[], object], ...] = (
                lambda: log.append_as_leader(batch(), 0),
                lambda: log.append_as_leader(batch(compression=Compression.GZIP), 0),
                lambda: log.append([(b"k", b"v"), (None, b"v")]),
                lambda: log.append_columns([b"v", b"v"], [b"k", None]),
                lambda: log.append_columns([b"v"]),
            )
            for refused in calls:
                with pytest.raises(InvalidRecordError):
                    refused()
            assert log.log_end_offset == 4

    def test_cannot_delete_segments_at_or_above_high_watermark(self) -> None:
        """testCannotDeleteSegmentsAtOrAboveHighWatermark: log start ≤ HW after retention
        (F-283)."""
        with segmented(Disk(retention_bytes=0)) as log:
            log.replica.update_high_watermark(0)
            for mark in range(0, 25, 3):
                log.replica.update_high_watermark(mark)
                log.maintenance.delete_old_segments()
                assert log.log_start_offset == mark // 8 * 8 <= log.high_watermark
                check_invariants(log)

    def test_cannot_increment_log_start_offset_past_high_watermark(self) -> None:
        """testCannotIncrementLogStartOffsetPastHighWatermark: out of range (F-286)."""
        with segmented(Disk()) as log:
            log.replica.update_high_watermark(10)
            with pytest.raises(OffsetOutOfRangeError):
                log.replica.maybe_increment_log_start_offset(11)
            assert log.log_start_offset == 0
            assert log.replica.maybe_increment_log_start_offset(10)
            assert not log.replica.maybe_increment_log_start_offset(10)
            assert not log.replica.maybe_increment_log_start_offset(9)
            assert log.log_start_offset == 10

    def test_recovery_point_not_incremented_on_producer_state_snapshot_flush_failure(self) -> None:
        """testRecoveryPointNotIncrementedOnProducerStateSnapshotFlushFailure: a failed snapshot
        flush during a roll leaves the recovery point where it was (KAFKA-9892)."""
        disk = Disk()
        log = disk.open()
        lead(log, 2)
        disk.storage.fail("sync", "*.snapshot")
        with pytest.raises(StorageFailedError):
            log.roll()
        assert log.recovery_point == 0
        assert log.failed
        log.close()
        with disk.open() as log:
            assert all_offsets(log) == [0, 1, 2, 3]

    def test_append_to_or_read_from_log_in_failed_log_dir(self) -> None:
        """testAppendToOrReadFromLogInFailedLogDir: every later operation fails (F-224)."""
        disk = Disk()
        log = segmented(disk)
        disk.storage.fail("write", "*.log")
        for operation in (
            lambda: log.append_as_leader(batch(), 3),
            lambda: log.append_as_leader(batch(), 3),
            lambda: log.replica.append_as_follower(batch(24)),
            lambda: log.append([(None, b"v")]),
            lambda: log.read(0),
            lambda: list(log.records()),
            lambda: log.offset_for_timestamp(0),
            lambda: log.flush(),
            lambda: log.roll(),
            lambda: log.truncate_to(3),
            lambda: log.maintenance.truncate_fully_and_start_at(3),
            lambda: log.maintenance.delete_old_segments(),
            lambda: log.delete_records(3),
            lambda: log.replica.update_high_watermark(3),
            lambda: log.epochs.assign(9),
            lambda: take_producer_snapshot(log),
        ):
            with pytest.raises(StorageFailedError):
                operation()
        log.close()

    def test_take_snapshot_on_roll_and_retain_snapshot_on_recovery_point_checkpoint(self) -> None:
        """testTakeSnapshotOnRollAndRetainSnapshotOnRecoveryPointCheckpoint: one snapshot a roll,
        which goes with its segment (F-130)."""
        disk = Disk()
        with disk.open() as log:
            for sequence in range(4):
                log.append_as_leader(produced(1, sequence), 0)
                log.roll()
            assert disk.bases(".snapshot") == [1, 2, 3, 4]
            log.flush()
            assert disk.bases(".snapshot") == [1, 2, 3, 4]
            log.delete_records(2)
            log.maintenance.delete_old_segments()
            assert disk.bases(".snapshot") == [2, 3, 4]
            assert log.append_as_leader(produced(1, 3), 0).duplicate
        with disk.open(recovery_point=4) as log:
            assert log.append_as_leader(produced(1, 3), 0).duplicate

    @pytest.mark.parametrize("target", [0, 3, 5, 7, 11, 12])
    def test_producer_id_map_truncate_to(self, target: int) -> None:
        """testProducerIdMapTruncateTo: producer state after a truncation equals a replay up to the
        cut (F-276)."""

        def write(log: PartitionLog, end: int) -> None:
            for offset in range(end):
                if offset in (3, 7):
                    log.roll()
                log.append_as_leader(produced(offset % 3, offset // 3, timestamp=NOW + offset), 0)

        disk, other = Disk(), Disk()
        with disk.open() as log, other.open() as expected:
            write(log, 12)
            write(expected, min(target, 12))
            log.truncate_to(target)
            last = {i: p.batches[-1] for i, p in log.producers.known.producers.items()}
            assert last == {i: p.batches[-1] for i, p in expected.producers.known.producers.items()}
            assert all(base <= target for base in disk.bases(".snapshot"))
            log.append_as_leader(produced(9, 0), 0)

    def test_read_committed_with_concurrent_high_watermark_updates(self) -> None:
        """testReadCommittedWithConcurrentHighWatermarkUpdates: a read_committed reader beside a
        moving high watermark never gets an undecided record."""
        with Disk().open(replicated=True) as log:
            undecided = range(30, 60)
            for base in range(0, 100, 10):
                transactional = base in (30, 40, 50)
                data = produced(1, base - 30, 10, transactional=True) if transactional else None
                log.append_as_leader(data or batch(count=10), 0)
            seen: set[int] = set()
            stop = threading.Event()

            def read() -> None:
                while not stop.is_set():
                    seen.update(offsets(log.read(0, 1 << 20, committed=True).records()))

            reader = threading.Thread(target=read)
            reader.start()
            for mark in [*range(101)] * 3:
                log.replica.update_high_watermark(mark)
            stop.set()
            reader.join()
            assert not seen & set(undecided)
            assert max(seen, default=0) < log.last_stable_offset == 30

    def test_log_flushes_partition_metadata_on_append(self) -> None:
        """testLogFlushesPartitionMetadataOnAppend, testAssigningTopicIdToExistingLog…: the
        topic id is on the disk before the first record (F-37); another one is refused."""
        disk = Disk()
        with disk.open(topic_id=TOPIC_ID) as log:
            assert disk.read("partition.metadata").endswith(b"AQIDBAUGBwgJCgsMDQ4PEA")
            with pytest.raises(InconsistentTopicIdError):
                log.assign_topic_id(uuid.UUID(int=1 << 100))
        with disk.open(clean_shutdown=True) as log:
            assert log.topic_id == TOPIC_ID


# -- truncation -----------------------------------------------------------------------------------


class TestTruncation:
    def test_at_or_above_the_end(self) -> None:
        """F-269 … F-278, first column: nothing but the epoch cache changes, which forgets a
        leadership that wrote nothing (testTruncateToEndOffsetClearsEpochCache, S-6)."""
        disk = Disk()
        with segmented(disk) as log:
            log.flush()
            before = {n: d for n, d in disk.files().items() if n != "leader-epoch-checkpoint"}
            for target in (24, 30):
                log.epochs.assign(9)
                assert log.truncate_to(target) is False
                assert epochs(log) == [(1, 0), (2, 8), (3, 16)]
            after = {n: d for n, d in disk.files().items() if n != "leader-epoch-checkpoint"}
            assert after == before
            assert log.recovery_point == log.high_watermark == 24

    @pytest.mark.parametrize("target", [8, 9, 10])
    def test_inside(self, target: int) -> None:
        """F-269 … F-277, second column."""
        disk = Disk(file_delete_delay_ms=1000)
        with segmented(disk) as log:
            log.flush()
            log.replica.maybe_increment_log_start_offset(9)
            assert log.truncate_to(target) is True
            assert bases(log) == [0, 8]  # F-270: one with base = T stays, empty
            assert {n.partition(".")[0] for n in disk.names(".deleted")} == {f"{16:020d}"}
            end = target // 2 * 2  # the base of the batch that contained it
            assert log.log_end_offset == end  # F-272
            assert log.recovery_point == end  # F-273
            assert log.log_start_offset == min(9, end)  # F-274
            assert epochs(log) == ([(2, 9)] if end > 9 else [])  # F-275
            log.flusher.save_epochs()
            stored = b"0\n1\n2 9\n" if end > 9 else b"0\n0\n"
            assert disk.read("leader-epoch-checkpoint") == stored
            assert all(base <= end for base in disk.bases(".snapshot"))  # F-276
            assert log.high_watermark == end  # F-277
            check_invariants(log)

    def test_rp_and_lst_below_the_target_stay(self) -> None:
        """F-273, F-274, F-277: the minimum of both."""
        with segmented(Disk()) as log:
            log.replica.update_high_watermark(10)
            log.replica.maybe_increment_log_start_offset(3)
            log.truncate_to(18)
            assert (log.log_start_offset, log.recovery_point, log.high_watermark) == (3, 16, 10)

    def test_below_the_first_segment(self) -> None:
        """F-269, third column: N = T."""
        with segmented(Disk()) as log:
            log.replica.maybe_increment_log_start_offset(16)
            log.maintenance.delete_old_segments()
            assert bases(log) == [16]
            assert log.truncate_to(5) is True
            assert bases(log) == [5]
            assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (5, 5, 5)
            assert log.recovery_point == 5

    @pytest.mark.parametrize(
        ("start", "log_start", "mark"), [(30, 30, 30), (30, 40, 40), (5, None, 5)]
    )
    def test_fully(self, start: int, log_start: int | None, mark: int) -> None:
        """testTruncateFullyAndStartAt (F-269 … F-277, third column): an empty segment at N, LST = S
        or N, epochs cleared at once, producers and all snapshots gone."""
        disk = Disk()
        with segmented(disk) as log:
            log.append_as_leader(produced(1, 0), 3)
            log.flush()
            log.maintenance.truncate_fully_and_start_at(start, log_start)
            assert bases(log) == [start]
            assert log.log_end_offset == start
            assert log.recovery_point == min(25, start)
            assert log.log_start_offset == (start if log_start is None else log_start)
            assert epochs(log) == []
            assert disk.read("leader-epoch-checkpoint") == b"0\n0\n"
            assert not log.producers.known.producers
            assert not disk.bases(".snapshot")
            assert log.high_watermark == mark
            log.replica.append_as_follower(batch(start, 2, epoch=7))
            assert log.log_end_offset == start + 2

    def test_a_flush_after_a_cut_at_the_base_of_a_segment(self) -> None:
        """The active segment is empty, and its cut must reach the disk like any other."""
        disk = Disk()
        log = segmented(disk)
        log.flush()
        log.crash()
        log = disk.open(recovery_point=0)
        log.truncate_to(16)
        log.flush()
        log.replica.append_as_follower(batch(16, 2, epoch=8))
        log.crash()
        disk.storage.crash(mode="all_lost")
        with disk.open(recovery_point=16) as log:
            assert all_offsets(log) == list(range(16))

    def test_a_cut_survives_a_power_cut(self) -> None:
        """F-280, stricter: Kafka relies on the lowered recovery point; here the cut is on the disk
        before anything is written behind it."""
        disk = Disk()
        log = segmented(disk)
        log.flush()
        log.truncate_to(10)
        log.replica.append_as_follower(batch(10, 2, epoch=8))
        log.flush()
        log.crash()
        disk.storage.crash(mode="all_lost")
        with disk.open(recovery_point=10) as log:
            assert all_offsets(log) == list(range(12))
            assert epochs(log) == [(1, 0), (2, 8), (8, 10)]


# -- rolling --------------------------------------------------------------------------------------


class TestRolling:
    def test_by_size(self) -> None:
        """F-142: before an append that would not fit."""
        with Disk(segment_bytes=2 * PAIR).open() as log:
            lead(log, 5)
            assert bases(log) == [0, 4, 8]
            assert [s.size for s in log.segments] == [2 * PAIR, 2 * PAIR, PAIR]

    def test_by_time_of_messages(self) -> None:
        """F-142, F-143: message time since the first append counts, not the wall clock: an idle
        partition never rolls, an old first message rolls at once."""
        disk = Disk(segment_ms=1000)
        with disk.open() as log:
            lead(log, 1)
            disk.clock.advance(10_000)
            lead(log, 1, timestamp=NOW + 1000)
            assert bases(log) == [0]
            lead(log, 1, timestamp=NOW + 1001)
            assert bases(log) == [0, 4]
            lead(log, 1, timestamp=NOW - 50_000)  # time that goes back does not roll
            assert bases(log) == [0, 4]
            assert log.append_as_leader(batch(timestamp=NOW + 2002), 0).first_offset == 8
            assert bases(log) == [0, 4, 8]

    def test_by_time_of_messages_after_reopening(self) -> None:
        """F-143: the first append is then the first batch."""
        for clean in (True, False):
            disk = Disk(segment_ms=1000)
            with disk.open() as log:
                lead(log, 2, timestamp=NOW)
            with disk.open(clean_shutdown=clean) as log:
                lead(log, 1, timestamp=NOW + 1000)
                assert bases(log) == [0]
                lead(log, 1, timestamp=NOW + 1001)
                assert bases(log) == [0, 6]

    def test_by_wall_clock_without_timestamps(self) -> None:
        """F-143: where the first append had no timestamp, the age of the segment counts; an empty
        segment never rolls by time."""
        disk = Disk(segment_ms=1000)
        with disk.open() as log:
            disk.clock.advance(5000)
            log.append_as_leader(batch(timestamp=-1), 0)
            assert bases(log) == [0]
            log.append_as_leader(batch(timestamp=-1), 0)
            assert bases(log) == [0, 1]
            disk.clock.advance(1000)
            log.append_as_leader(batch(timestamp=-1), 0)
            assert bases(log) == [0, 1]
            disk.clock.advance(1)
            log.append_as_leader(batch(timestamp=-1), 0)
            assert bases(log) == [0, 1, 3]

    def test_compaction_lag_rolls(self) -> None:
        """F-144: with compaction the smaller of ``segment.ms`` and ``max.compaction.lag.ms``."""
        policy = {"segment_ms": 5000, "max_compaction_lag_ms": 100}
        for cleanup, expected in (("delete", [0]), ("compact", [0, 1])):
            with Disk(cleanup_policy=(cleanup,), **policy).open() as log:
                for stamp in (0, 101):
                    log.append_as_leader(batch(key=b"k", timestamp=NOW + stamp), 0)
                assert bases(log) == expected

    def test_new_base_after_a_gap(self) -> None:
        """F-145: Kafka takes the first offset of the append. Here the segment follows the one
        before it, unless an index entry could not reach over the gap."""
        with Disk(segment_bytes=PAIR).open(replicated=True) as log:
            log.replica.append_as_follower(batch(0, 2))
            log.replica.append_as_follower(batch(10, 2))
            assert bases(log) == [0, 2]
            assert all_offsets(log) == [0, 1, 10, 11]
            assert offsets(log.read(5).records()) == [10, 11]
            log.roll()
            assert bases(log) == [0, 2, 12]
            assert log.log_end_offset == 12

    def test_new_base_after_a_gap_that_no_index_reaches_over(self) -> None:
        """What lies before it is durable first: a start takes such a gap for a lost tail."""
        disk, later, far = Disk(), [], 2**31 + 10
        log = disk.open(replicated=True, background=later.append)
        log.replica.append_as_follower(batch(0, 2))
        log.replica.append_as_follower(batch(far, 2))
        assert bases(log) == [0, far]
        assert log.recovery_point == 2
        log.crash()
        disk.storage.crash(mode="all_kept")
        with disk.open(replicated=True) as log:
            assert all_offsets(log) == [0, 1, far, far + 1]
            assert log.recovery_report.bytes_cut == 0

    def test_an_append_that_spans_more_than_a_segment(self) -> None:
        """A fetch from a compacted leader; Kafka's segment refuses it."""
        far = 3_000_000_000
        with Disk().open(replicated=True) as log:
            info = log.replica.append_as_follower(batch(0, 2) + batch(far, 2))
            assert (info.first_offset, info.last_offset, info.record_count) == (0, far + 1, 4)
            assert bases(log) == [0, far]
            assert all_offsets(log) == [0, 1, far, far + 1]

    def test_steps(self) -> None:
        """F-146: stale files of the new name go; the old segment is trimmed; a snapshot; the flush
        and the recovery point follow in the background."""
        disk = Disk()
        later: list[Callable[[], None]] = []
        log = disk.open(background=later.append)
        disk.write(file_name(2, ".txnindex"), b"stale")
        log.append_as_leader(produced(1, 0, 2), 0)
        assert len(disk.read(file_name(0, ".index"))) == 1200
        log.roll()
        assert disk.read(file_name(0, ".index")) == b""
        assert len(disk.read(file_name(0, ".timeindex"))) == 12
        assert len(disk.read(file_name(2, ".index"))) == 1200
        assert file_name(2, ".txnindex") not in disk.names()
        assert disk.bases(".snapshot") == [2]
        assert log.recovery_point == 0
        (task,) = later
        task()
        assert log.recovery_point == 2
        log.crash()
        disk.storage.crash(mode="all_lost")
        with disk.open(recovery_point=2) as log:
            assert all_offsets(log) == [0, 1]
            assert log.producers.known.producers[1].last_sequence == 1

    def test_an_empty_active_segment(self) -> None:
        """F-147: begun afresh when its index has no slots; left alone by a plain roll."""
        disk = Disk(segment_index_bytes=4)
        with disk.open() as log:
            lead(log, 3)
            assert bases(log) == [0, 2, 4]
            assert all_offsets(log) == list(range(6))
            log.roll()
            log.roll()
            assert bases(log) == [0, 2, 4, 6]


# -- retention ------------------------------------------------------------------------------------


class TestRetention:
    def test_by_log_start(self) -> None:
        """F-282, *start*: next base ≤ LST; runs whatever the policy; the active segment has no
        next base (F-284)."""
        with segmented(Disk(cleanup_policy=("compact",))) as log:
            for start, left in ((7, [0, 8, 16]), (8, [8, 16]), (24, [16])):
                log.replica.maybe_increment_log_start_offset(start)
                log.maintenance.delete_old_segments()
                assert bases(log) == left
            assert log.log_start_offset == 24

    @pytest.mark.parametrize(
        ("limit", "left"),
        [
            (12 * PAIR, [0, 8, 16]),
            (12 * PAIR - 1, [0, 8, 16]),
            (8 * PAIR + 1, [0, 8, 16]),
            (8 * PAIR, [8, 16]),
            (4 * PAIR, [16]),
            (1, [16]),
            (0, [24]),
            (-1, [0, 8, 16]),
        ],
    )
    def test_by_size(self, limit: int, left: list[int]) -> None:
        """F-282, *size*: a segment goes if it is no larger than the excess that is left; the epochs
        begin where the log begins (shouldTruncateLeaderEpochsWhenDeletingSegments)."""
        disk = Disk(retention_bytes=limit)
        with segmented(disk) as log:
            log.maintenance.delete_old_segments()
            assert bases(log) == left
            assert log.log_start_offset == left[0]
            assert epochs(log)[0] == (min(left[0] // 8 + 1, 3), left[0])
            text = "".join(f"{epoch} {start}\n" for epoch, start in epochs(log))
            assert disk.read("leader-epoch-checkpoint").decode() == f"0\n{len(epochs(log))}\n{text}"

    @pytest.mark.parametrize(
        ("age", "left"), [(1000, [0, 8, 16]), (1006, [0, 8, 16]), (1007, [8, 16]), (1023, [24])]
    )
    def test_by_time(self, age: int, left: list[int]) -> None:
        """F-282, *time*: now − largest timestamp > limit; if all qualify an empty segment remains
        at LEO (F-284)."""
        disk = Disk(retention_ms=1000)
        with segmented(disk) as log:
            disk.clock.advance(age)
            log.maintenance.delete_old_segments()
            assert bases(log) == left
            assert log.log_end_offset == 24

    def test_by_modification_time(self) -> None:
        """F-148: without any timestamp the file's modification time counts."""
        disk = Disk(retention_ms=1000)
        with disk.open() as log:
            log.append_as_leader(batch(timestamp=-1), 0)
            log.roll()
            disk.clock.advance(1000)
            assert log.maintenance.delete_old_segments() == 0
            disk.clock.advance(1)
            assert log.maintenance.delete_old_segments() == 1
            assert bases(log) == [1]

    def test_the_modification_time_moves(self) -> None:
        """F-148: an append to the active segment makes it younger, whenever it was asked before."""
        disk = Disk(retention_ms=1000)
        with disk.open() as log:
            log.append_as_leader(batch(timestamp=-1), 0)
            disk.clock.advance(500)
            assert log.maintenance.delete_old_segments() == 0
            log.append_as_leader(batch(timestamp=-1), 0)
            disk.clock.advance(1000)
            assert log.maintenance.delete_old_segments() == 0
            assert all_offsets(log) == [0, 1]

    def test_size_and_time_need_the_policy(self) -> None:
        """F-282."""
        disk = Disk(retention_ms=1, retention_bytes=0, cleanup_policy=("compact",))
        with segmented(disk) as log:
            disk.clock.advance(1_000_000)
            assert log.maintenance.delete_old_segments() == 0

    def test_an_empty_last_segment_stays(self) -> None:
        """F-283."""
        disk = Disk(retention_ms=1)
        with segmented(disk) as log:
            log.roll()
            disk.clock.advance(1000)
            assert log.maintenance.delete_old_segments() == 3
            assert bases(log) == [24]
            disk.clock.advance(1000)
            assert log.maintenance.delete_old_segments() == 0

    def test_the_first_that_fails_ends_a_condition(self) -> None:
        """F-282: a young segment protects older-looking ones behind it."""
        disk = Disk(retention_ms=1000)
        with disk.open() as log:
            for stamp in (NOW - 5000, NOW, NOW - 5000):
                log.append_as_leader(batch(timestamp=stamp), 0)
                log.roll()
            assert log.maintenance.delete_old_segments() == 1
            assert bases(log) == [1, 2, 3]

    def test_files_are_renamed_now_and_removed_later(self) -> None:
        """testChangeFileSuffixes: all files of the segment, and the snapshot at its base (F-285,
        F-288)."""
        disk = Disk(retention_bytes=4 * PAIR, file_delete_delay_ms=1000)
        with segmented(disk) as log:
            disk.write(file_name(8, ".txnindex"), b"")
            assert disk.bases(".snapshot") == [8, 16]
            log.maintenance.delete_old_segments()
            assert disk.bases(".snapshot") == [16]
            assert sorted(disk.names(".deleted")) == sorted(
                [
                    file_name(b, s) + ".deleted"
                    for b in (0, 8)
                    for s in (".log", ".index", ".timeindex")
                ]
                + [file_name(8, ".snapshot.deleted"), file_name(8, ".txnindex.deleted")]
            )
            disk.clock.advance(999)
            assert log.maintenance.purge_deleted(disk.clock.wall_ms()) == 0
            disk.clock.advance(1)
            assert log.maintenance.purge_deleted(disk.clock.wall_ms()) == 8
            assert not disk.names(".deleted")

    def test_raising_the_log_start(self) -> None:
        """F-286: raises RP if below; trims the epochs; keeps producers and snapshots."""
        disk = Disk()
        with segmented(disk) as log:
            log.append_as_leader(produced(1, 0), 3)
            log.replica.update_high_watermark(25)
            assert log.recovery_point == 16
            snapshots = disk.bases(".snapshot")
            log.replica.maybe_increment_log_start_offset(25)
            assert log.recovery_point == 25
            assert epochs(log) == [(3, 25)]
            assert 1 in log.producers.known.producers
            assert disk.bases(".snapshot") == snapshots

    def test_raising_the_log_start_past_an_undecided_transaction(self) -> None:
        """F-198, F-286: *unreplicated* transactions that ended below it are forgotten, and the
        first unstable offset is never below it."""
        with Disk().open(replicated=True) as log:
            log.append_as_leader(produced(1, 0, 4, transactional=True), 0)
            log.replica.update_high_watermark(4)
            log.replica.maybe_increment_log_start_offset(3)
            assert log.replica.first_unstable_offset == log.last_stable_offset == 3
            check_invariants(log)

    def test_delete_records(self) -> None:
        """F-287: −1 means HW; other negatives and offsets above HW are out of range; a policy
        without ``delete`` refuses. Leadership and internal topics are known to a broker alone."""
        with segmented(Disk()) as log:
            log.replica.update_high_watermark(20)
            for offset in (-2, 21):
                with pytest.raises(OffsetOutOfRangeError):
                    log.delete_records(offset)
            assert log.delete_records(11) == 11
            assert log.delete_records(5) == 11
            assert bases(log) == [0, 8, 16]  # segments go in the next retention pass
            assert log.delete_records(-1) == 20
            log.maintenance.delete_old_segments()
            assert bases(log) == [16]
            assert all_offsets(log) == [20, 21, 22, 23]
        with (
            segmented(Disk(cleanup_policy=("compact",))) as log,
            pytest.raises(PolicyViolationError),
        ):
            log.delete_records(5)
