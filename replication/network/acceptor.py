"""The thread that accepts connections, within their quotas (Kafka's ``Acceptor``)."""

from __future__ import annotations

import errno
import select
import socket
import threading
from collections.abc import Callable

from checkpoints.loggers import get_logger
from replication.common.limited_log import LimitedLogger
from replication.network.limits import ConnectionQuotas
from replication.network.listeners import Listener
from replication.network.wakeup import Wakeup

logger = get_logger(__name__)
limited = LimitedLogger(logger)

# The machine is short of descriptors or memory; the connection waits in the backlog.
_SHORTAGES = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_SHORTAGE_WAIT_S = 0.1


class Acceptor:
    """One thread for all listeners.

    Args:
        sockets: bound and listening, each with its listener; the acceptor closes them. That of the
            brokers, where others have their own, accepts whatever the bounds for all say (X-60).
        on_accepted: given a connected socket that does not block, and the peer's host and port.
    """

    def __init__(
        self,
        name: str,
        sockets: list[tuple[socket.socket, Listener]],
        quotas: ConnectionQuotas,
        on_accepted: Callable[[socket.socket, Listener, str, int], None],
    ) -> None:
        self._sockets = {each.fileno(): (each, listener) for each, listener in sockets}
        self._bounded = {
            descriptor
            for descriptor, (_, listener) in self._sockets.items()
            if len(sockets) == 1 or not listener.is_inter_broker
        }
        self._quotas = quotas
        self._on_accepted = on_accepted
        self._closing = False
        self._epoll = select.epoll()
        self._wakeup = Wakeup(self._epoll)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """A connection was closed: there may be room for another."""
        self._wakeup.set()

    def close(self) -> None:
        """Accept no more, and wait for the thread. Connections in a backlog are reset."""
        self._closing = True
        self._wakeup.set()
        if self._thread.ident is not None:
            self._thread.join()
        self.disown()

    def disown(self) -> None:
        """Close the descriptors; in a forked child they are copies. The parent's epoll watches the
        same sockets, so nothing is taken out of it."""
        for listening, _ in self._sockets.values():
            listening.close()
        self._wakeup.close()
        self._epoll.close()

    def _run(self) -> None:
        watched: set[int] = set()
        pause_s = 0.0
        while not self._closing:
            wait_ms = self._quotas.wait_ms()
            wanted = set() if pause_s else {*self._sockets}
            if wait_ms != 0:
                wanted -= self._bounded
            for descriptor in wanted - watched:
                self._epoll.register(descriptor, select.EPOLLIN)
            for descriptor in watched - wanted:
                self._epoll.unregister(descriptor)
            watched = wanted
            timeout_s = pause_s or (wait_ms / 1000 if wait_ms else None)
            pause_s = 0.0
            for descriptor, _ in self._epoll.poll(timeout_s):
                if descriptor == self._wakeup.descriptor:
                    self._wakeup.clear()
                elif not self._accept(*self._sockets[descriptor]):
                    pause_s = _SHORTAGE_WAIT_S

    def _accept(self, listening: socket.socket, listener: Listener) -> bool:
        """Accept one connection. False if the machine is short of descriptors or memory."""
        try:
            connected, address = listening.accept()
        except BlockingIOError:
            return True
        except OSError as error:
            if error.errno in _SHORTAGES:
                name = listener.name
                limited.error("listener %s cannot accept for now: %s", name, error, about=name)
                return False
            logger.info("a connection to listener %s came to nothing: %s", listener.name, error)
            return True
        host, port = address[0], address[1]
        is_bounded = listening.fileno() in self._bounded
        if not self._quotas.try_add(host, is_bounded=is_bounded):
            logger.info("too many connections from %s; one more was closed", host)
            connected.close()
            return True
        try:
            connected.setblocking(False)
            self._on_accepted(connected, listener, host, port)
        except OSError as error:  # TLS looks at the socket, and the peer may be gone already
            logger.info("a connection to listener %s came to nothing: %s", listener.name, error)
            connected.close()
            self._quotas.remove(host)
        except Exception:
            name = listener.name
            limited.exception("a connection to listener %s was not set up", name, about=name)
            connected.close()
            self._quotas.remove(host)
        return True
