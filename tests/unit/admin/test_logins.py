"""A client's side of TLS and logins: the exchange alone, and over sockets."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.common.errors import ConfigError
from replication.admin import AdminClient, WireError
from replication.common.errors import SaslAuthenticationError
from replication.network import (
    Listener,
    NetworkConfig,
    NetworkServer,
    ReceivedRequest,
    Respond,
    SecurityProtocol,
    Send,
    UserCredentials,
)
from replication.protocol import ApiKey, encode_response, response_header
from replication.protocol import messages as wire
from replication.security.config import SASL_MECHANISMS, ClientConfig
from replication.security.credentials import ScramMechanism
from replication.security.sasl import MECHANISMS, client_exchange, login, scram_exchange
from tests.support.cases import for_each
from tests.support.certificates import make_certificates, needs_openssl

USERS = UserCredentials({"alice": "wonder=land,", "a,=b": "x"})
NONCE = "rOprNGfwEbeRWgbNEkqO"
FIRST = f"r={NONCE}%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode()
FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def test_the_example_of_rfc_7677() -> None:
    exchange = scram_exchange(ScramMechanism.SHA_256, "user", "pencil", lambda: NONCE)
    assert next(exchange) == b"n,,n=user,r=" + NONCE.encode()
    assert exchange.send(FIRST) == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    with pytest.raises(StopIteration):
        exchange.send(FINAL)


@for_each("mechanism", SASL_MECHANISMS)
@for_each("user, password", [("alice", "wonder=land,"), ("a,=b", "x")])
def test_both_sides_agree(mechanism: str, user: str, password: str) -> None:
    server = MECHANISMS[mechanism](USERS)
    exchange = client_exchange(mechanism, user, password)
    message = next(exchange)
    rounds = 1 if mechanism == "PLAIN" else 2
    for _ in range(rounds - 1):
        message = exchange.send(server.evaluate(message))
    with pytest.raises(StopIteration):
        exchange.send(server.evaluate(message))
    assert server.user == user


@for_each(
    "answer, words",
    [
        (b"", "malformed"),
        (b"\xff", "UTF-8"),
        (FIRST.replace(b"r=rOpr", b"r=xOpr"), "malformed"),
        (FIRST.replace(b"%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0", b""), "malformed"),
        (FIRST.replace(b"i=4096", b"i=4095"), "iterations"),
        (FIRST.replace(b"i=4096", b"i=999999999"), "iterations"),
        (FIRST.replace(b"i=4096", b"i=" + b"9" * 5000), "malformed"),
        (FIRST.replace(b"s=W22Z", b"s=W"), "base64"),
    ],
)
def test_a_first_answer_that_is_refused(answer: bytes, words: str) -> None:
    exchange = scram_exchange(ScramMechanism.SHA_256, "user", "pencil", lambda: NONCE)
    next(exchange)
    with pytest.raises(SaslAuthenticationError, match=words):
        exchange.send(answer)


@for_each("answer", [b"", b"v=", b"v=" + base64.b64encode(bytes(32)), b"e=other-error", FINAL[:-1]])
def test_a_server_that_does_not_know_the_password(answer: bytes) -> None:
    exchange = scram_exchange(ScramMechanism.SHA_256, "user", "pencil", lambda: NONCE)
    next(exchange)
    exchange.send(FIRST)
    with pytest.raises(SaslAuthenticationError):
        exchange.send(answer)


@pytest.mark.parametrize("kind", ScramMechanism)
@given(answer=st.binary(max_size=60))
def test_random_answers_convince_nobody(kind: ScramMechanism, answer: bytes) -> None:
    exchange = scram_exchange(kind, "user", "pencil")
    next(exchange)
    with pytest.raises(SaslAuthenticationError):
        exchange.send(answer)


def test_a_login_ends_with_how_long_it_holds() -> None:
    config = ClientConfig(
        security_protocol="SASL_SSL", sasl_mechanism="PLAIN", sasl_username="a", sasl_password="b"
    )
    asking = login(config)
    assert next(asking) == (ApiKey.SASL_HANDSHAKE, wire.SaslHandshakeRequest(mechanism="PLAIN"))
    key, request = asking.send(wire.SaslHandshakeResponse())
    assert (key, bytes(request.auth_bytes)) == (ApiKey.SASL_AUTHENTICATE, b"\0a\0b")
    with pytest.raises(StopIteration) as ended:
        asking.send(wire.SaslAuthenticateResponse(session_lifetime_ms=7))
    assert ended.value.value == 7


# --------------------------------------------------------------------------------- over a socket


def whoami(request: ReceivedRequest, respond: Respond) -> None:
    key = ApiKey(request.api_key)
    if key is ApiKey.API_VERSIONS:
        kind = wire.ApiVersionsResponse.ApiVersion
        apis = (key, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)
        message: Any = wire.ApiVersionsResponse(
            api_keys=(*(kind(api, 1, 1) for api in apis), kind(ApiKey.METADATA, 4, 4))
        )
    else:
        message = wire.MetadataResponse(
            controller_id=1,
            topics=(
                wire.MetadataResponse.MetadataResponseTopic(name=request.connection.principal),
            ),
        )
    header = response_header(key, request.api_version, request.correlation_id)
    respond(Send([header, *encode_response(message, request.api_version)]))


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def server(certificates: Path) -> Iterator[NetworkServer]:
    listeners = [Listener(each.name, "127.0.0.1", 0, each) for each in SecurityProtocol]
    listeners.append(Listener("ELSEWHERE", "127.0.0.2", 0, SecurityProtocol.SSL))
    config = NetworkConfig(
        ssl_keystore_location=str(certificates / "server.pem"),
        ssl_truststore_location=str(certificates / "ca.pem"),
        ssl_client_auth="requested",
        connection_failed_authentication_delay_ms=0,
        sasl_enabled_mechanisms=("PLAIN", "SCRAM-SHA-512"),
    )
    with NetworkServer(
        listeners, whoami, config, credentials=USERS, is_quick=lambda request: True
    ) as server:
        yield server


def principal(server: NetworkServer, listener: str, **config: Any) -> str:
    host, port = server.bound_addresses[listener]
    with AdminClient(ClientConfig(bootstrap_servers=(f"{host}:{port}",), **config)) as client:
        return str(client.metadata().topics[0].name)


def alice(mechanism: str = "SCRAM-SHA-512", password: str = "wonder=land,") -> dict[str, Any]:
    return {
        "sasl_mechanism": mechanism,
        "sasl_username": "alice",
        "sasl_password": password,
    }


@needs_openssl
def test_each_protocol(server: NetworkServer, certificates: Path) -> None:
    tls = {"ssl_truststore_location": str(certificates / "ca.pem")}
    inline = {"ssl_truststore_certificates": (certificates / "ca.pem").read_text()}
    for protocol, expected in (
        ("PLAINTEXT", "User:ANONYMOUS"),
        ("SSL", "User:ANONYMOUS"),
        ("SASL_PLAINTEXT", "User:alice"),
        ("SASL_SSL", "User:alice"),
    ):
        for mechanism in ("PLAIN", "SCRAM-SHA-512"):
            for trust in (tls, inline):
                given = {**trust, **alice(mechanism), "security_protocol": protocol}
                assert principal(server, protocol, **given) == expected


@needs_openssl
def test_a_certificate_of_the_client(server: NetworkServer, certificates: Path) -> None:
    given = {
        "security_protocol": "SSL",
        "ssl_truststore_location": str(certificates / "ca.pem"),
    }
    subject = "User:CN=me,OU=tests,O=logstore"
    on_file = {"ssl_keystore_location": str(certificates / "client.pem")}
    assert principal(server, "SSL", **given, **on_file) == subject
    inline = {
        "ssl_keystore_key": (certificates / "client.key").read_text(),
        "ssl_keystore_certificate_chain": (certificates / "client.crt").read_text(),
    }
    assert principal(server, "SSL", **given, **inline) == subject


@needs_openssl
@for_each(
    "listener, config, words",
    [
        ("SSL", {}, "security.protocol"),
        ("SASL_SSL", {}, "security.protocol"),
        ("SASL_PLAINTEXT", {}, "security.protocol"),
        ("PLAINTEXT", {"security_protocol": "SSL"}, "security.protocol"),
        ("SSL", {"security_protocol": "SSL", "ssl_truststore_location": ""}, "certificate"),
        ("ELSEWHERE", {"security_protocol": "SSL"}, "certificate.*127.0.0.2"),
        (
            "SASL_PLAINTEXT",
            {"security_protocol": "SASL_PLAINTEXT", **alice(password="wr0ng")},
            "login of 'alice' is refused: Authentication failed",
        ),
        (
            "SASL_PLAINTEXT",
            {"security_protocol": "SASL_PLAINTEXT", **alice("SCRAM-SHA-256")},
            "does not take SCRAM-SHA-256, but PLAIN, SCRAM-SHA-512",
        ),
        ("PLAINTEXT", {"security_protocol": "SASL_PLAINTEXT", **alice()}, "take a login"),
    ],
)
def test_who_is_not_let_in_is_told_why(
    server: NetworkServer, certificates: Path, listener: str, config: dict[str, Any], words: str
) -> None:
    given = {"ssl_truststore_location": str(certificates / "ca.pem"), **config}
    with pytest.raises(WireError, match=words) as caught:
        principal(server, listener, **given)
    assert "\n" not in str(caught.value)
    assert "wr0ng" not in repr(caught.value)


@needs_openssl
def test_a_name_that_is_not_checked(server: NetworkServer, certificates: Path) -> None:
    given = {
        "security_protocol": "SSL",
        "ssl_truststore_location": str(certificates / "ca.pem"),
        "ssl_endpoint_identification_algorithm": "",
    }
    assert principal(server, "ELSEWHERE", **given) == "User:ANONYMOUS"
    with pytest.raises(WireError, match="certificate"):  # whose it is, is checked all the same
        principal(server, "ELSEWHERE", **{**given, "ssl_truststore_location": ""})


@needs_openssl
@for_each(
    "change, words",
    [
        ({"ssl_truststore_location": "/nowhere.pem"}, "with /nowhere.pem: No such file"),
        ({"ssl_truststore_type": "JKS"}, "PEM"),
        ({"ssl_keystore_key": "s3cret"}, "TLS cannot be set up"),
        ({"ssl_truststore_location": __file__}, "PKCS12"),
    ],
)
def test_keys_that_cannot_be_used(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        AdminClient(ClientConfig(bootstrap_servers=("nowhere",), security_protocol="SSL", **change))
    assert "s3cret" not in repr(caught.value)
