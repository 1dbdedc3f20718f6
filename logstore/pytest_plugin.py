"""Pytest fixtures for code that talks to a replicated log; pytest loads them itself.

``logstore_cluster`` is three brokers in this process on ``tmp_path``; ``make_logstore_cluster``
builds others (arguments as ``Cluster``). For code that uses a Kafka client there is
``logstore_kafka``, one broker with a listener, and ``make_logstore_kafka`` (arguments as
``serve``); ``logstore_registry`` has a schema registry beside it. All are closed when the test
ends. Tests that need no broker of their own share one:
``logstore_kafka_session`` lives as long as the tests run, and ``logstore_topic`` is a topic of it
that no other test has. Nothing is imported before a test asks for one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def make_logstore_cluster(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """``make(brokers=3, **options)`` -> ``Cluster``, each in its own directory."""
    from logstore.common import siblings

    with siblings.load("replication.pytest_fixtures").clusters(tmp_path) as make:
        yield make


@pytest.fixture
def logstore_cluster(make_logstore_cluster: Callable[..., Any]) -> Any:
    """``Cluster`` of three brokers, numbered 0 to 2."""
    return make_logstore_cluster()


@pytest.fixture
def make_logstore_kafka(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """``make(brokers=1, **options)`` -> ``ServedCluster``, each in its own directory."""
    from logstore.common import siblings

    with siblings.load("replication.pytest_fixtures").kafkas(tmp_path) as make:
        yield make


@pytest.fixture
def logstore_kafka(make_logstore_kafka: Callable[..., Any]) -> Any:
    """A broker for Kafka clients: ``logstore_kafka.bootstrap_servers`` is where they find it, and
    ``logstore_kafka.faults`` lets requests fail."""
    return make_logstore_kafka()


@pytest.fixture
def logstore_registry(make_logstore_kafka: Callable[..., Any]) -> Any:
    """As ``logstore_kafka``, with a schema registry: ``logstore_registry.registry_url``."""
    from logstore.common import siblings

    listener = siblings.load("replication.server.serving").HttpListener()
    return make_logstore_kafka(registry=listener)


@pytest.fixture(scope="session")
def logstore_kafka_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """As ``logstore_kafka``, one for all tests of a process."""
    from logstore.common import siblings

    directory = tmp_path_factory.mktemp("logstore-kafka")
    with siblings.load("replication.pytest_fixtures").kafkas(directory) as make:
        yield make()


@pytest.fixture
def logstore_topic(logstore_kafka_session: Any) -> Iterator[str]:
    """Name of a topic with one partition on ``logstore_kafka_session``, deleted in the end."""
    from logstore.common.random_id import new_uuid, random_id

    topic = f"test-{new_uuid(random_id)}"
    logstore_kafka_session.create_topic(topic)
    yield topic
    logstore_kafka_session.delete_topic(topic)
