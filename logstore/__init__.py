"""Kafka's storage layer as a library: durable logs, byte-compatible with Apache Kafka's files.

Start with ``LogManager`` (several log directories, topics and partitions) or ``PartitionLog``
(one partition). See README.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from checkpoints.types import TopicPartition
    from logstore.config import BrokerConfig, LogConfig
    from logstore.errors import (
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
    from logstore.format.compression import Compression
    from logstore.kernels import AppendInfo
    from logstore.log import EARLIEST, LATEST, MAX_TIMESTAMP, PartitionLog
    from logstore.log.cursors import Cursor
    from logstore.log.directory_reader import DirectoryReader, follow_directory
    from logstore.log.extending import ExtendInfo
    from logstore.log.following import Follower
    from logstore.log.producing import LogProducer
    from logstore.log.reading import FetchData
    from logstore.manager import LoadProgress, LogManager
    from logstore.producer_state import AppendOrigin
    from logstore.recovery import RecoveryOptions, RecoveryReport
    from logstore.types import Record

__version__ = "0.1.0"

# Where each name lives; imported when first asked for, so that a command starts fast.
_HOMES = {
    "checkpoints.types": ("TopicPartition",),
    "logstore.config": ("BrokerConfig", "LogConfig"),
    "logstore.errors": (
        "CorruptBatchError", "CorruptDataError", "CorruptIndexError", "CursorError",
        "LogClosedError", "LogDirLockedError", "LogTruncatedError", "LogUnavailableError",
        "LogstoreError",
        "OffsetOutOfRangeError", "PartialAppendError", "RecordRejectedError", "StorageFailedError",
    ),
    "logstore.log.cursors": ("Cursor",),
    "logstore.log.directory_reader": ("DirectoryReader", "follow_directory"),
    "logstore.log.extending": ("ExtendInfo",),
    "logstore.log.following": ("Follower",),
    "logstore.log.producing": ("LogProducer",),
    "logstore.log.reading": ("FetchData",),
    "logstore.format.compression": ("Compression",),
    "logstore.kernels": ("AppendInfo",),
    "logstore.log": ("EARLIEST", "LATEST", "MAX_TIMESTAMP", "PartitionLog"),
    "logstore.manager": ("LoadProgress", "LogManager"),
    "logstore.producer_state": ("AppendOrigin",),
    "logstore.recovery": ("RecoveryOptions", "RecoveryReport"),
    "logstore.types": ("Record",),
}  # fmt: skip
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from logstore import siblings

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
