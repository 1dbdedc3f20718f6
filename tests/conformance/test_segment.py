"""Kafka's LogSegmentTest, FileRecordsTest and ByteBufferLogInputStreamTest, under their names."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from logstore.common.errors import (
    CorruptBatchError,
    CorruptDataError,
    CorruptMessageError,
    RecordTooLargeError,
)
from logstore.format.filenames import SEGMENT_SUFFIXES
from logstore.format.reader import iter_batches
from logstore.log import ReplicaLog
from logstore.segments.index import TimestampOffset
from logstore.segments.producer_state import AppendOrigin
from logstore.segments.segment import Segment
from tests.support.builders import (
    NOW,
    PAIR,
    Disk,
    all_offsets,
    batch,
    file_name,
    log_config,
    marker,
    offsets,
    produced,
)


def segment_of(disk: Disk, *batches: bytes, base_offset: int = 0) -> Segment:
    """An active segment to which the batches were appended, one call each."""
    segment = Segment(disk.storage, disk.directory, base_offset, disk.config, disk.clock)
    segment.create()
    segment.activate()
    for data in batches:
        segment.append(data, len(data), -1, -1)
    return segment


def stored(segment: Segment) -> list[int]:
    return [span.base_offset for span in segment.walk(0)]


def read_first(segment: Segment, offset: int) -> int | None:
    found = segment.read(offset, 1, segment.size, True)
    return None if found is None else found.first_batch.base_offset


class TestLogSegment:
    def test_read_on_empty_segment(self) -> None:
        """testReadOnEmptySegment: reading an empty segment yields nothing, not an error."""
        assert read_first(segment_of(Disk(), base_offset=40), 40) is None

    def test_read_before_first_offset(self) -> None:
        """testReadBeforeFirstOffset: below the first stored offset a read starts at the first
        batch."""
        segment = segment_of(Disk(), batch(50, 2), batch(52), base_offset=40)
        assert read_first(segment, 41) == 50

    def test_read_after_last(self) -> None:
        """testReadAfterLast: above the last offset a read yields nothing."""
        segment = segment_of(Disk(), batch(50, 2), base_offset=40)
        assert read_first(segment, 51) == 50
        assert read_first(segment, 52) is None

    def test_read_from_gap(self) -> None:
        """testReadFromGap: at an absent offset a read starts at the next higher one (F-111)."""
        segment = segment_of(Disk(), batch(50, 2), batch(60, 2), base_offset=40)
        assert read_first(segment, 55) == 60

    @pytest.mark.parametrize("target", range(40, 71, 2))
    def test_truncate(self, target: int) -> None:
        """testTruncate: exactly the smaller offsets remain, and appends continue (F-235)."""
        disk = Disk(index_interval_bytes=200)
        segment = segment_of(disk, *(batch(o, 2) for o in range(40, 70, 2)), base_offset=40)
        segment.truncate_to(target)
        assert stored(segment) == list(range(40, target, 2))
        data = batch(target, 2)
        segment.append(data, len(data), -1, -1)
        assert stored(segment) == list(range(40, target + 2, 2))
        for offset in range(40, target + 2):
            assert read_first(segment, offset) == offset // 2 * 2
        assert read_first(segment, target + 2) is None

    def test_reload_largest_timestamp_and_next_offset_after_truncation(self) -> None:
        """testReloadLargestTimestampAndNextOffsetAfterTruncation: both are recomputed, not
        remembered."""
        disk = Disk(index_interval_bytes=300)
        data = [batch(2 * i, 2, timestamp=1000 + i) for i in range(30)]
        segment = segment_of(disk, *data)
        assert (segment.largest_timestamp, segment.state.next_offset) == (1029, 60)
        segment.truncate_to(31)
        assert segment.largest_timestamp == 1014
        assert segment.read_next_offset()[0] == 30

    def test_truncate_full(self) -> None:
        """testTruncateFull: to the base empties log and indexes, and appends work again."""
        disk = Disk(index_interval_bytes=0, segment_ms=1000)
        segment = segment_of(disk, *(batch(o, 2) for o in range(40, 60, 2)), base_offset=40)
        disk.clock.advance(500)
        segment.truncate_to(40)
        assert segment.size == segment.state.offset_entries == segment.state.time_entries == 0
        assert not any(disk.read(file_name(40, ".index")))
        assert not any(disk.read(file_name(40, ".timeindex")))
        assert disk.read(file_name(40, ".log")) == b""
        assert not segment.state.must_roll(PAIR, 41, NOW, disk.clock.wall_ms() + 1000)
        segment.append(batch(40, 2), PAIR, -1, -1)
        assert stored(segment) == [40]

    def test_find_offset_by_timestamp(self) -> None:
        """testFindOffsetByTimestamp: the first offset whose timestamp is at or above the target,
        or none (F-149)."""
        disk = Disk(index_interval_bytes=300)
        with disk.open() as log:
            for i in range(40):
                log.append_as_leader(batch(timestamp=10 * i), 0)
            for target in range(395):
                found = log.offset_for_timestamp(target)
                assert found is None if target > 390 else found is not None
                if found is not None:
                    first = -(-target // 10)
                    assert found == TimestampOffset(10 * first, first)

    def test_next_offset_calculation(self) -> None:
        """testNextOffsetCalculation: last + 1, also with gaps (F-252)."""
        segment = segment_of(Disk(), base_offset=40)
        assert segment.read_next_offset() == (40, 0)
        for data in (batch(50, 2), batch(59, 3)):
            segment.append(data, len(data), -1, -1)
        assert segment.read_next_offset()[0] == segment.state.next_offset == 62

    def test_change_file_suffixes(self) -> None:
        """testChangeFileSuffixes: log and all indexes are renamed together (F-288)."""
        disk = Disk()
        segment = segment_of(disk, batch(40, 2), base_offset=40)
        disk.write(file_name(40, ".txnindex"), b"")
        renamed = [disk.path(file_name(40, suffix)) + ".deleted" for suffix in SEGMENT_SUFFIXES]
        assert sorted(segment.mark_deleted()) == sorted(renamed)
        assert sorted(disk.path(name) for name in disk.names()) == sorted(renamed)

    @pytest.mark.parametrize("suffix", [".index", ".timeindex"])
    def test_recovery_fixes_corrupt_index(self, suffix: str) -> None:
        """testRecoveryFixesCorruptIndex, testRecoveryFixesCorruptTimeIndex: random bytes in an
        index are repaired by recovery (F-232)."""
        disk = Disk(index_interval_bytes=200)
        log = filled(disk, 40)
        log.crash()
        whole = len(disk.read(file_name(0, suffix)))
        disk.write(file_name(0, suffix), random.Random(7).randbytes(whole))
        with disk.open() as log:
            for offset in range(80):
                assert log.read(offset, 1).records()[0].offset == offset
                found = log.offset_for_timestamp(NOW + offset // 2)
                assert found == TimestampOffset(NOW + offset // 2, offset // 2 * 2)

    def test_recover_transaction_index(self) -> None:
        """testRecoverTransactionIndex: aborted ranges are rebuilt from the right starting state:
        here the transaction begins in an earlier segment (F-122, F-234)."""
        disk = Disk()
        log = disk.open()
        log.append_as_leader(produced(1, 0, 2, transactional=True), 0)
        log.append_as_leader(produced(2, 0, 2, transactional=True), 0)
        log.roll()
        log.append_as_leader(produced(1, 2, 2, transactional=True), 0)
        log.append_as_leader(marker(commit=False, producer_id=1), 0, AppendOrigin.COORDINATOR)
        log.append_as_leader(marker(commit=False, producer_id=2), 0, AppendOrigin.COORDINATOR)
        expected = log.active_segment.txn_index.entries()
        assert [(t.producer_id, t.first_offset, t.last_offset) for t in expected] == [
            (1, 0, 6),
            (2, 2, 7),
        ]
        assert [t.last_stable_offset for t in expected] == [2, 8]
        log.crash()
        disk.remove(file_name(4, ".txnindex"))
        with disk.open(recovery_point=4) as log:
            assert log.recovery_report.segments_scanned == 1
            assert log.active_segment.txn_index.entries() == expected

    def test_recovery_rebuilds_epoch_cache(self) -> None:
        """testRecoveryRebuildsEpochCache: the first offset of each epoch is restored, of epoch 0
        too."""
        disk = Disk()
        log = disk.open(replicated=True)
        for offset, epoch in enumerate((0, 0, 1, 1, 2, 2, 4)):
            log.append_as_follower(batch(offset, epoch=epoch))
        log.crash()
        disk.write("leader-epoch-checkpoint", b"0\n0\n")
        with disk.open() as log:
            assert log.epoch_entries == ((0, 0), (1, 2), (2, 4), (4, 6))

    @pytest.mark.parametrize("broken", [0, 1, 13, 29])
    def test_recovery_with_corrupt_message(self, broken: int) -> None:
        """testRecoveryWithCorruptMessage: all batches before the damaged one survive, none after
        (F-233)."""
        disk = Disk(index_interval_bytes=200)
        filled(disk, 30).crash()
        disk.storage.flip(disk.path(file_name(0, ".log")), broken * PAIR + 70)
        with disk.open() as log:
            assert all_offsets(log) == list(range(2 * broken))
            assert log.log_end_offset == 2 * broken

    def test_create_with_init_file_size_clear_shutdown(self) -> None:
        """testCreateWithInitFileSizeClearShutdown: a preallocated file is cut to its real size on
        close, extended again for the next append (F-139)."""
        disk = Disk(preallocate=True, segment_bytes=4096)
        log = filled(disk, 2)
        assert len(disk.read(file_name(0, ".log"))) == 4096
        log.close()
        assert len(disk.read(file_name(0, ".log"))) == 2 * PAIR
        log = disk.open(clean_shutdown=True)
        assert log.log_end_offset == 4
        log.append_as_leader(batch(), 0)
        assert len(disk.read(file_name(0, ".log"))) == 4096
        log.crash()
        with disk.open() as log:
            assert all_offsets(log) == list(range(5))
            assert log.size < 4096

    def test_should_truncate_even_if_offset_points_to_a_gap_in_the_log(self) -> None:
        """shouldTruncateEvenIfOffsetPointsToAGapInTheLog: at an absent offset everything at or
        above it goes."""
        segment = segment_of(Disk(), batch(40), batch(43), batch(44), base_offset=40)
        segment.truncate_to(42)
        assert stored(segment) == [40]
        assert segment.read_next_offset()[0] == 41

    def test_append_from_file(self) -> None:
        """testAppendFromFile: what is copied from another log arrives in whole batches; offsets
        that do not fit a segment begin another one (F-110, F-142)."""
        source, target = Disk(), Disk()
        with source.open(replicated=True) as log, target.open(replicated=True) as copy:
            for offset in range(0, 10, 2):
                log.append_as_follower(batch(offset, 2))
            log.append_as_follower(batch(2**31 + 20, 2))
            log.append_as_follower(batch(2**31 + 22, 2))
            assert len(log.segments) == 2
            while copy.log_end_offset < log.log_end_offset:
                # Less than two batches: the second one of each slice is cut.
                copy.append_as_follower(log.read(copy.log_end_offset, 2 * PAIR - 10).data)
            assert list(copy.records()) == list(log.records())
            assert [s.base_offset for s in copy.segments] == [0, 2**31 + 20]


def filled(disk: Disk, batches: int) -> ReplicaLog:
    """A log of batches of two records; timestamps rise by one from batch to batch."""
    log = disk.open()
    for i in range(batches):
        log.append_as_leader(batch(count=2, timestamp=NOW + i), 0)
    return log


class TestFileRecords:
    @pytest.mark.parametrize("kept", [0, 5, 16, 17, 60, 174])
    def test_iteration_over_partial_and_truncation(self, kept: int) -> None:
        """testIterationOverPartialAndTruncation: a partial last batch is invisible (F-107)."""
        segment = segment_of(Disk(), batch(0, 2), batch(2, 2))
        segment.log.write_at(segment.size, batch(4, 2)[:kept])
        segment.state.size += kept
        assert stored(segment) == [0, 2]
        assert segment.read_next_offset() == (4, 2 * PAIR)

    def test_open_oversize_file(self, tmp_path: Path) -> None:
        """testOpenOversizeFile: a file above 2 GiB − 1 is refused and left alone (F-110)."""
        directory = tmp_path / "topic-0"
        directory.mkdir()
        path = directory / file_name(0, ".log")
        with path.open("wb") as file:
            file.truncate(2**31)
        for clean in (True, False):
            with pytest.raises(CorruptDataError, match="2147483648 bytes"):
                ReplicaLog.open(directory, log_config(), clean_shutdown=clean)
        assert path.stat().st_size == 2**31

    def test_truncate_not_called_if_size_is_bigger_than_target_size(self) -> None:
        """testTruncateNotCalledIfSizeIsBiggerThanTargetSize: nothing grows by a truncation."""
        disk = Disk()
        segment = segment_of(disk, batch(0, 2), batch(2, 2))
        before = disk.storage.operations
        assert segment.truncate_to(4) == segment.truncate_to(1000) == 0
        assert disk.storage.operations == before
        assert segment.size == len(disk.read(file_name(0, ".log"))) == 2 * PAIR

    def test_search(self) -> None:
        """testSearch: the first batch whose last offset is at or above the target, from a start
        position on (F-111)."""
        segment = segment_of(Disk(), batch(50, 2), batch(52), batch(60, 3))
        bases = [span.base_offset for o in (0, 50, 51, 52, 53, 60, 62) if (span := segment.find(o))]
        assert bases == [50, 50, 50, 52, 60, 60, 60]
        assert segment.find(63) is None
        span = segment.find(50, start=PAIR)
        assert span is not None
        assert (span.base_offset, span.position) == (52, PAIR)


class TestByteBufferLogInputStream:
    def test_iterator_ignores_incomplete_entries(self) -> None:
        """iteratorIgnoresIncompleteEntries: a torn last batch in memory is the end of the data."""
        data = batch(0, 2) + batch(2, 2)
        for cut in (1, 60, 100, PAIR - 1):
            assert [b.base_offset for b in iter_batches(data[: 2 * PAIR - cut])] == [0]

    def test_iterator_raises_on_too_small_records(self) -> None:
        """iteratorRaisesOnTooSmallRecords: a size below the smallest is corruption."""
        data = bytearray(batch(0, 2) + batch(2, 2))
        data[PAIR + 8 : PAIR + 12] = (9).to_bytes(4, "big")
        with pytest.raises(CorruptBatchError, match="size 9"):
            list(iter_batches(data))
        with Disk().open() as log, pytest.raises(CorruptMessageError, match="size 9"):
            log.append_as_follower(data)

    def test_iterator_raises_on_invalid_magic(self) -> None:
        """iteratorRaisesOnInvalidMagic: an unknown magic is corruption (F-108)."""
        data = bytearray(batch(0, 2) + batch(2, 2))
        data[PAIR + 16] = 37
        with pytest.raises(CorruptBatchError, match="magic 37"):
            list(iter_batches(data))
        with Disk().open() as log, pytest.raises(CorruptMessageError, match="magic 37"):
            log.append_as_follower(data)

    def test_iterator_raises_on_too_large_records(self) -> None:
        """iteratorRaisesOnTooLargeRecords: above the limit is an error, not the end of the data."""
        with Disk(max_message_bytes=PAIR - 1).open() as log:
            with pytest.raises(RecordTooLargeError, match=str(PAIR)):
                log.append_as_leader(batch(0, 1) + batch(0, 2), 0)
            assert log.log_end_offset == 0


def test_a_read_may_end_inside_a_batch() -> None:
    """F-158: the slice begins at a batch boundary; readers drop the partial tail."""
    with filled(Disk(), 4) as log:
        fetched = log.read(1, PAIR + 100)
        assert len(fetched) == PAIR + 100
        assert offsets(fetched.records()) == [1]
