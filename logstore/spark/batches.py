"""Counts and reductions in the process that decodes the records, without making rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
from pyspark.sql.types import StructType

from logstore.directory.split_reader import count_splits
from logstore.spark.columns import ddl
from logstore.spark.data_source import BatchReader, read_options
from logstore.spark.options import Options, chosen_columns
from logstore.spark.planning import ReadTask

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Batches: TypeAlias = Iterable[pa.RecordBatch]


def map_batches(
    spark: SparkSession,
    function: Callable[[Iterator[pa.RecordBatch]], Batches],
    schema: str,
    *paths: str,
    **options: Any,
) -> DataFrame:
    """Apply ``function`` to the records of each task, in the Python process that reads them.

    The logs are planned at this call. ``options`` are those of reading; ``columns`` limits what is
    decoded to the columns that ``function`` uses.

    Args:
        function: called once for each task, with its record batches in the order of the log. It is
            pickled for the workers. The record batches that it yields have ``schema``.
        schema: as DDL, such as ``"length bigint"``.

    Raises:
        LogstoreError: as reading does.
    """
    reader = _reader(paths, options)
    return _by_tasks(spark, reader.partitions(), lambda task: function(reader.read(task)), schema)


def count(spark: SparkSession, *paths: str, **options: Any) -> int:
    """Count the rows that reading would give, from batch headers, after a check of the checksums.

    Raises:
        LogstoreError: as reading does.
    """
    reader = _reader(paths, options)
    settings = reader.settings()

    def counted(task: ReadTask) -> Batches:
        rows = sum(number for _, number in count_splits(task.splits, settings))
        yield pa.RecordBatch.from_arrays([pa.array([rows], pa.int64())], ["rows"])

    tasks = reader.partitions()
    found = _by_tasks(spark, tasks, counted, "rows bigint").selectExpr("sum(rows)").first()
    return 0 if found is None else int(found[0])


def _reader(paths: tuple[str, ...], options: dict[str, Any]) -> BatchReader:
    given = {name: str(value) for name, value in options.items()}
    if paths:
        given["paths"] = json.dumps(paths)
    schema = StructType.fromDDL(ddl(*chosen_columns(Options(given))))
    assert isinstance(schema, StructType)
    return BatchReader(read_options(given), schema)


def _by_tasks(
    spark: SparkSession,
    tasks: list[ReadTask],
    run: Callable[[ReadTask], Batches],
    schema: str,
) -> DataFrame:
    """One task of Spark for each of ``tasks``."""

    def read(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from run(tasks[number])

    return spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(read, schema)


__all__ = ["count", "map_batches"]
