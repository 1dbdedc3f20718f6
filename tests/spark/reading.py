"""The batch source without Spark: what a worker would read, in this process."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.datasource import Filter
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from logstore.common.config import LogConfig
from logstore.common.errors import LogstoreError
from logstore.log import PartitionLog, run_inline
from logstore.manager import LogManager, ManagerOwner
from logstore.spark.columns import known_columns
from logstore.spark.data_source import BatchReader, LogstoreDataSource
from logstore.spark.options import Options, chosen_columns
from logstore.spark.planning import ReadTask
from logstore.testing import ManualClock
from tests.spark import columnar_wire

TYPES: dict[str, DataType] = {
    "binary": BinaryType(),
    "string": StringType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "boolean": BooleanType(),
    "timestamp": TimestampType(),
    "array<struct<key:string,value:binary>>": ArrayType(
        StructType([StructField("key", StringType()), StructField("value", BinaryType())])
    ),
}


def schema_of(options: dict[str, str]) -> StructType:
    """As Spark parses what ``LogstoreDataSource.schema`` gives."""
    granularity, names = chosen_columns(Options(options))
    known = known_columns(granularity)
    return StructType([StructField(name, TYPES[known[name].kind]) for name in names])


def reader(path: str | Path, schema: StructType | None = None, **options: Any) -> BatchReader:
    given = _given(path, options)
    source = LogstoreDataSource(given)
    made = source.reader(schema or schema_of(given))
    assert isinstance(made, BatchReader)
    return made


def tasks(reader: BatchReader) -> list[ReadTask]:
    return reader.partitions()


def read(
    path: str | Path,
    *,
    filters: Sequence[Filter] = (),
    schema: StructType | None = None,
    **options: Any,
) -> list[dict[str, Any]]:
    """All rows, task after task. Filters are pushed; what remains of them is not applied.

    Read twice: by the Python source, and as the columnar source would; the rows, or what either
    says that is wrong, are the same.
    """
    given = _given(path, options)
    try:
        rows, left = _read_plainly(path, filters, schema, options)
    except LogstoreError as error:
        with pytest.raises(columnar_wire.Refused, match=f"^{re.escape(str(error))}$"):
            _read_by_column(given, schema or schema_of(given), filters, counted=False)
        raise
    read_again, exact = _read_by_column(given, schema or schema_of(given), filters)
    assert read_again == rows
    assert exact.count(False) == left
    return rows


def _read_plainly(
    path: str | Path, filters: Sequence[Filter], schema: StructType | None, options: dict[str, Any]
) -> tuple[list[dict[str, Any]], int]:
    made = reader(path, schema, **options)
    left = len(list(made.pushFilters(list(filters))))
    batches = [batch for task in tasks(made) for batch in made.read(task)]
    for batch in batches:
        batch.validate(full=True)
    return list(pa.Table.from_batches(batches).to_pylist()) if batches else [], left


def _read_by_column(
    given: dict[str, str], schema: StructType, filters: Sequence[Filter], *, counted: bool = True
) -> tuple[list[dict[str, Any]], list[bool]]:
    """The rows, which the headers count too, and which filters are exact."""
    exact = columnar_wire.exact(given, schema, filters) if filters else []
    rows, _ = columnar_wire.query(given, schema, schema, filters)
    if counted:
        assert columnar_wire.query(given, schema, StructType(), filters) == ([], len(rows))
        number = StructType([StructField("count", LongType())])
        total, _ = columnar_wire.query(given, schema, number, filters, aggregates=["count(*)"])
        assert sum(row["count"] for row in total) == len(rows)
    return rows, exact


def _given(path: str | Path, options: dict[str, Any]) -> dict[str, str]:
    return {
        "path": str(path),
        "pushFilters": "true",
        **{name: str(value) for name, value in options.items()},
    }


def offsets(rows: list[dict[str, Any]]) -> list[int]:
    return [row["offset"] for row in rows]


SMALL = LogConfig(
    segment_bytes=6000, index_interval_bytes=500, segment_index_bytes=4096, retention_ms=-1
)


class Broker:
    """A broker's log directory on the disk, closed when left."""

    def __init__(self, path: Path, config: LogConfig = SMALL, **partitions: int) -> None:
        self.clock = ManualClock()
        self.path = path
        self.manager = LogManager(
            [str(path)], config, clock=self.clock, owner=ManagerOwner(run_later=run_inline)
        )
        self.logs: dict[str, list[PartitionLog]] = {
            topic: self.manager.create_topic(topic, count) for topic, count in partitions.items()
        }

    def __enter__(self) -> Broker:
        return self

    def __exit__(self, *_: object) -> None:
        self.manager.housekeeper.checkpoint_high_watermarks()
        self.manager.housekeeper.checkpoint_log_start_offsets()
        self.manager.close()
