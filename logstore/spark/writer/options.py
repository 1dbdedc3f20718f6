"""Options of ``df.write.format("logstore")``, and the columns of the DataFrame."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from logstore.common.config import MAX_INT, MAX_LONG, LogConfig
from logstore.common.errors import ConfigError
from logstore.format.codecs.compression import Compression
from logstore.format.filenames import validate_topic
from logstore.spark.columns import DEFAULT_COLUMNS
from logstore.spark.options import Options

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_WRITE_ID = re.compile(r"[A-Za-z0-9._-]{0,100}")
_PARTITIONERS = ("murmur2", "murmur3")
_CODECS = tuple(map(str, Compression))
_HEADERS = "array<struct<key:string,value:binary>>"
_COLUMNS = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "topic": ("string",),
    "partition": ("int",),
    "timestamp": ("timestamp",),
    "headers": (_HEADERS,),
}
"""The columns that can be written, and the types that each may have."""
_OF_THE_TARGET = frozenset(DEFAULT_COLUMNS) - _COLUMNS.keys()
"""Columns of reading that the target decides. Spark's own Kafka sink passes over it, too: what
was read is written as it is."""


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The checked options, named as those of reading. Sizes are in bytes."""

    path: str
    write_id: str
    topic: str
    partition_count: int
    partitioner: str
    batch_size: int
    compression_type: str
    leader_epoch: int
    node_id: int
    cluster_id: str
    segment_bytes: int
    index_interval_bytes: int
    message_timestamp_type: str
    commit_timeout_ns: int

    @classmethod
    def from_spark(cls, given: Mapping[str, str]) -> WriteOptions:
        """
        Raises:
            ConfigError: an unknown option, a value out of bounds, no path, or a remote one.
            InvalidTopicError: the topic's name is invalid (F-2).
        """
        options = Options(_without_dots(given))
        parsed = cls(
            path=_local_path(options.text("path")),
            write_id=options.text("writeId"),
            topic=options.text("topic"),
            partition_count=options.integer("numPartitions", 0, 0),
            partitioner=options.choice("partitioner", _PARTITIONERS),
            # Kafka's producers wait for 16 KiB only because they wait at all; a file does not.
            batch_size=options.size("batchSize", "64k", 0, MAX_INT >> 1),
            compression_type=options.choice("compression", _CODECS),
            leader_epoch=options.integer("leaderEpoch", 0, 0),
            node_id=options.integer("brokerId", 0, 0),
            cluster_id=options.text("clusterId"),
            segment_bytes=options.size("segmentBytes", "1g", 14, MAX_INT),
            index_interval_bytes=options.size("indexIntervalBytes", "4k", 0, MAX_INT),
            message_timestamp_type=options.choice("timestampType", ("CreateTime", "LogAppendTime")),
            commit_timeout_ns=options.duration_ns("commitTimeout", "15m"),
        )
        options.refuse_unknown()
        parsed._check()
        return parsed

    def _check(self) -> None:
        if not self.path:
            raise ConfigError("no path: save(path)")
        if self.topic:
            validate_topic(self.topic)
        if not _WRITE_ID.fullmatch(self.write_id):
            raise ConfigError(
                f"option writeId: {self.write_id!r} is not up to 100 of A-Z a-z 0-9 . _ -"
            )
        for name, value in (
            ("numPartitions", self.partition_count),
            ("leaderEpoch", self.leader_epoch),
            ("brokerId", self.node_id),
        ):
            if value > MAX_INT:
                raise ConfigError(f"option {name}: {value} is above {MAX_INT}")

    @property
    def compression(self) -> Compression:
        return Compression.of(self.compression_type)

    @property
    def log_config(self) -> LogConfig:
        return LogConfig(
            segment_bytes=self.segment_bytes,
            # Rows are not in order of time, so rolling by age could make a segment of every batch.
            segment_ms=MAX_LONG,
            retention_ms=-1,  # rows may be of any time
            index_interval_bytes=self.index_interval_bytes,
            max_message_bytes=MAX_INT,
            message_timestamp_type=self.message_timestamp_type,
        )


_KAFKA_NAMES = {
    "batch.size": "batchSize",
    "compression.type": "compression",
    "segment.bytes": "segmentBytes",
    "index.interval.bytes": "indexIntervalBytes",
    "message.timestamp.type": "timestampType",
    "broker.id": "brokerId",
    "cluster.id": "clusterId",
    # as Spark's Kafka sink has a producer's
    "kafka.batch.size": "batchSize",
    "kafka.compression.type": "compression",
}


def _without_dots(given: Mapping[str, str]) -> dict[str, str]:
    """Options by their names here. Kafka's own names are accepted as well.

    Raises:
        ConfigError: one option under both names.
    """
    options: dict[str, str] = {}
    for name, value in given.items():
        known = _KAFKA_NAMES.get(name.lower(), name).lower()
        if known in options:
            raise ConfigError(f"option {name} is given twice, by Kafka's name as well")
        options[known] = value
    return options


def _local_path(path: str) -> str:
    """The path without ``file:``. "" stays, because options may be made by default."""
    scheme, _, _ = path.partition("://")
    if path.startswith("file:"):
        return unquote(urlsplit(path).path)
    if scheme != path:
        raise ConfigError(
            f"{path}: a log directory is written to a file system that the driver and all "
            "executors mount; copy it to an object store afterwards"
        )
    return path


def check_columns(schema: StructType, options: WriteOptions) -> None:
    """
    Raises:
        ConfigError: an unknown column, a wrong type, or no column for value or topic.
    """
    for field in schema.fields:
        found = field.dataType.simpleString()
        if field.name in _OF_THE_TARGET:
            continue
        if field.name not in _COLUMNS:
            raise ConfigError(
                f"column {field.name!r} is not written; known are: {', '.join(_COLUMNS)}. Leave "
                "out with drop() what is not meant for the log"
            )
        if found not in _COLUMNS[field.name]:
            wanted = " or ".join(_COLUMNS[field.name])
            raise ConfigError(f"column {field.name!r} must be {wanted}, not {found}")
    names = set(schema.fieldNames())
    if len(names) != len(schema.fields):
        raise ConfigError(f"two columns of one name: {', '.join(schema.fieldNames())}")
    if "value" not in names:
        raise ConfigError("a column 'value' is needed")
    if "topic" not in names and not options.topic:
        raise ConfigError("a column 'topic' or the option topic is needed")


__all__ = ["WriteOptions", "check_columns"]
