"""Kafka's storage layer as a library: durable logs, byte-compatible with Apache Kafka's files.

Start with ``LogManager`` (several log directories, topics and partitions) or ``PartitionLog``
(one partition). See README.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from checkpoints.types import TopicPartition
    from logstore.common.config import BrokerConfig, LogConfig
    from logstore.common.errors import (
        CorruptBatchError,
        CorruptDataError,
        CorruptIndexError,
        CursorError,
        LogClosedError,
        LogDirLockedError,
        LogstoreError,
        LogTruncatedError,
        LogUnavailableError,
        OffsetOutOfRangeError,
        PartialAppendError,
        RecordRejectedError,
        StorageFailedError,
    )
    from logstore.common.types import Record
    from logstore.common.version import __version__
    from logstore.format.codecs.compression import Compression
    from logstore.kernels import AppendInfo
    from logstore.log import EARLIEST, LATEST, MAX_TIMESTAMP, PartitionLog
    from logstore.log.reading.cursors import Cursor
    from logstore.log.reading.directory_reader import DirectoryReader, follow_directory
    from logstore.log.reading.following import Follower
    from logstore.log.reading.reading import FetchData
    from logstore.log.writing.extending import ExtendInfo
    from logstore.log.writing.producing import LogProducer
    from logstore.manager import LoadProgress, LogManager
    from logstore.recovery import RecoveryOptions, RecoveryReport
    from logstore.segments.producer_state import AppendOrigin

# Where each name lives; imported when first asked for, so that a command starts fast.
_HOMES = {
    "checkpoints.types": ("TopicPartition",),
    "logstore.common.config": ("BrokerConfig", "LogConfig"),
    "logstore.common.errors": (
        "CorruptBatchError",
        "CorruptDataError",
        "CorruptIndexError",
        "CursorError",
        "ForkedError",
        "LogClosedError",
        "LogDirLockedError",
        "LogTruncatedError",
        "LogUnavailableError",
        "LogstoreError",
        "OffsetOutOfRangeError",
        "PartialAppendError",
        "RecordRejectedError",
        "StorageFailedError",
    ),
    "logstore.log.reading.cursors": ("Cursor",),
    "logstore.log.reading.directory_reader": ("DirectoryReader", "follow_directory"),
    "logstore.log.writing.extending": ("ExtendInfo",),
    "logstore.log.reading.following": ("Follower",),
    "logstore.log.writing.producing": ("LogProducer",),
    "logstore.log.reading.reading": ("FetchData",),
    "logstore.format.codecs.compression": ("Compression",),
    "logstore.kernels": ("AppendInfo",),
    "logstore.log": ("EARLIEST", "LATEST", "MAX_TIMESTAMP", "PartitionLog"),
    "logstore.manager": ("LoadProgress", "LogManager"),
    "logstore.segments.producer_state": ("AppendOrigin",),
    "logstore.recovery.recovery": ("RecoveryOptions", "RecoveryReport"),
    "logstore.common.types": ("Record",),
    "logstore.common.version": ("__version__",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from logstore.common import siblings

    value = getattr(siblings.load(_HOME_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__


__all__ = [
    "EARLIEST",
    "LATEST",
    "MAX_TIMESTAMP",
    "AppendInfo",
    "AppendOrigin",
    "BrokerConfig",
    "Compression",
    "CorruptBatchError",
    "CorruptDataError",
    "CorruptIndexError",
    "Cursor",
    "CursorError",
    "DirectoryReader",
    "ExtendInfo",
    "FetchData",
    "Follower",
    "ForkedError",
    "LoadProgress",
    "LogClosedError",
    "LogConfig",
    "LogDirLockedError",
    "LogManager",
    "LogProducer",
    "LogTruncatedError",
    "LogUnavailableError",
    "LogstoreError",
    "OffsetOutOfRangeError",
    "PartialAppendError",
    "PartitionLog",
    "Record",
    "RecordRejectedError",
    "RecoveryOptions",
    "RecoveryReport",
    "StorageFailedError",
    "TopicPartition",
    "__version__",
    "follow_directory",
]
