"""One Spark session for all tests here: it takes seconds to start."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """``local[2]``, with the settings that logstore recommends and the source registered."""
    from logstore.spark import session

    spark = session("local[2]", app_name="tests", conf={"spark.ui.enabled": "false"})
    yield spark
    spark.stop()
