"""Columns with one value for a batch or for a whole split, and their values for each record."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc

from logstore.directory.splits import Split
from logstore.directory.windows import BatchTable
from logstore.format import attributes as bits
from logstore.format.codecs.compression import Compression
from logstore.format.header import MAX_SEQUENCE


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

BATCH_COLUMNS = frozenset(_OF_BATCH)
"""The columns whose values come from the headers of batches."""


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
    """For rows that come from batches of ``table``: those up to each of ``run_ends``, from the one
    before, are of the batch at the position beside it.
    """

    def __init__(
        self, table: ArrowTable, run_ends: Sequence[int], positions: Sequence[int]
    ) -> None:
        self._table, self._run_ends, self._positions = table, run_ends, positions

    def expand(self, values: pa.Array) -> pa.Array:
        """A value for each row, from ``values`` with one for each batch of the table."""
        values = values.take(self._batches)
        lowest = pc.min_max(values) if len(values) > 1 else None
        if lowest is None or lowest["min"].equals(lowest["max"]):
            return pa.repeat(values[0], self._run_ends[-1])
        run_ends = pa.array(self._run_ends, pa.int32())
        return pc.run_end_decode(pa.RunEndEncodedArray.from_arrays(run_ends, values))

    def sequences(self, offsets: pa.Array) -> pa.Array:
        """The producer's sequence number of each record, which counts offsets and wraps (F-63)."""
        base = self.expand(self._table.column("base_sequence"))
        if pc.max(base).as_py() < 0:
            return base
        delta = pc.subtract(offsets, self.expand(self._table.column("base_offset")))
        numbers = pc.bit_wise_and(pc.add(base, delta), MAX_SEQUENCE)
        return pc.if_else(pc.less(base, 0), base, numbers)

    @cached_property
    def _batches(self) -> pa.Array:
        """The row numbers in the table of the batches with rows."""
        positions = pa.array(self._positions, pa.int64())
        return pc.index_in(positions, value_set=self._table.column("position"))
