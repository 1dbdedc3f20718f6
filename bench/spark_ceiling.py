"""What PySpark's data source API gives at best: a source that hands out one ready batch for ever.

Nothing is read and nothing decoded, so that what is left is Spark's own way of a row: Arrow over a
socket, and a copy of each row in the JVM. No source in Python can be faster on this machine.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

ROWS_PER_BATCH = 30_000
_TASKS = 16

DDL = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, "
    "timestampType int"
)


class ReadyBatches(DataSource):
    """Options: ``columns``, as those of logstore; ``rows``; ``valueBytes``."""

    @classmethod
    def name(cls) -> str:
        return "ready-batches"

    def schema(self) -> str:
        wanted = self.options.get("columns")
        fields = DDL.split(", ")
        return ", ".join(f for f in fields if wanted in (None, f.split()[0]))

    def reader(self, schema: StructType) -> DataSourceReader:
        return _Reader(schema, int(self.options["rows"]), int(self.options["valueBytes"]))


class _Reader(DataSourceReader):
    def __init__(self, schema: StructType, rows: int, value_bytes: int) -> None:
        self.schema = to_arrow_schema(schema, timezone="UTC")
        self.rows, self.value_bytes = rows, value_bytes

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(self.rows // _TASKS) for _ in range(_TASKS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        size = min(ROWS_PER_BATCH, max(1, (4 << 20) // self.value_bytes))
        values: dict[str, Any] = {
            "key": [b"k" * 16] * size,
            "value": [b"v" * self.value_bytes] * size,
            "topic": ["bench"] * size,
            "timestampType": [0] * size,
        }
        numbers = pa.array(range(size), pa.int64())
        arrays = [
            pa.array(values[f.name], f.type) if f.name in values else numbers.cast(f.type)
            for f in self.schema
        ]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        left = partition.value
        while left > 0:
            yield batch.slice(0, min(size, left))
            left -= size


def ceiling(spark: Any, rows: int, value_bytes: int, columns: str) -> Any:
    """A frame of as many rows as a log has, and of the same columns: ``all`` or one of them."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # no worker could import it
    spark.dataSource.register(ReadyBatches)
    options = {"rows": str(rows // _TASKS * _TASKS), "valueBytes": str(value_bytes)}
    if columns != "all":
        options["columns"] = columns
    return spark.read.format("ready-batches").options(**options).load()
