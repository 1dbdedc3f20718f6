"""A source in this process behind sockets, and a mirror of it on a disk in memory."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from checkpoints.types import TopicPartition
from logstore.storage.base import Storage
from logstore.storage.memory import MemoryStorage
from replication.common.config import ReplicationConfig
from replication.decisions.truncation import CONSUMER_RULE
from replication.fetcher import FetcherManager
from replication.mirror import Mirror, MirrorConfig, MirrorReport
from replication.mirror.follower import MirrorFollower
from replication.security.config import client_properties
from replication.server.serving import ServedCluster
from tests.support.fetchers import TP, Stage
from tests.support.scripted_source import header_of, split
from tests.support.served import batch, leader_client, produce
from tests.support.until import patience, until

DIRECTORY = "/mirror"
FOREVER_MS = 1 << 40
SOON = ReplicationConfig(replica_fetch_wait_max_ms=50, replica_fetch_backoff_ms=50)


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
        MirrorConfig(**{"metadata_interval_ms": 500, "replication": SOON, **options}),
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
        offset = header_of(split(data)[-1]).last + 1
    return found


def mirrored_bytes(mirror: Mirror, tp: TopicPartition) -> bytes:
    """As ``source_bytes``; nothing while the mirror has no such log."""
    assert mirror.log_manager is not None
    log = mirror.log_manager.logs.get(tp)
    return b"" if log is None else log_bytes(log)


def caught_up(mirror: Mirror) -> None:
    assert mirror.catch_up(int(patience() * 1000)), mirror.status


def is_stuck(mirror: Mirror) -> bool:
    """Whether a wait that has no end of its own is given up."""
    answers: list[bool] = []
    waiting = threading.Thread(target=lambda: answers.append(mirror.catch_up(FOREVER_MS)))
    waiting.start()
    waiting.join(patience())
    return answers == [False]


def kinds(report: MirrorReport) -> list[str]:
    """What happened, in order."""
    return [event.kind.word for event in report.events]


def reported(mirror: Mirror, word: str) -> Any:
    """The first event of a kind, once there is one."""

    def found() -> Any:
        return next((each for each in mirror.report.events if each.kind.word == word), None)

    return until(found, f"{word} is in the report")


class MirrorStage(Stage):
    """A mirror of one broker's partition, and between them a wire worked by hand."""

    def __init__(self, *, keep_deleted: bool = False, **config: Any) -> None:
        super().__init__(CONSUMER_RULE, **config)
        self.env = replace(self.env, broker_id=-1, broker_epoch=lambda: -1)
        self.manager = FetcherManager(self.env)
        self.storage = self.follower.storage
        self.report = MirrorReport("/logs", self.storage, self.clock)
        self._keep_deleted = keep_deleted

    @property
    def side(self) -> MirrorFollower:
        side = self.follower.partition().follower
        assert isinstance(side, MirrorFollower)
        return side

    def hold(self, *runs: tuple[int, int], tp: TopicPartition = TP, hw: int = 0) -> None:
        super().hold(*runs, tp=tp, hw=hw)
        partition = self.follower.partition(tp)
        partition.follower = MirrorFollower(
            partition, self.report, self.storage, keep_deleted=self._keep_deleted
        )

    def commit(self) -> None:
        """All that the source has is committed."""
        log = self.leader.log()
        log.replica.update_high_watermark(log.log_end_offset)

    def settle(self, limit: int = 100) -> list[Any]:
        self.commit()
        return super().settle(limit)

    @property
    def failure(self) -> Exception | None:
        """Why the partition is not mirrored any more."""
        return self.env.failed.get(TP)

    def events(self) -> list[tuple[str, int, int]]:
        return [(e.kind.word, e.first_offset, e.end_offset) for e in self.report.events]

    def kept(self) -> list[bytes]:
        """The content of the files beside the log that hold what was cut."""
        directory = self.follower.log().directory
        names = [each.name for each in self.storage.scan_dir(directory)]
        return [
            self.storage.read_file(f"{directory}/{name}", 1 << 20)
            for name in sorted(names)
            if name.endswith(".cut")
        ]


def copy_directory(
    kafka: ServedCluster, directory: str, storage: Storage, tp: TopicPartition
) -> None:
    """Copy what a broker has of a partition to `DIRECTORY`, as a user copies it from a disk."""
    source = kafka._storage
    names = [each.name for each in source.scan_dir(directory) if not each.is_dir]
    own = f"{tp.topic}-{tp.partition}"
    names += [f"{own}/{each.name}" for each in source.scan_dir(f"{directory}/{own}")]
    storage.make_dir(f"{DIRECTORY}/{own}")
    for name in names:
        if name == ".lock":
            continue
        data = source.read_file(f"{directory}/{name}", 1 << 30)
        file = storage.open(f"{DIRECTORY}/{name}", create=True)
        file.write_at(0, data)
        file.close()
