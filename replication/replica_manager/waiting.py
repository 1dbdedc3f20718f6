"""The waiting requests of a broker: which event wakes which, and their deadlines.

There are three purgatories, as in Kafka: produce, fetch, delete-records. Nothing polls: one timer
of the runtime is set to the next deadline, and none while nothing waits.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from checkpoints.loggers import get_logger
from checkpoints.types import TopicPartition
from replication.common.config import ReplicationConfig
from replication.common.runtime import Actor, Cancellable, Runtime
from replication.replica_manager.fetch_sessions import FetchSession
from replication.replica_manager.purgatory import DelayedOperation, Purgatory

logger = get_logger(__name__)

AnyPurgatory: TypeAlias = Purgatory[Any]


@dataclass(slots=True)
class BrokerStats:
    """Counters since the start, for metrics (R-157, R-164, R-166).

    Change it under ``lock``. A single number may be read without.
    """

    bytes_in: int = 0  # of producers
    messages_in: int = 0
    bytes_rejected: int = 0
    bytes_out: int = 0  # to consumers
    replication_bytes_out: int = 0  # to followers
    isr_expands: int = 0
    isr_shrinks: int = 0
    failed_isr_updates: int = 0
    produce_expirations: int = 0  # partitions that a produce request gave up
    follower_fetch_expirations: int = 0
    consumer_fetch_expirations: int = 0
    delete_records_expirations: int = 0  # partitions
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)


class WaitingRequests:
    """Callers hold no lock of a partition, a log or a fetcher, because answers run on their thread.

    Args:
        actor: runs the work of deadlines, which reads logs. The timer's thread must not.
        stirred: fetch sessions whose waiting fetch must be checked again. They are entered under a
            lock of a log or a partition, and each event here processes them.
    """

    def __init__(
        self,
        runtime: Runtime,
        actor: Actor,
        config: ReplicationConfig,
        stirred: deque[FetchSession],
    ) -> None:
        self._stirred = stirred
        self._runtime = runtime
        self._actor = actor
        clock = runtime.now_ms
        self.produce: AnyPurgatory = Purgatory("Produce", config.produce_purge_interval, clock)
        # Followers wait for the log end, consumers for the high watermark, which are different
        # events.
        self.follower_fetch: AnyPurgatory = Purgatory("Fetch", config.fetch_purge_interval, clock)
        self.consumer_fetch: AnyPurgatory = Purgatory("Fetch", config.fetch_purge_interval, clock)
        self.delete_records: AnyPurgatory = Purgatory(
            "DeleteRecords", config.delete_purge_interval, clock
        )
        self._of_high_watermark = self.produce, self.consumer_fetch, self.delete_records
        self._lock = threading.Lock()  # guards the two below
        self._armed: Cancellable | None = None
        self._armed_ms = 0
        self._closed = False

    @property
    def purgatories(self) -> tuple[AnyPurgatory, ...]:
        return self.produce, self.follower_fetch, self.consumer_fetch, self.delete_records

    def add(
        self, purgatory: AnyPurgatory, operation: DelayedOperation, keys: Iterable[Hashable]
    ) -> None:
        """Answer now if possible, else at an event or the deadline."""
        if not purgatory.try_complete_else_watch(operation, keys):
            self._arm(operation.expiry_ms)

    # -- events --------------------------------------------------------------------------------

    def on_append(self, tp: TopicPartition, hw_moved: bool) -> None:
        """A leader appended (R-87)."""
        if tp in self.follower_fetch.keys:
            _check(self.follower_fetch, tp)
        if hw_moved:
            self.on_high_watermark(tp)
        elif self._stirred:
            self.check_sessions()

    def on_high_watermark(self, tp: TopicPartition) -> None:
        """The high watermark moved on a leader, or on a follower after its leader's (R-95)."""
        for purgatory in self._of_high_watermark:
            if tp in purgatory.keys:
                _check(purgatory, tp)
        if self._stirred:
            self.check_sessions()

    def check_sessions(self) -> None:
        """Check the waiting fetches of stirred sessions, whose partitions changed or which
        continued or ended.
        """
        stirred = self._stirred
        while stirred:
            try:
                session = stirred.popleft()
            except IndexError:  # another thread does it
                return
            is_follower = session.replica_id >= 0
            _check(self.follower_fetch if is_follower else self.consumer_fetch, session)

    def on_log_start(self, tp: TopicPartition) -> None:
        """A replica may have deleted records (R-96)."""
        _check(self.delete_records, tp)

    def on_deletion(self, tp: TopicPartition) -> None:
        """Records were deleted here, perhaps those of an open transaction at which readers of
        committed records waited.
        """
        self.on_log_start(tp)
        _check(self.consumer_fetch, tp)
        self.check_sessions()

    def on_role_change(self, tp: TopicPartition) -> None:
        """The partition may have another leader, or be gone or offline (R-85, R-93, R-155)."""
        _check(self.follower_fetch, tp)
        self.on_high_watermark(tp)

    # -- deadlines -----------------------------------------------------------------------------

    def _arm(self, due: int | None) -> None:
        """Have the timer set for a deadline; None if there is none (any more)."""
        if due is None or (self._armed is not None and self._armed_ms <= due):
            return
        with self._lock:
            if self._closed or (self._armed is not None and self._armed_ms <= due):
                return
            if self._armed is not None:
                self._armed.cancel()
            self._armed_ms = due
            delay = max(0, due - self._runtime.now_ms())
            self._armed = self._runtime.call_later(delay, lambda: self._actor.post(self._expire))

    def _expire(self) -> None:
        with self._lock:
            self._armed = None
        now = self._runtime.now_ms()
        for purgatory in self.purgatories:
            try:
                purgatory.advance(now)
            except Exception:
                logger.exception("purgatory %s: an answer failed", purgatory.name)
            self._arm(purgatory.deadlines.next_deadline_ms())

    # -- end -----------------------------------------------------------------------------------

    def shutdown(self, *, answer: bool = True) -> None:
        """End all waits. Requests are answered with what there is, or never if not ``answer``."""
        with self._lock:
            self._closed = True
            if self._armed is not None:
                self._armed.cancel()
        operations = [each for purgatory in self.purgatories for each in purgatory.shutdown()]
        for operation in operations if answer else ():
            try:
                operation.force_complete()
            except Exception:
                logger.exception("an answer at the end failed")


def _check(purgatory: AnyPurgatory, key: Hashable) -> None:
    """Check a key. An exception of an answer must not reach the cause of the event."""
    try:
        purgatory.check_and_complete(key)
    except Exception:
        logger.exception("purgatory %s: an answer failed", purgatory.name)
