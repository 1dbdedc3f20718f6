"""No request waits whose condition holds (I-26): an event must wake all requests that it completes.

The conditions are implemented here a second time, from the state of log and role after the event,
and do not use the code under test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from checkpoints.types import TopicPartition
from replication.common.messages import IsolationLevel
from replication.common.state import UNKNOWN_EPOCH
from replication.partition import Partition
from replication.replica_manager.fetch_service import DelayedFetch
from replication.replica_manager.purgatory import DelayedOperation, Purgatory
from replication.replica_manager.writes import DelayedDeleteRecords, DelayedProduce
from replication.simulator.world.cluster import Machine


class Wakeups:
    """The waiting requests of one broker, from its start to its end."""

    def __init__(self, machine: Machine) -> None:
        assert machine.broker is not None
        manager = machine.broker.replica_manager
        self._partitions = manager.partitions
        self.waiting: list[DelayedOperation] = []
        self.closed = False
        for purgatory in manager.waiting.purgatories:
            self._listen(purgatory)

    def _listen(self, purgatory: Purgatory[Any]) -> None:
        register: Callable[[Any, Iterable[Any]], bool] = purgatory.try_complete_else_watch
        shutdown = purgatory.shutdown

        def listening(operation: DelayedOperation, keys: Iterable[Any]) -> bool:
            answered = register(operation, keys)
            if not answered:
                self.waiting.append(operation)
            return answered

        def closing() -> list[Any]:
            self.closed = True
            return shutdown()

        purgatory.try_complete_else_watch = listening  # type: ignore[method-assign]
        purgatory.shutdown = closing  # type: ignore[method-assign]

    def forgotten(self) -> tuple[TopicPartition, str] | None:
        """A request that waits although its condition holds."""
        self.waiting = [operation for operation in self.waiting if not operation.completed]
        if self.closed:
            return None
        for operation in self.waiting:
            found = self._should_be_answered(operation)
            if found is not None:
                return found
        return None

    def _should_be_answered(self, operation: DelayedOperation) -> tuple[TopicPartition, str] | None:
        if isinstance(operation, DelayedProduce):
            return self._produce(operation)
        if isinstance(operation, DelayedFetch):
            return self._fetch(operation)
        assert isinstance(operation, DelayedDeleteRecords)
        return self._delete_records(operation)

    def _produce(self, operation: DelayedProduce) -> tuple[TopicPartition, str] | None:
        why = None
        for at, (required, _) in operation._required.items():
            tp = operation._responses[at].tp
            leader = self._leader(tp)
            if leader is None:
                why = (tp, "a producer waits at a broker that does not lead")
            elif leader.log is None or leader.log.failed:
                return None  # the failure of its log directory is about to be reported
            elif leader.log.high_watermark >= required:
                mark = leader.log.high_watermark
                why = (tp, f"a producer waits for {required}; committed up to {mark}")
            else:
                return None
        return why

    def _delete_records(self, operation: DelayedDeleteRecords) -> tuple[TopicPartition, str] | None:
        why = None
        for at, wanted in operation._required.items():
            tp = operation._responses[at].tp
            leader = self._leader(tp)
            if leader is None:
                why = (tp, "a deletion waits at a broker that does not lead")
            elif leader.log is None or leader.log.failed or leader.leader.low_watermark < wanted:
                return None
            else:
                why = (tp, f"a deletion waits for {wanted}, below which nobody has records")
        return why

    def _fetch(self, operation: DelayedFetch) -> tuple[TopicPartition, str] | None:
        request = operation._request
        if request.min_bytes > 1:
            return None
        follower = request.replica_id >= 0
        who = "a fetch of a consumer" if not follower else f"a fetch of {request.replica_id}"
        for part in request.partitions:
            partition = self._partitions.get(part.tp)
            if partition is None or (follower and not partition.is_leader):
                return part.tp, f"{who} waits at a broker that does not lead"
            log = partition.log
            if log is None or log.failed:
                continue
            if part.current_leader_epoch not in (UNKNOWN_EPOCH, partition.leader_epoch):
                return part.tp, (
                    f"{who} of epoch {part.current_leader_epoch} waits in epoch "
                    f"{partition.leader_epoch}"
                )
            now = log.snapshot
            end = now.log_end_offset
            if not follower:
                committed = request.isolation_level is IsolationLevel.READ_COMMITTED
                end = now.last_stable_offset if committed else now.high_watermark
            if part.fetch_offset < end or part.fetch_offset > now.log_end_offset:
                return part.tp, f"{who} waits at {part.fetch_offset}; there is all up to {end}"
        return None

    def _leader(self, tp: TopicPartition) -> Partition | None:
        partition = self._partitions.get(tp)
        return partition if partition is not None and partition.is_leader else None
