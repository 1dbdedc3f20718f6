"""Each consumer over both sources and over the rows in memory, under Spark's settings."""

from __future__ import annotations

import random
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.spark.walk.consumers import CONSUMERS, Consumer, told
from tests.spark.walk.directory import Walked

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SOURCES = ("logstore", "logstore-python")
SETTINGS: tuple[Mapping[str, str], ...] = (
    {},
    {"spark.sql.adaptive.enabled": "false", "spark.sql.autoBroadcastJoinThreshold": "-1"},
    {"spark.sql.codegen.wholeStage": "false"},
    {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"},
    {"spark.sql.columnVector.offheap.enabled": "true", "spark.sql.ansi.enabled": "false"},
    {
        "spark.sql.inMemoryColumnarStorage.enableVectorizedReader": "false",
        "spark.sql.inMemoryColumnarStorage.batchSize": "1000",
    },
    {"spark.sql.execution.arrow.maxRecordsPerBatch": "777", "spark.sql.shuffle.partitions": "5"},
    {
        "spark.sql.execution.arrow.maxRecordsPerBatch": "0",
        "spark.sql.execution.pythonUDF.arrow.enabled": "true",
    },
    {"spark.sql.codegen.maxFields": "3", "spark.sql.session.timeZone": "America/St_Johns"},
    {"spark.sql.optimizer.nestedSchemaPruning.enabled": "false"},
)
READING: tuple[Mapping[str, str], ...] = (
    {},
    {"splitBytes": "1m"},
    {"isolation": "read_committed"},
    {"includeControl": "true"},
    {"minPartitions": "30"},
)


@contextmanager
def settings(spark: SparkSession, given: Mapping[str, str]) -> Iterator[None]:
    before = {name: spark.conf.get(name, None) for name in given}
    try:
        for name, value in given.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)


@dataclass
class Report:
    """``compared`` counts answers of a source that were compared."""

    compared: int = 0
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return "\n\n".join([f"{self.compared} compared, {len(self.wrong)} wrong", *self.wrong])


def answer(consumer: Consumer, frame: Any) -> Any:
    """What a consumer gives, or the error, which differs from all that is right."""
    try:
        return told(consumer(frame))
    except Exception as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        causes = [line for line in lines if "Caused by" in line or "Exception" in line]
        place = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} in {place.name}: {' | '.join([*lines[:2], *causes[-3:]])[:900]}"


def compare(
    spark: SparkSession,
    walked: Walked,
    name: str,
    given: Mapping[str, str],
    options: Mapping[str, str],
    sources: Iterable[str],
    report: Report,
) -> None:
    consumer = CONSUMERS[name]
    with settings(spark, given):
        expected = answer(consumer, walked.frame(spark, "rows", **options))
        if isinstance(expected, str) and "Error" in expected.partition(":")[0]:
            report.wrong.append(f"{name}: the rows fail: {expected}")
        for source in sources:
            found = answer(consumer, walked.frame(spark, source, **options))
            report.compared += 1
            if found != expected:
                report.wrong.append(
                    f"{name} of {source} with {dict(given)} {dict(options)}:\n"
                    f"    {str(found)[:1200]}\n    expected {str(expected)[:400]}"
                )


def drawn(rng: random.Random) -> tuple[Mapping[str, str], Mapping[str, str]]:
    return rng.choice(SETTINGS), rng.choice(READING)
