"""What a client says to log in, in which order: requests out, answers in; no I/O (W-210)."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from replication.common.error_codes import ErrorCode, error_name
from replication.common.errors import SaslAuthenticationError
from replication.protocol import ApiKey
from replication.protocol import messages as wire
from replication.security.config import ClientConfig
from replication.security.sasl import client_exchange

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
