"""The cluster on a real ZooKeeper; ``python -m tests.cluster.endurance --coordinator zookeeper``
does the same for longer."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from replication.coordination import open_coordinator
from replication.embedded.cluster import Cluster
from tests.cluster import endurance
from tests.cluster.test_edges import (  # noqa: F401  # run here with a coordinator_url of ours
    faulty,
    test_each_kind_of_call_may_lose_its_answers,
    test_topics_are_deleted_by_id_grown_and_configured,
)
from tests.zookeeper.server import ZooKeeperServer

pytestmark = pytest.mark.slow  # a JVM starts


@pytest.fixture
def coordinator_url(chroot: str) -> str:
    return chroot


def test_nothing_acknowledged_is_lost_under_disturbances(
    server: ZooKeeperServer, tmp_path: Path
) -> None:
    """S-25, T-A1, R-63, I-22: brokers, controllers, sessions and the server itself come and go."""
    backend = endurance.ZooKeeper(server)
    result = endurance.run(backend, tmp_path / "cluster", 3, endurance.DISTURBANCES)
    assert result.found >= result.acknowledged >= 2 * endurance.SENDERS * len(result.disturbances)
    assert result.leader_epochs > 4


@pytest.mark.essential
def test_a_silent_crash_is_found_by_the_timeout_of_the_session(
    server: ZooKeeperServer, tmp_path: Path
) -> None:
    """A process that ended pings no more: ZooKeeper ends its session, and another broker leads."""
    url = f"zookeeper://{server.hosts}/silent"
    onlooker = open_coordinator(url, session_timeout_ms=60_000).connect()
    with (
        closing(onlooker),
        Cluster(3, tmp_path / "cluster", coordinator=url, session_timeout_ms=4000) as cluster,
    ):
        (tp,) = cluster.create_topic("orders", config={"min.insync.replicas": 2})
        leader = cluster.wait_for_leader(tp)
        session = cluster.session(leader)
        cluster.crash(leader, notice=False)
        path = f"/brokers/ids/{leader}"
        registered = onlooker.get(path)
        assert registered is not None
        assert registered.ephemeral_owner == session.session_id  # it was not told
        cluster.wait_for_leader(tp, leader)
        assert onlooker.get(path) is None
        cluster.produce("orders", b"v")
        cluster.start(leader)
        cluster.wait_for_isr(tp, (0, 1, 2))
