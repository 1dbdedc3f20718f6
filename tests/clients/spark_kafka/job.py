"""A Spark job: the rows of Spark's own Kafka source beside those of the segment source.

``python -m tests.clients.spark_kafka.job JARS BOOTSTRAP LOG_DIR SCRATCH`` prints one JSON object.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from logstore.spark import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPICS = "plain,transacted"
LEVELS = ("read_uncommitted", "read_committed")
WRITTEN = "written"


def _served(spark: SparkSession, bootstrap: str, level: str) -> DataFrame:
    options = {
        "kafka.bootstrap.servers": bootstrap,
        "subscribe": TOPICS,
        "startingOffsets": "earliest",
        "includeHeaders": "true",
        "kafka.isolation.level": level,
    }
    return spark.read.format("kafka").options(**options).load()


def _segments(spark: SparkSession, directory: str, level: str) -> DataFrame:
    options = {"subscribe": TOPICS, "includeHeaders": "true", "isolation": level}
    return spark.read.format("logstore").options(**options).load(directory)


def _differences(left: DataFrame, right: DataFrame) -> int:
    """Rows of one side that the other has not, or not as often."""
    return left.exceptAll(right).count() + right.exceptAll(left).count()


def _streamed(spark: SparkSession, bootstrap: str, scratch: str) -> DataFrame:
    stream = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", TOPICS)
        .option("startingOffsets", "earliest")
        .option("includeHeaders", "true")
        .option("maxOffsetsPerTrigger", "150")
        .load()
    )
    query = (
        stream.writeStream.format("parquet")
        .option("checkpointLocation", f"{scratch}/checkpoint")
        .trigger(availableNow=True)
        .start(f"{scratch}/rows")
    )
    query.awaitTermination()
    return spark.read.parquet(f"{scratch}/rows")


def _write(frame: DataFrame, bootstrap: str) -> None:
    frame.select("key", "value", "headers").write.format("kafka").option(
        "kafka.bootstrap.servers", bootstrap
    ).option("includeHeaders", "true").option("topic", WRITTEN).save()


def main(jars: str, bootstrap: str, directory: str, scratch: str) -> None:
    conf = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2", "spark.jars": jars}
    spark = session("local[2]", app_name="clients", conf=conf)
    found: dict[str, int] = {}
    for level in LEVELS:
        served, segments = _served(spark, bootstrap, level), _segments(spark, directory, level)
        found[f"{level} rows"] = served.count()
        found[f"{level} differences"] = _differences(served, segments)
    segments = _segments(spark, directory, LEVELS[0])
    found["stream differences"] = _differences(_streamed(spark, bootstrap, scratch), segments)
    _write(segments, bootstrap)
    written = spark.read.format("logstore").option("includeHeaders", "true")
    columns = ("key", "value", "headers")
    found["written differences"] = _differences(
        written.option("subscribe", WRITTEN).load(directory).select(*columns),
        segments.select(*columns),
    )
    print(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
