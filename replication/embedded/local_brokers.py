"""Brokers of one process, on real files and real threads.

Each can be started, stopped, crashed and cut off while others serve.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Protocol, Self

from logstore.common.config import BrokerConfig, LogConfig
from logstore.common.errors import ConfigError, LogstoreError
from logstore.common.forks import Ownership
from logstore.storage.base import Storage
from logstore.storage.local import LocalStorage
from logstore.storage.paths import absolute_path
from replication.broker.broker import Broker, BrokerSettings, BrokerState, Surroundings
from replication.broker.identity import BrokerHome, new_cluster_id, read_homes, settle_identity
from replication.client import Client
from replication.common.config import ReplicationConfig
from replication.common.errors import BrokerUnavailableError
from replication.common.runtime import ThreadRuntime
from replication.common.state import Endpoint
from replication.common.transport import LocalNetwork, LocalTransport
from replication.coordination import (
    CoordinationError,
    Coordinator,
    CoordinatorService,
    CoordinatorUnavailableError,
    SessionExpiredError,
    open_coordinator,
)

POLL_S = 0.002
PROGRESS_MS = 1000
CLOSE_GRACE_MS = 5000  # time for answers under way to clients
CLIENT = -1  # the node of clients in the network


class RequestListener(Protocol):
    """The bound sockets of one life of a broker.

    Attributes:
        endpoints: where clients reach it.
    """

    @property
    def endpoints(self) -> tuple[Endpoint, ...]: ...
    def serve(self, broker: Broker) -> None:
        """Take requests for ``broker`` from now on."""
        ...

    def close(self, grace_ms: int) -> None:
        """Take no more requests. Those in process may be answered for ``grace_ms``. Idempotent."""
        ...


OpenRequestListener = Callable[[int], RequestListener]
"""Binds the sockets of the broker of that id: the same ones in each of its lives.

Raises:
    OSError: an address is taken.
"""


class LocalBrokers:
    """The brokers of a cluster. Use it as a context manager, or call ``close``.

    Arguments and errors are those of `Cluster`.
    """

    def __init__(
        self,
        brokers: int | Iterable[int] = 3,
        directory: str | os.PathLike[str] | None = None,
        *,
        coordinator: str | CoordinatorService = "embedded",
        log_config: LogConfig | None = None,
        broker_config: BrokerConfig | None = None,
        config: ReplicationConfig | None = None,
        storage: Storage | None = None,
        storages: Mapping[int, Storage] | None = None,
        log_dirs_per_broker: int = 1,
        log_dirs: Mapping[int, Sequence[str]] | None = None,
        session_timeout_ms: int = 6000,
        cluster_id: str | None = None,
        request_listener: OpenRequestListener | None = None,
        racks: Mapping[int, str] | None = None,
    ) -> None:
        self.broker_ids = list(range(brokers)) if isinstance(brokers, int) else list(brokers)
        if not self.broker_ids or len(set(self.broker_ids)) < len(self.broker_ids):
            raise ConfigError(f"brokers = {brokers!r}: one at least, and each id once")
        self._storage = storage or LocalStorage()
        self._temporary = directory is None
        # Once, for all lives of the brokers, wherever the process goes.
        self.directory = absolute_path(
            self._storage, directory or tempfile.mkdtemp(prefix="logstore-cluster-")
        )
        self._ownership = Ownership(self.directory)
        self.network = LocalNetwork()
        self._storages = dict(storages or {})
        self._log_config = log_config
        self._broker_config = broker_config
        self._config = config or ReplicationConfig()
        self._log_dirs = log_dirs_per_broker
        self._log_dirs_elsewhere = dict(log_dirs or {})
        self._runtime = ThreadRuntime("cluster")
        try:
            self.coordinator = self._open_coordinator(coordinator, session_timeout_ms)
        except BaseException:
            self._runtime.close()
            self._remove_temporary()
            raise
        self._sessions: dict[int, Coordinator] = {}
        self._cut_off: set[int] = set()
        self._brokers: dict[int, Broker] = {}
        self._open_request_listener = request_listener
        self._racks = dict(racks or {})
        self._request_listeners: dict[int, RequestListener] = {}
        self._closed = False
        self._starting = threading.Lock()  # one start at a time, and none after the end
        self.client = Client(
            LocalTransport(self.network, CLIENT, self._runtime),
            lambda: self.network.bound,
            timers=self._runtime,
        )
        try:
            self._cluster_id = self._settle_cluster_id(cluster_id)
        except BaseException:
            self.close()
            raise
        self._start_all()

    def _settle_cluster_id(self, given: str | None) -> str:
        """The id of the tree, before any broker is started.

        Raises:
            InconsistentClusterIdError: it is not that of all directories, or not ``given``.
            TimeoutError: the coordinator does not answer.
        """
        homes = [BrokerHome("cluster_id", given, {})] if given is not None else []
        for broker_id in self.broker_ids:
            storage = self._storages.get(broker_id, self._storage)
            homes += read_homes(self._directory_of(broker_id), self.log_dirs(broker_id), storage)
        found: list[str] = []

        def ask() -> bool:
            try:
                session = self.coordinator.connect()
            except CoordinatorUnavailableError:
                return False
            try:
                identity = settle_identity(session, homes, given or new_cluster_id())
                found.append(identity.cluster_id)
            except (CoordinatorUnavailableError, SessionExpiredError):
                return False
            finally:
                with suppress(CoordinationError):
                    session.close()
            return True

        self.wait_until(ask, "the coordinator answers")
        return found[0]

    def _open_coordinator(
        self, coordinator: str | CoordinatorService, session_timeout_ms: int
    ) -> CoordinatorService:
        if not isinstance(coordinator, str):
            return coordinator
        if coordinator != "embedded":
            return open_coordinator(coordinator, session_timeout_ms=session_timeout_ms)
        directory = os.path.join(self.directory, "coordinator")
        service = open_coordinator(
            f"embedded:{directory}", storage=self._storage, session_timeout_ms=session_timeout_ms
        )
        self._runtime.every(session_timeout_ms / 4, self._keep_sessions)
        return service

    def _keep_sessions(self) -> None:
        """Send heartbeats and expire sessions, because the embedded coordinator has no other
        source.
        """
        for broker_id, session in list(self._sessions.items()):
            broker = self._brokers.get(broker_id)
            if broker is not None and broker.state is not BrokerState.STOPPED:
                heartbeat: Callable[[], None] = getattr(session, "heartbeat", lambda: None)
                try:
                    heartbeat()
                except LogstoreError:
                    continue
        expire: Callable[[int], None] = getattr(
            self.coordinator, "expire_sessions", lambda now: None
        )
        expire(self._runtime.now_ms())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _start_all(self) -> None:
        """Start every broker and wait until each knows the cluster.

        Raises:
            DuplicateBrokerRegistrationError, TimeoutError: as ``start``; all are closed again.
        """
        try:
            for broker_id in self.broker_ids:
                self._start(broker_id)
            self.wait_until(lambda: all(map(self._has_joined, self.broker_ids)), "brokers register")
            self.wait_until(lambda: self.controller_id is not None, "a controller")
            self.wait_until(
                lambda: all(broker.metadata.is_complete for broker in self.running()),
                "brokers know the topics",
            )
        except BaseException:
            self.close()
            raise

    # -- brokers -------------------------------------------------------------------------------

    def log_dirs(self, broker_id: int) -> list[str]:
        """The log directories of a broker."""
        elsewhere = self._log_dirs_elsewhere.get(broker_id)
        if elsewhere is not None:
            return list(elsewhere)
        base = self._directory_of(broker_id)
        if self._log_dirs == 1:
            return [base]
        return [os.path.join(base, f"logs-{n}") for n in range(self._log_dirs)]

    def _directory_of(self, broker_id: int) -> str:
        return os.path.join(self.directory, f"broker-{broker_id}")

    def broker(self, broker_id: int) -> Broker:
        """
        Raises:
            BrokerUnavailableError: it is not running.
            ForkedError: another process opened the cluster.
        """
        self._ownership.check()
        broker = self._brokers.get(broker_id)
        if broker is None or broker.state is BrokerState.STOPPED:
            raise BrokerUnavailableError(f"broker {broker_id} is not running")
        return broker

    def session(self, broker_id: int) -> Coordinator:
        """The present session of a broker with the coordinator.

        Raises:
            BrokerUnavailableError: it has none.
        """
        self._ownership.check()
        session = self._sessions.get(broker_id)
        if session is None:
            raise BrokerUnavailableError(f"broker {broker_id} has no session")
        return session

    @property
    def live_brokers(self) -> list[int]:
        return [b for b in self.broker_ids if self._is_running(b)]

    def _is_running(self, broker_id: int) -> bool:
        broker = self._brokers.get(broker_id)
        return broker is not None and broker.state is BrokerState.RUNNING

    @property
    def controller_id(self) -> int | None:
        """The broker that is controller now."""
        active = [i for i in self.live_brokers if self._brokers[i].controller.active]
        return active[0] if len(active) == 1 else None

    def _start(self, broker_id: int) -> None:
        def connect() -> Coordinator:
            session = self.coordinator.connect()
            if self._brokers.get(broker_id) is broker:  # otherwise this answer is outdated
                self._sessions[broker_id] = session
            return session

        def on_fatal(error: LogstoreError) -> None:
            self.network.unbind(broker_id, broker.handle)
            if request_listener is not None:
                request_listener.close(0)
            self._forget_session(broker_id, broker)

        earlier = self._brokers.get(broker_id)
        if earlier is not None:
            earlier.runtime.close()  # for one that stopped by itself
        request_listener = (
            self._open_request_listener(broker_id) if self._open_request_listener else None
        )
        runtime = ThreadRuntime(f"broker-{broker_id}")
        try:
            broker = Broker(
                BrokerSettings(
                    broker_id=broker_id,
                    directories=tuple(self.log_dirs(broker_id)),
                    log_config=self._log_config,
                    broker_config=self._broker_config,
                    config=self._config,
                    cluster_id=self._cluster_id,
                    rack=self._racks.get(broker_id),
                    endpoints=request_listener.endpoints if request_listener is not None else (),
                ),
                Surroundings(
                    connect=connect,
                    transport=LocalTransport(self.network, broker_id, runtime),
                    runtime=runtime,
                    storage=self._storages.get(broker_id, self._storage),
                    on_fatal=on_fatal,
                ),
            )
            if request_listener is not None:
                request_listener.serve(broker)
                self._request_listeners[broker_id] = request_listener
        except BaseException:
            if request_listener is not None:
                request_listener.close(0)
            runtime.close()
            raise
        self._brokers[broker_id] = broker
        self.network.bind(broker_id, broker.handle)
        broker.start()

    def start(self, broker_id: int, *, wait: bool = True) -> None:
        """Start a broker that was stopped or crashed, or is being stopped; ``wait`` until it is
        registered and knows the topics from a controller, so that it serves clients.

        Raises:
            BrokerUnavailableError: the cluster was closed.
            DuplicateBrokerRegistrationError: another process has its id.
            TimeoutError: the coordinator does not answer, or no controller reaches the broker.
        """
        self._ownership.check()
        broker = self._brokers.get(broker_id)
        if broker is not None and broker.state in (BrokerState.STOPPING, BrokerState.CLOSING):
            stops = broker
            self.wait_until(lambda: stops.state is BrokerState.STOPPED, f"broker {broker_id} stops")
        with self._starting:
            if self._closed:
                raise BrokerUnavailableError(f"broker {broker_id}: the cluster is closed")
            broker = self._brokers.get(broker_id)
            if broker is None or broker.state is BrokerState.STOPPED:
                self._start(broker_id)
            started = self._brokers[broker_id]
        if wait and started.state is BrokerState.STARTING:
            self.wait_until(lambda: self._has_joined(broker_id), f"broker {broker_id} registers")
        if wait:
            self.wait_until(
                lambda: started.metadata.is_complete or started.state is not BrokerState.RUNNING,
                f"broker {broker_id} knows the topics",
            )

    def _has_joined(self, broker_id: int) -> bool:
        error = self._brokers[broker_id].fatal_error
        if error is not None:
            raise error
        return self._is_running(broker_id)

    def stop(self, broker_id: int, *, controlled: bool = True) -> None:
        """Stop a broker cleanly: its leaderships move, its logs are flushed and closed.

        Returns once the broker is down, even if it dies first or another thread stops it too.
        """
        broker = self.broker(broker_id)
        stopped = threading.Event()
        request_listener = self._request_listeners.get(broker_id)
        broker.shutdown(stopped.set, controlled=controlled)
        stopped.wait()
        if request_listener is not None:
            request_listener.close(CLOSE_GRACE_MS)
        self.network.unbind(broker_id, broker.handle)
        broker.runtime.close()
        self._take_session(broker_id, broker)

    def crash(self, broker_id: int, *, notice: bool = True) -> None:
        """End a broker as ``kill -9`` would: nothing is flushed, no file is closed in order.

        Args:
            notice: end its session at once, so that the controller knows. Otherwise its session
                times out.
        """
        broker = self.broker(broker_id)
        self.network.unbind(broker_id, broker.handle)
        request_listener = self._request_listeners.get(broker_id)
        if request_listener is not None:
            request_listener.close(0)
        session = self._take_session(broker_id, broker)  # before a concurrent stop can
        broker.crash()
        broker.runtime.close()
        if notice and session is not None:
            session.close()
        else:
            _abandon(session)

    def _take_session(self, broker_id: int, broker: Broker) -> Coordinator | None:
        """Take the session of a broker.

        None if the broker was started again, since the session belongs to its new life.
        """
        if self._brokers.get(broker_id) is not broker:
            return None
        return self._sessions.pop(broker_id, None)

    def _forget_session(self, broker_id: int, broker: Broker) -> None:
        """Let a session go silent and end by its timeout."""
        _abandon(self._take_session(broker_id, broker))

    def restart(self, broker_id: int) -> None:
        """``stop`` and ``start``."""
        self.stop(broker_id)
        self.start(broker_id)

    def cut_off(self, broker_id: int, *, coordinator: bool = True) -> None:
        """Cut a broker's links to all others, and to the coordinator; clients still reach it."""
        self._ownership.check()
        self._cut_off.add(broker_id)
        for other in self.broker_ids:
            if other != broker_id:
                self.network.cut(broker_id, other)
                self.network.cut(other, broker_id)
        suspend: Callable[[], None] | None = getattr(self._sessions.get(broker_id), "suspend", None)
        if coordinator and suspend is not None:
            suspend()

    def heal(self, broker_id: int | None = None) -> None:
        """Undo every ``cut_off``, or that of one broker."""
        self._ownership.check()
        healed = [*self._sessions] if broker_id is None else [broker_id]
        self._cut_off = set() if broker_id is None else self._cut_off - {broker_id}
        self.network.heal(broker_id, self._cut_off)
        for session in map(self._sessions.get, healed):
            resume: Callable[[], None] | None = getattr(session, "resume", None)
            if resume is not None:
                resume()

    def close(self) -> None:
        """Stop all brokers cleanly, one after the other, without moving leaderships.

        Waiting calls of ``client`` end. In a forked child only its descriptors are closed.
        """
        self.client.close()
        if self._ownership.lost is not None:
            self._closed = True
            for broker in self._brokers.values():
                broker.log_manager.close()
            self.coordinator.close()
            return
        with self._starting:
            if self._closed:
                return
            self._closed = True
        self.heal()
        for broker_id in self.network.bound:
            self.network.unbind(broker_id)  # no reads of a log that is being closed
        for broker_id in list(self._brokers):
            with suppress(BrokerUnavailableError):  # it is down already
                self.stop(broker_id, controlled=False)
            self._brokers[broker_id].runtime.close()
        self._runtime.close()  # its timer asks the coordinator
        self.coordinator.close()
        self._remove_temporary()

    def _remove_temporary(self) -> None:
        if self._temporary:
            shutil.rmtree(self.directory, ignore_errors=True)

    def running(self) -> list[Broker]:
        return [self._brokers[b] for b in self.live_brokers]

    def wait_until(
        self,
        condition: Callable[[], bool],
        what: str = "a condition",
        timeout_s: float = 30.0,
        progress: Callable[[], object] = lambda: None,
    ) -> None:
        """
        Args:
            progress: the time restarts whenever what this returns has changed. It may cost more
                than the condition, and is called once a second.
        Raises:
            TimeoutError: it did not happen in time; the text names ``what``.
            BrokerUnavailableError: the cluster was closed.
        """
        self._ownership.check()
        now_ms = self._runtime.now_ms
        began, before = now_ms(), progress()
        look = began + PROGRESS_MS
        pause = threading.Event().wait
        while not condition():
            if self._closed:
                raise BrokerUnavailableError(f"the cluster is closed: {what}")
            at = now_ms()
            is_late = at > began + timeout_s * 1000
            if is_late or at >= look:
                look = at + PROGRESS_MS
                if before != (now := progress()):
                    began, before = at, now
                elif is_late:
                    raise TimeoutError(f"waited {timeout_s:.0f} s in vain: {what}")
            pause(POLL_S)


def _abandon(session: Coordinator | None) -> None:
    abandon: Callable[[], None] | None = getattr(session, "abandon", None)
    if abandon is not None:
        abandon()
