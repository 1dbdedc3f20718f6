"""Brokers of ours and of a real Kafka 3.9 in one cluster, whose tree is in a ZooKeeper."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import kafka_jars
from broker import KafkaBroker
from confluent_kafka import Producer
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from tests.processes.nodes import Node
from tests.support.until import patience, until
from tests.zookeeper.server import ZooKeeperServer

KAFKA, OURS = 1, 2
CHROOT = "mixed"
SESSION_MS = 3000

SETTINGS: Mapping[str, str | int] = {
    "zookeeper.session.timeout.ms": SESSION_MS,
    "offsets.topic.replication.factor": 2,
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.replication.factor": 2,
    "transaction.state.log.min.isr": 1,
    "transaction.state.log.num.partitions": 1,
    "group.initial.rebalance.delay.ms": 0,
    "replica.lag.time.max.ms": 3000,
    "controlled.shutdown.retry.backoff.ms": 300,
    "auto.leader.rebalance.enable": "false",
    "log.retention.ms": -1,
}


class KafkaNode(KafkaBroker):
    """A broker of Kafka 3.9 in ZooKeeper mode."""

    def __init__(
        self,
        broker_id: int,
        directory: Path,
        zookeeper: str,
        settings: Mapping[str, str | int],
        *,
        heap: str = "256m",
        jvm_options: Sequence[str] = kafka_jars.SHORT_JVM,
    ) -> None:
        super().__init__(
            directory,
            overrides=settings,
            heap=heap,
            jvm_options=jvm_options,
            pom=kafka_jars.BROKER_3_9,
        )
        self.broker_id, self._zookeeper = broker_id, zookeeper
        self.ready_lines = (f"[KafkaServer id={broker_id}] started",)

    @property
    def address(self) -> str:
        return self.bootstrap

    def properties(self) -> dict[str, str | int]:
        # As brokers of ours have them in tests: brokers speak by a listener of their own.
        addresses = f"PLAINTEXT://{self.bootstrap},INTERNAL://127.0.0.1:{self._ports[1]}"
        kept = {
            name: value
            for name, value in super().properties().items()
            if not name.startswith(("process.", "node.", "controller.", "listener", "share."))
        }
        return kept | {
            "broker.id": self.broker_id,
            "listeners": addresses,
            "advertised.listeners": addresses,
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INTERNAL:PLAINTEXT",
            "inter.broker.listener.name": "INTERNAL",
            "zookeeper.connect": self._zookeeper,
        }

    def format(self) -> None:
        """A broker in ZooKeeper mode does that itself."""


class MixedCluster:
    """A context manager, which starts ZooKeeper and no broker, and kills all in the end.

    Args:
        kafkas, ours: the ids of the brokers.
    """

    def __init__(
        self,
        directory: Path,
        *,
        kafkas: Collection[int] = (KAFKA,),
        ours: Collection[int] = (OURS,),
    ) -> None:
        self.directory = directory
        self.zookeeper = ZooKeeperServer(directory / "zookeeper")
        self.kafkas: dict[int, KafkaNode] = {}
        self.ours: dict[int, Node] = {}
        self._ids = tuple(kafkas), tuple(ours)
        self._opened = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as opened:
            opened.enter_context(self.zookeeper)
            hosts = f"{self.zookeeper.hosts}/{CHROOT}"
            self.client = KazooClient(self.zookeeper.hosts)
            self.client.start(patience())
            opened.callback(self.client.close)
            opened.callback(self.client.stop)
            self.client.ensure_path(f"/{CHROOT}")
            for broker_id in self._ids[0]:
                node = KafkaNode(broker_id, self.directory / f"kafka-{broker_id}", hosts, SETTINGS)
                self.kafkas[broker_id] = node
                opened.callback(node.kill)
            for broker_id in self._ids[1]:
                directory = self.directory / f"ours-{broker_id}"
                ours = Node(broker_id, directory, f"zookeeper://{hosts}", SETTINGS)
                self.ours[broker_id] = ours
                opened.callback(ours.kill)
            self._opened = opened.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            running = [i for i in (*self.kafkas, *self.ours) if self.runs(i)]
            error.add_note(f"{running} run; what the brokers said is in {self.directory}")
        self._opened.close()

    # -- the tree ----------------------------------------------------------------------------------

    def node(self, path: str) -> Any:
        """What a node holds; None without it."""
        try:
            return json.loads(self.client.get(f"/{CHROOT}{path}")[0])
        except NoNodeError:
            return None

    def state(self, topic: str, partition: int = 0) -> dict[str, Any]:
        return self.node(f"/brokers/topics/{topic}/partitions/{partition}/state") or {}

    @property
    def controller(self) -> int:
        return int((self.node("/controller") or {"brokerid": -1})["brokerid"])

    def until_led(self, topic: str, leader: int, isr: Collection[int], partition: int = 0) -> None:
        def is_so() -> bool:
            state = self.state(topic, partition)
            return state.get("leader") == leader and set(state.get("isr", ())) == set(isr)

        until(is_so, f"{leader} leads {topic}-{partition}, in sync {isr}")

    # -- brokers -----------------------------------------------------------------------------------

    def start(self, broker_id: int) -> None:
        """Start a broker, as soon as the session of its earlier life has ended."""
        path = f"/{CHROOT}/brokers/ids/{broker_id}"
        until(lambda: self.client.exists(path) is None, "the session of a killed broker ends")
        (self.kafkas.get(broker_id) or self.ours[broker_id]).start()

    def runs(self, broker_id: int) -> bool:
        kafka = self.kafkas.get(broker_id)
        return self.ours[broker_id].runs if kafka is None else kafka.running

    def kill(self, broker_id: int) -> None:
        (self.kafkas.get(broker_id) or self.ours[broker_id]).kill()

    def directory_of(self, broker_id: int, topic: str, partition: int = 0) -> Path:
        kafka = self.kafkas.get(broker_id)
        top = self.ours[broker_id].directory if kafka is None else kafka.log_dir
        return top / f"{topic}-{partition}"

    def log_bytes(self, broker_id: int, topic: str, partition: int = 0) -> bytes:
        """The records in the files of a replica."""
        files = sorted(self.directory_of(broker_id, topic, partition).glob("*.log"))
        return b"".join(file.read_bytes() for file in files)

    def until_equal(self, topic: str, partition: int = 0) -> bytes:
        """Wait until all replicas have the same bytes, and return them."""
        replicas = self.node(f"/brokers/topics/{topic}")["partitions"][str(partition)]

        def same() -> bytes:
            first, *others = [self.log_bytes(broker, topic, partition) for broker in replicas]
            return first if all(other == first for other in others) else b""

        return until(same, f"the replicas {replicas} of {topic}-{partition} are equal")

    def address(self, broker_id: int) -> str:
        node = self.kafkas.get(broker_id) or self.ours[broker_id]
        return node.address

    def produce(self, values: Collection[str], *topics: str, at: int, **config: object) -> None:
        """Write by librdkafka to partition 0 of topics, with acks=all, asking one broker first."""
        failures: list[str] = []
        servers = {"bootstrap.servers": self.address(at), "acks": "all", "log_level": 0}
        producer = Producer({**servers, **config})
        for value in values:
            for topic in topics:
                producer.produce(
                    topic,
                    value,
                    partition=0,
                    on_delivery=lambda error, message: (
                        failures.append(str(error)) if error else None
                    ),
                )
        left = producer.flush(patience())
        assert (left, failures) == (0, [])

    @contextmanager
    def asleep(self, broker_id: int) -> Iterator[None]:
        """A broker is stopped by SIGSTOP, and wakes at the end."""
        kafka = self.kafkas.get(broker_id)
        pid = self.ours[broker_id].pid if kafka is None else kafka.pid
        os.kill(pid, signal.SIGSTOP)
        try:
            os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def tool(self, name: str, broker_id: int, *words: str) -> str:
        """What one of Kafka's own tools prints, asked of one broker."""
        told = kafka_jars.run_java(name, "--bootstrap-server", self.address(broker_id), *words)
        return told.stdout
