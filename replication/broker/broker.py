"""One broker: wires storage, clock, network and coordination together.

Every change of state goes through ``next_state``. ``proofs`` has what its logs prove after a stop.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from checkpoints.loggers import get_logger
from checkpoints.types import TopicPartition
from logstore.common.config import BrokerConfig, LogConfig
from logstore.common.errors import LogstoreError
from logstore.common.random_id import RandomId, random_id
from logstore.manager import LoadProgress, LogManager, ManagerOwner
from logstore.storage.base import Storage
from replication.broker.alter_partition import AlterPartitionManager
from replication.broker.configs_from_tree import ConfigsFromTree
from replication.broker.controller_channel import REACTIONS, ControllerChannel, Forwarding
from replication.broker.identity import settle_masked_topics
from replication.broker.membership import Membership
from replication.broker.producer_ids import ProducerIdManager, reserve_producer_ids
from replication.broker.proofs import LogProofs
from replication.common.config import ReplicationConfig
from replication.common.error_codes import ErrorCode
from replication.common.messages import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    AlterPartitionReassignmentsRequest,
    AlterPartitionRequest,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    CreatePartitionsRequest,
    CreateTopicRequest,
    DeleteRecordsRequest,
    DeleteTopicRequest,
    ElectLeadersRequest,
    FetchRequest,
    IncrementalAlterConfigsRequest,
    InitProducerIdRequest,
    LeaderAndIsrRequest,
    ListOffsetsRequest,
    ListPartitionReassignmentsRequest,
    MetadataRequest,
    OffsetForLeaderEpochRequest,
    ProduceRequest,
    Request,
    Response,
    StopReplicaRequest,
    UpdateMetadataRequest,
    WriteTxnMarkersRequest,
)
from replication.common.retrying import Backoff, Reaction
from replication.common.runtime import Runtime
from replication.common.state import (
    UNKNOWN_EPOCH,
    BrokerRegistration,
    Endpoint,
)
from replication.common.transport import OnReply, Transport
from replication.controller import Controller
from replication.coordination import (
    Coordinator,
    CoordinatorFactory,
    CoordinatorWentBackError,
    CorruptNodeError,
)
from replication.replica_manager.metadata_cache import MetadataCache
from replication.replica_manager.replica_manager import ReplicaManager

logger = get_logger(__name__)


class BrokerState(Enum):
    """The states of a broker."""

    STARTING = "starting"  # or between two sessions
    RUNNING = "running"
    STOPPING = "stopping"  # its leaderships move away
    CLOSING = "closing"  # its logs are closed, then its session
    STOPPED = "stopped"


# Bound once: to find a member by its enum's attribute takes 0.4 µs on Python 3.11.
_STOPPED, _CLOSING = BrokerState.STOPPED, BrokerState.CLOSING


class BrokerEvent(Enum):
    JOINED = "joined"  # registered with the coordinator
    LOST = "lost"  # its session, and the registration with it
    STOP = "stop"
    CLOSE = "close"  # no leadership is left to move, or no controller to move it
    CLOSED = "closed"
    DIED = "died"


_NEXT_STATES = {
    (BrokerState.STARTING, BrokerEvent.JOINED): BrokerState.RUNNING,
    (BrokerState.RUNNING, BrokerEvent.LOST): BrokerState.STARTING,
    (BrokerState.STARTING, BrokerEvent.STOP): BrokerState.STOPPING,
    (BrokerState.RUNNING, BrokerEvent.STOP): BrokerState.STOPPING,
    (BrokerState.STOPPING, BrokerEvent.JOINED): BrokerState.STOPPING,  # it was under way
    (BrokerState.STOPPING, BrokerEvent.CLOSE): BrokerState.CLOSING,
    (BrokerState.CLOSING, BrokerEvent.CLOSED): BrokerState.STOPPED,
}


def next_state(state: BrokerState, event: BrokerEvent) -> BrokerState | None:
    """The next state; None if the event is not expected and has no effect."""
    if event is BrokerEvent.DIED and state is not BrokerState.STOPPED:
        return BrokerState.STOPPED
    return _NEXT_STATES.get((state, event))


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """The settings of a broker.

    Attributes:
        endpoints: where its listeners are; their sockets are bound by then. The first one stands
            for host and port.
    """

    broker_id: int
    directories: tuple[str, ...]
    log_config: LogConfig | None = None
    broker_config: BrokerConfig | None = None
    config: ReplicationConfig = field(default_factory=ReplicationConfig)
    rack: str | None = None
    endpoints: tuple[Endpoint, ...] = ()
    cluster_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The surroundings of a broker: real files, threads and sockets, or a simulated world.

    Attributes:
        connect: begins a session with the coordinator; called again after one expires.
        transport: sends requests to the other brokers. The owner binds ``Broker.handle`` to the
            broker's id before ``start``.
        random_source, random_id: the source of ids and random choices, seeded in simulations.
        run_later, progress: as of ``ManagerOwner``.
        on_fatal: called when the broker cannot go on, because no log directory is left or another
            process has its id. ``fatal_error`` has the error too.
    """

    connect: CoordinatorFactory
    transport: Transport
    runtime: Runtime
    storage: Storage | None = None
    random_source: random.Random = field(default_factory=random.Random)
    random_id: RandomId = random_id
    run_later: Callable[[Callable[[], None]], None] | None = None
    progress: Callable[[LoadProgress], None] | None = None
    on_fatal: Callable[[LogstoreError], None] = lambda error: None


class Broker:
    """One broker: its log directories, its replicas, and perhaps the controller.

    It opens the directories, joins the cluster, stands for controller, and serves until a stop, a
    crash, or the loss of all log directories. If its session expires a new one replaces it, and the
    logs stay open.

    Raises:
        LogDirLockedError, StorageFailedError, ConfigError: as ``LogManager``.
    """

    def __init__(self, settings: BrokerSettings, surroundings: Surroundings) -> None:
        config, runtime = settings.config, surroundings.runtime
        broker_id, transport = settings.broker_id, surroundings.transport
        self.broker_id = broker_id
        self.config = config
        self.endpoints = settings.endpoints
        self.runtime = runtime
        self.transport = transport
        self.state = BrokerState.STARTING
        self.broker_epoch = UNKNOWN_EPOCH
        self.fatal_error: LogstoreError | None = None
        self._settings, self._surroundings = settings, surroundings
        self._lock = threading.Lock()  # guards the state and what belongs to it
        self._on_stopped: list[Callable[[], None]] = []
        self._actor = runtime.actor(f"broker-{broker_id}")
        # Log directories that failed while they were opened; None from ``start`` on.
        self._early_failures: list[tuple[str, LogstoreError]] | None = []
        self.log_manager = _open_logs(settings, surroundings, self._on_directory_failure)
        self.metadata = MetadataCache(broker_id)
        self.membership = Membership(
            broker_id,
            runtime,
            self._begin_session,
            self._registration,
            self,
            config.initial_broker_registration_timeout_ms,
        )
        channel = ControllerChannel(
            runtime,
            transport,
            lambda: self.controller_id,
            self.membership.find_controller,
            config.controller_socket_timeout_ms,
        )
        self.alter_partition = AlterPartitionManager(
            broker_id, runtime, channel, lambda: self.broker_epoch
        )
        self._forwarding = Forwarding(runtime, self._actor, channel, config.request_timeout_ms)
        pause_ms = config.controlled_shutdown_retry_backoff_ms
        self._departure = channel.call(
            self._actor,
            lambda: ControlledShutdownRequest(self.broker_id, self.broker_epoch),
            _reaction_to_shutdown,
            lambda reaction: self._close(),
            backoff=Backoff(pause_ms, pause_ms, 1.0, 0.0),
            tries=config.controlled_shutdown_max_retries,
        )
        self.replica_manager = ReplicaManager(
            broker_id,
            self.log_manager,
            runtime,
            transport,
            self.metadata,
            self.alter_partition,
            config,
            broker_epoch=lambda: self.broker_epoch,
            on_foreign_tree=self.on_refused,
        )
        self.configs = ConfigsFromTree(
            runtime,
            self.membership.actor,
            lambda: self.membership.session,
            self.metadata,
            self.replica_manager.configure,
        )
        self.proofs = LogProofs(
            broker_id,
            settings.directories[0],
            self.log_manager,
            lambda: self.replica_manager.reported_broker_epoch,
        )
        self.controller = Controller(
            broker_id,
            runtime,
            transport,
            config,
            surroundings.random_source,
            settings.log_config,
        )
        self.producer_ids = ProducerIdManager(broker_id, runtime, lambda: self.membership.session)
        self._handlers = _handlers(self)

    def __repr__(self) -> str:
        return f"Broker({self.broker_id}, {self.state.value}, epoch {self.broker_epoch})"

    def _advance(self, event: BrokerEvent) -> BrokerState | None:
        """Apply an event. Returns the previous state; None if the event was refused.

        Thread-safe.
        """
        with self._lock:
            before, after = self.state, next_state(self.state, event)
            if after is None:
                return None
            self.state = after
            return before

    def handle(self, request: Request, reply: OnReply) -> None:
        """Serve a request: the response goes to ``reply``, now or later; None when stopped."""
        state = self.state
        if state is _STOPPED or state is _CLOSING:
            reply(None)
        else:
            self._handlers[type(request)](request, reply)

    def _largest_producer_id(self) -> int:
        logs = list(self.log_manager.logs.values())
        return max((log.producers.largest_id() for log in logs if not log.failed), default=-1)

    def serve(self, kind: type, handler: Callable[[Any, OnReply], None]) -> None:
        """Let ``handler`` serve requests of a kind, for the layers above a broker."""
        self._handlers[kind] = handler

    def ask_controller(
        self, request: Request, reply: OnReply, timeout_ms: int | None = None
    ) -> None:
        """Have a request for the controller served wherever the controller is, as
        ``Forwarding.forward``, for at most ``request.timeout.ms``. No answer when this broker ends.
        """
        if self.state is BrokerState.STOPPED or self.state is BrokerState.CLOSING:
            reply(None)
        else:
            self._forwarding.forward(request, reply, timeout_ms)

    @property
    def controller_id(self) -> int | None:
        """The controller that this broker knows."""
        return self.membership.controller_id

    def peer(self, broker_id: int) -> BrokerRegistration | None:
        """The latest registration of another broker that this one knows, from any thread: from a
        controller, as a controller, or of the controller before that has sent anything."""
        controller = self.membership.controller
        if controller is not None and controller.registration.broker_id != broker_id:
            controller = None
        found = (
            self.metadata.live_brokers.get(broker_id),
            self.controller.live_broker(broker_id),
            controller,
        )
        known = [each for each in found if each is not None]
        return max(known, key=lambda each: each.broker_epoch).registration if known else None

    def knows_leader(self, tp: TopicPartition) -> bool:
        """Whether this broker names a live leader of the partition to clients; and leads it, if it
        names itself.
        """
        known = self.metadata.registration(tp)
        if known is None or not self.metadata.is_alive(known.leader):
            return False
        if known.leader != self.broker_id:
            return True
        partition = self.replica_manager.partitions.get(tp)
        return partition is not None and partition.is_leader

    # -- membership ----------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to serve. The registration happens in the background, see ``state``."""
        self.replica_manager.startup()
        with self._lock:
            early, self._early_failures = self._early_failures or [], None
        for path, error in early:
            self._on_directory_failure(path, error)
        self.membership.start()

    def _begin_session(self) -> Coordinator:
        try:
            return self._surroundings.connect()
        except CoordinatorWentBackError as error:
            self.on_refused(error)
            raise

    def _registration(self) -> BrokerRegistration:
        now_ms = self.runtime.clock.wall_ms()
        return self.proofs.registration(self.endpoints, self._settings.rack, now_ms)

    def on_joining(self, session: Coordinator) -> None:
        """As `membership.Owner` says, like the next four.

        Once this broker leads, its logs must not meet a new producer that has an id of theirs.
        """
        identity = self.proofs.check_tree(session)
        if not identity.has_kafkas_placement:
            self.metadata.masked_topics = settle_masked_topics(session)
        try:
            reserve_producer_ids(session, self._largest_producer_id())
        except CorruptNodeError as error:  # because of which no id is assigned either
            logger.error("broker %s: no producer ids are reserved: %s", self.broker_id, error)

    def on_joined(self, session: Coordinator, broker_epoch: int) -> None:
        if broker_epoch <= self.broker_epoch:
            error = f"broker epoch {broker_epoch} comes after {self.broker_epoch}"
            self.on_refused(CoordinatorWentBackError(f"{error}: an older state was put back"))
            return
        with self._lock:
            after = next_state(self.state, BrokerEvent.JOINED)
            if after is None:
                self.proofs.note_late_epoch(broker_epoch)
                return
            self.state = after
            # Also for a broker that stops, because the latest of its epochs proves its clean stop.
            self.broker_epoch = broker_epoch
            self.proofs.note_epoch(broker_epoch, is_doubtful=self.membership.has_unknown_epoch)
            if after is BrokerState.RUNNING:
                self.controller.start(session, broker_epoch)  # comes before any ``stop``

    def on_lost(self) -> None:
        self.controller.stop()
        if self._advance(BrokerEvent.LOST) is None:  # a broker that stops
            self._close_soon()  # its leaderships went with the session

    def on_controller(self, controller_id: int | None) -> None:
        if controller_id is not None:
            self.alter_partition.hurry()
            self._actor.post(self._departure.hurry)

    def on_refused(self, error: LogstoreError) -> None:
        self._actor.post(lambda: self._refused(error))

    def _refused(self, error: LogstoreError) -> None:
        if self.fatal_error is not None:
            return
        logger.error("broker %s stops: %s", self.broker_id, error)
        self.fatal_error = error
        self._advance(BrokerEvent.STOP)
        self._close()

    # -- failures ------------------------------------------------------------------------------

    def _on_directory_failure(self, path: str, error: LogstoreError) -> None:
        with self._lock:
            if self._early_failures is not None:
                self._early_failures.append((path, error))
                return
        # The failing thread may hold the log's lock.
        self._actor.post(lambda: self._directory_failed(path, error))

    def _directory_failed(self, path: str, error: LogstoreError) -> None:
        """Close the logs of the directory and report it.

        Without any directory left, stop (R-151 … R-153).
        """
        if self.state in (BrokerState.CLOSING, BrokerState.STOPPED):
            return
        self.replica_manager.on_directory_failure(path, error)
        if self.log_manager.live_directories:
            self.membership.report_directory_failure()
            return
        logger.error("broker %s: no log directory is left", self.broker_id)
        self._die(error)

    # -- stop ----------------------------------------------------------------------------------

    def shutdown(self, on_stopped: Callable[[], None], *, controlled: bool = True) -> None:
        """Stop cleanly: leaderships move first (R-65), then logs are flushed and closed.

        ``on_stopped`` is called once, on any thread, however the broker ends. The owner closes the
        runtime afterwards. A second call waits for the same end; without ``controlled`` it makes
        the first one move no more leaderships.
        """
        with self._lock:
            ended = self.state is BrokerState.STOPPED
            if not ended:
                self._on_stopped.append(on_stopped)
        if ended:
            on_stopped()
            return
        before = self._advance(BrokerEvent.STOP)
        if before is BrokerState.RUNNING and controlled:
            self._actor.post(self._depart)
        elif before is not None or not controlled:
            self._close_soon()

    def _depart(self) -> None:
        if self.state is BrokerState.STOPPING:
            self.replica_manager.begin_controlled_shutdown()
            self._departure.start()

    def _close_soon(self) -> None:
        self.membership.join_no_more()
        self._actor.post(self._close)

    def _close(self) -> None:
        """Close all parts in order, each even if the one before failed."""
        if self._advance(BrokerEvent.CLOSE) is None:
            return
        self.membership.join_no_more()  # no later epoch than the one that ends here
        self._departure.cancel()
        failure: Exception | None = None
        for part in (
            self.controller.stop,
            self.alter_partition.close,
            self.replica_manager.shutdown,
            self._close_logs,
        ):
            try:
                part()
            except Exception as error:
                logger.error("broker %s stops, and part of it fails: %s", self.broker_id, error)
                failure = failure or error
        self.membership.leave(self._closed)
        if failure is not None:
            raise failure

    def _close_logs(self) -> None:
        self.proofs.close_logs(has_unknown_epoch=self.membership.has_unknown_epoch)

    def _closed(self) -> None:
        if self._advance(BrokerEvent.CLOSED) is not None:
            self._report_end()

    def crash(self) -> None:
        """Release everything at once, as the end of the process does. For tests.

        Nothing is flushed or notified, and the session is left to expire.
        """
        self._die(None)

    def _die(self, error: LogstoreError | None) -> None:
        if self._advance(BrokerEvent.DIED) is None:
            return
        self.fatal_error = error
        self.log_manager.crash()
        self.alter_partition.close()
        self.controller.stop()
        self.replica_manager.abandon()
        self.membership.abandon()
        self._report_end()

    def _report_end(self) -> None:
        if self.fatal_error is not None:
            self._surroundings.on_fatal(self.fatal_error)
        with self._lock:
            waiting, self._on_stopped = self._on_stopped, []
        for on_stopped in waiting:
            on_stopped()


def _open_logs(
    settings: BrokerSettings,
    surroundings: Surroundings,
    on_failure: Callable[[str, LogstoreError], None],
) -> LogManager:
    return LogManager(
        list(settings.directories),
        settings.log_config,
        broker_config=settings.broker_config,
        storage=surroundings.storage,
        clock=surroundings.runtime.clock,
        background=False,  # the replica manager does the periodic work
        owner=ManagerOwner(
            cluster_id=settings.cluster_id,
            node_id=settings.broker_id,
            replicated=True,
            run_later=surroundings.run_later,
            progress=surroundings.progress,
            on_directory_failure=on_failure,
            on_log_failure=on_failure,  # its leadership must go, too
            random_id=surroundings.random_id,
        ),
    )


def _handlers(broker: Broker) -> dict[type, Callable[[Any, OnReply], None]]:
    """Map each request to its handler. The layers above a broker add theirs (``serve``)."""
    manager, controller = broker.replica_manager, broker.controller

    def describe(request: MetadataRequest) -> Response:
        known = broker.controller_id
        return broker.metadata.describe(request, -1 if known is None else known)

    def allocate(request: AllocateProducerIdsRequest, reply: OnReply) -> None:
        def judged(verdict: Response | None) -> None:
            is_granted = verdict == AllocateProducerIdsResponse(ErrorCode.NONE)
            if is_granted:
                broker.producer_ids.allocate(request.broker_id, reply)
            else:
                reply(verdict)

        controller.handle(request, judged)

    def control(request: LeaderAndIsrRequest | UpdateMetadataRequest, reply: OnReply) -> None:
        is_first = isinstance(request, UpdateMetadataRequest) and not broker.metadata.is_complete
        if request.sequence or not (request.partitions or is_first):
            manager.control(request, reply)
        else:  # the controller is a real Kafka, which does not number its requests
            broker.configs.complete(
                request, lambda told: reply(None) if told is None else manager.control(told, reply)
            )

    return {
        ProduceRequest: manager.writes.produce,
        FetchRequest: manager.fetches.fetch,
        DeleteRecordsRequest: manager.writes.delete_records,
        OffsetForLeaderEpochRequest: _now(manager.offsets_for_leader_epoch),
        ListOffsetsRequest: _now(manager.list_offsets),
        LeaderAndIsrRequest: control,
        StopReplicaRequest: manager.control,
        UpdateMetadataRequest: control,
        MetadataRequest: _now(describe),
        InitProducerIdRequest: broker.producer_ids.handle,
        WriteTxnMarkersRequest: manager.writes.write_txn_markers,
        AddPartitionsToTxnRequest: _now(_without_coordinator),
        AlterPartitionRequest: controller.handle,
        ControlledShutdownRequest: controller.handle,
        AllocateProducerIdsRequest: allocate,
        ElectLeadersRequest: controller.handle,
        AlterPartitionReassignmentsRequest: controller.handle,
        ListPartitionReassignmentsRequest: controller.handle,
        CreateTopicRequest: controller.handle,
        DeleteTopicRequest: controller.handle,
        CreatePartitionsRequest: controller.handle,
        IncrementalAlterConfigsRequest: controller.handle,
    }


def _reaction_to_shutdown(response: Response) -> Reaction:
    if not isinstance(response, ControlledShutdownResponse):
        return Reaction.AGAIN
    reaction = REACTIONS[response.error_code]
    return Reaction.AGAIN if reaction is Reaction.DONE and response.remaining else reaction


def _without_coordinator(request: AddPartitionsToTxnRequest) -> Response:
    """The answer while no transaction coordinator is registered (``serve``)."""
    code = ErrorCode.NOT_COORDINATOR
    return AddPartitionsToTxnResponse(tuple((tp, code) for tp in request.partitions))


def _now(handler: Callable[[Any], Response]) -> Callable[[Any, OnReply], None]:
    def handle(request: Any, reply: OnReply) -> None:
        reply(handler(request))

    return handle
