"""Claims on topic names, so that only one thread creates, changes or deletes their logs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from logstore.common.errors import LogClosedError
from logstore.common.forks import Ownership
from logstore.common.locks import Lock, Rank, make_lock


class _Claim:
    """A topic, or one of its partitions. Its lock is held as long as the claim."""

    def __init__(self, topic: str, partition: int | None) -> None:
        self.topic = topic.replace(".", "_")  # names that differ only in this collide (F-2)
        self.partition = partition
        self.lock: Lock = make_lock(Rank.CREATION)

    def conflicts(self, other: _Claim) -> bool:
        return self.topic == other.topic and (
            self.partition is None or other.partition is None or self.partition == other.partition
        )


class Claims:
    """Different partitions may be claimed at the same time. A whole topic is claimed alone."""

    def __init__(self, ownership: Ownership) -> None:
        self._ownership = ownership
        self._lock = make_lock(Rank.MANAGER)
        self._held: list[_Claim] = []
        self._closed = False

    @contextmanager
    def of(self, topic: str, partition: int | None = None) -> Iterator[None]:
        """Claim a partition, or the whole topic if ``partition`` is None, and wait for other claims
        on it. A thread has one claim at a time.

        Raises:
            LogClosedError: ``close`` was called.
            ForkedError: another process opened the manager.
        """
        self._ownership.check()
        while True:
            claim = _Claim(topic, partition)
            claim.lock.acquire()
            try:
                other = self._enter(claim)
            except BaseException:
                claim.lock.release()
                raise
            if other is None:
                break
            claim.lock.release()
            with other.lock:  # until its holder is done
                pass
        try:
            yield
        finally:
            with self._lock:
                self._held.remove(claim)
            claim.lock.release()

    def _enter(self, claim: _Claim) -> _Claim | None:
        """Enter the claim. Returns None, or the claim that it must wait for."""
        with self._lock:
            if self._closed:
                raise LogClosedError("the log manager is closed")
            for held in self._held:
                if claim.conflicts(held):
                    return held
            self._held.append(claim)
            return None

    def close(self) -> None:
        """Refuse further claims, and wait for those that are held."""
        with self._lock:
            self._closed = True
            held = list(self._held)
        for claim in held:
            with claim.lock:
                pass
