"""The requests that wait on a broker: which event wakes which, and when their time is up.

Three purgatories, as Kafka's: produce, fetch, delete-records. Nothing polls: one task of the
runtime is due when the next deadline is, and there is none while nothing waits.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Hashable, Iterable
from typing import Any, TypeAlias

from checkpoints.loggers import get_logger
from checkpoints.types import TopicPartition
from replication.common.config import ReplicationConfig
from replication.common.runtime import Actor, Cancellable, Runtime
from replication.purgatory.purgatory import DelayedOperation, Purgatory
from replication.purgatory.timer import Timer
from replication.replica_manager.delayed import DelayedDeleteRecords, DelayedFetch, DelayedProduce
from replication.replica_manager.fetch_sessions import FetchSession

logger = get_logger(__name__)

AnyPurgatory: TypeAlias = Purgatory[Any]


class WaitingRequests:
    """Callers hold no lock of a partition, a log or a fetcher: what is answered here runs here.

    Args:
        actor: runs what a deadline sets off, which reads logs; the timer's thread must not.
        stirred: fetch sessions whose waiting fetch should look again. Under a lock of a log or a
            partition they are entered there; each event here takes them out.
    """

    def __init__(
        self, runtime: Runtime, actor: Actor, config: ReplicationConfig,
        stirred: deque[FetchSession],
    ) -> None:  # fmt: skip
        self._stirred = stirred
        self._runtime = runtime
        self._actor = actor
        now = runtime.now_ms()
        clock = runtime.now_ms
        self.produce: Purgatory[DelayedProduce] = Purgatory(
            "Produce", Timer(now), config.produce_purge_interval, clock
        )
        # Followers wait for the log end, consumers for the high watermark: other events.
        self.follower_fetch: Purgatory[DelayedFetch] = Purgatory(
            "Fetch", Timer(now), config.fetch_purge_interval, clock
        )
        self.consumer_fetch: Purgatory[DelayedFetch] = Purgatory(
            "Fetch", Timer(now), config.fetch_purge_interval, clock
        )
        self.delete_records: Purgatory[DelayedDeleteRecords] = Purgatory(
            "DeleteRecords", Timer(now), config.delete_purge_interval, clock
        )
        self._lock = threading.Lock()  # for the two below
        self._armed: Cancellable | None = None
        self._armed_ms = 0
        self._closed = False

    @property
    def purgatories(self) -> tuple[AnyPurgatory, ...]:
        return self.produce, self.follower_fetch, self.consumer_fetch, self.delete_records

    # -- registering ---------------------------------------------------------------------------

    def add_produce(self, operation: DelayedProduce, tps: Iterable[TopicPartition]) -> None:
        """Answer now if it can be, else when an event or its deadline comes; as the next two."""
        self._add(self.produce, operation, tps)

    def add_fetch(self, operation: DelayedFetch, keys: Iterable[Hashable]) -> None:
        purgatory = self.follower_fetch if operation.is_from_follower else self.consumer_fetch
        self._add(purgatory, operation, keys)

    def add_delete_records(
        self, operation: DelayedDeleteRecords, tps: Iterable[TopicPartition]
    ) -> None:
        self._add(self.delete_records, operation, tps)

    def _add(
        self, purgatory: AnyPurgatory, operation: DelayedOperation, keys: Iterable[Hashable]
    ) -> None:
        if not purgatory.try_complete_else_watch(operation, keys):
            self._arm(purgatory)

    # -- events --------------------------------------------------------------------------------

    def on_append(self, tp: TopicPartition, hw_moved: bool) -> None:
        """A leader appended (R-87)."""
        _check(self.follower_fetch, tp)
        if hw_moved:
            self.on_high_watermark(tp)
        else:
            self.check_sessions()

    def on_high_watermark(self, tp: TopicPartition) -> None:
        """The high watermark moved, here or, on a follower, after that of its leader (R-95)."""
        _check(self.produce, tp)
        _check(self.consumer_fetch, tp)
        _check(self.delete_records, tp)
        self.check_sessions()

    def check_sessions(self) -> None:
        """Sessions were stirred: something they fetch changed, or they went on, or ended."""
        stirred = self._stirred
        while stirred:
            try:
                session = stirred.popleft()
            except IndexError:  # somebody else does it
                return
            is_follower = session.replica_id >= 0
            _check(self.follower_fetch if is_follower else self.consumer_fetch, session)

    def on_log_start(self, tp: TopicPartition) -> None:
        """A replica may have deleted records (R-96)."""
        _check(self.delete_records, tp)

    def on_deletion(self, tp: TopicPartition) -> None:
        """Records were deleted here: those, perhaps, at which a transaction that is not over held
        readers of what is committed."""
        self.on_log_start(tp)
        _check(self.consumer_fetch, tp)
        self.check_sessions()

    def on_role_change(self, tp: TopicPartition) -> None:
        """The partition may have another leader, be gone, or be offline (R-85, R-93, R-155)."""
        _check(self.follower_fetch, tp)
        self.on_high_watermark(tp)

    # -- deadlines -----------------------------------------------------------------------------

    def _arm(self, purgatory: AnyPurgatory) -> None:
        due = purgatory.timer.next_deadline_ms()
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
            self._arm(purgatory)

    # -- end -----------------------------------------------------------------------------------

    def shutdown(self, *, answer: bool = True) -> None:
        """End the waiting: everybody is answered with what there is, or nobody ever will be."""
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
    """Who is answered late must not bring down who caused it."""
    try:
        purgatory.check_and_complete(key)
    except Exception:
        logger.exception("purgatory %s: an answer failed", purgatory.name)
