"""Listeners: where a server listens, and how it is secured."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from logstore.common.errors import ConfigError


class SecurityProtocol(Enum):
    """Kafka's names."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def has_tls(self) -> bool:
        return self in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)

    @property
    def has_sasl(self) -> bool:
        return self in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)


class Listener(NamedTuple):
    """One address to listen on.

    Attributes:
        name: as in ``listeners``, such as ``PLAINTEXT`` or ``INTERNAL``.
        host: empty for all addresses.
        port: 0 lets the system choose.
        is_inter_broker: who comes by it is taken for a broker: it may fetch as a replica.
    """

    name: str = "PLAINTEXT"
    host: str = "127.0.0.1"
    port: int = 0
    security_protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
    is_inter_broker: bool = False

    @property
    def is_loopback(self) -> bool:
        """Only processes of this machine reach it."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def parse_listeners(
    text: str, protocols: Mapping[str, SecurityProtocol] | None = None
) -> tuple[Listener, ...]:
    """Kafka's ``listeners``: ``NAME://host:port`` with commas between; an IPv6 host in brackets.

    Args:
        protocols: by the listener's name (``parse_protocol_map``); others bear their protocol's
            name.

    Raises:
        ConfigError: malformed, a name twice, or a name without a protocol.
    """
    listeners = tuple(
        _parse_listener(part.strip(), protocols or {}) for part in text.split(",") if part.strip()
    )
    if not listeners:
        raise ConfigError(f"listeners = {text!r} names no listener")
    names = [listener.name for listener in listeners]
    if len(set(names)) < len(names):
        raise ConfigError(f"listeners = {text!r} uses a name twice")
    return listeners


def _parse_listener(text: str, protocols: Mapping[str, SecurityProtocol]) -> Listener:
    name, separator, address = text.partition("://")
    host, _, port = address.rpartition(":")
    is_port = port.isascii() and port.isdigit() and int(port) < 1 << 16
    if not (separator and name and is_port):
        raise ConfigError(f"{text!r} is not NAME://host:port")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    protocol = protocols.get(name) or _protocol(name)
    return Listener(name, host, int(port), protocol)


def parse_protocol_map(text: str) -> dict[str, SecurityProtocol]:
    """Kafka's ``listener.security.protocol.map``: ``NAME:PROTOCOL`` with commas between.

    Raises:
        ConfigError: malformed, or an unknown protocol.
    """
    protocols = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        name, separator, protocol = pair.partition(":")
        if not separator or not name:
            raise ConfigError(f"listener.security.protocol.map: {pair!r} is not NAME:PROTOCOL")
        protocols[name] = _protocol(protocol)
    return protocols


def _protocol(name: str) -> SecurityProtocol:
    try:
        return SecurityProtocol[name]
    except KeyError:
        known = ", ".join(each.name for each in SecurityProtocol)
        raise ConfigError(f"{name!r} is not one of the security protocols {known}") from None


def with_inter_broker(listeners: Sequence[Listener], name: str) -> list[Listener]:
    """Mark the listener of brokers: Kafka's ``inter.broker.listener.name``, empty for none.

    Raises:
        ConfigError: no listener has that name.
    """
    marked = [each._replace(is_inter_broker=each.name == name) for each in listeners]
    if name and not any(each.is_inter_broker for each in marked):
        raise ConfigError(f"inter.broker.listener.name = {name!r} is none of the listeners")
    return marked


def refuse_open_listeners(listeners: Iterable[Listener]) -> None:
    """Anyone who reaches a listener without TLS and login may read and write everything.

    Raises:
        ConfigError: a listener is plain text, and other machines reach it (W-210).
    """
    for listener in listeners:
        protocol = listener.security_protocol
        if protocol is SecurityProtocol.PLAINTEXT and not listener.is_loopback:
            raise ConfigError(
                f"listener {listener.name} at {listener.host or 'all addresses'} has neither TLS "
                "nor SASL: everyone who reaches it may read and write everything. Take another "
                "security protocol, or allow it by name"
            )
