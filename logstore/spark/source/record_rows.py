"""The records of batches as rows, in Arrow record batches of a few MiB."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from checkpoints.loggers import get_logger
from logstore.common.errors import CorruptBatchError
from logstore.format.arrow import to_record_batch
from logstore.format.reader import ReadOptions, fill_columns
from logstore.kernels import DECODE_FULL, DECODE_LIMIT, ColumnBuilder
from logstore.spark.common.splits import ReadSettings, Split
from logstore.spark.segments.batch_table import BatchTable
from logstore.spark.source.header_columns import SplitColumns, of_batches, timestamps
from logstore.spark.source.repeat_per_record import Expansion

# Small enough to stay in the cache until the JVM has read it, and large enough that the cost of a
# record batch itself does not matter.
_ROWS_MAX = 32_768
_BYTES_MAX = 4 << 20  # bytes of keys and values

logger = get_logger(__name__)


@dataclass(slots=True)
class RecordRows:
    """Makes rows of ``schema`` from ``split``, with some of ``columns.RECORD_COLUMNS``."""

    split: Split
    settings: ReadSettings
    schema: pa.Schema
    _constant: SplitColumns = field(init=False)
    _flags: tuple[bool, bool, bool, bool] = field(init=False)
    _options: ReadOptions = field(init=False)

    def __post_init__(self) -> None:
        self._constant = SplitColumns(self.split)
        names = set(self.schema.names)
        self._flags = (
            "key" in names,
            "value" in names,
            "timestamp" in names,
            "headers" in names,
        )
        self._options = ReadOptions(
            self.split.from_offset,
            self.split.end_offset,
            # A scan that leaves out damaged batches has checked every checksum.
            self.settings.check_crcs and not self.settings.drop_malformed,
            self.settings.include_control,
            self.settings.max_batch_bytes,
        )

    @property
    def scan_options(self) -> dict[str, bool]:
        """Options for `BatchTable`. Decoding checks the checksums, while the bytes are cached."""
        if self.settings.drop_malformed:
            return {"check_crc": self.settings.check_crcs, "stop_on_bad": False}
        return {}

    def read(
        self, window: memoryview, position: int, table: BatchTable, first: int, end: int
    ) -> Iterator[pa.RecordBatch]:
        """Rows of the batches ``[first, end)`` of ``table``; ``window`` begins at ``position``.

        Raises:
            CorruptBatchError: a batch is damaged; names the file and the byte.
        """
        data = window[: table.span(first, end).stop]
        starts = table.cells("position")
        while first < end:
            builder, skipped = ColumnBuilder(*self._flags), 0
            try:
                at, status = fill_columns(
                    data, starts[first], builder, _ROWS_MAX, _BYTES_MAX, self._options
                )
                # At the limit only a part of the last batch may have been decoded.
                stop = end if status == DECODE_LIMIT else bisect_left(starts, at, first, end)
                if status == DECODE_FULL and not builder.rows and stop == first:
                    reason = "its records do not fit a column of Arrow"
                    raise CorruptBatchError("", starts[first], reason)
            except CorruptBatchError as error:
                located = error.located(self.split.path, position)
                if not self.settings.drop_malformed:
                    raise located from None
                logger.warning("dropped a batch: %s", located)
                stop, skipped = bisect_right(starts, error.position, first, end) - 1, 1
            if builder.rows:
                records = to_record_batch(builder, *self._flags)
                yield self._rows(records, position, table, first, stop)
            first = stop + skipped

    def _rows(
        self, records: pa.RecordBatch, position: int, table: BatchTable, first: int, end: int
    ) -> pa.RecordBatch:
        expansion = Expansion(records.column("offset"), table, first, end)

        def made(column: pa.Field) -> pa.Array:
            if self._constant.has(column.name):
                return self._constant.rows(column, records.num_rows)
            match column.name:
                case "offset" | "key" | "value":
                    return records.column(column.name)
                case "timestamp":
                    return timestamps(records.column("timestamp"))
                case "headers":
                    return _headers(records.column("headers"), column.type)
                case "sequence":
                    return expansion.sequences().cast(column.type)
            return expansion.expand(of_batches(column, table, position))

        arrays = [made(column) for column in self.schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _headers(lists: pa.ListArray, kind: pa.DataType) -> pa.Array:
    """Headers as in Spark's source: null if a record has none."""
    pairs = lists.values
    pairs = pa.StructArray.from_arrays(
        [pairs.field(0), pairs.field(1)], fields=list(kind.value_type)
    )
    none = pc.equal(pc.list_value_length(lists), 0)
    return pa.ListArray.from_arrays(lists.offsets, pairs, type=kind, mask=none)
