"""The follower's side: truncate, fetch, append.

``fetcher_manager`` has one ``fetcher`` for each leader. ``fetcher_state`` decides what each
partition needs next. ``fetcher_troubles`` has the table of reactions to error codes.
"""

from __future__ import annotations

from replication.fetcher.fetcher_manager import FetcherManager
from replication.fetcher.fetcher_state import InitialFetchState

__all__ = [
    "FetcherManager",
    "InitialFetchState",
    "fetcher_manager",
    "fetcher_state",
    "fetcher_troubles",
]
