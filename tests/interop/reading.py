"""Our reading of a log, in the words of ``kafka_tools.consume``."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import kafka_logs

from logstore import LogConfig, LogManager, Record, TopicPartition
from logstore.format.reader import Batch, iter_batches
from logstore.log import PartitionLog
from logstore.log.reading.fetching import FetchData

RecordFields = dict[str, Any]

CLUSTER_METADATA = "__cluster_metadata-0"
FETCH_BYTES = 20_000
"""Smaller than a segment, larger than a batch: a read ends inside a batch as a rule (F-158)."""

BROKER_CONFIG = LogConfig(
    index_interval_bytes=int(kafka_logs.OVERRIDES["log.index.interval.bytes"]),
    segment_index_bytes=int(kafka_logs.OVERRIDES["log.index.size.max.bytes"]),
    segment_bytes=kafka_logs.SEGMENT_BYTES,
    retention_ms=-1,
)


def open_broker_directory(path: Path) -> LogManager:
    """Open a log directory of ``kafka_logs.build`` as the broker did (F-237)."""
    configs = {
        topic: BROKER_CONFIG.with_properties(config)
        for topic, config in kafka_logs.topic_configs().items()
    }
    internal = LogConfig(cleanup_policy=("compact",))
    configs |= dict.fromkeys(("__consumer_offsets", "__transaction_state"), internal)
    return LogManager([path], BROKER_CONFIG, topic_configs=configs)


def describe(record: Record, batch: Batch, where: TopicPartition) -> RecordFields:
    return {
        "topic": where.topic,
        "partition": where.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "timestampType": str(batch.timestamp_type),
        "key": record.key,
        "value": record.value,
        "headers": list(record.headers),
        "leaderEpoch": None if batch.leader_epoch < 0 else batch.leader_epoch,
    }


def _described(fetched: FetchData, where: TopicPartition) -> list[RecordFields]:
    batches = {
        offset: batch
        for batch in iter_batches(fetched.data)
        for offset in range(batch.base_offset, batch.last_offset + 1)
    }
    return [describe(record, batches[record.offset], where) for record in fetched.records()]


def read_log(log: PartitionLog, *, committed: bool = False) -> list[RecordFields]:
    """Read as a consumer does: one fetch after the other, up to what the isolation level allows."""
    end = log.last_stable_offset if committed else log.high_watermark
    records: list[RecordFields] = []
    offset = log.log_start_offset
    while offset < end:
        up_to = None if committed else log.high_watermark
        fetched = log.read(offset, FETCH_BYTES, up_to=up_to, committed=committed)
        if not fetched.data:
            break  # only offsets without records are left
        records += _described(fetched, log.topic_partition)
        *_, last = iter_batches(fetched.data)
        offset = last.last_offset + 1
    return records


def read_topic(manager: LogManager, topic: str, *, committed: bool = False) -> list[RecordFields]:
    """Read all partitions of a topic, in the order of ``kafka_logs.LogDirectory``."""
    return [
        record
        for where, log in sorted(manager.logs.items())
        if where.topic == topic
        for record in read_log(log, committed=committed)
    ]


def checksums(directory: Path) -> Mapping[str, str]:
    """Return the SHA-256 of every file below ``directory``, by its relative path."""
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def sorted_files(directories: Iterable[Path], *suffixes: str) -> list[Path]:
    return [
        path
        for directory in directories
        for path in sorted(directory.iterdir())
        if path.suffix in suffixes
    ]
