"""One broker: the place which wires storage, clock, network and coordination together.

Life: open the log directories, begin a session with the coordinator, register, stand for
controller; serve until a stop, a crash or the loss of all log directories. A session that expires
is replaced by a new one under a new broker epoch while the logs stay open.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any

from checkpoints.loggers import get_logger
from logstore.config import BrokerConfig, LogConfig
from logstore.errors import LogstoreError
from logstore.manager import LogManager
from logstore.random_id import RandomId, random_id
from logstore.storage.base import Storage
from replication.alter_partition import AlterPartitionManager
from replication.config import ReplicationConfig
from replication.controller import Controller
from replication.coordination import (
    CoordinationError,
    Coordinator,
    CoordinatorFactory,
    NodeExistsError,
    SessionState,
    nodes,
)
from replication.error_codes import ErrorCode
from replication.messages import (
    AlterPartitionRequest,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    CreateTopicRequest,
    DeleteRecordsRequest,
    DeleteTopicRequest,
    ElectLeadersRequest,
    FetchRequest,
    InitProducerIdRequest,
    LeaderAndIsrRequest,
    ListOffsetsRequest,
    MetadataRequest,
    OffsetForLeaderEpochRequest,
    ProduceRequest,
    Request,
    Response,
    StopReplicaRequest,
    UpdateMetadataRequest,
)
from replication.metadata_cache import MetadataCache
from replication.producer_ids import ProducerIdManager
from replication.replica_manager import ReplicaManager
from replication.runtime import Runtime, Task
from replication.state import UNKNOWN_EPOCH, BrokerRegistration
from replication.transport import OnReply, Transport

logger = get_logger(__name__)

SESSION_RETRY_MS = 100


class BrokerState(Enum):
    STARTING = "starting"  # or between two sessions
    RUNNING = "running"
    STOPPING = "stopping"
    STOPPED = "stopped"


class Broker:
    """See the module.

    Args:
        connect: begins a session with the coordinator; called again after one expires.
        transport: this broker's way to the others. The owner binds ``handle`` to the broker's id
            before ``start``.
        random_source, random_id: where ids and random choices come from; seeded in simulations.
        on_fatal: told, on the broker's actor, when it cannot go on (no log directory is left).
    Raises (constructor):
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
        cluster_id: str | None = None,
        random_source: random.Random | None = None,
        random_id: RandomId = random_id,
        run_later: Callable[[Callable[[], None]], None] | None = None,
        on_fatal: Callable[[LogstoreError], None] = lambda error: None,
    ) -> None:
        self.broker_id = broker_id
        self.config = config or ReplicationConfig()
        self.runtime = runtime
        self.state = BrokerState.STARTING
        self._state_lock = threading.Lock()
        self.broker_epoch = UNKNOWN_EPOCH
        self._connect = connect
        self._transport = transport
        self._on_fatal = on_fatal
        self._actor = runtime.actor(f"broker-{broker_id}")
        self._coordinator: Coordinator | None = None
        self._controller_id: int | None = None
        self._address = (host, port, rack)
        self.log_manager = LogManager(
            directories, log_config, broker_config=broker_config, storage=storage,
            clock=runtime.clock, cluster_id=cluster_id, node_id=broker_id, replicated=True,
            background=False,  # the replica manager does the periodic work
            run_later=run_later, on_directory_failure=self._on_directory_failure,
            random_id=random_id,
        )  # fmt: skip
        self._clean_epoch = self.log_manager.previous_broker_epoch
        self.metadata = MetadataCache(broker_id)
        self.alter_partition = AlterPartitionManager(
            broker_id, runtime, transport, lambda: self._controller_id, lambda: self.broker_epoch
        )
        self.replica_manager = ReplicaManager(
            broker_id, self.log_manager, runtime, transport, self.metadata, self.alter_partition,
            self.config, broker_epoch=lambda: self.broker_epoch,
        )  # fmt: skip
        self.controller = Controller(
            broker_id,
            runtime,
            transport,
            self.config,
            random_source or random.Random(),
            log_config,
        )
        self.producer_ids = ProducerIdManager(broker_id, runtime, lambda: self._coordinator)
        manager, controller = self.replica_manager, self.controller
        self._handlers: dict[type, Callable[[Any, OnReply], None]] = {
            ProduceRequest: manager.produce,
            FetchRequest: manager.fetch,
            DeleteRecordsRequest: manager.delete_records,
            OffsetForLeaderEpochRequest: _now(manager.offsets_for_leader_epoch),
            ListOffsetsRequest: _now(manager.list_offsets),
            LeaderAndIsrRequest: _now(manager.leader_and_isr),
            StopReplicaRequest: _now(manager.stop_replicas),
            UpdateMetadataRequest: _now(manager.update_metadata),
            MetadataRequest: _now(self._describe),
            InitProducerIdRequest: self.producer_ids.handle,
            **dict.fromkeys(
                (
                    AlterPartitionRequest, ControlledShutdownRequest, ElectLeadersRequest,
                    CreateTopicRequest, DeleteTopicRequest,
                ),
                controller.handle,
            ),
        }  # fmt: skip

    def __repr__(self) -> str:
        return f"Broker({self.broker_id}, {self.state.value}, epoch {self.broker_epoch})"

    def _become(self, state: BrokerState, *earlier: BrokerState) -> bool:
        """Change the state if it is one of ``earlier``: a crash may come from any thread."""
        with self._state_lock:
            if self.state not in earlier:
                return False
            self.state = state
            return True

    def _later(self, delay_ms: float, task: Task) -> None:
        self.runtime.call_later(delay_ms, lambda: self._actor.post(task))

    def handle(self, request: Request, reply: OnReply) -> None:
        """Serve a request: the response goes to ``reply``, now or later; None when stopped."""
        if self.state is BrokerState.STOPPED:
            reply(None)
        else:
            self._handlers[type(request)](request, reply)

    def _describe(self, request: MetadataRequest) -> Response:
        controller = self._controller_id
        return self.metadata.describe(request, -1 if controller is None else controller)

    @property
    def controller_id(self) -> int | None:
        """The controller as this broker knows it."""
        return self._controller_id

    # -- start ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to serve; registration goes on in the background (``state`` tells)."""
        self.replica_manager.startup()
        self._actor.post(self._begin_session)

    def _begin_session(self) -> None:
        if self.state is not BrokerState.STARTING:
            return
        try:
            coordinator = self._coordinator
            if coordinator is None or coordinator.state is SessionState.EXPIRED:
                if coordinator is not None:
                    coordinator.close()  # lets go of its threads and sockets
                    self._coordinator = None
                coordinator = self._coordinator = self._new_session()
            self._register(coordinator)
        except NodeExistsError:  # an earlier session of this broker has not yet expired
            self._later(SESSION_RETRY_MS, self._begin_session)
        except CoordinationError as error:
            logger.warning("broker %s: no session yet: %s", self.broker_id, error)
            self._later(SESSION_RETRY_MS, self._begin_session)

    def _new_session(self) -> Coordinator:
        session = self._connect()
        try:
            session.on_state(
                lambda state: self._actor.post(lambda: self._on_session(session, state))
            )
            session.watch(
                nodes.CONTROLLER,
                lambda event: self._actor.post(lambda: self._find_controller(session)),
            )
        except CoordinationError:
            session.close()
            raise
        return session

    def _register(self, coordinator: Coordinator) -> None:
        """R-63. The epoch of the last clean stop goes with it (KIP-966)."""
        host, port, rack = self._address
        registration = BrokerRegistration(
            self.broker_id, host, port, rack, self._clean_epoch, self.runtime.clock.wall_ms()
        )
        path = nodes.broker_path(self.broker_id)
        try:
            _, epoch = coordinator.create(
                path, nodes.encode_broker(registration), ephemeral=True, parents=True
            )
        except NodeExistsError:
            node = coordinator.get(path)
            if node is None or node.ephemeral_owner != coordinator.session_id:
                raise
            epoch = node.czxid  # created by a try whose answer was lost
        self.broker_epoch = epoch
        self._clean_epoch = epoch  # a new session of this process follows on it: nothing was lost
        if not self._become(BrokerState.RUNNING, BrokerState.STARTING):
            return
        self._find_controller(coordinator)
        self.controller.start(coordinator, epoch)

    def _find_controller(self, coordinator: Coordinator) -> None:
        if coordinator is not self._coordinator:
            return
        try:
            node = coordinator.get(nodes.CONTROLLER)
            self._controller_id = None if node is None else nodes.decode_controller(node.data)
        except CoordinationError as error:
            logger.warning("broker %s: who is controller? %s", self.broker_id, error)

    def _on_session(self, coordinator: Coordinator, state: SessionState) -> None:
        if coordinator is not self._coordinator or self.state is BrokerState.STOPPED:
            return
        if state is SessionState.EXPIRED:
            logger.warning("broker %s: its session expired", self.broker_id)
            self.controller.stop()
            self._become(BrokerState.STARTING, BrokerState.RUNNING)
            self._begin_session()
        elif state is SessionState.CONNECTED:
            self._find_controller(coordinator)

    # -- failures ------------------------------------------------------------------------------

    def _on_directory_failure(self, path: str, error: LogstoreError) -> None:
        # The thread that met it may hold the log's lock.
        self._actor.post(lambda: self._directory_failed(path, error))

    def _directory_failed(self, path: str, error: LogstoreError) -> None:
        """R-151 … R-153."""
        if self.state is BrokerState.STOPPED:
            return
        self.replica_manager.on_directory_failure(path, error)
        if not self.log_manager.live_directories:
            logger.error("broker %s: no log directory is left", self.broker_id)
            self.crash()
            self._on_fatal(error)
            return
        self._report_directory_failure()

    def _report_directory_failure(self) -> None:
        if self._coordinator is None or self.state is BrokerState.STOPPED:
            return
        try:
            self._coordinator.create(
                nodes.log_dir_event_path(), nodes.encode_log_dir_event(self.broker_id),
                sequential=True, parents=True,
            )  # fmt: skip
        except CoordinationError as error:
            logger.warning("broker %s: log directory event: %s", self.broker_id, error)
            self._later(SESSION_RETRY_MS, self._report_directory_failure)

    # -- stop ----------------------------------------------------------------------------------

    def shutdown(self, on_stopped: Callable[[], None], *, controlled: bool = True) -> None:
        """Stop cleanly: leaderships move first (R-65), then logs are flushed and closed.

        ``on_stopped`` is called on the broker's actor; the owner closes the runtime afterwards.
        """
        self._actor.post(lambda: self._shutdown(on_stopped, controlled))

    def _shutdown(self, on_stopped: Callable[[], None], controlled: bool) -> None:
        registered = self._become(BrokerState.STOPPING, BrokerState.RUNNING)
        if not registered and not self._become(BrokerState.STOPPING, BrokerState.STARTING):
            return
        if controlled and registered:
            self.replica_manager.begin_controlled_shutdown()
            self._ask_to_stop(on_stopped, self.config.controlled_shutdown_max_retries)
        else:
            self._stop(on_stopped)

    def _ask_to_stop(self, on_stopped: Callable[[], None], tries: int) -> None:
        def on_reply(response: Response | None) -> None:
            self._actor.post(lambda: answered(response))

        def answered(response: Response | None) -> None:
            moved = (
                isinstance(response, ControlledShutdownResponse)
                and response.error_code is ErrorCode.NONE
                and not response.remaining
            )
            if moved or tries <= 1 or self.state is not BrokerState.STOPPING:
                self._stop(on_stopped)
                return
            self._later(
                self.config.controlled_shutdown_retry_backoff_ms,
                lambda: self._ask_to_stop(on_stopped, tries - 1),
            )

        if self._controller_id is None:
            answered(None)
            return
        request = ControlledShutdownRequest(self.broker_id, self.broker_epoch)
        self._transport.send(self._controller_id, request, on_reply)

    def _stop(self, on_stopped: Callable[[], None]) -> None:
        if not self._become(BrokerState.STOPPED, BrokerState.STOPPING):
            return
        self.controller.stop()
        self.alter_partition.close()
        self.replica_manager.shutdown()
        self.log_manager.close(broker_epoch=self.broker_epoch)
        if self._coordinator is not None:
            try:
                self._coordinator.close()
            except CoordinationError as error:
                logger.warning("broker %s: end of session: %s", self.broker_id, error)
        on_stopped()

    def crash(self) -> None:
        """Let go of everything at once, as the end of the process does; for tests.

        Nothing is flushed or told to anybody; the session is left to expire.
        """
        with self._state_lock:
            self.state = BrokerState.STOPPED
        self.log_manager.crash()
        self.alter_partition.close()
        self.controller.stop()
        self.replica_manager.abandon()


def _now(handler: Callable[[Any], Response]) -> Callable[[Any, OnReply], None]:
    def handle(request: Any, reply: OnReply) -> None:
        reply(handler(request))

    return handle
