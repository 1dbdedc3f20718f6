"""Servers of ZooKeeper below a supervisor: they start first, end last, and never outlive it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from kazoo.client import KazooClient

from replication.supervisor.cluster_file import write_cluster
from replication.supervisor.planning import StartOptions, first_plan
from replication.supervisor.zookeeper import Jars
from tests.support.lanes import missing
from tests.support.until import patience, until
from tests.unit.supervisor.clusters import running
from tests.unit.supervisor.test_children import have_ended, supervisor
from tests.zookeeper.server import ZooKeeperUnavailable, jars


@pytest.fixture(scope="module")
def found() -> Jars:
    try:
        return jars()
    except ZooKeeperUnavailable as error:
        missing(f"no ZooKeeper: {error}")


def options(servers: int) -> StartOptions:
    return StartOptions(brokers=1, listen="127.0.0.1:0", engine="zookeeper", servers=servers)


@pytest.mark.slow
@pytest.mark.essential
@pytest.mark.parametrize("servers", [1, 3])
def test_data_survive_a_restart(tmp_path: Path, found: Jars, servers: int) -> None:
    plan = first_plan(str(tmp_path), options(servers), os.environ)
    others = {*psutil.Process().children()}
    for life in range(2):
        with running(tmp_path, plan, jars=found) as cluster:
            cluster.until_said("ready")
            client = KazooClient(plan.engine.url.removeprefix("zookeeper://"))
            client.start(patience())
            try:
                if life == 0:
                    client.create("/kept", b"value")
                assert client.get("/kept")[0] == b"value"
            finally:
                client.stop()
                client.close()
            assert cluster.stop() == 0
        assert {*psutil.Process().children()} <= others
    assert cluster.events == ["began 0", "ended 0"] * 2


def jvms(processes: list[psutil.Process]) -> Iterator[psutil.Process]:
    for each in processes:
        yield from each.children(recursive=True)


@pytest.mark.slow
@pytest.mark.essential
def test_none_outlives_a_supervisor_that_was_killed(tmp_path: Path, found: Jars) -> None:
    write_cluster(str(tmp_path), first_plan(str(tmp_path), options(1), os.environ))
    with supervisor(tmp_path) as (process, children):
        all_ = [*children, *jvms(children)]
        assert len(all_) == 3  # a broker; the parent of a JVM; the JVM
        process.send_signal(signal.SIGKILL)
        until(lambda: have_ended(all_), "all have ended")
    assert (tmp_path / "events").read_text().splitlines() == ["began 0", "ended 0"]


@pytest.mark.slow
@pytest.mark.essential
def test_a_server_ends_with_its_parent_and_starts_again(tmp_path: Path, found: Jars) -> None:
    plan = first_plan(str(tmp_path), options(1), os.environ)
    with running(tmp_path, plan, jars=found) as cluster:
        cluster.until_said("ready")
        (engine,) = cluster.supervisor.engine
        assert engine.pid is not None
        (server,) = psutil.Process(engine.pid).children()
        os.kill(engine.pid, signal.SIGKILL)
        until(lambda: have_ended([server]), "the JVM has ended")
        cluster.until_said("ready", "zookeeper 1", count=2)
        assert cluster.stop() == 0
