"""A real broker with a tier: it copies closed segments there, and deletes its own."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kafka_jars
import kafka_tools
from broker import KafkaBroker
from kafka_tools import CreateTopic, ProduceRecords

from tests.support.until import until

TOPIC = "tiered"
PARTITIONS = 2
OVERRIDES: Mapping[str, str | int] = {
    "remote.log.storage.system.enable": "true",
    "remote.log.storage.manager.class.name": (
        "org.apache.kafka.server.log.remote.storage.LocalTieredStorage"
    ),
    "remote.log.metadata.manager.listener.name": "PLAINTEXT",
    "rlmm.config.remote.log.metadata.topic.num.partitions": 1,
    "rlmm.config.remote.log.metadata.topic.replication.factor": 1,
    "remote.log.manager.task.interval.ms": 500,
    "log.retention.check.interval.ms": 500,
    "log.initial.task.delay.ms": 500,
}
_CONFIGS: Mapping[str, str | int] = {
    "remote.storage.enable": "true",
    "segment.bytes": 1 << 20,  # the smallest that it takes
    "local.retention.bytes": 1,
    "file.delete.delay.ms": 0,
    "index.interval.bytes": 4096,
}


@dataclass(frozen=True, slots=True)
class TieredDirectory:
    """What a broker left, in its log directory and in its tier, and what a consumer read of it."""

    local: Path
    tier: Path
    uncommitted: list[dict[str, Any]]
    committed: list[dict[str, Any]]


def build(directory: Path) -> TieredDirectory:
    """Run a broker until all that is closed is in the tier alone; half a minute."""
    tier = directory / "tier"
    overrides = {**OVERRIDES, "rsm.config.dir": str(tier)}
    broker = KafkaBroker(directory / "broker", overrides=overrides, pom=kafka_jars.TIERED_4_3)
    with broker:
        kafka_tools.produce(broker.bootstrap, CreateTopic(TOPIC, PARTITIONS, _CONFIGS), *_records())
        until(lambda: all(map(_closed_are_gone, _partitions(broker))), "segments are tiered")
        uncommitted = kafka_tools.consume(broker.bootstrap, TOPIC)
        committed = kafka_tools.consume(broker.bootstrap, TOPIC, read_committed=True)
    local = shutil.copytree(broker.log_dir, directory / "local")
    return TieredDirectory(local, tier / "kafka-tiered-storage", uncommitted, committed)


def _records() -> list[ProduceRecords]:
    transactions: dict[str, Any] = {"idempotent": True, "outcomes": "CACCAACC"}
    return [
        ProduceRecords(TOPIC, 3500, value_bytes=2000, headers=True, null_keys=True),
        ProduceRecords(TOPIC, 3500, 1, value_bytes=2000, transactional_id="first", **transactions),
        ProduceRecords(TOPIC, 400, seed=1, idempotent=True, codec="zstd", value_bytes=4000),
        ProduceRecords(
            TOPIC, 400, 1, codec="lz4", seed=2, transactional_id="second", **transactions
        ),
    ]


def _partitions(broker: KafkaBroker) -> list[Path]:
    return [broker.partition_dir(TOPIC, partition) for partition in range(PARTITIONS)]


def _closed_are_gone(partition: Path) -> bool:
    """Whether nothing but a later segment than the first is left."""
    bases = [int(path.stem) for path in partition.glob("*.log")]
    return len(bases) == 1 and bases[0] > 0
