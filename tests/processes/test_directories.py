"""Directories, ids and addresses that are not those of the last time; an engine that is another."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.processes.nodes import Node, NodeFailed, Nodes, free_port
from tests.processes.records import Records
from tests.support.until import until

pytestmark = pytest.mark.slow


def _refuses(node: Node, why: str) -> None:
    """It ends, and says why."""
    with pytest.raises(NodeFailed) as failed:
        node.start()
    assert why in str(failed.value)


def test_an_old_copy_of_a_directory(shared: Nodes, tmp_path: Path) -> None:
    """X-89: what the copy lacks is fetched again, and is not lost with the copy as leader: also if
    its broker comes back before the others know that it was away."""
    records = Records(shared)
    records.append()
    leader = shared.leader(records.tps[0])
    node = shared.brokers[leader]
    node.stop()
    copy = tmp_path / "copy"
    shutil.copytree(node.directory, copy)
    node.start()
    shared.wait_until_whole()
    records.append()
    node.kill()
    shared.put_back(leader, copy)
    node.start()
    shared.wait_until_whole()
    records.append()
    records.check()


def test_two_directories_are_swapped(shared: Nodes, tmp_path: Path) -> None:
    """Each names the broker that it belongs to, and is not opened by another one."""
    one, other = shared.brokers[0], shared.brokers[1]
    one.stop()
    other.stop()
    aside = tmp_path / "aside"

    def swap() -> None:
        one.directory.rename(aside)
        other.directory.rename(one.directory)
        aside.rename(other.directory)

    swap()
    before = sorted(path for path in one.directory.rglob("*"))
    _refuses(one, f"{one.directory} is of node 1")
    assert sorted(path for path in one.directory.rglob("*")) == before
    swap()
    one.start()
    other.start()
    shared.wait_until_whole()


def test_a_broker_comes_back_at_other_addresses(shared: Nodes) -> None:
    """X-88: the others find it, and so do clients that know one of them."""
    records = Records(shared)
    node = shared.brokers[shared.leader(records.tps[0])]
    node.stop()
    node.client_port, node.inner_port = free_port(), free_port()
    node.advertised_port = shared.relay.link(node.name, node.inner_port).port
    node.start()
    shared.wait_until_whole()
    records.append()
    records.check()


def test_an_id_is_started_twice(shared: Nodes, tmp_path: Path) -> None:
    """X-84: the second one ends; its directory is as it was, and the first one goes on."""
    records = Records(shared)
    first = shared.brokers[0]
    config = {**shared.config, "initial.broker.registration.timeout.ms": 1000}
    second = Node(0, tmp_path / "second", first.coordinator, config)
    try:
        _refuses(second, "0")
        assert not second.directory.exists() or not any(second.directory.iterdir())
        records.append()
        # The same directory is locked: no need to ask anybody.
        second = Node(0, first.directory, first.coordinator, config)
        second.log_file = tmp_path / "third.log"
        _refuses(second, str(first.directory))
    finally:
        if second.runs:
            second.kill()
    records.append()
    records.check()


@pytest.mark.long
def test_the_engine_comes_back_empty(nodes: Nodes) -> None:
    """Its tree is that of no cluster, or of another one: no broker makes it its own."""
    records = Records(nodes)
    records.append()
    nodes.engine.kill()
    kept = nodes.directory / "kept"
    nodes.engine.data.rename(kept)
    nodes.engine.start()
    for node in nodes.brokers.values():
        node.kill()
        _refuses(node, "cluster")
    nodes.engine.kill()
    shutil.rmtree(nodes.engine.data)
    kept.rename(nodes.engine.data)
    nodes.engine.start()
    for node in nodes.brokers.values():
        node.launch()
    nodes.wait_until_whole()
    records.append()
    records.check()


@pytest.mark.long
def test_the_engine_comes_back_from_an_older_copy(nodes: Nodes) -> None:
    """It knows nothing of the last elections: a broker whose session saw more stops, and says why.
    Started again on it, all have everything that was acknowledged."""
    records = Records(nodes)
    records.append()
    nodes.engine.stop()
    copy = nodes.directory / "copy"
    shutil.copytree(nodes.engine.data, copy)
    nodes.engine.start()
    leader = nodes.leader(records.tps[0])
    nodes.brokers[leader].kill()
    records.append()
    nodes.brokers[leader].start()
    nodes.wait_until_whole()
    records.append()
    nodes.engine.put_back(copy)
    stopped = until(
        lambda: [node for node in nodes.brokers.values() if not node.runs], "a broker stops"
    )
    assert all("it was put back to an older state" in node.said() for node in stopped)
    nodes.kill_all()
    for node in nodes.brokers.values():
        node.launch()
    nodes.wait_until_whole()
    records.check()  # by new clients: others take the older epochs of leaders for old news
