"""``python -m tests.spark.walk PART``: each consumer under all settings, thousands of questions.

consumers   each consumer, each of Spark's settings, each way of reading
questions   generated ones, with --seed, --questions, --minutes
ends        failures, cancellations, threads, damage; tasks that are retried
memory      --queries of all kinds, and what they leave
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from tests.spark.conftest import TEST_CONF
from tests.spark.walk import directory, endurance, walking
from tests.spark.walk.consumers import CONSUMERS
from tests.spark.walk.ends import ENDS, retried

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ARROW_CACHE = "org.apache.spark.sql.execution.columnar.ArrowCachedBatchSerializer"
STATIC: Mapping[str, Mapping[str, str]] = {
    "plain": {},
    "off-heap": {
        "spark.memory.offHeap.enabled": "true",
        "spark.memory.offHeap.size": "512m",
        "spark.sql.columnVector.offheap.enabled": "true",
    },
    "arrow-cache": {"spark.sql.cache.serializer": _ARROW_CACHE},
}
"""What Spark takes at a start alone.

Spark 4.3's Arrow cache fails for all columns of rows from Parquet too, in Arrow's own vectors
(``IndexOutOfBoundsException``): then an answer of the rows in memory is told as failed.
"""


def session(static: str) -> SparkSession:
    from logstore.spark import session

    spark = session("local[2,3]", app_name="walk", conf={**TEST_CONF, **STATIC[static]})
    spark.sparkContext.setLogLevel("OFF")
    return spark


def consumers(spark: SparkSession, walked: directory.Walked, options: argparse.Namespace) -> int:
    """Settings and ways of reading are drawn; with --all, each of both."""
    rng, report = random.Random(options.seed), walking.Report()
    names = [name for name in CONSUMERS if options.only in name]
    rng.shuffle(names)  # --minutes may end before the last
    end, number = time.monotonic() + 60 * options.minutes, 0
    for number, name in enumerate(names, 1):
        pairs = [walking.drawn(rng)]
        if options.all:
            pairs = [(given, rng.choice(walking.READING)) for given in walking.SETTINGS]
            pairs += [({}, reading) for reading in walking.READING]
        for given, reading in pairs:
            known = len(report.wrong)
            walking.walk(spark, walked, name, given, reading, options.sources, report)
            for wrong in report.wrong[known:]:
                print(wrong, flush=True)
        if number % 20 == 0:
            print(f"{number} of {len(names)} consumers, {report.compared} answers", flush=True)
        if time.monotonic() > end:
            break
    print(f"{report.compared} answers of {number} consumers, {len(report.wrong)} wrong")
    return len(report.wrong)


def questions(spark: SparkSession, walked: directory.Walked, options: argparse.Namespace) -> int:
    report, end = walking.Report(), time.monotonic() + 60 * options.minutes
    for number in range(options.questions):
        if time.monotonic() > end:
            break
        known = len(report.wrong)
        walking.question(spark, walked, options.seed + number, options.sources, report)
        for wrong in report.wrong[known:]:
            print(wrong, flush=True)
        if number % 50 == 49:
            print(f"{number + 1} questions", flush=True)
    print(f"{report.compared} answers, {len(report.wrong)} wrong")
    return len(report.wrong)


def ends(spark: SparkSession, walked: directory.Walked, options: argparse.Namespace) -> int:
    wrong = 0
    for source in options.sources:
        with tempfile.TemporaryDirectory() as room:
            checks = {
                **ENDS,
                "retried": lambda s, w, of, room=room: retried(s, w, of, Path(room)),
            }
            for name, check in checks.items():
                if options.only not in name:
                    continue
                began = time.monotonic()
                try:
                    check(spark, walked, source)
                    said = "right"
                except Exception as error:
                    wrong += 1
                    said = f"{type(error).__name__}: {str(error)[:3000]}"
                print(f"{source} {name} {time.monotonic() - began:.0f} s: {said}", flush=True)
    return wrong


def memory(spark: SparkSession, walked: directory.Walked, options: argparse.Namespace) -> int:
    wrong = 0
    for source in options.sources:
        found = []
        for number, usage in endurance.endure(
            spark, walked, source, options.queries, options.seed, options.minutes
        ):
            print(source, number, usage, flush=True)
            found.append(usage)
        print(source, "grew by", endurance.growth(found), flush=True)
        wrong += len(endurance.too_much(found))
    return wrong


def main() -> int:
    """Return 1 if anything is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.spark.walk",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parts = {"consumers": consumers, "questions": questions, "ends": ends, "memory": memory}
    parser.add_argument("part", choices=parts)
    parser.add_argument("--seed", type=int, help="another one each time")
    parser.add_argument("--static", choices=STATIC, default="plain", help="settings of the session")
    parser.add_argument("--sources", default=",".join(walking.SOURCES), type=lambda s: s.split(","))
    parser.add_argument("--only", default="", help="part of a name")
    parser.add_argument("--all", action="store_true", help="every setting for every consumer")
    parser.add_argument("--rows", type=int, default=120_000, help="of the large partition")
    parser.add_argument("--questions", type=int, default=500)
    parser.add_argument("--queries", type=int, default=500)
    parser.add_argument("--minutes", type=float, default=600.0)
    options = parser.parse_args()
    if isinstance(options.sources, str):
        options.sources = options.sources.split(",")
    if options.seed is None:
        options.seed = random.SystemRandom().randrange(10**6)
    print(f"--seed {options.seed}", flush=True)
    with ExitStack() as stack:
        room = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        walked = directory.write(room, options.rows)
        spark = session(options.static)
        stack.callback(spark.stop)
        return int(parts[options.part](spark, walked, options) > 0)


if __name__ == "__main__":
    sys.exit(main())
