"""What the data source reads of a log directory, in the words of ``kafka_tools.consume``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RecordFields = dict[str, Any]

COLUMNS = "topic,partition,offset,timestamp,timestampType,key,value,headers,leaderEpoch"
TIMESTAMP_TYPES = ("CreateTime", "LogAppendTime")  # as numbers, in Spark's Kafka source


def load(spark: SparkSession, *paths: Path, **options: Any) -> DataFrame:
    reader = spark.read.format("logstore").options(columns=COLUMNS, **options)
    return reader.load([str(path) for path in paths])


def records(frame: DataFrame) -> list[RecordFields]:
    """The rows of ``load`` by topic, partition and offset."""
    from pyspark.sql import functions as f

    rows = frame.withColumn("timestamp", f.unix_millis("timestamp")).collect()
    found = [_described(row.asDict()) for row in rows]
    return sorted(
        found, key=lambda record: (record["topic"], record["partition"], record["offset"])
    )


def _described(row: RecordFields) -> RecordFields:
    epoch, headers = row["leaderEpoch"], row["headers"] or ()
    return row | {
        "timestampType": TIMESTAMP_TYPES[row["timestampType"]],
        "key": _bytes(row["key"]),
        "value": _bytes(row["value"]),
        "headers": [(header.key, _bytes(header.value)) for header in headers],
        "leaderEpoch": None if epoch is None or epoch < 0 else epoch,
    }


def _bytes(value: bytearray | None) -> bytes | None:
    return None if value is None else bytes(value)


def both_levels(spark: SparkSession, path: Path) -> tuple[list[RecordFields], list[RecordFields]]:
    """All records of a directory, read uncommitted and read committed."""
    levels = "read_uncommitted", "read_committed"
    uncommitted, committed = (records(load(spark, path, isolation=level)) for level in levels)
    return uncommitted, committed
