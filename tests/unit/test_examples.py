"""Every script in ``examples`` runs, and does what its first line says.

The one on Spark is run in ``tests/spark/test_example_spark.py``, the embedded service, which is
killed, in ``test_embedded_service.py``.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from logstore.verify import Severity, verify
from tests.support.until import patience

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
KAFKA = ROOT / "tests" / "golden" / "data" / "v2-none"  # a segment that Apache Kafka wrote
TESTED_HERE = {"rescue_directory.py", "test_shop.py", "three_brokers.py"}
TESTED_ELSEWHERE = {"embedded_service.py", "spark_query.py"}


def run(*arguments: str | Path) -> str:
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=patience(),
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_all_examples_are_tested() -> None:
    assert {path.name for path in EXAMPLES.glob("[!_]*.py")} == TESTED_HERE | TESTED_ELSEWHERE


@pytest.mark.slow
def test_three_brokers(tmp_path: Path) -> None:
    led, in_sync, *records = run(EXAMPLES / "three_brokers.py", tmp_path).splitlines()
    killed, leads = (int(word) for word in led.replace(",", "").split() if word.isdigit())
    assert killed != leads
    assert in_sync == "in sync again: 0 1 2"
    assert records == [
        "orders-0 0 b'customer-7' b'two of these'",
        "orders-0 1 b'customer-9' b'one of those'",
    ]
    logs = {path.read_bytes() for path in tmp_path.glob("*/orders-0/*.log")}
    assert len(logs) == 1  # the same bytes on each broker
    assert len(list(tmp_path.glob("*/orders-0/*.log"))) == 3


@pytest.mark.slow
def test_a_test_with_the_fixture() -> None:
    assert "1 passed" in run("-m", "pytest", "-p", "no:cacheprovider", EXAMPLES / "test_shop.py")


@pytest.mark.slow
def test_a_rescue(tmp_path: Path) -> None:
    source, target = tmp_path / "kafka", tmp_path / "rescued"
    shutil.copytree(KAFKA, source / "orders-0", ignore=shutil.ignore_patterns("*.json*"))
    batches = [json.loads(line) for line in (KAFKA / "batches.jsonl").read_text().splitlines()]
    lost = batches[len(batches) // 2]
    (segment,) = (source / "orders-0").glob("*.log")
    damaged = bytearray(segment.read_bytes())
    damaged[lost["position"] + 61] ^= 1
    segment.write_bytes(damaged)

    shown = run(EXAMPLES / "rescue_directory.py", target, source)

    first, count = lost["baseOffset"], lost["count"]
    kept = sum(batch["count"] for batch in batches) - count
    errors = [line for line in shown.splitlines() if line.startswith("error ")]
    assert f" {segment} at {lost['position']}: " in errors[0]
    assert f"orders-0: {kept} records rescued" in shown
    assert f"  offsets [{first}, {first + count}) are missing" in shown
    assert f"orders-0: {kept} records read" in shown
    assert segment.read_bytes() == damaged
    assert verify([target]).count(Severity.ERROR) == 0
