"""A driver of its own: a Spark context is one per process, and the tests' is a local one.

    python -m tests.spark.standalone_job MASTER ROOT

asks the cluster about the brokers' directories in ROOT, its working directory, and writes the
answers to ROOT/answers.json.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from logstore.common.errors import ConfigError
from logstore.spark import package_archive, register, session, settings, shipped, verify_on_spark
from logstore.spark.executor_environment import workers
from tests.spark.conftest import JAVA_OPTIONS, TEST_CONF
from tests.spark.questions import reading, streaming, told, writing

CONF = TEST_CONF | {
    "spark.driver.host": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": JAVA_OPTIONS,
}
HASH = "xxhash64(key, value, partition, offset, timestamp)"


def answers(master: str, root: Path) -> dict[str, Any]:
    directories = [str(path) for path in sorted((root / "clean").iterdir())]
    damaged = [str(path) for path in sorted((root / "damaged").iterdir())]
    try:
        session(master, conf=CONF)
        refusal = ""
    except ConfigError as error:
        refusal = str(error)
    bare = without_python(master)
    natively = [content(bare, path) for path in directories]
    bare.stop()
    archive = package_archive(root / "packages.zip")
    spark = session(master, conf=CONF | shipped(archive))
    unregistered = spark.newSession()
    return {
        "refusal": refusal,
        "natively": natively,
        "workers": [worker._asdict() for worker in workers(spark)],
        "reading": reading(spark, directories),
        "streaming": streaming(spark, directories[0], root / "checkpoint"),
        "writing": writing(spark, directories[0], root / "written"),
        "verified": told(verify_on_spark(spark, *damaged).report, str(root)),
        "unregistered": unregistered.read.format("logstore").load(directories[0]).count(),
        "paths": [
            content(spark, path)
            for path in ("clean/broker-1", f"file://{directories[0]}", f"file:{directories[0]}")
        ],
        "seen by no worker": content(spark, str(root / "unseen" / "broker-1")),
        "seen by one worker": content(spark, str(root / "halfseen" / "broker-1")),
    }


def without_python(master: str) -> SparkSession:
    """Executors whose Python does not start. ``session`` would have asked it what it has."""
    builder = SparkSession.builder.master(master)
    for key, value in {
        **settings(master),
        **CONF,
        "spark.executorEnv.LOGSTORE_TEST_NO_PYTHON": "1",
    }.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark


def content(spark: SparkSession, path: str) -> int | str:
    """A number that any difference in a record changes; or the error."""
    frame = spark.read.format("logstore").option("failOnDataLoss", "false").load(path)
    try:
        return int(
            frame.selectExpr(
                "sum(xxhash64(key, value, partition, offset, timestamp) % 1000003)"
            ).collect()[0][0]
        )
    except PySparkException as error:
        return str(error)


if __name__ == "__main__":
    root = Path(sys.argv[2])
    (root / "answers.json").write_text(json.dumps(answers(sys.argv[1], root)))
