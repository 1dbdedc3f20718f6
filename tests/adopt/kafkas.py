"""Releases of Kafka that write directories, each as one broker on loopback."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import kafka_jars
from broker import KafkaBroker
from kazoo.client import KazooClient

from tests.support.until import patience, until
from tests.zookeeper.server import ZooKeeperServer

HEAP = "384m"


class Release(NamedTuple):
    """A Kafka, and who keeps its metadata."""

    pom: Path
    has_zookeeper: bool = False


RELEASES: Mapping[str, Release] = {
    "4.3": Release(kafka_jars.POM),
    "3.9": Release(kafka_jars.BROKER_3_9),
    "3.9-zookeeper": Release(kafka_jars.BROKER_3_9, has_zookeeper=True),
    "2.8": Release(kafka_jars.BROKER_2_8, has_zookeeper=True),
}

SETTINGS: Mapping[str, str | int] = {
    "offsets.topic.num.partitions": 50,
    "transaction.state.log.num.partitions": 50,
    "log.index.size.max.bytes": 1 << 20,  # preallocated indexes of a killed broker are copied
    "log.flush.start.offset.checkpoint.interval.ms": 200,
    "log.initial.task.delay.ms": 200,
    "replica.high.watermark.checkpoint.interval.ms": 500,
    "log.cleaner.backoff.ms": 200,
    "metadata.log.max.record.bytes.between.snapshots": 2_000,
    "internal.metadata.log.segment.bytes": 20_000,
    "broker.session.timeout.ms": 2000,  # a killed broker is missed so long before it may return
    "broker.heartbeat.interval.ms": 300,
}
QUIET: Mapping[str, str | int] = {
    "log.cleaner.enable": "false",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 2**31 - 1,
}
"""Of a broker that is only read: what lies there stays."""


class Node(KafkaBroker):
    """A broker of one release. ``metadata``: where ZooKeeper's files are, beside the directory."""

    def __init__(
        self, release: str, directory: Path, overrides: Mapping[str, str | int] = {}
    ) -> None:
        self.name, self.release = release, RELEASES[release]
        super().__init__(
            directory, overrides={**SETTINGS, **overrides}, heap=HEAP, pom=self.release.pom
        )
        self._zookeeper: ZooKeeperServer | None = None
        self._zookeeper_runs = False
        if self.release.has_zookeeper:
            self._zookeeper = ZooKeeperServer(directory / "zookeeper")

    def properties(self) -> dict[str, str | int]:
        properties = super().properties()
        if self._zookeeper is None:
            return properties
        address = f"PLAINTEXT://{self.bootstrap}"
        kept = {
            name: value
            for name, value in properties.items()
            if not name.startswith(("process.", "node.", "controller.", "listener"))
            and not name.startswith(("advertised.", "share.", "broker.", "metadata."))
        }
        return kept | {
            "broker.id": 1,
            "listeners": address,
            "advertised.listeners": address,
            "zookeeper.connect": self._zookeeper.hosts,
            "zookeeper.session.timeout.ms": 3000,
        }

    def format(self) -> None:
        if self._zookeeper is None:
            super().format()

    def start(self) -> None:
        if self._zookeeper is not None and not self._zookeeper_runs:
            self._zookeeper.start()
            self._zookeeper_runs = True
        if self._zookeeper is not None:
            self._await_expiry(self._zookeeper.hosts)
        super().start()

    @staticmethod
    def _await_expiry(hosts: str) -> None:
        """A killed broker is registered until its session expires; it starts no sooner."""
        client = KazooClient(hosts)
        client.start(patience())
        try:
            until(lambda: client.exists("/brokers/ids/1") is None, "the old session expires")
        finally:
            client.stop()
            client.close()

    def end(self) -> None:
        """Kill what runs, ZooKeeper too."""
        self.kill()
        if self._zookeeper is not None:
            self._zookeeper.kill()
            self._zookeeper_runs = False

    def copied_to(self, directory: Path, overrides: Mapping[str, str | int] = {}) -> Node:
        """The same files elsewhere, for a broker that is not started yet."""
        shutil.copytree(self.directory, directory)
        (directory / "broker.log").unlink(missing_ok=True)
        (directory / "data" / ".lock").unlink(missing_ok=True)
        return Node(self.name, directory, overrides)
