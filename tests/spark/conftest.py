"""One Spark session for all tests here: it takes seconds to start."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# A test's JVM lives for seconds: the second compiler never pays there.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
TEST_CONF = {
    "spark.ui.enabled": "false",
    "spark.driver.extraJavaOptions": JAVA_OPTIONS,
    "spark.sql.shuffle.partitions": "2",
}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """``local[2]``, with the settings that logstore recommends and the source registered."""
    from logstore.spark import session

    spark = session("local[2]", app_name="tests", conf=TEST_CONF)
    yield spark
    spark.stop()
