"""Python functions over record batches, in the process that decodes the records."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.types import StructType

from logstore.spark.columns import ddl
from logstore.spark.data_source import BatchReader, read_options
from logstore.spark.options import Options, chosen_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def map_batches(
    spark: SparkSession,
    function: Callable[[Iterator[pa.RecordBatch]], Iterable[pa.RecordBatch]],
    schema: str,
    *paths: str,
    **options: Any,
) -> DataFrame:
    """Apply ``function`` to the records of each task, in the Python process that reads them.

    The answer is that of ``mapInArrow`` on the frame that reads the same, whose records go from
    Spark to another process of Python row by row. The logs are planned at this call, by this
    process. ``options`` are those of reading; ``columns`` limits what is decoded to the columns
    that ``function`` uses.

    Args:
        function: called once for each task, with its record batches in the order of the log. It is
            pickled for the workers. The record batches that it yields have ``schema``.
        schema: as DDL, such as ``"length bigint"``.

    Raises:
        LogstoreError: as reading does.
    """
    reader = _reader(paths, options)
    # The whole list travels to each worker, which unpacks one of them.
    tasks = [pickle.dumps(task) for task in reader.partitions()]

    def read(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                yield from function(reader.read(pickle.loads(tasks[number])))

    return spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(read, schema)


def _reader(paths: tuple[str, ...], options: dict[str, Any]) -> BatchReader:
    given = {name: str(value) for name, value in options.items()}
    if paths:
        given["paths"] = json.dumps(paths)
    schema = StructType.fromDDL(ddl(*chosen_columns(Options(given))))
    assert isinstance(schema, StructType)
    return BatchReader(read_options(given), schema)


__all__ = ["map_batches"]
