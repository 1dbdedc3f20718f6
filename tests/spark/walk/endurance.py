"""What hundreds of queries leave behind: memory, processes, descriptors, threads."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from pyspark.sql import functions as f

from tests.spark.walk.consumers import SCALARS, digest, small
from tests.spark.walk.directory import Walked
from tests.spark.walk.ends import failing
from tests.support.until import until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MIB = 1 << 20
SPARK_POOLS = ("block-manager-", "shuffle-exchang", "ResultQueryStag", "QueryStageCreat")
"""Names of Spark's own pools, as the system cuts them: of hundreds of threads, a minute each."""


@dataclass(frozen=True)
class Usage:
    """MiB, and numbers of things.

    ``jvm_native`` is what of the JVM's memory is neither heap nor classes and compiled code, which
    each query adds to; ``allocators`` are those of tasks that have not freed their batches,
    ``segments`` the files that they read.
    Heap that was never touched is committed, but not resident, unless the JVM pretouches it.
    """

    driver: float
    jvm_native: float
    jvm_direct: float
    allocators: int
    heap: float
    workers: int
    worker_largest: float
    descriptors: int
    segments: int
    threads: int


def usage(spark: SparkSession) -> Usage:
    """After a collection of garbage, when no task is running."""
    jvm: Any = spark.sparkContext._jvm
    gc.collect()
    jvm.java.lang.System.gc()
    tracker = spark.sparkContext._jsc.sc().statusTracker()  # type: ignore[union-attr]
    until(lambda: not len(tracker.getActiveStageIds()), "all tasks have ended")
    management = jvm.java.lang.management.ManagementFactory
    pools = management.getPlatformMXBeans(
        jvm.java.lang.Class.forName("java.lang.management.BufferPoolMXBean")
    )
    memory = management.getMemoryMXBean().getHeapMemoryUsage()
    others = management.getMemoryMXBean().getNonHeapMemoryUsage()
    java = psutil.Process(management.getRuntimeMXBean().getPid())
    mine = psutil.Process()
    workers = []
    for process in java.children(recursive=True):
        with suppress(psutil.Error):
            if process.children() == [] and "daemon" in " ".join(process.cmdline()):
                workers.append(process.memory_full_info().uss / MIB)
    # Spark's own allocators are left alone: a function that raises leaves a batch in one of them.
    children = jvm.org.apache.spark.sql.util.ArrowUtils.rootAllocator().getChildAllocators()
    ours = [child for child in children if child.getName() == "logstore"]
    return Usage(
        driver=mine.memory_info().rss / MIB,
        jvm_native=(java.memory_info().rss - memory.getCommitted() - others.getCommitted()) / MIB,
        jvm_direct=sum(pool.getMemoryUsed() for pool in pools if pool.getName() == "direct") / MIB,
        allocators=len(ours),
        heap=memory.getUsed() / MIB,
        workers=len(workers),
        worker_largest=max(workers, default=0.0),
        descriptors=java.num_fds() + mine.num_fds(),
        segments=sum(file.path.endswith(".log") for file in java.open_files()),
        threads=_threads(java) + mine.num_threads(),
    )


def _threads(process: psutil.Process) -> int:
    """Those of no pool of Spark's."""
    names = []
    for path in Path(f"/proc/{process.pid}/task").glob("*/comm"):
        with suppress(OSError):  # it has ended
            names.append(path.read_text())
    return sum(not name.startswith(SPARK_POOLS) for name in names)


def _cancelled(frame: DataFrame) -> None:
    context = frame.sparkSession.sparkContext
    from threading import Timer

    context.setJobGroup("endurance", "", interruptOnCancel=True)
    timer = Timer(0.05, context.cancelJobGroup, ["endurance"])
    timer.start()
    try:
        with suppress(Exception):
            frame.select(SCALARS["arrow"]()("value")).sort("offset").collect()
    finally:
        timer.join()
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]


def _failed(frame: DataFrame) -> None:
    takes = failing()
    for name in ("arrow", "map_in_arrow", "sql"):
        with suppress(Exception):
            takes[name](frame.select("offset", "value"))


def _cached(frame: DataFrame) -> None:
    kept = small(frame).cache()
    digest(kept)
    kept.unpersist(blocking=True)


def _left(frame: DataFrame) -> None:
    rows = frame.select("offset", "value").toLocalIterator()
    next(rows)


QUERIES: tuple[Callable[[DataFrame], Any], ...] = (
    digest,
    lambda df: df.select("value").limit(5).collect(),
    lambda df: df.select("offset").take(1),
    lambda df: df.selectExpr("max(value)", "count(headers)").collect(),
    lambda df: df.select(SCALARS["arrow"]()("value").alias("v")).agg(f.max("v")).collect(),
    lambda df: df.select(SCALARS["pickled"]()("key").alias("v")).agg(f.max("v")).collect(),
    lambda df: df.where("offset > 20000").mapInArrow(lambda b: b, df.schema).limit(3).collect(),
    lambda df: small(df).toPandas(),
    lambda df: small(df).join(small(df).select("offset"), "offset").count(),
    lambda df: df.select("value").toArrow(),
    _left,
    _cached,
    _cancelled,
    _failed,
)


def endure(
    spark: SparkSession,
    walked: Walked,
    source: str,
    queries: int,
    seed: int = 1,
    minutes: float = 600.0,
) -> Iterator[tuple[int, Usage]]:
    """Yield how many queries ran and what is used, after a warm-up and at four points after it.

    The warm-up is a tenth of the queries, and each kind twice; ``minutes`` ends them earlier.
    """
    rng, end = random.Random(seed), time.monotonic() + 60 * minutes
    warm = max(queries // 10, 2 * len(QUERIES))
    points = {warm + round(n * (queries - warm) / 4) for n in range(5)}
    for number in range(1, queries + 1):
        ask = QUERIES[number % len(QUERIES)] if number <= warm else rng.choice(QUERIES)
        ask(walked.frame(spark, source))
        late = time.monotonic() > end
        if late or number in points:
            yield number, usage(spark)
        if late:
            return


def growth(found: list[Usage]) -> dict[str, float]:
    """From the first look to the last."""
    first, last = asdict(found[0]), asdict(found[-1])
    return {name: round(last[name] - first[name], 2) for name in first}


BOUNDS: dict[str, float] = {
    "driver": 48.0,
    "jvm_native": 64.0,
    "jvm_direct": 8.0,
    "allocators": 0,
    "heap": 32.0,
    "workers": 3.0,
    "worker_largest": 48.0,
    "descriptors": 12.0,
    "segments": 0,
    "threads": 12.0,
}
"""What may be there more at the end than after the warm-up.

Measured: 114 queries of all kinds added nothing to the driver, direct memory, workers, descriptors
and allocators. 38 scans of all keys, values and headers added 20 MiB of native memory beside 94
threads of Spark's pools, 0.2 MiB each; batches that are not freed would add a GiB.
"""


def too_much(found: list[Usage]) -> dict[str, float]:
    """What has grown beyond its bound."""
    return {name: by for name, by in growth(found).items() if by > BOUNDS[name]}


__all__ = ["Usage", "endure", "growth", "too_much", "usage"]
