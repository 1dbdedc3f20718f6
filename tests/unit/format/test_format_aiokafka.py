"""The same bytes through another implementation: the record codec of aiokafka."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logstore.common.types import Record
from logstore.format.batch import encode_batch
from logstore.format.codecs.compression import Compression
from logstore.format.reader import read_records

pytest.importorskip("aiokafka")
from aiokafka.record import default_records as theirs
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder

IMPLEMENTATIONS = [
    pytest.param((theirs._DefaultRecordBatchPy, theirs._DefaultRecordBatchBuilderPy), id="python"),
    pytest.param((theirs.DefaultRecordBatch, theirs.DefaultRecordBatchBuilder), id="native"),
]
fields = st.none() | st.binary(max_size=30)
record_lists = st.lists(
    st.builds(
        Record,
        st.just(0),
        st.integers(0, 2**41),
        fields,
        fields,
        st.lists(st.tuples(st.text(max_size=6), fields), max_size=2).map(tuple),
    ),
    min_size=1,
    max_size=6,
).map(lambda records: [record._replace(offset=i) for i, record in enumerate(records)])


@pytest.mark.parametrize("classes", IMPLEMENTATIONS)
@settings(max_examples=25)
@given(record_lists, st.sampled_from(Compression))
def test_they_read_what_we_write(
    classes: tuple[Any, Any], records: list[Record], codec: Compression
) -> None:
    batch = classes[0](bytes(encode_batch(records, compression=codec)))
    assert batch.validate_crc()
    got = [Record(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in batch]
    assert got == records


@pytest.mark.parametrize("classes", IMPLEMENTATIONS)
@settings(max_examples=25)
@given(record_lists, st.sampled_from(Compression))
def test_we_read_what_they_write(
    classes: tuple[Any, Any], records: list[Record], codec: Compression
) -> None:
    builder = classes[1](2, int(codec), 0, -1, -1, -1, 1 << 20)
    for record in records:
        headers = list(record.headers)
        builder.append(record.offset, record.timestamp, record.key, record.value, headers)
    written = bytes(builder.build())
    assert read_records(written) == records
    if codec is Compression.NONE:
        assert encode_batch(records) == written


@pytest.mark.parametrize(
    ("magic", "codec"),
    [
        (magic, codec)
        for magic in (0, 1)
        for codec in (Compression.NONE, Compression.GZIP, Compression.SNAPPY, Compression.LZ4)
        if (magic, codec) != (0, Compression.LZ4)  # which it does not write
    ],
)
def test_we_read_their_legacy_messages(magic: int, codec: Compression) -> None:
    builder = LegacyRecordBatchBuilder(magic, int(codec), 1 << 20)
    records = [
        Record(i, 1000 + i if magic else -1, b"key" if i % 2 else None, b"value %d" % i)
        for i in range(5)
    ]
    for record in records:
        builder.append(
            record.offset, timestamp=record.timestamp, key=record.key, value=record.value
        )
    assert read_records(bytes(builder.build())) == records
