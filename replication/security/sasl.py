"""SASL mechanisms of both sides: a message in, the answer out; no I/O (W-210).

Kafka's ``PlainSaslServer``, ``ScramSaslServer`` and ``ScramSaslClient``.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Generator, Mapping
from functools import partial
from typing import Any, Protocol

from replication.common.error_codes import ErrorCode, error_name
from replication.common.errors import SaslAuthenticationError
from replication.protocol import ApiKey
from replication.protocol import messages as wire
from replication.security.config import ClientConfig
from replication.security.credentials import (
    MIN_ITERATIONS,
    Credentials,
    ScramCredential,
    ScramMechanism,
    keys_of,
    salted_password,
)

_NONCE_BYTES = 18
MAX_ITERATIONS = 1 << 17  # a tenth of a second, which others wait for; Kafka itself takes 16,384
_NAME = r"(?:[^\x00=,]|=2C|=3D)+"
_CLIENT_FIRST = re.compile(
    rf"(?P<gs2>[ny],(?:a=(?P<authzid>{_NAME}))?,)"
    rf"(?P<bare>n=(?P<user>{_NAME}),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+))(?:,.*)?",
    re.DOTALL,
)
_SERVER_FIRST = re.compile(
    r"r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+),s=(?P<salt>[A-Za-z0-9+/=]+),i=(?P<count>[0-9]{1,9})(?:,.*)?",
    re.DOTALL,
)
_CLIENT_FINAL = re.compile(
    r"(?P<without_proof>c=(?P<channel>[A-Za-z0-9+/=]+),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)(?:,.*)?)"
    r",p=(?P<proof>[A-Za-z0-9+/=]+)",
    re.DOTALL,
)


def _new_nonce() -> str:
    return secrets.token_urlsafe(_NONCE_BYTES)


class SaslServer(Protocol):
    """One login.

    Attributes:
        user: who logged in; None until then.
    """

    user: str | None

    def evaluate(self, message: bytes) -> bytes:
        """The answer to the client's next message.

        Raises:
            SaslAuthenticationError: the login failed; its text may be shown to the client.
        """
        ...


class PlainServer:
    """``authzid \\0 user \\0 password``."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self.user: str | None = None

    def evaluate(self, message: bytes) -> bytes:
        parts = _text(message, "PLAIN").split("\0")
        if len(parts) != 3:
            raise SaslAuthenticationError("PLAIN takes three parts with a NUL between them")
        authzid, user, password = parts
        if not user or not password:
            raise SaslAuthenticationError("user and password must not be empty")
        if authzid not in ("", user):
            raise SaslAuthenticationError("a user cannot act for another")
        if not self._credentials.check_password(user, password):
            raise SaslAuthenticationError("invalid user or password")
        self.user = user
        return b""


class ScramServer:
    """RFC 5802 without channel binding. An unknown user gets the same answers as a wrong password,
    with a salt that stays the same for that name.
    """

    _secret = secrets.token_bytes(32)  # of the process, for salts of unknown users

    def __init__(
        self,
        kind: ScramMechanism,
        credentials: Credentials,
        make_nonce: Callable[[], str] = _new_nonce,
    ) -> None:
        self._kind = kind
        self._credentials = credentials
        self._make_nonce = make_nonce
        self._first: re.Match[str] | None = None
        self._server_first = ""
        self._nonce = ""
        self._name = ""
        self._credential: ScramCredential | None = None
        self.user: str | None = None

    def evaluate(self, message: bytes) -> bytes:
        text = _text(message, self._kind.mechanism)
        return self._final(text) if self._first is not None else self._begin(text)

    def _begin(self, text: str) -> bytes:
        first = _CLIENT_FIRST.fullmatch(text)
        if first is None:
            raise SaslAuthenticationError("the client's first message is malformed")
        self._first = first
        self._name = first["user"].replace("=2C", ",").replace("=3D", "=")
        if first["authzid"] not in (None, first["user"]):
            raise SaslAuthenticationError("a user cannot act for another")
        self._credential = self._credentials.scram(self._kind, self._name)
        salt, iterations = self._salt_of(self._name), MIN_ITERATIONS
        if self._credential is not None:
            salt, iterations = self._credential.salt, self._credential.iterations
        self._nonce = first["nonce"] + self._make_nonce()
        encoded = base64.b64encode(salt).decode()
        self._server_first = f"r={self._nonce},s={encoded},i={iterations}"
        return self._server_first.encode()

    def _salt_of(self, unknown: str) -> bytes:
        return hmac.digest(self._secret, unknown.encode(), "sha256")[:16]

    def _final(self, text: str) -> bytes:
        assert self._first is not None
        final = _CLIENT_FINAL.fullmatch(text)
        if final is None:
            raise SaslAuthenticationError("the client's final message is malformed")
        if _decoded(final["channel"]) != self._first["gs2"].encode():
            raise SaslAuthenticationError("the channel binding changed")
        if not hmac.compare_digest(final["nonce"].encode(), self._nonce.encode()):
            raise SaslAuthenticationError("the nonce is another")
        signed = f"{self._first['bare']},{self._server_first},{final['without_proof']}".encode()
        credential, proof = self._credential, _decoded(final["proof"])
        if credential is None or not self._is_proof(credential, signed, proof):
            raise SaslAuthenticationError("invalid user or password")
        self.user = self._name
        signature = hmac.digest(credential.server_key, signed, self._kind.value)
        return b"v=" + base64.b64encode(signature)

    def _is_proof(self, credential: ScramCredential, signed: bytes, proof: bytes) -> bool:
        signature = hmac.digest(credential.stored_key, signed, self._kind.value)
        if len(proof) != len(signature):
            return False
        client_key = _xor(proof, signature)
        stored_key = hashlib.new(self._kind.value, client_key).digest()
        return hmac.compare_digest(stored_key, credential.stored_key)


SaslExchange = Generator[bytes, bytes, None]
"""A client's side of a login: yields a message, takes the server's answer, ends when it is done.

Raises:
    SaslAuthenticationError: the answer is malformed, or the server does not know the password.
"""


def client_exchange(mechanism: str, user: str, password: str) -> SaslExchange:
    """
    Args:
        mechanism: one of ``MECHANISMS``.
    """
    if mechanism == "PLAIN":
        yield f"\0{user}\0{password}".encode()
    else:
        kind = next(each for each in ScramMechanism if each.mechanism == mechanism)
        yield from scram_exchange(kind, user, password)


def scram_exchange(
    kind: ScramMechanism, user: str, password: str, make_nonce: Callable[[], str] = _new_nonce
) -> SaslExchange:
    """RFC 5802 without channel binding. The server has to prove that it knows the password."""
    name, nonce = user.replace("=", "=3D").replace(",", "=2C"), make_nonce()
    bare = f"n={name},r={nonce}"
    answer = _text((yield f"n,,{bare}".encode()), kind.mechanism)
    first = _SERVER_FIRST.fullmatch(answer)
    if first is None or not first["nonce"].startswith(nonce) or first["nonce"] == nonce:
        raise SaslAuthenticationError("the broker's first message is malformed")
    iterations = int(first["count"])
    if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
        raise SaslAuthenticationError(
            f"the broker asks for {iterations} iterations; {MIN_ITERATIONS} to {MAX_ITERATIONS} "
            "are taken"
        )
    without_proof = f"c=biws,r={first['nonce']}"
    signed = f"{bare},{answer},{without_proof}".encode()
    salted = salted_password(kind, password, _decoded(first["salt"]), iterations)
    keys = keys_of(kind, salted)
    signature = hmac.digest(keys.stored_key, signed, kind.value)
    proof = base64.b64encode(_xor(keys.client_key, signature)).decode()
    last = _text((yield f"{without_proof},p={proof}".encode()), kind.mechanism)
    expected = hmac.digest(keys.server_key, signed, kind.value)
    if last.startswith("e="):
        raise SaslAuthenticationError(f"the broker says {last[2:]}")
    if not hmac.compare_digest(last.encode(), b"v=" + base64.b64encode(expected)):
        raise SaslAuthenticationError("the broker does not know the password: it may be another's")


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))


def _text(message: bytes, mechanism: str) -> str:
    try:
        return message.decode()
    except UnicodeDecodeError as error:
        raise SaslAuthenticationError(f"the {mechanism} message is not UTF-8") from error


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise SaslAuthenticationError("a part of the message is not base64") from error


MECHANISMS: Mapping[str, Callable[[Credentials], SaslServer]] = {
    "PLAIN": PlainServer,
    **{kind.mechanism: partial(ScramServer, kind) for kind in ScramMechanism},
}

LoginSteps = Generator[tuple[ApiKey, Any], Any, int]
"""Yields requests with their API, takes the answer of each. Returns for how many ms the login
holds; 0 is for as long as the connection."""


def login(config: ClientConfig) -> LoginSteps:
    """The login of one connection. Nothing but ApiVersions may be asked before its end. As a
    generator computes on the thread that sends to it, a SCRAM login takes milliseconds there.

    Raises:
        SaslAuthenticationError: the broker refuses it, or does not know the password itself.
    """
    mechanism = config.sasl_mechanism
    user, password = config.login()
    handshake = yield ApiKey.SASL_HANDSHAKE, wire.SaslHandshakeRequest(mechanism=mechanism)
    if handshake.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        taken = ", ".join(handshake.mechanisms)
        raise SaslAuthenticationError(f"the broker does not take {mechanism}, but {taken}")
    if handshake.error_code:
        name = error_name(handshake.error_code)
        raise SaslAuthenticationError(f"{name}: does it take a login?")
    exchange = client_exchange(mechanism, user, password)
    message = next(exchange)
    while True:
        request = wire.SaslAuthenticateRequest(auth_bytes=message)
        answer = yield ApiKey.SASL_AUTHENTICATE, request
        if answer.error_code:
            text = answer.error_message or error_name(answer.error_code)
            raise SaslAuthenticationError(f"the login of {user!r} is refused: {text}")
        try:
            message = exchange.send(bytes(answer.auth_bytes))
        except StopIteration:
            return int(answer.session_lifetime_ms)
