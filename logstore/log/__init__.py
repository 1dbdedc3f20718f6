"""The log of one partition.

In reading order: ``partition_log`` (the facade), ``validation`` (which appends are accepted),
``writer`` (appends and rolls), ``snapshot``, ``readers``, ``reading`` and ``iteration`` (reads),
``flushing`` (what is durable), ``maintenance`` (truncation, close) and ``retention``.
"""

from __future__ import annotations

from logstore.kernels import AppendInfo
from logstore.log.flushing import Background
from logstore.log.partition_log import PartitionLog, run_inline
from logstore.log.reading import EARLIEST, LATEST, MAX_TIMESTAMP, FetchData

__all__ = [
    "EARLIEST",
    "LATEST",
    "MAX_TIMESTAMP",
    "AppendInfo",
    "Background",
    "FetchData",
    "PartitionLog",
    "run_inline",
]
