"""Addresses as text."""

from __future__ import annotations

import ipaddress


def address_of(host: str, port: int) -> str:
    """``host:port``, as clients take it: an IPv6 address stands in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Only processes of this machine reach it."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
