"""Listeners as Kafka writes them, and which of them are refused."""

from __future__ import annotations

import pytest

from logstore.common.errors import ConfigError
from replication.network import (
    Listener,
    NetworkServer,
    SecurityProtocol,
    parse_listeners,
    parse_protocol_map,
)
from replication.network.requests import ReceivedRequest, Respond
from tests.support.cases import for_each


def test_listeners_are_parsed() -> None:
    protocols = parse_protocol_map("INSIDE:PLAINTEXT, OUTSIDE:SASL_SSL")
    assert parse_listeners("INSIDE://127.0.0.1:9092,OUTSIDE://:9093, SSL://[::1]:0", protocols) == (
        Listener("INSIDE", "127.0.0.1", 9092),
        Listener("OUTSIDE", "", 9093, SecurityProtocol.SASL_SSL),
        Listener("SSL", "::1", 0, SecurityProtocol.SSL),
    )


@for_each(
    "text",
    [
        "",
        "127.0.0.1:9092",
        "PLAINTEXT://127.0.0.1",
        "PLAINTEXT://127.0.0.1:port",
        "PLAINTEXT://127.0.0.1:65536",
        "PLAINTEXT://127.0.0.1:-1",
        "PLAINTEXT://127.0.0.1:²",
        "INSIDE://127.0.0.1:9092",
        "PLAINTEXT://a:1,PLAINTEXT://b:2",
        "://a:1",
    ],
)
def test_malformed_listeners(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_listeners(text)


@pytest.mark.parametrize("text", ["INSIDE", "INSIDE:", "INSIDE:TLS", ":SSL"])
def test_a_malformed_map_of_protocols(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_protocol_map(text)


def nothing(request: ReceivedRequest, respond: Respond) -> None:
    raise AssertionError


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::", "192.0.2.1", "kafka.example"])
def test_plain_text_is_refused_where_others_reach_it(host: str) -> None:
    with pytest.raises(ConfigError, match="neither TLS nor SASL"):
        NetworkServer([Listener(), Listener("OTHER", host)], nothing)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.10", "::1", "localhost"])
def test_loopback_is_served_without(host: str) -> None:
    NetworkServer([Listener("PLAINTEXT", host)], nothing).close()


def test_plain_text_may_be_allowed_by_name() -> None:
    server = NetworkServer([Listener("PLAINTEXT", "0.0.0.0")], nothing, allow_plaintext=True)
    assert server.bound_addresses["PLAINTEXT"][0] == "0.0.0.0"
    server.close()


def test_a_listener_with_sasl_takes_credentials_and_one_with_tls_a_key() -> None:
    for protocol, words in (("SASL_PLAINTEXT", "credentials"), ("SSL", "ssl.keystore.location")):
        with pytest.raises(ConfigError, match=words):
            NetworkServer([Listener("A", "127.0.0.1", 0, SecurityProtocol[protocol])], nothing)


def test_an_address_that_is_taken_leaves_nothing_open() -> None:
    first = NetworkServer([Listener()], nothing)
    port = first.bound_addresses["PLAINTEXT"][1]
    with pytest.raises(OSError):
        NetworkServer([Listener("FREE"), Listener("TAKEN", "127.0.0.1", port)], nothing)
    first.close()
