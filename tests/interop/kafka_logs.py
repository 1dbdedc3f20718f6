"""A log directory that a real broker wrote, after a clean stop and after SIGKILL."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kafka_tools
from broker import KafkaBroker
from kafka_tools import CreateTopic, DeleteRecords, ProduceRecords, Step

from tests.support.until import until

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
CLEANER_CHECKPOINT = "cleaner-offset-checkpoint"
COUNT = 1500
"""Records of most topics."""

SEGMENT_BYTES = 32 * 1024
"""Far below the 1 MB that a broker takes from users, so that few records fill many segments."""

COMPACTED = "compacted"
DELETED = "deleted"
TRANSACTIONAL = "transactional"

OVERRIDES: dict[str, str | int] = {
    "log.index.interval.bytes": 512,
    # Preallocated indexes of a killed broker are copied; the default of 10 MB each is slow to.
    "log.index.size.max.bytes": 1024 * 1024,
    "log.cleaner.backoff.ms": 200,
    # A log start offset must reach its checkpoint before the broker is killed, and the first
    # round of periodic tasks would wait for half a minute.
    "log.flush.start.offset.checkpoint.interval.ms": 200,
    "log.initial.task.delay.ms": 200,
}


@dataclass(frozen=True, slots=True)
class LogDirectory:
    """A copy of a broker's log directory, and what a real consumer read before it was taken.

    Records are dicts as ``kafka_tools.consume`` returns them. Do not change the files: the copy
    serves all tests of a session.
    """

    path: Path
    uncommitted: dict[str, list[dict[str, Any]]]
    """Records by topic, read with ``read_uncommitted``."""
    committed: dict[str, list[dict[str, Any]]]
    """Records by topic, read with ``read_committed``."""

    def partition_dir(self, topic: str, partition: int = 0) -> Path:
        return self.path / f"{topic}-{partition}"


@dataclass(frozen=True)
class KafkaDirectory:
    """The same cluster twice; the second time only if it is asked for, since that takes a broker.

    Topics, each with a partition 0: ``codec-none``, ``codec-gzip``, ``codec-snappy``,
    ``codec-lz4``, ``codec-zstd``; ``idempotent``; ``transactional`` (commits, aborts, records
    outside a transaction, one transaction left open, and a partition 1 with aborts only);
    ``headers`` (headers, null keys, null values); ``jitter`` (timestamps out of order);
    ``append-time`` (stamped by the broker); ``compacted`` (cleaned, so that offsets have gaps);
    ``deleted`` (log start offset inside a segment); ``empty`` (never written).
    Transactions and a consumer group fill the internal topics.
    """

    clean: LogDirectory
    """Taken after an orderly stop, with the marker and a producer snapshot at each log's end."""
    _broker: KafkaBroker

    @functools.cached_property
    def killed(self) -> LogDirectory:
        """Taken after a second start, more records in every topic, and SIGKILL.

        Active segments have preallocated indexes that end in zeros, and there may be ``.deleted``
        files of segments below the log start offset.
        """
        broker, later = self._broker, COUNT // 2 + 100
        broker.start()
        try:
            kafka_tools.produce(
                broker.bootstrap, *_records(2, COUNT // 3), DeleteRecords(DELETED, later)
            )
            _wait_until_cleaned(broker)
            _wait_for_log_start(broker, later)
            records = _read(broker)
        finally:
            broker.kill()
        return LogDirectory(
            shutil.copytree(broker.log_dir, broker.directory.parent / "killed"), *records
        )


def _topics() -> list[CreateTopic]:
    small = {"internal.segment.bytes": SEGMENT_BYTES}
    compact = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
    configs: dict[str, dict[str, str | int]] = {
        **{f"codec-{codec}": {} for codec in CODECS},
        "idempotent": {},
        TRANSACTIONAL: {},
        "headers": {},
        "jitter": {},
        "append-time": {"message.timestamp.type": "LogAppendTime"},
        COMPACTED: {**compact, "internal.segment.bytes": SEGMENT_BYTES // 4},
        DELETED: {},
        "empty": {},
    }
    return [
        CreateTopic(topic, 2 if topic == TRANSACTIONAL else 1, {**small, **config})
        for topic, config in configs.items()
    ]


def topic_configs() -> dict[str, dict[str, str | int]]:
    """Return the configs of each topic by Kafka's names, as ``logstore.LogConfig`` takes them."""
    return {
        topic.topic: {
            name.removeprefix("internal."): value for name, value in topic.configs.items()
        }
        for topic in _topics()
    }


def _records(seed: int, count: int) -> list[ProduceRecords]:
    """Return ``count`` records, and for transactions a fraction of it, for every topic."""
    start = 1_700_000_000_000 + seed * 100_000_000

    def records(topic: str, share: float = 1, **fields: Any) -> ProduceRecords:
        return ProduceRecords(topic, int(count * share), seed=seed, timestamp_start=start, **fields)

    return [
        *(records(f"codec-{codec}", codec=codec) for codec in CODECS),
        records("idempotent", idempotent=True),
        records(
            TRANSACTIONAL,
            idempotent=True,
            outcomes="CACCAACC",
            transactional_id=f"first-{seed}",
            codec="lz4",
        ),
        records(TRANSACTIONAL, 0.1),
        records(
            TRANSACTIONAL,
            0.1,
            partition=1,
            idempotent=True,
            outcomes="AA",
            transactional_id=f"aborted-{seed}",
        ),
        records("headers", headers=True, null_keys=True, null_values=True, codec="zstd"),
        records("jitter", timestamp_jitter=60_000),
        records("append-time"),
        records(COMPACTED, null_values=True),
        records(DELETED),
    ]


def _left_open() -> list[Step]:
    """Return a transaction that stays open, and committed records behind its start."""
    return [
        ProduceRecords(
            TRANSACTIONAL,
            60,
            seed=7,
            idempotent=True,
            outcomes="CO",
            transactional_id="left-open",
        ),
        ProduceRecords(
            TRANSACTIONAL,
            60,
            seed=8,
            idempotent=True,
            outcomes="CA",
            transactional_id="behind-the-open-one",
        ),
    ]


def _wait_until_cleaned(broker: KafkaBroker) -> None:
    """Wait until the cleaner has come to the active segment, after which the log stands still."""

    def is_cleaned() -> bool:
        active = max(int(log.stem) for log in broker.partition_dir(COMPACTED).glob("*.log"))
        lines = (broker.log_dir / CLEANER_CHECKPOINT).read_text().splitlines()
        return f"{COMPACTED} 0 {active}" in lines

    until(is_cleaned, f"{COMPACTED} is cleaned")


def _wait_for_log_start(broker: KafkaBroker, offset: int) -> None:
    checkpoint = broker.log_dir / "log-start-offset-checkpoint"
    until(
        lambda: f"{DELETED} 0 {offset}" in checkpoint.read_text().splitlines(),
        f"the log start offset {offset} is in {checkpoint}",
    )


def _by_topic(records: Iterable[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    result: dict[str, list[dict[str, Any]]] = {topic.topic: [] for topic in _topics()}
    for record in records:
        result[record["topic"]].append(record)
    for each in result.values():
        each.sort(key=lambda record: (record["partition"], record["offset"]))
    return result


def _read(
    broker: KafkaBroker,
) -> tuple[dict[str, list[dict[str, Any]]], dict[str, list[dict[str, Any]]]]:
    topics = [topic.topic for topic in _topics()]
    uncommitted = kafka_tools.consume(broker.bootstrap, topics, group="readers")
    committed = kafka_tools.consume(broker.bootstrap, topics, read_committed=True)
    return _by_topic(uncommitted), _by_topic(committed)


def build(directory: Path, more_topics: Sequence[str] = ()) -> KafkaDirectory:
    """Run a broker below ``directory`` and return a copy of what it left; a quarter of a minute.

    Args:
        more_topics: those that a broker on the copy will know of, without records.
    """
    broker = KafkaBroker(directory / "broker", overrides=OVERRIDES)
    with broker:
        kafka_tools.produce(
            broker.bootstrap,
            *_topics(),
            *(CreateTopic(topic) for topic in more_topics),
            *_records(1, COUNT),
            *_left_open(),
            DeleteRecords(DELETED, COUNT // 2),
        )
        _wait_until_cleaned(broker)
        records = _read(broker)
    clean = shutil.copytree(broker.log_dir, directory / "clean")
    return KafkaDirectory(LogDirectory(clean, *records), broker)
