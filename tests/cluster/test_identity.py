"""Directories and trees that were mixed up, lost or restored: the cluster says so, or serves every
acknowledged record that a replica in sync still has. It is never silently empty."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from checkpoints.types import TopicPartition
from replication.common.errors import InconsistentClusterIdError
from replication.embedded.cluster import Cluster

pytestmark = pytest.mark.slow

TP = TopicPartition("t", 0)
MIN_ISR = {"min.insync.replicas": 2}
COUNT = 20


def fill(directory: Path, brokers: int = 3, *, last: int | None = None) -> int:
    """A cluster with records, stopped cleanly. Returns who led, and stopped last."""
    with Cluster(brokers, directory) as cluster:
        cluster.create_topic("t", 1, brokers, config=MIN_ISR if brokers > 1 else {})
        for number in range(COUNT):
            cluster.produce("t", b"%d" % number)
        cluster.wait_for_isr(TP, range(brokers))
        leader = cluster.wait_for_leader(TP)
        for broker in range(brokers):
            if broker != leader:
                cluster.stop(broker)
        return leader


def records(cluster: Cluster) -> int:
    return len(cluster.read_all("t", timeout_s=20)[0])


def partitions(directory: Path) -> set[str]:
    return {path.name for path in directory.glob("broker-*/t-*")}


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    fill(tmp_path)
    return tmp_path


class TestTrees:
    def test_an_empty_tree_is_refused_before_anything_is_renamed(self, filled: Path) -> None:
        """The coordinator's directory was lost, or the chroot is another one."""
        shutil.move(filled / "coordinator", filled / "kept")
        with pytest.raises(InconsistentClusterIdError, match="knows none of the topics"):
            Cluster(3, filled)
        assert partitions(filled) == {"t-0"}
        shutil.rmtree(filled / "coordinator")
        shutil.move(filled / "kept", filled / "coordinator")
        with Cluster(3, filled) as cluster:
            assert records(cluster) == COUNT

    @pytest.mark.parametrize("brokers", [1, 3])
    def test_a_directory_of_another_cluster_is_refused(self, tmp_path: Path, brokers: int) -> None:
        one, other = tmp_path / "one", tmp_path / "other"
        fill(one, brokers)
        fill(other, brokers)
        victim = f"broker-{brokers // 2}"
        shutil.rmtree(other / victim)
        shutil.copytree(one / victim, other / victim)
        with pytest.raises(InconsistentClusterIdError, match=rf"{victim}.* belongs to cluster"):
            Cluster(brokers, other)
        assert partitions(other) == {"t-0"}

    def test_a_tree_from_before_ids_takes_that_of_the_directories(self, filled: Path) -> None:
        with Cluster(3, filled) as cluster:
            cluster.session(0).delete("/cluster/id")
        with Cluster(3, filled) as cluster:
            node = cluster.session(0).get("/cluster/id")
            assert node is not None
            assert cluster.broker(0).log_manager.cluster_id.encode() in node.data
            assert records(cluster) == COUNT

    def test_another_id_than_the_trees_is_refused(self, filled: Path) -> None:
        with pytest.raises(InconsistentClusterIdError, match="cluster_id"):
            Cluster(3, filled, cluster_id="another")
