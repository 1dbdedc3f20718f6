"""One pass by hand over the compacted topics of a log directory that is not in use."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from logstore.cleaner.cleaner import PassStats
from logstore.common.clock import Clock
from logstore.common.config import BrokerConfig, LogConfig
from logstore.common.errors import LogstoreError, UnknownTopicOrPartitionError
from logstore.common.types import TopicPartition
from logstore.log import PartitionLog
from logstore.manager.manager import LogManager
from logstore.manager.opener import ManagerOwner
from logstore.storage.base import Storage
from logstore.storage.local import LocalStorage
from logstore.storage.overlay import OverlayStorage


@dataclass(frozen=True, slots=True)
class PartitionOutcome:
    """The outcome of a pass over one partition, and the ``error`` if it did not finish.

    ``stopped_by`` says why it did not go beyond ``stats.end_offset``.
    """

    partition: TopicPartition
    stats: PassStats
    log_start_offset: int
    log_end_offset: int
    size_before: int
    size_after: int
    stopped_by: str
    error: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            "topic": self.partition.topic,
            "partition": self.partition.partition,
            "logStartOffset": self.log_start_offset,
            "logEndOffset": self.log_end_offset,
            "sizeBefore": self.size_before,
            "sizeAfter": self.size_after,
            "stoppedBy": self.stopped_by,
            "error": self.error,
            **{_camel(name): value for name, value in self.stats.to_dict().items()},
        }


@dataclass(slots=True)
class DirectoryOutcome:
    """The outcome for each partition to compact, in order, and why others are left out.

    Attributes:
        unavailable: why logs cannot be opened.
        not_compacted: topics whose configuration says that they are not compacted.
        unknown: topics without a stored configuration, which nobody named. That may be a topic of
            defaults, or one of a directory of Kafka, which keeps configurations elsewhere.
    """

    partitions: list[PartitionOutcome] = field(default_factory=list)
    unavailable: dict[TopicPartition, str] = field(default_factory=dict)
    not_compacted: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return {
            "partitions": [outcome.to_dict() for outcome in self.partitions],
            "unavailable": {str(tp): why for tp, why in self.unavailable.items()},
            "notCompacted": self.not_compacted,
            "unknown": self.unknown,
        }


def compact_directory(
    path: str | os.PathLike[str],
    *,
    topics: Iterable[str] | None = None,
    dry_run: bool = False,
    config: Mapping[str, object] | None = None,
    clock: Clock | None = None,
    storage: Storage | None = None,
    progress: Callable[[str], None] | None = None,
) -> DirectoryOutcome:
    """Clean everything that may be cleaned, whatever the dirty ratio.

    The progress is written to ``cleaner-offset-checkpoint``, and the directory is then closed
    cleanly.

    Args:
        topics: by default all whose stored ``cleanup.policy`` has ``compact``. A named topic is
            compacted whatever its policy is.
        dry_run: work on an overlay in memory, and change nothing on the disk.
        config: Kafka keys for this pass, of topics (``delete.retention.ms``) and of brokers
            (``log.cleaner.dedupe.buffer.size``), over what is stored.
        clock: the time for delete horizons and lags.
        progress: called with a line for each partition, before it is worked on.
    Raises:
        LogDirLockedError: the directory is in use.
        UnknownTopicOrPartitionError: a named topic does not exist.
        ConfigError: an unknown key, or a value outside its bounds.
        StorageFailedError: the directory could not be opened.
    """
    broker_config, topic_keys = _split(config or {})
    real = storage or LocalStorage()
    used: Any = OverlayStorage(real) if dry_run else real
    outcome = DirectoryOutcome()
    with LogManager(
        [os.fspath(path)],
        broker_config=broker_config,
        storage=used,
        clock=clock,
        background=False,
        owner=ManagerOwner(keep_high_watermarks=True),
    ) as manager:
        outcome.unavailable = {
            tp: error.reason for tp, error in sorted(manager.unavailable_logs.items())
        }
        wanted = _wanted(manager, path, topics, outcome)
        for tp, log in sorted(manager.logs.items()):
            if tp.topic in wanted:
                if progress is not None:
                    progress(f"{tp}: {log.size:,} bytes")
                log.reconfigure(_for_pass(log.config, topic_keys))
                outcome.partitions.append(_compact(manager, tp, log))
    return outcome


def _wanted(
    manager: LogManager,
    path: str | os.PathLike[str],
    topics: Iterable[str] | None,
    outcome: DirectoryOutcome,
) -> set[str]:
    """The topics to compact; the others are noted.

    Raises:
        UnknownTopicOrPartitionError: a named topic does not exist.
    """
    present = manager.topics()
    if topics is not None:
        for topic in sorted(named := set(topics)):
            if topic not in present:
                raise UnknownTopicOrPartitionError(f"topic {topic!r} is not in {path}")
        return named
    wanted = {topic for topic in present if manager.topic_config(topic).compact}
    for topic in sorted(present.keys() - wanted):
        known = manager.has_stored_config(topic)
        (outcome.not_compacted if known else outcome.unknown).append(topic)
    return wanted


def _compact(manager: LogManager, tp: TopicPartition, log: PartitionLog) -> PartitionOutcome:
    before = log.size
    stats, stopped_by, error = PassStats(), "", None
    try:
        done = manager.cleaner.clean_by_hand(tp)
        stats, stopped_by = done.stats, done.to_clean.stopped_by
    except (LogstoreError, OSError, MemoryError) as failure:
        error = str(failure)
    return PartitionOutcome(
        tp,
        stats,
        log.log_start_offset,
        log.log_end_offset,
        before,
        log.size,
        "the offset map was full" if stats.map_full else stopped_by,
        error,
    )


def _for_pass(config: LogConfig, keys: Mapping[str, object]) -> LogConfig:
    changed = config.with_properties(keys)
    if changed.compact:
        return changed
    policy = (*changed.cleanup_policy, "compact")
    return changed.with_properties({"cleanup.policy": policy})


def _split(config: Mapping[str, object]) -> tuple[BrokerConfig, dict[str, object]]:
    topic_keys = LogConfig().to_properties().keys()
    broker = {key: value for key, value in config.items() if key not in topic_keys}
    return BrokerConfig.from_properties(broker), {
        key: value for key, value in config.items() if key in topic_keys
    }


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)
