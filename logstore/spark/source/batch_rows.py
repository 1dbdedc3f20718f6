"""A row for each batch, from its header: no record is decoded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

from logstore.spark.common.splits import ReadSettings, Split
from logstore.spark.segments.batch_table import BatchTable
from logstore.spark.source.header_columns import SplitColumns, of_batches


@dataclass(slots=True)
class BatchRows:
    """Makes a row of ``schema`` for each batch of ``split``, with some of
    ``columns.BATCH_COLUMNS``.

    A batch with a wrong checksum is a row that says so, not an error.
    """

    split: Split
    settings: ReadSettings
    schema: pa.Schema
    _constant: SplitColumns = field(init=False)

    def __post_init__(self) -> None:
        self._constant = SplitColumns(self.split)

    @property
    def scan_options(self) -> dict[str, bool]:
        """Options for `BatchTable`. Checksums are computed only for the column ``crcOk``."""
        check_crc = self.settings.check_crcs and "crcOk" in self.schema.names
        return {"check_crc": check_crc, "stop_on_bad": False}

    def read(
        self, window: memoryview, position: int, table: BatchTable, first: int, end: int
    ) -> Iterator[pa.RecordBatch]:
        """Rows of the batches ``[first, end)`` of ``table``, which begins at ``position``."""
        count = end - first
        yield pa.RecordBatch.from_arrays(
            [
                self._constant.rows(column, count)
                if self._constant.has(column.name)
                else of_batches(column, table, position).slice(first, count)
                for column in self.schema
            ],
            schema=self.schema,
        )
