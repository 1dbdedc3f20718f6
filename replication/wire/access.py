"""The way to the brokers of a cluster, and the limits on it, as values."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import partial
from typing import NamedTuple

from logstore.common.errors import ConfigError
from replication.common.config import ReplicationConfig
from replication.common.messages import Request
from replication.common.retrying import Backoff
from replication.common.runtime import Runtime, Task
from replication.common.transport import Handler, LocalNetwork, LocalTransport, OnReply
from replication.network import NetworkConfig, SecurityProtocol
from replication.protocol import ApiKey
from replication.protocol import messages as wire
from replication.security.config import ClientConfig, ConnectConfig, TlsConfig
from replication.security.sasl import LoginSteps, login
from replication.security.tls import client_context
from replication.wire.calls import MAX_RESPONSE_BYTES
from replication.wire.lane import LaneError

FETCH_OVERHEAD_BYTES = 64 << 10  # of an answer beside its records


class ClusterAccess(NamedTuple):
    """
    Attributes:
        servers: host and port of some brokers, which name the others; none where `Peers` has them.
        context: for TLS; None speaks in the open.
        greet: begins what is asked on a new connection before its first request, such as a login;
            None for nothing.
        setup_timeout: how long a connection may take, by the failures before it (X-54).
        reconnect: the pauses before a broker that failed is tried again (X-56).
        idle_ms: after which a connection that is not used is closed; below 0 for never.
        silence_ms: after which a connection ends whose other side does not even acknowledge
            (X-55).
        max_fetch_bytes: of an answer to a fetch.
    """

    servers: Sequence[tuple[str, int]] = ()
    client_id: str = "logstore"
    context: ssl.SSLContext | None = None
    greet: Callable[[], LoginSteps] | None = None
    setup_timeout: Backoff = Backoff(10_000, 30_000, jitter=0)
    reconnect: Backoff = Backoff(50, 1000)
    idle_ms: int = 540_000
    silence_ms: int = 30_000
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
            _setup_timeout(config),
            _reconnect(config),
            config.connections_max_idle_ms,
            config.request_timeout_ms,
        )

    @classmethod
    def of_broker(
        cls,
        broker_id: int,
        cluster_id: str,
        network: NetworkConfig,
        replication: ReplicationConfig,
        protocol: SecurityProtocol,
        user: tuple[str, str] | None = None,
    ) -> ClusterAccess:
        """The way from a broker to the others.

        Its ``ssl.*`` keys hold for both sides: the key store has its certificate as a client.

        Args:
            protocol: of the brokers' listener.
            user: name and password of this broker, for a login.
        Raises:
            ConfigError: TLS cannot be set up, or there is no password for a login.
        """
        if protocol.has_sasl and user is None:
            raise ConfigError(
                f"{protocol.value} between brokers takes a user and its password "
                "(--inter-broker-password-file)"
            )
        name, password = user or ("", "")
        config = ClientConfig(
            client_id=f"broker-{broker_id}",
            security_protocol=protocol.value,
            sasl_mechanism=network.sasl_mechanism_inter_broker_protocol,
            sasl_username=name,
            sasl_password=password,
            ssl_endpoint_identification_algorithm=network.ssl_endpoint_identification_algorithm,
            **{each.name: getattr(network, each.name) for each in fields(TlsConfig)},
        )
        # A batch is given whole, and none is larger than the request that brought it.
        max_batch = network.socket_request_max_bytes
        return cls(
            (),
            config.client_id,
            client_context(config),
            partial(join, config, cluster_id),
            _setup_timeout(network),
            _reconnect(network),
            network.connections_max_idle_ms,
            replication.replica_socket_timeout_ms,
            replication.replica_fetch_response_max_bytes + max_batch + FETCH_OVERHEAD_BYTES,
        )


def _setup_timeout(config: ConnectConfig) -> Backoff:
    first, most = (
        config.socket_connection_setup_timeout_ms,
        config.socket_connection_setup_timeout_max_ms,
    )
    return Backoff(first, max(first, most), jitter=0)


def _reconnect(config: ConnectConfig) -> Backoff:
    first = max(1, config.reconnect_backoff_ms)
    return Backoff(first, max(first, config.reconnect_backoff_max_ms))


def join(config: ClientConfig, cluster_id: str) -> LoginSteps:
    """Log in if it has to, and look whose broker that is: ports are used again.

    Raises:
        LaneError: it belongs to another cluster.
        SaslAuthenticationError: as ``login``.
    """
    if config.uses_sasl:
        yield from login(config)
    answer = yield ApiKey.METADATA, wire.MetadataRequest(topics=())
    if answer.cluster_id not in (None, cluster_id):
        raise LaneError(f"it belongs to the cluster {answer.cluster_id}, not to {cluster_id}")
    return 0


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
