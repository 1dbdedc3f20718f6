"""Kafka's LogSegmentTest and FileRecordsTest under their names: one segment, at offsets that are
absent, where the model of a whole log has no gaps, and its file."""

from __future__ import annotations

from pathlib import Path

import pytest

from logstore.common.errors import (
    CorruptDataError,
)
from logstore.log import LogOwner, PartitionLog
from logstore.segments.segment import Segment
from tests.support.builders import (
    NOW,
    PAIR,
    Disk,
    all_offsets,
    batch,
    file_name,
    log_config,
)
from tests.support.segments import truncate_segment


def segment_of(disk: Disk, *batches: bytes, base_offset: int = 0) -> Segment:
    """An active segment to which the batches were appended, one call each."""
    segment = Segment(disk.storage, disk.directory, base_offset, disk.config, disk.clock)
    segment.create()
    segment.activate()
    for data in batches:
        segment.append(data, len(data), -1, -1)
    return segment


def stored(segment: Segment) -> list[int]:
    return [span.base_offset for span in segment.live().walk(0)]


def read_first(segment: Segment, offset: int) -> int | None:
    found = segment.live().read(offset, 1, segment.size, True)
    return None if found is None else found.first_batch.base_offset


class TestLogSegment:
    def test_read(self) -> None:
        """testReadOnEmptySegment, testReadBeforeFirstOffset, testReadFromGap, testReadAfterLast: at
        an absent offset a read starts at the next higher one (F-111); nothing is no error."""
        assert read_first(segment_of(Disk(), base_offset=40), 40) is None
        segment = segment_of(Disk(), batch(50, 2), batch(60, 2), base_offset=40)
        found = {41: 50, 50: 50, 51: 50, 52: 60, 55: 60, 61: 60, 62: None}
        assert {offset: read_first(segment, offset) for offset in found} == found

    def test_truncate_full(self) -> None:
        """testTruncateFull: to the base empties log and indexes, and appends work again."""
        disk = Disk(index_interval_bytes=0, segment_ms=1000)
        segment = segment_of(disk, *(batch(o, 2) for o in range(40, 60, 2)), base_offset=40)
        disk.clock.advance(500)
        truncate_segment(segment, 40)
        assert segment.size == segment.state.offset_entries == segment.state.time_entries == 0
        assert not any(disk.read(file_name(40, ".index")))
        assert not any(disk.read(file_name(40, ".timeindex")))
        assert disk.read(file_name(40, ".log")) == b""
        assert not segment.state.must_roll(PAIR, 41, NOW, disk.clock.wall_ms() + 1000)
        segment.append(batch(40, 2), PAIR, -1, -1)
        assert stored(segment) == [40]

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
        truncate_segment(segment, 42)
        assert stored(segment) == [40]
        assert segment.live().read_next_offset()[0] == 41
        assert segment.live().largest_timestamp == NOW

    def test_append_from_file(self) -> None:
        """testAppendFromFile: what is copied from another log arrives in whole batches; offsets
        that do not fit a segment begin another one (F-110, F-142)."""
        source, target = Disk(), Disk()
        with source.open(replicated=True) as log, target.open(replicated=True) as copy:
            for offset in range(0, 10, 2):
                log.replica.append_as_follower(batch(offset, 2))
            log.replica.append_as_follower(batch(2**31 + 20, 2))
            log.replica.append_as_follower(batch(2**31 + 22, 2))
            assert len(log.segments) == 2
            while copy.log_end_offset < log.log_end_offset:
                # Less than two batches: the second one of each slice is cut.
                copy.replica.append_as_follower(log.read(copy.log_end_offset, 2 * PAIR - 10).data)
            assert list(copy.records()) == list(log.records())
            assert [s.base_offset for s in copy.segments] == [0, 2**31 + 20]


def filled(disk: Disk, batches: int) -> PartitionLog:
    """A log of batches of two records; timestamps rise by one from batch to batch."""
    log = disk.open()
    for i in range(batches):
        log.append_as_leader(batch(count=2, timestamp=NOW + i), 0)
    return log


class TestFileRecords:
    def test_iteration_over_partial_and_truncation(self) -> None:
        """testIterationOverPartialAndTruncation: a partial last batch is invisible (F-107)."""
        for kept in (0, 5, 16, 17, 60, 174):
            segment = segment_of(Disk(), batch(0, 2), batch(2, 2))
            segment.log.write_at(segment.size, batch(4, 2)[:kept])
            segment.state.size += kept
            assert stored(segment) == [0, 2]
            assert segment.live().read_next_offset() == (4, 2 * PAIR)

    def test_open_oversize_file(self, tmp_path: Path) -> None:
        """testOpenOversizeFile: a file above 2 GiB − 1 is refused and left alone (F-110)."""
        directory = tmp_path / "topic-0"
        directory.mkdir()
        path = directory / file_name(0, ".log")
        with path.open("wb") as file:
            file.truncate(2**31)
        for clean in (True, False):
            with pytest.raises(CorruptDataError, match="2147483648 bytes"):
                PartitionLog.open(directory, log_config(), owner=LogOwner(clean_shutdown=clean))
        assert path.stat().st_size == 2**31

    def test_truncate_not_called_if_size_is_bigger_than_target_size(self) -> None:
        """testTruncateNotCalledIfSizeIsBiggerThanTargetSize: nothing grows by a truncation."""
        disk = Disk()
        segment = segment_of(disk, batch(0, 2), batch(2, 2))
        before = disk.storage.operations
        assert truncate_segment(segment, 4) == truncate_segment(segment, 1000) == 0
        assert disk.storage.operations == before
        assert segment.size == len(disk.read(file_name(0, ".log"))) == 2 * PAIR

    def test_search(self) -> None:
        """testSearch: the first batch whose last offset is at or above the target, from a start
        position on (F-111)."""
        segment = segment_of(Disk(), batch(50, 2), batch(52), batch(60, 3))
        bases = [
            span.base_offset
            for o in (0, 50, 51, 52, 53, 60, 62)
            if (span := segment.live().find(o))
        ]
        assert bases == [50, 50, 50, 52, 60, 60, 60]
        assert segment.live().find(63) is None
        span = segment.live().find(50, start=PAIR)
        assert span is not None
        assert (span.base_offset, span.position) == (52, PAIR)
