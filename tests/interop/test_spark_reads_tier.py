"""What a real broker keeps in two places, read by Spark as its own consumer reads it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import kafka_tiered
import pytest
import spark_reading
from kafka_tiered import PARTITIONS, TOPIC, TieredDirectory

from logstore.directory.layout import list_partitions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tiered(kafka: str, tmp_path_factory: pytest.TempPathFactory) -> TieredDirectory:
    return kafka_tiered.build(tmp_path_factory.mktemp("tiered"))


@pytest.mark.essential
def test_tier_and_log_directory_are_what_the_consumer_reads(
    spark: SparkSession, tiered: TieredDirectory
) -> None:
    for level, expected in (
        ("read_uncommitted", tiered.uncommitted),
        ("read_committed", tiered.committed),
    ):
        options = {"subscribe": TOPIC, "isolation": level, "tier": str(tiered.tier)}
        found = spark_reading.records(spark_reading.load(spark, tiered.local, **options))
        assert found == sorted(expected, key=lambda r: (r["partition"], r["offset"]))


def test_the_tier_alone_is_what_the_consumer_reads_below_it(
    spark: SparkSession, tiered: TieredDirectory
) -> None:
    """In the tier is what lies below the first local segment, and no open transaction."""
    begins = {
        layout.partition: layout.segments[0].base_offset
        for layout in list_partitions([str(tiered.local)], lambda topic, *_: topic == TOPIC)
    }
    assert len(begins) == PARTITIONS
    assert min(begins.values()) > 0
    found = spark_reading.records(spark_reading.load(spark, tiered.tier, subscribe=TOPIC))
    expected = [r for r in tiered.uncommitted if r["offset"] < begins[r["partition"]]]
    assert found == sorted(expected, key=lambda r: (r["partition"], r["offset"]))


def test_leaders_that_copied_other_borders_are_read_once(
    spark: SparkSession, tiered: TieredDirectory, tmp_path: Path
) -> None:
    """A copy of a segment under another id, as a second try leaves one, gives nothing twice."""
    tier = Path(shutil.copytree(tiered.tier, tmp_path / "tier"))
    for partition in tier.iterdir():
        for path in sorted(partition.glob("00000000000000000000-*")):
            base, _, rest = path.name.partition("-")
            shutil.copy(path, partition / f"{base}-{'A' * 21}Q{os.path.splitext(rest)[1]}")
    options = {"subscribe": TOPIC, "tier": str(tier)}
    found = spark_reading.records(spark_reading.load(spark, tiered.local, **options))
    assert len(found) == len(tiered.uncommitted)
