"""Random questions whose answers are found below Spark's plan (``pushed_questions``)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.spark.pushed_questions import Asked, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def asked(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Asked:
    logs = tmp_path_factory.mktemp("pushed") / "logs"
    write(logs)
    return Asked(spark, logs)


@pytest.mark.parametrize("block", range(3))
def test_answers_are_those_of_the_rows_in_memory(asked: Asked, block: int) -> None:
    wrong = [asked.ask(seed) for seed in range(1 + 12 * block, 13 + 12 * block)]
    assert not any(wrong), "\n".join(filter(None, wrong))
