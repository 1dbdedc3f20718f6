"""The way to the brokers of a cluster, and the limits on it, as values."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from replication.common.messages import Request
from replication.common.retrying import Backoff
from replication.common.runtime import Runtime, Task
from replication.common.transport import Handler, LocalNetwork, LocalTransport, OnReply
from replication.security.config import ClientConfig
from replication.security.sasl import LoginSteps, login
from replication.security.tls import client_context
from replication.wire.calls import MAX_RESPONSE_BYTES

SETUP_TIMEOUT_MS = 10_000  # Kafka's socket.connection.setup.timeout.ms
IDLE_MS = 540_000  # Kafka's connections.max.idle.ms of clients, a minute below that of brokers
RECONNECT = Backoff(50, 1000)  # Kafka's reconnect.backoff.ms, reconnect.backoff.max.ms


class ClusterAccess(NamedTuple):
    """
    Attributes:
        servers: host and port of some brokers, which name the others; none where `Peers` has them.
        context: for TLS; None speaks in the open.
        login: begins the login of one connection; None for none.
        reconnect: the pauses before a broker that failed is tried again (X-56).
        idle_ms: after which a connection that is not used is closed; below 0 for never.
        max_fetch_bytes: of an answer to a fetch.
    """

    servers: Sequence[tuple[str, int]] = ()
    client_id: str = "logstore"
    context: ssl.SSLContext | None = None
    login: Callable[[], LoginSteps] | None = None
    setup_timeout_ms: int = SETUP_TIMEOUT_MS
    reconnect: Backoff = RECONNECT
    idle_ms: int = IDLE_MS
    max_fetch_bytes: int = MAX_RESPONSE_BYTES

    @classmethod
    def of(cls, config: ClientConfig) -> ClusterAccess:
        """
        Raises:
            ConfigError: TLS cannot be set up, or ``bootstrap.servers`` is malformed.
        """
        return cls(
            config.servers,
            config.client_id,
            client_context(config),
            partial(login, config) if config.uses_sasl else None,
            config.socket_connection_setup_timeout_ms,
        )


FindAddress = Callable[[int], tuple[str, int] | None]


class Peers(NamedTuple):
    """The other brokers of a broker, for its lanes to them.

    Attributes:
        find: host and port at which brokers reach a broker now; None if that is not known. Looked
            up for each request, on the thread of I/O: it must not wait.
        send_to_own: carries requests to the broker itself, which never leave the process.
        hand_over: runs what an answer causes where that may wait for a disk.
    """

    broker_id: int
    find: FindAddress
    send_to_own: Callable[[Request, OnReply, int], None]
    hand_over: Callable[[Task], None]

    @classmethod
    def of(cls, broker_id: int, runtime: Runtime, find: FindAddress, handler: Handler) -> Peers:
        """
        Args:
            runtime: the broker's. Nothing is answered any more once it is closed.
            handler: of requests to the broker itself.
        """
        network = LocalNetwork()
        network.bind(broker_id, handler)
        own = LocalTransport(network, broker_id, runtime)
        return cls(
            broker_id,
            find,
            partial(own.send, broker_id),
            runtime.actor(f"broker-{broker_id}-answers").post,
        )
