"""Compaction keeps the newest record of each key. Kafka's ``LogCleaner``.

In reading order: ``cleanable`` (what may be cleaned, and when: decisions only), ``transactions``
(whose data was aborted), ``cleaner`` (one pass over one log) and ``log_cleaner`` (which log is
next, and what came of it). ``logstore.log.replacing`` replaces segments by a rewritten one.
``logstore.compact_directory`` runs one pass by hand. Nothing here changes a segment in place.
"""

from __future__ import annotations

from logstore.cleaner.cleaner import Cleaner, PassStats
from logstore.cleaner.log_cleaner import CleanerMetrics, LogCleaner, Uncleanable

__all__ = [
    "Cleaner",
    "CleanerMetrics",
    "LogCleaner",
    "PassStats",
    "Uncleanable",
    "cleaner",
    "log_cleaner",
]
