"""Processes that end, under load; the engine, which ends, too."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.processes.chaos import Run
from tests.processes.faults import Kind
from tests.processes.nodes import SESSION_MS, Nodes
from tests.processes.records import Records

pytestmark = pytest.mark.slow  # a JVM and three brokers start


@pytest.mark.essential
def test_a_leader_is_killed(nodes: Nodes) -> None:
    """X-125: another one leads within the time of a session; nothing acknowledged is lost, and all
    replicas are equal in the end."""
    records = Records(nodes)
    records.append()
    leader = nodes.leader(records.tps[0])
    nodes.brokers[leader].kill()
    began = time.monotonic()
    records.append()
    assert time.monotonic() - began < SESSION_MS / 1000 + 3
    assert nodes.leader(records.tps[0]) != leader
    nodes.brokers[leader].start()
    nodes.brokers[leader].wait_until_ready()
    records.append()
    records.check()
    nodes.wait_until_whole()
    nodes.stop_all()
    nodes.verify()


def test_all_are_killed_at_once(nodes: Nodes) -> None:
    """X-126: they come back with everything that was acknowledged."""
    records = Records(nodes)
    records.append(50)
    nodes.kill_all()
    for node in nodes.brokers.values():
        node.launch()
    nodes.wait_until_whole()
    records.append()
    records.check()


@pytest.mark.parametrize("seed", [1])
def test_a_short_run_of_faults(tmp_path: Path, seed: int) -> None:
    """``python -m tests.processes`` for some seconds, with faults of all kinds."""
    report = Run(
        tmp_path, seed, 12, java=False, longest_s=4, between_s=0.5, weights=dict.fromkeys(Kind, 1)
    ).run()
    assert report.wrong == []
    assert len(report.struck) >= 2
