"""The seam between brokers: a request goes to a broker, its response comes to a callback.

``LocalTransport`` connects brokers of one process without a copy of anything. The simulator has
one that delays, loses, repeats and reorders; a wire protocol needs only another of these.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from checkpoints.loggers import get_logger
from logstore.common.shield import run_shielded
from replication.common.limited_log import LimitedLogger
from replication.common.messages import Request, Response
from replication.common.runtime import Cancellable, Runtime

logger = get_logger(__name__)

DEFAULT_TIMEOUT_MS = 30_000

OnReply = Callable[[Response | None], None]
Handler = Callable[[Request, OnReply], None]


class Transport(Protocol):
    """Sends requests from one broker to any broker, itself included."""

    def send(
        self,
        broker_id: int,
        request: Request,
        on_reply: OnReply,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
    ) -> None:
        """Send a request.

        ``on_reply`` is called exactly once, with the response, or with None if there is none
        (unreachable, connection lost, nothing for ``timeout_ms``). The request may then have been
        carried out or not. It may be called on any thread, and before ``send`` returns. It is not
        called if the sender's own runtime was closed. Never blocks for long.
        """
        ...


class LocalNetwork:
    """The handlers of the live brokers of one process, and the links that are cut.

    A request fails at once, like a reset connection, if its receiver goes away or its link is cut.
    """

    def __init__(self) -> None:
        self._handlers: dict[int, Handler] = {}
        self._open: dict[_Call, None] = {}  # open calls in order of sending
        self._cut: set[tuple[int, int]] = set()
        self._lock = threading.Lock()  # never held during a callback

    def bind(self, broker_id: int, handler: Handler) -> None:
        """Let ``handler`` serve the requests to this broker."""
        with self._lock:
            self._handlers[broker_id] = handler

    def unbind(self, broker_id: int, handler: Handler | None = None) -> None:
        """Serve no more requests.

        With ``handler``, only if it is still bound, because a later life may be.
        """
        with self._lock:
            if handler is not None and self._handlers.get(broker_id) != handler:
                return
            self._handlers.pop(broker_id, None)
            lost = [call for call in self._open if call.receiver == broker_id]
        _fail(lost)

    @property
    def bound(self) -> list[int]:
        """Ids of the brokers that can be reached, ascending."""
        with self._lock:
            return sorted(self._handlers)

    def cut(self, sender: int, receiver: int) -> None:
        """Cut a link: nothing passes from ``sender`` to ``receiver``, responses included."""
        link = sender, receiver
        with self._lock:
            self._cut.add(link)
            lost = [c for c in self._open if link in ((c.sender, c.receiver), c.way_back)]
        _fail(lost)

    def heal(self, broker_id: int | None = None, cut_off: Collection[int] = ()) -> None:
        """Restore all links, or those of one broker to others that are not ``cut_off``."""
        with self._lock:
            self._cut = {
                link
                for link in self._cut
                if broker_id is not None and (broker_id not in link or {*link} & {*cut_off})
            }

    def open_of(self, sender: int) -> list[_Call]:
        """The open calls of a broker, in order of sending."""
        with self._lock:
            return [call for call in self._open if call.sender == sender]

    def open(self, call: _Call) -> Handler | None:
        """Open a call. Returns the handler that serves it; None if no broker is reached."""
        with self._lock:
            handler = self._handlers.get(call.receiver)
            if handler is None or (call.sender, call.receiver) in self._cut:
                return None
            self._open[call] = None
            return handler

    def close(self, call: _Call) -> tuple[bool, bool]:
        """Close a call. Returns whether it was open, and whether its answer passes."""
        with self._lock:
            was_open = call in self._open
            if was_open:
                del self._open[call]
            return was_open, not self._cut or call.way_back not in self._cut


@dataclass(slots=True, eq=False)
class _Call:
    """One request with its callback."""

    network: LocalNetwork
    sender: int
    receiver: int
    on_reply: OnReply
    deadline_ms: int

    @property
    def way_back(self) -> tuple[int, int]:
        return self.receiver, self.sender

    def reply(self, response: Response | None) -> None:
        was_open, passes = self.network.close(self)
        if was_open:
            self.on_reply(response if passes else None)


def _fail(calls: Iterable[_Call]) -> None:
    """Fail calls. An exception of one callback does not stop the others."""
    for call in calls:
        try:
            call.reply(None)
        except Exception:
            logger.exception("broker %s failed over a missing answer", call.sender)


class LocalTransport:
    """Calls the other broker's handler on the sender's thread. ``runtime`` is the sender's."""

    def __init__(self, network: LocalNetwork, broker_id: int, runtime: Runtime) -> None:
        self._network = network
        self._from = broker_id
        self._runtime = runtime
        self._log = LimitedLogger(logger, runtime.clock)
        self._timer: Cancellable | None = None
        self._timer_ms = 0
        self._lock = threading.Lock()

    def send(
        self,
        broker_id: int,
        request: Request,
        on_reply: OnReply,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
    ) -> None:
        deadline_ms = self._runtime.now_ms() + timeout_ms
        call = _Call(self._network, self._from, broker_id, on_reply, deadline_ms)
        handler = self._network.open(call)
        if handler is None:
            on_reply(None)
            return
        # After the call was opened, so that a timer that fires now finds it.
        if self._timer is None or deadline_ms < self._timer_ms:
            self._arm(deadline_ms)
        # An interrupt of a client's main thread does not end a broker's work in its middle.
        run_shielded(partial(self._serve, broker_id, handler, request, call))

    def _serve(self, broker_id: int, handler: Handler, request: Request, call: _Call) -> None:
        try:
            handler(request, call.reply)
        except Exception:  # an error of the receiver, which is not the sender's
            self._log.exception("broker %s failed over a request", broker_id, about=broker_id)
            call.reply(None)

    def _arm(self, deadline_ms: int) -> None:
        """Set one timer for all open calls, at the first deadline.

        Most are answered long before, and then it is set to the first deadline of the rest.
        """
        with self._lock:
            if self._timer is not None:
                if self._timer_ms <= deadline_ms:
                    return
                self._timer.cancel()
            self._timer_ms = deadline_ms
            delay_ms = max(0, deadline_ms - self._runtime.now_ms())
            self._timer = self._runtime.call_later(delay_ms, self._expire)

    def _expire(self) -> None:
        with self._lock:
            self._timer = None
        now_ms = self._runtime.now_ms()
        calls = self._network.open_of(self._from)
        _fail(call for call in calls if call.deadline_ms <= now_ms)
        waiting = [call.deadline_ms for call in calls if call.deadline_ms > now_ms]
        if waiting:
            self._arm(min(waiting))
