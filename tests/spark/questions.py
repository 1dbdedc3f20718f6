"""The same questions for every session: this process, a cluster, local files or an object store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logstore.verify import VerifyReport

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def reading(spark: SparkSession, directories: Sequence[str]) -> dict[str, Any]:
    """What the source answers: whole, filtered, of every replica, and by batches."""
    from pyspark.sql import functions as f

    one = spark.read.format("logstore").load(directories[0])
    every = spark.read.format("logstore").option("replicas", "all")
    every = every.option("columns", "broker,offset").load(list(directories))
    batches = spark.read.format("logstore").option("granularity", "batch").load(directories[0])
    return {
        "whole": _rows(one.groupBy("topic", "partition").agg(*_content(f))),
        "filtered": _rows(
            one.where("topic = 'orders' and partition = 1 and offset between 40 and 120")
            .groupBy("topic")
            .agg(*_content(f))
        ),
        "replicas": _rows(every.groupBy("broker").agg(f.count("*"), f.sum("offset"))),
        "batches": _rows(batches.groupBy("topic", "partition").count()),
    }


def streaming(spark: SparkSession, directory: str, checkpoint: Path) -> int:
    """Records that one pass over a directory brings."""
    stream = spark.readStream.format("logstore").option("startingOffsets", "earliest")
    query = (
        stream.load(directory)
        .writeStream.format("memory")
        .queryName("streamed")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return spark.table("streamed").count()


def writing(spark: SparkSession, directory: str, target: Path) -> dict[str, list[list[Any]]]:
    """A log directory written from another one: the content of both."""
    from pyspark.sql import functions as f

    source = spark.read.format("logstore").load(directory)
    rows = source.select("key", "value", "topic", "partition", "timestamp")
    rows.write.format("logstore").mode("append").save(str(target))
    written = spark.read.format("logstore").load(str(target))
    content = _content(f, offsets=False)
    return {
        name: _rows(frame.groupBy("topic", "partition").agg(*content))
        for name, frame in (("source", source), ("written", written))
    }


def told(report: VerifyReport, root: str) -> dict[str, Any]:
    """A report without what differs by place."""
    found = report.to_dict()
    found["findings"].sort(key=lambda finding: (finding["file"], finding["position"]))
    found["partitions"].sort(key=lambda partition: partition["directory"])
    for entry in (*found["findings"], *found["partitions"]):
        for key, value in entry.items():
            if isinstance(value, str):
                entry[key] = value.replace(root, "")
    return found


def _content(f: Any, offsets: bool = True) -> list[Any]:
    """Aggregates that any difference in keys, values, times or offsets changes."""
    columns = ["key", "value", "timestamp", *(["offset"] if offsets else [])]
    return [f.count("*").alias("records"), f.sum(f.xxhash64(*columns) % 1_000_003).alias("hashes")]


def _rows(frame: DataFrame) -> list[list[Any]]:
    return sorted([list(row) for row in frame.collect()], key=str)
