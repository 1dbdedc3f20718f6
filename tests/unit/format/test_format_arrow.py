"""Arrow columns hold what the record reader gives."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.common.errors import CorruptBatchError
from logstore.common.types import Record
from logstore.format.batch import encode_batch, encode_batch_columns
from logstore.format.codecs.compression import Compression
from logstore.format.reader import read_records

pa = pytest.importorskip("pyarrow")
from logstore.format.arrow import read_columns, schema  # noqa: E402

fields = st.none() | st.binary(max_size=20)
record_lists = st.lists(
    st.builds(
        Record,
        st.just(0),
        st.integers(-1, 2**62),
        fields,
        fields,
        st.lists(st.tuples(st.text(max_size=8), fields), max_size=3).map(tuple),
    ),
    min_size=1,
    max_size=8,
)


def as_records(columns: pa.RecordBatch) -> list[Record]:
    return [
        Record(
            row["offset"],
            row["timestamp"],
            row["key"],
            row["value"],
            tuple((header["key"], header["value"]) for header in row["headers"]),
        )
        for row in columns.to_pylist()
    ]


@settings(max_examples=30)
@given(
    st.lists(st.tuples(record_lists, st.sampled_from(Compression)), max_size=4),
    st.integers(0, 12),
    st.integers(0, 12),
)
def test_same_records(
    batches: list[tuple[list[Record], Compression]], low: int, count: int
) -> None:
    data = b""
    end = 0
    for records, codec in batches:
        data += encode_batch(records, base_offset=end, compression=codec)
        end += len(records)
    limits = {"from_offset": low, "end_offset": low + count}
    columns = read_columns(data, headers=True, **limits)
    columns.validate(full=True)
    assert as_records(columns) == read_records(data, **limits)


@settings(max_examples=30)
@given(record_lists)
def test_columns_are_encoded_as_records_are(records: list[Record]) -> None:
    plain = [record._replace(headers=()) for record in records]

    def arrow(items: list[bytes | None]) -> tuple[object, object, object]:
        validity, offsets, data = pa.array(items, pa.binary()).buffers()
        return offsets, data, validity

    keys, values = arrow([r.key for r in plain]), arrow([r.value for r in plain])
    times = pa.array([r.timestamp for r in plain], pa.int64()).buffers()[1]
    assert encode_batch_columns(0, len(plain), keys, values, times) == encode_batch(plain)


def test_columns_can_be_left_out() -> None:
    data = encode_batch([(b"k", b"v", 1, [("h", b"x")])])
    only = read_columns(data, keys=False, timestamps=False)
    assert only.schema == schema(keys=False, timestamps=False)
    assert only.to_pylist() == [{"offset": 0, "value": b"v"}]
    assert read_columns(data).schema.names == ["offset", "timestamp", "key", "value"]
    assert read_columns(b"", headers=True).num_rows == 0


def test_header_keys_that_are_not_utf8_are_replaced() -> None:
    good = encode_batch([(b"k", b"v", 1, [("hh", b"x")])])
    at = good.index(b"hh")
    good[at : at + 2] = b"\xff\xfe"
    (record,) = read_records(good, check_crc=False)
    columns = read_columns(good, headers=True, check_crc=False)
    columns.validate(full=True)
    assert as_records(columns) == [record]


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.ZSTD])
def test_damage_is_told_with_its_place(codec: Compression) -> None:
    first = encode_batch([(b"k", b"v")])
    data = first + encode_batch([(b"k", b"v")], base_offset=1, compression=codec)
    data[-1] ^= 1
    with pytest.raises(CorruptBatchError) as caught:
        read_columns(data, path="x.log", base_position=50)
    assert (caught.value.path, caught.value.position) == ("x.log", 50 + len(first))
