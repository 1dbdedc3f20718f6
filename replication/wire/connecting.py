"""``connect``: a client of a running cluster, ours or a real Kafka's."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from logstore.common.clock import Clock
from logstore.common.errors import ConfigError
from replication.client import Client
from replication.common.errors import BrokerUnavailableError, SaslAuthenticationError
from replication.security.config import client_properties
from replication.security.login import login
from replication.security.tls import client_context
from replication.wire.transport import Connection, TcpTransport


def connect(
    servers: str,
    config: Mapping[str, str] = {},
    *,
    clock: Clock | None = None,
) -> RemoteClient:
    """Connect to the brokers of a cluster.

    Args:
        servers: ``host:port,host:port``, some brokers; they name the others.
        config: keys of a ``client.properties``. Of those beside TLS, logins and time-outs the
            client takes ``metadata.max.age.ms`` and ``allow.auto.create.topics`` (false).
    Raises:
        BrokerUnavailableError: none of them can be spoken to. The text says for each why.
        SaslAuthenticationError: they refuse the login.
        ConfigError: a key, or the text of ``servers``, is wrong.
    """
    properties = client_properties({**config, "bootstrap.servers": servers})
    keys, others = properties.config, properties.others
    connection = Connection(
        keys.servers,
        keys.client_id,
        client_context(keys),
        partial(login, keys) if keys.uses_sasl else None,
    )
    max_age = others.get("metadata.max.age.ms", "300000")
    if not max_age.isdecimal():
        raise ConfigError(f"metadata.max.age.ms = {max_age!r} is not a number")
    client = RemoteClient(
        TcpTransport(connection, clock),
        clock,
        int(max_age) / 1000,
        keys.request_timeout_ms,
        others.get("allow.auto.create.topics", "false").strip().lower() == "true",
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

    def __init__(
        self,
        transport: TcpTransport,
        clock: Clock | None,
        max_age_s: float,
        request_timeout_ms: int,
        may_create: bool,
    ) -> None:
        super().__init__(
            transport,
            transport.brokers,
            clock,
            metadata_max_age_s=max_age_s,
            answer_timeout_ms=request_timeout_ms,
            only_wanted=True,
            may_create=may_create,
        )

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
