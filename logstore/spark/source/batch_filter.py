"""Choose the batches of a split that may hold a wanted record, by their headers."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from checkpoints.loggers import get_logger
from logstore.format import attributes as bits
from logstore.format.header import MAGIC
from logstore.spark.common.splits import ReadSettings, Split
from logstore.spark.segments.batch_table import BatchTable

logger = get_logger(__name__)


@dataclass(slots=True)
class BatchFilter:
    """The filter of one split. A batch that is left out is not decoded or checked."""

    split: Split
    settings: ReadSettings
    _aborted: dict[int, list[tuple[int, int]]] = field(init=False)

    def __post_init__(self) -> None:
        self._aborted = {}
        for producer_id, first, marker in sorted(self.split.aborted):
            self._aborted.setdefault(producer_id, []).append((first, marker))

    def runs(self, table: BatchTable, window: memoryview) -> Iterator[tuple[int, int]]:
        """Ranges ``[first, end)`` of wanted neighbouring rows of ``table``."""
        if not table.rows:
            return
        masks = list(self._masks(table, window))
        if masks:
            yield from table.runs(reduce(pc.and_, masks))
        else:
            yield 0, table.rows

    def _masks(self, table: BatchTable, window: memoryview) -> Iterator[pa.Array]:
        split, settings = self.split, self.settings
        of_records = settings.granularity == "record"
        if of_records and settings.drop_malformed:
            yield self._valid(table)
        cells = table.cells("base_offset"), table.cells("last_offset")
        if cells[0][0] < split.from_offset:
            yield pc.greater_equal(table.column("last_offset"), split.from_offset)
        if cells[1][-1] >= split.end_offset:
            # A legacy wrapper carries its last offset, and may have smaller ones inside (F-101).
            legacy = pc.less(table.column("magic"), MAGIC)
            yield pc.or_(pc.less(table.column("base_offset"), split.end_offset), legacy)
        if settings.start_timestamp is not None:
            yield pc.greater_equal(table.column("max_timestamp"), settings.start_timestamp)
        if settings.end_timestamp is not None:
            # A header has only the largest time, so the times of the records are walked. That costs
            # a fraction of handing the records to Spark.
            yield pc.invert(table.is_late(window, settings.end_timestamp))
        if of_records and not settings.include_control and table.has_any(bits.CONTROL):
            yield pc.invert(table.has_bit(bits.CONTROL))
        if self._aborted and table.has_any(bits.TRANSACTIONAL):
            yield self._not_aborted(table)

    def _valid(self, table: BatchTable) -> pa.Array:
        valid = pc.equal(table.column("valid"), 1)
        for index, good in enumerate(valid.to_pylist()):
            if not good:
                size, offset = table.cells("size")[index], table.cells("base_offset")[index]
                text = "%s: dropped a malformed batch of %d bytes at offset %d"
                logger.warning(text, self.split.path, size, offset)
        return valid

    def _not_aborted(self, table: BatchTable) -> pa.Array:
        columns = (table.cells(name) for name in ("attributes", "producer_id", "base_offset"))
        return pa.array(
            [
                not (
                    attributes & bits.TRANSACTIONAL
                    and not attributes & bits.CONTROL
                    and self._is_aborted(producer_id, offset)
                )
                for attributes, producer_id, offset in zip(*columns, strict=True)
            ]
        )

    def _is_aborted(self, producer_id: int, offset: int) -> bool:
        transactions = self._aborted.get(producer_id, ())
        index = bisect_right(transactions, offset, key=lambda transaction: transaction[0]) - 1
        return index >= 0 and offset < transactions[index][1]
