"""``logstore cluster`` with real brokers, over ZooKeeper and over the served tree: no record that
was acknowledged is lost while brokers are killed, restarted, added and removed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import psutil
import pytest

from checkpoints.types import TopicPartition
from replication import Cluster
from replication.admin import AdminClient
from replication.admin.topics import create_topics, delete_topics, describe_configs, overrides
from replication.client import Consumer, Producer
from replication.security.config import client_properties
from replication.supervisor.cluster_file import read_cluster
from replication.supervisor.cluster_state import ask_cluster
from replication.wire.connecting import connect
from tests.support.lanes import missing
from tests.support.until import patience, until
from tests.unit.supervisor.test_children import have_ended
from tests.zookeeper.server import ZooKeeperUnavailable, jars

ROOT = Path(__file__).resolve().parents[2]
# The installed command, also where the installation does not know it yet.
RUN = (
    "import sys; from logstore.cli import main; from replication.cli.cluster import cluster;"
    "main.add_command(cluster); main(['cluster', *sys.argv[1:]])"
)
CONFIG = {
    "default.replication.factor": 3,
    "min.insync.replicas": 2,
    "num.partitions": 3,
    "offsets.topic.replication.factor": 3,
    "offsets.topic.num.partitions": 3,
    "zookeeper.session.timeout.ms": 4000,
    "replica.fetch.backoff.ms": 100,
}
PARTITIONS = 6

pytestmark = [pytest.mark.slow, pytest.mark.essential]


class Supervised:
    """A cluster that runs as a process. Ends with the block, cleanly."""

    def __init__(self, directory: Path, *options: str) -> None:
        self.directory = directory
        self._said = (directory.parent / f"{directory.name}.err").open("a")
        self.process = subprocess.Popen(
            [sys.executable, "-c", RUN, f"--dir={directory}", "--json", *options],
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        self.bootstrap = ""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            said = json.loads(line)
            if "bootstrapServers" in said and "coordinator" in said:
                self.bootstrap = ",".join(said["bootstrapServers"])
                break
        assert self.bootstrap, self.logs
        # Somebody has to read what it says later.
        self._reader = threading.Thread(target=self.process.stdout.read, daemon=True)
        self._reader.start()

    @property
    def logs(self) -> str:
        parts = sorted(self.directory.glob("logs/*.log"))
        return "\n".join(f"{each.name}: {each.read_text()[-3000:]}" for each in parts)

    def ask(self, *arguments: str, code: int | None = 0) -> str:
        """What a command of another shell prints."""
        done = subprocess.run(
            [sys.executable, "-c", RUN, *arguments, f"--dir={self.directory}"],
            capture_output=True,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            timeout=4 * patience(),
            check=False,
        )
        assert code in (None, done.returncode), "\n".join([self.logs, done.stdout, done.stderr])
        return done.stdout

    def begin(self, *arguments: str) -> subprocess.Popen[str]:
        """A command of another shell that goes on."""
        return subprocess.Popen(
            [sys.executable, "-c", RUN, *arguments, f"--dir={self.directory}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )

    @property
    def processes(self) -> dict[str, dict[str, Any]]:
        told = json.loads(self.ask("status", "--json", code=None))
        return {each["name"]: each for each in told["processes"]}

    def until_well(self) -> None:
        plan = read_cluster(str(self.directory))
        assert plan is not None

        def is_well() -> bool:
            view = ask_cluster(plan.brokers)
            unwell = view.under_replicated or view.leaderless
            return not unwell and all(each.is_ready for each in view.brokers)

        until(is_well, "all replicas are in sync")

    def admin(self) -> AdminClient:
        return AdminClient(client_properties({"bootstrap.servers": self.bootstrap}).config)

    def stop(self) -> None:
        children = psutil.Process(self.process.pid).children(recursive=True)
        self.process.terminate()
        assert self.process.wait(4 * patience()) == 0, self.logs
        assert have_ended(children)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *exc: object) -> None:
        try:
            if kind is None and self.process.poll() is None:
                self.stop()
        finally:
            self.process.kill()
            self.process.wait()
            self._reader.join(patience())
            assert self.process.stdout is not None
            self.process.stdout.close()
            self._said.close()


class Load:
    """Records with acks=all to each partition in turn, as long as the block."""

    def __init__(self, cluster: Supervised, topic: str) -> None:
        self.acknowledged: defaultdict[TopicPartition, list[bytes]] = defaultdict(list)
        self.fewest_in_sync = 99
        self._cluster, self._topic = cluster, topic
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=each) for each in (self._work, self._watch)]
        self._error: BaseException | None = None

    def _work(self) -> None:
        try:
            with connect(self._cluster.bootstrap) as client:
                producer = Producer(client, idempotent=True, delivery_timeout_s=patience())
                number = 0
                while not self._stopping.is_set():
                    tp = TopicPartition(self._topic, number % PARTITIONS)
                    value = b"%d" % number
                    producer.send(tp.topic, value, partition=tp.partition)
                    self.acknowledged[tp].append(value)
                    number += 1
                    self._stopping.wait(0.005)
        except BaseException as error:
            self._error = error

    def _watch(self) -> None:
        """The fewest replicas in sync that a leader shows."""
        plan = read_cluster(str(self._cluster.directory))
        assert plan is not None
        while not self._stopping.wait(0.1):
            for each in ask_cluster(plan.brokers).partitions:
                if each.tp.topic == self._topic and each.min_isr:
                    self.fewest_in_sync = min(self.fewest_in_sync, len(each.isr))

    def __enter__(self) -> Self:
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stopping.set()
        for each in self._threads:
            each.join()
        if self._error is not None:
            raise AssertionError(self._cluster.logs) from self._error

    def until_more(self, count: int = 30) -> None:
        goal = self.count + count
        until(lambda: self.count >= goal or self._error, "records are acknowledged")

    @property
    def count(self) -> int:
        return sum(map(len, list(self.acknowledged.values())))

    def check(self) -> None:
        """Each record is there, once and in order."""
        found = read(self._cluster.bootstrap, self._topic)
        assert found == self.acknowledged


def read(bootstrap: str, topic: str) -> dict[TopicPartition, list[bytes]]:
    found: defaultdict[TopicPartition, list[bytes]] = defaultdict(list)
    with connect(bootstrap) as client:
        for tp, record in Consumer(client, client.partitions(topic)).read_to_end(patience()):
            assert record.value is not None
            found[tp].append(record.value)
    return found


def make_topic(cluster: Supervised, topic: str, replicas: int = 3) -> None:
    with cluster.admin() as admin:
        (answer,) = create_topics(
            admin, [topic], partitions=PARTITIONS, replication_factor=replicas
        ).values()
        assert not answer.code, answer
    cluster.until_well()


@contextmanager
def started(directory: Path, engine: str, *options: str) -> Iterator[Supervised]:
    if engine == "zookeeper":
        try:
            jars()
        except ZooKeeperUnavailable as error:
            missing(f"no ZooKeeper: {error}")
    pairs = [f"--config={key}={value}" for key, value in CONFIG.items()]
    with Supervised(directory, f"--engine={engine}", "--listen=127.0.0.1:0", *pairs) as cluster:
        cluster.until_well()
        yield cluster


@pytest.fixture(scope="module", params=["zookeeper", "tree"])
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Supervised]:
    """Each test leaves it whole."""
    with started(tmp_path_factory.mktemp("cluster") / "kafka", request.param) as found:
        yield found


def test_status(cluster: Supervised) -> None:
    lines = cluster.ask("status").splitlines()
    assert "1 server: no redundancy" in lines[0]
    assert lines[1].startswith("controller  broker ")
    for number, line in enumerate(lines[2:5]):
        assert line.startswith(f"broker {number}    ready      pid ")
        assert line.endswith("in sync")
    assert lines[5] == "under-replicated 0   without leader 0   restart now: 0, 1, 2"


def test_a_rolling_restart_under_load(cluster: Supervised) -> None:
    make_topic(cluster, "rolling")
    before = {name: each["pid"] for name, each in cluster.processes.items()}
    with Load(cluster, "rolling") as load:
        load.until_more()
        cluster.ask("restart", "--rolling")
        load.until_more()
    after = {name: each["pid"] for name, each in cluster.processes.items()}
    assert {n for n in after if before[n] != after[n]} == {"broker 0", "broker 1", "broker 2"}
    assert load.fewest_in_sync >= 2
    load.check()


def test_a_restart_that_would_hurt_is_refused(cluster: Supervised) -> None:
    """Two replicas, both of which are needed; a restart may have to wait for ever."""
    make_topic(cluster, "needed", replicas=2)
    before = cluster.processes["broker 0"]["pid"]
    refused = "1 in sync would be left, and min.insync.replicas is 2 with 2 replicas"
    assert refused in cluster.ask("restart", "0", code=1)
    assert refused in cluster.ask("status", "--can-restart", "0", code=1)
    assert cluster.processes["broker 0"]["pid"] == before
    with cluster.admin() as admin:
        assert not delete_topics(admin, ["needed"])["needed"].code
    until(lambda: "may be restarted" in cluster.ask("status", "--can-restart", "0", code=None))


def test_a_broker_is_killed_under_load(cluster: Supervised) -> None:
    make_topic(cluster, "killed")
    with Load(cluster, "killed") as load:
        load.until_more()
        os.kill(cluster.processes["broker 1"]["pid"], signal.SIGKILL)
        assert "exit code" not in cluster.ask("status", "--can-restart", "0", code=None)
        cluster.until_well()
        load.until_more()
    assert cluster.processes["broker 1"]["deaths"] == 1
    load.check()


def test_a_broker_comes_and_goes_under_load(cluster: Supervised) -> None:
    make_topic(cluster, "moved")
    with Load(cluster, "moved") as load:
        load.until_more()
        cluster.ask("add", "3")
        cluster.ask("remove", "1", "--throttle", "50000000")
        load.until_more()
    plan = read_cluster(str(cluster.directory))
    assert plan is not None
    assert [each.broker_id for each in plan.brokers] == [0, 2, 3]
    assert {n for each in ask_cluster(plan.brokers).partitions for n in each.replicas} == {0, 2, 3}
    load.check()
    cluster.ask("add", "1")
    cluster.ask("remove", "3")
    cluster.until_well()
    load.check()


def test_a_remove_that_was_interrupted_goes_on(cluster: Supervised) -> None:
    """The first one is too slow to end."""
    make_topic(cluster, "slow", replicas=2)
    with connect(cluster.bootstrap) as client:
        producer = Producer(client)
        for number in range(PARTITIONS):
            producer.send("slow", b"x" * 500_000, partition=number)
    cluster.ask("add", "3")
    slow = cluster.begin("remove", "0", "--throttle", "1000")
    assert slow.stderr is not None
    assert "have a replica on broker 0" in slow.stderr.readline()
    slow.kill()
    slow.communicate()
    cluster.ask("remove", "0", "--throttle", "100000000")
    found = read(cluster.bootstrap, "slow")
    assert sorted(map(len, found.values())) == [1] * PARTITIONS
    with cluster.admin() as admin:  # any broker is asked, and may not know of it yet
        until(
            lambda: (
                not any(
                    "throttled" in key
                    for key in overrides(describe_configs(admin, ["slow"])["slow"].value)
                )
            ),
            "no throttle is left",
        )
    cluster.ask("add", "0")
    cluster.ask("remove", "3")
    cluster.until_well()


def test_none_outlives_a_supervisor_that_was_killed(tmp_path: Path) -> None:
    with started(tmp_path / "kafka", "tree") as found:
        make_topic(found, "kept")
        with connect(found.bootstrap) as client:
            Producer(client).send("kept", b"value", partition=0)
        children = psutil.Process(found.process.pid).children(recursive=True)
        assert len(children) == 4
        found.process.kill()
        until(lambda: have_ended(children), "all have ended")
        for number in range(3):
            assert (found.directory / f"broker-{number}" / ".kafka_cleanshutdown").exists()
        found.process.wait()
        with Supervised(found.directory) as again:
            assert read(again.bootstrap, "kept") == {TopicPartition("kept", 0): [b"value"]}


def test_a_directory_of_one_process_and_back(tmp_path: Path) -> None:
    directory = tmp_path / "kafka"
    with Cluster(3, directory) as one:
        one.create_topic("orders", 2)
        one.produce("orders", b"first")
    with Supervised(directory, "--listen=127.0.0.1:0") as several:
        plan = read_cluster(str(directory))
        assert plan is not None
        assert plan.engine.name == "tree"
        several.until_well()
        with connect(several.bootstrap) as client:
            Producer(client).send("orders", b"second")
        found = read(several.bootstrap, "orders")
        assert sorted(value for each in found.values() for value in each) == [b"first", b"second"]
    with Cluster(3, directory) as one:
        values = [each.value for records in one.read_all("orders").values() for each in records]
        assert sorted(map(str, values)) == [str(b"first"), str(b"second")]
