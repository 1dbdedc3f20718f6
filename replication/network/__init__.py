"""The network: listeners, connections and their limits (Kafka's ``SocketServer``).

``NetworkServer`` reads requests from sockets and gives each to a handler, which answers it once,
from any thread. The network alone sees to order, backpressure and limits. A connection is a state
machine without I/O (``connection``), and ``processor`` does the I/O. ``limits`` bounds what clients
take; ``authentication`` and ``tls`` are the server's half of ``replication.security``. See
docs/network.md.
"""

from __future__ import annotations

from replication.network.config import BY_CERTIFICATE, NetworkConfig
from replication.network.limits import ClientQuota, ClientQuotas, Direction
from replication.network.listeners import (
    Listener,
    SecurityProtocol,
    check_ports,
    parse_addresses,
    parse_listeners,
    parse_protocol_map,
    with_inter_broker,
)
from replication.network.requests import (
    CLOSE,
    NO_RESPONSE,
    Answer,
    ConnectionInfo,
    FastPath,
    ReceivedRequest,
    RequestHandler,
    Respond,
    Send,
)
from replication.network.server import NetworkServer
from replication.security.credentials import Credentials, UserCredentials

__all__ = [
    "BY_CERTIFICATE",
    "CLOSE",
    "NO_RESPONSE",
    "Answer",
    "ClientQuota",
    "ClientQuotas",
    "ConnectionInfo",
    "Credentials",
    "Direction",
    "FastPath",
    "Listener",
    "NetworkConfig",
    "NetworkServer",
    "ReceivedRequest",
    "RequestHandler",
    "Respond",
    "SecurityProtocol",
    "Send",
    "UserCredentials",
    "check_ports",
    "connection",
    "framing",
    "limits",
    "metrics",
    "parse_addresses",
    "parse_listeners",
    "parse_protocol_map",
    "requests",
    "tls",
    "transport_layer",
    "wakeup",
    "with_inter_broker",
]
