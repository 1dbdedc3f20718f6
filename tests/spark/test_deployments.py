"""The same answers over Spark Connect, and from executors beside the driver."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest

from logstore.spark import settings
from logstore.verify import verify
from tests.spark.cluster import connect_server
from tests.spark.conftest import TEST_CONF
from tests.spark.questions import reading
from tests.support.until import patience

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.slow, pytest.mark.long]


def run(*command: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=5 * patience(),
    )
    assert done.returncode == 0, done.stderr[-8000:]
    return done.stdout


def test_over_spark_connect(spark: SparkSession, logs: Path, tmp_path: Path) -> None:
    """The server was started with our settings, and the client does nothing but name it."""
    pytest.importorskip("grpc")
    conf = TEST_CONF | settings("local[2]") | {"spark.master": "local[2]"}
    python = {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    with connect_server(tmp_path, conf, python) as url:
        run("-m", "tests.spark.connect_job", url, str(logs), str(tmp_path))
    found = json.loads((tmp_path / "answers.json").read_text())
    assert found["reading"] == reading(spark, [str(logs)])
    assert "BatchScan logstore-python" in found["plan"]
    assert "logstore [key, value" in found["plan"]  # by column
    assert found["by rows"] == found["streaming"] == found["batches"] == 1200
    assert found["writing"]["written"] == found["writing"]["source"] != []
    assert verify([tmp_path / "written"]).clean
    for name, text in zip(("verify_on_spark", "workers"), found["refusals"], strict=True):
        assert text.startswith(f"{name} needs the driver, and a session of Spark Connect has it")


def test_on_a_local_cluster(logs: Path, tmp_path: Path) -> None:
    """Its executors have a working directory of their own, below SPARK_HOME."""
    home = tmp_path / "spark"
    home.mkdir()
    for part in Path(pyspark.__file__).parent.iterdir():
        (home / part.name).symlink_to(part)
    code = f"""
from logstore.spark import session, verify_on_spark, workers
from tests.spark.standalone_job import CONF

spark = session("local-cluster[2,1,512]", conf=CONF)
frame = spark.read.format("logstore").load({logs.name!r})
print(len(workers(spark)), frame.count(), frame.selectExpr("sum(length(value))").first()[0])
print(verify_on_spark(spark, {logs.name!r}).report.clean)
spark.stop()
"""
    (tmp_path / logs.name).symlink_to(logs)
    command = f"import os; os.chdir({str(tmp_path)!r}); {code}"
    assert run("-c", command, SPARK_HOME=str(home)).split() == ["1", "1200", "60000", "True"]
    assert {path.name for path in home.glob("work/*/*")} >= {"0", "1"}
