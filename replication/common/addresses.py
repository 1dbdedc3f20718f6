"""Addresses as text."""

from __future__ import annotations

MAX_PORT = 65_535


def address_of(host: str, port: int) -> str:
    """``host:port``, as clients take it: an IPv6 address stands in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_address(text: str) -> tuple[str, int] | None:
    """Host and port of ``host:port``; None if it has no port. Each bracket may be missing, as for
    Kafka."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    is_port = port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= MAX_PORT
    return (host, int(port)) if is_port else None


def is_loopback(host: str) -> bool:
    """Only processes of this machine reach it."""
    import ipaddress  # 3 ms, needed by servers alone

    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
