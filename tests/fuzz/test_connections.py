"""Hostile clients: nothing but the protocol's answers, others undisturbed, memory bounded."""

from __future__ import annotations

import logging

import pytest

from replication.server.serving import serve
from tests.fuzz.connections import crowd, run
from tests.fuzz.server import all_lines
from tests.support.leftovers import nothing_left

ROUNDS = 100  # ``python -m tests.fuzz.connections`` runs more, and ``--crowd`` a larger one
IDLE = ANNOUNCING = 300


def test_hostile_clients(caplog: pytest.LogCaptureFixture) -> None:
    with all_lines(), nothing_left(), serve() as kafka:
        host, port = kafka.bootstrap_servers.rsplit(":", 1)
        run((host, int(port)), range(1, 1 + ROUNDS))
    of_network = [
        record.getMessage()
        for record in caplog.records
        if record.levelno >= logging.ERROR and record.name.startswith("replication.network")
    ]
    assert of_network == []


@pytest.mark.slow
def test_many_connections_take_little_memory() -> None:
    """20 MiB for 1,000 idle ones, 80 MB for 1,000 that announce 100 MiB each."""
    taken = crowd(IDLE, ANNOUNCING)
    assert taken.idle <= IDLE * (20 << 10) + (2 << 20)
    assert taken.announcing <= ANNOUNCING * 80_000
