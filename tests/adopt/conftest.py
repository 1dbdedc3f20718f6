"""A directory of a real Kafka, once for all tests of a session."""

from __future__ import annotations

from pathlib import Path

import kafka_jars
import pytest

from tests.adopt import proofs
from tests.adopt.histories import PLANS, History
from tests.adopt.kafkas import Node
from tests.adopt.reading import Picture
from tests.support.lanes import missing

SEED = 1


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Node:
    """A broker of the newest Kafka that was killed twice. Copy its files, and change none."""
    try:
        kafka_jars.helper_classes()
    except kafka_jars.KafkaUnavailable as error:
        missing(f"no real Kafka: {error}")
    return History(PLANS["short"], tmp_path_factory.mktemp("adopt") / "node", SEED).run()


@pytest.fixture(scope="session")
def killed(node: Node) -> Path:
    """Its log directory."""
    return node.log_dir


@pytest.fixture(scope="session")
def theirs(node: Node, tmp_path_factory: pytest.TempPathFactory) -> Picture:
    """What Kafka itself shows of it."""
    return proofs.what_kafka_shows(node, tmp_path_factory.mktemp("kafka-shows") / "node")
