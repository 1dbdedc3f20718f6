"""Logins: the mechanisms alone, with the examples of RFC 7677, and over a socket."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.common.clock import SystemClock
from logstore.common.errors import ConfigError
from replication.common.error_codes import ErrorCode
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
from replication.protocol import (
    ApiKey,
    decode_response,
    encode_request,
    parse_response_header,
    request_header,
)
from replication.protocol import messages as wire
from replication.security.credentials import ScramCredential, ScramMechanism, derive
from replication.security.sasl import MECHANISMS, PlainServer, ScramServer
from tests.support.cases import for_each
from tests.support.network import RawClient

USERS = UserCredentials({"alice": "wonder=land,", "a,=b": "x"})


class _Pencil:
    """The user of RFC 7677, section 3."""

    def scram(self, hash_function: ScramMechanism, user: str) -> ScramCredential | None:
        salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
        return derive(hash_function, "pencil", salt) if user == "user" else None

    def check_password(self, user: str, password: str) -> bool:
        raise AssertionError


def test_the_example_of_rfc_7677() -> None:
    server = ScramServer(
        ScramMechanism.SHA_256, _Pencil(), lambda: "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    )
    assert server.evaluate(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO") == (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    assert server.user is None
    assert server.evaluate(
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    ) == (b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")
    assert server.user == "user"


def client_final(
    kind: ScramMechanism,
    password: str,
    first: str,
    answer: bytes,
    channel: str = "biws",
    nonce: str | None = None,
) -> bytes:
    """What a client sends next, written from the RFC and not from our code."""
    fields = dict(part.split("=", 1) for part in answer.decode().split(","))
    salted = hashlib.pbkdf2_hmac(
        kind.value, password.encode(), base64.b64decode(fields["s"]), int(fields["i"])
    )
    client_key = hmac.new(salted, b"Client Key", kind.value).digest()
    without_proof = f"c={channel},r={fields['r'] if nonce is None else nonce}"
    signed = f"{first.removeprefix('n,,')},{answer.decode()},{without_proof}".encode()
    stored_key = hashlib.new(kind.value, client_key).digest()
    signature = hmac.new(stored_key, signed, kind.value).digest()
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()


@pytest.mark.parametrize("kind", ScramMechanism)
def test_a_name_with_a_comma_and_an_equals_sign(kind: ScramMechanism) -> None:
    server = ScramServer(kind, USERS)
    first = "n,,n=a=2C=3Db,r=abc"
    answer = server.evaluate(first.encode())
    assert server.evaluate(client_final(kind, "x", first, answer)).startswith(b"v=")
    assert server.user == "a,=b"


def test_an_unknown_user_is_answered_as_one_with_a_wrong_password() -> None:
    refusals, salts = [], set()
    for user in ("alice", "nobody", "nobody"):
        server = ScramServer(ScramMechanism.SHA_512, USERS)
        first = f"n,,n={user},r=abc"
        answer = server.evaluate(first.encode())
        assert answer.startswith(b"r=abc")
        salts.add((user, answer.split(b",")[1]))
        with pytest.raises(SaslAuthenticationError) as caught:
            server.evaluate(client_final(ScramMechanism.SHA_512, "wrong", first, answer))
        refusals.append(str(caught.value))
        assert server.user is None
    assert len(set(refusals)) == 1
    assert len(salts) == 2  # an unknown user's stays the same too


@for_each(
    "message",
    [
        b"",
        b"\xff\xfe",
        b"p=tls-unique,,n=alice,r=abc",
        b"n,,n=,r=abc",
        b"n,,n=alice,r=",
        b"n,,n=alice",
        b"n,a=bob,n=alice,r=abc",
        b"n,,n=al=ice,r=abc",
        b"n,,m=ext,n=alice,r=abc",
    ],
)
def test_a_malformed_first_message(message: bytes) -> None:
    with pytest.raises(SaslAuthenticationError):
        ScramServer(ScramMechanism.SHA_256, USERS).evaluate(message)


def test_each_part_of_the_final_message_counts() -> None:
    first = "n,,n=alice,r=abc"
    for old, new in (
        (b"c=biws", b"c=eSws"),
        (b"r=abc", b"r=abd"),
        (b",p=", b",p=AAAA"),
        (b"", b""),
    ):
        server = ScramServer(ScramMechanism.SHA_256, USERS)
        answer = server.evaluate(first.encode())
        final = client_final(ScramMechanism.SHA_256, "wonder=land,", first, answer)
        if old:
            with pytest.raises(SaslAuthenticationError):
                server.evaluate(final.replace(old, new))
        else:
            server.evaluate(final)
        assert (server.user is None) == bool(old)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@given(messages=st.lists(st.binary(max_size=60), min_size=1, max_size=3))
def test_random_bytes_log_nobody_in(mechanism: str, messages: list[bytes]) -> None:
    server = MECHANISMS[mechanism](_Nobody())
    for message in messages:
        with pytest.raises(SaslAuthenticationError):
            server.evaluate(message)
    assert server.user is None


class _Nobody:
    def scram(self, hash_function: ScramMechanism, user: str) -> None:
        return None

    def check_password(self, user: str, password: str) -> bool:
        return False


@for_each(
    "message, user",
    [
        (b"\0alice\0wonder=land,", "alice"),
        (b"alice\0alice\0wonder=land,", "alice"),
        (b"bob\0alice\0wonder=land,", None),
        (b"\0alice\0wrong", None),
        (b"\0nobody\0x", None),
        (b"\0alice\0", None),
        (b"\0\0x", None),
        (b"alice\0wonder=land,", None),
        (b"\0alice\0wonder=land,\0", None),
        (b"\xff\0a\0b", None),
    ],
)
def test_plain(message: bytes, user: str | None) -> None:
    server = PlainServer(USERS)
    if user is None:
        with pytest.raises(SaslAuthenticationError):
            server.evaluate(message)
    else:
        assert server.evaluate(message) == b""
    assert server.user == user


@pytest.mark.parametrize("changed", [{"channel": "eSws"}, {"nonce": "abc"}])
def test_a_client_that_signs_another_nonce_or_channel(changed: dict[str, str]) -> None:
    """Its proof is right, but for another exchange: it may be a replay."""
    kind, first = ScramMechanism.SHA_256, "n,,n=alice,r=abc"
    server = ScramServer(kind, USERS)
    answer = server.evaluate(first.encode())
    with pytest.raises(SaslAuthenticationError):
        server.evaluate(client_final(kind, "wonder=land,", first, answer, **changed))
    assert server.user is None


def test_few_iterations_are_refused() -> None:
    with pytest.raises(ConfigError):
        UserCredentials({"alice": "x"}, iterations=4095)


# --------------------------------------------------------------------------------- over a socket


def whoami(request: ReceivedRequest, respond: Respond) -> None:
    header = request.correlation_id.to_bytes(4)
    respond(Send([header, request.connection.principal.encode()]))


@pytest.fixture
def server() -> Iterator[NetworkServer]:
    listeners = [
        Listener("SASL_PLAINTEXT", "127.0.0.1", 0, SecurityProtocol.SASL_PLAINTEXT),
        Listener(),
    ]
    server = NetworkServer(listeners, whoami, credentials=USERS, is_quick=lambda request: True)
    with server:
        yield server


class Client(RawClient):
    def ask(self, message: object, version: int, key: ApiKey) -> object:
        body = request_header(key, version, 7, "me") + encode_request(message, version)
        self.socket.sendall(len(body).to_bytes(4) + body)
        answer = memoryview(self.receive())
        correlation_id, offset = parse_response_header(answer, key, version)
        assert correlation_id == 7
        return decode_response(key, version, answer[offset:])

    def handshake(self, mechanism: str) -> wire.SaslHandshakeResponse:
        message = wire.SaslHandshakeRequest(mechanism=mechanism)
        answer = self.ask(message, 1, ApiKey.SASL_HANDSHAKE)
        assert isinstance(answer, wire.SaslHandshakeResponse)
        return answer

    def authenticate(self, data: bytes, version: int = 2) -> wire.SaslAuthenticateResponse:
        message = wire.SaslAuthenticateRequest(auth_bytes=data)
        answer = self.ask(message, version, ApiKey.SASL_AUTHENTICATE)
        assert isinstance(answer, wire.SaslAuthenticateResponse)
        return answer

    def whoami(self) -> str:
        self.send(b"", key=ApiKey.METADATA, version=1)
        return self.receive()[4:].decode()


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_login_with_plain(server: NetworkServer, version: int) -> None:
    with Client(server, "SASL_PLAINTEXT") as client:
        answer = client.handshake("PLAIN")
        assert answer.error_code == ErrorCode.NONE
        assert set(answer.mechanisms) == {"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"}
        done = client.authenticate(b"\0alice\0wonder=land,", version)
        assert (done.error_code, done.session_lifetime_ms) == (ErrorCode.NONE, 0)
        assert client.whoami() == "User:alice"
        again = client.authenticate(b"\0alice\0wrong")
        assert again.error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert client.handshake("PLAIN").error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert client.whoami() == "User:alice"


@pytest.mark.parametrize("kind", ScramMechanism)
def test_a_login_with_scram(server: NetworkServer, kind: ScramMechanism) -> None:
    with Client(server, "SASL_PLAINTEXT") as client:
        client.handshake(kind.mechanism)
        first = "n,,n=alice,r=abc"
        answer = client.authenticate(first.encode())
        final = client_final(kind, "wonder=land,", first, bytes(answer.auth_bytes))
        assert bytes(client.authenticate(final).auth_bytes).startswith(b"v=")
        assert client.whoami() == "User:alice"


def test_an_unknown_mechanism_leaves_the_connection_open(server: NetworkServer) -> None:
    with Client(server, "SASL_PLAINTEXT") as client:
        answer = client.handshake("GSSAPI")
        assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
        assert "PLAIN" in answer.mechanisms
        assert client.handshake("PLAIN").error_code == ErrorCode.NONE


def test_a_second_handshake_does_not_begin_another_login(server: NetworkServer) -> None:
    with Client(server, "SASL_PLAINTEXT") as client:
        client.handshake("PLAIN")
        assert client.handshake("SCRAM-SHA-256").error_code == ErrorCode.ILLEGAL_SASL_STATE
        client.authenticate(b"\0alice\0wonder=land,")
        assert client.whoami() == "User:alice"


def test_a_failed_login_is_answered_late_and_closed(server: NetworkServer) -> None:
    with Client(server, "SASL_PLAINTEXT") as client:
        client.handshake("PLAIN")
        began_ns = SystemClock.monotonic_ns()
        answer = client.authenticate(b"\0alice\0wrong")
        assert SystemClock.monotonic_ns() - began_ns > 99e6  # the server counts whole milliseconds
        assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert answer.error_message is not None
        assert "wrong" not in answer.error_message
        assert client.is_closed()


@pytest.mark.parametrize("handshake", [False, True])
def test_nothing_else_is_served_before_the_login(server: NetworkServer, handshake: bool) -> None:
    with Client(server, "SASL_PLAINTEXT") as client:
        client.send(b"", key=ApiKey.API_VERSIONS, version=0)
        assert client.receive()[4:] == b"User:ANONYMOUS"
        if handshake:
            client.handshake("PLAIN")
        client.send(b"", key=ApiKey.METADATA, version=1)
        assert client.is_closed()


def test_authenticate_without_a_handshake(server: NetworkServer) -> None:
    with Client(server, "SASL_PLAINTEXT") as client, pytest.raises(EOFError):
        client.authenticate(b"\0alice\0wonder=land,")


def test_large_requests_are_for_those_who_have_logged_in(server: NetworkServer) -> None:
    size = NetworkConfig().sasl_server_max_receive_size
    with Client(server, "SASL_PLAINTEXT") as client:
        client.socket.sendall((size + 1).to_bytes(4))
        assert client.is_closed()
    with Client(server, "SASL_PLAINTEXT") as client:
        client.handshake("PLAIN")
        client.authenticate(b"\0alice\0wonder=land,")
        client.send(bytes(size + 1), key=ApiKey.METADATA, version=1)
        assert client.receive()[4:] == b"User:alice"


def test_a_listener_without_sasl_has_no_logins(server: NetworkServer) -> None:
    with Client(server) as client:
        assert client.handshake("PLAIN").error_code == ErrorCode.ILLEGAL_SASL_STATE
        answer = client.authenticate(b"\0alice\0wonder=land,")
        assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert client.whoami() == "User:ANONYMOUS"
