"""Directories and trees that were mixed up, lost or restored: the cluster says so, or serves every
acknowledged record that a replica in sync still has. It is never silently empty."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from checkpoints.clean_shutdown import CLEAN_SHUTDOWN
from checkpoints.types import TopicPartition
from logstore.common.errors import ConfigError
from replication.common.errors import InconsistentClusterIdError, ReplicationError
from replication.common.messages import ElectionType, ElectLeadersRequest
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


def elect_uncleanly(cluster: Cluster) -> None:
    """What Kafka's ``kafka-leader-election --election-type unclean`` asks for."""
    controller = cluster.controller_id
    assert controller is not None
    request = ElectLeadersRequest(ElectionType.UNCLEAN, (TP,))
    cluster.broker(controller).controller.handle(request, lambda response: None)
    cluster.wait_for_leader(TP)


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

    def test_an_older_tree_elects_nobody(self, filled: Path) -> None:
        """Who it believes to be in sync may lack what was committed since."""
        shutil.copytree(filled / "coordinator", filled / "kept")
        with Cluster(3, filled) as cluster:
            cluster.produce("t", b"later")
        shutil.rmtree(filled / "coordinator")
        shutil.move(filled / "kept", filled / "coordinator")
        with Cluster(3, filled) as cluster:
            assert cluster.leader(TP) is None
            elect_uncleanly(cluster)
            assert records(cluster) == COUNT + 1

    def test_another_id_than_the_trees_is_refused(self, filled: Path) -> None:
        with pytest.raises(InconsistentClusterIdError, match="cluster_id"):
            Cluster(3, filled, cluster_id="another")


class TestLogs:
    @pytest.mark.parametrize("how", ["set aside", "gone", "older", "the whole directory"])
    def test_the_last_of_the_isr_comes_back_without_its_log(self, tmp_path: Path, how: str) -> None:
        """The others have every record, and are not cut to what it has left."""
        leader = fill(tmp_path)
        home = tmp_path / f"broker-{leader}"
        match how:
            case "set aside":
                (home / "t-0").rename(home / f"t-0.{'0' * 32}-stray")
            case "gone":
                shutil.rmtree(home / "t-0")
            case "older":
                for path in (home / "t-0").glob("0*"):
                    path.unlink()
            case _:
                shutil.rmtree(home)
        with Cluster([leader, *{0, 1, 2} - {leader}], tmp_path) as cluster:
            assert records(cluster) == COUNT
            cluster.wait_for_isr(TP, range(3))
            assert {cluster.replica(TP, b).log_end_offset for b in range(3)} == {COUNT}
        assert partitions(tmp_path) == {"t-0"}

    @pytest.mark.parametrize("how", ["gone", "the whole directory", "an older copy"])
    def test_the_only_replica_is_gone(self, tmp_path: Path, how: str) -> None:
        """Its partition has no leader: nobody reads an empty one. An unclean election ends that."""
        fill(tmp_path, 1)
        home, copy = tmp_path / "broker-0", tmp_path / "copy"
        shutil.copytree(home, copy)
        with Cluster(1, tmp_path) as cluster:
            cluster.produce("t", b"later")
        if how == "gone":
            shutil.rmtree(home / "t-0")
        else:
            shutil.rmtree(home)
            if how == "an older copy":
                shutil.copytree(copy, home)
        with Cluster(1, tmp_path) as cluster:
            assert cluster.leader(TP) is None
            with pytest.raises(ReplicationError):
                cluster.read_all("t", timeout_s=0.2)
            elect_uncleanly(cluster)
            assert records(cluster) == (COUNT if how == "an older copy" else 0)

    def test_what_was_set_aside_comes_back(self, tmp_path: Path) -> None:
        """A topic of one replica, whose log an operator has set aside."""
        fill(tmp_path, 1)
        home = tmp_path / "broker-0"
        (home / "t-0").rename(home / f"t-0.{'0' * 32}-stray")
        with Cluster(1, tmp_path) as cluster:
            assert cluster.leader(TP) is None
            elect_uncleanly(cluster)
            assert records(cluster) == COUNT

    def test_directories_of_two_brokers_that_changed_places(self, filled: Path) -> None:
        """Each has the owner of the other in it, is refused, and stays as its stop left it. With
        the owners changed as well, neither proves its logs; the third broker has them all."""
        one, other = filled / "broker-0", filled / "broker-1"
        one.rename(filled / "kept")
        other.rename(one)
        (filled / "kept").rename(other)
        assert (one / CLEAN_SHUTDOWN).exists()
        with pytest.raises(ConfigError, match="different clusters or nodes"):
            Cluster(3, filled)
        assert (one / CLEAN_SHUTDOWN).exists()
        for home, number in ((one, 0), (other, 1)):
            text = (home / "meta.properties").read_text()
            (home / "meta.properties").write_text(re.sub("node.id=.", f"node.id={number}", text))
        with Cluster(3, filled) as cluster:
            assert records(cluster) == COUNT

    def test_an_older_copy_of_all(self, tmp_path: Path) -> None:
        """All directories and the coordinator, as a backup of a stopped machine: it is whole."""
        fill(tmp_path / "c")
        shutil.copytree(tmp_path / "c", tmp_path / "copy")
        with Cluster(3, tmp_path / "c") as cluster:
            cluster.produce("t", b"later")
        with Cluster(3, tmp_path / "copy") as cluster:
            assert records(cluster) == COUNT

    def test_older_directories_under_a_newer_tree(self, filled: Path) -> None:
        copies = filled / "copies"
        for broker in range(3):
            shutil.copytree(filled / f"broker-{broker}", copies / f"broker-{broker}")
        with Cluster(3, filled) as cluster:
            cluster.produce("t", b"later")
        for broker in (0, 1):
            shutil.rmtree(filled / f"broker-{broker}")
            shutil.copytree(copies / f"broker-{broker}", filled / f"broker-{broker}")
        with Cluster(3, filled) as cluster:
            assert cluster.wait_for_leader(TP) == 2
            assert records(cluster) == COUNT + 1
        for broker in range(3):
            shutil.rmtree(filled / f"broker-{broker}")
            shutil.copytree(copies / f"broker-{broker}", filled / f"broker-{broker}")
        with Cluster(3, filled) as cluster:
            assert cluster.leader(TP) is None
