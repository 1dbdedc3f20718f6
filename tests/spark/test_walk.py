"""Spark's consumers of columnar scans over both sources, beside the same rows in memory.

A part of them for each run; ``python -m tests.spark.walk`` takes all, at length.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from tests.spark.walk import directory, endurance, walking
from tests.spark.walk.consumers import CONSUMERS
from tests.spark.walk.ends import ENDS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow  # a JVM

SEED = 20
ALWAYS = (
    "mixed_kinds_in_one_projection",
    "arrow_iterator_udf_of_all",
    "by_arrow_udf",
    "pickled_beside_pandas",
    "map_in_arrow_that_holds_all_batches",
    "grouped_maps",
    "projection_both_fields",
    "projection_first_header_value",
    "cache_memory",
    "to_arrow",
    "limits",
    "where_contradictory_offsets",
    "written_to_logs",
)
"""What has failed, or would first."""


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> directory.Walked:
    return directory.write(tmp_path_factory.mktemp("walk"), rows=35_000)


@pytest.mark.essential
def test_consumers_give_the_rows_that_are_there(
    spark: SparkSession, walked: directory.Walked
) -> None:
    rng, report = random.Random(SEED), walking.Report()
    some = rng.sample(sorted(set(CONSUMERS) - set(ALWAYS)), 2)
    for name in (*ALWAYS, *some):
        given, reading = walking.drawn(rng)
        sources = walking.SOURCES if rng.random() < 0.1 else walking.SOURCES[:1]
        walking.walk(spark, walked, name, given, reading, sources, report)
    assert not report.wrong, report


@pytest.mark.essential
def test_generated_questions_are_answered_as_for_rows_in_memory(
    spark: SparkSession, walked: directory.Walked
) -> None:
    report = walking.Report()
    for number in range(8):
        sources = walking.SOURCES if number % 4 == 0 else walking.SOURCES[:1]
        walking.question(spark, walked, 1000 * SEED + number, sources, report)
    assert not report.wrong, report


@pytest.mark.essential
def test_functions_end_where_their_batches_have_no_limit(
    spark: SparkSession, walked: directory.Walked
) -> None:
    with walking.settings(spark, {"spark.sql.execution.arrow.maxRecordsPerBatch": "0"}):
        found, expected = (
            walking.answer(CONSUMERS["arrow_udf"], walked.frame(spark, source))
            for source in ("logstore", "rows")
        )
    assert found == expected


@pytest.mark.parametrize("name", ENDS)
def test_scans_that_end_otherwise_leave_the_session_right(
    spark: SparkSession, walked: directory.Walked, name: str
) -> None:
    ENDS[name](spark, walked, "logstore")


def test_queries_leave_nothing_behind(spark: SparkSession, walked: directory.Walked) -> None:
    found = [used for _, used in endurance.endure(spark, walked, "logstore", queries=34)]
    assert not found[-1].allocators
    assert not found[-1].segments
    assert not endurance.too_much(found), found
