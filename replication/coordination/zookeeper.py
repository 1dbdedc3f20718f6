"""The coordinator over a real ZooKeeper (3.6 or later), through kazoo.

ZooKeeper keeps the tree and the sessions. kazoo pings, and reconnects while a session lives. This
module adds bounded waits, typed errors, watches that survive a reconnect, and one object for each
session.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

from checkpoints.loggers import get_logger
from logstore.common.extras import Extra, load
from logstore.common.forks import Ownership
from replication.common.limited_log import LimitedLogger
from replication.coordination.base import (
    ANY_VERSION,
    Check,
    Create,
    Delete,
    Deliver,
    EventKind,
    Node,
    Op,
    OpResult,
    SessionState,
    Set,
    StateListener,
    WatchEvent,
    WatchListener,
    ancestors_of,
    check_data,
    check_op,
    check_path,
    parent_of,
)
from replication.coordination.errors import (
    CoordinationError,
    CoordinatorUnavailableError,
    CoordinatorWentBackError,
    NoNodeError,
    SessionExpiredError,
)

if TYPE_CHECKING:
    from replication.coordination.kazoo_client import OneSessionClient

logger = get_logger(__name__)

WATCH_BACKOFF_S = (0.05, 0.1, 0.2, 0.5, 1.0)  # for consecutive refusals; the last one repeats

_STATES = {
    "CONNECTED": SessionState.CONNECTED,
    "SUSPENDED": SessionState.SUSPENDED,
    "LOST": SessionState.EXPIRED,
}
_KINDS = {1: EventKind.CREATED, 2: EventKind.DELETED, 3: EventKind.CHANGED}


class _History:
    """The last transaction that any session of this process has seen."""

    def __init__(self) -> None:
        self._zxid = 0
        self._went_back = ""  # why no session begins any more

    def seen(self, zxid: int) -> None:
        self._zxid = max(self._zxid, zxid)

    def check(self, latest_zxid: int, hosts: str) -> None:
        """
        Raises:
            CoordinatorWentBackError: the ensemble has lost transactions.
        """
        if latest_zxid < self._zxid:
            self._went_back = (
                f"ZooKeeper at {hosts} is at transaction {latest_zxid:#x}, and was at "
                f"{self._zxid:#x}: it was put back to an older state"
            )
        if self._went_back:  # for good, because new transactions take the numbers of lost ones
            raise CoordinatorWentBackError(self._went_back)
        self.seen(latest_zxid)


class ZooKeeper:
    """An ensemble; ``connect`` begins a session with it. Holds nothing itself.

    Args:
        hosts: ``host:port,host:port/chroot``; the chroot is created when it is missing.
        session_timeout_ms: the requested timeout. The servers have their own bounds.
        request_timeout_ms: how long a call waits for its answer; by default the session's timeout.
        connect_timeout_ms: how long ``connect`` waits.
        deliver: runs notifications; by default in a thread of kazoo, from which a session must not
            be closed.
        options: more arguments of ``KazooClient``, such as ``auth_data`` or ``use_ssl``.
    Raises:
        ConfigError: kazoo is not installed.
    """

    def __init__(
        self,
        hosts: str,
        *,
        session_timeout_ms: int = 18_000,
        request_timeout_ms: int | None = None,
        connect_timeout_ms: int = 18_000,
        deliver: Deliver | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.hosts = hosts
        self._kazoo = load("replication.coordination.kazoo_client", Extra.ZOOKEEPER, "ZooKeeper")
        self._session_timeout_ms = session_timeout_ms
        self._request_timeout_ms = request_timeout_ms or session_timeout_ms
        self._connect_timeout_ms = connect_timeout_ms
        self._deliver = deliver
        self._options = dict(options or {})
        self._history = _History()

    def connect(self) -> ZooKeeperCoordinator:
        return ZooKeeperCoordinator(
            self._kazoo,
            {"hosts": self.hosts, "timeout": self._session_timeout_ms / 1000, **self._options},
            self._connect_timeout_ms,
            self._request_timeout_ms,
            self._deliver,
            self._history,
        )

    def close(self) -> None:
        """Does nothing, because every session is closed by itself."""


class ZooKeeperCoordinator:
    """One session with the methods of `Coordinator`, made by ``ZooKeeper.connect``."""

    def __init__(
        self,
        kazoo_client: ModuleType,
        options: Mapping[str, Any],
        connect_timeout_ms: int,
        request_timeout_ms: int,
        deliver: Deliver | None,
        history: _History,
    ) -> None:
        self._kazoo = kazoo_client
        self._ownership = Ownership(f"the session with {options['hosts']}")
        self._options = options
        self._history = history
        self._timeout_s = request_timeout_ms / 1000
        self._log = LimitedLogger(logger)
        self._lock = threading.Lock()
        self._state = SessionState.SUSPENDED
        self._closed = False
        self._looking = False  # one look after the other, while the session is suspended
        self._watches: dict[str, list[WatchListener]] = {}
        self._state_listeners: list[StateListener] = []
        self._client: OneSessionClient = kazoo_client.OneSessionClient(self._on_event, **options)
        self._deliver_to = deliver or self._client.in_callback_thread
        self._client.add_listener(self._on_kazoo_state)
        try:
            if not self._client.begin(connect_timeout_ms / 1000):
                raise CoordinatorUnavailableError(f"{options['hosts']} does not answer")
            identity = self._client.client_id
            if identity is None:
                raise CoordinatorUnavailableError(f"{options['hosts']}: connection lost")
            self._session_id: int = identity[0]
            self._client.create_chroot(self._timeout_s)
            history.check(self._client.latest_zxid(self._timeout_s), options["hosts"])
        except BaseException:
            self.close()
            raise

    @property
    def session_id(self) -> int:
        return self._session_id

    @property
    def session_password(self) -> bytes:
        """The password with which another client could take over the session."""
        return bytes(self._client._session_passwd)

    @property
    def state(self) -> SessionState:
        return self._state

    def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        ephemeral: bool = False,
        sequential: bool = False,
        parents: bool = False,
    ) -> tuple[str, int]:
        check_op(Create(path, data, ephemeral, sequential))
        self._check()
        result = self._client.create_async(
            path,
            data,
            ephemeral=ephemeral,
            sequence=sequential,
            makepath=parents,
            include_data=True,
        )
        try:
            real_path, stat = self._answer(result, path)
        except NoNodeError:
            raise NoNodeError(parent_of(path)) from None
        return str(real_path), int(stat.czxid)

    def get(self, path: str) -> Node | None:
        check_path(path)
        self._check()
        try:
            data, stat = self._answer(self._client.get_async(path), path)
        except NoNodeError:
            return None
        # A node of another client may have no data at all.
        # The version of the children counts each that came and each that went.
        removed = (stat.cversion - stat.numChildren) // 2
        return Node(bytes(data or b""), stat.version, stat.czxid, stat.ephemeralOwner, removed)

    def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> int:
        check_path(path)
        check_data(data)
        self._check()
        return int(self._answer(self._client.set_async(path, data, version), path).version)

    def delete(self, path: str, version: int = ANY_VERSION) -> None:
        check_path(path)
        self._check()
        self._answer(self._client.delete_async(path, version), path)

    def children(self, path: str) -> list[str]:
        check_path(path)
        self._check()
        try:
            return sorted(self._answer(self._client.get_children_async(path), path))
        except NoNodeError:
            return []

    def transact(self, ops: Sequence[Op]) -> list[OpResult]:
        for op in ops:
            check_op(op)
        self._check()
        if not ops:
            return []
        transaction = self._client.transaction()
        for op in ops:
            match op:
                case Create(path, data, ephemeral, sequential):
                    transaction.create(path, data, ephemeral=ephemeral, sequence=sequential)
                case Set(path, data, version):
                    transaction.set_data(path, data, version)
                case Delete(path, version):
                    transaction.delete(path, version)
                case Check(path, version):
                    transaction.check(path, version)
        results = self._answer(transaction.commit_async(), ops[0].path)
        refused = self._kazoo.first_refusal(results)
        if refused is not None:
            index, error = refused
            path = ops[index].path
            translated = self._kazoo.translated(error, path)
            if isinstance(translated, NoNodeError) and isinstance(ops[index], Create):
                raise NoNodeError(parent_of(path))
            raise translated
        return [_result(op, result) for op, result in zip(ops, results, strict=True)]

    def watch(self, path: str, listener: WatchListener) -> None:
        check_path(path)
        self._check()
        with self._lock:
            listeners = self._watches.setdefault(path, [])
            listeners.append(listener)
        try:
            # Repeat it for each listener, because the first request may have been refused.
            self._answer(self._client.add_watch_async(path), path)
        except CoordinationError:
            with self._lock:
                listeners.remove(listener)
            raise

    def on_state(self, listener: StateListener) -> None:
        self._state_listeners.append(listener)

    def close(self) -> None:
        self._end(self._kazoo.OneSessionClient.end)

    def abandon(self) -> None:
        """Go silent as the end of the process does, so that the servers wait for the session
        timeout. Otherwise as ``close``. For tests.
        """
        self._end(self._kazoo.OneSessionClient.abandon)

    def _end(self, how: Callable[[OneSessionClient], None]) -> None:
        if self._ownership.lost is not None:  # its socket is the parent's
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._state = SessionState.EXPIRED
        try:
            how(self._client)
        except Exception:  # the servers end the session by its timeout
            logger.warning("session %#x was not closed in order", self._id_or_0(), exc_info=True)

    # --- parts

    def _id_or_0(self) -> int:
        return getattr(self, "_session_id", 0)

    def _check(self) -> None:
        """Refuse a request without a connection: it would wait, and run at an unknown time."""
        self._ownership.check()
        if self._state is SessionState.EXPIRED:
            raise SessionExpiredError(f"session {self._id_or_0():#x} is over")
        if self._state is SessionState.SUSPENDED:
            raise CoordinatorUnavailableError("no connection to ZooKeeper")

    def _answer(self, result: Any, path: str) -> Any:
        return self._kazoo.answer(result, self._timeout_s, path)

    def _deliver(self, task: Callable[[], None]) -> None:
        try:
            self._deliver_to(task)
        except Exception:  # it would end kazoo's connection
            logger.exception("a notification was lost")

    def _on_event(self, kind: int, path: str) -> None:
        """In kazoo's connection thread."""
        if kind not in _KINDS:
            return
        event = WatchEvent(_KINDS[kind], path)
        with self._lock:
            listeners = [each for at in ancestors_of(path) for each in self._watches.get(at, ())]
        for listener in listeners:
            self._deliver(partial(listener, event))

    def _on_kazoo_state(self, kazoo_state: str) -> None:
        """In kazoo's connection thread."""
        state = _STATES[kazoo_state]
        with self._lock:
            # An expiry is final: kazoo reports that its client is closed after it.
            if self._closed or self._state in (state, SessionState.EXPIRED):
                return
            self._state = state
            self._history.seen(self._client.last_zxid)
            watched = list(self._watches) if state is SessionState.CONNECTED else []
        for listener in list(self._state_listeners):
            self._deliver(partial(listener, state))
        if state is SessionState.SUSPENDED and not self._looking:
            self._looking = True
            self._client.after(self._timeout_s, self._look_at_history)
        for path in watched:  # the server forgot them with the connection
            self._watch_again(path, 0)

    def _look_at_history(self) -> None:
        """End the session if no server can have it: one that went back refuses a client that has
        seen more, and never says why.
        """
        with self._lock:
            self._looking = self._state is SessionState.SUSPENDED
        if not self._looking:
            return
        probe = self._kazoo.OneSessionClient(lambda kind, path: None, **self._options)
        try:
            if probe.begin(self._timeout_s):
                latest = probe.latest_zxid(self._timeout_s)
                self._history.check(latest, self._options["hosts"])
        except CoordinatorWentBackError as error:
            logger.error("session %#x is over: %s", self._id_or_0(), error)
            self._on_kazoo_state("LOST")
            return
        except CoordinationError as error:
            logger.debug("session %#x stays suspended: %s", self._id_or_0(), error)
        finally:
            probe.end()
        self._client.after(self._timeout_s, self._look_at_history)

    def _watch_again(self, path: str, failures: int) -> None:
        if self._state is SessionState.CONNECTED:
            result = self._client.add_watch_async(path)
            result.rawlink(partial(self._on_watch_back, path, failures))

    def _on_watch_back(self, path: str, failures: int, result: Any) -> None:
        """Send MISSED to all listeners, because changes between the connections are unknown."""
        error = result.exception
        if error is not None:
            # After a lost connection the next one restores the watch. On a live one nothing else
            # would, and changes would be missed for as long as it lives.
            if not self._kazoo.is_connection_lost(error):
                self._log.warning(
                    "the watch of %s is refused, and asked for again: %s",
                    path,
                    self._kazoo.translated(error, path),
                    about=path,
                )
                again = partial(self._watch_again, path, failures + 1)
                self._client.after(WATCH_BACKOFF_S[min(failures, len(WATCH_BACKOFF_S) - 1)], again)
            return
        with self._lock:
            listeners = list(self._watches.get(path, ()))
        for listener in listeners:
            self._deliver(partial(listener, WatchEvent(EventKind.MISSED, path)))


def _result(op: Op, result: Any) -> OpResult:
    if isinstance(op, Create):
        return str(result)
    return int(result.version) if isinstance(op, Set) else None
