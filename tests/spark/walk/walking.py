"""Each consumer over both sources and over the rows in memory, under Spark's settings."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.spark.walk.consumers import CONSUMERS, Consumer, told
from tests.spark.walk.questions import Asker, asked

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tests.spark.walk.directory import Walked

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
    {"spark.sql.execution.arrow.pythonUDF.columnarInput.enabled": "false"},
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


@dataclass(frozen=True, eq=False)
class Failed:
    """An error, which equals no answer."""

    text: str

    def __str__(self) -> str:
        return f"failed: {self.text}"


def answer(consumer: Consumer, frame: DataFrame) -> Any:
    """What a consumer gives, or how it failed."""
    try:
        return told(consumer(frame))
    except Exception as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        causes = [line for line in lines if "Caused by" in line or "Exception" in line]
        return Failed(f"{type(error).__name__}: {' | '.join([*lines[:2], *causes[-3:]])[:1500]}")


def compare(
    consumer: Consumer, frames: Mapping[str, DataFrame], expected: DataFrame, report: Report
) -> None:
    """``frames`` are named by what they are; ``expected`` has the rows in memory."""
    right = answer(consumer, expected)
    if isinstance(right, Failed):
        report.wrong.append(f"of the rows in memory: {right}")
    for name, frame in frames.items():
        found = answer(consumer, frame)
        report.compared += 1
        if found != right:
            report.wrong.append(f"{name}:\n    {str(found)[:1500]}\n    not {str(right)[:500]}")


def walk(
    spark: SparkSession,
    walked: Walked,
    name: str,
    given: Mapping[str, str],
    reading: Mapping[str, str],
    sources: Sequence[str],
    report: Report,
) -> None:
    """Compare what one consumer gives under Spark's settings and options of reading."""
    with settings(spark, given):
        frames = {
            f"{name} of {source} with {dict(given)} {dict(reading)}": walked.frame(
                spark, source, **reading
            )
            for source in sources
        }
        compare(CONSUMERS[name], frames, walked.frame(spark, "rows", **reading), report)


def question(
    spark: SparkSession, walked: Walked, seed: int, sources: Sequence[str], report: Report
) -> None:
    """Compare the answers to the question of one seed."""
    text, ordered = Asker(seed).question()
    rng = random.Random(seed)
    given, reading = drawn(rng)
    with settings(spark, given):
        frames = {
            f"--seed {seed} of {source} with {dict(given)} {dict(reading)}:\n    {text}\n": (
                walked.frame(spark, source, **reading)
            )
            for source in sources
        }
        rows = walked.frame(spark, "rows", **reading)
        compare(lambda frame: asked(frame, text, ordered), frames, rows, report)


def drawn(rng: random.Random) -> tuple[Mapping[str, str], Mapping[str, str]]:
    return rng.choice(SETTINGS), rng.choice(READING)
