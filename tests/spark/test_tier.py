"""A tier and a log directory as one log: each offset once, from where the options say."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from logstore.common.errors import ConfigError
from logstore.directory.errors import DataLossError
from tests.spark.reading import offsets, read, reader, tasks
from tests.spark.test_stream import Stream
from tests.support.tiered_logs import Tiered

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def places(path: Path, **options: Any) -> set[tuple[str, int]]:
    """The directories that are read, and the segments."""
    planned = tasks(reader(path, **options))
    return {(Path(split.uri).parts[-2], split.segment_base) for t in planned for split in t.splits}


def test_each_offset_comes_once_wherever_the_border_is(tmp_path: Path) -> None:
    log = Tiered(tmp_path)
    expected = read(log.whole)
    for base in log.bases(log.local):
        log.retain_locally(base)
        for prefer in ("false", "true"):
            assert read(log.local, tier=log.tier, preferTier=prefer) == expected
        assert offsets(read(log.local))[0] == base


def test_transactions_that_cross_the_border(tmp_path: Path) -> None:
    log = Tiered(tmp_path, transactions=True, batches=150)
    expected = read(log.whole, isolation="read_committed")
    assert len(expected) < len(read(log.whole))
    for base in log.bases(log.local):
        log.retain_locally(base)
        for prefer in ("false", "true"):
            options: dict[str, Any] = {
                "tier": log.tier,
                "preferTier": prefer,
                "isolation": "read_committed",
            }
            assert read(log.local, **options) == expected


def test_local_segments_are_preferred(tmp_path: Path) -> None:
    log = Tiered(tmp_path)
    bases = log.bases(log.local)
    log.retain_locally(bases[3])
    found = places(log.local, tier=log.tier)
    assert {base for place, base in found if place == "local"} == set(bases[3:])
    assert all(base < bases[3] for place, base in found if place == "tier")
    preferred = places(log.local, tier=log.tier, preferTier="true")
    assert {base for place, base in preferred if place == "local"} == {bases[-1]}


# --- what does not fit


@pytest.mark.parametrize("options", [{"preferTier": "true"}, {"tier": "/t", "replicas": "all"}])
def test_options_without_a_meaning(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        reader(tmp_path, **options)


# --- what changes after the plan


def test_a_segment_that_retention_takes_after_the_plan_is_read_in_the_tier(tmp_path: Path) -> None:
    log = Tiered(tmp_path, transactions=True)
    options: dict[str, Any] = {"isolation": "read_committed", "splitBytes": "2k"}
    expected = read(log.whole, **options)
    bases = log.bases(log.local)
    log.retain_locally(bases[1])
    made = reader(log.local, tier=log.tier, **options)
    planned = tasks(made)
    log.retain_locally(bases[-1])
    rows = [row for task in planned for batch in made.read(task) for row in batch.to_pylist()]
    assert rows == expected
    (log.partition(log.local) / f"{bases[-1]:020}.log").unlink()  # rolled meanwhile, and deleted
    rows = [row for task in planned for batch in made.read(task) for row in batch.to_pylist()]
    assert rows == expected


def test_a_segment_that_neither_place_has_any_more_fails(tmp_path: Path) -> None:
    log = Tiered(tmp_path)
    bases = log.bases(log.local)
    log.retain_locally(bases[1])
    made = reader(log.local, tier=log.tier)
    planned = tasks(made)
    log.retain_locally(bases[3])
    log.end_tier_at(log.bases(log.tier)[1])
    for snapshot in log.partition(log.tier).glob("*.snapshot"):
        snapshot.unlink()
    with pytest.raises(DataLossError, match=r"deleted meanwhile, and .*/tier/orders-0 ends at"):
        [batch for task in planned for batch in made.read(task)]


def test_another_batch_in_the_tier_is_no_spare(tmp_path: Path) -> None:
    log, other = Tiered(tmp_path / "one"), Tiered(tmp_path / "other", transactions=True)
    made = reader(log.local, tier=log.tier)
    planned = tasks(made)
    log.retain_locally(log.bases(log.local)[-1])
    shutil.rmtree(log.tier)
    shutil.copytree(other.tier, log.tier)
    with pytest.raises(DataLossError, match=r"/tier/orders-0 has another batch at offset 0"):
        [batch for task in planned for batch in made.read(task)]


def test_a_stream_begins_in_the_tier_and_goes_on_locally(tmp_path: Path) -> None:
    """Retention runs beside it, and the tier gets what retention takes."""
    log = Tiered(tmp_path)
    expected = [(row["offset"], row["value"]) for row in read(log.whole)]
    later, bases = tmp_path / "later", log.bases(log.local)
    shutil.copytree(log.tier, later)
    log.end_tier_at(log.bases(log.tier)[2])
    log.retain_locally(bases[1])
    options = {"tier": log.tier, "maxOffsetsPerTrigger": 40}
    stream = Stream(log.local, **options)
    found = stream.trigger()
    assert found == expected[: len(found)]
    shutil.rmtree(log.tier)
    shutil.copytree(later, log.tier)
    log.retain_locally(bases[-1])
    found += stream.trigger()
    stream = Stream(log.local, stream.checkpoint, **options)  # after a restart
    while more := stream.trigger():
        found += more
    assert found == expected


def test_spark_reads_both_by_column_and_as_a_stream(spark: SparkSession, tmp_path: Path) -> None:
    log = Tiered(tmp_path, transactions=True)
    log.retain_locally(log.bases(log.local)[2])

    def frame(path: Path, **options: Any) -> DataFrame:
        made = spark.read.format("logstore").option("isolation", "read_committed")
        return made.options(**options).load(str(path))

    whole, both = frame(log.whole), frame(log.local, tier=str(log.tier))
    assert both.collect() == whole.collect()
    assert both.count() == whole.count()
    assert both.where("offset < 50").collect() == whole.where("offset < 50").collect()
    extremes = "min(offset)", "max(timestamp)"
    assert both.selectExpr(*extremes).collect() == whole.selectExpr(*extremes).collect()
    stream = spark.readStream.format("logstore").option("startingOffsets", "earliest")
    query = (
        stream.option("tier", str(log.tier))
        .load(str(log.local))
        .writeStream.format("memory")
        .queryName("both")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert spark.table("both").count() == len(read(log.whole))
