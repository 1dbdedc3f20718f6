"""The same answers on a standalone cluster, whose workers never had logstore installed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import logstore.spark.pyspark_logstore as registration
from logstore.verify import verify
from tests.faults.engine import build
from tests.spark.cluster import kill_session, may_mount, overlaid, standalone_cluster
from tests.spark.questions import reading, told
from tests.spark.standalone_job import content
from tests.support.until import patience

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.slow, pytest.mark.long]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three brokers' directories, and copies: with one bit turned, or not seen by each worker."""
    root = tmp_path_factory.mktemp("standalone")
    (root / "clean").mkdir()
    build(root / "clean")
    for name in ("damaged", "unseen", "halfseen"):
        shutil.copytree(root / "clean", root / name)
    segment = max((root / "damaged" / "broker-2" / "orders-1").glob("*.log"))
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    return root


@pytest.fixture(scope="module")
def answers(root: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    site = tmp_path_factory.mktemp("site")  # as an installation lays it out
    (site / "pyspark_logstore").symlink_to(Path(registration.__file__).parent)
    empty = tmp_path_factory.mktemp("empty")
    hidden = {name: f"mount --bind {empty} {root / name}" for name in ("unseen", "halfseen")}
    mounts = (
        f"{overlaid(root / 'clean', empty)} && {hidden['unseen']}",
        f"{hidden['unseen']} && {hidden['halfseen']}",
    )
    place = tmp_path_factory.mktemp("cluster")
    with standalone_cluster(place, mounts if may_mount() else ("", "")) as cluster:
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join((str(ROOT), str(site))),
            "PYSPARK_PYTHON": cluster.python,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        command = [sys.executable, "-m", "tests.spark.standalone_job", cluster.master, str(root)]
        # Into a file: the driver's JVM holds a pipe open after the driver was killed.
        log = root / "driver.log"
        with log.open("wb") as output:
            driver = subprocess.Popen(
                command,
                cwd=root,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            ended = driver.wait(10 * patience())
        except subprocess.TimeoutExpired:
            pytest.fail(f"no end:\n{log.read_text(errors='replace')[-8000:]}")
        finally:
            kill_session(driver)
    assert ended == 0, log.read_text(errors="replace")[-8000:]
    found: dict[str, Any] = json.loads((root / "answers.json").read_text())
    return found


def test_workers_run_what_was_shipped(answers: dict[str, Any]) -> None:
    """An archive, not a zip on the path: the kernels and the libraries came along."""
    assert {worker["missing"] for worker in answers["workers"]} == {""}
    places = {Path(worker["directory"]).name for worker in answers["workers"]}
    assert places == {"logstore-packages"}
    assert len({worker["directory"] for worker in answers["workers"]}) == 2  # both workers


def test_workers_without_the_package_are_told_of_at_the_start(answers: dict[str, Any]) -> None:
    assert "no package logstore" in answers["refusal"]
    assert "package_archive" in answers["refusal"]


def test_executors_without_python_read_local_files(
    answers: dict[str, Any], spark: SparkSession, root: Path
) -> None:
    directories = sorted((root / "clean").iterdir())
    assert answers["natively"] == [content(spark, str(path)) for path in directories]


def test_the_source_answers_as_it_does_on_one_machine(
    answers: dict[str, Any], spark: SparkSession, root: Path
) -> None:
    directories = [str(path) for path in sorted((root / "clean").iterdir())]
    expected = reading(spark, directories)
    assert answers["reading"] == expected
    records = {(topic, partition): count for topic, partition, count, _ in expected["whole"]}
    assert len(records) == 3
    assert answers["unregistered"] == sum(records.values())


def test_a_path_means_the_same_to_workers_whose_working_directory_is_another(
    answers: dict[str, Any], spark: SparkSession, root: Path
) -> None:
    """Beside a plain path; one worker has the directory on another device, as a shared mount is."""
    assert answers["paths"] == [content(spark, str(root / "clean" / "broker-1"))] * 3


def test_a_directory_that_workers_do_not_see_is_an_error_and_never_a_part(
    answers: dict[str, Any], spark: SparkSession, root: Path
) -> None:
    """Though failOnDataLoss is off. A task that fails on one worker may run again on the other."""
    if not may_mount():
        pytest.skip("needs mounts that only one process sees")
    reason = f"{root}/%s/broker-1 is no log directory and no partition's directory: it is not there"
    assert reason % "unseen" in answers["seen by no worker"]
    found = answers["seen by one worker"]
    if found != content(spark, str(root / "clean" / "broker-1")):
        assert reason % "halfseen" in found


def test_a_stream_brings_every_record(answers: dict[str, Any]) -> None:
    assert answers["streaming"] == answers["unregistered"] > 0


def test_the_written_directory_has_the_same_content(answers: dict[str, Any], root: Path) -> None:
    assert answers["writing"]["written"] == answers["writing"]["source"]
    assert len(answers["writing"]["written"]) == 3
    assert verify([root / "written"]).clean


def test_the_verification_finds_what_it_finds_without_spark(
    answers: dict[str, Any], root: Path
) -> None:
    plain = told(verify(sorted((root / "damaged").iterdir())), str(root))
    assert answers["verified"] == json.loads(json.dumps(plain))
    assert {finding["rule"] for finding in plain["findings"]} >= {"log-checksum"}
