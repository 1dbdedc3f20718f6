"""Scans that end otherwise than at their end, and many at a time. Each says what it found wrong.

Each takes a session, the directory and a source, and leaves the session as it was: a query that
follows is right.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
from pyspark import InheritableThread
from pyspark.sql import functions as f

from tests.spark.walk.consumers import SCALARS, crc, digest, small
from tests.spark.walk.directory import Walked
from tests.support.until import patience, until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

End = Callable[["SparkSession", Walked, str], None]
ENDS: dict[str, End] = {}


def end(check: End) -> End:
    ENDS[check.__name__] = check
    return check


def _same(walked: Walked, spark: SparkSession, frame: DataFrame, *columns: str) -> None:
    """The session goes on as if nothing had been."""
    rows = walked.frame(spark, "rows").select(*columns)
    assert digest(frame.select(*columns)) == digest(rows)


def _failure(take: Callable[[DataFrame], Any], frame: DataFrame) -> str:
    try:
        return f"no failure, but {str(take(frame))[:200]}"
    except Exception as error:
        return str(error)


# ---- a function that fails ---------------------------------------------------------------------


def _raises(data: bytes | None) -> int:
    if data is not None and data.startswith(b"value 30000 "):
        raise ValueError("the row that fails")
    return crc(data)


def failing() -> dict[str, Callable[[DataFrame], Any]]:
    """By each kind of consumer, whose function raises for one row."""

    @f.pandas_udf("long")
    def pandas(values: pd.Series) -> pd.Series:
        return values.map(_raises)

    @f.pandas_udf("long")
    def iterator(batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
        for values in batches:
            yield values.map(_raises)

    @f.arrow_udf("long")
    def arrow(values: pa.Array) -> pa.Array:
        return pa.array([_raises(v) for v in values.to_pylist()], pa.int64())

    def in_arrow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for value in batch.column("value").to_pylist():
                _raises(value)
            yield batch.select(["offset"])

    def in_pandas(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for batch in batches:
            batch["value"].map(_raises)
            yield batch[["offset"]]

    scalars = {
        "pickled": f.udf(_raises, "long", useArrow=False),
        "by_arrow": f.udf(_raises, "long", useArrow=True),
        "pandas": pandas,
        "iterator": iterator,
        "arrow": arrow,
    }
    taken: dict[str, Callable[[DataFrame], Any]] = {
        name: lambda df, u=u: df.select("offset", u("value")).collect()
        for name, u in scalars.items()
    }
    return taken | {
        "map_in_arrow": lambda df: df.mapInArrow(in_arrow, "offset long").collect(),
        "map_in_pandas": lambda df: df.mapInPandas(in_pandas, "offset long").collect(),
        "rdd": lambda df: df.rdd.map(lambda row: _raises(row["value"])).sum(),
        "sql": lambda df: df.selectExpr(
            "IF(value LIKE 'value 30000 %', raise_error('the row that fails'), 1)"
        ).collect(),
    }


@end
def functions_that_raise(spark: SparkSession, walked: Walked, source: str) -> None:
    frame = walked.frame(spark, source)
    for name, take in failing().items():
        said = _failure(take, frame.select("offset", "value"))
        assert "the row that fails" in said, f"{name}: {said[:2000]}"
    _same(walked, spark, frame, "offset", "value", "headers")


@end
def workers_that_are_killed(spark: SparkSession, walked: Walked, source: str) -> None:
    """Those of the function: the query fails, and gives no part; the next one has new workers."""

    def killed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            if batch.column("offset")[-1].as_py() > 30_000:
                os.kill(os.getpid(), signal.SIGKILL)

    frame = walked.frame(spark, source).select("offset", "value")
    said = _failure(lambda df: df.mapInArrow(killed, df.schema).collect(), frame)
    assert "Python worker exited unexpectedly" in said, said[:2000]
    _same(walked, spark, frame, "offset", "value")


# ---- cancelled ---------------------------------------------------------------------------------


@end
def cancelled_queries(spark: SparkSession, walked: Walked, source: str) -> None:
    """In the middle of the scan, for the JVM and for Python functions."""
    context = spark.sparkContext
    system = context._jvm.java.lang.System  # type: ignore[union-attr]
    marked = (
        "reflect('java.lang.System', 'setProperty', 'walk.begun', string(offset)) IS NOT NULL "
        "OR reflect('java.lang.Thread', 'sleep', 20L) IS NULL"
    )
    slow = "offset < 32000 OR reflect('java.lang.Thread', 'sleep', 20L) IS NULL"
    frame = walked.frame(spark, source).where("topic = 'big'")
    takes: dict[str, Callable[[], Any]] = {
        "jvm": lambda: frame.where(marked).where(slow).selectExpr("max(value)").collect(),
        "python": lambda: (
            frame.where(marked).where(slow).select(SCALARS["arrow"]()("value")).collect()
        ),
    }
    for name, take in takes.items():
        system.clearProperty("walk.begun")
        failures: list[str] = []

        def run(take: Callable[[], Any] = take, failures: list[str] = failures) -> None:
            context.setJobGroup("walk", "to be cancelled", interruptOnCancel=True)
            try:
                take()
            except Exception as error:
                failures.append(str(error))

        thread = InheritableThread(target=run)
        thread.start()
        try:
            until(lambda: system.getProperty("walk.begun"), "the first row has come")
        finally:
            context.cancelJobGroup("walk")
            thread.join(patience())
        assert not thread.is_alive(), name
        assert failures, f"{name}: the query was not cancelled"
        assert "cancel" in failures[0].lower(), (name, failures[0][:2000])
        _same(walked, spark, walked.frame(spark, source), "key", "offset")


# ---- at a time ---------------------------------------------------------------------------------


@end
def queries_of_several_threads(spark: SparkSession, walked: Walked, source: str) -> None:
    """Of one frame object, and of one each."""
    rows, shared = small(walked.frame(spark, "rows")), small(walked.frame(spark, source))
    questions: list[Callable[[DataFrame], Any]] = [
        lambda df: digest(df.select("offset", "headers.value")),
        lambda df: digest(df.select(SCALARS["arrow"]()("value"))),
        lambda df: df.where("partition = 1").count(),
        lambda df: df.selectExpr("max(offset)", "min(timestamp)").collect(),
        lambda df: digest(df.groupBy("key").count()),
        lambda df: len(df.limit(9).collect()),
    ]
    expected = [ask(rows) for ask in questions]
    with ThreadPoolExecutor(6) as pool:
        for own in (False, True):
            frames = [small(walked.frame(spark, source)) if own else shared for _ in questions]
            answers = [pool.submit(ask, df) for ask, df in zip(questions, frames, strict=True)]
            assert [answer.result(3 * patience()) for answer in answers] == expected


@end
def iterators_left_in_the_middle(spark: SparkSession, walked: Walked, source: str) -> None:
    frame = walked.frame(spark, source)
    for prefetch in (False, True):
        for _ in range(3):
            left = frame.select("offset", "value").toLocalIterator(prefetchPartitions=prefetch)
            next(left)
            del left
    for columns in (("value",), ("offset",), ("headers",)):
        assert len(frame.select(*columns).limit(3).collect()) == 3
        assert not frame.select(*columns).isEmpty()
    _same(walked, spark, frame, "offset", "value")


# ---- damage ------------------------------------------------------------------------------------


@end
def damage_in_the_middle(spark: SparkSession, walked: Walked, source: str) -> None:
    """Every kind of consumer fails with the error that names the file, and gives no part."""
    path = walked.logs / "big-0" / f"{0:020d}.log"
    whole = path.read_bytes()
    place = len(whole) * 3 // 4
    taken: dict[str, Callable[[DataFrame], Any]] = {
        "collect": lambda df: df.collect(),
        "pandas": lambda df: df.toPandas(),
        "arrow": lambda df: df.toArrow(),
        "aggregate": lambda df: df.selectExpr("sum(length(value))").collect(),
        "sort": lambda df: df.sort("value").collect(),
        "join": lambda df: df.join(df.selectExpr("offset AS o"), f.expr("offset = o")).count(),
        "cache": lambda df: digest(df.cache()),
        "rdd": lambda df: df.rdd.count(),
        "local": lambda df: list(df.toLocalIterator()),
        "map": lambda df: df.mapInArrow(lambda batches: batches, df.schema).collect(),
        "noop": lambda df: df.write.format("noop").mode("overwrite").save(),
        **{
            name: lambda df, make=make: df.select("offset", make()("value")).collect()
            for name, make in SCALARS.items()
        },
    }
    try:
        changed = bytearray(whole)
        changed[place] ^= 0xFF
        path.write_bytes(changed)
        for name, take in taken.items():
            frame = walked.frame(spark, source).select("offset", "value")
            said = _failure(take, frame)
            frame.unpersist()
            assert str(path) in said, f"{name}: {said[:2000]}"
    finally:
        path.write_bytes(whole)
    _same(walked, spark, walked.frame(spark, source), "offset", "value")


def retried(spark: SparkSession, walked: Walked, source: str, room: Path) -> None:
    """A task fails once in the middle and runs again: needs ``local[N,M]``."""
    flag = room / "failed"

    def once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if not flag.exists() and batch.column("offset")[0].as_py() > 0:
                flag.touch()
                raise ValueError("once")
            yield batch

    frame = walked.frame(spark, source)
    again = frame.mapInArrow(once, frame.schema)
    assert digest(again) == digest(walked.frame(spark, "rows"))
    assert flag.exists()


__all__ = ["ENDS", "retried"]
