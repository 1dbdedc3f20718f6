"""What tests of the engine build again and again: a disk with one partition, and batches for it."""

from __future__ import annotations

import os
from dataclasses import fields
from typing import Any

from logstore.common.config import LogConfig
from logstore.common.types import Record
from logstore.format.batch import BatchFields, encode_batch, end_transaction_marker
from logstore.format.control import ControlType
from logstore.log import LogOwner, PartitionLog
from logstore.testing import FaultyStorage, ManualClock

NOW = ManualClock().wall_ms()
OF_OWNERS = tuple(field.name for field in fields(LogOwner))
VALUE = bytes(50)
PAIR = 175
"""Bytes of a batch of two records with ``VALUE`` (F-134)."""


def batch(
    base_offset: int = 0,
    count: int = 1,
    *,
    timestamp: int = NOW,
    value: bytes = VALUE,
    key: bytes | None = None,
    epoch: int = 0,
    **fields: Any,
) -> bytes:
    """Bytes of one batch of equal records; ``fields`` as in ``BatchFields``."""
    header: BatchFields = {"base_offset": base_offset, "leader_epoch": epoch, **fields}  # type: ignore[typeddict-item]
    return bytes(encode_batch([(key, value, timestamp)] * count, **header))


def marker(
    *,
    commit: bool,
    producer_id: int = 1,
    producer_epoch: int = 0,
    coordinator_epoch: int = 0,
    base_offset: int = 0,
    timestamp: int = NOW,
) -> bytes:
    """Bytes of an end-transaction marker of leader epoch 0."""
    return bytes(
        end_transaction_marker(
            ControlType.COMMIT if commit else ControlType.ABORT,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            coordinator_epoch=coordinator_epoch,
            timestamp=timestamp,
            base_offset=base_offset,
            leader_epoch=0,
        )
    )


def produced(
    producer_id: int = 1,
    sequence: int = 0,
    count: int = 1,
    *,
    producer_epoch: int = 0,
    transactional: bool = False,
    base_offset: int = 0,
    timestamp: int = NOW,
    value: bytes = VALUE,
) -> bytes:
    """Bytes of a batch of an idempotent or transactional producer."""
    return batch(
        base_offset,
        count,
        timestamp=timestamp,
        value=value,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=sequence,
        transactional=transactional,
    )


def log_config(**changes: Any) -> LogConfig:
    """Small indexes, because a file in memory takes as much room as its mapping, and no retention
    by time, because records here are as old as a test likes."""
    return LogConfig(**{"segment_index_bytes": 1200, "retention_ms": -1, **changes})


class Disk:
    """A disk in memory with one partition directory, opened as often as a test likes."""

    def __init__(self, **config: Any) -> None:
        self.clock = ManualClock()
        self.storage = FaultyStorage(clock=lambda: self.clock.wall_ms() / 1000)
        self.config = log_config(**config)
        self.directory = "/logs/topic-0"
        self.storage.make_dir(self.directory)
        for parent in ("/", "/logs"):
            self.storage.sync_dir(parent)

    def open(self, **arguments: Any) -> PartitionLog:
        """See ``PartitionLog.open`` and ``LogOwner``; recovers unless told ``clean_shutdown=True``.

        Producers expire as those of a manager do.
        """
        own = {name: arguments.pop(name) for name in OF_OWNERS if name in arguments}
        owner = {"clean_shutdown": False, "producer_id_expiration_ms": 86_400_000, **own}
        return PartitionLog.open(
            self.directory,
            arguments.pop("config", self.config),
            storage=self.storage,
            clock=self.clock,
            owner=LogOwner(**owner),
            **arguments,
        )

    def path(self, name: str) -> str:
        return os.path.join(self.directory, name)

    def names(self, suffix: str = "") -> list[str]:
        return [f.name for f in self.storage.scan_dir(self.directory) if f.name.endswith(suffix)]

    def bases(self, suffix: str) -> list[int]:
        """Offsets in the names of all files with a suffix."""
        return [int(name.partition(".")[0]) for name in self.names(suffix)]

    def read(self, name: str) -> bytes:
        return self.storage.read_file(self.path(name))

    def write(self, name: str, data: bytes) -> None:
        self.storage.write_file(self.path(name), data)

    def remove(self, *names: str) -> None:
        for name in names:
            self.storage.remove(self.path(name))

    def remove_all(self, suffix: str) -> None:
        self.remove(*self.names(suffix))

    def files(self) -> dict[str, bytes]:
        return {name: self.read(name) for name in self.names()}


def file_name(base_offset: int, suffix: str) -> str:
    return f"{base_offset:020d}{suffix}"


def offsets(records: list[Record]) -> list[int]:
    return [record.offset for record in records]


def all_offsets(log: PartitionLog) -> list[int]:
    return [record.offset for record in log.records()]
