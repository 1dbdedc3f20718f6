"""Verification as a Spark job: the same findings as without it, whatever is wrong."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

import logstore.spark.verification as spark_job
from logstore.cli import main
from logstore.common.extras import Extra, install
from logstore.kernels import crc32c
from logstore.manager import LogManager
from logstore.verify import VerifyOptions, verify
from logstore.verify.segment.segment_check import SegmentJob
from tests.support.until import patience

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow
GOLDEN = Path(__file__).parents[1] / "golden" / "data"
FIRST, SECOND = f"{0:020}", f"{100:020}"
BROKERS = ("0", "1", "2")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three brokers with the same two partitions, of four segments each, cleanly shut down."""
    root = tmp_path_factory.mktemp("brokers")
    with LogManager([root / "0"]) as manager:
        for log in manager.create_topic("orders", 2):
            for number in range(30):
                log.append([(b"key", b"value %d" % number)] * 10)
                if number % 10 == 9:
                    log.roll()
            log.update_high_watermark(log.log_end_offset)
        manager.checkpoint_high_watermarks()
    for broker in BROKERS[1:]:
        shutil.copytree(root / "0", root / broker)
        meta = root / broker / "meta.properties"
        meta.write_text(meta.read_text().replace("node.id=0", f"node.id={broker}"))
    return root


@pytest.fixture
def root(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "brokers"))


def paths(root: Path) -> list[str]:
    return [str(root / broker) for broker in BROKERS]


# -- what may be wrong -------------------------------------------------------------------------


def nothing(root: Path) -> None:
    pass


def flipped_bit(root: Path) -> None:
    path = root / "1" / "orders-0" / f"{SECOND}.log"
    data = bytearray(path.read_bytes())
    data[400] ^= 1
    path.write_bytes(data)


def replaced_batch(root: Path) -> None:
    path = root / "2" / "orders-1" / f"{SECOND}.log"
    data = bytearray(path.read_bytes())
    size = 12 + int.from_bytes(data[8:12], "big")
    data[size - 2] ^= 1
    data[17:21] = crc32c(data[21:size]).to_bytes(4, "big")
    path.write_bytes(data)


def torn_tail(root: Path) -> None:
    path = root / "0" / "orders-0" / f"{200:020}.log"
    os.truncate(path, path.stat().st_size - 5)


def lost_segment(root: Path) -> None:
    for path in (root / "0" / "orders-0").glob(f"{SECOND}.*"):
        path.unlink()


def lost_index(root: Path) -> None:
    (root / "1" / "orders-1" / f"{FIRST}.index").unlink()


def lost_broker(root: Path) -> None:
    shutil.rmtree(root / "1")


def unreadable_segment(root: Path) -> None:
    """A directory where a file should be; beside it, a fault that is told all the same."""
    flipped_bit(root)
    path = root / "0" / "orders-0" / f"{SECOND}.log"
    path.unlink()
    path.mkdir()


def stray_files(root: Path) -> None:
    (root / "2" / "orders-0" / "5.log").write_bytes(b"?")
    (root / "2" / "no-partition").mkdir()
    (root / "2" / "replication-offset-checkpoint").write_text("0\n1\nrubbish\n")


@pytest.mark.essential
@pytest.mark.parametrize(
    "damage",
    [
        nothing,
        flipped_bit,
        replaced_batch,
        torn_tail,
        lost_segment,
        lost_index,
        lost_broker,
        unreadable_segment,
        stray_files,
    ],
)
def test_the_same_findings_with_and_without_spark(
    spark: SparkSession, root: Path, damage: Callable[[Path], None]
) -> None:
    damage(root)
    report = spark_job.verify_on_spark(spark, *paths(root)).report
    assert report.to_dict() == verify(paths(root)).to_dict()
    assert report.clean is (damage is nothing)
    if damage is nothing:
        assert {part.compared_end for part in report.partitions} == {300}


@pytest.mark.essential
def test_golden_data(spark: SparkSession) -> None:
    """Written by Apache Kafka: every codec and magic, transactions, compaction."""
    found = sorted(str(path.parent) for path in GOLDEN.rglob("*.log"))
    assert len(found) >= 10
    report = spark_job.verify_on_spark(spark, *found).report
    assert report.to_dict() == verify(found).to_dict()
    assert report.clean


@pytest.mark.parametrize("deep", [False, True])
def test_options_reach_the_executors(spark: SparkSession, root: Path, deep: bool) -> None:
    """A checksum that matches over records that do not decode."""
    path = root / "0" / "orders-0" / f"{FIRST}.log"
    data = bytearray(path.read_bytes())
    size = 12 + int.from_bytes(data[8:12], "big")
    data[61] = 0xFE
    data[17:21] = crc32c(data[21:size]).to_bytes(4, "big")
    path.write_bytes(data)
    report = spark_job.verify_on_spark(spark, str(path), options=VerifyOptions(deep=deep)).report
    assert [finding.rule for finding in report.findings] == (["log-records"] if deep else [])


def test_a_segment_that_cannot_be_read_does_not_stop_the_rest(
    spark: SparkSession, root: Path
) -> None:
    unreadable_segment(root)
    report = spark_job.verify_on_spark(spark, *paths(root)).report
    refused = [finding.file for finding in report.findings if finding.rule == "not-a-file"]
    assert refused == [str(root / "0" / "orders-0" / f"{SECOND}.log")]
    # Its partition is in no table, the others are compared, and what is damaged is told.
    found = [(part.broker, part.partition, part.compared_end) for part in report.partitions]
    assert found == [("1", 0, 300), ("2", 0, 300), ("0", 1, 300), ("1", 1, 300), ("2", 1, 300)]
    assert ("log-checksum", "1") in [(finding.rule, finding.broker) for finding in report.findings]


def test_relative_paths(spark: SparkSession, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Executors may have another working directory; the report says what was asked for."""
    monkeypatch.chdir(root)
    report = spark_job.verify_on_spark(spark, "0", "1/orders-0").report
    assert report.findings == []
    assert [part.directory for part in report.partitions] == [
        "0/orders-0",
        "1/orders-0",
        "0/orders-1",
    ]
    unreadable_segment(root)
    report = spark_job.verify_on_spark(spark, *BROKERS).report
    assert [f.file for f in report.findings if f.rule == "not-a-file"] == [
        f"0/orders-0/{SECOND}.log"
    ]
    assert report.to_dict() == verify(BROKERS).to_dict()


def test_a_path_that_executors_do_not_have_is_not_clean(
    spark: SparkSession, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was checked; to them it looks as if a broker had deleted the segments."""
    monkeypatch.setattr(spark_job, "absolute", lambda path: path.replace("brokers", "nowhere"))
    report = spark_job.verify_on_spark(spark, root / "0").report
    assert len(report.unusable) == 8
    assert "0.log: not found by an executor: paths must mean the same" in report.unusable[0]
    assert not report.clean
    assert report.partitions == []


# -- tables ------------------------------------------------------------------------------------


def test_findings_are_a_table(spark: SparkSession, root: Path) -> None:
    flipped_bit(root)
    found = spark_job.verify_on_spark(spark, *paths(root))
    rows = found.findings.where("severity = 'error'").collect()
    assert [row.asDict() for row in rows] == [
        {
            "severity": "error",
            "rule": "log-checksum",
            "broker": "1",
            "topic": "orders",
            "partition": 0,
            "segment": 100,
            "position": rows[0]["position"],
            "offset": rows[0]["offset"],
            "file": str(root / "1" / "orders-0" / f"{SECOND}.log"),
            "message": rows[0]["message"],
        }
    ]
    assert 100 < rows[0]["offset"] < 200


def test_tables_have_types_and_may_be_empty(spark: SparkSession, root: Path) -> None:
    (root / "nothing").mkdir()
    found = spark_job.verify_on_spark(spark, str(root / "nothing"))
    assert {row["rule"] for row in found.findings.collect()} == {"meta-missing"}
    assert found.partitions.collect() == []
    assert [field.simpleString() for field in found.findings.schema] == [
        "severity:string",
        "rule:string",
        "broker:string",
        "topic:string",
        "partition:int",
        "segment:bigint",
        "position:bigint",
        "offset:bigint",
        "file:string",
        "message:string",
    ]
    assert not found.findings.schema["message"].nullable


def test_unknown_is_null(spark: SparkSession, root: Path) -> None:
    (root / "0" / "meta.properties").unlink()
    found = spark_job.verify_on_spark(spark, str(root / "0"))
    (row,) = found.findings.collect()
    assert (row["rule"], row["topic"], row["position"]) == ("meta-missing", None, None)
    row = found.partitions.orderBy("partition").first()
    assert row is not None
    assert (row["records"], row["high_watermark"], row["compared_end"]) == (300, 300, None)
    assert row["min_timestamp"] <= row["max_timestamp"]


# -- progress, tasks ---------------------------------------------------------------------------


def test_progress_ends_with_all_bytes(spark: SparkSession, root: Path) -> None:
    seen: list[tuple[int, int]] = []
    spark_job.verify_on_spark(spark, *paths(root), progress=lambda *now: seen.append(now))
    size = sum(path.stat().st_size for path in root.rglob("*.log"))
    assert seen[-1] == (size, size)
    assert seen == sorted(seen)


def work(*sizes: int) -> list[Any]:
    job = SegmentJob("/data/orders-0", 0)
    return [
        spark_job._Work(number, "", job.directory, job, size) for number, size in enumerate(sizes)
    ]


def test_a_thousand_small_segments_are_a_few_tasks() -> None:
    tasks = spark_job._pack(work(*[1 << 20] * 1000), 2)
    assert 16 <= len(tasks) <= 20
    assert sorted(item.number for task in tasks for item in task) == list(range(1000))


def test_large_segments_are_tasks_of_their_own_and_come_first() -> None:
    tasks = spark_job._pack(work(5, 1 << 30, 1 << 30, 1 << 20, 1 << 20), 2)
    assert [[item.number for item in task] for task in tasks] == [[1], [2], [3, 4, 0]]


def test_empty_segments_cost_something() -> None:
    assert len(spark_job._pack(work(*[0] * 5000), 2)) > 4


# -- command line ------------------------------------------------------------------------------


def run(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from logstore.cli import main; main()", "verify"]
    return subprocess.run(
        [*command, *map(str, arguments)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=5 * patience(),
        check=False,
    )


def test_the_command(root: Path) -> None:
    """Same JSON, same exit code; nothing that Spark says gets in between."""
    replaced_batch(root)
    html = root / "report.html"
    result = run(*paths(root), "--spark", "local[2]", "--json", "--html", html)
    assert result.returncode == 1, result.stderr
    here = CliRunner().invoke(main, ["verify", *paths(root), "--json"])
    assert json.loads(result.stdout) == json.loads(here.stdout)
    assert here.exit_code == 1
    assert "replicas-differ" in html.read_text()


def test_without_a_jdk(root: Path, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("bash", "dirname", "env", "ps", "uname"):
        found = shutil.which(name)
        if found:
            (tmp_path / "bin" / name).symlink_to(found)
    result = run(root / "0", "--spark", "local[2]", PATH=str(tmp_path / "bin"), JAVA_HOME="")
    assert result.returncode == 2
    assert "needs a JDK 17 or newer" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_master_that_is_none(root: Path) -> None:
    result = run(root / "0", "--spark", "local[x]")
    assert result.returncode == 2
    assert "did not start with master local[x]: Could not parse Master URL" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("package", ["pyspark", "pyarrow"])
def test_without_the_extra(root: Path, monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    for name in [n for n in sys.modules if n.startswith("logstore.spark.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(vars(sys.modules["logstore.spark"]), "session", raising=False)
    result = CliRunner().invoke(main, ["verify", str(root / "0"), "--spark", "local[2]"])
    assert result.exit_code == 2
    assert install(Extra.SPARK, package) in result.stderr


def test_conf_without_spark(root: Path) -> None:
    result = CliRunner().invoke(main, ["verify", str(root / "0"), "--conf", "a=b"])
    assert result.exit_code == 2
    assert "--conf is for --spark" in result.stderr


def test_the_former_name_still_works_and_says_the_new_one() -> None:
    import logstore.spark

    with pytest.warns(DeprecationWarning, match="is now logstore.spark.verify_on_spark"):
        former = logstore.spark.verify
    assert former is logstore.spark.verify_on_spark
