"""One Spark session for all tests here, since it takes seconds to start; directories to read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.faults.conftest import clean
from tests.support.builders import batch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["clean"]

# A test's JVM lives for seconds: the second compiler never pays there.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
TEST_CONF = {
    "spark.ui.enabled": "false",
    # All heap is resident, so what else is can be told from it (`tests.spark.walk.endurance`).
    "spark.driver.extraJavaOptions": f"{JAVA_OPTIONS} -XX:+AlwaysPreTouch",
    "spark.sql.shuffle.partitions": "2",
}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """``local[2]``, with the settings that logstore recommends and the source registered."""
    from logstore.spark import session

    spark = session("local[2]", app_name="tests", conf=TEST_CONF)
    yield spark
    spark.stop()


@pytest.fixture(scope="session")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two topics of 400 records a partition; timestamps are the offsets in ms. Do not change it."""
    from tests.spark.reading import Broker

    path = tmp_path_factory.mktemp("data") / "logs"
    with Broker(path, orders=2, payments=1) as broker:
        for topic in broker.logs.values():
            for log in topic:
                for number in range(40):
                    log.append_as_leader(batch(0, 10, timestamp=10 * number, key=b"k"), 0)
    return path
