"""The same faults, each in directories of its own, verified together in one Spark job."""

from __future__ import annotations

from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from logstore.spark import verify_on_spark
from logstore.verify import verify
from tests.faults.kinds import KINDS
from tests.faults.together import all_complaints, plant_each

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FAULTS = 200
EVERY = 7
"""Of so many, one is verified without Spark as well."""

pytestmark = pytest.mark.slow


def test_all_are_found_in_one_job_and_none_is_invented(
    clean: list[str], spark: SparkSession, tmp_path: Path
) -> None:
    planted = plant_each(clean, tmp_path, islice(cycle(KINDS), FAULTS), "spark")
    assert len(planted) == FAULTS
    found = verify_on_spark(spark, *(path for one in planted for path in one.paths))
    wrong = all_complaints(planted, found.report)
    assert not wrong, "\n".join(wrong)
    assert found.findings.count() == len(found.report.findings)
    some = planted[::EVERY]
    plain = verify(path for one in some for path in one.paths)
    parts = [one.part_of(found.report) for one in some]
    together = [str(finding) for part in parts for finding in part.findings]
    assert sorted(map(str, plain.findings)) == sorted(together)
