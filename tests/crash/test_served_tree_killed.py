"""Real ``kill -9`` of a served tree: what was answered is there, and sessions go on."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from logstore.storage.local import LocalStorage
from replication import Cluster
from replication.coordination import journal
from tests.support import zookeeper_client as zk
from tests.support.served_tree import CoordinatorProcess
from tests.support.until import until
from tests.support.zookeeper_client import ZooKeeperClient

pytestmark = pytest.mark.slow
WRITERS = 4


class Writer(threading.Thread):
    """Creates nodes in a session that goes on whenever the server is back."""

    def __init__(self, process: CoordinatorProcess, number: int) -> None:
        super().__init__(daemon=True)
        self.acknowledged: dict[str, int] = {}
        self.seen_zxid = 0
        self.ends = threading.Event()
        self._process, self._number = process, number
        self.client = process.client()
        self.session = self.client.session
        self.client.create(f"/mine-{number}", b"", zk.EPHEMERAL)

    def run(self) -> None:
        count = 0
        while not self.ends.is_set():
            path = f"/{self._number}-{count:06}"
            try:
                answer = self.client.call(zk.CREATE, zk.creation(path, b"x"))
            except (EOFError, OSError):  # whether it was carried out is unknown
                self.client.close()
                until(self._is_back)
                continue
            assert answer.error in (0, zk.NODE_EXISTS)
            self.seen_zxid = max(self.seen_zxid, answer.zxid)
            if not answer.error:
                self.acknowledged[path] = answer.zxid
            count += 1

    def _is_back(self) -> bool:
        try:
            self.client = ZooKeeperClient(
                self._process.address, session=self.session, seen_zxid=self.seen_zxid
            )
        except (EOFError, OSError):
            return False
        return True


def test_no_acknowledged_write_is_lost(tmp_path: Path) -> None:
    with CoordinatorProcess(tmp_path / "tree") as process:
        writers = [Writer(process, number) for number in range(WRITERS)]
        for writer in writers:
            writer.start()
        for _ in range(3):
            before = [len(writer.acknowledged) for writer in writers]
            until(
                lambda b=before: all(
                    len(w.acknowledged) > n + 20 for w, n in zip(writers, b, strict=True)
                ),
                "all go on",
            )
            process.kill()
            process.start()
        for writer in writers:
            writer.ends.set()
        for writer in writers:
            writer.join()
        process.kill()
        process.start()
        with process.client() as client:
            for number, writer in enumerate(writers):
                assert client.stat(f"/mine-{number}").owner == writer.session[0]
                for path, zxid in writer.acknowledged.items():
                    assert client.stat(path).czxid == zxid
                writer.client.close()
        zxids = [zxid for writer in writers for zxid in writer.acknowledged.values()]
        assert len(set(zxids)) == len(zxids)


def test_a_clusters_tree_is_served_and_taken_back(tmp_path: Path) -> None:
    """X-37: one directory, three brokers in one process or a served tree."""
    directory = tmp_path / "coordinator"

    def nodes() -> dict[str, tuple]:
        tree = journal.read_tree(LocalStorage(), str(directory))
        return {path: each.node[:3] for path, each in tree if not each.node.ephemeral_owner}

    epochs = []
    with Cluster(3, tmp_path) as cluster:
        cluster.create_topic("t", 3)
        epochs.append(max(cluster.broker(number).broker_epoch for number in range(3)))
    kept = nodes()
    assert "/brokers/topics/t/partitions/2/state" in kept
    with CoordinatorProcess(directory) as process:
        with process.client() as client:
            assert client.session_id > epochs[0]
            for path, (data, version, czxid) in kept.items():
                stat = client.stat(path)
                assert (client.get(path), stat.version, stat.czxid) == (data, version, czxid)
            assert client.children("/brokers/ids") == []
            client.create("/brokers/ids/7", b"", zk.EPHEMERAL)
            client.create("/served", b"1")
            client.call(zk.SET_DATA, zk.setting("/served", b"2"))
            served = client.stat("/served")
        process.kill()
    with Cluster(3, tmp_path) as cluster:
        cluster.produce("t", b"value")
        epochs.append(min(cluster.broker(number).broker_epoch for number in range(3)))
    kept_again = nodes()
    assert kept_again["/served"] == (b"2", 1, served.czxid)
    assert {path: kept_again[path][2] for path in kept} == {path: kept[path][2] for path in kept}
    assert epochs[1] > served.mzxid > epochs[0]
