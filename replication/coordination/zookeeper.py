"""The coordinator over a real ZooKeeper (3.6 or later), through kazoo, which only this module
imports.

ZooKeeper keeps the tree and the sessions. kazoo pings, and reconnects while a session lives. This
module adds bounded waits, typed errors, watches that survive a reconnect, and one object for each
session: kazoo up to 2.11 lacks ``addWatch`` (ZooKeeper 3.6), and begins a new session by itself
after an expiry.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from kazoo import exceptions as zk
from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.connection import _CONNECTION_DROP
from kazoo.protocol.serialization import Watch, write_string
from kazoo.protocol.states import Callback, KazooState, KeeperState

from checkpoints.loggers import get_logger
from logstore.common.forks import Ownership
from replication.common.limited_log import LimitedLogger
from replication.coordination import errors
from replication.coordination.base import (
    Check,
    Coordinator,
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
    check_op,
    check_path,
    parent_of,
)

logger = get_logger(__name__)

WATCH_BACKOFF_S = (0.05, 0.1, 0.2, 0.5, 1.0)  # for consecutive refusals; the last one repeats

_PERSISTENT_RECURSIVE = struct.pack(">i", 1)
_RECONNECT = {"max_tries": -1, "delay": 0.05, "max_delay": 1.0}  # seconds; until the session ends
_STATES = {
    KazooState.CONNECTED: SessionState.CONNECTED,
    KazooState.SUSPENDED: SessionState.SUSPENDED,
    KazooState.LOST: SessionState.EXPIRED,
}
_KINDS = {1: EventKind.CREATED, 2: EventKind.DELETED, 3: EventKind.CHANGED}
_REFUSALS: dict[type[Exception], Callable[[str], errors.CoordinationError]] = {
    zk.NoNodeError: errors.NoNodeError,
    zk.NodeExistsError: errors.NodeExistsError,
    zk.BadVersionError: errors.BadVersionError,
    zk.NotEmptyError: errors.NotEmptyError,
    zk.NoChildrenForEphemeralsError: errors.NoChildrenForEphemeralsError,
    zk.NoAuthError: errors.NotPermittedError,
}
_NO_ANSWER = (
    KazooTimeoutError,
    zk.ConnectionLoss,
    zk.ConnectionClosedError,  # a subclass of its SessionExpiredError, so it comes first
    zk.OperationTimeoutError,
    zk.SessionMovedError,
    zk.NotReadOnlyCallError,
)
_NO_ANSWER_CODES = (-122, -127)  # request timeout and throttled: classes only since kazoo 2.11
# Other operations of a transaction, which fail only because one did.
_BYSTANDERS = (zk.RolledBackError, zk.RuntimeInconsistency)


class _AddWatch(NamedTuple):
    """ZooKeeper's ``AddWatchRequest``. kazoo sends any object with these attributes."""

    path: str

    @property
    def type(self) -> int:
        return 106

    def serialize(self) -> bytes:
        return bytes(write_string(self.path) + _PERSISTENT_RECURSIVE)

    def deserialize(self, _bytes: bytes, _offset: int) -> bool:
        return True  # the answer is in the header's error code


class OneSessionClient(KazooClient):  # type: ignore[misc]
    """A ``KazooClient`` for one session.

    Args:
        on_event: called with the number of an event's type and its path without the chroot, on the
            thread of the connection.
    """

    chroot: str

    def __init__(self, on_event: Callable[[int, str], None], **options: Any) -> None:
        super().__init__(connection_retry=dict(_RECONNECT), logger=logger, **options)
        self._on_event = on_event
        self._ended = threading.Event()
        self._connection._read_watch_event = self._read_watch_event
        self._handshake = self._connection._invoke
        self._connection._invoke = self._bounded_handshake

    def create_chroot(self, timeout_s: float) -> None:
        """Create the chroot, before any other call. Raises as ``_answer``."""
        chroot, self.chroot = self.chroot, ""
        if chroot:
            _answer(self.ensure_path_async(chroot), timeout_s, chroot)
        self.chroot = chroot

    def begin(self, timeout_s: float) -> bool:
        """Begin a session. False if no server answers in time."""
        return bool(self.start_async().wait(timeout_s))

    def latest_zxid(self, timeout_s: float) -> int:
        """The last transaction of the ensemble, of which this client's server may lack some.

        Raises as ``_answer``.
        """
        _answer(self.sync_async("/"), timeout_s, "/")
        return int(self.last_zxid)

    def add_watch_async(self, path: str) -> Any:
        """Request all events at and below ``path``, until the connection is lost."""
        result = self.handler.async_result()
        full = self.chroot + path if path != "/" else self.chroot or "/"
        self._call(_AddWatch(full), result)
        return result

    def in_callback_thread(self, task: Callable[[], None]) -> None:
        """Run ``task`` in kazoo's callback thread, where an exception is logged."""
        self.handler.dispatch_callback(Callback("watch", task, ()))

    def after(self, delay_s: float, task: Callable[[], None]) -> None:
        """Run ``task`` later, in one of kazoo's threads, unless this client has ended by then."""

        def wait() -> None:
            if not self._ended.wait(delay_s):
                task()

        self.handler.spawn(wait)

    def end(self) -> None:
        """Close the session if it is alive, and release threads and sockets.

        Waits for kazoo's threads, so it must not be called from one.
        """
        self._ended.set()
        if self._stopped.is_set():
            self._safe_close()
        else:
            self.stop()
        self.close()

    def abandon(self) -> None:
        """Release threads and sockets without informing the servers. Waits as ``end``."""
        self._ended.set()
        self._stopped.set()
        self._queue.append((_CONNECTION_DROP, None))
        with suppress(OSError, AttributeError):  # already stopped by an expiry
            self._connection._write_sock.send(b"\0")
        self._safe_close()
        self.close()

    def _bounded_handshake(self, timeout_s: float, *request: Any) -> Any:
        """Bound the handshake, so that a server that hangs does not cost the session."""
        return self._handshake(min(timeout_s, self._session_timeout / 3000), *request)

    def _read_watch_event(self, buffer: bytes, offset: int) -> None:
        event, _ = Watch.deserialize(buffer, offset)
        self._on_event(event.type, self.unchroot(event.path))

    def _session_callback(self, state: str) -> None:
        if state == KeeperState.EXPIRED_SESSION:
            self._stopped.set()  # otherwise kazoo would continue with another session
        super()._session_callback(state)


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
        self.request_timeout_s = (request_timeout_ms or session_timeout_ms) / 1000
        self.connect_timeout_s = connect_timeout_ms / 1000
        self.deliver = deliver
        self._options = {"hosts": hosts, "timeout": session_timeout_ms / 1000, **(options or {})}
        self._zxid = 0  # the last transaction that any session of this process has seen
        self._went_back = ""  # why no session begins any more

    def connect(self) -> ZooKeeperCoordinator:
        return ZooKeeperCoordinator(self)

    def client(self, on_event: Callable[[int, str], None]) -> OneSessionClient:
        return OneSessionClient(on_event, **self._options)

    def saw(self, zxid: int) -> None:
        """Note a transaction that a session has seen."""
        self._zxid = max(self._zxid, zxid)

    def check_history(self, client: OneSessionClient) -> None:
        """
        Raises:
            CoordinatorWentBackError: the ensemble has lost transactions.
        """
        seen_before = self._zxid  # another session may see more before the answer is here
        latest = client.latest_zxid(self.request_timeout_s)
        if latest < seen_before:
            self._went_back = (
                f"ZooKeeper at {self.hosts} is at transaction {latest:#x}, and was at "
                f"{seen_before:#x}: it was put back to an older state"
            )
        if self._went_back:  # for good, because new transactions take the numbers of lost ones
            raise errors.CoordinatorWentBackError(self._went_back)
        self.saw(latest)

    def close(self) -> None:
        """Does nothing, because every session is closed by itself."""


class ZooKeeperCoordinator(Coordinator):
    """One session with the methods of `Coordinator`, made by ``ZooKeeper.connect``."""

    def __init__(self, service: ZooKeeper) -> None:
        self._service = service
        self._ownership = Ownership(f"the session with {service.hosts}")
        self._timeout_s = service.request_timeout_s
        self._session_id = 0  # until it has begun
        self._log = LimitedLogger(logger)
        self._lock = threading.Lock()
        self._state = SessionState.SUSPENDED
        self._closed = False
        self._looking = False  # one look after the other, while the session is suspended
        self._watches: dict[str, list[WatchListener]] = {}
        self._state_listeners: list[StateListener] = []
        self._client = service.client(self._on_event)
        self._deliver_to = service.deliver or self._client.in_callback_thread
        self._client.add_listener(self._on_kazoo_state)
        try:
            if not self._client.begin(service.connect_timeout_s):
                raise errors.CoordinatorUnavailableError(f"{service.hosts} does not answer")
            identity = self._client.client_id
            if identity is None:
                raise errors.CoordinatorUnavailableError(f"{service.hosts}: connection lost")
            self._session_id = identity[0]
            self._client.create_chroot(self._timeout_s)
            service.check_history(self._client)
        except BaseException:
            self.close()
            raise

    @property
    def session_id(self) -> int:
        return self._session_id

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
            real_path, stat = _answer(result, self._timeout_s, path)
        except errors.NoNodeError:
            raise errors.NoNodeError(parent_of(path)) from None
        return str(real_path), int(stat.czxid)

    def get(self, path: str) -> Node | None:
        check_path(path)
        self._check()
        try:
            data, stat = _answer(self._client.get_async(path), self._timeout_s, path)
        except errors.NoNodeError:
            return None
        # A node of another client may have no data at all.
        # The version of the children counts each that came and each that went.
        removed = (stat.cversion - stat.numChildren) // 2
        return Node(bytes(data or b""), stat.version, stat.czxid, stat.ephemeralOwner, removed)

    def children(self, path: str) -> list[str]:
        check_path(path)
        self._check()
        try:
            return sorted(_answer(self._client.get_children_async(path), self._timeout_s, path))
        except errors.NoNodeError:
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
        results = _answer(transaction.commit_async(), self._timeout_s, ops[0].path)
        refused = [(op, r) for op, r in zip(ops, results, strict=True) if isinstance(r, Exception)]
        guilty = [(op, error) for op, error in refused if not isinstance(error, _BYSTANDERS)]
        for op, error in guilty or refused:
            is_parent = isinstance(op, Create) and isinstance(error, zk.NoNodeError)
            raise _translated(error, parent_of(op.path) if is_parent else op.path)
        return [_result(op, result) for op, result in zip(ops, results, strict=True)]

    def watch(self, path: str, listener: WatchListener) -> None:
        check_path(path)
        self._check()
        with self._lock:
            listeners = self._watches.setdefault(path, [])
            listeners.append(listener)
        try:
            # Repeat it for each listener, because the first request may have been refused.
            _answer(self._client.add_watch_async(path), self._timeout_s, path)
        except errors.CoordinationError:
            with self._lock:
                listeners.remove(listener)
            raise

    def on_state(self, listener: StateListener) -> None:
        self._state_listeners.append(listener)

    def close(self) -> None:
        self._end(OneSessionClient.end)

    def abandon(self) -> None:
        """Go silent as the end of the process does, so that the servers wait for the session
        timeout. Otherwise as ``close``.
        """
        self._end(OneSessionClient.abandon)

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
            logger.warning("session %#x was not closed in order", self._session_id, exc_info=True)

    # --- parts

    def _check(self) -> None:
        """Refuse a request without a connection: it would wait, and run at an unknown time."""
        self._ownership.check()
        if self._state is SessionState.EXPIRED:
            raise errors.SessionExpiredError(f"session {self._session_id:#x} is over")
        if self._state is SessionState.SUSPENDED:
            raise errors.CoordinatorUnavailableError("no connection to ZooKeeper")

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
            self._service.saw(self._client.last_zxid)
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
        probe = self._service.client(lambda kind, path: None)
        try:
            if probe.begin(self._timeout_s):
                self._service.check_history(probe)
        except errors.CoordinatorWentBackError as error:
            logger.error("session %#x is over: %s", self._session_id, error)
            self._on_kazoo_state(KazooState.LOST)
            return
        except errors.CoordinationError as error:
            logger.debug("session %#x stays suspended: %s", self._session_id, error)
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
            if not _is_connection_lost(error):
                self._log.warning(
                    "the watch of %s is refused, and asked for again: %s",
                    path,
                    _translated(error, path),
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


def _answer(result: Any, timeout_s: float, path: str) -> Any:
    """Wait for the answer to a request that concerns ``path``.

    Raises:
        CoordinationError: the refusal, ``CoordinatorUnavailableError`` after ``timeout_s``, or
            ``SessionExpiredError``.
    """
    try:
        return result.get(timeout=timeout_s)
    except (zk.KazooException, KazooTimeoutError) as error:
        raise _translated(error, path) from error


def _is_connection_lost(error: Exception) -> bool:
    """Whether the connection of the request was lost. The next one may work."""
    return isinstance(error, zk.ConnectionLoss | zk.ConnectionClosedError | zk.SessionExpiredError)


def _translated(error: Exception, path: str) -> errors.CoordinationError:
    """Our error for one of kazoo's."""
    for kind, refusal in _REFUSALS.items():
        if isinstance(error, kind):
            return refusal(path)
    if isinstance(error, _NO_ANSWER) or getattr(error, "code", 0) in _NO_ANSWER_CODES:
        return errors.CoordinatorUnavailableError(f"{path}: {type(error).__name__}")
    if isinstance(error, zk.SessionExpiredError):
        return errors.SessionExpiredError(f"{path}: the session is over")
    return errors.CoordinationError(f"{path}: {type(error).__name__} {error}".rstrip())
