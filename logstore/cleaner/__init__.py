"""Compaction: of each key the newest record stays. Kafka's ``LogCleaner``.

In reading order: ``cleanable`` (what may be cleaned, and when: decisions only), ``transactions``
(whose data was aborted), ``cleaner`` (one pass over one log), ``log_cleaner`` (which log is next,
and what came of it) and ``directory`` (one pass by hand). How a rewritten segment takes the place
of others is in ``logstore.log.replacing``.
"""

from __future__ import annotations

from logstore.cleaner.cleaner import Cleaner, PassStats
from logstore.cleaner.directory import DirectoryOutcome, PartitionOutcome, compact_directory
from logstore.cleaner.log_cleaner import CleanerMetrics, LogCleaner, Uncleanable

__all__ = [
    "Cleaner",
    "CleanerMetrics",
    "DirectoryOutcome",
    "LogCleaner",
    "PartitionOutcome",
    "PassStats",
    "Uncleanable",
    "compact_directory",
]
