"""Log directories of real brokers on Spark: read as a real consumer reads them, and verified."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import kafka_logs
import pytest
import spark_reading
from kafka_cluster import IN_TRANSACTIONS, REPLICATED, ReplicatedDirectories
from kafka_logs import KafkaDirectory, LogDirectory
from reading import RecordFields, checksums

import logstore.spark
from logstore.verify import verify
from tests.faults.kinds import ALONE, KINDS
from tests.faults.together import Planted, all_complaints, plant_each

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

HALVES = ("clean", "killed")
TOPICS = sorted(kafka_logs.topic_configs())


@pytest.fixture(scope="module", params=HALVES)
def half(request: pytest.FixtureRequest, kafka_directory: KafkaDirectory) -> LogDirectory:
    """What the broker left after a clean stop, or after SIGKILL."""
    directory: LogDirectory = getattr(kafka_directory, request.param)
    return directory


def by_topic(records: Iterable[RecordFields]) -> dict[str, list[RecordFields]]:
    found: dict[str, list[RecordFields]] = {topic: [] for topic in TOPICS}
    for record in records:
        found[record["topic"]].append(record)
    return found


# --- reading ------------------------------------------------------------------------------------


def test_records_are_those_of_the_consumer(spark: SparkSession, half: LogDirectory) -> None:
    """Keys, values, offsets, timestamps and their type, headers and leader epochs, in both
    isolation levels, of every codec; internal topics are left out, as by a pattern."""
    uncommitted, committed = map(by_topic, spark_reading.both_levels(spark, half.path))
    for topic in TOPICS:
        assert uncommitted[topic] == half.uncommitted[topic], topic
        assert committed[topic] == half.committed[topic], topic


def test_filters_find_what_a_scan_finds(spark: SparkSession, half: LogDirectory) -> None:
    """Timestamps are out of order in the topic, so that no index entry is the whole answer."""
    everything = half.uncommitted["jitter"]
    times = sorted(record["timestamp"] for record in everything)
    low, high = times[len(times) // 3], times[len(times) // 2]
    frame = spark_reading.load(spark, half.path, splitBytes="8k").where(
        f"topic = 'jitter' and timestamp >= timestamp_millis({low}) "
        f"and timestamp < timestamp_millis({high}) and offset > 100"
    )
    assert spark_reading.records(frame) == [
        record
        for record in everything
        if low <= record["timestamp"] < high and record["offset"] > 100
    ]


def test_a_replicated_partition_is_read_from_the_broker_that_is_named(
    spark: SparkSession, kafka_replicas: ReplicatedDirectories
) -> None:
    """Brokers 1 and 2 have all that was acknowledged, the third one the first part of it."""
    topics = f"{REPLICATED},{IN_TRANSACTIONS}"
    options = {"subscribe": topics, "isolation": "read_uncommitted"}
    found = {
        broker: spark_reading.records(
            spark_reading.load(spark, *kafka_replicas.paths, broker=broker, **options)
        )
        for broker in ("1", "2", "3")
    }
    expected = sorted(
        kafka_replicas.uncommitted, key=lambda r: (r["topic"], r["partition"], r["offset"])
    )
    assert found["1"] == found["2"] == expected
    assert 0 < len(found["3"]) < len(expected)
    assert all(record in expected for record in found["3"])


# --- verifying ----------------------------------------------------------------------------------


def test_the_verification_is_clean_and_that_without_spark(
    spark: SparkSession, half: LogDirectory
) -> None:
    """A killed broker leaves what its next start repairs: no errors there either."""
    before = checksums(half.path)
    report, plain = logstore.spark.verify_on_spark(spark, half.path).report, verify([half.path])
    assert sorted(map(str, report.findings)) == sorted(map(str, plain.findings))
    assert report.unusable == []
    clean = (half.path / ".kafka_cleanshutdown").exists()
    assert report.clean or not clean
    assert not [str(f) for f in report.findings if f.severity == "error"]
    assert checksums(half.path) == before


def test_replicas_of_a_real_cluster_are_equal(
    spark: SparkSession, kafka_replicas: ReplicatedDirectories
) -> None:
    """One of them lags and crashed; what is compared is what all three must have."""
    report = logstore.spark.verify_on_spark(spark, *kafka_replicas.paths).report
    assert not [str(f) for f in report.findings if f.severity == "error"]
    assert report.unusable == []
    compared = [part for part in report.partitions if part.topic in (REPLICATED, IN_TRANSACTIONS)]
    assert {part.broker for part in compared} == {"1", "2", "3"}
    assert all(part.compared_end > 100 for part in compared)
    assert any(len(part.epochs) > 1 for part in compared)


def test_faults_in_a_directory_of_a_real_broker_are_found(
    spark: SparkSession, kafka_directory: KafkaDirectory, tmp_path: Path
) -> None:
    planted = plant_each([str(kafka_directory.clean.path)], tmp_path, ALONE, "kafka")
    assert len(planted) > 40
    report = logstore.spark.verify_on_spark(
        spark, *(path for one in planted for path in one.paths)
    ).report
    wrong = all_complaints(planted, report)
    assert not wrong, "\n".join(wrong)


def test_faults_in_a_replica_of_a_real_cluster_are_found(
    spark: SparkSession, kafka_replicas: ReplicatedDirectories, tmp_path: Path
) -> None:
    paths = [str(path) for path in kafka_replicas.paths]
    planted = plant_each(paths, tmp_path, KINDS, "replicas")
    assert len(planted) > 40
    report = logstore.spark.verify_on_spark(
        spark, *(path for one in planted for path in one.paths)
    ).report
    wrong = all_complaints(planted, report)
    assert not wrong, "\n".join(wrong)


def _check_all_found(spark: SparkSession, planted: list[Planted]) -> None:
    assert len(planted) > 40
    paths = [path for one in planted for path in one.paths]
    wrong = all_complaints(planted, logstore.spark.verify_on_spark(spark, *paths).report)
    assert not wrong, "\n".join(wrong)
