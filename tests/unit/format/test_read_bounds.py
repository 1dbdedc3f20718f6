"""Bounds of offset, time and aborted transactions, exact for the records of any kind of batch."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.common.errors import CorruptBatchError
from logstore.common.types import Record
from logstore.format.batch import encode_batch
from logstore.format.codecs.compression import Compression
from logstore.format.reader import (
    batch_records,
    count_records,
    fill_columns,
    fill_records,
    iter_batches,
)
from logstore.kernels import (
    DECODE_END,
    DECODE_FULL,
    DECODE_LIMIT,
    DECODE_SPECIAL,
    ColumnBuilder,
    ReadBounds,
    RecordCount,
    encode_records,
    seal_batch,
)
from tests.support.builders import batch, marker
from tests.unit.format.test_format_legacy import message, wrapper

TIMES = (-1, 0, 50, 99, 100, 101, 2**40, 2**62)
LAST = 2**63 - 1


def one_batch(rng: random.Random, offset: int) -> tuple[bytes, int]:
    """A batch of records with times that go forth and back, and how many offsets it takes."""
    match rng.randrange(10):
        case 0:
            return message(offset, b"old", magic=rng.choice((0, 1)), timestamp=rng.choice(TIMES)), 1
        case 1:
            inner = message(0, b"a", timestamp=99) + message(1, b"b", timestamp=100)
            return wrapper(offset + 1, inner, timestamp=100), 2
        case 2:
            time = rng.choice(TIMES[1:])
            return marker(commit=False, base_offset=offset, timestamp=time), 1
        case 3:  # the last record of three is gone
            made = encode_records([(b"k", b"v", rng.choice(TIMES)) for _ in range(2)])
            seal_batch(
                made.buffer,
                base_offset=offset,
                leader_epoch=0,
                attributes=0,
                last_offset_delta=2,
                base_timestamp=made.base_timestamp,
                max_timestamp=made.max_timestamp,
                record_count=2,
            )
            return bytes(made.buffer), 3
    headers = [("h", b"x")] if rng.random() < 0.3 else []
    records = [
        (b"key", rng.randbytes(rng.choice((0, 3, 200))), rng.choice(TIMES), headers)
        for _ in range(rng.randrange(1, 6))
    ]
    transactional = rng.random() < 0.4
    return bytes(
        encode_batch(
            records,
            base_offset=offset,
            compression=rng.choice((Compression.NONE, Compression.NONE, Compression.LZ4)),
            log_append_time=rng.choice((None, None, None, *TIMES[2:6])),
            producer_id=rng.choice((1, 2)) if transactional else -1,
            producer_epoch=0 if transactional else -1,
            base_sequence=0 if transactional else -1,
            transactional=transactional,
        )
    ), len(records)


@st.composite
def logs(draw: st.DrawFn) -> tuple[bytes, ReadBounds]:
    rng, data, offset = random.Random(draw(st.integers(0, 2**32))), b"", rng_start(draw)
    first = offset
    for _ in range(rng.randrange(1, 8)):
        made, count = one_batch(rng, offset)
        data, offset = data + made, offset + count + rng.choice((0, 0, 3))
    offsets = range(first, offset + 1)
    aborted = [
        (producer_id, start, rng.choice(offsets))
        for producer_id in (1, 2)
        for start in rng.sample(offsets, rng.choice((0, 1)))
    ]
    bounds = ReadBounds(
        rng.choice((0, 0, rng.choice(offsets))),
        rng.choice((LAST, LAST, rng.choice(offsets))),
        include_control=rng.random() < 0.5,
        aborted=aborted,
        start_timestamp=rng.choice((None, *TIMES)),
        end_timestamp=rng.choice((None, *TIMES, 2**63 - 1)),
    )
    return data, bounds


def rng_start(draw: st.DrawFn) -> int:
    return draw(st.sampled_from((0, 7, 2**40)))


def wanted(data: bytes, bounds: ReadBounds) -> list[Record]:
    """What is left of all records by one condition after another."""
    found: list[Record] = []
    for each in iter_batches(data):
        control = getattr(each, "is_control", False)
        if control and not bounds.include_control:
            continue
        if getattr(each, "is_transactional", False) and not control:
            ranges = [r for r in bounds.aborted if r[0] == getattr(each, "producer_id", None)]
            if any(first <= each.base_offset < end for _, first, end in ranges):
                continue
        found += batch_records(data, each)
    return [
        r
        for r in found
        if bounds.from_offset <= r.offset < bounds.end_offset
        and bounds.start_timestamp <= r.timestamp
        and (r.timestamp < bounds.end_timestamp or bounds.end_timestamp == LAST)
    ]


@given(made=logs())
def test_records_are_exactly_those_inside(made: tuple[bytes, ReadBounds]) -> None:
    data, bounds = made
    expected, out = wanted(data, bounds), list[Record]()
    fill_records(data, 0, out, 10**6, bounds)
    assert out == expected
    builder = ColumnBuilder(headers=True, runs=True)
    fill_columns(data, 0, builder, 10**6, 10**9, bounds)
    ends, positions = builder.runs()
    columns = builder.finish()
    offsets = memoryview(columns["offsets"]).tolist()
    assert offsets == [r.offset for r in expected]
    assert memoryview(columns["timestamps"]).tolist() == [r.timestamp for r in expected]
    batches = {each.position: each for each in iter_batches(data)}
    assert not offsets or ends[-1] == len(offsets)
    for (start, end), position in zip(pairwise([0, *ends]), positions, strict=True):
        inside = {r.offset for r in batch_records(data, batches[position])}
        assert start < end
        assert inside.issuperset(offsets[start:end])


EXTREMES = ("min_offset", "max_offset", "min_timestamp", "max_timestamp")


@given(made=logs(), asked=st.sets(st.sampled_from(EXTREMES)))
def test_counts_and_extremes_are_those_of_the_records(
    made: tuple[bytes, ReadBounds], asked: set[str]
) -> None:
    data, bounds = made
    expected = wanted(data, bounds)
    count = RecordCount(**dict.fromkeys(asked, True))
    assert count_records(data, 0, count, bounds)[1] in (DECODE_END, DECODE_LIMIT)
    assert count.rows == len(expected)
    truth = {
        f"{name}_{column}": choose(getattr(record, column) for record in expected)
        for name, choose in (("min", min), ("max", max))
        for column in ("offset", "timestamp")
        if expected
    }
    found = {name: getattr(count, name) for name in EXTREMES}
    assert found == {name: truth.get(name) if name in asked else None for name in EXTREMES}


def test_a_compressed_batch_is_counted_by_its_header() -> None:
    data = batch(0, 5, timestamp=9, compression=Compression.ZSTD)
    for asked, status in (
        ({}, DECODE_END),
        ({"max_timestamp": True, "min_offset": True, "max_offset": True}, DECODE_END),
        ({"min_timestamp": True}, DECODE_SPECIAL),
    ):
        count = RecordCount(**asked)
        assert count.add_run(data, 0, ReadBounds())[1] == status
        assert count.rows == (5 if status == DECODE_END else 0)
    assert RecordCount().add_run(data, 0, ReadBounds(start_timestamp=9))[1] == DECODE_SPECIAL
    assert RecordCount().add_run(data, 0, ReadBounds(1))[1] == DECODE_SPECIAL


def test_a_count_checks_every_checksum() -> None:
    """Also of small batches, whose checksums are computed four at a time."""
    batches = [batch(n, 1, timestamp=n) for n in range(9)]
    good = b"".join(batches)
    assert RecordCount().add_run(good, 0, ReadBounds())[0] == len(good)
    for bad in range(9):
        damaged = bytearray(good)
        damaged[bad * len(batches[0]) + 70] ^= 1
        with pytest.raises(CorruptBatchError) as caught:
            RecordCount().add_run(damaged, 0, ReadBounds())
        assert caught.value.position == bad * len(batches[0])
        passed = RecordCount()
        passed.add_run(damaged, 0, ReadBounds(bad + 1))
        assert passed.rows == 8 - bad


def test_columns_left_out_change_nothing() -> None:
    data = batch(0, 3, timestamp=5) + batch(3, 3, timestamp=50) + batch(6, 3, timestamp=7)
    bounds = ReadBounds(start_timestamp=5, end_timestamp=8)
    for flags in ((True, True, True), (False, True, True), (False, False, False)):
        builder = ColumnBuilder(*flags)
        assert builder.add_run(data, 0, 100, LAST, bounds)[0] == len(data)
        assert memoryview(builder.finish()["offsets"]).tolist() == [0, 1, 2, 6, 7, 8]


def test_a_read_in_time_stops_and_goes_on() -> None:
    data = b"".join(batch(n, 1, timestamp=n) for n in range(10))
    bounds, out, position = ReadBounds(2, 8, start_timestamp=3), list[Record](), 0
    steps = 0
    while (found := fill_records(data, position, out, 1, bounds))[1] == DECODE_FULL:
        position, steps = found[0], steps + 1
    assert found[1] == DECODE_LIMIT
    assert [r.offset for r in out] == [3, 4, 5, 6, 7]
    assert steps == 4


def test_a_batch_whose_header_is_too_early_is_not_looked_at() -> None:
    early = bytearray(batch(0, 2, timestamp=5))
    early[-1] ^= 1
    data = bytes(early) + batch(2, 2, timestamp=9)
    out: list[Record] = []
    fill_records(data, 0, out, 10, ReadBounds(start_timestamp=6))
    assert [r.offset for r in out] == [2, 3]


@pytest.mark.parametrize("wrong", [[(1, 2)], [(1, 2, 2**63)], [("1", 2, 3)]])
def test_aborted_ranges_are_three_numbers(wrong: list[tuple[int, ...]]) -> None:
    with pytest.raises((TypeError, ValueError, OverflowError)):
        ReadBounds(aborted=wrong)  # type: ignore[arg-type]
