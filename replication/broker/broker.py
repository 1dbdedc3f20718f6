"""One broker: wires storage, clock, network and coordination together.

A broker opens the log directories, joins the cluster and stands for controller. It serves until a
stop, a crash or the loss of all log directories. An expired session is replaced by a new one under
a new broker epoch, while the logs stay open. Every change of state goes through ``next_state``.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterable
from enum import Enum
from functools import partial
from typing import Any

from checkpoints.loggers import get_logger
from checkpoints.types import TopicPartition
from logstore.common.config import BrokerConfig, LogConfig
from logstore.common.errors import LogstoreError
from logstore.common.random_id import RandomId, random_id
from logstore.manager import LogManager, ManagerOwner
from logstore.storage.base import Storage
from replication.broker.alter_partition import AlterPartitionManager
from replication.broker.controller_channel import REACTIONS, ControllerChannel
from replication.broker.forwarding import Forwarding
from replication.broker.identity import (
    BrokerHome,
    TreeIdentity,
    check_cluster_id,
    read_topics,
    settle_identity,
)
from replication.broker.key_placement import settle_masked_topics
from replication.broker.membership import Membership
from replication.broker.producer_ids import ProducerIdManager, reserve_producer_ids
from replication.common.config import ReplicationConfig
from replication.common.error_codes import ErrorCode
from replication.common.messages import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
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
    MAX_EPOCH_OF_A_LOG,
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
    nodes,
)
from replication.replica_manager.metadata_cache import MetadataCache
from replication.replica_manager.replica_manager import ReplicaManager

logger = get_logger(__name__)

EPOCHS_NAMED = 64  # the most epochs of earlier sessions in a registration
UNPROVEN_NAMED = 3000  # with the longest names they still fit into a node


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


def next_state(state: BrokerState, event: BrokerEvent) -> BrokerState | None:
    """The next state; None if the event is not expected and has no effect."""
    match state, event:
        case BrokerState.STARTING, BrokerEvent.JOINED:
            return BrokerState.RUNNING
        case BrokerState.RUNNING, BrokerEvent.LOST:
            return BrokerState.STARTING
        case ((BrokerState.STARTING | BrokerState.RUNNING), BrokerEvent.STOP):
            return BrokerState.STOPPING
        case BrokerState.STOPPING, BrokerEvent.JOINED:  # it was under way
            return BrokerState.STOPPING
        case BrokerState.STOPPING, BrokerEvent.CLOSE:
            return BrokerState.CLOSING
        case BrokerState.CLOSING, BrokerEvent.CLOSED:
            return BrokerState.STOPPED
        case BrokerState.STOPPED, _:
            return None
        case _, BrokerEvent.DIED:
            return BrokerState.STOPPED
        case _:
            return None


class Broker:
    """One broker: its log directories, its replicas, and perhaps the controller.

    It opens the directories, joins the cluster, stands for controller, and serves until a stop, a
    crash, or the loss of all log directories. If its session expires a new one replaces it, and the
    logs stay open.

    Args:
        connect: begins a session with the coordinator; called again after one expires.
        transport: sends requests to the other brokers. The owner binds ``handle`` to the broker's
            id before ``start``.
        endpoints: where its listeners are; their sockets are bound by then. The first one stands in
            for ``host`` and ``port``.
        random_source, random_id: the source of ids and random choices, seeded in simulations.
        on_fatal: called when the broker cannot go on, because no log directory is left or another
            process has its id. ``fatal_error`` has the error too.
    Raises:
        LogDirLockedError, StorageFailedError, ConfigError: as ``LogManager``.
    """

    def __init__(
        self,
        broker_id: int,
        directories: Iterable[str | os.PathLike[str]],
        *,
        connect: CoordinatorFactory,
        transport: Transport,
        runtime: Runtime,
        storage: Storage | None = None,
        log_config: LogConfig | None = None,
        broker_config: BrokerConfig | None = None,
        config: ReplicationConfig | None = None,
        host: str = "localhost",
        port: int = -1,
        rack: str | None = None,
        endpoints: tuple[Endpoint, ...] = (),
        cluster_id: str | None = None,
        random_source: random.Random | None = None,
        random_id: RandomId = random_id,
        run_later: Callable[[Callable[[], None]], None] | None = None,
        on_fatal: Callable[[LogstoreError], None] = lambda error: None,
    ) -> None:
        self.broker_id = broker_id
        self.config = config or ReplicationConfig()
        self.runtime = runtime
        self.transport = transport
        self.state = BrokerState.STARTING
        self.broker_epoch = UNKNOWN_EPOCH
        self.fatal_error: LogstoreError | None = None
        self._lock = threading.Lock()  # guards the state and what belongs to it
        self._on_stopped: list[Callable[[], None]] = []
        self._on_fatal = on_fatal
        self._actor = runtime.actor(f"broker-{broker_id}")
        # Log directories that failed while they were opened; None from ``start`` on.
        self._early_failures: list[tuple[str, LogstoreError]] | None = []
        if endpoints:
            host, port = endpoints[0].host, endpoints[0].port
        self._address = (host, port, rack)
        self.endpoints = endpoints
        self._directories = [os.fspath(path) for path in directories]
        self._knows_tree = False
        self.log_manager = LogManager(
            self._directories,
            log_config,
            broker_config=broker_config,
            storage=storage,
            clock=runtime.clock,
            background=False,
            owner=ManagerOwner(
                cluster_id=cluster_id,
                node_id=broker_id,
                replicated=True,
                run_later=run_later,
                on_directory_failure=self._on_directory_failure,
                on_log_failure=self._on_directory_failure,
                random_id=random_id,
            ),
        )
        stop = self.log_manager.last_stop
        self._epochs = stop.broker_epochs  # nothing was lost since these, ascending
        self._unproven: frozenset[TopicPartition] | None = stop.unproven  # None: all
        self._coordinator_epoch = UNKNOWN_EPOCH
        self._first_epoch = self._doubtful_below = UNKNOWN_EPOCH
        self.metadata = MetadataCache(broker_id)
        self.membership = Membership(
            broker_id,
            runtime,
            partial(self._begin_session, connect),
            self._registration,
            self,
            self.config.initial_broker_registration_timeout_ms,
        )
        channel = ControllerChannel(
            runtime,
            transport,
            lambda: self.controller_id,
            self.membership.find_controller,
            self.config.controller_socket_timeout_ms,
        )
        self.alter_partition = AlterPartitionManager(
            broker_id, runtime, channel, lambda: self.broker_epoch
        )
        self._forwarding = Forwarding(runtime, self._actor, channel, self.config.request_timeout_ms)
        self._departure = channel.call(
            self._actor,
            self._farewell,
            self._judge_farewell,
            lambda reaction: self._close(),
            backoff=Backoff(
                self.config.controlled_shutdown_retry_backoff_ms,
                self.config.controlled_shutdown_retry_backoff_ms,
                1.0,
                0.0,
            ),
            tries=self.config.controlled_shutdown_max_retries,
        )
        self.replica_manager = ReplicaManager(
            broker_id,
            self.log_manager,
            runtime,
            transport,
            self.metadata,
            self.alter_partition,
            self.config,
            broker_epoch=lambda: self.broker_epoch,
            on_foreign_tree=self.on_refused,
        )
        self.controller = Controller(
            broker_id,
            runtime,
            transport,
            self.config,
            random_source or random.Random(),
            log_config,
        )
        self.producer_ids = ProducerIdManager(broker_id, runtime, lambda: self.membership.session)
        manager, controller = self.replica_manager, self.controller
        self._handlers: dict[type, Callable[[Any, OnReply], None]] = {
            ProduceRequest: manager.produce,
            FetchRequest: manager.fetch,
            DeleteRecordsRequest: manager.delete_records,
            OffsetForLeaderEpochRequest: _now(manager.offsets_for_leader_epoch),
            ListOffsetsRequest: _now(manager.list_offsets),
            LeaderAndIsrRequest: manager.control,
            StopReplicaRequest: manager.control,
            UpdateMetadataRequest: manager.control,
            MetadataRequest: _now(self._describe),
            InitProducerIdRequest: self.producer_ids.handle,
            WriteTxnMarkersRequest: manager.write_txn_markers,
            AddPartitionsToTxnRequest: _now(_without_coordinator),
            **dict.fromkeys(
                (
                    AlterPartitionRequest,
                    ControlledShutdownRequest,
                    ElectLeadersRequest,
                    AlterPartitionReassignmentsRequest,
                    ListPartitionReassignmentsRequest,
                    CreateTopicRequest,
                    DeleteTopicRequest,
                    CreatePartitionsRequest,
                    IncrementalAlterConfigsRequest,
                ),
                controller.handle,
            ),
        }

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
        ``Forwarding.ask``, for at most ``request.timeout.ms``. Not answered at all when this broker
        ends."""
        if self.state is BrokerState.STOPPED or self.state is BrokerState.CLOSING:
            reply(None)
        else:
            self._forwarding.ask(request, reply, timeout_ms)

    def _describe(self, request: MetadataRequest) -> Response:
        controller = self.controller_id
        return self.metadata.describe(request, -1 if controller is None else controller)

    @property
    def controller_id(self) -> int | None:
        """The controller that this broker knows."""
        return self.membership.controller_id

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

    def _begin_session(self, connect: CoordinatorFactory) -> Coordinator:
        try:
            return connect()
        except CoordinatorWentBackError as error:
            self.on_refused(error)
            raise

    def _registration(self) -> BrokerRegistration:
        """The registration, with the epochs since which nothing was lost: that of the last clean
        stop (KIP-966), those before it, and those of this process.
        """
        previous = self.log_manager.previous_broker_epoch
        unproven = frozenset() if self._is_known else self._unproven
        return BrokerRegistration(
            self.broker_id,
            *self._address,
            previous,
            self.runtime.clock.wall_ms(),
            tuple(epoch for epoch in self._epochs if epoch != previous),
            self.endpoints,
            unproven if unproven is None or len(unproven) <= UNPROVEN_NAMED else None,
            self.log_manager.last_stop.proves_logs,
            self._coordinator_epoch,
        )

    @property
    def _is_known(self) -> bool:
        """Whether a controller has processed a registration of this process.

        Then it knows ``_unproven``. No other one talks to a broker.
        """
        known = self.replica_manager.told_broker_epoch >= self._first_epoch
        return known and self._first_epoch != UNKNOWN_EPOCH

    def on_joining(self, session: Coordinator) -> None:
        """As `membership.Owner` says, like the next four.

        Once this broker leads, its logs must not meet a new producer that has an id of theirs.
        """
        identity = self._check_tree(session)
        if not identity.has_kafkas_placement:
            self.metadata.masked_topics = settle_masked_topics(session)
        try:
            reserve_producer_ids(session, self._largest_producer_id())
        except CorruptNodeError as error:  # because of which no id is assigned either
            logger.error("broker %s: no producer ids are reserved: %s", self.broker_id, error)

    def _check_tree(self, session: Coordinator) -> TreeIdentity:
        """
        Raises:
            InconsistentClusterIdError: the tree is that of another cluster.
        """
        manager = self.log_manager
        logs = {tp: log.topic_id for tp, log in manager.logs.items()}
        home = BrokerHome(self._directories[0], manager.cluster_id, logs)
        if self._knows_tree:
            return check_cluster_id(session, home)
        identity = settle_identity(session, [home], manager.cluster_id)
        self._find_missing_logs(session)
        self._knows_tree = True
        return identity

    def _find_missing_logs(self, session: Coordinator) -> None:
        """Look for replicas of this broker that have no log here, if they may have had one.

        A broker that no controller knows is new, and had none.
        """
        manager = self.log_manager
        unproven = set(manager.last_stop.unproven)
        known = session.get(nodes.broker_epoch_path(self.broker_id)) is not None
        if manager.last_stop.may_miss_logs and known:
            deleting = {*session.children(nodes.DELETE_TOPICS)}  # their logs may have gone first
            unproven.update(
                TopicPartition(name, number)
                for name, topic in read_topics(session).items()
                for number, replicas in topic.partitions.items()
                if self.broker_id in replicas and name not in deleting
            )
            unproven -= manager.logs.keys() - manager.last_stop.unproven
        self._unproven = frozenset(unproven)
        if unproven or not manager.last_stop.proves_logs:
            self._coordinator_epoch = self._largest_coordinator_epoch()
        if unproven:
            logger.error(
                "broker %s: the logs of %s replicas are missing, or are not as its last stop left "
                "them (%s-%s, …): they do not count as in sync",
                self.broker_id,
                len(unproven),
                *min(unproven),
            )

    def _largest_coordinator_epoch(self) -> int:
        """Of logs that may come from another cluster, whose coordinators were elected more often
        than ours: their markers would be refused (R-182)."""
        largest = UNKNOWN_EPOCH
        for log in [each for each in self.log_manager.logs.values() if not each.failed]:
            epoch = log.producers.largest_coordinator_epoch()
            if epoch > MAX_EPOCH_OF_A_LOG:
                logger.error(
                    "%s: a producer has the coordinator epoch %s, above %s: no cluster gets there, "
                    "and its transactions cannot be ended",
                    log.name,
                    epoch,
                    MAX_EPOCH_OF_A_LOG,
                )
            else:
                largest = max(largest, epoch)
        return largest

    def on_joined(self, session: Coordinator, broker_epoch: int) -> None:
        if broker_epoch <= self.broker_epoch:
            error = f"broker epoch {broker_epoch} comes after {self.broker_epoch}"
            self.on_refused(CoordinatorWentBackError(f"{error}: an older state was put back"))
            return
        with self._lock:
            after = next_state(self.state, BrokerEvent.JOINED)
            if after is None:
                self._doubtful_below = broker_epoch
                return
            self.state = after
            # Also for a broker that stops, because the latest of its epochs proves its clean stop.
            self.broker_epoch = broker_epoch
            if self._first_epoch == UNKNOWN_EPOCH:
                self._first_epoch = broker_epoch
            if self.membership.has_unknown_epoch:
                self._doubtful_below = broker_epoch
            self._epochs = (*self._epochs, broker_epoch)[-EPOCHS_NAMED:]
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

    def _farewell(self) -> Request:
        return ControlledShutdownRequest(self.broker_id, self.broker_epoch)

    def _judge_farewell(self, response: Response) -> Reaction:
        if not isinstance(response, ControlledShutdownResponse):
            return Reaction.AGAIN
        reaction = REACTIONS[response.error_code]
        return Reaction.AGAIN if reaction is Reaction.DONE and response.remaining else reaction

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
        """Close the logs.

        The marker has the last epoch, which may be that of an earlier process if this one never
        joined, and earlier ones that a controller may know instead.
        """
        *earlier, last = self._epochs or (UNKNOWN_EPOCH,)
        told = self.replica_manager.told_broker_epoch
        self.log_manager.close(last, [epoch for epoch in earlier if epoch >= told], self._doubts())

    def _doubts(self) -> frozenset[TopicPartition] | None:
        """The replicas whose logs this stop does not prove; None if it proves none.

        It proves none if a controller may know an epoch that the marker does not name: that would
        look like another time. And none if the last stop left something to be looked for, of which
        no controller has heard yet.
        """
        if self.membership.has_unknown_epoch:
            return None
        if self.replica_manager.told_broker_epoch < self._doubtful_below:
            return None
        if self._is_known:
            return frozenset()
        stop = self.log_manager.last_stop
        return self._unproven if stop.broker_epochs and not stop.may_miss_logs else None

    def _closed(self) -> None:
        if self._advance(BrokerEvent.CLOSED) is not None:
            self._tell_the_end()

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
        self._tell_the_end()

    def _tell_the_end(self) -> None:
        if self.fatal_error is not None:
            self._on_fatal(self.fatal_error)
        with self._lock:
            waiting, self._on_stopped = self._on_stopped, []
        for on_stopped in waiting:
            on_stopped()


def _without_coordinator(request: AddPartitionsToTxnRequest) -> Response:
    """The answer while no transaction coordinator is registered (``serve``)."""
    code = ErrorCode.NOT_COORDINATOR
    return AddPartitionsToTxnResponse(tuple((tp, code) for tp in request.partitions))


def _now(handler: Callable[[Any], Response]) -> Callable[[Any, OnReply], None]:
    def handle(request: Any, reply: OnReply) -> None:
        reply(handler(request))

    return handle
