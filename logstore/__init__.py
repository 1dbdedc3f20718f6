"""Kafka's storage layer as a library: durable logs, byte-compatible with Apache Kafka's files.

Start with ``LogManager`` (several log directories, topics and partitions) or ``PartitionLog``
(one partition). See README.md.
"""

from __future__ import annotations

from checkpoints.types import TopicPartition
from logstore.config import BrokerConfig, LogConfig
from logstore.errors import (
    CorruptBatchError,
    CorruptDataError,
    CorruptIndexError,
    LogDirLockedError,
    LogstoreError,
    OffsetOutOfRangeError,
    RecordRejectedError,
    StorageFailedError,
)
from logstore.fetch import FetchData
from logstore.format.compression import Compression
from logstore.kernels import AppendInfo
from logstore.log import EARLIEST, LATEST, MAX_TIMESTAMP, PartitionLog
from logstore.log_manager import LoadProgress, LogManager
from logstore.producer_state import AppendOrigin
from logstore.recovery import RecoveryOptions, RecoveryReport
from logstore.types import Record

__version__ = "0.1.0"

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
    "FetchData",
    "LoadProgress",
    "LogConfig",
    "LogDirLockedError",
    "LogManager",
    "LogstoreError",
    "OffsetOutOfRangeError",
    "PartitionLog",
    "Record",
    "RecordRejectedError",
    "RecoveryOptions",
    "RecoveryReport",
    "StorageFailedError",
    "TopicPartition",
    "__version__",
]
