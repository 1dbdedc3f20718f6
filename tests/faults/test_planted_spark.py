"""The same faults, each in directories of its own, verified together in one Spark job."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark")

from logstore.spark import verify
from logstore.verify import VerifyReport
from logstore.verify import verify as verify_plainly
from tests.faults.kinds import KINDS
from tests.faults.planter import Fault, complaints, plant
from tests.faults.site import Site, copied

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FAULTS = int(os.environ.get("LOGSTORE_FAULTS", "200"))

pytestmark = pytest.mark.slow


def test_all_are_found_in_one_job_and_none_is_invented(
    clean: list[str], spark: SparkSession, tmp_path: Path
) -> None:
    """Topics are renamed in each copy, so that these are no replicas of each other."""
    planted: dict[str, Fault] = {}
    paths: list[str] = []
    for number in range(FAULTS):
        home = str(tmp_path / f"{number:05d}")
        copies = copied(clean, home, lambda topic, number=number: f"{topic}-{number}")
        kind = list(KINDS)[number % len(KINDS)]
        planted[home] = plant(Site(copies), kind, random.Random(f"spark {number}"))
        paths += copies
    found = verify(spark, *paths)
    parts = _by_home(found.report, planted)
    wrong = [line for home, fault in planted.items() for line in complaints(fault, parts[home])]
    assert not wrong, "\n".join(wrong)
    some = [path for path in paths if int(Path(path).parent.name) % 7 == 0]
    plain, homes = verify_plainly(some), sorted({str(Path(path).parent) for path in some})
    assert sorted(map(str, plain.findings)) == sorted(
        str(finding) for home in homes for finding in parts[home].findings
    )
    assert found.findings.count() == len(found.report.findings)


def _by_home(report: VerifyReport, homes: dict[str, Fault]) -> dict[str, VerifyReport]:
    """What was told of the directories below each of ``homes``."""
    parts = {home: VerifyReport() for home in homes}
    for finding in report.findings:
        home = next(iter(home for home in homes if finding.file.startswith(home + "/")))
        parts[home].findings.append(finding)
    for line in report.unusable:
        home = next(iter(home for home in homes if home + "/" in line))
        parts[home].unusable.append(line)
    return parts
