"""``BrokerProcess``: one broker in a process of its own, with its listeners, its lanes to the other
brokers, and its session with the coordinator (Kafka's ``KafkaServer``).

Nothing is opened before the coordinator's tree is known to be that of the log directories, and
before no other process has the broker's id (X-84).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from checkpoints.loggers import get_logger
from logstore.common.clock import SystemClock
from logstore.common.errors import LogstoreError
from logstore.manager import LoadProgress, peek
from logstore.storage.base import Storage
from logstore.storage.local import LocalStorage
from replication.broker.broker import Broker, BrokerSettings, Surroundings
from replication.broker.identity import new_cluster_id, read_homes, settle_identity
from replication.broker.metrics import Histogram, Sample
from replication.broker.stages import BrokerStage, stage_of
from replication.common.errors import (
    BrokerUnavailableError,
    DuplicateBrokerRegistrationError,
)
from replication.common.messages import Request
from replication.common.runtime import ThreadRuntime
from replication.common.transport import OnReply
from replication.coordination import (
    CoordinationError,
    Coordinator,
    CoordinatorService,
    CoordinatorUnavailableError,
    Node,
    NodeExistsError,
    nodes,
    open_coordinator,
)
from replication.network import Listener
from replication.security.stored import StoredCredentials
from replication.server.config import MOST_REPLICAS, ServerConfig
from replication.server.groups import group_snapshots
from replication.server.http import GroupSnapshot
from replication.server.kafka_server import LOCAL, Exposure, KafkaServer
from replication.server.serving import HttpListener
from replication.wire.access import ClusterAccess, Peers
from replication.wire.transport import TcpTransport

logger = get_logger(__name__)

COORDINATOR_S = 30.0
"""How long a start waits for the coordinator's first answer."""
POLL_S = 0.05
CLOSE_GRACE_MS = 5000
"""The time for answers under way to clients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSettings:
    """The settings of a process.

    Attributes:
        coordinator: the URL of the engine, as of ``open_coordinator``.
        listeners: one of them is that of the brokers.
        user: name and password by which this broker logs in at others, if their listener asks.
        session_timeout_ms: how long a silent broker counts as alive.
    """

    broker_id: int
    directories: tuple[str, ...]
    coordinator: str
    listeners: Sequence[Listener]
    config: ServerConfig
    exposure: Exposure = LOCAL
    rack: str | None = None
    user: tuple[str, str] | None = None
    session_timeout_ms: int = 18_000

    @property
    def inter_broker(self) -> Listener:
        """The listener of brokers."""
        return next(each for each in self.listeners if each.is_inter_broker)


class BrokerProcess:
    """Use it as a context manager, or call ``close``.

    Args:
        progress: called after each partition is loaded, from any thread.
    """

    def __init__(
        self,
        settings: ProcessSettings,
        progress: Callable[[LoadProgress], None] | None = None,
        storage: Storage | None = None,
    ) -> None:
        self.settings = settings
        self.broker: Broker | None = None
        self.server: KafkaServer | None = None
        self.stage_before = BrokerStage.STARTING
        self._progress = progress
        self._storage = storage or LocalStorage()
        self._clock = SystemClock()
        self._opened = ExitStack()  # closed last first
        self._stopping = threading.Event()

    def __enter__(self) -> BrokerProcess:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def stage(self) -> BrokerStage:
        return self.stage_before if self.broker is None else stage_of(self.broker)

    @property
    def fatal_error(self) -> LogstoreError | None:
        """Why the broker cannot go on, if it cannot."""
        return None if self.broker is None else self.broker.fatal_error

    def brokers(self) -> list[Broker]:
        return [] if self.broker is None else [self.broker]

    def groups(self) -> list[GroupSnapshot]:
        """The consumer groups that this broker coordinates, with their committed offsets."""
        groups = None if self.server is None else self.server.groups
        return group_snapshots([] if groups is None else [groups])

    def samples(self, broker: Broker) -> Iterable[Sample | Histogram]:
        return () if self.server is None else self.server.samples()

    def serve_http(self, listener: HttpListener) -> tuple[str, int]:
        """Serve health, metrics, state and the live page, from before the start to the end.
        Returns the address.

        Raises:
            ConfigError: other machines reach it, and may not.
            OSError: it is taken.
        """
        from replication.server.http.http_server import HttpServer  # 20 ms, needed by few

        pages = HttpServer(self.brokers, self.groups, self.samples, **listener._asdict())
        self._opened.callback(pages.close)
        return pages.address

    # -- start ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Open the logs and begin to serve. It joins the cluster in the background: see ``stage``.

        Raises:
            DuplicateBrokerRegistrationError: another process has the broker's id.
            InconsistentClusterIdError: the tree is that of another cluster than the directories.
            BrokerUnavailableError: the coordinator does not answer, or ``close`` was called.
            ConfigError, OSError: a listener.
            LogDirLockedError, StorageFailedError: as ``LogManager``.
        """
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        settings, config = self.settings, self.settings.config
        service = open_coordinator(
            settings.coordinator, session_timeout_ms=settings.session_timeout_ms
        )
        self._opened.callback(service.close)
        cluster_id = self._claim(service)
        access = ClusterAccess.of_broker(
            settings.broker_id,
            cluster_id,
            config.network,
            config.replication,
            settings.inter_broker.security_protocol,
            settings.user,
        )
        exposure = settings.exposure
        if any(each.security_protocol.has_sasl for each in settings.listeners):
            stored = StoredCredentials(self._node, exposure.credentials)
            exposure = exposure._replace(credentials=stored)
        server = KafkaServer(
            settings.broker_id,
            settings.listeners,
            config.of_cluster(MOST_REPLICAS),
            exposure,
            advertised=config.node.advertised,
            user=settings.user and settings.user[0],
        )
        self._opened.callback(server.close, 0)
        runtime = ThreadRuntime(f"broker-{settings.broker_id}")
        self._opened.callback(runtime.close)
        peers = Peers.of(settings.broker_id, runtime, self._find, self._handle)
        transport = TcpTransport(access, peers=peers)
        self._opened.callback(transport.close)
        self.stage_before = BrokerStage.RECOVERING
        broker = Broker(
            BrokerSettings(
                broker_id=settings.broker_id,
                directories=settings.directories,
                log_config=config.log,
                broker_config=config.broker,
                config=config.replication,
                cluster_id=cluster_id,
                rack=settings.rack,
                endpoints=server.endpoints,
            ),
            Surroundings(
                connect=service.connect,
                transport=transport,
                runtime=runtime,
                storage=self._storage,
                progress=self._progress,
                on_fatal=lambda error: server.close(0),
            ),
        )
        server.serve(broker)
        self.broker, self.server = broker, server
        broker.start()

    def _claim(self, service: CoordinatorService) -> str:
        """Make sure that nobody else has the broker's id. Returns the id of the cluster.

        Who has the locks of directories that are this broker's has no earlier life that still runs,
        so they are opened while the session of that one ends. New directories wait for it, and for
        other starts with this id, in a session that lasts as long as this object.
        """
        settings = self.settings
        session = self._connect(service)
        held = self._opened.enter_context(ExitStack())
        held.callback(_close, session)
        homes = read_homes(settings.directories[0], settings.directories, self._storage)
        cluster_id = settle_identity(session, homes, new_cluster_id()).cluster_id
        if self._has_directories(cluster_id):
            held.close()
            return cluster_id
        taken = nodes.broker_path(settings.broker_id)

        def claim() -> bool:
            with suppress(NodeExistsError):
                session.create(
                    f"{nodes.STARTING}/{settings.broker_id}", ephemeral=True, parents=True
                )
                return True
            return False

        timeout_s = settings.config.replication.initial_broker_registration_timeout_ms / 1000
        is_mine = claim()
        if not is_mine or session.get(taken) is not None:
            logger.warning(
                "a process has the id %d; the end of its session is awaited for %d s",
                settings.broker_id,
                timeout_s,
            )
        try:
            self._wait(lambda: is_mine or claim(), timeout_s)
            self._wait(lambda: session.get(taken) is None, timeout_s)
        except TimeoutError:
            raise DuplicateBrokerRegistrationError(settings.broker_id) from None
        return cluster_id

    def _has_directories(self, cluster_id: str) -> bool:
        """Whether all log directories say that they are this broker's."""
        found = [peek(each, self._storage).meta for each in self.settings.directories]
        return all(
            meta is not None
            and (meta.cluster_id, meta.node_id) == (cluster_id, self.settings.broker_id)
            for meta in found
        )

    def _connect(self, service: CoordinatorService) -> Coordinator:
        found: list[Coordinator] = []

        def connect() -> bool:
            try:
                found.append(service.connect())
            except CoordinationError as error:
                logger.warning("%s", error)
                return False
            return True

        try:
            self._wait(connect, COORDINATOR_S)
        except TimeoutError:
            raise BrokerUnavailableError(
                f"{self.settings.coordinator} does not answer for {COORDINATOR_S:.0f} s"
            ) from None
        return found[0]

    def _wait(self, condition: Callable[[], bool], timeout_s: float) -> None:
        """
        Raises:
            TimeoutError: it did not happen in time.
            BrokerUnavailableError: the process stops.
        """
        ends = self._now_s() + timeout_s
        while not condition():
            if self._now_s() >= ends:
                raise TimeoutError
            if self._stopping.wait(POLL_S):
                raise BrokerUnavailableError("the broker stops")

    def _now_s(self) -> float:
        return self._clock.monotonic_ns() / 1e9

    def _handle(self, request: Request, on_reply: OnReply) -> None:
        broker = self.broker
        if broker is None:
            on_reply(None)
        else:
            broker.handle(request, on_reply)

    def _node(self, path: str) -> Node | None:
        """A node of the tree, in the session that there is.

        Raises:
            CoordinationError: there is none, or no answer.
        """
        session = None if self.broker is None else self.broker.membership.session
        if session is None:
            raise CoordinatorUnavailableError("no session")
        return session.get(path)

    # -- other brokers -------------------------------------------------------------------------

    def _find(self, broker_id: int) -> tuple[str, int] | None:
        """The address of another broker for brokers."""
        broker = self.broker
        peer = None if broker is None else broker.peer(broker_id)
        if peer is None:
            return None
        endpoint = peer.endpoint(self.settings.inter_broker.name)
        return None if endpoint is None else (endpoint.host, endpoint.port)

    # -- the end -------------------------------------------------------------------------------

    def stop(self) -> None:
        """Begin to end from any thread: ``start`` waits no more, and ``close`` does the rest."""
        self._stopping.set()

    def close(self, *, controlled: bool = True) -> None:
        """Stop cleanly. Idempotent.

        Args:
            controlled: move leaderships away first.
        """
        self._stopping.set()
        broker, server = self.broker, self.server
        if broker is not None and server is not None:
            stopped = threading.Event()
            broker.shutdown(stopped.set, controlled=controlled)
            stopped.wait()
            server.close(CLOSE_GRACE_MS)
        self._opened.close()


def _close(session: Coordinator) -> None:
    with suppress(CoordinationError):
        session.close()
