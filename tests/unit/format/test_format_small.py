"""Index entries and producer snapshots (F-112…F-130)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.common.errors import CorruptIndexError, CorruptSnapshotError
from logstore.format.index_entry import (
    AbortedTxn,
    decode_aborted,
    used_offset_entries,
    used_time_entries,
)
from logstore.format.producer_snapshot import (
    ProducerSnapshotEntry,
    decode_snapshot,
    encode_snapshot,
)
from logstore.segments.index import OffsetPosition, TimestampOffset
from tests.support.index_entries import (
    decode_offset_entries,
    decode_time_entries,
    encode_aborted,
    encode_offset_entries,
    encode_time_entries,
)

PRODUCER = ProducerSnapshotEntry(4000, 3, 8, 101, 1, 1_700_000_000_005, 9, 100)
SNAPSHOT = bytes.fromhex(
    "000128d12928000000010000000000000fa00003000000080000000000000065000000010000018bcfe56805"
    "000000090000000000000064"
)
i16, i32, i64 = (st.integers(-(1 << bits - 1), (1 << bits - 1) - 1) for bits in (16, 32, 64))


def test_worked_examples() -> None:
    offsets = [OffsetPosition(55, 0), OffsetPosition(60, 4200)]
    raw = bytes.fromhex("00000005000000000000000a00001068")
    assert encode_offset_entries(offsets, 50) == raw
    assert decode_offset_entries(raw, 50) == offsets
    times = [TimestampOffset(1_700_000_000_000, 55), TimestampOffset(1_700_000_000_009, 60)]
    raw = bytes.fromhex("0000018bcfe56800000000050000018bcfe568090000000a")
    assert encode_time_entries(times, 50) == raw
    assert decode_time_entries(raw, 50) == times
    aborted = [AbortedTxn(4000, 60, 72, 73)]
    raw = bytes.fromhex("00000000000000000fa0000000000000003c00000000000000480000000000000049")
    assert encode_aborted(aborted) == raw
    assert decode_aborted(raw) == aborted


def test_partial_entries_are_left_out() -> None:
    assert decode_offset_entries(b"\0\0\0\1\0\0\0\2rest", 0) == [(1, 2)]
    assert decode_time_entries(b"rest", 0) == []
    assert decode_aborted(bytes(34) + b"rest") == [(0, 0, 0, 0)]


def test_other_versions_of_an_aborted_transaction() -> None:
    with pytest.raises(CorruptIndexError) as caught:
        decode_aborted(bytes(34) + b"\0\1" + bytes(32), "x.txnindex")
    assert (caught.value.path, caught.value.position) == ("x.txnindex", 34)


@pytest.mark.parametrize("slots", [0, 1, 2, 1000])
def test_zero_tails_of_active_indexes(slots: int) -> None:
    offsets = encode_offset_entries([OffsetPosition(5, 100), OffsetPosition(7, 200)], 0)
    assert used_offset_entries(offsets + bytes(8 * slots)) == 2
    assert used_offset_entries(bytes(8 * slots)) == 0
    times = encode_time_entries([TimestampOffset(0, 0), TimestampOffset(9, 4)], 0)
    assert used_time_entries(times + bytes(12 * slots)) == 2
    assert used_time_entries(bytes(12 * slots)) == (1 if slots == 1 else 0)
    assert used_offset_entries(offsets + b"abc") == 2


@given(st.lists(st.sampled_from((0, 0, 0, 1)), max_size=40).map(bytes))
def test_used_entries_end_at_the_first_slot_of_zeros(data: bytes) -> None:
    """And not at zeros that reach from one entry into the next."""
    slots = [data[i : i + 8] for i in range(0, len(data) // 8 * 8, 8)]
    expected = slots.index(bytes(8)) if bytes(8) in slots else len(slots)
    assert used_offset_entries(data) == expected


def test_worked_snapshots() -> None:
    assert encode_snapshot([PRODUCER]) == SNAPSHOT
    assert decode_snapshot(SNAPSHOT) == [PRODUCER]
    empty = bytes.fromhex("000148674bc700000000")
    assert encode_snapshot([]) == empty
    assert decode_snapshot(empty) == []


@settings(max_examples=50)
@given(st.lists(st.builds(ProducerSnapshotEntry, i64, i16, i32, i64, i32, i64, i32, i64)))
def test_any_producers_come_back(producers: list[ProducerSnapshotEntry]) -> None:
    assert decode_snapshot(encode_snapshot(producers)) == producers


def test_every_damage_of_a_snapshot_is_seen() -> None:
    for size in range(len(SNAPSHOT)):
        with pytest.raises(CorruptSnapshotError):
            decode_snapshot(SNAPSHOT[:size], "x.snapshot")
    for bit in range(8 * len(SNAPSHOT)):
        damaged = bytearray(SNAPSHOT)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptSnapshotError):
            decode_snapshot(damaged)
    with pytest.raises(CorruptSnapshotError):  # a shorter snapshot over a longer one (F-129)
        decode_snapshot(encode_snapshot([]) + SNAPSHOT[10:])
