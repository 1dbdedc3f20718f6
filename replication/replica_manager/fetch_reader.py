"""Read partitions for a fetch, and check it while it waits (R-92 … R-95, R-108, R-145 … R-149)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from checkpoints.loggers import get_logger
from checkpoints.types import TopicPartition
from logstore.log import PartitionLog
from replication.common.config import ReplicationConfig
from replication.common.error_codes import ErrorCode, error_code_of
from replication.common.limited_log import LimitedLogger
from replication.common.messages import (
    CONSUMER,
    UNRESOLVED,
    FetchPartition,
    FetchPartitionResponse,
    FetchRequest,
)
from replication.common.quota import ReplicationQuota
from replication.decisions.isr import settled
from replication.decisions.replica_selector import RACK_AWARE, ReplicaView, select_replica
from replication.partition import Partition
from replication.replica_manager.hosted_partitions import HostedPartitions
from replication.replica_manager.metadata_cache import MetadataCache

_UNKNOWN = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)

logger = get_logger(__name__)
limited = LimitedLogger(logger)


class PartitionRead:
    """The answer of one partition, and the state of the partition just before.

    ``partition`` is None if the answer is an error or names another replica. ``is_unknown``: this
    broker does not know the partition, so a consumer does not wait for it (R-92).
    """

    __slots__ = (
        "hw_moved",
        "is_unknown",
        "leader_epoch",
        "log",
        "log_end",
        "partition",
        "response",
        "size",
    )

    def __init__(
        self,
        response: FetchPartitionResponse,
        partition: Partition | None = None,
        log: PartitionLog | None = None,
        leader_epoch: int = -1,
        log_end: int = -1,
        hw_moved: bool = False,
    ) -> None:
        self.response, self.partition, self.log = response, partition, log
        self.leader_epoch, self.log_end, self.hw_moved = leader_epoch, log_end, hw_moved
        self.size = len(response.records)
        self.is_unknown = partition is None and response.error_code in _UNKNOWN

    def is_current(self) -> bool:
        """Whether the partition would still answer the same."""
        partition, log = self.partition, self.log
        if partition is None or log is None:
            return False
        response, now = self.response, log.core.snapshot
        return (
            now.log_end_offset == self.log_end
            and now.high_watermark == response.high_watermark
            and now.log_start_offset == response.log_start_offset
            and partition.role.leader_epoch == self.leader_epoch
            and partition.log is log
        )


class Reads(NamedTuple):
    """The reads of a request. ``is_final``: it must be answered at once (R-92). ``unknown``: how
    many of a consumer's are of partitions that are not known."""

    reads: list[PartitionRead]
    size: int
    is_final: bool
    unknown: int
    hw_moved: tuple[TopicPartition, ...]


class FetchReader:
    """Reads partitions. Thread-safe; the caller holds no lock."""

    def __init__(
        self,
        partitions: HostedPartitions,
        metadata: MetadataCache,
        quota: ReplicationQuota,
        config: ReplicationConfig,
        now_ms: Callable[[], int],
    ) -> None:
        self._partitions = partitions
        self._metadata = metadata
        self._quota = quota
        self._now_ms = now_ms
        self.rack_aware = config.replica_selector.rpartition(".")[2] == RACK_AWARE

    def read(self, request: FetchRequest, parts: Sequence[FetchPartition]) -> Reads:
        """Read in order up to ``max_bytes`` (R-108), and note the progress of a follower."""
        left, total, is_final, unknown = request.max_bytes, 0, False, 0
        reads = []
        moved = []
        for part in parts:
            read = self._read(request, part, left, not total, update_follower=True)
            reads.append(read)
            size = read.size
            total += size
            left = max(0, left - size)
            if read.is_unknown and request.replica_id < 0:
                unknown += 1
            elif read.partition is None or read.response.diverging_epoch is not None:
                is_final = True
            elif read.hw_moved:
                moved.append(part.tp)
        return Reads(reads, total, is_final, unknown, tuple(moved))

    def read_again(
        self,
        request: FetchRequest,
        looks: Iterable[tuple[FetchPartition, PartitionRead | None, object]],
    ) -> list[PartitionRead]:
        """The answer after a wait: earlier results that still hold, and new reads for the rest.

        The follower's progress is not noted again (R-94).
        """
        left, total = request.max_bytes, 0
        reads = []
        for part, read, _ in looks:
            if read is None or read.size > left or not read.is_current():
                read = self._read(request, part, left, not total, update_follower=False)
            reads.append(read)
            total += read.size
            left = max(0, left - read.size)
        return reads

    def _read(
        self,
        request: FetchRequest,
        part: FetchPartition,
        max_bytes: int,
        minimum_one: bool,
        *,
        update_follower: bool,
    ) -> PartitionRead:
        if part.tp.topic.startswith(UNRESOLVED):
            part = self._resolved(part)
        tp, replica_id = part.tp, request.replica_id
        try:
            partition = self._partitions.find(tp)
            if self.rack_aware and replica_id == CONSUMER:
                preferred = self._preferred_replica(partition, request.rack_id, part.fetch_offset)
                if preferred is not None:
                    partition.leader.check_fetch(
                        part
                    )  # a deposed leader would name outdated replicas
                    return PartitionRead(_redirect(partition, part, preferred))
            if self._quota.lists_any and self._is_throttled(partition, replica_id):
                max_bytes, minimum_one = 0, False
            log, epoch = partition.log, partition.role.leader_epoch
            found = partition.leader.fetch(
                part,
                replica_id=replica_id,
                replica_epoch=request.replica_epoch,
                isolation=request.isolation_level,
                max_bytes=max_bytes,
                minimum_one=minimum_one,
                update_follower=update_follower,
                takes_slices=request.takes_slices,
            )
        except Exception as error:
            code = answer_code(tp, error)
            if tp.topic.startswith(UNRESOLVED):
                code = ErrorCode.UNKNOWN_TOPIC_ID
            leader = self._partitions.leader_hint(tp, code)
            refusal = FetchPartitionResponse(
                tp, code, current_leader=leader, topic_id=part.topic_id
            )
            return PartitionRead(refusal)
        if replica_id >= 0 and self._quota.lists_any:
            self._quota.record(tp, len(found.records))
        response = FetchPartitionResponse(
            tp,
            ErrorCode.NONE,
            found.high_watermark,
            found.last_stable_offset,
            found.log_start_offset,
            found.records,
            found.diverging,
            found.aborted,
            topic_id=part.topic_id,
        )
        return PartitionRead(response, partition, log, epoch, found.log_end_offset, found.hw_moved)

    def _resolved(self, part: FetchPartition) -> FetchPartition:
        """The request by name, if its id has become known to this broker."""
        if part.topic_id is None or not part.tp.topic.startswith(UNRESOLVED):
            return part
        name = self._metadata.topic_name(part.topic_id)
        if name is None:
            return part
        return part._replace(tp=TopicPartition(name, part.tp.partition))

    # -- while it waits ------------------------------------------------------------------------

    def knows(self, part: FetchPartition) -> bool:
        """Whether this broker knows a partition that it did not know before."""
        return not self._partitions.is_unknown(self._resolved(part).tp)

    def available(self, request: FetchRequest, part: FetchPartition) -> int | None:
        """Count the bytes a waiting fetch would get now; None if it must be answered (R-93)."""
        if part.tp.topic.startswith(UNRESOLVED):
            part = self._resolved(part)
        try:
            partition = self._partitions.find(part.tp)
            available = partition.leader.available_to_fetch(
                part, request.replica_id, request.isolation_level, request.min_bytes
            )
        except Exception as error:
            answer_code(part.tp, error)
            return None
        if self._quota.lists_any and self._is_throttled(partition, request.replica_id):
            return 0  # any number, since it would only fetch again
        return available

    def _is_throttled(self, partition: Partition, replica_id: int) -> bool:
        """Whether a quota holds this replica back now (R-145, R-146)."""
        quota = self._quota
        return (
            replica_id >= 0
            and quota.is_throttled(partition.tp)
            and quota.must_wait(partition.tp, replica_id in partition.isr.committed)
        )

    # -- other replicas ------------------------------------------------------------------------

    def _preferred_replica(self, partition: Partition, rack: str, offset: int) -> int | None:
        """The preferred replica.

        Candidates are the leader, and members of its ISR that have the offset (R-147).
        """
        log = partition.log
        if not rack or not partition.is_leader or log is None:
            return None
        now_ms, metadata = self._now_ms(), self._metadata
        followers = []
        for broker_id in partition.isr.committed:
            known = partition.progress_of(broker_id)
            if (
                known is not None
                and known.log_start <= offset <= known.log_end
                and metadata.is_alive(broker_id)
            ):
                behind_ms = now_ms - settled(known).caught_up_ms
                view = ReplicaView(broker_id, metadata.rack(broker_id), known.log_end, behind_ms)
                followers.append(view)
        own = partition.leader_id
        leader = ReplicaView(own, metadata.rack(own), log.log_end_offset, 0)
        return select_replica(rack, leader, followers)


def _redirect(partition: Partition, part: FetchPartition, preferred: int) -> FetchPartitionResponse:
    log = partition.local_log()
    return FetchPartitionResponse(
        partition.tp,
        ErrorCode.NONE,
        log.high_watermark,
        log.last_stable_offset,
        log.log_start_offset,
        preferred_read_replica=preferred,
        topic_id=part.topic_id,
    )


def answer_code(tp: TopicPartition, error: Exception) -> ErrorCode:
    """The error code for the requester. An unexpected error is logged."""
    code = error_code_of(error)
    if code is ErrorCode.UNKNOWN_SERVER_ERROR:
        limited.error("%s: a request failed: %s", tp, error, about=tp, exc_info=error)
    return code
