"""Count the rows of batches from headers, without decoding the records."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from logstore.format.header import MAGIC
from logstore.spark.common.splits import ReadSettings, Split
from logstore.spark.segments.batch_table import BatchTable
from logstore.spark.source.record_rows import RecordRows

_OFFSET_ALONE = pa.schema([pa.field("offset", pa.int64())])


@dataclass(slots=True)
class RowCounts:
    """The numbers of rows that ``RecordRows`` or ``BatchRows`` would make of ``split``.

    Checksums are checked as there, and then the header counts. A batch is decoded if its header
    does not give the number: if a range of offsets cuts it, if it is a wrapper of an older format,
    or if its record count is impossible.
    """

    split: Split
    settings: ReadSettings
    _rows: RecordRows = field(init=False)

    def __post_init__(self) -> None:
        self._rows = RecordRows(self.split, self.settings, _OFFSET_ALONE)

    @property
    def scan_options(self) -> dict[str, bool]:
        """Options for `BatchTable`."""
        if self.settings.granularity == "batch":
            return {"stop_on_bad": False}
        return self._rows.scan_options

    def read(
        self, window: memoryview, position: int, table: BatchTable, first: int, end: int
    ) -> Iterator[int]:
        """Row counts of the batches ``[first, end)`` of ``table``; ``window`` begins at
        ``position``.

        Raises:
            CorruptBatchError: a batch is damaged; names the file and the byte.
        """
        if self.settings.granularity == "batch":
            yield end - first
            return
        counts = table.column("record_count").slice(first, end - first)
        start = first
        for low, high in table.runs(self._told(table, first, end)):
            if not self._is_sound(window[table.span(first + low, first + high)], high - low):
                continue  # decoding says what is wrong
            # In the order of the file, so that the first damaged batch is the one that is named.
            yield from self._decoded(window, position, table, start, first + low)
            yield pc.sum(counts.slice(low, high - low)).as_py()
            start = first + high
        yield from self._decoded(window, position, table, start, end)

    def _told(self, table: BatchTable, first: int, end: int) -> pa.Array:
        """Which batches have headers that give the number of wanted records."""

        def column(name: str) -> pa.Array:
            return table.column(name).slice(first, end - first)

        base, last, count = (column(n) for n in ("base_offset", "last_offset", "record_count"))
        span = pc.add(pc.subtract(last, base), 1)
        return reduce(
            pc.and_,
            (
                pc.equal(column("magic"), MAGIC),
                pc.greater_equal(base, self.split.from_offset),
                pc.less(last, self.split.end_offset),
                pc.greater_equal(count, 0),
                pc.less_equal(count, span),
            ),
        )

    def _decoded(
        self, window: memoryview, position: int, table: BatchTable, first: int, end: int
    ) -> Iterator[int]:
        if first < end:
            for rows in self._rows.read(window, position, table, first, end):
                yield rows.num_rows

    def _is_sound(self, data: memoryview, batches: int) -> bool:
        if not self.settings.check_crcs or self.settings.drop_malformed:
            return True  # a scan that leaves out damaged batches has checked every checksum
        return BatchTable(data, check_crc=True).rows == batches
