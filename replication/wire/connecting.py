"""``connect``: a client of a running cluster, ours or a real Kafka's."""

from __future__ import annotations

from collections.abc import Mapping

from replication.client import Client
from replication.common.errors import BrokerUnavailableError, SaslAuthenticationError
from replication.security.config import ClientProperties, client_properties
from replication.wire.access import ClusterAccess
from replication.wire.transport import TcpTransport


def connect(servers: str, config: Mapping[str, str] = {}) -> Client:
    """A client of the cluster that some brokers belong to, ours or a real Kafka's.

    Args:
        servers: ``host:port,host:port``; they name the others.
        config: keys of a ``client.properties`` for TLS, logins and time-outs; of the others the
            client takes ``metadata.max.age.ms`` and ``allow.auto.create.topics``, here false.
    Raises:
        BrokerUnavailableError: none of them can be spoken to. The text says of each why.
        SaslAuthenticationError: they refuse the login.
        ConfigError: a value is wrong.
    """
    return connect_by(client_properties({**config, "bootstrap.servers": servers}))


def connect_by(properties: ClientProperties, *, may_create: bool = False) -> Client:
    """As ``connect``.

    Args:
        may_create: let brokers make missing topics, if they are configured so and the properties
            do not say otherwise.
    """
    keys, others = properties.config, properties.others
    max_age_ms = properties.milliseconds("metadata.max.age.ms", 300_000)
    if "allow.auto.create.topics" in others:
        may_create = others["allow.auto.create.topics"].strip().lower() == "true"
    transport = TcpTransport(ClusterAccess.of(keys))
    client = RemoteClient(
        transport,
        transport.brokers,
        metadata_max_age_s=max_age_ms / 1000,
        answer_timeout_ms=keys.request_timeout_ms,
        only_wanted=True,
        may_create=may_create,
    )
    try:
        client.refresh()
    except BaseException:
        client.close()
        raise
    return client


class RemoteClient(Client):
    """A ``Client`` over TCP. ``close`` ends its connections."""

    transport: TcpTransport

    def refresh(self) -> None:
        """As `Client.refresh`. The error says of each broker why it cannot be reached.

        Raises:
            SaslAuthenticationError: a broker refuses the login.
        """
        try:
            super().refresh()
        except BrokerUnavailableError as error:
            reasons = self.transport.failures()
            for reason in reasons:
                if isinstance(reason, SaslAuthenticationError):
                    raise reason from None
            if reasons:
                texts = dict.fromkeys(map(str, reasons))
                raise BrokerUnavailableError("; ".join(texts)) from None
            raise error

    def close(self) -> None:
        super().close()
        if self._ownership.lost is None:  # else the connections are the parent's
            self.transport.close()
