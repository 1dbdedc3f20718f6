"""A real ``kill -9`` of the driver of streaming queries, again and again.

    python -m tests.spark.stream_killed --kills 20 --seed 1

This process appends to a log directory, rolls segments, makes partitions and topics, and deletes
what both queries have committed. The driver copies it into Parquet files and into another log
directory, as docs/spark-streaming.md says. It is killed at moments drawn from a seed, many of them
right after a step of a commit, and started again; processes that it leaves may still be at work. At
the end both sinks hold each record once. The kills share their directories, so that each driver
finds what the last one left.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from logstore import LogConfig, LogManager
from logstore.common.types import TopicPartition
from tests.support.until import patience, until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

TRIGGERS: dict[str, dict[str, Any]] = {
    "availableNow": {"availableNow": True},
    "processingTime": {"processingTime": "50 milliseconds"},
    "once": {"once": True},
}
SINKS = ("parquet", "logstore")
AHEAD = 400  # records, at most, that no query has planned to read
PER_TRIGGER = 100
BEAT_S = 0.002
CONFIG = LogConfig(segment_bytes=1500, index_interval_bytes=200)
COMPACTED = "c"  # of unique keys, so that its segments are replaced and no record goes


class Failure(AssertionError):
    """A record is missing, is there twice, or a query failed."""


# -- the driver ------------------------------------------------------------------------------------


def drive(root: Path, trigger: str, *, finish: bool) -> None:
    """Run both queries until killed; or until they have read all, and tell what Parquet holds."""
    from logstore.spark import session
    from tests.spark.conftest import TEST_CONF

    spark = session("local[2]", conf=TEST_CONF)
    while True:
        started = [start(spark, root, sink, TRIGGERS[trigger]) for sink in SINKS]
        if trigger == "processingTime":
            spark.streams.awaitAnyTermination()
        for query in started:
            query.awaitTermination()
        if finish:
            break
    rows = spark.read.parquet(str(root / "parquet"))
    found = rows.selectExpr("topic", "partition", "offset", "string(value)").collect()
    (root / "found.json").write_text(json.dumps(found))
    spark.stop()


def start(spark: SparkSession, root: Path, sink: str, trigger: dict[str, Any]) -> StreamingQuery:
    source = spark.readStream.format("logstore").option("startingOffsets", "earliest")
    stream = source.option("maxOffsetsPerTrigger", PER_TRIGGER).load(str(root / "data"))

    def save(rows: DataFrame, number: int) -> None:
        write = rows.select("key", "value").write.format("logstore").mode("append")
        write = write.option("topic", "out").option("numPartitions", 3)
        write.option("writeId", f"copy-{number}").save(str(root / "logstore" / "out"))

    if sink == "parquet":
        writer = stream.writeStream.format("parquet").option("path", str(root / "parquet"))
    else:
        writer = stream.writeStream.foreachBatch(save)
    writer = writer.option("checkpointLocation", str(root / f"checkpoint-{sink}"))
    return writer.trigger(**trigger).start()


# -- the writer beside it --------------------------------------------------------------------------


class Feeder:
    """A log directory that lives, and all that was ever appended to it."""

    def __init__(self, root: Path, rng: random.Random) -> None:
        self._root, self._rng = root, rng
        self._manager = LogManager([root / "data"], CONFIG)
        self._topics = Counter({"a": 2, COMPACTED: 1})
        self.sent: list[tuple[str, int, int, str]] = []
        self.deleted = self.compacted = 0
        self.append()

    def close(self) -> None:
        self._manager.close()

    def beat(self) -> None:
        kind = self._rng.random()
        if kind < 0.2 and len(self.sent) < AHEAD + min(map(self._planned, SINKS)):
            self.append()
        elif kind < 0.203 and sum(self._topics.values()) < 12:
            self._topics[self._rng.choice("abcd")] += 1
        elif kind < 0.21:
            self._delete()
        elif kind < 0.22:
            self._compact()

    def append(self) -> None:
        topic = self._rng.choice(sorted(self._topics))
        partition = self._rng.randrange(self._topics[topic])
        config = {"cleanup.policy": "compact"} if topic == COMPACTED else None
        log = self._manager.get_or_create(topic, partition, config=config)
        first, count = log.log_end_offset, self._rng.randint(1, 20)
        named = [
            (topic, partition, offset, f"{topic}-{partition}-{offset}")
            for offset in range(first, first + count)
        ]
        log.append([(value.encode(), value.encode()) for *_, value in named])
        self.sent += named

    def _planned(self, sink: str) -> int:
        return sum(
            self._offsets(sink, newest(self._root / f"checkpoint-{sink}" / "offsets")).values()
        )

    def _offsets(self, sink: str, number: int) -> dict[TopicPartition, int]:
        """Where a micro-batch ends; nothing while Spark writes it."""
        path = self._root / f"checkpoint-{sink}" / "offsets" / str(number)
        try:
            found = json.loads(path.read_text().splitlines()[-1])["offsets"]
        except (OSError, ValueError, IndexError):
            return {}
        return {
            TopicPartition(t, int(p)): at for t, ends in found.items() for p, at in ends.items()
        }

    def _delete(self) -> None:
        """What both queries have committed is not needed any more."""
        ends = [
            self._offsets(sink, newest(self._root / f"checkpoint-{sink}" / "commits"))
            for sink in SINKS
        ]
        for tp in ends[0].keys() & ends[1].keys():
            if tp.topic == COMPACTED:
                continue
            log = self._manager.get(*tp)
            assert log is not None
            log.delete_records(max(log.log_start_offset, min(ends[0][tp], ends[1][tp])))
            self.deleted += log.maintenance.delete_old_segments()
        self._manager.housekeeper.checkpoint_log_start_offsets()

    def _compact(self) -> None:
        for tp in self._manager.logs:
            if tp.topic == COMPACTED:
                self.compacted += self._manager.cleaner.clean_by_hand(tp).stats.segments_before


def newest(folder: Path) -> int:
    """The largest number that names a file there; −1 without any."""
    try:
        return max((int(path.name) for path in folder.iterdir() if path.name.isdigit()), default=-1)
    except FileNotFoundError:
        return -1


# -- kills -----------------------------------------------------------------------------------------


def moment(root: Path, rng: random.Random) -> tuple[str, Callable[[], bool]]:
    """When to kill: a name, and whether it has come."""
    sink = rng.choice(SINKS)
    checkpoint, out = root / f"checkpoint-{sink}", root / "logstore"
    folders = {
        f"plan {{}} of {sink}": checkpoint / "offsets",
        f"commit {{}} of {sink}": checkpoint / "commits",
        "the list {} of files of parquet": root / "parquet" / "_spark_metadata",
    }
    patterns = {
        "the lock of a commit to logstore": ".out.committing",
        "the new directory of logstore": ".out.writing-*/directory/out-*",
        "the rows of a task for logstore": ".out.writing-*/tasks/*",
    }
    kind = rng.choice([*folders, *patterns, "a random moment"])
    if kind in folders:
        number = newest(folders[kind]) + rng.randint(1, 5)
        return kind.format(number), lambda: newest(folders[kind]) >= number
    before = newest(checkpoint / "offsets")
    rest_s = rng.uniform(0, 0.2 if kind in patterns else 3)
    old = set(out.glob(patterns.get(kind, "*")))
    begun: list[float] = []

    def come() -> bool:
        if not begun and newest(checkpoint / "offsets") > before:
            begun.append(time.monotonic())
        if not begun or time.monotonic() < begun[0] + rest_s:
            return False
        if kind not in patterns:
            return True
        there = set(out.glob(patterns[kind]))
        old.intersection_update(there)  # a name that a kill left may come again
        return bool(there - old)

    return kind, come


def run_driver(root: Path, trigger: str, feeder: Feeder, killed: Callable[[], bool] | None) -> None:
    """One driver, until the moment has come, or without one until it has read all."""
    command = [sys.executable, "-m", "tests.spark.stream_killed", "--drive", str(root)]
    command += ["--trigger", trigger, *([] if killed else ["--finish"])]
    with (root / "driver.log").open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    family: list[psutil.Process] = []
    pause, give_up = threading.Event(), time.monotonic() + 5 * patience()
    try:
        while process.poll() is None:
            if time.monotonic() > give_up:
                raise Failure("the driver does not come to the moment, or to an end")
            if killed is None:
                pause.wait(BEAT_S)
                continue
            feeder.beat()
            if killed():
                break
            pause.wait(BEAT_S)
        else:
            if killed is not None or process.returncode:
                raise Failure(f"the driver ended with {process.returncode}")
    finally:
        if process.poll() is None:
            family = psutil.Process(process.pid).children(recursive=True)
            for victim in [p for p in family if "java" in p.name()]:
                victim.kill()
            process.kill()
            process.wait()
    until(lambda: not any(map(psutil.Process.is_running, family)), "the driver's workers end")


def run(seed: int, root: Path, triggers: Sequence[str], told: Callable[[str], None]) -> str:
    """Kill a driver of each of the triggers in turn.

    Raises:
        Failure: what the sinks hold is not what was appended.
    """
    rng = random.Random(seed)
    (root / "logstore").mkdir()
    feeder = Feeder(root, rng)
    try:
        for number, trigger in enumerate(triggers, 1):
            name, come = moment(root, rng)
            run_driver(root, trigger, feeder, come)
            told(f"{number}: {trigger}, killed at: {name}; {len(feeder.sent)} records appended")
        run_driver(root, "availableNow", feeder, None)
    finally:
        feeder.close()
    by_row = Counter(tuple(row) for row in json.loads((root / "found.json").read_text()))
    with LogManager([root / "logstore" / "out"]) as copy:
        by_value = Counter(
            record.value.decode()
            for log in copy.logs.values()
            for record in log.records()
            if record.value is not None
        )
    compare("parquet", Counter(feeder.sent), by_row)
    compare("logstore", Counter(value for *_, value in feeder.sent), by_value)
    beside = f"{feeder.deleted} segments deleted and {feeder.compacted} replaced beside"
    return f"{len(feeder.sent)} records once in each sink, {beside}"


def compare(sink: str, wanted: Counter[Any], found: Counter[Any]) -> None:
    missing, more = wanted - found, found - wanted
    if missing or more:
        some = ", ".join(map(str, sorted(missing)[:5])), ", ".join(map(str, sorted(more)[:5]))
        raise Failure(
            f"{sink}: {missing.total()} missing ({some[0]}), {more.total()} too many ({some[1]})"
        )


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.spark.stream_killed", description=__doc__
    )
    parser.add_argument("--kills", type=int, default=20, help="of each trigger")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--trigger", choices=TRIGGERS, help="this one alone")
    parser.add_argument("--drive", type=Path, metavar="DIRECTORY", help=argparse.SUPPRESS)
    parser.add_argument("--finish", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.drive:
        drive(args.drive, args.trigger, finish=args.finish)
        return 0
    logging.disable(logging.CRITICAL)
    triggers = [args.trigger] if args.trigger else list(TRIGGERS)
    for trigger in triggers:
        root = Path(tempfile.mkdtemp(prefix="stream-killed-"))
        try:
            done = run(
                args.seed, root, [trigger] * args.kills, lambda line: print(line, flush=True)
            )
        except Failure as error:
            print(f"{trigger}: {error}; its files and the driver's log are in {root}")
            return 1
        shutil.rmtree(root)
        print(f"{trigger}: {args.kills} kills, {done}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
