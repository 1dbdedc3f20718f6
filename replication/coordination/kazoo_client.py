"""Everything specific to kazoo: a client that ends with its session, and persistent watches.

kazoo up to 2.11 lacks ``addWatch`` (ZooKeeper 3.6), and begins a new session by itself after an
expiry. Only this module imports kazoo and uses its internals.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

from kazoo import exceptions as zk
from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.connection import _CONNECTION_DROP
from kazoo.protocol.serialization import Watch, write_string
from kazoo.protocol.states import Callback, KeeperState

from checkpoints.loggers import get_logger
from replication.coordination import errors

_PERSISTENT_RECURSIVE = struct.pack(">i", 1)
_RECONNECT = {"max_tries": -1, "delay": 0.05, "max_delay": 1.0}  # seconds; until the session ends

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
    zk.ConnectionClosedError,  # a subclass of SessionExpiredError, so it comes first
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
        logger = get_logger(__name__)
        super().__init__(connection_retry=dict(_RECONNECT), logger=logger, **options)
        self._on_event = on_event
        self._ended = threading.Event()
        self._connection._read_watch_event = self._read_watch_event
        self._handshake = self._connection._invoke
        self._connection._invoke = self._bounded_handshake

    def create_chroot(self, timeout_s: float) -> None:
        """Create the chroot, before any other call. Raises as ``answer``."""
        chroot, self.chroot = self.chroot, ""
        if chroot:
            answer(self.ensure_path_async(chroot), timeout_s, chroot)
        self.chroot = chroot

    def begin(self, timeout_s: float) -> bool:
        """Begin a session. False if no server answers in time."""
        return bool(self.start_async().wait(timeout_s))

    def latest_zxid(self, timeout_s: float) -> int:
        """The last transaction of the ensemble, of which this client's server may lack some.

        Raises as ``answer``.
        """
        answer(self.sync_async("/"), timeout_s, "/")
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


def answer(result: Any, timeout_s: float, path: str) -> Any:
    """Wait for the answer to a request that concerns ``path``.

    Raises:
        CoordinationError: the refusal, ``CoordinatorUnavailableError`` after ``timeout_s``, or
            ``SessionExpiredError``.
    """
    try:
        return result.get(timeout=timeout_s)
    except (zk.KazooException, KazooTimeoutError) as error:
        raise translated(error, path) from error


def is_connection_lost(error: Exception) -> bool:
    """Whether the connection of the request was lost. The next one may work."""
    return isinstance(error, zk.ConnectionLoss | zk.ConnectionClosedError | zk.SessionExpiredError)


def translated(error: Exception, path: str) -> errors.CoordinationError:
    """Our error for one of kazoo's."""
    for kind, refusal in _REFUSALS.items():
        if isinstance(error, kind):
            return refusal(path)
    if isinstance(error, _NO_ANSWER) or getattr(error, "code", 0) in _NO_ANSWER_CODES:
        return errors.CoordinatorUnavailableError(f"{path}: {type(error).__name__}")
    if isinstance(error, zk.SessionExpiredError):
        return errors.SessionExpiredError(f"{path}: the session is over")
    return errors.CoordinationError(f"{path}: {type(error).__name__} {error}".rstrip())


def first_refusal(results: list[Any]) -> tuple[int, Exception] | None:
    """The operation of a transaction that failed, and why."""
    refused = [(i, r) for i, r in enumerate(results) if isinstance(r, Exception)]
    guilty = [(i, r) for i, r in refused if not isinstance(r, _BYSTANDERS)]
    return next(iter(guilty or refused), None)
