"""Columns with one value for a batch or for a whole split, and their values for each record."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

from logstore.common.errors import CorruptBatchError
from logstore.common.types import Buffer
from logstore.directory.splits import Split
from logstore.directory.windows import BatchTable
from logstore.format import attributes as bits
from logstore.format.codecs.compression import Compression
from logstore.format.header import MAX_SEQUENCE
from logstore.kernels import batches_entirely_after


class ArrowTable(BatchTable):
    """A ``BatchTable`` whose columns are Arrow arrays, too."""

    __slots__ = ()

    def column(self, name: str) -> pa.Array:
        """A column as an Arrow array of int64, without a copy."""
        return pa.Array.from_buffers(pa.int64(), self.rows, [None, pa.py_buffer(self.cells(name))])

    def has_bit(self, bit: int) -> pa.Array:
        """Whether an attribute bit is set in each batch."""
        return pc.not_equal(pc.bit_wise_and(self.column("attributes"), bit), 0)

    def has_any(self, bit: int) -> bool:
        return bool(pc.any(self.has_bit(bit)).as_py())

    def is_late(self, data: Buffer, timestamp: int) -> pa.Array:
        """Whether each batch is known to have no record before ``timestamp``, in ms."""
        late = pa.py_buffer(batches_entirely_after(data, self._cells, self.rows, timestamp))
        return pc.equal(pa.Array.from_buffers(pa.uint8(), self.rows, [None, late]), 1)

    def runs(self, wanted: pa.Array) -> Iterator[tuple[int, int]]:
        """``[first, end)`` row numbers of neighbours for which ``wanted`` is true."""
        encoded = pc.run_end_encode(wanted)
        first = 0
        for end, value in zip(
            encoded.run_ends.to_pylist(), encoded.values.to_pylist(), strict=True
        ):
            if value:
                yield first, end
            first = end


_CODECS = pa.array(
    [str(codec) for codec in Compression]
    + [f"unknown ({number})" for number in range(len(Compression), bits.CODEC_MASK + 1)]
)
_MILLISECONDS, MICROSECONDS = pa.timestamp("ms", "UTC"), pa.timestamp("us", "UTC")
US_PER_MS = 1000
TIMESTAMP_MAX = (2**63 - 1) // US_PER_MS
TIMESTAMP_MIN = -TIMESTAMP_MAX
"""The ms that are times in Spark; others are null there."""


def timestamps(milliseconds: pa.Array, kind: pa.DataType = MICROSECONDS) -> pa.Array:
    """Timestamps of int64 ms; null where µs, Spark's unit, do not fit, after the year 294,246.

    −1, which means no timestamp, becomes 23:59:59.999 on 31 December 1969, as in Spark's source.
    """
    times = milliseconds.view(_MILLISECONDS)
    if kind == _MILLISECONDS:
        return times
    try:
        return times.cast(MICROSECONDS)
    except pa.ArrowInvalid:
        low, high = TIMESTAMP_MIN, TIMESTAMP_MAX
        fits = pc.and_(pc.greater_equal(milliseconds, low), pc.less_equal(milliseconds, high))
        nulls = pc.if_else(fits, milliseconds, pa.scalar(None, pa.int64()))
        return nulls.view(_MILLISECONDS).cast(MICROSECONDS)


def _field(name: str) -> Callable[[ArrowTable], pa.Array]:
    return lambda table: table.column(name)


def _bit(bit: int) -> Callable[[ArrowTable], pa.Array]:
    return lambda table: table.has_bit(bit)


def _timestamp_type(table: ArrowTable) -> pa.Array:
    """Kafka's numbers: −1 for magic 0, which has no timestamps, 0 create time, 1 append time."""
    appended = table.has_bit(bits.LOG_APPEND_TIME).cast(pa.int64())
    return pc.if_else(pc.equal(table.column("magic"), 0), -1, appended)


def _compression(table: ArrowTable) -> pa.Array:
    return _CODECS.take(pc.bit_wise_and(table.column("attributes"), bits.CODEC_MASK))


_OF_BATCH: dict[str, Callable[[ArrowTable], pa.Array]] = {
    "position": _field("position"),
    "size": _field("size"),
    "baseOffset": _field("base_offset"),
    "lastOffset": _field("last_offset"),
    "leaderEpoch": _field("leader_epoch"),
    "crc": _field("crc"),
    "crcOk": lambda table: pc.equal(table.column("valid"), 1),
    "magic": _field("magic"),
    "compression": _compression,
    "timestampType": _timestamp_type,
    "isTransactional": _bit(bits.TRANSACTIONAL),
    "isControl": _bit(bits.CONTROL),
    "producerId": _field("producer_id"),
    "producerEpoch": _field("producer_epoch"),
    "sequence": _field("base_sequence"),
    "baseSequence": _field("base_sequence"),
    "baseTimestamp": lambda table: timestamps(table.column("base_timestamp")),
    "maxTimestamp": lambda table: timestamps(table.column("max_timestamp")),
    "recordCount": _field("record_count"),
}


def of_batches(field: pa.Field, table: ArrowTable, position: int) -> pa.Array:
    """A column with a row for each batch of ``table``, which begins at byte ``position``."""
    values = _OF_BATCH[field.name](table)
    if field.name == "position":
        values = pc.add(values, position)
    return values.cast(field.type)


class SplitColumns:
    """The columns that are constant in a split, made once and returned as slices."""

    def __init__(self, split: Split) -> None:
        self._values = {
            "topic": split.topic,
            "partition": split.partition,
            "broker": split.broker,
            "segment": split.segment_base,
        }
        self._made: dict[str, pa.Array] = {}

    def has(self, name: str) -> bool:
        return name in self._values

    def rows(self, field: pa.Field, count: int) -> pa.Array:
        made = self._made.get(field.name)
        if made is None or len(made) < count:
            value = pa.scalar(self._values[field.name], field.type)
            made = self._made[field.name] = pa.repeat(value, count)
        return made.slice(0, count)


class Expansion:
    """For rows with ``offsets``, decoded from the batches ``first`` to ``end`` of ``table``."""

    def __init__(self, offsets: pa.Array, table: ArrowTable, first: int, end: int) -> None:
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
