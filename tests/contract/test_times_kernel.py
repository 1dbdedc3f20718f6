"""Times of records, native and in plain Python: no batch with an earlier record is called late."""

from __future__ import annotations

import random
from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.format.batch import encode_batch
from logstore.format.codecs.compression import Compression
from logstore.format.reader import read_records
from logstore.kernels import SCAN_COLUMNS, scan_batches
from tests.reference import times as _times_reference
from tests.support.builders import batch

native = pytest.importorskip("logstore.kernels._verify")

BOTH = pytest.mark.parametrize("kernels", [native, _times_reference], ids=["native", "reference"])
CAPACITY = 16


def scanned(data: bytes) -> tuple[array[int], int]:
    columns = array("q", bytes(8 * CAPACITY * len(SCAN_COLUMNS)))
    return columns, scan_batches(data, 0, columns, False)[0]


@st.composite
def logs(draw: st.DrawFn) -> list[bytes]:
    """Batches of records with times that go forth and back, and of other kinds."""
    rng, made, offset = random.Random(draw(st.integers(0, 2**32))), [], 0
    for _ in range(rng.randrange(1, 8)):
        times = [rng.choice((-1, 50, 99, 100, 101, 2**40)) for _ in range(rng.randrange(1, 5))]
        one = encode_batch(
            [(None, rng.randbytes(rng.choice((0, 3, 200))), time) for time in times],
            base_offset=offset,
            compression=rng.choice((Compression.NONE, Compression.NONE, Compression.LZ4)),
            log_append_time=rng.choice((None, None, None, 99, 100)),
        )
        made.append(bytes(one))
        offset += len(times)
    return made


@BOTH
@given(made=logs())
def test_a_late_batch_has_no_earlier_record(kernels: Any, made: list[bytes]) -> None:
    data = b"".join(made)
    columns, rows = scanned(data)
    late = kernels.batches_entirely_after(data, columns, rows, 100)
    for known, one in zip(late, made, strict=True):
        truth = min(record.timestamp for record in read_records(one)) >= 100
        compressed = one[22] & 7 and not one[22] & 8
        assert known == (truth and not compressed)


@given(made=logs(), seed=st.integers(0, 2**32))
def test_damaged_records_are_the_same_to_both(made: list[bytes], seed: int) -> None:
    data = bytearray(b"".join(made))
    columns, rows = scanned(bytes(data))
    rng = random.Random(seed)
    for _ in range(4):
        data[rng.randrange(61, len(data))] = rng.randrange(256)
    assert native.batches_entirely_after(
        data, columns, rows, 100
    ) == _times_reference.batches_entirely_after(data, columns, rows, 100)


@BOTH
def test_older_formats_and_tables_that_do_not_fit(kernels: Any) -> None:
    data = batch(0, 3, timestamp=500)
    columns, rows = scanned(data)
    assert list(kernels.batches_entirely_after(data, columns, rows, 500)) == [1]
    assert list(kernels.batches_entirely_after(data, columns, rows, 501)) == [0]
    assert list(kernels.batches_entirely_after(data[:-1], columns, rows, 500)) == [0]
    columns[SCAN_COLUMNS.index("magic") * CAPACITY] = 1
    assert list(kernels.batches_entirely_after(data, columns, rows, 500)) == [0]
    with pytest.raises(ValueError, match="17 rows of a table with room for 16"):
        kernels.batches_entirely_after(data, columns, 17, 500)
