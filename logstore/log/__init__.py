"""The log of one partition.

In reading order: ``partition_log`` (the facade, made of ``state`` and ``reads``; ``replica`` adds
what managers and replicas need), ``validation`` (which appends are accepted), ``writer`` (appends
and rolls), ``snapshot``, ``readers``, ``reading`` and ``iteration`` (reads), ``flushing`` (what is
durable), ``maintenance`` (truncation, close) and ``retention``.
"""

from __future__ import annotations

from logstore.kernels import AppendInfo
from logstore.log.partition_log import PartitionLog, run_inline
from logstore.log.reading.reading import EARLIEST, LATEST, MAX_TIMESTAMP, FetchData
from logstore.log.replica import ReplicaLog
from logstore.log.writing.flushing import Background

__all__ = [
    "EARLIEST",
    "LATEST",
    "MAX_TIMESTAMP",
    "AppendInfo",
    "Background",
    "FetchData",
    "PartitionLog",
    "ReplicaLog",
    "core",
    "reading",
    "replica",
    "run_inline",
    "upkeep",
    "writing",
]
