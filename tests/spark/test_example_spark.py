"""``examples/spark_query.py``: a question in SQL over two log directories."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from logstore import LogManager

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "spark_query.py"


def test_the_busiest_partitions(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, topic, count in (("disk-1", "orders", 5), ("disk-2", "invoices", 3)):
        with LogManager([tmp_path / name]) as manager:
            manager.get_or_create(topic, 0).append([(b"k", b"v", 1_700_000_000_000)] * count)
    runpy.run_path(str(EXAMPLE))["main"]([str(tmp_path / "disk-1"), str(tmp_path / "disk-2")])
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("|")
    ]
    assert rows[0] == ["topic", "partition", "records", "last", "latest"]
    assert [row[:4] for row in rows[1:]] == [["orders", "0", "5", "4"], ["invoices", "0", "3", "2"]]
