"""The writer through Spark, and streams into it: SQL in, log directories out, read back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import AnalysisException, PySparkException

from logstore.common.partitioner import murmur2
from logstore.log import LogOwner, PartitionLog
from logstore.verify import Severity, verify

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.slow


def numbers(spark: SparkSession, count: int, tasks: int = 4) -> DataFrame:
    return spark.range(0, count, 1, tasks).selectExpr(
        "concat('key-', id % 100) AS key",
        "concat('value-', id) AS value",
        "timestamp_millis(1700000000000 + id) AS timestamp",
        "if(id % 10 = 0, array(named_struct('key', 'n', 'value', cast(string(id) AS binary))), "
        "null) AS headers",
    )


def values(target: Path, partition: int) -> list[bytes | None]:
    with PartitionLog.open(target / f"t-{partition}", owner=LogOwner(clean_shutdown=True)) as log:
        return [record.value for record in log.records()]


@pytest.mark.essential
def test_a_dataframe_by_key_is_read_back_as_it_was(spark, tmp_path):
    target = tmp_path / "out"
    written = numbers(spark, 2_000)
    (
        written.write.format("logstore")
        .mode("append")
        .option("topic", "t")
        .option("numPartitions", 3)
        .option("compression.type", "lz4")
        .save(str(target))
    )
    for partition in range(3):
        assert values(target, partition) == [
            f"value-{n}".encode()
            for n in range(2_000)
            if (murmur2(f"key-{n % 100}".encode()) & 0x7FFFFFFF) % 3 == partition
        ]
    report = verify([target])
    assert [f for f in report.findings if f.severity > Severity.INFO] == []
    columns = ["string(key) AS key", "string(value) AS value", "timestamp", "headers"]
    read = spark.read.format("logstore").option("includeHeaders", "true").load(str(target))
    assert sorted(read.selectExpr(*columns).collect()) == sorted(written.collect())


def test_save_modes(spark, tmp_path):
    target = str(tmp_path / "out")
    write = numbers(spark, 10, 1).write.format("logstore").option("topic", "t")

    def count() -> int:
        return spark.read.format("logstore").load(target).count()

    write.mode("append").save(target)
    write.mode("append").save(target)
    assert count() == 20
    write.mode("overwrite").save(target)
    assert count() == 10
    for _ in range(2):
        write.option("writeId", "once").mode("append").save(target)
    assert count() == 20
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    with pytest.raises(AnalysisException, match="Append"):  # Spark has no other for such sources
        write.mode("error").save(str(tmp_path / "new"))


def test_a_job_that_fails_leaves_nothing(spark, tmp_path):
    """One task: another one may still be writing when Spark aborts, and leaves its file behind."""
    broken = (
        numbers(spark, 1000)
        .coalesce(1)
        .selectExpr("if(value = 'value-999', raise_error('planted'), value) AS value")
    )
    write = broken.write.format("logstore").mode("append").option("topic", "t")
    with pytest.raises(PySparkException, match="planted"):
        write.save(str(tmp_path / "out"))
    assert list(tmp_path.iterdir()) == []


def test_a_copy_of_a_log_directory(spark, tmp_path):
    """A backup without what is not wanted: the partition column keeps records where they were."""
    source, copy = tmp_path / "source", tmp_path / "copy"
    write = numbers(spark, 1000).write.format("logstore").mode("append")
    write.option("topic", "t").option("numPartitions", 2).save(str(source))
    read = spark.read.format("logstore").option("includeHeaders", "true").load(str(source))
    kept = read.where("string(key) <> 'key-7'")
    kept.write.format("logstore").mode("append").save(str(copy))
    for partition in range(2):
        with PartitionLog.open(
            source / f"t-{partition}", owner=LogOwner(clean_shutdown=True)
        ) as log:
            expected = [record[1:] for record in log.records() if record.key != b"key-7"]
        with PartitionLog.open(copy / f"t-{partition}", owner=LogOwner(clean_shutdown=True)) as log:
            assert [record[1:] for record in log.records()] == expected
