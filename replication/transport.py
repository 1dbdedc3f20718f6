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
    """Handlers of the live brokers of one process, and which links between them are cut."""

    def __init__(self) -> None:
        self._handlers: dict[int, Handler] = {}
        self._cut: set[tuple[int, int]] = set()
        self._lock = threading.Lock()

    def bind(self, broker_id: int, handler: Handler) -> None:
        with self._lock:
            self._handlers[broker_id] = handler

    def unbind(self, broker_id: int) -> None:
        with self._lock:
            self._handlers.pop(broker_id, None)

    def cut(self, sender: int, receiver: int) -> None:
        """Nothing passes from ``sender`` to ``receiver`` any more, responses included."""
        with self._lock:
            self._cut.add((sender, receiver))

    def heal(self) -> None:
        with self._lock:
            self._cut.clear()

    def is_cut(self, sender: int, receiver: int) -> bool:
        return (sender, receiver) in self._cut

    def handler(self, broker_id: int) -> Handler | None:
        return self._handlers.get(broker_id)


class LocalTransport:
    """Calls the other broker's handler in the sender's thread."""

    def __init__(self, network: LocalNetwork, broker_id: int) -> None:
        self._network = network
        self._from = broker_id

    def send(self, broker_id: int, request: Request, on_reply: OnReply) -> None:
        network = self._network
        handler = network.handler(broker_id)
        if handler is None or network.is_cut(self._from, broker_id):
            on_reply(None)
            return

        def reply(response: Response | None) -> None:
            # The broker may have died, or the link been cut, while the request waited there.
            lost = network.handler(broker_id) is not handler
            on_reply(None if lost or network.is_cut(broker_id, self._from) else response)

        handler(request, reply)
