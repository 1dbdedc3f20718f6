"""Reading stretches of mixed batches: limits, positions to go on from, transactions."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.common.errors import CorruptBatchError
from logstore.common.types import Record
from logstore.format.batch import encode_batch, end_transaction_marker
from logstore.format.codecs.compression import Compression
from logstore.format.control import ControlType
from logstore.format.reader import fill_records, read_records
from logstore.kernels import DECODE_END, DECODE_FULL, DECODE_LIMIT, ReadBounds
from tests.support.cases import for_each


def plain(base: int, count: int = 3, codec: Compression = Compression.NONE) -> bytes:
    return bytes(encode_batch([(None, b"v")] * count, base_offset=base, compression=codec))


def transactional(base: int, producer_id: int) -> bytes:
    return bytes(
        encode_batch(
            [(b"k", b"v")] * 2,
            base_offset=base,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
            transactional=True,
        )
    )


def marker(base: int, producer_id: int, control_type: ControlType = ControlType.ABORT) -> bytes:
    return bytes(
        end_transaction_marker(
            control_type,
            producer_id=producer_id,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp=1,
            base_offset=base,
        )
    )


#: 0-2 plain, 3-5 zstd, 6-7 of producer 1, 8-9 of producer 2, 10 abort 1, 11 commit 2, 12-14 plain,
#: 15-16 of producer 1 again.
MIXED = (
    plain(0)
    + plain(3, codec=Compression.ZSTD)
    + transactional(6, 1)
    + transactional(8, 2)
    + marker(10, 1)
    + marker(11, 2, ControlType.COMMIT)
    + plain(12)
    + transactional(15, 1)
)
DATA_OFFSETS = [*range(10), *range(12, 17)]


def offsets(records: list[Record]) -> list[int]:
    return [record.offset for record in records]


def test_control_records_are_left_out_unless_asked_for() -> None:
    assert offsets(read_records(MIXED)) == DATA_OFFSETS
    assert offsets(read_records(MIXED, include_control=True)) == list(range(17))


@settings(max_examples=60)
@given(st.integers(0, 18), st.integers(0, 18), st.integers(0, 20), st.integers(0, len(MIXED)))
def test_limits(low: int, high: int, count: int, size: int) -> None:
    whole = offsets(read_records(MIXED[:size]))
    got = read_records(MIXED[:size], from_offset=low, end_offset=high, max_records=count)
    assert offsets(got) == [offset for offset in whole if low <= offset < high][:count]
    aborted = [(9, 0, 100)]  # of nobody: the slow path must agree
    assert got == read_records(
        MIXED[:size], from_offset=low, end_offset=high, max_records=count, aborted=aborted
    )


@for_each("step", [1, 2, 4, 100])
@for_each("aborted", [(), [(9, 0, 100)]])
def test_reading_goes_on_where_it_stopped(step: int, aborted: list[tuple[int, int, int]]) -> None:
    bounds = ReadBounds(include_control=True, aborted=aborted)
    out: list[Record] = []
    position, status = 0, DECODE_FULL
    while status == DECODE_FULL:
        position, status = fill_records(MIXED, position, out, step, bounds)
    assert (position, status) == (len(MIXED), DECODE_END)
    assert offsets(out) == list(range(17))


def test_the_end_offset_is_told() -> None:
    for end in range(17):
        out: list[Record] = []
        assert fill_records(MIXED, 0, out, 99, ReadBounds(end_offset=end))[1] == DECODE_LIMIT
        assert offsets(out) == [offset for offset in DATA_OFFSETS if offset < end]


def test_aborted_transactions_are_left_out_and_later_ones_kept() -> None:
    expected = [offset for offset in DATA_OFFSETS if offset not in (6, 7)]
    aborted = [(1, 6, 10)]
    assert offsets(read_records(MIXED, aborted=aborted)) == expected
    pytest.importorskip("pyarrow")
    from logstore.format.arrow import read_columns

    assert read_columns(MIXED, aborted=aborted)["offset"].to_pylist() == expected


@pytest.mark.parametrize("options", [{}, {"aborted": [(1, 6, 10)]}])
def test_skipped_batches_are_checked_too(options: dict[str, list[tuple[int, int, int]]]) -> None:
    damaged = bytearray(MIXED)
    at = MIXED.index(marker(10, 1))
    damaged[at + 70] ^= 1
    with pytest.raises(CorruptBatchError) as caught:
        read_records(damaged, path="x.log", base_position=1000, **options)
    assert (caught.value.path, caught.value.position) == ("x.log", 1000 + at)
    assert offsets(read_records(damaged, check_crc=False)) == DATA_OFFSETS


def test_a_bad_batch_delivers_nothing_of_itself() -> None:
    damaged = bytearray(plain(0) + plain(3))
    damaged[-1] ^= 1
    out: list[Record] = []
    with pytest.raises(CorruptBatchError):
        fill_records(damaged, 0, out, 99)
    assert offsets(out) == [0, 1, 2]


def test_the_limit_of_one_batch() -> None:
    data = plain(0, 1000, Compression.GZIP)
    assert len(read_records(data)) == 1000
    with pytest.raises(CorruptBatchError, match="limit"):
        read_records(data, decompressed_limit=1000)
