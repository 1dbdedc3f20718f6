"""Arrow columns into batches and partitions: the native kernels against their plain twins."""

from __future__ import annotations

from array import array
from types import SimpleNamespace

import mmh3
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.common.partitioner import murmur2
from tests.reference import partitions as partition_reference
from tests.reference import records as reference
from tests.support.cases import for_each

_codec = pytest.importorskip("logstore.kernels._codec")

HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
HEADERS = pa.list_(HEADER)
NATIVE = SimpleNamespace(
    encode_columns=_codec.encode_columns,
    encode_records=_codec.encode_records,
    partition_column=_codec.partition_column,
)
PLAIN = SimpleNamespace(
    encode_columns=reference.encode_columns,
    encode_records=reference.encode_records,
    partition_column=partition_reference.partition_column,
)
keys = st.lists(st.none() | st.binary(max_size=20), min_size=1, max_size=30)
headers = st.lists(
    st.none()
    | st.lists(st.tuples(st.text(max_size=4), st.none() | st.binary(max_size=300)), max_size=3),
    min_size=1,
    max_size=8,
)


@pytest.fixture(params=[NATIVE, PLAIN], ids=["native", "reference"])
def kernels(request):
    return request.param


def binary(column: pa.Array):
    validity, offsets, data = column.cast(pa.binary()).buffers()
    return offsets, data, validity


def header_buffers(column: pa.Array):
    names, values = column.values.flatten()
    return column.buffers()[1], column.buffers()[0], len(names), *binary(names), *binary(values)


def lists(rows) -> pa.Array:
    return pa.array(
        [row and [{"key": name, "value": value} for name, value in row] for row in rows], HEADERS
    )


# ---- partitions ----


@given(keys, st.integers(1, 2**31 - 1))
def test_partitions_are_those_of_the_hash_of_each_key(values, count):
    offsets, data, validity = binary(pa.array(values, pa.binary()))
    for name, hashed in (("murmur2", murmur2), ("murmur3", mmh3.hash)):
        expected = [-1 if k is None else (hashed(k) & 0x7FFFFFFF) % count for k in values]
        for found in (NATIVE, PLAIN):
            got = found.partition_column(name, count, len(values), offsets, data, validity)
            assert array("i", bytes(got)).tolist() == expected


def test_keys_of_every_small_size_hash_alike():
    """The tail of a key, 0 to 3 bytes, has a branch each; bytes above 127 are not negative."""
    values = [bytes(range(255, 255 - size, -1)) for size in range(40)]
    offsets, data, validity = binary(pa.array(values, pa.binary()))
    got = NATIVE.partition_column("murmur2", 2**31 - 1, 40, offsets, data, validity)
    assert array("i", bytes(got)).tolist() == [
        (murmur2(k) & 0x7FFFFFFF) % (2**31 - 1) for k in values
    ]


def test_what_partitioning_refuses(kernels):
    offsets = array("i", [0, 1, 2])
    for arguments in (
        ("crc32", 3, 2, offsets, b"ab", None),
        ("murmur2", 0, 2, offsets, b"ab", None),
        ("murmur2", 3, 3, offsets, b"ab", None),
        ("murmur2", 3, 2, offsets, b"a", None),
        ("murmur2", 3, 2, offsets, None, None),
        ("murmur2", 3, 2, offsets, b"ab", b""),
        ("murmur2", 3, 2, array("i", [0, 2, 1]), b"ab", None),
        ("murmur2", 3, 2, array("i", [-1, 0, 1]), b"ab", None),
    ):
        with pytest.raises(ValueError):
            kernels.partition_column(*arguments)


HUGE = [2**61 - 1, 2**61, 2**62, 2**62 + 1, 2**63 - 8, 2**63 - 1]
"""Numbers of rows for which four or eight bytes each, or one row more, overflow 64 bits."""


@for_each("stop", HUGE)
def test_numbers_of_rows_that_overflow(kernels, stop):
    ends = array("i", [0, 1])
    with pytest.raises(ValueError, match="before stop"):
        kernels.partition_column("murmur2", 3, stop, ends, b"k", None)
    for start in (0, stop - 10):
        with pytest.raises(ValueError, match="before stop"):
            kernels.encode_columns(start, stop, ends, b"k", None, ends, b"v", None, 5)
    lists = array("i", [0, 2**31 - 1])
    with pytest.raises(ValueError, match="before stop"):
        kernels.encode_columns(
            0,
            1,
            None,
            None,
            None,
            ends,
            b"v",
            None,
            5,
            headers=(lists, None, stop, ends, b"k", None, ends, b"v", None),
        )


# ---- headers ----


@given(headers)
def test_columns_with_headers_encode_as_records_do(rows):
    values = pa.array([b"v"] * len(rows), pa.binary())
    records = [(None, b"v", 5, tuple(row or ())) for row in rows]
    for kernels in (NATIVE, PLAIN):
        got = kernels.encode_columns(
            0, len(rows), None, None, None, *binary(values), 5, headers=header_buffers(lists(rows))
        )
        assert got.buffer == NATIVE.encode_records(records, -1).buffer


def test_a_range_of_rows_takes_its_own_headers(kernels):
    rows = [[("a", b"1")], [], [("b", None), ("c", b"")], None, [("d", b"4")]]
    values = pa.array([b"v"] * 5, pa.binary())
    got = kernels.encode_columns(
        1, 4, None, None, None, *binary(values), 5, headers=header_buffers(lists(rows))
    )
    expected = [(None, b"v", 5, tuple(row or ())) for row in rows[1:4]]
    assert got.buffer == kernels.encode_records(expected, -1).buffer


def test_headers_that_are_refused(kernels):
    ends, names = array("i", [0, 1]), array("i", [0, 1])
    null_key = pa.array([[{"key": None, "value": b"x"}]], HEADERS)
    null_struct = pa.array([[None]], HEADERS)
    for buffers, reason in (
        (header_buffers(null_key), "row 0 has a header without a key"),
        (header_buffers(null_struct), "row 0 has a header without a key"),
        ((array("i", [0, 2]), None, 1, names, b"k", None, names, b"v", None), "row 0 descend"),
        ((array("i", [1, 0]), None, 1, names, b"k", None, names, b"v", None), "row 0 descend"),
        ((array("i", [-1, 1]), None, 1, names, b"k", None, names, b"v", None), "row 0 descend"),
        ((array("i", [9, 9]), None, 1, names, b"k", None, names, b"v", None), "row 0 descend"),
        ((ends, None, 2, names, b"k", None, names, b"v", None), "before stop"),
        ((ends, None, 1, names, b"", None, names, b"v", None), "run past the data"),
    ):
        with pytest.raises(ValueError, match=reason):
            kernels.encode_columns(
                0, 1, None, None, None, array("i", [0, 1]), b"v", None, 5, headers=buffers
            )
    without_offsets = (None, None, 1, names, b"k", None, names, b"v", None)
    with pytest.raises(TypeError):
        kernels.encode_columns(
            0, 1, None, None, None, array("i", [0, 1]), b"v", None, 5, headers=without_offsets
        )
