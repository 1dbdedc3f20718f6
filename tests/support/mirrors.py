"""A source in this process behind sockets, and a mirror of it on a disk in memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from checkpoints.types import TopicPartition
from logstore.storage.base import Storage
from logstore.storage.memory import MemoryStorage
from replication.mirror import Mirror, MirrorConfig, MirrorReport
from replication.security.config import client_properties
from replication.server.serving import ServedCluster
from tests.support.served import batch, leader_client, produce
from tests.support.until import until

DIRECTORY = "/mirror"
PATIENCE_MS = 20_000


def mirror_of(
    kafka: ServedCluster | str,
    storage: Storage | None = None,
    *,
    directory: str = DIRECTORY,
    keys: Mapping[str, str] = {},
    **options: Any,
) -> Mirror:
    """A mirror that was not started; ``options`` are those of ``MirrorConfig``."""
    servers = kafka if isinstance(kafka, str) else kafka.bootstrap_servers
    return Mirror(
        client_properties({"bootstrap.servers": servers, **keys}),
        directory,
        MirrorConfig(**{"metadata_interval_ms": 500, **options}),
        storage=MemoryStorage() if storage is None else storage,
    )


def write(kafka: ServedCluster, tp: TopicPartition, *values: bytes, **fields: Any) -> None:
    """One batch for each value."""
    with leader_client(kafka, tp) as client:
        for value in values:
            assert produce(client, tp, batch(value, **fields)).error_code == 0


def source_bytes(kafka: ServedCluster, tp: TopicPartition) -> bytes:
    """The batches of the leader's log."""
    log = kafka.broker(kafka.wait_for_leader(tp)).replica_manager.partition(tp).local_log()
    return log_bytes(log)


def log_bytes(log: Any) -> bytes:
    """The batches of a log, from its start to its end."""
    found, offset = b"", log.log_start_offset
    while offset < log.log_end_offset:
        data = log.read(offset, 1 << 30).data
        found += data
        offset = max(offset, log.segments[-1].base_offset) if not data else _next(data, offset)
    return found


def _next(data: bytes, offset: int) -> int:
    at = 0
    while at < len(data):
        base = int.from_bytes(data[at : at + 8], "big")
        size = 12 + int.from_bytes(data[at + 8 : at + 12], "big")
        offset = base + int.from_bytes(data[at + 23 : at + 27], "big") + 1
        at += size
    return offset


def mirrored_bytes(mirror: Mirror, tp: TopicPartition) -> bytes:
    assert mirror.log_manager is not None
    return log_bytes(mirror.log_manager.get(*tp))


def caught_up(mirror: Mirror) -> None:
    assert mirror.catch_up(PATIENCE_MS), mirror.status


def kinds(report: MirrorReport) -> list[str]:
    """What happened, in order."""
    return [event.kind.word for event in report.events]


def reported(mirror: Mirror, word: str) -> Any:
    """The first event of a kind, once there is one."""

    def found() -> Any:
        return next((each for each in mirror.report.events if each.kind.word == word), None)

    return until(found, f"{word} is in the report")
