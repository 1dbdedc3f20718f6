"""Repeat values of batches for their records, without looking at single records."""

from __future__ import annotations

from bisect import bisect_right
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

from logstore.common.errors import CorruptBatchError
from logstore.format.header import MAX_SEQUENCE
from logstore.spark.segments.batch_table import BatchTable


class Expansion:
    """For rows with ``offsets``, decoded from the batches ``first`` to ``end`` of ``table``."""

    def __init__(self, offsets: pa.Array, table: BatchTable, first: int, end: int) -> None:
        self._offsets, self._table, self._first, self._end = offsets, table, first, end

    def expand(self, values: pa.Array) -> pa.Array:
        """A value for each row, from ``values`` with one for each batch of the table."""
        values = values.slice(self._first, self._end - self._first)
        lowest = pc.min_max(values) if len(values) > 1 else None
        if lowest is None or lowest["min"].equals(lowest["max"]):
            return pa.repeat(values[0], len(self._offsets))
        run_ends, used = self._runs
        if used is not None:
            values = values.filter(used)
        return pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(run_ends, values))

    def sequences(self) -> pa.Array:
        """The producer's sequence number of each record, which counts offsets and wraps (F-63)."""
        base = self.expand(self._table.column("base_sequence"))
        if pc.max(base).as_py() < 0:
            return base
        delta = pc.subtract(self._offsets, self.expand(self._table.column("base_offset")))
        numbers = pc.bit_wise_and(pc.add(base, delta), MAX_SEQUENCE)
        return pc.if_else(pc.less(base, 0), base, numbers)

    @cached_property
    def _runs(self) -> tuple[pa.Array, pa.Array | None]:
        """For each batch with rows the number of rows up to its end, and the row numbers of these
        batches.

        The second is ``None`` if all batches have rows.
        """
        counts = self._table.column("record_count").slice(self._first, self._end - self._first)
        extremes = pc.min_max(counts)
        # A batch never yields more records than it has, so an equal sum means that each yielded
        # all.
        if extremes["min"].as_py() > 0 and pc.sum(counts).as_py() == len(self._offsets):
            return pc.cumulative_sum(counts).cast(pa.int32()), None
        return self._found_runs()

    def _found_runs(self) -> tuple[pa.Array, pa.Array]:
        """Find the runs by searching for the end of each batch among the offsets.

        That is needed if a range of offsets cuts a batch, and for wrappers of older formats, which
        do not say how many records are inside.
        """
        offsets = memoryview(self._offsets.buffers()[1]).cast("q")
        lasts = self._table.cells("last_offset")[self._first : self._end]
        ends, end = [], 0
        for last in lasts:
            end = bisect_right(offsets, last, end, len(self._offsets))
            ends.append(end)
        if end != len(self._offsets):
            raise CorruptBatchError(
                "", self._table.cells("position")[self._first], "offsets do not ascend from here on"
            )
        run_ends = pa.array(ends, pa.int32())
        counts = pc.pairwise_diff(run_ends)
        first = pa.array([ends[0] > 0])
        used = pa.concat_arrays([first, pc.greater(counts.slice(1), 0)])
        return run_ends.filter(used), used
