"""Requests that only a broker may send: what a controller orders, where a copy is, or how a
transaction ended (W-212).

A follower's fetch moves the high watermark, so whoever may send one can have a record acknowledged
that nobody has copied. Kafka asks for the right CLUSTER_ACTION, and takes everybody for a broker
where it has no authorizer. Here the listener decides: brokers have one of their own. There, who
logged in and the certificate may decide, too (X-62, X-63).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from logstore.common.errors import ConfigError
from replication.common.messages import CONSUMER
from replication.network import (
    BY_CERTIFICATE,
    ConnectionInfo,
    Listener,
    NetworkConfig,
    SecurityProtocol,
)
from replication.protocol import ApiKey
from replication.protocol import messages as wire

LAST_OF_CLIENTS: Mapping[ApiKey, int] = {ApiKey.ADD_PARTITIONS_TO_TXN: 3}
"""Later versions are for brokers alone."""
_FIRST_WITH_REPLICA_STATE = 15


SOME_BROKER = -1
"""The id of a broker that does not say which it is."""


def _controller(version: int, request: Any) -> int:
    return int(request.controller_id)


def _sender(version: int, request: Any) -> int:
    return int(request.broker_id)


def _unnamed(version: int, request: Any) -> int:
    return SOME_BROKER


def _replica(version: int, request: Any) -> int | None:
    """Ids below −1 are consumers too: Kafka's tools send −2."""
    return None if request.replica_id <= CONSUMER else int(request.replica_id)


def _follower(version: int, request: wire.FetchRequest) -> int | None:
    if version >= _FIRST_WITH_REPLICA_STATE:
        return _replica(version, request.replica_state)
    return _replica(version, request)


def _who_commits(version: int, request: wire.WriteTxnMarkersRequest) -> int | None:
    """An operator aborts; only the coordinator knows that a transaction is to be committed."""
    return SOME_BROKER if any(marker.transaction_result for marker in request.markers) else None


def _of_later_version(version: int, request: wire.AddPartitionsToTxnRequest) -> int | None:
    return SOME_BROKER if version > LAST_OF_CLIENTS[ApiKey.ADD_PARTITIONS_TO_TXN] else None


def _forwarder(version: int, request: Any) -> int | None:
    """What is marked as forwarded was judged by the broker of the client, and is not again."""
    return SOME_BROKER if getattr(request, "forwarded", False) else None


FORWARDABLE = frozenset(
    {
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_TOPICS,
        ApiKey.CREATE_ACLS,
        ApiKey.DELETE_ACLS,
        ApiKey.ALTER_CONFIGS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.ELECT_LEADERS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        ApiKey.UPDATE_FEATURES,
    }
)
"""What brokers pass on to the controller for clients (KIP-590); as in Kafka's ``ApiKeys``."""

OF_BROKERS: Mapping[ApiKey, Callable[[int, Any], int | None]] = {
    ApiKey.LEADER_AND_ISR: _controller,
    ApiKey.STOP_REPLICA: _controller,
    ApiKey.UPDATE_METADATA: _controller,
    ApiKey.CONTROLLED_SHUTDOWN: _sender,
    ApiKey.ALTER_PARTITION: _sender,
    ApiKey.ENVELOPE: _unnamed,
    ApiKey.ALLOCATE_PRODUCER_IDS: _sender,
    ApiKey.FETCH: _follower,
    ApiKey.LIST_OFFSETS: _replica,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: _replica,
    ApiKey.ADD_PARTITIONS_TO_TXN: _of_later_version,
    ApiKey.WRITE_TXN_MARKERS: _who_commits,
    **dict.fromkeys(FORWARDABLE, _forwarder),
}
"""The broker that a request, in a version, says it is from; None for one that anybody may send.
Nothing else that is served over sockets is for brokers alone."""


class BrokerPeers(NamedTuple):
    """Who is taken for a broker, and for which.

    Attributes:
        principals: of brokers; None for whoever the listener of brokers lets in.
        by_certificate: a broker is the one that a URI ``kafka:broker:ID`` in its certificate names.
    """

    principals: frozenset[str] | None = None
    by_certificate: bool = False

    @classmethod
    def of(
        cls, config: NetworkConfig, listeners: Iterable[Listener], user: str | None = None
    ) -> BrokerPeers:
        """
        Args:
            user: as whom this broker logs in at others. They are brokers by the same name, unless
                the configuration names others.
        Raises:
            ConfigError: brokers come by a listener where others log in, and nothing tells them
                apart.
        """
        by_certificate = config.broker_identity == BY_CERTIFICATE
        principals = frozenset(config.broker_principals) or None
        for listener in listeners:
            protocol = listener.security_protocol
            if not listener.is_inter_broker:
                continue
            if by_certificate and not protocol.has_tls:
                raise ConfigError(
                    f"broker.identity = {BY_CERTIFICATE}: listener {listener.name} is "
                    f"{protocol.value}, where nobody shows one"
                )
            if protocol.has_sasl and user is not None and principals is None:
                principals = frozenset({f"User:{user}"})
            if protocol is not SecurityProtocol.PLAINTEXT and not (principals or by_certificate):
                raise ConfigError(
                    f"listener {listener.name} is that of brokers: say in broker.principals who "
                    "is one, such as User:admin"
                )
        return cls(principals, by_certificate)

    def admits(self, connection: ConnectionInfo, broker_id: int) -> bool:
        """Whether the other side may say that it is this broker."""
        if not connection.listener.is_inter_broker:
            return False
        if self.principals is not None and connection.principal not in self.principals:
            return False
        if not self.by_certificate:
            return True
        named = [uri for uri in connection.certificate_uris if uri.startswith(IDENTITY)]
        return f"{IDENTITY}{broker_id}" in named or (broker_id == SOME_BROKER and bool(named))


IDENTITY = "kafka:broker:"
WHOEVER_COMES = BrokerPeers()
