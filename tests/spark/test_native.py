"""Tasks that the JVM reads itself, beside the same tasks read by Python workers."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from pyspark import InheritableThread
from pyspark.sql.functions import expr

from logstore.common.config import LogConfig
from logstore.directory.windows import BatchTable
from logstore.log import PartitionLog
from logstore.spark import sessions
from tests.spark import columnar_wire
from tests.spark.reading import Broker, schema_of
from tests.spark.test_columnar import allocated, environment, set_conf
from tests.support.builders import marker, produced
from tests.support.until import patience, until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.slow  # a JVM

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
ALL = (
    "key,value,topic,partition,offset,timestamp,timestampType,headers,leaderEpoch,producerId,"
    "producerEpoch,sequence,isTransactional,isControl,compression,segment,position,broker"
)
PER_BATCH = 50
GOLDEN = Path(__file__).parents[1] / "golden" / "data"


class Lanes:
    """Asks a question of the JVM and of Python workers, and knows how many workers were asked."""

    def __init__(self, spark: SparkSession, room: Path, then: str = "pass") -> None:
        self.spark, self._asked, self.python = spark, room / "asked", room / "python"
        self._asked.touch()
        # Only who reads a task unpickles it.
        (room / "sitecustomize.py").write_text(
            "import sys\n"
            "def hook(event, args):\n"
            "    if event == 'pickle.find_class' and args[1] == 'ReadTask':\n"
            f"        with open({str(self._asked)!r}, 'a') as asked: asked.write('.')\n"
            f"        {then}\n"
            "sys.addaudithook(hook)\n"
        )
        path = f"{room}:$PYTHONPATH"
        self.python.write_text(f'#!/bin/sh\nPYTHONPATH="{path}" exec {sys.executable} "$@"\n')
        self.python.chmod(0o755)

    def asked(self) -> int:
        return self._asked.stat().st_size

    def ask(
        self, native: bool, path: Path, query: Callable[[DataFrame], DataFrame], **options: Any
    ) -> tuple[Any, int]:
        """The rows, or the sentence of the error, and how many workers were asked."""
        before, conf = self.asked(), {"spark.logstore.native": str(native).lower()}
        with set_conf(self.spark, {**conf, "spark.logstore.python": str(self.python)}):
            frame = self.spark.read.format("logstore").load(str(path), **options)
            try:
                found: Any = [tuple(row) for row in query(frame).collect()]
            except Exception as error:
                found = next(line for line in str(error).split("\n") if str(path) in line)
        assert not allocated(self.spark)
        return found, self.asked() - before

    def same(
        self,
        path: Path,
        query: Callable[[DataFrame], DataFrame] = lambda frame: frame,
        *,
        workers: int = 0,
        **options: Any,
    ) -> Any:
        """What both give; the JVM with the help of so many workers."""
        options = {"columns": ALL, **options}
        expected, _ = self.ask(False, path, query, **options)
        found, asked = self.ask(True, path, query, **options)
        assert found == expected
        assert asked == workers
        return found


@pytest.fixture(scope="module")
def lanes(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lanes:
    return Lanes(spark, tmp_path_factory.mktemp("lanes"))


def fill(log: PartitionLog, codec: str, number: int) -> None:
    records = [
        (
            None if i % 3 == 0 else b"k" * i,
            None if i % 5 == 4 else b"%d-%d" % (number, i) * 40,
            1000 * number + i,
            [("name", b"content"), ("n\u00e4me", None)] if i % 2 else [],
        )
        for i in range(PER_BATCH)
    ]
    log.append(records, compression=codec)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A log with three batches of every codec."""
    with Broker(tmp_path / "logs", LogConfig(retention_ms=-1), orders=1) as broker:
        for number, codec in enumerate(CODECS * 3):
            fill(broker.logs["orders"][0], codec, number)
    return tmp_path / "logs"


def log_file(directory: Path) -> Path:
    return max(directory.glob("orders-0/*.log"))


@pytest.mark.essential
def test_every_column_and_codec(lanes: Lanes, directory: Path) -> None:
    rows = lanes.same(directory)
    assert len(rows) == 15 * PER_BATCH
    assert {row[14] for row in rows} == set(CODECS)
    lanes.same(directory, lambda frame: frame.selectExpr("headers.key", "value"))
    lanes.same(directory, lambda frame: frame.where("offset > 77 AND offset < 601"))
    lanes.same(directory, lambda frame: frame.where("timestamp < timestamp_millis(7010)"))
    lanes.same(directory, lambda frame: frame.selectExpr("7 AS seven"))


ALL_AGGREGATES = (
    "count(*)", "min(offset)", "max(offset)", "min(timestamp)", "max(timestamp)", "count(offset)"
)  # fmt: skip


@pytest.mark.essential
@pytest.mark.parametrize("where", ["TRUE", "offset > 77 AND offset < 601", "offset < 0"])
def test_aggregates_of_every_codec(lanes: Lanes, directory: Path, where: str) -> None:
    """With filters some batches are unpacked, and some are counted by their headers."""

    def of_all(frame: DataFrame) -> DataFrame:
        return frame.where(where).selectExpr(*ALL_AGGREGATES)

    def of_groups(frame: DataFrame) -> DataFrame:
        found = frame.where(where).groupBy("segment", "topic", "partition", "broker")
        return found.agg(*map(expr, ALL_AGGREGATES))

    [(count, *extremes)] = lanes.same(directory, of_all)
    assert bool(count) == (where != "offset < 0") == (None not in extremes)
    assert len(lanes.same(directory, of_groups)) == (1 if count else 0)
    lanes.same(
        directory,
        lambda frame: frame.where(f"timestamp < timestamp_millis(7010) AND {where}").selectExpr(
            *ALL_AGGREGATES
        ),
    )


@pytest.mark.parametrize("limit", [1, PER_BATCH, 333])
def test_a_limit_ends_in_mid_batch(lanes: Lanes, directory: Path, limit: int) -> None:
    assert len(lanes.same(directory, lambda frame: frame.limit(limit))) == limit


def test_times_that_spark_has_not_are_no_extremes(lanes: Lanes, tmp_path: Path) -> None:
    config = LogConfig(retention_ms=-1, message_timestamp_after_max_ms=2**63 - 1)
    with Broker(tmp_path / "logs", config, orders=1) as broker:
        for time in (7, 2**62, 5):
            broker.logs["orders"][0].append([(b"k", b"v", time)])
    query = "max(timestamp) - min(timestamp)"
    lanes.same(tmp_path / "logs", lambda frame: frame.selectExpr(query), workers=1)
    rows = lanes.same(tmp_path / "logs", lambda frame: frame.selectExpr("max(offset)"))
    assert rows == [(2,)]


def test_a_record_of_20_mib(lanes: Lanes, tmp_path: Path) -> None:
    config = LogConfig(retention_ms=-1, max_message_bytes=32 << 20)
    with Broker(tmp_path / "logs", config, orders=1) as broker:
        for size in (5, 20 << 20, 7):
            broker.logs["orders"][0].append([(b"k", bytes(size), 5)] * (3 if size < 9 else 1))
    sizes = lanes.same(tmp_path / "logs", lambda frame: frame.selectExpr("length(value)"))
    assert sizes == [(5,)] * 3 + [(20 << 20,)] + [(7,)] * 3
    lanes.same(tmp_path / "logs", lambda frame: frame.selectExpr(*ALL_AGGREGATES))


def test_what_kafka_wrote(lanes: Lanes, tmp_path: Path) -> None:
    """Each folder is a partition; the older formats are Python's."""
    for version, workers in (("v2-*", 0), ("v[01]-*", 1)):
        for folder in sorted(GOLDEN.glob(version)):
            shutil.copytree(folder, tmp_path / version[:2] / f"{folder.name}-7")
        for options in ({"includeControl": "true"}, {"isolation": "read_committed"}):
            path = tmp_path / version[:2]
            rows, asked = lanes.ask(True, path, lambda frame: frame, columns=ALL, **options)
            assert rows == lanes.ask(False, path, lambda frame: frame, columns=ALL, **options)[0]
            assert rows
            assert min(asked, 1) == workers


def test_older_formats_in_mid_segment(lanes: Lanes, directory: Path) -> None:
    """Python reads on from the first of them; no checksum covers an offset."""
    messages = bytearray(next((GOLDEN / "v1-none").glob("*.log")).read_bytes())
    at = count = 0
    while at < len(messages):
        messages[at : at + 8] = (15 * PER_BATCH + count).to_bytes(8, "big")
        at += 12 + int.from_bytes(messages[at + 8 : at + 12], "big")
        count += 1
    with log_file(directory).open("ab") as file:
        file.write(messages)
    assert len(lanes.same(directory, workers=1)) == 15 * PER_BATCH + count


DAMAGE = [0, 3, 8, 14]


@pytest.mark.essential
@pytest.mark.parametrize("number", DAMAGE)
def test_python_says_what_is_wrong_with_a_batch(lanes: Lanes, directory: Path, number: int) -> None:
    """With the same words; a query that ends before it is not disturbed."""
    [(position,), *_] = lanes.same(
        directory,
        lambda frame: frame.where(f"offset = {number * PER_BATCH}").select("position"),
    )
    with log_file(directory).open("r+b") as file:
        file.seek(position + 70)
        byte = file.read(1)[0]
        file.seek(position + 70)
        file.write(bytes([byte ^ 1]))
    text = lanes.same(directory, workers=1)
    assert "checksum" in text
    assert "checksum" in lanes.same(directory, lambda frame: frame.groupBy().count(), workers=1)
    before = number * PER_BATCH
    found, asked = lanes.ask(True, directory, lambda frame: frame.limit(before))
    assert (len(found), asked) == (before, 0)
    left = lanes.same(directory, workers=1, mode="DROPMALFORMED")
    assert len(left) == 14 * PER_BATCH


@pytest.mark.parametrize(("number", "change"), [(7, 1 << 40), (7, -70), (14, -70), (0, 1 << 40)])
def test_offsets_that_do_not_ascend(
    lanes: Lanes, directory: Path, number: int, change: int
) -> None:
    """No checksum covers them. The JVM sees it in what it leaves out, too."""
    path = log_file(directory)
    data = bytearray(path.read_bytes())
    at = BatchTable(data).cells("position")[number]
    data[at : at + 8] = (number * PER_BATCH + change).to_bytes(8, "big")
    path.write_bytes(data)
    end = {"endingOffsets": '{"orders": {"0": 650}}'}
    questions: list[tuple[Callable[[DataFrame], DataFrame], dict[str, str]]] = [
        (lambda frame: frame, {}),
        (lambda frame: frame, end),
        (lambda frame: frame.where("offset < 120"), {}),
        (lambda frame: frame.where("offset >= 390"), {}),
        (lambda frame: frame.groupBy().count(), end),
        (lambda frame: frame.selectExpr("min(offset)", "max(offset)"), end),
    ]
    for question, options in questions if number == 7 else questions[:1]:
        found = lanes.same(directory, question, workers=1, **options)
        assert "offsets do not ascend from here on" in found, (question, found)


@pytest.mark.parametrize("end", [1, 120, 151, 740])
def test_the_rest_of_a_split_is_looked_at_in_the_jvm(
    lanes: Lanes, directory: Path, end: int
) -> None:
    rows = lanes.same(directory, lambda frame: frame.where(f"offset < {end}").select("offset"))
    assert rows == [(offset,) for offset in range(end)]


def test_an_end_that_is_being_written_is_no_matter_for_python(
    lanes: Lanes, directory: Path
) -> None:
    whole = log_file(directory).read_bytes()
    with log_file(directory).open("r+b") as file:
        file.truncate(len(whole) - 5)
    assert len(lanes.same(directory)) == 14 * PER_BATCH
    log_file(directory).write_bytes(whole[:-5] + bytes(4096))


def test_zeros_at_the_end_are_judged_by_python(lanes: Lanes, directory: Path) -> None:
    with log_file(directory).open("ab") as file:
        file.write(bytes(4096))
    assert len(lanes.same(directory, workers=1)) == 15 * PER_BATCH


def test_names_of_headers_that_are_no_text(lanes: Lanes, tmp_path: Path) -> None:
    with Broker(tmp_path / "logs", LogConfig(retention_ms=-1), orders=1) as broker:
        log = broker.logs["orders"][0]
        for number in range(3):
            fill(log, "none", number)
    path = log_file(tmp_path / "logs")
    path.write_bytes(path.read_bytes().replace("n\u00e4me".encode(), b"n\xff\xfeme"))
    rows = lanes.same(tmp_path / "logs", workers=1, checkCrcs="false")
    assert "n\ufffd\ufffdme" in {pair[0] for row in rows for pair in row[7] or ()}


def test_a_marker_of_no_transaction_before_one_that_was_read_ahead(
    lanes: Lanes, tmp_path: Path
) -> None:
    """Python begins before both, and hears of the transaction first."""
    with Broker(tmp_path / "logs", LogConfig(retention_ms=-1), orders=1) as broker:
        fill(broker.logs["orders"][0], "none", 0)
    path, at = log_file(tmp_path / "logs"), PER_BATCH
    path.write_bytes(
        path.read_bytes().replace("n\u00e4me".encode(), b"n\xff\xfeme")
        + marker(commit=False, base_offset=at)
        + produced(transactional=True, base_offset=at + 1)
        + marker(commit=True, base_offset=at + 2)
    )
    options = {"isolation": "read_committed", "checkCrcs": "false"}
    assert len(lanes.same(tmp_path / "logs", workers=1, **options)) == PER_BATCH + 1


def test_content_above_the_limit_is_an_error(lanes: Lanes, tmp_path: Path) -> None:
    """The buffer it is unpacked into is larger than the limit."""
    with Broker(tmp_path / "logs", LogConfig(retention_ms=-1), orders=1) as broker:
        broker.logs["orders"][0].append([(None, bytes(400_000), 1)], compression="gzip")
    text = lanes.same(tmp_path / "logs", workers=1, maxBatchBytes="300000")
    assert "above limit of 300000" in text


@pytest.fixture
def held(lanes: Lanes, directory: Path) -> Callable[[Any], list[Any]]:
    """What both lanes give if the file is changed after a query was planned."""
    whole = log_file(directory).read_bytes()

    def run(change: Callable[[Path], None]) -> list[Any]:
        found = []
        for native in (True, False):
            path = log_file(directory)

            def late(frame: DataFrame, path: Path = path) -> DataFrame:
                plan = frame._jdf.queryExecution().executedPlan()
                plan.execute().getNumPartitions()
                change(path)
                return frame

            found.append(lanes.ask(native, directory, late)[0])
            for left in directory.glob("orders-0/*.log*"):
                left.unlink()
            path.write_bytes(whole)
        return found

    return run


def test_a_segment_that_was_renamed_is_read(held: Any) -> None:
    native, python = held(lambda path: path.rename(f"{path}.deleted"))
    assert native == python
    assert len(native) == 15 * PER_BATCH


def replace(path: Path) -> None:
    other = path.with_suffix(".x")
    other.write_bytes(path.read_bytes())
    other.replace(path)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (os.unlink, "the segment was deleted meanwhile"),
        (lambda path: os.truncate(path, 1000), "the segment was cut from"),
        (replace, "replaced"),
    ],
    ids=["deleted", "cut", "replaced"],
)
def test_a_segment_that_is_another_one_is_an_error(held: Any, change: Any, reason: str) -> None:
    native, python = held(change)
    assert native == python
    assert reason in native


# ---- what ends in the middle -------------------------------------------------------------------


def open_segments(spark: SparkSession) -> list[str]:
    """Those that the JVM has open."""
    management = spark.sparkContext._jvm.java.lang.management.ManagementFactory  # type: ignore[union-attr]
    java = psutil.Process(management.getRuntimeMXBean().getPid())
    return [file.path for file in java.open_files() if file.path.endswith(".log")]


def test_a_worker_that_is_killed_when_it_takes_over(
    spark: SparkSession, directory: Path, tmp_path: Path
) -> None:
    deadly = Lanes(spark, tmp_path, "import os; os.kill(os.getpid(), 9)")
    with log_file(directory).open("ab") as file:
        file.write(bytes(4096))
    frame = spark.read.format("logstore").load(str(directory))
    with (
        set_conf(spark, {"spark.logstore.python": str(deadly.python)}),
        pytest.raises(Exception, match="ended in the midst of its work"),
    ):
        frame.collect()
    assert deadly.asked() == 1
    assert not allocated(spark)
    assert not open_segments(spark)


@pytest.mark.parametrize("zeros", [0, 4096], ids=["native", "and Python"])
def test_a_reader_may_be_asked_again(spark: SparkSession, directory: Path, zeros: int) -> None:
    """For the batch, after the end, and after it was closed."""
    with log_file(directory).open("ab") as file:
        file.write(bytes(zeros))
    frame = spark.read.format("logstore").load(str(directory)).select("offset")
    scan = frame._jdf.queryExecution().sparkPlan().collectLeaves().apply(0).batch()
    [task] = scan.planInputPartitions()
    reader, rows = scan.createReaderFactory().createColumnarReader(task), 0
    while reader.next():
        assert reader.get().equals(reader.get())
        rows += reader.get().numRows()
    assert rows == 15 * PER_BATCH
    assert not reader.next()
    for _ in range(2):
        reader.close()
    assert not reader.next()
    assert not allocated(spark)


def test_a_task_that_is_cancelled_leaves_nothing(spark: SparkSession, directory: Path) -> None:
    context = spark.sparkContext
    system = context._jvm.java.lang.System  # type: ignore[union-attr]
    system.clearProperty("native.begun")
    frame = spark.read.format("logstore").load(str(directory))
    slow = frame.where(
        "reflect('java.lang.System', 'setProperty', 'native.begun', '1') IS NULL "
        "OR reflect('java.lang.Thread', 'sleep', 50L) IS NULL"
    )
    failures: list[str] = []

    def run() -> None:
        context.setJobGroup("native", "to be cancelled", interruptOnCancel=True)
        try:
            slow.selectExpr("max(value)").collect()
        except Exception as error:
            failures.append(str(error))

    thread = InheritableThread(target=run)
    thread.start()
    try:
        until(lambda: system.getProperty("native.begun"), "the first row has come")
        assert allocated(spark)
        assert open_segments(spark)
    finally:
        context.cancelJobGroup("native")
        thread.join(patience())
    assert failures
    assert "cancel" in failures[0].lower()
    until(lambda: not allocated(spark) and not open_segments(spark), "all was freed")


@pytest.mark.long
@pytest.mark.parametrize("content", [None, b"no library"], ids=["missing", "does not load"])
def test_without_its_library_python_reads_and_a_line_says_so(
    directory: Path, tmp_path: Path, content: bytes | None
) -> None:
    """As in a temporary directory from which nothing may be loaded."""
    jar = sessions.jar()
    assert jar is not None
    with zipfile.ZipFile(jar) as old, zipfile.ZipFile(tmp_path / "made.jar", "w") as new:
        for name in old.namelist():
            if not name.startswith("native/"):
                new.writestr(name, old.read(name))
            elif content is not None:
                new.writestr(name, content)
    code = f"""
from pathlib import Path
from logstore.spark import session, sessions
from tests.spark.conftest import TEST_CONF

sessions._JAR = Path({str(tmp_path / "made.jar")!r})
spark = session("local[1]", conf=TEST_CONF)
frame = spark.read.format("logstore").load({str(directory)!r})
print(*[len(frame.select("value").collect()) for _ in range(2)])
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=5 * patience(),
    )
    assert done.stdout.split() == [str(15 * PER_BATCH)] * 2, done.stderr[-3000:]
    assert done.stderr.count("Python workers read all") == 1


# ---- without a JVM -----------------------------------------------------------------------------


def planned(path: Path, **more: str) -> tuple[bytes, list[tuple[bytes, bytes]]]:
    given = {"path": str(path), "columns": ALL, **more}
    schema = schema_of(given)
    return columnar_wire.plan(given, schema, schema)


def test_python_goes_on_from_any_batch(directory: Path) -> None:
    reader, [(task, _)] = planned(directory)

    def rows(position: str) -> Any:
        parts = (columnar_wire.block(reader), columnar_wire.block(task))
        return columnar_wire.ask("read", *parts, columnar_wire.text(position)).rows()[0]

    whole = rows("")
    for position in sorted({row["position"] for row in whole}):
        at = {
            "split": 0,
            "position": position,
            "above": -1,
            "limit": PER_BATCH + 7,
            "open_since": {},
        }
        rest = [row for row in whole if row["position"] >= position]
        assert rows(json.dumps(at)) == rest[: PER_BATCH + 7]


def test_what_only_python_can_read_has_no_plan_for_the_jvm(directory: Path) -> None:
    def plans(**more: str) -> list[bytes]:
        return [plan for _, plan in planned(directory, **more)[1]]

    assert all(plans())
    assert not any(plans(mode="DROPMALFORMED"))
    assert not any(plans(granularity="batch", columns="position"))


def test_the_library_is_left_out_where_it_cannot_be_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    build = runpy.run_path(str(Path(__file__).parents[2] / "spark_jar.py"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert build["make_library"](tmp_path / "made.so") == "no C compiler"
    (tmp_path / "cc").touch(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert build["make_library"](tmp_path / "made.so") == "the JDK has no jni.h"
    assert not (tmp_path / "made.so").exists()
