"""Brokers behind sockets, shared by the tests of one module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from replication.server.serving import ServedCluster
from tests.support.served import connect, served
from tests.support.wire_client import WireClient


@pytest.fixture(scope="module")
def kafka() -> Iterator[ServedCluster]:
    with served(3, {"num.partitions": 2, "log.retention.ms": 1_000_000}) as brokers:
        yield brokers


@pytest.fixture
def client(kafka: ServedCluster) -> Iterator[WireClient]:
    """Of a broker that is not the controller."""
    other = next(each for each in kafka.broker_ids if each != kafka.controller_id)
    with connect(kafka, other) as connected:
        yield connected
