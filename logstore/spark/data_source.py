"""``spark.read.format("logstore")``: PySpark's data source over log directories."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema

from logstore.directory.errors import ListingOutdatedError
from logstore.directory.layout import list_partitions
from logstore.directory.listing import until
from logstore.directory.planning import OffsetRange
from logstore.directory.positions import offset_for_timestamp
from logstore.directory.split_reader import read_splits
from logstore.directory.tiered import joined
from logstore.spark.columns import check_schema, ddl
from logstore.spark.filters import PushedFilters
from logstore.spark.options import Options, SourceOptions, chosen_columns
from logstore.spark.planning import ReadTask, TopOffsets, narrowed, plan_tasks, resolve_all

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class LogstoreDataSource(DataSource):
    """Options and columns: docs/spark.md."""

    @classmethod
    def name(cls) -> str:
        return "logstore"

    def schema(self) -> str:
        return ddl(*chosen_columns(Options(self.options)))

    def reader(self, schema: StructType) -> DataSourceReader:
        return BatchReader(read_options(self.options), schema)

    def streamReader(self, schema: StructType) -> Any:
        from logstore.spark.stream.stream import stream_reader

        return stream_reader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        from logstore.spark.writer.writer import LogstoreWriter

        return LogstoreWriter(self.options, schema, overwrite)


class PythonDataSource(LogstoreDataSource):
    """The same source under the name ``logstore-python``.

    The columnar source leaves streams and writes to it.
    """

    @classmethod
    def name(cls) -> str:
        return "logstore-python"


def read_options(given: Mapping[str, str], *, note: bool = True) -> SourceOptions:
    """
    Args:
        note: see ``Options.refuse_unknown``; a query has one note.
    Raises:
        ConfigError: an unknown option or an invalid value.
    """
    options = Options(given)
    parsed = SourceOptions.parse(options)
    options.refuse_unknown(note=note)
    return parsed


def arrow_schema(schema: StructType) -> pa.Schema:
    """The schema of the record batches for Spark's ``schema``."""
    return to_arrow_schema(schema, timezone="UTC")


class BatchReader(DataSourceReader):
    """The reader of one query. Spark sends it to every task, so it holds no plan.

    With ``top`` a query wants no rows but those.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        check_schema(options.granularity, schema)
        self.options = options
        self.filters = PushedFilters(options.granularity)
        self.schema = arrow_schema(schema)
        self.top: TopOffsets | None = None

    @property
    def pushFilters(self) -> _OptionalPushDown:
        return _OptionalPushDown(self)

    def partitions(self) -> list[ReadTask]:
        # Without any task Spark would make up a partition of its own.
        return until(self._planned, self.options.paths[0], "logs") or [ReadTask(())]

    def _planned(self) -> list[ReadTask] | None:
        """The tasks; ``None`` if a file has changed since it was listed."""
        try:
            return self._plan()
        except (ListingOutdatedError, FileNotFoundError):
            return None

    def _plan(self) -> list[ReadTask]:
        filters, times = self.filters, self.filters.times
        ranges = [
            replace(wanted, start=max(wanted.start, filters.from_offset), end=self._end(wanted))
            for wanted in self._ranges()
            if filters.takes(broker=wanted.layout.broker)
        ]
        if times is not None and times[0] >= times[1]:
            return []
        if self.top is not None:
            ranges = narrowed(ranges, self.top, self.settings())
        return plan_tasks(ranges, self.options, filters.start_timestamp)

    def _end(self, wanted: OffsetRange) -> int:
        end, latest = min(wanted.end, self.filters.end_offset), self.filters.end_timestamp
        if latest is not None and self.options.ascending_timestamps:
            first_later = offset_for_timestamp(wanted.layout, latest)
            return end if first_later is None else min(end, first_later)
        return end

    def _ranges(self) -> list[OffsetRange]:
        o = self.options
        found: set[tuple[str, int]] = set()

        def wanted(topic: str, partition: int, own_path: bool) -> bool:
            if not o.selection.takes(topic, partition, own_path):
                return False
            found.add((topic, partition))
            return self.filters.takes(topic=topic, partition=partition)

        layouts = list_partitions(o.paths, wanted, broker=o.broker, replicas=o.replicas)
        if o.tier:
            tier = list_partitions([o.tier], wanted)
            layouts = joined(layouts, tier, prefer_tier=o.prefer_tier)
        o.check_named(found)
        return resolve_all(layouts, o)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, ReadTask)
        return read_splits(partition.splits, self.settings(), self.schema)

    def settings(self) -> SourceOptions:
        """Return the settings to read tasks that were planned with the filters of this query."""
        start, end = self.filters.times or (None, None)
        return replace(self.options, start_timestamp=start, end_timestamp=end)


class _OptionalPushDown:
    """``BatchReader.pushFilters``, present only if the session lets Spark call it.

    Spark refuses a reader that overrides ``pushFilters`` unless the session has
    ``spark.sql.python.filterPushdown.enabled``. It compares the function behind the method. Without
    the setting this gives the function of the base class, which takes no filter.

    Spark 4.3 keeps a reader for all queries of a frame, with the filters of the first one. So
    filters are taken only if each frame has one query.
    """

    def __init__(self, reader: BatchReader) -> None:
        self._reader = reader
        self.__func__ = DataSourceReader.pushFilters

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        if not self._reader.options.push_filters:
            return filters
        return list(self._reader.filters.push(filters))
