"""Handlers of Kafka's APIs: their arguments, and how they answer.

An area (groups, transactions, topics, …) is an ``ApiArea`` in a module of its own. ``KafkaApis``
puts their handlers together. A handler is called with the decoded request and answers with a
message of ``replication.protocol.messages``::

    class GroupApis(ApiArea):
        def heartbeat(
            self, received: ReceivedRequest, request: wire.HeartbeatRequest, reply: Reply
        ) -> None:
            reply(wire.HeartbeatResponse(error_code=ErrorCode.NONE))

A handler never sees the header, the version, the throttle time or the list of buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from replication.network import ReceivedRequest
from replication.protocol import ApiKey

Reply = Callable[[Any], None]
"""Takes the response message, or ``NO_RESPONSE`` or ``CLOSE`` of the network. Called once, from any
thread, before the handler returns or later. A handler that raises has its request answered with
the error's code in every place where the request's schema has one."""

Handler = Callable[[ReceivedRequest, Any, Reply], None]
"""Takes the request with its header and connection, the decoded message, and the way to answer.
It must not block, and must not keep ``received.body`` nor a view of it after it has returned."""

Handlers = Mapping[ApiKey, Handler]


class ApiArea:
    """Several APIs. The method with the name of an API is its handler: ``offset_commit``."""

    @property
    def handlers(self) -> Handlers:
        names = {key: key.name.lower() for key in ApiKey}
        return {key: getattr(self, name) for key, name in names.items() if hasattr(self, name)}


__all__ = ["ApiArea", "Handler", "Handlers", "ReceivedRequest", "Reply"]
