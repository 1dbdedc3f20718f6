"""Opening a log after a clean stop or a crash.

In reading order: ``recovery`` (the steps), ``log_files`` (what lies in the directory),
``replacements`` and ``replaced_list`` (half-finished swaps), ``clean_start`` (what names and
headers prove), ``crash_recovery``, ``set_aside``, ``report``. Batches are
cut by ``set_aside`` alone.
"""

from __future__ import annotations

from logstore.recovery.recovery import (
    DurableNames,
    LoadedLog,
    RecoveryOptions,
    RecoveryReport,
    load_log,
)

__all__ = [
    "DurableNames",
    "LoadedLog",
    "RecoveryOptions",
    "RecoveryReport",
    "load_log",
    "replaced_list",
    "replacements",
    "set_aside",
]
