"""Listeners: where a server listens, and how it is secured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from logstore.common.errors import ConfigError
from replication.common.addresses import MAX_PORT, is_loopback, split_address


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
        return is_loopback(self.host)


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
        Listener(name, host, port, (protocols or {}).get(name) or _protocol(name))
        for name, (host, port) in parse_addresses("listeners", text).items()
    )
    if not listeners:
        raise ConfigError(f"listeners = {text!r} names no listener")
    return listeners


def parse_addresses(key: str, text: str) -> dict[str, tuple[str, int]]:
    """Host and port by the name of the listener, of ``listeners`` or a key like it.

    Raises:
        ConfigError: malformed, or a name twice.
    """
    found: dict[str, tuple[str, int]] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, separator, address = part.partition("://")
        place = split_address(address)
        if not separator or not name or place is None:
            raise ConfigError(f"{part!r} is not NAME://host:port")
        if name in found:
            raise ConfigError(f"{key} = {text!r} uses a name twice")
        found[name] = place
    return found


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


def check_ports(address: str, port: int, brokers: int) -> None:
    """The first broker has the port, and each next one the port after it.

    Raises:
        ConfigError: there are not so many.
    """
    if port and port + brokers - 1 > MAX_PORT:
        raise ConfigError(f"{address}: there are not {brokers} ports from there on")


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
