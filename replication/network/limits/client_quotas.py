"""How many bytes a second each client may write and read (Kafka's ``ClientQuotaManager``)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import Enum

from logstore.common.config import MAX_LONG
from replication.network.config import NetworkConfig
from replication.network.limits.recent_times import RecentTimes


class Direction(Enum):
    PRODUCE = "produce"
    FETCH = "fetch"


class ClientQuota:
    """The quota of one direction, for each client id. Any thread may call it.

    A client that was quiet for the whole window may send a window's worth at once. What goes beyond
    is owed, and the client is held back until the debt is gone at the rate of its quota.

    Args:
        rate: bytes a second.
        window_ms: what is averaged over.
        now_ms: monotonic.
    """

    def __init__(self, rate: int, window_ms: int, now_ms: Callable[[], int]) -> None:
        self._per_ms = rate / 1000
        self._window_ms = window_ms
        self._now_ms = now_ms
        self._lock = threading.Lock()
        # When each client has paid for everything that it sent so far.
        self._paid_ms = RecentTimes()

    def record(self, client_id: str, size: int) -> int:
        """Count ``size`` bytes. Returns for how many ms the client is to be held back."""
        now_ms = self._now_ms()
        with self._lock:
            quiet_ms = now_ms - self._window_ms
            paid_ms = max(self._paid_ms.get(client_id), quiet_ms) + size / self._per_ms
            self._paid_ms.put(client_id, paid_ms, quiet_ms)
        # A single request holds nobody back for longer than a window.
        return min(max(0, round(paid_ms - now_ms)), self._window_ms)


class ClientQuotas:
    """The quotas of a broker, by direction."""

    def __init__(self, config: NetworkConfig, now_ms: Callable[[], int]) -> None:
        window_ms = (config.quota_window_num - 1) * config.quota_window_size_seconds * 1000
        rates = {
            Direction.PRODUCE: config.quota_producer_default,
            Direction.FETCH: config.quota_consumer_default,
        }
        self._quotas = {
            direction: ClientQuota(rate, window_ms, now_ms)
            for direction, rate in rates.items()
            if rate < MAX_LONG
        }

    def of(self, direction: Direction) -> ClientQuota | None:
        """The quota of a direction; None if it has no bound."""
        return self._quotas.get(direction)
