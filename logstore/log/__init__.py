"""The log of one partition.

Begin with ``partition_log``: the calls of a user, and the parts that managers and replicas reach
through it. ``writing`` is the way of an append, ``reading`` every way to read, ``maintenance``
removes bytes and closes, ``replica`` has epochs, roles and watermarks. ``core`` is what all parts
share; ``standalone`` is for a log without a manager, and ``moving`` copies one into another
directory. A part changes only what its own lock guards.
"""

from __future__ import annotations

from logstore.kernels import AppendInfo
from logstore.log.core import Background, LogOwner, run_inline
from logstore.log.partition_log import PartitionLog
from logstore.log.reading.fetching import EARLIEST, LATEST, MAX_TIMESTAMP, FetchData

__all__ = [
    "EARLIEST",
    "LATEST",
    "MAX_TIMESTAMP",
    "AppendInfo",
    "Background",
    "FetchData",
    "LogOwner",
    "PartitionLog",
    "listeners",
    "moving",
    "reading",
    "replacing",
    "run_inline",
    "snapshot",
    "writing",
]
