"""Random questions whose answers are found below Spark's plan (``pushed_questions``)."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import LongType, StringType, StructType, TimestampType

from logstore.spark.filters import Microseconds
from tests.spark import columnar_wire
from tests.spark.pushed_questions import COLUMNS, OPTIONS, Asked, rows_of, write
from tests.spark.reading import schema_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def odd_logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    logs = tmp_path_factory.mktemp("pushed") / "logs"
    write(logs)
    return logs


@pytest.fixture(scope="module")
def asked(spark: SparkSession, odd_logs: Path) -> Asked:
    return Asked(spark, odd_logs)


@pytest.mark.parametrize("block", range(3))
def test_answers_are_those_of_the_rows_in_memory(asked: Asked, block: int) -> None:
    wrong = [asked.ask(seed) for seed in range(1 + 12 * block, 13 + 12 * block)]
    assert not any(wrong), "\n".join(filter(None, wrong))


# ---- without the JVM ---------------------------------------------------------------------------

COMPARISONS: list[tuple[type[Filter], Callable[[Any, Any], bool]]] = [
    (EqualTo, operator.eq),
    (GreaterThan, operator.gt),
    (GreaterThanOrEqual, operator.ge),
    (LessThan, operator.lt),
    (LessThanOrEqual, operator.le),
]
EXTREMES = ("min(offset)", "max(offset)", "min(timestamp)", "max(timestamp)")


def aggregates(rows: list[dict[str, Any]]) -> tuple[Any, ...]:
    offsets = [row["offset"] for row in rows]
    times = [row["micros"] for row in rows if row["micros"] is not None]
    found = [choose(values, default=None) for values in (offsets, times) for choose in (min, max)]
    return len(rows), *found


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_aggregates_of_tasks_are_those_of_the_rows(odd_logs: Path, options: dict[str, str]) -> None:
    """Each alone too: what is asked decides what headers are enough for."""
    rows = rows_of(odd_logs, options).to_pylist()
    given = {"path": str(odd_logs), "columns": COLUMNS, **options}
    values = {
        "offset": [row["offset"] for row in rows],
        "timestamp": [row["micros"] for row in rows if row["micros"] is not None],
    }
    rng = random.Random(str(options))
    for _ in range(15):
        filters, left = [], rows
        for column in rng.sample(("offset", "timestamp"), rng.choice((0, 1, 1, 2))):
            made, holds = rng.choice(COMPARISONS)
            value = rng.choice(values[column]) + rng.choice((-1000, -1, 0, 0, 1, 999, 1000))
            literal = value if column == "offset" else Microseconds(value)
            filters.append(made((column,), literal))  # type: ignore[call-arg]
            key = "micros" if column == "timestamp" else column
            left = [row for row in left if row[key] is not None and holds(row[key], value)]
        topics = sorted({row["topic"] for row in left})
        expected = {t: aggregates([row for row in left if row["topic"] == t]) for t in topics}
        for number in rng.sample(range(5), 2):
            name = ("count(*)", *EXTREMES)[number]
            kind = TimestampType() if "time" in name else LongType()
            asked = StructType().add("topic", StringType()).add("n", kind)
            found, _ = columnar_wire.query(
                given, schema_of(given), asked, filters, aggregates=[name], micros=("n",)
            )
            choose = sum if number == 0 else (min if name.startswith("min") else max)
            parts: dict[str, list[int]] = {}
            for row in found:
                parts.setdefault(row["topic"], []).extend([row["n"]] * (row["n"] is not None))
            merged = {topic: choose(each) if each else None for topic, each in parts.items()}
            assert merged == {t: e[number] for t, e in expected.items()}, (name, filters)
