"""Kafka's OffsetIndexTest, TimeIndexTest and TransactionIndexTest under their names: the edges of
lookups, full indexes, and aborted transactions.

That offset entries are those that Kafka writes, and that lookups find what Kafka finds, is in
tests/golden."""

from __future__ import annotations

import random
import struct

import pytest

from logstore.common.errors import CorruptIndexError
from logstore.segments.index import (
    AbortedTxn,
    OffsetIndex,
    OffsetPosition,
    TimeIndex,
    TimestampOffset,
    TransactionIndex,
)
from logstore.segments.segment import Segment
from tests.support.builders import NOW, PAIR, Disk, batch, file_name
from tests.support.index_entries import encode_offset_entries, encode_time_entries

BASE = 50


def offset_index(entries: list[OffsetPosition]) -> OffsetIndex:
    disk = Disk()
    index = OffsetIndex(disk.storage, disk.path(file_name(BASE, ".index")), BASE)
    index.replace(encode_offset_entries(entries, BASE))
    return index


def time_index(entries: list[TimestampOffset]) -> TimeIndex:
    disk = Disk()
    index = TimeIndex(disk.storage, disk.path(file_name(BASE, ".timeindex")), BASE)
    index.replace(encode_time_entries(entries, BASE))
    return index


def active_segment(disk: Disk) -> Segment:
    segment = Segment(disk.storage, disk.directory, BASE, disk.config, disk.clock)
    segment.create()
    segment.activate()
    return segment


class TestOffsetIndex:
    def test_random_lookup(self) -> None:
        """randomLookupTest, lookupExtremeCases, testSanityLastOffsetEqualToBaseOffset: the greatest
        entry at or below the target, else (base, 0); one entry at the base is legal (F-114)."""
        empty = offset_index([])
        assert empty.lookup(BASE, 0) == empty.lookup(2**31, 0) == (BASE, 0)
        assert offset_index([OffsetPosition(BASE, 0)]).lookup(BASE + 7, 1) == (BASE, 0)
        rng = random.Random(1)
        chosen = sorted(rng.sample(range(BASE + 1, BASE + 500), 80))
        entries = [OffsetPosition(offset, 10 * i) for i, offset in enumerate(chosen, 1)]
        index = offset_index(entries)
        for target in range(BASE, BASE + 510):
            below = [entry for entry in entries if entry.offset <= target]
            expected = below[-1] if below else (BASE, 0)
            assert index.lookup(target, len(entries)) == tuple(expected)

    def test_append_too_many(self) -> None:
        """appendTooMany: a full index takes no more entry; its segment must roll (F-138, F-142).
        The time index is full one slot early (F-119)."""
        disk = Disk(index_interval_bytes=0, segment_index_bytes=48)
        segment = active_segment(disk)
        assert (segment.state.offset_entries_max, segment.state.time_entries_max) == (6, 4)
        must_roll = []
        for i in range(8):
            must_roll.append(segment.state.must_roll(PAIR, BASE + 2 * i + 1, NOW, NOW))
            segment.append(batch(BASE + 2 * i, 2, timestamp=NOW + i), PAIR, -1, -1)
        assert must_roll == [False] * 4 + [True] * 4
        assert segment.state.offset_entries == 6
        with Disk(index_interval_bytes=0, segment_index_bytes=48).open() as log:
            for _ in range(9):
                log.append_as_leader(batch(count=2, timestamp=NOW), 0)
            assert [s.base_offset for s in log.segments] == [0, 14]
            assert len(list(log.records())) == 18

    def test_reopen(self) -> None:
        """testReopen: the same entries after close and open, and the file holds nothing else
        (F-137)."""
        disk = Disk(index_interval_bytes=0)
        with disk.open() as log:
            for _ in range(4):
                log.append_as_leader(batch(count=2), 0)
        expected = [OffsetPosition(3, PAIR), OffsetPosition(5, 2 * PAIR)]
        expected.append(OffsetPosition(7, 3 * PAIR))
        assert disk.read(file_name(0, ".index")) == encode_offset_entries(expected, 0)
        with disk.open(clean_shutdown=True) as log:
            log.append_as_leader(batch(count=2), 0)
            log.append_as_leader(batch(count=2), 0)
            raw = disk.read(file_name(0, ".index"))
            assert len(raw) == 1200
            # The first append after reopening makes no entry (F-131).
            expected.append(OffsetPosition(11, 5 * PAIR))
            assert raw == encode_offset_entries(expected, 0) + bytes(1200 - 8 * len(expected))

    def test_truncate(self) -> None:
        """truncate: entries at or above the offset vanish (F-115)."""
        index = offset_index([OffsetPosition(BASE + i, i) for i in range(1, 10)])
        for target, kept in ((BASE + 12, 9), (BASE + 9, 8), (BASE + 5, 4), (BASE, 0)):
            assert index.count_below(target, 9) == kept

    def test_fetch_upper_bound_offset(self) -> None:
        """testFetchUpperBoundOffset: the bound for a byte budget is the first entry at or after
        its end, none past the last (F-114, F-160)."""
        entries = [OffsetPosition(BASE + i, 100 * i) for i in (1, 2, 3)]
        index = offset_index(entries)
        assert offset_index([]).upper_bound(5, 0) is None
        bounds = {0: BASE + 1, 100: BASE + 1, 101: BASE + 2, 200: BASE + 2, 300: BASE + 3}
        for position, offset in bounds.items():
            bound = index.upper_bound(position, 3)
            assert bound is not None
            assert bound == OffsetPosition(offset, 100 * (offset - BASE))
        assert index.upper_bound(301, 3) is None

    def test_the_last_time_slot_waits_for_the_roll(self) -> None:
        """F-119, F-135: also where one append has more batches than there are slots."""
        disk = Disk(index_interval_bytes=0, segment_index_bytes=60)
        log = disk.open(replicated=True, log_start_offset=1000)
        data = b"".join(batch(1000 + n, 1, timestamp=NOW + n) for n in range(12))
        log.replica.append_as_follower(data)
        log.roll()
        log.close()
        found = disk.read(file_name(1000, ".timeindex"))
        assert len(found) == 60
        assert struct.unpack_from(">qi", found, 48) == (NOW + 11, 11)


class TestTimeIndex:
    def test_truncate(self) -> None:
        """testTruncate: entries whose offset is at or above the target vanish (F-120)."""
        index = time_index([TimestampOffset(100 + i, BASE + i) for i in range(1, 6)])
        for target, kept in ((BASE + 10, 5), (BASE + 5, 4), (BASE + 1, 0), (BASE, 0)):
            assert index.count_below(target, 5) == kept

    def test_entries_of_rising_timestamps_only(self) -> None:
        """F-117, F-118, F-135: an entry is written only for a larger timestamp; the last one at
        the roll."""
        disk = Disk(index_interval_bytes=0)
        with disk.open() as log:
            for stamp in (5, 3, 7, 7, 6, 9):
                log.append_as_leader(batch(count=2, timestamp=NOW + stamp), 0)
            log.roll()
        expected = [TimestampOffset(NOW + 5, 1), TimestampOffset(NOW + 7, 5)]
        expected.append(TimestampOffset(NOW + 9, 11))
        assert disk.read(file_name(0, ".timeindex")) == encode_time_entries(expected, 0)

    def test_the_last_entry_is_written_on_roll(self) -> None:
        """F-135: also when the interval was not reached."""
        disk = Disk()
        with disk.open() as log:
            log.append_as_leader(batch(count=2, timestamp=NOW), 0)
            log.append_as_leader(batch(count=2, timestamp=NOW - 5), 0)
            log.roll()
        expected = encode_time_entries([TimestampOffset(NOW, 1)], 0)
        assert disk.read(file_name(0, ".timeindex")) == expected
        assert disk.read(file_name(0, ".index")) == b""

    def test_sanity_check(self) -> None:
        """testSanityCheck: entries that descend are corruption. A load does not look for it
        (F-141); recovery writes them anew, whatever they were."""
        disk = Disk(index_interval_bytes=0)
        log = disk.open()
        for i in range(6):
            log.append_as_leader(batch(count=2, timestamp=NOW + i), 0)
        log.close()
        good = disk.read(file_name(0, ".timeindex"))
        disk.write(file_name(0, ".timeindex"), good[12:24] + good[:12] + good[24:])
        with disk.open() as log:
            assert disk.read(file_name(0, ".timeindex")) == good
            assert log.offset_for_timestamp(NOW + 3) == TimestampOffset(NOW + 3, 6)


TXNS = [
    AbortedTxn(0, 0, 10, 11),
    AbortedTxn(1, 5, 15, 13),
    AbortedTxn(2, 18, 35, 25),
    AbortedTxn(3, 32, 50, 40),
]


def txn_index(txns: list[AbortedTxn], base_offset: int = 0) -> tuple[Disk, TransactionIndex]:
    disk = Disk()
    path = disk.path(file_name(base_offset, ".txnindex"))
    index = TransactionIndex(disk.storage, path, base_offset)
    for txn in txns:
        index.append(txn)
    return disk, index


class TestTransactionIndex:
    def test_collect_aborted_transactions(self) -> None:
        """testCollectAbortedTransactions: all overlapping ranges, and whether the search is over
        (F-125)."""
        _, index = txn_index(TXNS)
        for fetch_offset, upper_bound, found, complete in (
            (0, 100, [0, 1, 2, 3], False),
            (0, 32, [0, 1, 2], True),
            (0, 35, [0, 1, 2, 3], True),
            (10, 35, [0, 1, 2, 3], True),
            (11, 35, [1, 2, 3], True),
            (20, 41, [2, 3], False),
        ):
            into: list[AbortedTxn] = []
            assert index.collect(fetch_offset, upper_bound, into) is complete
            assert into == [TXNS[at] for at in found]

    def test_last_offset_must_increase(self) -> None:
        """testLastOffsetMustIncrease: an entry not above the previous last offset is refused
        (F-122)."""
        disk, index = txn_index(TXNS[:2])
        size = len(disk.read(file_name(0, ".txnindex")))
        for last in (14, 15):
            with pytest.raises(ValueError, match="not above"):
                index.append(AbortedTxn(9, 0, last, 16))
        assert len(disk.read(file_name(0, ".txnindex"))) == size == 2 * 34

    def test_truncate(self) -> None:
        """testTruncate: entries whose marker is at or above the offset vanish (F-124)."""
        disk, index = txn_index(TXNS)
        for target, kept in ((51, 4), (50, 3), (36, 3), (11, 1)):
            index.truncate_to(target)
            assert index.entries() == TXNS[:kept]
            assert len(disk.read(file_name(0, ".txnindex"))) == 34 * kept
        index.append(AbortedTxn(7, 0, 99, 100))
        reread = TransactionIndex(disk.storage, index.path, 0, 34 * (kept + 1))
        assert reread.entries() == [*TXNS[:kept], AbortedTxn(7, 0, 99, 100)]

    def test_sanity_check(self) -> None:
        """testSanityCheck: an entry below the segment's base is corruption (F-124), which means a
        rebuild when the log is opened (F-242)."""
        disk, index = txn_index(TXNS)
        reread = TransactionIndex(disk.storage, index.path, 100, 4 * 34)
        with pytest.raises(CorruptIndexError, match="does not ascend"):
            reread.entries()

    def test_a_partial_entry_is_ignored(self) -> None:
        """F-124: whole entries only; a version above 0 is an error."""
        disk, index = txn_index(TXNS)
        raw = disk.read(file_name(0, ".txnindex"))
        disk.write(file_name(0, ".txnindex"), raw + bytes(33))
        size = len(raw) + 33
        assert TransactionIndex(disk.storage, index.path, 0, size).entries() == TXNS
        disk.write(file_name(0, ".txnindex"), raw[:35] + b"\x01" + raw[36:])
        with pytest.raises(CorruptIndexError, match="version 1"):
            TransactionIndex(disk.storage, index.path, 0, len(raw)).entries()
