"""Claims on topic names, so that only one thread creates, changes or deletes their logs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from logstore.common.errors import LogClosedError
from logstore.common.forks import Ownership
from logstore.common.locks import Lock, Rank, make_lock
from logstore.common.types import TopicPartition

Names = Mapping[str, frozenset[int] | None]
"""Partitions by topic; None stands for the whole topic."""


class _Claim:
    """A topic, or some partitions. Its lock is held as long as the claim."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.lock: Lock = make_lock(Rank.CREATION)

    def conflicts(self, other: _Claim) -> bool:
        for topic in self.names.keys() & other.names.keys():
            own, others = self.names[topic], other.names[topic]
            if own is None or others is None or own & others:
                return True
        return False


class Claims:
    """Different partitions may be claimed at the same time. A whole topic is claimed alone."""

    def __init__(self, ownership: Ownership) -> None:
        self._ownership = ownership
        self._lock = make_lock(Rank.MANAGER)
        self._held: list[_Claim] = []
        self._closed = False

    @contextmanager
    def of(self, topic: str) -> Iterator[None]:
        """Claim a whole topic, as ``of_all``."""
        with self._of({_key(topic): None}):
            yield

    @contextmanager
    def of_all(self, tps: Iterable[TopicPartition]) -> Iterator[None]:
        """Claim partitions, and wait for other claims on them. A thread has one claim at a time.

        Raises:
            LogClosedError: ``close`` was called.
            ForkedError: another process opened the manager.
        """
        numbers: dict[str, set[int]] = {}
        for topic, partition in tps:
            numbers.setdefault(_key(topic), set()).add(partition)
        with self._of({topic: frozenset(found) for topic, found in numbers.items()}):
            yield

    @contextmanager
    def _of(self, names: Names) -> Iterator[None]:
        self._ownership.check()
        while True:
            claim = _Claim(names)
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
            self.check()
            for held in self._held:
                if claim.conflicts(held):
                    return held
            self._held.append(claim)
            return None

    def check(self) -> None:
        """For work under one claim that has many parts, before each of them.

        Raises:
            LogClosedError: ``close`` was called, and waits for the claim.
        """
        if self._closed:
            raise LogClosedError("the log manager is closed")

    def close(self) -> None:
        """Refuse further claims, and wait for those that are held."""
        with self._lock:
            self._closed = True
            held = list(self._held)
        for claim in held:
            with claim.lock:
                pass


def _key(topic: str) -> str:
    return topic.replace(".", "_")  # names that differ only in this collide (F-2)
