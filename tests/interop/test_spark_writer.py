"""Log directories that the Spark writer made, judged by Kafka's tools and served by a broker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kafka_tools
import pyarrow as pa
import pytest
import reading
from broker import KafkaBroker
from kafka_logs import CODECS
from kafka_tools import CreateTopic

from logstore import LogManager

pytestmark = pytest.mark.slow

ROWS = 3000
PARTITIONS = 2
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def rows(task: int) -> pa.RecordBatch:
    """Nulls, empty fields, headers, and timestamps in no order."""
    numbers = range(task * ROWS, (task + 1) * ROWS)
    headers = [
        [{"key": "h", "value": b"%d" % n}, {"key": "é", "value": None}] if n % 3 == 0 else None
        for n in numbers
    ]
    return pa.RecordBatch.from_pydict(
        {
            "key": pa.array([None if n % 5 == 0 else f"key-{n % 50}" for n in numbers]),
            "value": pa.array([None if n % 7 == 0 else b"%d" % n * (n % 30) for n in numbers]),
            "timestamp": pa.array(
                [1_700_000_000_000_000 + n * 7919 % ROWS * 1000 for n in numbers],
                pa.timestamp("us", "UTC"),
            ),
            "headers": pa.array(headers, HEADERS),
        }
    )


def write(target: Path, topic: str, codec: str) -> Path:
    from pyspark.sql import types

    from logstore.spark.writer.writer import LogstoreWriter

    header = types.StructType(
        [
            types.StructField("key", types.StringType()),
            types.StructField("value", types.BinaryType()),
        ]
    )
    schema = types.StructType(
        [
            types.StructField("key", types.StringType()),
            types.StructField("value", types.BinaryType()),
            types.StructField("timestamp", types.TimestampType()),
            types.StructField("headers", types.ArrayType(header)),
        ]
    )
    options = {
        "path": str(target),
        "topic": topic,
        "numPartitions": str(PARTITIONS),
        "compression.type": codec,
        "batch.size": "2000",
        "segment.bytes": "40000",
        "index.interval.bytes": "1000",
        "leaderEpoch": "3",
    }
    writer = LogstoreWriter(options, schema, False)
    writer.commit([writer.write(iter([rows(task)])) for task in range(2)])
    return target


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A log directory for each codec, by topic."""
    directory = tmp_path_factory.mktemp("spark-written")
    return {f"by-{c}": write(directory / c, f"by-{c}", c) for c in CODECS}


def test_kafka_accepts_every_file(kafka: str, written: dict[str, Path]) -> None:
    """Checksums, records, sparse indexes entry by entry, snapshots."""
    partitions = [p for target in written.values() for p in target.glob("by-*-?")]
    paths = reading.sorted_files(partitions, ".log", ".snapshot")
    assert len(paths) > 40
    assert kafka_tools.index_sanity(paths) == []


def test_a_broker_serves_what_was_written(
    kafka: str, written: dict[str, Path], tmp_path: Path
) -> None:
    """A real consumer reads every record of both partitions as the log reads it."""
    expected: list[dict[str, Any]] = []
    for target in written.values():
        with LogManager([target]) as manager:
            for tp in sorted(manager.logs):
                expected += reading.read_log(manager.logs[tp])
    broker = KafkaBroker(tmp_path / "broker")
    try:
        broker.format()
        broker.start()
        steps = [CreateTopic(topic, PARTITIONS) for topic in written]
        kafka_tools.produce(broker.bootstrap, *steps)
        broker.stop()
        for topic, target in written.items():
            broker.adopt(topic, {n: target / f"{topic}-{n}" for n in range(PARTITIONS)})
        broker.start()
        found = kafka_tools.consume(broker.bootstrap, sorted(written))
    finally:
        broker.kill()
    order = ("topic", "partition", "offset")
    assert len(found) == 2 * ROWS * len(CODECS)
    assert sorted(found, key=lambda r: [r[name] for name in order]) == sorted(
        expected, key=lambda r: [r[name] for name in order]
    )
