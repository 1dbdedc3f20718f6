"""The seam between brokers: a request goes to a broker, its response comes to a callback.

``LocalTransport`` connects brokers of one process without a copy of anything. The simulator has
one that delays, loses, repeats and reorders; a wire protocol needs only another of these.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from replication.messages import Request, Response

OnReply = Callable[[Response | None], None]
Handler = Callable[[Request, OnReply], None]


class Transport(Protocol):
    """One broker's way to the others, itself included."""

    def send(self, broker_id: int, request: Request, on_reply: OnReply) -> None:
        """Send a request.

        ``on_reply`` is called at most once with the response, or with None when there will be none
        (unreachable, connection lost, timed out): the request may then have been carried out or
        not. It may be called from any thread, and before ``send`` returns. Never blocks for long.
        """
        ...


class LocalNetwork:
    """Handlers of the live brokers of one process, and which links between them are cut.

    A request that waits at a broker which goes away, or behind a link that is cut, fails at once,
    as a connection that is reset.
    """

    def __init__(self) -> None:
        self._handlers: dict[int, Handler] = {}
        self._waiting: dict[int, dict[_Call, None]] = {}  # by receiver, in order of sending
        self._cut: set[tuple[int, int]] = set()
        self._lock = threading.Lock()

    def bind(self, broker_id: int, handler: Handler) -> None:
        with self._lock:
            self._handlers[broker_id] = handler
            self._waiting[broker_id] = {}

    def unbind(self, broker_id: int) -> None:
        with self._lock:
            self._handlers.pop(broker_id, None)
            waiting = list(self._waiting.pop(broker_id, ()))
        for call in waiting:
            call.fail()

    @property
    def bound(self) -> list[int]:
        """Ids of the brokers that can be reached, ascending."""
        return sorted(self._handlers)

    def cut(self, sender: int, receiver: int) -> None:
        """Nothing passes from ``sender`` to ``receiver`` any more, responses included."""
        with self._lock:
            self._cut.add((sender, receiver))
            calls = [call for calls in self._waiting.values() for call in calls]
        for call in calls:
            if (sender, receiver) in ((call.sender, call.receiver), (call.receiver, call.sender)):
                call.fail()

    def heal(self) -> None:
        with self._lock:
            self._cut.clear()

    def send(self, sender: int, receiver: int, request: Request, on_reply: OnReply) -> None:
        handler = self._handlers.get(receiver)
        waiting = self._waiting.get(receiver)
        if handler is None or waiting is None or (sender, receiver) in self._cut:
            on_reply(None)
            return
        call = _Call(self, sender, receiver, waiting, on_reply)
        waiting[call] = None
        if self._handlers.get(receiver) is not handler:  # unbound since
            call.fail()
            return
        handler(request, call.reply)

    def is_cut(self, sender: int, receiver: int) -> bool:
        return (sender, receiver) in self._cut


class _Call:
    """One request and who waits for its answer; it is answered once."""

    __slots__ = ("_network", "_on_reply", "_waiting", "receiver", "sender")

    def __init__(
        self, network: LocalNetwork, sender: int, receiver: int, waiting: dict[_Call, None],
        on_reply: OnReply,
    ) -> None:  # fmt: skip
        self._network, self._waiting, self._on_reply = network, waiting, on_reply
        self.sender, self.receiver = sender, receiver

    def reply(self, response: Response | None) -> None:
        # Taking itself out of the dict is what makes it once: one operation of the interpreter.
        if self._waiting.pop(self, self) is None:
            lost = self._network.is_cut(self.receiver, self.sender)
            self._on_reply(None if lost else response)

    def fail(self) -> None:
        if self._waiting.pop(self, self) is None:
            self._on_reply(None)


class LocalTransport:
    """Calls the other broker's handler in the sender's thread."""

    def __init__(self, network: LocalNetwork, broker_id: int) -> None:
        self._network = network
        self._from = broker_id

    def send(self, broker_id: int, request: Request, on_reply: OnReply) -> None:
        self._network.send(self._from, broker_id, request, on_reply)
