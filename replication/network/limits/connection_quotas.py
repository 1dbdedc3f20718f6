"""How many connections there may be, and how fast they come (Kafka's ``ConnectionQuotas``)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from logstore.common.config import MAX_INT
from logstore.common.errors import ConfigError
from replication.network.config import NetworkConfig
from replication.network.limits.recent_times import RecentTimes
from replication.network.metrics import Refusal


class ConnectionQuotas:
    """Counts connections, in all and for each address. From any thread.

    A connection above the bound for all waits in the backlog of the listener until another is
    closed, as in Kafka; one above the bound for its address is closed at once.

    Attributes:
        refused: how many were closed at once; read by anybody.
    """

    def __init__(self, config: NetworkConfig, now_ms: Callable[[], int]) -> None:
        self._max = config.max_connections
        self._max_per_ip = config.max_connections_per_ip
        self._overrides = _parse_overrides(config.max_connections_per_ip_overrides)
        self._rate = config.max_connection_creation_rate
        self._rate_per_ip = config.max_connection_creation_rate_per_ip
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self._total = 0
        self.refused = dict.fromkeys(Refusal, 0)
        # When the next one is due if all come evenly; at most one second in the past, so that a
        # second's worth may come at once after a quiet one.
        self._due_ms = 0.0
        self._due_ms_by_ip = RecentTimes()

    @property
    def total(self) -> int:
        return self._total

    def wait_ms(self) -> int | None:
        """How many ms to accept nothing; None: until a connection is closed."""
        with self._lock:
            if self._total >= self._max:
                return None
            return max(0, round(self._due_ms - self._now_ms()))

    def try_add(self, host: str) -> bool:
        """Count a connection that was accepted; False if its address has too many already, or they
        come too fast.
        """
        with self._lock:
            now_ms = self._now_ms()
            self._due_ms = max(self._due_ms, now_ms - 1000.0) + 1000.0 / self._rate
            count = self._counts.get(host, 0)
            if count >= self._overrides.get(host, self._max_per_ip):
                self.refused[Refusal.TOO_MANY] += 1
                return False
            if self._rate_per_ip < MAX_INT and not self._is_due(host, now_ms):
                self.refused[Refusal.TOO_FAST] += 1
                return False
            self._counts[host] = count + 1
            self._total += 1
            return True

    def _is_due(self, host: str, now_ms: int) -> bool:
        due_ms = self._due_ms_by_ip.get(host)
        if due_ms > now_ms:
            return False
        quiet_ms = now_ms - 1000.0
        next_ms = max(due_ms, quiet_ms) + 1000.0 / self._rate_per_ip
        self._due_ms_by_ip.put(host, next_ms, quiet_ms)
        return True

    def remove(self, host: str) -> None:
        with self._lock:
            self._total -= 1
            count = self._counts[host] - 1
            if count:
                self._counts[host] = count
            else:
                del self._counts[host]


def _parse_overrides(pairs: tuple[str, ...]) -> Mapping[str, int]:
    overrides = {}
    for pair in pairs:
        host, _, count = pair.rpartition(":")
        if not host or not count.isascii() or not count.isdigit():
            raise ConfigError(f"max.connections.per.ip.overrides: {pair!r} is not host:count")
        overrides[host.strip("[]")] = int(count)
    return overrides
