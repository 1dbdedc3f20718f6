"""Addresses as text."""

from __future__ import annotations


def address_of(host: str, port: int) -> str:
    """``host:port``, as clients take it: an IPv6 address stands in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
