"""What ``df.write.format("logstore")`` takes: the options, and the columns of the DataFrame."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from logstore.config import MAX_INT, MAX_LONG, LogConfig, Properties, kafka_key
from logstore.errors import ConfigError
from logstore.format.compression import Compression
from logstore.format.filenames import validate_topic
from logstore.partitioner import partitioner

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_WRITE_ID = re.compile(r"[A-Za-z0-9._-]{0,100}")
_HEADERS = "array<struct<key:string,value:binary>>"
_COLUMNS = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "topic": ("string",),
    "partition": ("int",),
    "timestamp": ("timestamp",),
    "headers": (_HEADERS,),
}
"""The columns that are written, and the types each may have."""


@dataclass(frozen=True, slots=True)
class WriteOptions(Properties):
    """The options, checked. Sizes are in bytes; names with dots are Kafka's own."""

    path: str = kafka_key("path", "")
    write_id: str = kafka_key("writeId", "")
    topic: str = kafka_key("topic", "")
    partition_count: int = kafka_key("numPartitions", 0, 0, MAX_INT)
    partitioner: str = kafka_key("partitioner", "murmur2")
    # Kafka's producers wait for 16 KiB only because they wait at all; a file does not.
    batch_size: int = kafka_key("batch.size", 64 << 10, 0, MAX_INT >> 1)
    compression_type: str = kafka_key("compression.type", "none")
    leader_epoch: int = kafka_key("leaderEpoch", 0, 0, MAX_INT)
    node_id: int = kafka_key("broker.id", 0, 0, MAX_INT)
    cluster_id: str = kafka_key("cluster.id", "")
    segment_bytes: int = kafka_key("segment.bytes", 1 << 30, 14, MAX_INT)
    index_interval_bytes: int = kafka_key("index.interval.bytes", 4096, 0, MAX_INT)
    message_timestamp_type: str = kafka_key("message.timestamp.type", "CreateTime")

    @classmethod
    def from_spark(cls, options: Mapping[str, str]) -> WriteOptions:
        """
        Raises:
            ConfigError: an unknown option, a value out of bounds, no path, or a remote one.
            InvalidTopicError: the topic's name breaks F-2.
        """
        known = {f.metadata["key"].lower(): f.metadata["key"] for f in fields(cls)}
        for name in options:
            if name.lower() not in known:
                listed = ", ".join(known.values())
                raise ConfigError(f"unknown option {name!r} of a write; known are: {listed}")
        return cls.from_properties({known[k.lower()]: v for k, v in options.items()})

    def __post_init__(self) -> None:
        self._check()
        object.__setattr__(self, "path", _local_path(self.path))
        if self.topic:
            validate_topic(self.topic)
        if not _WRITE_ID.fullmatch(self.write_id):
            raise ConfigError(f"writeId: {self.write_id!r} is not up to 100 of A-Z a-z 0-9 . _ -")
        partitioner(self.partitioner)
        try:
            self.compression  # noqa: B018 (looked up to be checked)
        except ValueError as error:
            raise ConfigError(f"compression.type: {error}") from None
        self.log_config  # noqa: B018 (as above)

    @property
    def compression(self) -> Compression:
        return Compression.of(self.compression_type)

    @property
    def log_config(self) -> LogConfig:
        return LogConfig(
            segment_bytes=self.segment_bytes,
            # Rows come in no order of time: rolling by age would make a segment of every batch.
            segment_ms=MAX_LONG,
            retention_ms=-1,  # rows may be of any time
            index_interval_bytes=self.index_interval_bytes,
            max_message_bytes=MAX_INT,
            message_timestamp_type=self.message_timestamp_type,
        )


def _local_path(path: str) -> str:
    """The path without ``file:``; "" stays: options are made by default too."""
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
        ConfigError: a column that is not known or has another type, no value, or no topic.
    """
    for field in schema.fields:
        found = field.dataType.simpleString()
        if field.name not in _COLUMNS:
            raise ConfigError(
                f"column {field.name!r} is not written; known are: {', '.join(_COLUMNS)}. Offsets "
                "are given anew; leave out with drop() what is not meant for the log"
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
