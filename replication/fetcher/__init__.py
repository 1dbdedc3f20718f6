"""The follower's side: truncate, fetch, append.

``fetcher_manager`` has one ``fetcher`` for each leader. ``fetcher_state`` decides what each
partition needs next. ``fetch_failures`` has the table of reactions to error codes. Logs are
changed through ``FollowerSide`` only, under the fetcher's lock.
"""

from __future__ import annotations

from replication.fetcher.fetcher_manager import FetcherManager
from replication.fetcher.fetcher_state import InitialFetchState

__all__ = [
    "FetcherManager",
    "InitialFetchState",
    "fetch_failures",
    "fetcher_manager",
    "fetcher_state",
]
