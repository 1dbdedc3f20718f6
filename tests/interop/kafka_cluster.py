"""Log directories that three real brokers wrote together: replicas, one of them crashed."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kafka_tools
from broker import KafkaBroker
from kafka_tools import CreateTopic, ProduceRecords

REPLICATED = "replicated"
IN_TRANSACTIONS = "in-transactions"
PARTITIONS = 3
SEGMENT_BYTES = 16 * 1024

_OVERRIDES: dict[str, str | int] = {
    "log.index.interval.bytes": 512,
    "log.index.size.max.bytes": 64 * 1024,
    # A broker that was killed is missed after two seconds, not after nine.
    "broker.session.timeout.ms": 2000,
    "broker.heartbeat.interval.ms": 300,
    # The state of transactions must outlive any broker.
    "transaction.state.log.replication.factor": 3,
    # Checkpoints of the one that is killed are close to what it knew.
    "replica.high.watermark.checkpoint.interval.ms": 200,
    "log.flush.offset.checkpoint.interval.ms": 500,
    "log.initial.task.delay.ms": 200,
}


class ClusterNode(KafkaBroker):
    """One of several brokers; ``controller`` is the one that is their KRaft controller as well.

    Start the controller first and stop it last.
    """

    def __init__(self, directory: Path, node_id: int, controller: ClusterNode | None) -> None:
        super().__init__(directory, overrides=_OVERRIDES, heap="256m")
        self._node_id, self._controller = node_id, controller

    def properties(self) -> dict[str, str | int]:
        own = super().properties() | {"node.id": self._node_id}
        if self._controller is None:
            return own | {"controller.quorum.voters": f"{self._node_id}@{self.quorum_address}"}
        return own | {
            "process.roles": "broker",
            "listeners": f"PLAINTEXT://{self.bootstrap}",
            "controller.quorum.voters": (
                f"{self._controller._node_id}@{self._controller.quorum_address}"
            ),
        }

    @property
    def quorum_address(self) -> str:
        return f"127.0.0.1:{self._ports[1]}"


@dataclass(frozen=True, slots=True)
class ReplicatedDirectories:
    """Log directories of brokers 1, 2 and 3, by number less one, and what a consumer read last.

    Broker 3 was killed half-way, so that it lags and left no marker; the others went on, with
    higher leader epochs, and were stopped. Do not change the files.
    """

    paths: tuple[Path, ...]
    uncommitted: list[dict[str, Any]]


@contextlib.contextmanager
def running(directory: Path) -> Iterator[list[ClusterNode]]:
    """Three brokers; killed, if they still run, in the end."""
    controller = ClusterNode(directory / "broker-1", 1, None)
    nodes = [controller]
    try:
        controller.__enter__()
        nodes += [ClusterNode(directory / f"broker-{n}", n, controller) for n in (2, 3)]
        starting = [threading.Thread(target=node.__enter__) for node in nodes[1:]]
        for thread in starting:
            thread.start()
        for thread in starting:
            thread.join()
        yield nodes
    finally:
        for node in nodes:
            node.kill()


def build(directory: Path, *, count: int = 600) -> ReplicatedDirectories:
    """Run three brokers below ``directory`` and return their log directories; half a minute."""
    configs = {"internal.segment.bytes": SEGMENT_BYTES}
    with running(directory) as nodes:
        first, second, third = nodes
        kafka_tools.produce(
            first.bootstrap,
            CreateTopic(REPLICATED, PARTITIONS, configs, replicas=3),
            CreateTopic(IN_TRANSACTIONS, 1, configs, replicas=3),
            *_records(1, count),
        )
        third.kill()
        kafka_tools.produce(first.bootstrap, *_records(2, count // 2))
        topics = [REPLICATED, IN_TRANSACTIONS]
        records = kafka_tools.consume(first.bootstrap, topics)
        second.stop()
        first.stop()
    return ReplicatedDirectories(tuple(node.log_dir for node in nodes), records)


def _records(seed: int, count: int) -> list[ProduceRecords]:
    start = 1_700_000_000_000 + seed * 100_000_000
    return [
        *(
            ProduceRecords(
                REPLICATED,
                count,
                partition=partition,
                codec=codec,
                seed=seed,
                idempotent=partition == 1,
                timestamp_start=start,
            )
            for partition, codec in zip(range(PARTITIONS), ("none", "zstd", "lz4"), strict=True)
        ),
        ProduceRecords(
            IN_TRANSACTIONS,
            count // 2,
            seed=seed,
            idempotent=True,
            outcomes="CACA",
            transactional_id=f"replicated-{seed}",
            timestamp_start=start,
        ),
    ]
