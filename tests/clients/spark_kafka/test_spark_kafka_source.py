"""Spark's own Kafka source and sink against a broker of ours, beside the segment source."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from replication.server.serving import ServedCluster, serve
from tests.clients import toolchain
from tests.clients.matrix.clients import CLIENTS, answered, carry_out
from tests.clients.matrix.test_matrix import PARTITIONS, produce
from tests.support.until import patience

# The newest that there is; it works with Spark 4.3 too.
SOURCE = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"
NEEDED = ("spark-sql-kafka", "spark-token-provider-kafka", "kafka-clients", "commons-pool2")
PLAIN, TRANSACTED = 300, 200

pytestmark = [pytest.mark.slow, pytest.mark.long]


def _jars() -> str:
    try:
        path = toolchain.java_classpath(SOURCE)
    except toolchain.SuiteUnavailable as error:
        pytest.skip(str(error))
    jars = path.strip().split(os.pathsep)
    return ",".join(jar for jar in jars if Path(jar).name.startswith(NEEDED))


def _fill(kafka: ServedCluster) -> tuple[int, int]:
    """Every kind of record; return how many there are, and how many of them are committed."""
    kafka.create_topic("plain", PARTITIONS, 1)
    kafka.create_topic("transacted", PARTITIONS, 1)
    kafka.create_topic("written", PARTITIONS, 1)
    producer = kafka.producer()
    for number in range(PLAIN):
        producer.send(
            "plain",
            None if number % 7 == 0 else b"value %d" % number,
            None if number % 5 == 0 else b"key %d" % number,
            partition=number % PARTITIONS,
            timestamp_ms=1_700_000_000_000 + number,
            headers=[("h", b"1"), ("h", None), ("ü", b"")][: number % 4],
        )
    step = produce("transacted", count=TRANSACTED, transactional_id="t", transaction_size=20)
    answers = carry_out(CLIENTS[0], kafka.bootstrap_servers, step)
    committed = sum(map(len, answered(answers, "committed")))
    return PLAIN + TRANSACTED, PLAIN + committed


def test_both_sources_give_the_same_rows(tmp_path: Path) -> None:
    jars = _jars()
    with serve(tmp_path / "data") as kafka:
        rows, committed = _fill(kafka)
        (directory,) = kafka.log_dirs(0)
        job = [sys.executable, "-m", "tests.clients.spark_kafka.job", jars]
        done = subprocess.run(
            [*job, kafka.bootstrap_servers, directory, str(tmp_path / "scratch")],
            capture_output=True,
            text=True,
            timeout=5 * patience(),
            check=False,
        )
    assert done.returncode == 0, done.stderr[-4000:]
    assert rows > committed > PLAIN
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "read_uncommitted rows": rows,
        "read_uncommitted differences": 0,
        "read_committed rows": committed,
        "read_committed differences": 0,
        "stream differences": 0,
        "written differences": 0,
    }
