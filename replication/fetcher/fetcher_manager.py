"""Assigns partitions to fetchers, one for each leader and fetcher id (R-111)."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from checkpoints.types import TopicPartition
from replication.fetcher.fetch_failures import FetcherContext
from replication.fetcher.fetcher import Fetcher
from replication.fetcher.fetcher_state import InitialFetchState


def fetcher_id(tp: TopicPartition, fetchers: int) -> int:
    """Java's ``abs(31 * topic.hashCode() + partition) % fetchers``, in 32-bit arithmetic."""
    value = 0
    units = tp.topic.encode("utf-16-be", "surrogatepass")
    for i in range(0, len(units), 2):
        value = 31 * value + (units[i] << 8 | units[i + 1]) & 0xFFFFFFFF
    value = 31 * value + tp.partition & 0xFFFFFFFF
    signed = value - (1 << 32) if value & 0x80000000 else value
    return (0 if signed == -(1 << 31) else abs(signed)) % fetchers


class FetcherManager:
    """All fetchers of a broker. Call it from any thread that holds no lock of a partition.

    Its lock comes before those of the fetchers. So a consequence of a fetcher's work, such as a
    failed log directory, must stop fetchers from another task.
    """

    def __init__(self, env: FetcherContext) -> None:
        self._env = env
        self._count = env.config.num_replica_fetchers
        self._fetchers: dict[tuple[int, int], Fetcher] = {}
        self._fetcher_of: dict[TopicPartition, Fetcher] = {}
        self._closed_bytes = 0
        self._closed = False
        self._lock = threading.RLock()

    def add_fetchers(
        self, partitions: Mapping[TopicPartition, tuple[int, InitialFetchState]]
    ) -> None:
        """Follow partitions from ``(leader id, where to begin)``, and no longer their previous
        leader.

        After ``close`` nothing is followed, because an order may come late.
        """
        with self._lock:
            if self._closed:
                return
            work: dict[Fetcher, dict[TopicPartition, InitialFetchState]] = {}
            for tp, (leader_id, initial) in partitions.items():
                fetcher = self._fetcher(leader_id, fetcher_id(tp, self._count))
                former = self._fetcher_of.get(tp)
                if former is not None and former is not fetcher:
                    former.remove([tp])
                self._fetcher_of[tp] = fetcher
                work.setdefault(fetcher, {})[tp] = initial
            for fetcher, initials in work.items():
                fetcher.add(initials)

    def _fetcher(self, leader_id: int, number: int) -> Fetcher:
        key = leader_id, number
        if key not in self._fetchers:
            name = f"ReplicaFetcherThread-{number}-{leader_id}"
            self._fetchers[key] = Fetcher(name, leader_id, self._env)
        return self._fetchers[key]

    def is_fetched(self, tp: TopicPartition) -> bool:
        """Whether it was added and not removed since. It may have failed."""
        return tp in self._fetcher_of

    def unanswered_since_ms(self, tp: TopicPartition) -> int | None:
        """Since when its leader does not answer; None if it does, or is not asked."""
        fetcher = self._fetcher_of.get(tp)
        return None if fetcher is None else fetcher.unanswered_since_ms

    def remove_fetchers(self, tps: Iterable[TopicPartition]) -> None:
        """Stop following, and forget failures.

        On return no answer is being applied to them.
        """
        with self._lock:
            work: dict[Fetcher, list[TopicPartition]] = {}
            for tp in tps:
                fetcher = self._fetcher_of.pop(tp, None)
                if fetcher is not None:
                    work.setdefault(fetcher, []).append(tp)
                self._env.failed.pop(tp, None)
            for fetcher, gone in work.items():
                fetcher.remove(gone)
                for tp in gone:  # it may have failed before its removal
                    self._env.failed.pop(tp, None)

    def close_idle(self) -> None:
        """End fetchers without partitions."""
        with self._lock:
            for key, fetcher in list(self._fetchers.items()):
                if not len(fetcher):
                    self._close(key)

    def close(self) -> None:
        """End all fetchers for good. On return nothing is applied any more."""
        with self._lock:
            self._closed = True
            for key in list(self._fetchers):
                self._close(key)
            self._fetcher_of.clear()

    def _close(self, key: tuple[int, int]) -> None:
        fetcher = self._fetchers.pop(key)
        fetcher.close()
        self._closed_bytes += fetcher.bytes

    # -- metrics (R-160 …) ----------------------------------------------

    @property
    def fetchers(self) -> tuple[Fetcher, ...]:
        with self._lock:
            return tuple(self._fetchers.values())

    @property
    def failed_partitions(self) -> Mapping[TopicPartition, Exception]:
        """Partitions that are not fetched until they are added again, and why."""
        return MappingProxyType(self._env.failed)

    @property
    def replication_bytes_in(self) -> int:
        """Bytes that all fetchers appended, ended ones included."""
        with self._lock:
            return self._closed_bytes + sum(f.bytes for f in self._fetchers.values())

    @property
    def max_lag(self) -> int:
        """The lag in records of the partition that is furthest behind."""
        return max((lag for f in self.fetchers for lag in f.lags().values()), default=0)

    @property
    def min_fetch_rate(self) -> float:
        """The requests a second of the slowest fetcher."""
        return min((f.fetch_rate() for f in self.fetchers), default=0.0)

    @property
    def dead_workers(self) -> int:
        return sum(f.dead for f in self.fetchers)
