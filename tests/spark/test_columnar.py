"""The columnar source in the JVM: what it leaves out, what its workers meet, how it is built."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql.functions import udf
from pyspark.sql.pandas.functions import pandas_udf

import logstore.spark
from logstore.common.config import LogConfig
from logstore.directory.errors import NotALogDirectoryError
from logstore.spark import map_batches, sessions
from tests.spark.reading import Broker
from tests.support.builders import batch
from tests.support.until import patience, until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.slow  # a JVM

ROOT = Path(logstore.spark.__file__).parents[2]


@pytest.fixture
def frame(spark: SparkSession, logs: Path) -> DataFrame:
    return spark.read.format("logstore").load(str(logs))


@contextmanager
def set_conf(spark: SparkSession, given: dict[str, str]) -> Iterator[None]:
    """Set what a session reads only from the configuration of its start."""
    conf = spark.sparkContext._jsc.sc().conf()
    before = {name: conf.get(name, None) for name in given}
    for name, value in given.items():
        conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                conf.remove(name)
            else:
                conf.set(name, old)


def plan(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


# ---- what is left out --------------------------------------------------------------------------


@pytest.mark.essential
def test_the_session_reads_by_column(spark: SparkSession, frame: DataFrame) -> None:
    assert sessions.is_columnar(spark)
    assert "BatchScan logstore" in plan(frame)


@pytest.mark.essential
def test_columns_that_a_query_does_not_use_are_not_read(frame: DataFrame) -> None:
    used = frame.where("timestamp < timestamp_millis(10)").selectExpr("length(value)")
    assert "logstore [value]" in plan(used)
    assert used.distinct().collect()[0][0] == 50


def test_rows_without_a_column_are_counted(frame: DataFrame) -> None:
    assert [row[0] for row in frame.selectExpr("7 AS seven").limit(1200).collect()] == [7] * 1200


COUNTS: list[tuple[Callable[[DataFrame], DataFrame], bool, set[tuple[Any, ...]]]] = [
    (lambda f: f.groupBy().count(), True, {(1200,)}),
    (lambda f: f.selectExpr("count(offset)", "count(1)"), True, {(1200, 1200)}),
    (lambda f: f.where("offset >= 5 AND offset < 397").groupBy().count(), True, {(1176,)}),
    (lambda f: f.where("offset < 0").groupBy().count(), True, {(0,)}),
    (
        lambda f: f.where("offset >= 391").groupBy("topic", "partition").count(),
        True,
        {("orders", 0, 9), ("orders", 1, 9), ("payments", 0, 9)},
    ),
    (lambda f: f.where("offset < 0").groupBy("topic").count(), True, set()),
    (lambda f: f.where("offset IN (1, 399)").groupBy().count(), False, {(6,)}),
    (lambda f: f.where("timestamp < timestamp_millis(5)").groupBy().count(), True, {(30,)}),
    (lambda f: f.selectExpr("count(key)"), False, {(1200,)}),
    (lambda f: f.selectExpr("count(DISTINCT partition)"), False, {(2,)}),
    (lambda f: f.groupBy("timestampType").count(), False, {(0, 1200)}),
]


@pytest.mark.essential
def test_counts_come_from_headers_where_these_tell(frame: DataFrame) -> None:
    for query, counted, expected in COUNTS:
        asked = query(frame)
        assert ("PushedAggregates" in plan(asked)) is counted, plan(asked)
        rows = [tuple(row) for row in asked.collect()]
        assert len(rows) == len(set(rows))
        assert set(rows) == expected, plan(asked)


@pytest.mark.essential
def test_a_limit_ends_each_task(frame: DataFrame) -> None:
    assert "limit 7" in plan(frame.limit(7))
    assert len(frame.limit(7).collect()) == 7
    assert len(frame.where("timestamp >= timestamp_millis(390)").limit(7).collect()) == 7


def test_a_time_that_python_does_not_know_is_a_bound_like_any_other(frame: DataFrame) -> None:
    assert frame.where("timestamp < timestamp_seconds(300000000000)").count() == 1200
    assert frame.where("timestamp > timestamp_seconds(300000000000)").count() == 0
    assert frame.where("timestamp > timestamp_seconds(-300000000000)").count() == 1200


def test_an_error_of_planning_is_one_sentence(spark: SparkSession) -> None:
    from pyspark.errors import IllegalArgumentException

    with pytest.raises(IllegalArgumentException) as caught:
        spark.read.format("logstore").load("/nowhere").count()
    text = "/nowhere is no log directory and no partition's directory: no such file or directory"
    assert str(caught.value).splitlines()[0] == text


def test_one_field_of_headers_is_read_alone(spark: SparkSession, tmp_path: Path) -> None:
    with Broker(tmp_path / "logs", LogConfig(), orders=1) as broker:
        log = broker.logs["orders"][0]
        log.append([(b"k", b"v", 5, [("name", b"content"), ("other", None)]), (b"k", b"v", 6)])
    found = []
    for source in ("logstore", "logstore-python"):
        frame = spark.read.format(source).load(
            str(tmp_path / "logs"), includeHeaders="true", columns="headers"
        )
        queries = ("headers.value", "headers.key", "headers[1].key", "headers")
        found.append([frame.selectExpr(query).collect() for query in queries])
    assert found[0] == found[1]
    assert found[0][0][0][0] == [b"content", None]


# ---- who holds a batch -------------------------------------------------------------------------


def allocated(spark: SparkSession) -> int:
    """Bytes of Arrow's memory that anyone in the JVM holds."""
    arrow = spark.sparkContext._jvm.org.apache.spark.sql.util.ArrowUtils  # type: ignore[union-attr]
    return int(arrow.rootAllocator().getAllocatedMemory())


@pytest.mark.essential
def test_spark_holds_batches_while_the_next_ones_come(spark: SparkSession, logs: Path) -> None:
    """A Python UDF has them written to its worker, and joins them with what comes back."""
    frame = spark.read.format("logstore").load(str(logs))  # each segment is a batch of its task
    for make in (udf, pandas_udf):
        twice = make(lambda offset: offset * 2, "bigint")
        rows = frame.select("topic", "partition", "offset", twice("offset"), "value").collect()
        assert len({tuple(row[:3]) for row in rows}) == 1200
        assert all(row[3] == 2 * row[2] and len(row[4]) == 50 for row in rows)
    assert len(frame.select(twice("offset")).limit(3).collect()) == 3
    assert not allocated(spark)


def test_a_batch_with_other_columns_than_spark_was_promised_is_an_error(
    spark: SparkSession, logs: Path, tmp_path: Path
) -> None:
    """Two columns of one type would change places unseen."""
    (tmp_path / "sitecustomize.py").write_text(
        "import pyarrow, pyspark.sql.pandas.types as types\n"
        "made = types.to_arrow_schema\n"
        "types.to_arrow_schema = lambda *a, **k: pyarrow.schema(list(made(*a, **k))[::-1])\n"
    )
    python = tmp_path / "python"
    path = f"{tmp_path}:$PYTHONPATH"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{path}" exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    with (
        set_conf(spark, {"spark.logstore.python": str(python), "spark.logstore.native": "false"}),
        pytest.raises(Exception, match="in place of") as caught,
    ):
        spark.read.format("logstore").load(str(logs)).select("key", "value").collect()
    expected = "a batch with the columns [value binary, key binary] in place of [key binary, value"
    assert expected in str(caught.value)
    assert not allocated(spark)


# ---- functions of Python -----------------------------------------------------------------------


def test_a_function_over_batches_gives_what_it_gives_over_the_frame(
    spark: SparkSession, frame: DataFrame, logs: Path
) -> None:
    def lengths(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        import pyarrow.compute as pc

        for one in batches:
            assert one.schema.names == ["value"]
            total = pc.sum(pc.binary_length(one.column("value"))).as_py()
            yield pa.RecordBatch.from_arrays([pa.array([total], pa.int64())], ["total"])

    of_frame = frame.select("value").mapInArrow(lengths, "total bigint")
    of_splits = map_batches(spark, lengths, "total bigint", str(logs), columns="value")
    of_some = map_batches(
        spark, lengths, "total bigint", f"{logs}/orders-0", f"{logs}/payments-0", columns="value"
    )
    for found, records in ((of_frame, 1200), (of_splits, 1200), (of_some, 800)):
        assert found.selectExpr("sum(total)").collect()[0][0] == records * 50
    with pytest.raises(NotALogDirectoryError):
        map_batches(spark, lengths, "total bigint", "/nowhere")


# ---- workers -----------------------------------------------------------------------------------


def daemons() -> list[psutil.Process]:
    """The daemon and its workers."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # ended meanwhile
            if "columnar_daemon" in " ".join(process.cmdline()):
                found.append(process)
    return found


def workers() -> list[psutil.Process]:
    """The daemon's children."""
    mine = daemons()
    pids = {process.pid for process in mine}
    found = []
    for process in mine:
        with suppress(psutil.Error):
            if process.ppid() in pids:
                found.append(process)
    return found


def test_idle_workers_that_were_killed_are_replaced(frame: DataFrame) -> None:
    assert frame.selectExpr("sum(offset)").collect()
    killed = workers()
    assert killed
    for worker in killed:
        worker.kill()
    psutil.wait_procs(killed, patience())
    assert frame.selectExpr("count(key)").collect()[0][0] == 1200


def test_a_daemon_that_was_killed_is_replaced(frame: DataFrame) -> None:
    assert frame.selectExpr("sum(offset)").collect()
    old = [p for p in daemons() if p not in workers()]
    for process in (*workers(), *old):
        process.kill()
    psutil.wait_procs(old, patience())
    with suppress(PySparkException, Py4JJavaError):  # Spark may see only now that it is gone
        frame.selectExpr("count(key)").collect()
    assert frame.selectExpr("count(key)").collect()[0][0] == 1200
    assert not set(old) & set(daemons())


def test_a_worker_killed_in_mid_query_fails_it_with_the_reason(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The JVM dwells on each row, so the worker waits with most of its record batches."""
    with Broker(tmp_path / "logs", LogConfig(), orders=1) as broker:
        for _ in range(40):
            record = batch(0, 1, value=bytes(500_000))
            broker.logs["orders"][0].append_as_leader(record, 0)
    frame = spark.read.format("logstore").load(str(tmp_path / "logs"))
    slow = frame.where(
        "reflect('java.lang.Thread', 'sleep', 100L) IS NULL OR "
        "reflect('java.lang.System', 'setProperty', 'logstore.rows', 'some') IS NOT NULL"
    )
    properties = spark.sparkContext._jvm.java.lang.System  # type: ignore[union-attr]
    failures: list[str] = []

    def run() -> None:
        try:
            with set_conf(spark, {"spark.logstore.native": "false"}):
                slow.selectExpr("sum(length(value))").collect()
        except Exception as error:
            failures.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        until(lambda: properties.getProperty("logstore.rows"), "the first row has come")
        for worker in workers():
            worker.kill()
    finally:
        thread.join(patience())
    assert len(failures) == 1
    assert "the Python worker ended in the midst of its work" in failures[0]


def daemons_of(python: Path) -> list[psutil.Process]:
    found = []
    for process in daemons():
        with suppress(psutil.Error):
            if str(python) in process.cmdline():
                found.append(process)
    return found


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (f"#!{sys.executable} -S\nimport time; time.sleep(600)\n", "nothing heard of it for 2 s"),
        ("#!/bin/sh\nexit 3\n", "no Python worker with"),
        (None, "Cannot run program"),
    ],
    ids=["hangs", "ends", "is missing"],
)
def test_a_python_that_does_not_start_is_told_and_holds_up_nobody(
    spark: SparkSession, frame: DataFrame, tmp_path: Path, script: str | None, reason: str
) -> None:
    python = tmp_path / "python"
    if script is not None:
        python.write_text(script)
        python.chmod(0o755)
    seconds = "spark.logstore.pythonStartSeconds"
    with set_conf(spark, {"spark.logstore.python": str(python), seconds: "2"}):
        with pytest.raises(Exception, match=reason) as caught:
            spark.read.format("logstore").load("/nowhere")
        assert str(python) in str(caught.value)
        assert not daemons_of(python)
    assert frame.selectExpr("count(key)").collect()[0][0] == 1200


@pytest.mark.long
def test_the_daemon_ends_with_the_session_and_leaves_nothing(tmp_path: Path, logs: Path) -> None:
    """Ended as it should be, and killed."""
    code = f"""
import os, signal, sys
from logstore.spark import session
from tests.spark.conftest import TEST_CONF
from tests.spark.test_columnar import daemons

spark = session("local[1]", conf=TEST_CONF)
assert spark.read.format("logstore").load({str(logs)!r}).selectExpr("sum(offset)").collect()
print(*[process.pid for process in daemons()], flush=True)
if sys.argv[1] == "killed":
    os.kill(spark.sparkContext._gateway.proc.pid, signal.SIGKILL)
else:
    spark.stop()
"""
    for end in ("stopped", "killed"):
        room = tmp_path / end
        room.mkdir()
        done = subprocess.run(
            [sys.executable, "-c", code, end],
            env=environment(TMPDIR=str(room)),
            capture_output=True,
            text=True,
            timeout=5 * patience(),
        )
        assert done.stdout.split(), done.stderr[-3000:]
        left = [psutil.Process(int(p)) for p in done.stdout.split() if psutil.pid_exists(int(p))]
        _, alive = psutil.wait_procs(left, patience())
        assert not alive
        assert not list(room.rglob("*.sock"))


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), **more}


@pytest.mark.long
def test_without_the_jar_the_python_source_reads_and_a_line_says_so(logs: Path) -> None:
    code = f"""
from pathlib import Path
from logstore.spark import session, sessions
from tests.spark.conftest import TEST_CONF

sessions._JAR = Path("/nowhere.jar")
spark = session("local[1]", conf=TEST_CONF)
assert not sessions.is_columnar(spark)
print(spark.read.format("logstore").load({str(logs)!r}).count())
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=5 * patience(),
    )
    assert done.stdout.strip() == "1200", done.stderr[-3000:]
    assert done.stderr.count("no columnar source") == 1
    assert "this installation was built without a JDK" in done.stderr


# ---- the jar -----------------------------------------------------------------------------------


def test_the_jar_is_of_these_classes_and_of_this_spark(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No jar of an earlier build is left over: its messages may be others."""
    monkeypatch.chdir(ROOT)
    build = runpy.run_path("spark_jar.py")
    if reason := build["why_not"]():
        pytest.skip(reason)
    build["make"](tmp_path / "made.jar")
    jar = sessions.jar()
    assert jar is not None
    assert jar.read_bytes() == (tmp_path / "made.jar").read_bytes()


def test_without_spark_nothing_is_made_and_nothing_old_is_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As where pip builds: the package works without the columnar source."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    (tmp_path / "old.jar").touch()
    runpy.run_path(str(ROOT / "spark_jar.py"))["make"](tmp_path / "old.jar")
    assert not (tmp_path / "old.jar").exists()
    assert "built without Spark's columnar source: no " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("_JAR", Path("/nowhere.jar"), "built without a JDK"),
        ("_SPARK", "9.9.", "it is for Spark 9.9.x"),
    ],
)
def test_without_the_jar_settings_leave_it_out(
    monkeypatch: pytest.MonkeyPatch, name: str, value: object, reason: str
) -> None:
    monkeypatch.setattr(sessions, name, value)
    assert reason in sessions.why_not()
    assert "spark.jars" not in sessions.settings()


def test_jars_of_the_users_are_kept() -> None:
    merged = sessions._merged(
        {"spark.jars": "/ours.jar", "a": "1"}, {"spark.jars": "/a.jar,/b.jar"}
    )
    assert merged == {"spark.jars": "/a.jar,/b.jar,/ours.jar", "a": "1"}
