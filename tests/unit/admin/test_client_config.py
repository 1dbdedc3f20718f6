"""Kafka's ``client.properties``: what is read, what is refused, and that no secret is shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.common.errors import ConfigError
from replication.network import NetworkConfig
from replication.security.config import (
    ClientConfig,
    client_properties,
    parse_servers,
    read_properties,
    unknown_keys,
)
from tests.support.cases import for_each

FILE = rb"""
# Required connection configs for Kafka producer, consumer, and admin
bootstrap.servers=a.example:9092,\
                  [::1]:9094
security.protocol=SASL_SSL
sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule   required \
  username='alice'   password='s3cret;"x';
sasl.mechanism=PLAIN
! Required for correctness in Apache Kafka clients prior to 2.6
client.dns.lookup=use_all_dns_ips
acks: all
schema.registry.url=https://registry.example
ssl.endpoint.identification.algorithm=
ssl.truststore.certificates=-----BEGIN CERTIFICATE-----\n\
  abc\n-----END CERTIFICATE-----
"""


def test_a_file_as_it_is_found() -> None:
    pairs = read_properties("client.properties", FILE)
    found = client_properties(pairs)
    config = found.config
    assert config.servers == [("a.example", 9092), ("::1", 9094)]
    assert (config.uses_tls, config.uses_sasl) == (True, True)
    assert config.login() == ("alice", 's3cret;"x')
    assert config.ssl_endpoint_identification_algorithm == ""
    assert config.ssl_truststore_certificates.split("\n")[1] == "abc"
    assert found.others["acks"] == "all"
    assert unknown_keys(pairs) == ["schema.registry.url"]


def test_librdkafkas_words() -> None:
    words = {
        "metadata.broker.list": "a,b:1",
        "security.protocol": "sasl_ssl",
        "sasl.mechanisms": "SCRAM-SHA-512",
        "sasl.username": "alice",
        "sasl.password": "secret",
        "ssl.ca.location": "/ca.pem",
        "ssl.endpoint.identification.algorithm": "none",
    }
    config = client_properties(words).config
    assert config.servers == [("a", 9092), ("b", 1)]
    assert config.login() == ("alice", "secret")
    assert (config.ssl_truststore_location, config.sasl_mechanism) == ("/ca.pem", "SCRAM-SHA-512")
    assert config.ssl_endpoint_identification_algorithm == ""


SASL = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256"}
MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"


@for_each(
    "text, login",
    [
        (MODULE + ' required username="alice" password="x";', ("alice", "x")),
        (
            MODULE + ' optional\n password = "a\\"b\\\\c\\101" username=alice ;',
            ("alice", 'a"b\\cA'),
        ),
        ("/* me */ ScramLoginModule required // so\n username='u' password=\"'\";", ("u", "'")),
        (MODULE + ' required x="y" username="a=b;" password="required";', ("a=b;", "required")),
    ],
)
def test_the_syntax_of_java(text: str, login: tuple[str, str]) -> None:
    config = client_properties({**SASL, "sasl.jaas.config": text}).config
    assert config.login() == login


@for_each(
    "text, words",
    [
        (MODULE + ' required username="alice" password="s3cret"', "MODULE required"),
        (MODULE + ' required username="alice" password=s3cret"x;', "character"),
        (MODULE + ' required username="alice password="s3cret";', "sasl.jaas.config"),
        (MODULE + ' username="alice" password="s3cret";', "MODULE required"),
        (MODULE + ' required username= = ; password="s3cret";', "MODULE required"),
        (MODULE + ' required password="s3cret";', "username and password"),
        (MODULE + ' required username="a" password="s3cret" tokenauth="true";', "token"),
        ('OAuthBearerLoginModule required username="a" password="s3cret";', "OAuthBearer"),
        ("s3cret", "MODULE required"),
    ],
)
def test_a_login_that_cannot_be_read_shows_no_password(text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        client_properties({**SASL, "sasl.jaas.config": text})
    assert "s3cret" not in repr(caught.value)


@given(text=st.text(alphabet="am\"'\\/*=;. \n-required", max_size=60))
def test_any_text_is_a_login_or_is_refused(text: str) -> None:
    try:
        user, password = client_properties({**SASL, "sasl.jaas.config": text}).config.login()
    except ConfigError:
        return
    assert user
    assert password


@for_each(
    "change, words",
    [
        ({"security.protocol": "TLS"}, "'TLS' is not one of PLAINTEXT"),
        ({**SASL, "sasl.mechanism": "GSSAPI"}, "'GSSAPI' is not one of PLAIN"),
        (SASL, "sasl.username and sasl.password"),
        ({"request.timeout.ms": "soon"}, "request.timeout.ms = 'soon'"),
        ({"request.timeout.ms": "0"}, "request.timeout.ms"),
        ({"ssl.endpoint.identification.algorithm": "http"}, "https"),
    ],
)
def test_values_that_are_refused(change: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        client_properties(change)


def test_a_line_that_is_no_properties_text_is_named_without_its_value() -> None:
    with pytest.raises(ConfigError, match=r"^c\.properties:2: ") as caught:
        read_properties("c.properties", b"a=b\nsasl.password=\\u00s3cret\n")
    assert "s3cret" not in repr(caught.value)
    assert caught.value.__cause__ is None


def test_no_repr_shows_a_secret() -> None:
    secrets = {
        "sasl.jaas.config": MODULE + ' required username="alice" password="s3cret";',
        "sasl.password": "s3cret",
        "ssl.key.password": "s3cret",
        "ssl.keystore.key": "s3cret",
        "ssl.truststore.password": "s3cret",
    }
    assert "s3cret" not in repr(client_properties({**SASL, **secrets}))
    assert "s3cret" not in repr(NetworkConfig(ssl_key_password="s3cret", ssl_keystore_key="s3cret"))


@for_each(
    "text, servers",
    [
        ("a:1,b:2", [("a", 1), ("b", 2)]),
        ("a", [("a", 9092)]),
        ("[::1]:9094, [::1]", [("::1", 9094), ("::1", 9092)]),
        ("[a, a]:1", [("a", 9092), ("a", 1)]),
        ("SASL_SSL://a:1", [("a", 1)]),
    ],
)
def test_addresses(text: str, servers: list[tuple[str, int]]) -> None:
    assert parse_servers(text) == servers


@for_each("text", ["", "a:", "a:x", "a:0", "a:65536", ":9092", "a:1,,b:2", "a:²", "["])
def test_no_addresses(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_servers(text)


def test_no_server_is_named() -> None:
    with pytest.raises(ConfigError):
        _ = ClientConfig().servers
