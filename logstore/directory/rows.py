"""Rows of records or of batches, in Arrow record batches of a few MiB; or how many there are."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from checkpoints.loggers import get_logger
from logstore.common.errors import CorruptBatchError
from logstore.directory.columns import (
    BATCH_COLUMNS,
    MICROSECONDS,
    TIMESTAMP_MAX,
    TIMESTAMP_MIN,
    US_PER_MS,
    ArrowTable,
    Expansion,
    SplitColumns,
    of_batches,
    timestamps,
)
from logstore.directory.splits import ReadSettings, Split
from logstore.format.arrow import to_record_batch
from logstore.format.reader import count_records, fill_columns
from logstore.kernels import DECODE_FULL, DECODE_LIMIT, ColumnBuilder, ReadBounds, RecordCount

# Small enough to stay in the cache until the JVM has read it, and large enough that the cost of a
# record batch itself does not matter.
_ROWS_MAX = 32_768
_BYTES_MAX = 4 << 20  # bytes of keys and values

_PAIR = {"key": 0, "value": 1}  # the fields of a header

logger = get_logger(__name__)


@dataclass(slots=True)
class RecordRows:
    """Makes rows of ``schema`` from ``split``, with some of the columns of records."""

    split: Split
    settings: ReadSettings
    schema: pa.Schema
    _constant: SplitColumns = field(init=False)
    _flags: tuple[bool, bool, bool, bool] = field(init=False)
    _bounds: ReadBounds = field(init=False)
    _with_runs: bool = field(init=False)

    def __post_init__(self) -> None:
        self._constant = SplitColumns(self.split)
        names = set(self.schema.names)
        self._flags = (
            "key" in names,
            "value" in names,
            "timestamp" in names,
            "headers" in names,
        )
        self._with_runs = not names.isdisjoint(BATCH_COLUMNS)
        self._bounds = ReadBounds(
            self.split.from_offset,
            self.split.end_offset,
            # A scan that leaves out damaged batches has checked every checksum.
            self.settings.check_crcs and not self.settings.drop_malformed,
            self.settings.include_control,
            start_timestamp=self.settings.start_timestamp,
            end_timestamp=self.settings.end_timestamp,
        )

    @property
    def scan_options(self) -> dict[str, bool]:
        """Options for `BatchTable`. Decoding checks the checksums, while the bytes are cached."""
        if self.settings.drop_malformed:
            return {"check_crc": self.settings.check_crcs, "stop_on_bad": False}
        return {}

    def read(
        self, window: memoryview, position: int, table: ArrowTable, first: int, end: int
    ) -> Iterator[pa.RecordBatch]:
        """Rows of the batches ``[first, end)`` of ``table``; ``window`` begins at ``position``.

        Raises:
            CorruptBatchError: a batch is damaged; names the file and the byte.
        """
        data = window[: table.span(first, end).stop]
        starts = table.cells("position")
        while first < end:
            builder, skipped = ColumnBuilder(*self._flags, runs=self._with_runs), 0
            try:
                at, status = fill_columns(
                    data,
                    starts[first],
                    builder,
                    _ROWS_MAX,
                    _BYTES_MAX,
                    self._bounds,
                    self._unpacked_max,
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
                runs = Expansion(table, *builder.runs())
                yield self._rows(to_record_batch(builder, *self._flags), position, table, runs)
            first = stop + skipped

    @property
    def _unpacked_max(self) -> int:
        return self.settings.max_unpacked_bytes or self.settings.max_batch_bytes

    def count(self, data: memoryview, position: int, count: RecordCount) -> None:
        """Add to ``count`` the rows that ``read`` would make, of all batches from ``position`` on.

        Raises:
            CorruptBatchError: with the position in ``data``.
        """
        count_records(data, position, count, self._bounds, self._unpacked_max)

    def _rows(
        self, records: pa.RecordBatch, position: int, table: ArrowTable, expansion: Expansion
    ) -> pa.RecordBatch:
        def made(column: pa.Field) -> pa.Array:
            if self._constant.has(column.name):
                return self._constant.rows(column, records.num_rows)
            match column.name:
                case "offset" | "key" | "value":
                    return records.column(column.name)
                case "timestamp":
                    return timestamps(records.column("timestamp"), column.type)
                case "headers":
                    return _headers(records.column("headers"), column.type)
                case "sequence":
                    return expansion.sequences(records.column("offset")).cast(column.type)
            return expansion.expand(of_batches(column, table, position))

        arrays = [made(column) for column in self.schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _headers(lists: pa.ListArray, kind: pa.DataType) -> pa.Array:
    """Headers as in Spark's source: null if a record has none. ``kind`` may lack a field."""
    pairs, fields = lists.values, list(kind.value_type)
    pairs = pa.StructArray.from_arrays([pairs.field(_PAIR[f.name]) for f in fields], fields=fields)
    none = pc.equal(pc.list_value_length(lists), 0)
    return pa.ListArray.from_arrays(lists.offsets, pairs, type=kind, mask=none)


@dataclass(slots=True)
class BatchRows:
    """Makes a row of ``schema`` for each batch of ``split``, with some of the columns of batches.

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
        self, window: memoryview, position: int, table: ArrowTable, first: int, end: int
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


class Extreme(NamedTuple):
    """The ``choose``, `min` or `max`, of a ``column``, ``offset`` or ``timestamp``."""

    column: str
    choose: Callable[[int, int], int]

    @property
    def name(self) -> str:
        return f"{self.choose.__name__}_{self.column}"


@dataclass(slots=True)
class RowSummary:
    """A number of rows, and extremes of them: offsets, and times in µs. None is there of nulls."""

    rows: int = 0
    extremes: dict[Extreme, int] = field(default_factory=dict)

    def add(self, other: RowSummary) -> None:
        self.rows += other.rows
        for extreme, value in other.extremes.items():
            known = self.extremes.get(extreme, value)
            self.extremes[extreme] = extreme.choose(known, value)


@dataclass(slots=True)
class RowSummaries:
    """Summaries of the rows that ``RecordRows`` or ``BatchRows`` would make of ``split``.

    Checksums are checked as there, and then a header is believed, as ``RecordCount`` says. With
    ``drop_malformed`` all is decoded: what cannot be is no row.
    """

    split: Split
    settings: ReadSettings
    extremes: tuple[Extreme, ...] = ()
    _rows: RecordRows = field(init=False)

    def __post_init__(self) -> None:
        columns = [pa.field("offset", pa.int64())]
        if any(extreme.column == "timestamp" for extreme in self.extremes):
            columns.append(pa.field("timestamp", MICROSECONDS))
        self._rows = RecordRows(self.split, self.settings, pa.schema(columns))

    @property
    def scan_options(self) -> dict[str, bool]:
        """Options for `BatchTable`."""
        if self.settings.granularity == "batch":
            return {"stop_on_bad": False}
        return self._rows.scan_options

    def read(
        self, window: memoryview, position: int, table: ArrowTable, first: int, end: int
    ) -> Iterator[RowSummary]:
        """Summaries of the batches ``[first, end)`` of ``table``; ``window`` begins at
        ``position``.

        Raises:
            CorruptBatchError: a batch is damaged; names the file and the byte.
        """
        if self.settings.granularity == "batch":
            yield RowSummary(end - first)
            return
        found = None
        if not self.settings.drop_malformed:
            found = self._counted(window, position, table.span(first, end))
        if found is not None:
            yield found
            return
        for rows in self._rows.read(window, position, table, first, end):
            yield self._of_rows(rows)

    def _counted(self, window: memoryview, position: int, span: slice) -> RowSummary | None:
        """``None`` if an extreme may be of times that are null in Spark."""
        count = RecordCount(**{extreme.name: True for extreme in self.extremes})
        try:
            self._rows.count(window[: span.stop], span.start, count)
        except CorruptBatchError as error:
            raise error.located(self.split.path, position) from None
        found = RowSummary(count.rows)
        for extreme in self.extremes:
            value = getattr(count, extreme.name)
            if value is None:
                continue
            if extreme.column == "timestamp":
                if not TIMESTAMP_MIN <= value <= TIMESTAMP_MAX:
                    return None
                value *= US_PER_MS
            found.extremes[extreme] = value
        return found

    def _of_rows(self, rows: pa.RecordBatch) -> RowSummary:
        found = RowSummary(rows.num_rows)
        for extreme in self.extremes:
            values = rows.column(extreme.column).cast(pa.int64())
            value = (pc.min if extreme.choose is min else pc.max)(values).as_py()
            if value is not None:
                found.extremes[extreme] = value
        return found
