"""All partitions of a broker: serves producers, consumers and followers, and obeys the controller
(Kafka's ``ReplicaManager``).

This module has its parts, its life, its periodic work and the orders of the controller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from checkpoints.loggers import get_logger
from checkpoints.types import TopicPartition
from logstore.common.errors import (
    ConfigError,
    LogstoreError,
    ResourceBusyError,
)
from logstore.log import PartitionLog
from logstore.log.moving import LogCopy
from logstore.manager import LogManager
from logstore.manager.duties import BACKGROUND, Duty, Runner, Schedule
from logstore.segments.open_files import with_idle_closed
from replication.common.background import ActorRunner
from replication.common.config import ReplicationConfig
from replication.common.error_codes import ErrorCode
from replication.common.errors import (
    KafkaStorageError,
    ReplicationError,
)
from replication.common.limited_log import LimitedLogger
from replication.common.messages import (
    ControlRequest,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderPartitionResponse,
    StopReplicaRequest,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from replication.common.quota import ReplicationQuota, parse_throttled_replicas
from replication.common.runtime import Runtime
from replication.common.transport import OnReply, Transport
from replication.decisions.truncation import RULES
from replication.fetcher.fetch_failures import FetcherContext
from replication.fetcher.fetcher_manager import FetcherManager
from replication.partition import (
    IsrChannel,
    Partition,
    PartitionContext,
    TruncationEvent,
    finish_changes,
)
from replication.replica_manager.control_requests import CarryOut, ControlRequests
from replication.replica_manager.fetch_reader import FetchReader, answer_code
from replication.replica_manager.fetch_service import FetchService
from replication.replica_manager.fetch_sessions import FetchSessionCache
from replication.replica_manager.hosted_partitions import HostedPartitions
from replication.replica_manager.log_dir_moves import LogDirMoves
from replication.replica_manager.metadata_cache import MetadataCache
from replication.replica_manager.role_changes import RoleChanges
from replication.replica_manager.transaction_verification import AddPartitionsToTxnManager
from replication.replica_manager.waiting import BrokerStats, WaitingRequests
from replication.replica_manager.writes import Writes

logger = get_logger(__name__)

HIGH_WATERMARK_CHECKPOINT = "highwatermark-checkpoint"
ISR_EXPIRATION = "isr-expiration"
EXPIRATION = "expiration"
"""The thread of requests that have waited long enough, and of ISRs."""

T = TypeVar("T")
Asked = TypeVar("Asked", OffsetForLeaderPartition, ListOffsetsPartition)


class ReplicaManager:
    """The replica manager. Call it from any thread that holds no lock of a partition.

    Each ``respond`` is called exactly once, before the call returns or later on any thread. It must
    be short.

    Args:
        log_manager: opened with ``replicated`` and without ``background``: its periodic work is
            started here, on actors and with the duties of a broker.
        broker_epoch: returns this broker's present epoch.
        on_foreign_tree: as of `RoleChanges`.
    Attributes:
        quotas: by the key of their rate, which may change while the broker runs.
        role_listeners: each is called, without a lock, with the partitions that have a new
            leadership or leader, are gone or offline. It must be short. Add to it before the start.
    """

    def __init__(
        self,
        broker_id: int,
        log_manager: LogManager,
        runtime: Runtime,
        transport: Transport,
        metadata: MetadataCache,
        isr_channel: IsrChannel,
        config: ReplicationConfig,
        *,
        broker_epoch: Callable[[], int],
        on_foreign_tree: Callable[[ReplicationError], None] = lambda error: None,
    ) -> None:
        self.broker_id = broker_id
        self.log_manager = log_manager
        self.stats = BrokerStats()
        self.role_listeners: list[Callable[[Sequence[TopicPartition]], None]] = []
        self.leader_quota = ReplicationQuota(config.leader_throttled_rate, runtime.now_ms)
        self.follower_quota = ReplicationQuota(config.follower_throttled_rate, runtime.now_ms)
        self.directory_quota = ReplicationQuota(
            config.log_dirs_throttled_rate, runtime.now_ms, lists_all=True
        )
        self.quotas: Mapping[str, ReplicationQuota] = {
            "leader.replication.throttled.rate": self.leader_quota,
            "follower.replication.throttled.rate": self.follower_quota,
            "replica.alter.log.dirs.io.max.bytes.per.second": self.directory_quota,
        }
        self._config = config
        self._log = LimitedLogger(logger, runtime.clock)
        self._runtime = runtime
        self._expiration = runtime.actor(f"{EXPIRATION}-{broker_id}")
        sessions = FetchSessionCache(config.fetch_session_slots, metadata, runtime.random)
        self.waiting = WaitingRequests(runtime, self._expiration, config, sessions.stirred)
        env = PartitionContext(
            broker_id,
            log_manager,
            config,
            metadata,
            isr_channel,
            runtime.now_ms,
            broker_epoch,
            self.waiting.on_high_watermark,
            self._count_isr_change,
        )
        self._metadata = metadata
        self._truncations = env.truncations
        self._hosted = HostedPartitions(env, metadata)
        self.partitions: Mapping[TopicPartition, Partition] = self._hosted.view
        reader = FetchReader(self._hosted, metadata, self.leader_quota, config, runtime.now_ms)
        self.fetches = FetchService(reader, sessions, self.waiting, self.stats, runtime.now_ms)
        rule = RULES[config.truncation_rule]
        following = FetcherContext(
            broker_id,
            runtime,
            transport,
            config,
            rule,
            self._hosted.find,
            broker_epoch,
            self._on_high_watermarks,
            partial(finish_changes, log_manager),
            self.follower_quota,
        )
        self.fetchers = FetcherManager(following)
        self.transactions = AddPartitionsToTxnManager(
            runtime, transport, metadata, self._hosted, config.request_timeout_ms
        )
        self.writes = Writes(
            self._hosted, self.transactions, self.waiting, self.stats, config, runtime
        )
        self._roles = RoleChanges(
            broker_id,
            self._hosted,
            log_manager,
            self.fetchers,
            metadata,
            rule,
            self._on_roles_changed,
            on_foreign_tree,
        )
        self.moves = LogDirMoves(
            broker_id,
            self._hosted,
            log_manager,
            runtime,
            self.directory_quota,
            config,
            self._roles.switch_log,
            self._on_moved,
        )
        carry_out: dict[type[ControlRequest], CarryOut] = {
            LeaderAndIsrRequest: self._lead_and_follow,
            StopReplicaRequest: self._roles.stop_replicas,
            UpdateMetadataRequest: self._update_metadata,
        }
        actor = runtime.actor(f"control-{broker_id}")
        self._control = ControlRequests(actor, broker_epoch, carry_out)

    def partition(self, tp: TopicPartition) -> Partition:
        """
        Raises:
            UnknownPartitionError, NotLeaderOrFollowerError, KafkaStorageError: it is unknown, not
                here, or offline.
        """
        return self._hosted.find(tp)

    @property
    def truncations(self) -> list[TruncationEvent]:
        """The latest truncations of followers here, oldest first."""
        return list(self._truncations)

    # -- life ----------------------------------------------------------------------------------

    def startup(self) -> None:
        """Begin the periodic work: the duties of a log manager, and those of a broker."""
        config = self._config
        duties = (
            Duty(
                HIGH_WATERMARK_CHECKPOINT,
                config.high_watermark_checkpoint_interval_ms,
                self.log_manager.housekeeper.checkpoint_high_watermarks,
                BACKGROUND,
                at_once=True,
            ),
            Duty(
                ISR_EXPIRATION,
                max(1, config.replica_lag_time_max_ms // 2),
                self._look_at_leaderships,  # shrinks ISRs
                EXPIRATION,
                at_once=True,
            ),
        )
        self.log_manager.start(duties, self._start_runner, self._configured)

    def _start_runner(self, thread: str, schedule: Schedule) -> Runner:
        is_own = thread == EXPIRATION
        actor = self._expiration if is_own else self._runtime.actor(f"{thread}-{self.broker_id}")
        return ActorRunner(self._runtime, actor, schedule)

    def _configured(self) -> dict[TopicPartition, PartitionLog]:
        """The logs with a role, because the role brings the topic's configuration. That on the disk
        may be old, and delete what the topic keeps.
        """
        return {p.tp: log for p in self._hosted if (log := p.log) is not None}

    def shutdown(self) -> None:
        """Stop replicating, answer all waiting requests, and write high watermarks (R-29).

        The logs stay open; the owner closes them afterwards.
        """
        self._stop(answer=True)
        with_idle_closed(self.log_manager.housekeeper.checkpoint_high_watermarks)

    def abandon(self) -> None:
        """Release everything as the end of the process does, without answers."""
        self._stop(answer=False)

    def _stop(self, *, answer: bool) -> None:
        self._control.close(wait=answer)
        duties = self.log_manager.duties
        if duties is not None:
            duties.stop(wait=answer)
        self.fetchers.close()
        self.moves.close(wait=answer)
        self.waiting.shutdown(answer=answer)
        self.fetches.sessions.shutdown()

    def begin_controlled_shutdown(self) -> None:
        """Follow no partition any more whose leadership this broker loses from now on (R-17)."""
        self._roles.shutting_down = True

    def _look_at_leaderships(self) -> None:
        for partition in self._hosted:
            try:
                if partition.isr_changes.flush_overdue():
                    self.waiting.on_high_watermark(partition.tp)
            except ResourceBusyError as error:
                logger.warning("%s: not durable yet: %s", partition.tp, error)
            except KafkaStorageError as error:
                logger.error("%s is not durable: %s", partition.tp, error)
            try:
                partition.isr_changes.maybe_shrink_isr()
            except Exception:
                logger.exception("%s: its ISR was not looked at", partition.tp)

    def _count_isr_change(self, tp: TopicPartition, kind: str) -> None:
        stats = self.stats
        with stats.lock:
            if kind == "expand":
                stats.isr_expands += 1
            elif kind == "shrink":
                stats.isr_shrinks += 1
            else:
                stats.failed_isr_updates += 1

    def _on_roles_changed(self, tps: Sequence[TopicPartition]) -> None:
        """Check waiting requests after a new leadership or leader, or if a partition is gone or
        offline.
        """
        for tp in tps:
            self.waiting.on_role_change(tp)
        for listener in self.role_listeners:
            listener(tps)

    def _on_moved(self, copy: LogCopy) -> None:
        """Look at requests that wait for a log that is in another directory now."""
        if copy.future.failed:  # its directory failed before the partition had it
            self._roles.take_failed_offline()
        self.waiting.on_role_change(copy.future.topic_partition)

    def _on_high_watermarks(self, tps: list[TopicPartition]) -> None:
        """Check consumers of followed partitions, which may read further (R-95)."""
        for tp in tps:
            self.waiting.on_high_watermark(tp)

    # -- the controller's orders ---------------------------------------------------------------

    @property
    def controller_epoch(self) -> int:
        """The epoch of the latest known controller."""
        return self._control.controller_epoch

    @property
    def reported_broker_epoch(self) -> int:
        """The latest of this broker's epochs that a controller surely knows; 0 for none."""
        return self._control.reported_broker_epoch

    def control(self, request: ControlRequest, reply: OnReply) -> None:
        """Carry out an order of the controller, on an actor (`ControlRequests`)."""
        self._control.accept(request, reply)

    def configure(self, topic: str, config: Mapping[str, str]) -> None:
        """Have a topic's configuration changed that no controller of ours sends (X-13)."""
        self._control.post(partial(self._configure, topic, config))

    def _configure(self, topic: str, config: Mapping[str, str]) -> None:
        self._metadata.configure(topic, config)
        self._roles.configure(topic, config)
        self._throttle(topic, config)

    def _lead_and_follow(self, request: LeaderAndIsrRequest) -> LeaderAndIsrResponse:
        """Become leader or follower of the partitions of the request (R-16, R-18)."""
        alive = self._alive()
        response = self._roles.leader_and_isr(request)
        if response.error_code is not ErrorCode.NONE:
            return response
        for change in request.partitions:  # a replica may have left the assignment
            self.waiting.on_log_start(change.tp)
        self._answer_fetches_of_dead_brokers(alive)
        self.moves.resume(change.tp for change in request.partitions)
        for topic, config in {c.tp.topic: c.config or {} for c in request.partitions}.items():
            self._throttle(topic, config)
        return response

    def _throttle(self, topic: str, config: Mapping[str, str]) -> None:
        """Set which of a topic's replicas here the quotas hold back (R-145)."""
        for quota, side in ((self.leader_quota, "leader"), (self.follower_quota, "follower")):
            value = config.get(f"{side}.replication.throttled.replicas", "")
            try:
                quota.throttle(topic, parse_throttled_replicas(value, self.broker_id))
            except ConfigError as error:
                self._log.warning("topic %s is not throttled: %s", topic, error, about=topic)

    def _update_metadata(self, request: UpdateMetadataRequest) -> UpdateMetadataResponse:
        alive = self._alive()
        may_join = self._metadata.eligible_brokers()
        self._metadata.update(request)
        self._answer_fetches_of_dead_brokers(alive)
        if not may_join <= self._metadata.eligible_brokers():
            self._await_fewer()
        return UpdateMetadataResponse(ErrorCode.NONE)

    def _alive(self) -> frozenset[int]:
        return frozenset(self._metadata.live_brokers)

    def _answer_fetches_of_dead_brokers(self, before: frozenset[int]) -> None:
        """Check deletions after a broker died, because they do not wait for dead brokers (R-96)."""
        if before <= self._alive():
            return
        for partition in self._hosted:
            if partition.is_leader:
                self.waiting.on_log_start(partition.tp)

    def _await_fewer(self) -> None:
        """Try high watermarks that waited for a broker that may not join an ISR any more (R-24).
        The order that took it out of the ISR may have come before."""
        for partition in self._hosted:
            if partition.isr_changes.retry_high_watermark():
                self.waiting.on_high_watermark(partition.tp)

    def on_directory_failure(self, path: str, error: LogstoreError) -> None:
        """Handle a directory that the log manager took offline (R-151 … R-155).

        Do not call it from the manager's callback, whose thread may hold the lock of a log.
        """
        offline = self._roles.take_failed_offline()
        logger.error("%s failed (%s); offline: %s", path, error, [str(tp) for tp in offline])

    # -- offsets -------------------------------------------------------------------------------

    def offsets_for_leader_epoch(
        self, request: OffsetForLeaderEpochRequest
    ) -> OffsetForLeaderEpochResponse:
        """Answer where epochs end in the logs that this broker leads (R-109)."""

        def answer(part: OffsetForLeaderPartition) -> OffsetForLeaderPartitionResponse:
            partition = self._asked(part)
            found = partition.leader.end_offset_for_epoch(
                part.current_leader_epoch, part.leader_epoch
            )
            return OffsetForLeaderPartitionResponse(part.tp, ErrorCode.NONE, *found)

        return OffsetForLeaderEpochResponse(
            _answers(request.partitions, answer, OffsetForLeaderPartitionResponse)
        )

    def list_offsets(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        """Answer first and last offsets, and offsets by timestamp (R-150)."""

        def answer(part: ListOffsetsPartition) -> ListOffsetsPartitionResponse:
            found = self._asked(part).leader.offset_for_timestamp(
                part.timestamp,
                current_leader_epoch=part.current_leader_epoch,
                isolation=request.isolation_level,
                replica_id=request.replica_id,
            )
            return ListOffsetsPartitionResponse(part.tp, ErrorCode.NONE, *found)

        return ListOffsetsResponse(
            _answers(request.partitions, answer, ListOffsetsPartitionResponse)
        )

    def _asked(self, part: OffsetForLeaderPartition | ListOffsetsPartition) -> Partition:
        """The partition here, if it belongs to the topic of the request."""
        partition = self._hosted.find(part.tp)
        partition.check_topic(part.topic_id)
        return partition


def _answers(
    parts: Iterable[Asked],
    answer: Callable[[Asked], T],
    refusal: Callable[[TopicPartition, ErrorCode], T],
) -> tuple[T, ...]:
    answers = []
    for part in parts:
        try:
            answers.append(answer(part))
        except Exception as error:
            answers.append(refusal(part.tp, answer_code(part.tp, error)))
    return tuple(answers)
