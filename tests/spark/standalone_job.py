"""A driver of its own: a Spark context is one per process, and the tests' is a local one.

    python -m tests.spark.standalone_job MASTER ROOT

asks the cluster about the brokers' directories in ROOT, its working directory, and writes the
answers to ROOT/answers.json.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException

from logstore.common.errors import ConfigError
from logstore.spark import package_archive, session, shipped, verify_on_spark
from logstore.spark.executor_environment import workers
from tests.spark.conftest import JAVA_OPTIONS, TEST_CONF
from tests.spark.questions import reading, streaming, told, writing

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONF = TEST_CONF | {
    "spark.driver.host": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": JAVA_OPTIONS,
}


def answers(master: str, root: Path) -> dict[str, Any]:
    directories = [str(path) for path in sorted((root / "clean").iterdir())]
    damaged = [str(path) for path in sorted((root / "damaged").iterdir())]
    try:
        session(master, conf=CONF)
        refusal = ""
    except ConfigError as error:
        refusal = str(error)
    archive = package_archive(root / "packages.zip")
    spark = session(master, conf=CONF | shipped(archive))
    unregistered = spark.newSession()
    return {
        "refusal": refusal,
        "workers": [worker._asdict() for worker in workers(spark)],
        "reading": reading(spark, directories),
        "streaming": streaming(spark, directories[0], root / "checkpoint"),
        "writing": writing(spark, directories[0], root / "written"),
        "verified": told(verify_on_spark(spark, *damaged).report, str(root)),
        "unregistered": unregistered.read.format("logstore").load(directories[0]).count(),
        "paths": [
            lengths(spark, path)
            for path in ("clean/broker-1", f"file://{directories[0]}", f"file:{directories[0]}")
        ],
        "seen by no worker": lengths(spark, str(root / "unseen" / "broker-1")),
        "seen by one worker": lengths(spark, str(root / "halfseen" / "broker-1")),
    }


def lengths(spark: SparkSession, path: str) -> int | str:
    """The sum of a column, which no header tells; or the error."""
    frame = spark.read.format("logstore").option("failOnDataLoss", "false").load(path)
    try:
        return int(frame.selectExpr("sum(length(value))").collect()[0][0])
    except PySparkException as error:
        return str(error)


if __name__ == "__main__":
    root = Path(sys.argv[2])
    (root / "answers.json").write_text(json.dumps(answers(sys.argv[1], root)))
