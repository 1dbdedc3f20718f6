"""Mirrors of real Kafkas: what they hold beside the directories that these wrote."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException, admin

from checkpoints.types import TopicPartition
from logstore.storage.local import LocalStorage
from replication.common.config import ReplicationConfig
from replication.mirror import Mirror
from tests.support.mirrored import batches_of, check_is_run_of
from tests.support.mirrors import mirror_of
from tests.support.scripted_source import header_of
from tests.support.until import patience, until

QUICK = ReplicationConfig(replica_fetch_backoff_ms=100, replica_fetch_wait_max_ms=100)


@contextmanager
def mirroring(
    bootstrap: str,
    directory: Path,
    topics: Sequence[str] = (".*",),
    login: Mapping[str, str] = {},
    **options: Any,
) -> Iterator[Mirror]:
    """``login``: further keys of a client."""
    settings = {"replication": QUICK, "metadata_interval_ms": 200, **options}
    with mirror_of(
        bootstrap,
        LocalStorage(),
        directory=str(directory),
        keys=login,
        topics=tuple(topics),
        **settings,
    ) as mirror:
        mirror.start()
        yield mirror


def create(bootstrap: str, name: str, partitions: int = 1, **config: str | int) -> None:
    client = admin.AdminClient({"bootstrap.servers": bootstrap})
    settings = {key.replace("_", "."): str(value) for key, value in config.items()}
    for made in client.create_topics(
        [admin.NewTopic(name, partitions, 1, config=settings)]
    ).values():
        made.result(patience())


def delete(bootstrap: str, name: str) -> None:
    client = admin.AdminClient({"bootstrap.servers": bootstrap})
    for gone in client.delete_topics([name]).values():
        gone.result(patience())

    def is_gone() -> bool:
        try:
            return name not in client.list_topics(timeout=patience()).topics
        except KafkaException:
            return False

    until(is_gone, f"{name} is deleted")


def partitions_in(directory: Path) -> list[TopicPartition]:
    """Those that have a directory, but for what is set aside or of the metadata."""
    found = []
    for path in sorted(directory.iterdir()):
        topic, _, number = path.name.rpartition("-")
        if path.is_dir() and number.isdecimal() and topic != "__cluster_metadata":
            found.append(TopicPartition(topic, int(number)))
    return found


def compare(mirror: Path, kafka: Path, *, whole: bool = True) -> Mapping[TopicPartition, int]:
    """Batch by batch. Returns how many there are of each partition.

    Args:
        whole: the mirror has to have all that this Kafka holds.
    """
    counts = {}
    for tp in partitions_in(kafka):
        ours, theirs = batches_of(mirror, tp), batches_of(kafka, tp)
        if ours and theirs:  # what the source deleted since may still be here
            start = max(header_of(ours[0]).base, header_of(theirs[0]).base)
            ours = [each for each in ours if header_of(each).base >= start]
            theirs = [each for each in theirs if header_of(each).base >= start]
        if theirs or whole:
            check_is_run_of(ours, theirs, str(tp))
        if whole:
            assert len(ours) == len(theirs), f"{tp}: {len(ours)} of {len(theirs)} batches"
        counts[tp] = len(ours)
    return counts


__all__ = [
    "compare",
    "create",
    "delete",
    "mirroring",
    "partitions_in",
]
