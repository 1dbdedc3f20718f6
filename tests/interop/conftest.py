"""Fixtures that need a real Kafka: a JDK, Maven, and a minute."""

from __future__ import annotations

import kafka_cluster
import kafka_jars
import kafka_logs
import kafka_served
import our_logs as writers
import pytest

from tests.spark.conftest import spark
from tests.support.lanes import missing

__all__ = ["spark"]


@pytest.fixture(scope="session")
def kafka() -> str:
    """Return the version of the Kafka that is ready to run; skip, with the reason, if none is."""
    try:
        kafka_jars.helper_classes()
    except kafka_jars.KafkaUnavailable as error:
        missing(f"no real Kafka: {error}")
    return kafka_jars.kafka_version()


@pytest.fixture(scope="session")
def kafka_directory(
    kafka: str, our_logs: dict[str, writers.OurLog], tmp_path_factory: pytest.TempPathFactory
) -> kafka_logs.KafkaDirectory:
    """Return log directories of a real broker with the records that a real consumer read."""
    return kafka_logs.build(tmp_path_factory.mktemp("kafka-directory"), list(our_logs))


@pytest.fixture(scope="session")
def kafka_replicas(
    kafka: str, tmp_path_factory: pytest.TempPathFactory
) -> kafka_cluster.ReplicatedDirectories:
    """Return log directories that three real brokers wrote together."""
    return kafka_cluster.build(tmp_path_factory.mktemp("kafka-replicas"))


@pytest.fixture(scope="session")
def our_logs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, writers.OurLog]:
    """Return partition directories that this library wrote, by topic. Do not change the files."""
    return writers.build(tmp_path_factory.mktemp("our-logs"))


@pytest.fixture(scope="session")
def served(
    kafka_directory: kafka_logs.KafkaDirectory,
    our_logs: dict[str, writers.OurLog],
    tmp_path_factory: pytest.TempPathFactory,
) -> kafka_served.Served:
    """Return what a broker made of directories that this library wrote."""
    return kafka_served.build(tmp_path_factory.mktemp("served"), kafka_directory, our_logs)
