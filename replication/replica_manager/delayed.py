"""Waiting requests: a produce for its replicas, a fetch for bytes, a deletion for its followers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from replication.common.error_codes import ErrorCode
from replication.common.messages import (
    DeleteRecordsPartitionResponse,
    DeleteRecordsResponse,
    FetchRequest,
    ProducePartitionResponse,
    ProduceResponse,
)
from replication.partition import Partition
from replication.replica_manager.fetch_contexts import FetchContext
from replication.replica_manager.fetch_reader import FetchReader, PartitionRead, answer_code
from replication.replica_manager.fetch_sessions import Look
from replication.replica_manager.hosted_partitions import HostedPartitions
from replication.replica_manager.purgatory import DelayedOperation
from replication.replica_manager.stats import BrokerStats

MAX_WAIT_MS = 2**31 - 1
"""The longest wait of the protocol, 24 days. Deadlines have 64 bits."""


class DelayedProduce(DelayedOperation):
    """Waits until the appends of acks=all are committed in every partition (R-81, R-84 … R-86).

    Args:
        responses: one for each partition of the request. Those that wait have no error so far.
        required: position in ``responses`` → the high watermark that commits it, and the leader
            epoch of the batches, because another leader's records at these offsets are not ours.
        hw_moved: whether an append moved it, so that a check before watching may succeed.
    """

    def __init__(
        self,
        timeout_ms: int,
        responses: Sequence[ProducePartitionResponse],
        required: dict[int, tuple[int, int]],
        partitions: HostedPartitions,
        respond: Callable[[ProduceResponse], None],
        stats: BrokerStats,
        *,
        hw_moved: bool = True,
    ) -> None:
        super().__init__(min(timeout_ms, MAX_WAIT_MS))
        self.checks_first = hw_moved or timeout_ms <= 0
        self._responses = list(responses)
        self._required = required
        self._only: tuple[Partition, int, int] | None = None  # the last of ``required``
        self._partitions = partitions
        self._respond = respond
        self._stats = stats

    def try_complete(self) -> bool:
        # Most are checked several times, for one partition.
        only = self._only
        if only is not None and only[0].leader.is_waiting_for(only[1], only[2]):
            return False
        for at, (required, leader_epoch) in list(self._required.items()):
            tp = self._responses[at].tp
            try:
                partition = self._partitions.find(tp)
                if partition.leader.is_waiting_for(required, leader_epoch):
                    if len(self._required) == 1:
                        self._only = partition, required, leader_epoch
                    continue
                done, code = partition.leader.acks_satisfied(required, leader_epoch)
            except Exception as error:
                done, code = True, answer_code(tp, error)
            if done:
                del self._required[at]
                if code is not ErrorCode.NONE:
                    self._fail(at, code)
        return not self._required and self.force_complete()

    def _fail(self, at: int, code: ErrorCode) -> None:
        response = self._responses[at]
        self._responses[at] = response._replace(
            error_code=code, current_leader=self._partitions.leader_hint(response.tp, code)
        )

    def on_complete(self) -> None:
        for at in self._required:  # they may or may not become committed yet
            self._fail(at, ErrorCode.REQUEST_TIMED_OUT)
        self._respond(ProduceResponse(tuple(self._responses)))

    def on_expiration(self) -> None:
        with self._stats.lock:
            self._stats.produce_expirations += len(self._required)


class DelayedFetch(DelayedOperation):
    """Waits for ``min_bytes``, or until the requester must be answered (R-93 … R-95).

    Args:
        context: the partitions of the request, and the results of the first read.
    """

    checks_first = False  # it would repeat the read

    def __init__(
        self,
        request: FetchRequest,
        context: FetchContext,
        reader: FetchReader,
        respond: Callable[[Sequence[Look], list[PartitionRead]], None],
        stats: BrokerStats,
    ) -> None:
        super().__init__(min(request.max_wait_ms, MAX_WAIT_MS))
        self._request = request
        self._context = context
        self._reader = reader
        self._respond = respond
        self._stats = stats

    @property
    def is_from_follower(self) -> bool:
        return self._request.replica_id >= 0

    def try_complete(self) -> bool:
        if self._context.is_over:
            return self.force_complete()
        request, total = self._request, 0
        for part, read, _ in self._context.looks():
            if read is not None and read.is_current():
                total += read.size
                continue
            if read is not None and read.is_unknown and not self._reader.knows(part):
                continue
            available = self._reader.available(request, part)
            if available is None:
                return self.force_complete()
            total += available
        return total >= request.min_bytes and self.force_complete()

    def on_complete(self) -> None:
        looks = self._context.looks()
        earlier = ((look.part, look.read) for look in looks)
        self._respond(looks, self._reader.read_again(self._request, earlier))

    def on_expiration(self) -> None:
        with self._stats.lock:
            if self.is_from_follower:
                self._stats.follower_fetch_expirations += 1
            else:
                self._stats.consumer_fetch_expirations += 1


class DelayedDeleteRecords(DelayedOperation):
    """Waits until no live replica has the deleted records any more (R-96).

    Args:
        wanted: position in ``responses`` → the low watermark to wait for.
    """

    def __init__(
        self,
        timeout_ms: int,
        responses: Sequence[DeleteRecordsPartitionResponse],
        wanted: dict[int, int],
        partitions: HostedPartitions,
        respond: Callable[[DeleteRecordsResponse], None],
        stats: BrokerStats,
    ) -> None:
        super().__init__(min(timeout_ms, MAX_WAIT_MS))
        self._responses = list(responses)
        self._wanted = wanted
        self._partitions = partitions
        self._respond = respond
        self._stats = stats

    def try_complete(self) -> bool:
        for at, wanted in list(self._wanted.items()):
            tp = self._responses[at].tp
            try:
                low, code = self._partitions.find(tp).leader.low_watermark, ErrorCode.NONE
            except Exception as error:
                low, code = -1, answer_code(tp, error)
            if code is not ErrorCode.NONE or low >= wanted:
                del self._wanted[at]
            self._responses[at] = DeleteRecordsPartitionResponse(tp, code, low)
        return not self._wanted and self.force_complete()

    def on_complete(self) -> None:
        for at in self._wanted:
            self._responses[at] = self._responses[at]._replace(
                error_code=ErrorCode.REQUEST_TIMED_OUT
            )
        self._respond(DeleteRecordsResponse(tuple(self._responses)))

    def on_expiration(self) -> None:
        with self._stats.lock:
            self._stats.delete_records_expirations += len(self._wanted)


__all__ = ["DelayedDeleteRecords", "DelayedFetch", "DelayedProduce"]
