"""Two clusters of three broker processes each, with trees in one ZooKeeper: ours, and Kafka 3.9."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mixed_cluster  # of tests/interop
from kazoo.client import KazooClient
from server_peers import CREATE_VERSION, KAFKA_JVM, PRODUCE_VERSION, RawClient, cpu_seconds
from server_peers import METADATA_VERSION as VERSION

from logstore.format.batch import encode_batch
from replication.protocol import ApiKey
from replication.protocol import messages as wire
from tests.processes.nodes import Node
from tests.zookeeper.server import ZooKeeperServer

IDS = (1, 2, 3)
WAIT_S = 180
SETTINGS: Mapping[str, str | int] = {
    **mixed_cluster.SETTINGS,
    "offsets.topic.replication.factor": 3,
    "min.insync.replicas": 2,
    "replica.lag.time.max.ms": 30_000,  # Kafka's
    "log.cleaner.enable": "false",
}
Leaders = dict[int, dict[str, list[int]]]  # partitions by leader and topic


@dataclass(frozen=True)
class ProcessCluster:
    """Three brokers that run.

    Attributes:
        nodes: by broker id; they have ``address``, ``pid``, ``start`` and ``kill``.
        tree: what they keep in ZooKeeper, from their root.
    """

    name: str
    nodes: Mapping[int, Any]
    tree: KazooClient

    def port(self, broker_id: int) -> int:
        return int(self.nodes[broker_id].address.rpartition(":")[2])

    def pid(self, broker_id: int) -> int:
        return int(self.nodes[broker_id].pid)

    def cpu(self, broker_ids: Collection[int] = IDS) -> float:
        return sum(cpu_seconds(self.pid(each)) for each in broker_ids)

    @property
    def bootstrap(self) -> str:
        return ",".join(node.address for node in self.nodes.values())

    @property
    def controller(self) -> int:
        return int(json.loads(self.tree.get("/controller")[0])["brokerid"])

    def start_all(self) -> None:
        """Start all at once, and wait until each serves."""
        for node in self.nodes.values():
            if isinstance(node, Node):
                node.launch()
        waiting = [
            threading.Thread(target=lambda n=n: n.wait_for(lambda: n.ready, "it is in the cluster"))
            if isinstance(n, Node)
            else threading.Thread(target=n.start)
            for n in self.nodes.values()
        ]
        for thread in waiting:
            thread.start()
        for thread in waiting:
            thread.join()

    def kill_all(self) -> None:
        for node in self.nodes.values():
            node.kill()

    def until_missed(self) -> None:
        """Until the sessions of killed brokers have ended: a Kafka does not start before."""
        wait_until(lambda: not self.tree.get_children("/brokers/ids"), "all sessions end")

    # -- topics --------------------------------------------------------------------------------

    def ask(self, broker_id: int, key: ApiKey, version: int, message: Any) -> Any:
        with RawClient(self.port(broker_id)) as client:
            return client.ask(key, version, message)

    def create_topic(
        self,
        topic: str,
        assignment: Sequence[Sequence[int]],
        config: Mapping[str, object] | None = None,
    ) -> None:
        """Create a topic, and wait until all replicas are in sync and leaders serve."""
        kind = wire.CreateTopicsRequest
        made = kind.CreatableTopic(
            topic,
            -1,
            -1,
            tuple(
                kind.CreatableReplicaAssignment(at, (*ids,)) for at, ids in enumerate(assignment)
            ),
            tuple(kind.CreatableTopicConfig(key, str(v)) for key, v in (config or {}).items()),
        )
        request = kind((made,), 60_000)
        answer = self.ask(self.controller, ApiKey.CREATE_TOPICS, CREATE_VERSION, request)
        assert answer.topics[0].error_code in (0, 7), answer  # 7: it goes on after the time given
        self.until_in_sync([topic], len(assignment[0]))
        # The controller's metadata may name a leader that has not heard of it yet.
        wait_until(lambda: not self.count_records([topic]), f"{topic} is led")

    def topics(self, names: Iterable[str], at: int | None = None) -> Sequence[Any]:
        """Of the metadata, as a broker that lives has them."""
        kind = wire.MetadataRequest
        request = kind(tuple(kind.MetadataRequestTopic(name=name) for name in names))
        asked = self.controller if at is None else at
        found = self.ask(asked, ApiKey.METADATA, VERSION, request).topics
        assert isinstance(found, tuple)
        return found

    def until_in_sync(self, topics: Sequence[str], replicas: int, at: int | None = None) -> None:
        def in_sync() -> bool:
            found = self.topics(topics, at)
            return all(topic.partitions for topic in found) and all(
                len(part.isr_nodes) == replicas for topic in found for part in topic.partitions
            )

        wait_until(in_sync, f"{topics} have {replicas} replicas in sync")

    def leaders(self, topics: Sequence[str], at: int | None = None) -> Leaders:
        """Once all are led, or by a dead broker that nobody misses yet."""
        found: Leaders = {}
        wait_until(lambda: -1 not in self._leaders(found, topics, at), f"{topics} are led")
        return found

    def _leaders(self, found: Leaders, topics: Sequence[str], at: int | None) -> Leaders:
        found.clear()
        for topic in self.topics(topics, at):
            for part in topic.partitions:
                parts = found.setdefault(part.leader_id, {}).setdefault(topic.name, [])
                parts.append(part.partition_index)
        return found

    def isr(self, topic: str) -> set[int]:
        return set(
            json.loads(self.tree.get(f"/brokers/topics/{topic}/partitions/0/state")[0])["isr"]
        )

    def reassign(self, topic: str, replicas: Sequence[int]) -> None:
        """Give partition 0 other replicas; wait until that is so."""
        kind = wire.AlterPartitionReassignmentsRequest
        part = kind.ReassignablePartition(0, (*replicas,))
        request = kind(60_000, topics=(kind.ReassignableTopic(topic, (part,)),))
        key = ApiKey.ALTER_PARTITION_REASSIGNMENTS
        answer = self.ask(self.controller, key, 0, request)
        assert not answer.error_code, answer
        assert not answer.responses[0].partitions[0].error_code, answer
        wait_until(lambda: self.isr(topic) == set(replicas), f"{topic} has {replicas}")

    def produce_to_all(self, topics: Sequence[str], value: bytes, at: int | None = None) -> int:
        """Write one record to each partition, with acks=all. Returns how many."""
        kind = wire.ProduceRequest
        produced = kind.TopicProduceData
        batch = bytes(encode_batch([(None, value, time.time_ns() // 1_000_000)]))
        count = 0
        for leader, parts in self.leaders(topics, at).items():
            with RawClient(self.port(leader)) as client:
                for topic, numbers in parts.items():
                    for start in range(0, len(numbers), 100):
                        piece = numbers[start : start + 100]
                        data = tuple(kind.PartitionProduceData(each, batch) for each in piece)
                        request = kind(None, -1, 5000, (produced(topic, partition_data=data),))
                        answer = client.ask(ApiKey.PRODUCE, PRODUCE_VERSION, request)
                        told = answer.responses[0].partition_responses
                        assert len(told) == len(piece), answer
                        assert not any(each.error_code for each in told), answer
                        count += len(told)
        return count

    def count_records(self, topics: Sequence[str], at: int | None = None) -> int:
        """By the ends of all partitions, as consumers see them."""
        kind = wire.ListOffsetsRequest
        count = 0
        for leader, parts in self.leaders(topics, at).items():
            asked = tuple(
                kind.ListOffsetsTopic(
                    topic,
                    tuple(kind.ListOffsetsPartition(each, timestamp=-1) for each in numbers),
                )
                for topic, numbers in parts.items()
            )
            answer = self.ask(leader, ApiKey.LIST_OFFSETS, 5, kind(-1, 0, asked))
            told = [part for topic in answer.topics for part in topic.partitions]
            assert not any(each.error_code for each in told), answer
            count += sum(each.offset for each in told)
        return count


def wait_until(condition: Any, what: str, pause_s: float = 0.02) -> None:
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            if condition():
                return
        except (OSError, AssertionError):
            if time.monotonic() > deadline:
                raise
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(pause_s)


@contextmanager
def clusters(directory: Path) -> Iterator[list[ProcessCluster]]:
    """Ours and Kafka's; killed in the end."""
    with ExitStack() as opened:
        zookeeper = opened.enter_context(ZooKeeperServer(directory / "zookeeper"))
        found = []
        for name in ("logstore", "Kafka"):
            hosts = f"{zookeeper.hosts}/{name}"
            tree = KazooClient(zookeeper.hosts)
            tree.start(WAIT_S)
            opened.callback(tree.close)
            opened.callback(tree.stop)
            tree.ensure_path(f"/{name}")
            tree.chroot = f"/{name}"
            nodes: dict[int, Any] = {}
            for broker_id in IDS:
                where = directory / name / f"broker-{broker_id}"
                if name == "logstore":
                    nodes[broker_id] = Node(broker_id, where, f"zookeeper://{hosts}", SETTINGS)
                else:
                    nodes[broker_id] = mixed_cluster.KafkaNode(
                        broker_id, where, hosts, SETTINGS, heap="1g", jvm_options=KAFKA_JVM
                    )
            cluster = ProcessCluster(name, nodes, tree)
            opened.callback(cluster.kill_all)
            cluster.start_all()
            found.append(cluster)
        yield found
