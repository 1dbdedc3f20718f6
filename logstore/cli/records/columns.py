"""Rows of an export: the columns of the Spark source, in Arrow. Imports pyarrow.

The timestamp is in milliseconds, as in the log, because Spark's microseconds cannot hold every one.
"""

from __future__ import annotations

from bisect import bisect_left

import pyarrow as pa
import pyarrow.compute as pc

from checkpoints.types import TopicPartition
from logstore.cli.records.reading import Filled
from logstore.common.errors import CorruptBatchError
from logstore.directory.columns import Expansion, of_batches
from logstore.directory.windows import BatchTable
from logstore.format.arrow import to_record_batch
from logstore.format.reader import ReadOptions, fill_columns
from logstore.kernels import DECODE_FULL, DECODE_LIMIT, ColumnBuilder

_ROWS_MAX = 16_384
_BYTES_MAX = 4 << 20  # bytes of keys and values
_TYPE = pa.field("timestampType", pa.int32())
HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("ms", "UTC")),
        _TYPE,
        pa.field("headers", HEADERS),
    ]
)


class ColumnFill:
    """The `Fill` of one partition. ``seen`` is the offset after the last processed batch."""

    def __init__(self, tp: TopicPartition) -> None:
        self._tp = tp
        self.seen, self.at_limit = -1, False

    def __call__(self, data: bytes, at: int, options: ReadOptions) -> Filled[pa.RecordBatch]:
        view = memoryview(data)
        table = BatchTable(view[at:])
        builder = ColumnBuilder(True, True, True, True)
        # A table holds a bounded number of batches: decode those, then the next.
        part = view[: at + table.end] if table.rows else view
        try:
            end, status = fill_columns(part, at, builder, _ROWS_MAX, _BYTES_MAX, options)
        except CorruptBatchError as error:
            return Filled(at, DECODE_FULL, None, -1, error)
        if status == DECODE_FULL and end == at and not builder.rows:
            fault = CorruptBatchError("", at, "its records do not fit a column of Arrow")
            return Filled(at, status, None, -1, fault)
        starts = table.cells("position")
        whole = bisect_left(starts, end - at, 0, table.rows)
        if whole:
            self.seen = max(self.seen, table.cells("last_offset")[whole - 1] + 1)
        if status == DECODE_LIMIT:
            self.at_limit = True
        elif table.rows and end == at + table.end:
            status = DECODE_FULL
        if not builder.rows:
            return Filled(end, status, None, -1)
        # At the limit only a part of the last batch may have been decoded.
        last = table.rows if status == DECODE_LIMIT else whole
        rows = self._rows(to_record_batch(builder, True, True, True, True), table, last)
        return Filled(end, status, rows, rows.column("offset")[-1].as_py() + 1)

    def _rows(self, records: pa.RecordBatch, table: BatchTable, last: int) -> pa.RecordBatch:
        expansion = Expansion(records.column("offset"), table, 0, last)
        count = records.num_rows
        arrays = [
            records.column("key"),
            records.column("value"),
            pa.repeat(pa.scalar(self._tp.topic), count),
            pa.repeat(pa.scalar(self._tp.partition, pa.int32()), count),
            records.column("offset"),
            records.column("timestamp").view(pa.timestamp("ms", "UTC")),
            expansion.expand(of_batches(_TYPE, table, 0)),
            _headers(records.column("headers")),
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def _headers(lists: pa.ListArray) -> pa.Array:
    """Headers as in Spark's source: null if a record has none."""
    pairs = lists.values
    pairs = pa.StructArray.from_arrays(
        [pairs.field(0), pairs.field(1)], fields=list(HEADERS.value_type)
    )
    none = pc.equal(pc.list_value_length(lists), 0)
    return pa.ListArray.from_arrays(lists.offsets, pairs, type=HEADERS, mask=none)
