"""Logins before requests: a handler in front of the handler (Kafka's ``SaslServerAuthenticator``).

On a listener with SASL only ApiVersions, SaslHandshake and SaslAuthenticate are served before a
login (W-210). It runs on handler threads; one request of a connection is handled at a time.
"""

from __future__ import annotations

from checkpoints.loggers import get_logger
from replication.common.error_codes import ErrorCode
from replication.common.errors import SaslAuthenticationError
from replication.network.config import NetworkConfig
from replication.network.requests import (
    CLOSE,
    ConnectionInfo,
    ReceivedRequest,
    RequestHandler,
    Respond,
)
from replication.protocol import (
    ApiKey,
    decode_request,
)
from replication.protocol import messages as wire
from replication.security.credentials import Credentials
from replication.security.sasl import MECHANISMS

logger = get_logger(__name__)

_OF_LOGINS = frozenset({ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE})


class Authenticator:
    """Carries out logins, and passes every other request on to ``handler``."""

    def __init__(
        self, handler: RequestHandler, config: NetworkConfig, credentials: Credentials | None
    ) -> None:
        self._handler = handler
        self._credentials = credentials
        self._mechanisms = tuple(config.sasl_enabled_mechanisms)
        self._delay_ms = config.connection_failed_authentication_delay_ms

    def __call__(self, request: ReceivedRequest, respond: Respond) -> None:
        key = request.api_key
        if key in _OF_LOGINS:
            if key == ApiKey.SASL_HANDSHAKE:
                self._handshake(request, respond)
            else:
                self._authenticate(request, respond)
        elif request.connection.is_logged_in or key == ApiKey.API_VERSIONS:
            self._handler(request, respond)
        else:
            logger.info(
                "API %d before a login on listener %s from %s",
                key,
                request.connection.listener.name,
                request.connection.peer_host,
            )
            respond(CLOSE)

    def _handshake(self, request: ReceivedRequest, respond: Respond) -> None:
        message = decode_request(ApiKey.SASL_HANDSHAKE, request.api_version, request.body)
        connection = request.connection
        error = ErrorCode.NONE
        if connection.is_logged_in or connection.sasl is not None:
            error = ErrorCode.ILLEGAL_SASL_STATE
        elif message.mechanism not in self._mechanisms:
            error = ErrorCode.UNSUPPORTED_SASL_MECHANISM
        else:
            assert self._credentials is not None  # the server does not start without
            connection.sasl = MECHANISMS[message.mechanism](self._credentials)
        known = () if error is ErrorCode.ILLEGAL_SASL_STATE else self._mechanisms
        answer = wire.SaslHandshakeResponse(error_code=error, mechanisms=known)
        respond(request.answered(answer))

    def _authenticate(self, request: ReceivedRequest, respond: Respond) -> None:
        message = decode_request(ApiKey.SASL_AUTHENTICATE, request.api_version, request.body)
        connection = request.connection
        if connection.is_logged_in:
            answer = wire.SaslAuthenticateResponse(
                error_code=ErrorCode.ILLEGAL_SASL_STATE,
                error_message="the login is over, or this listener has none",
            )
            respond(request.answered(answer))
        elif connection.sasl is None:
            respond(CLOSE)  # no handshake before it
        else:
            self._evaluate(connection, bytes(message.auth_bytes), request, respond)

    def _evaluate(
        self,
        connection: ConnectionInfo,
        message: bytes,
        request: ReceivedRequest,
        respond: Respond,
    ) -> None:
        assert connection.sasl is not None
        try:
            answer = connection.sasl.evaluate(message)
        except SaslAuthenticationError as error:
            logger.info("a login from %s failed: %s", connection.peer_host, error)
            refusal = wire.SaslAuthenticateResponse(
                error_code=ErrorCode.SASL_AUTHENTICATION_FAILED,
                error_message=f"Authentication failed: {error}",
            )
            respond(request.answered(refusal, close_after=True, delay_ms=self._delay_ms))
            return
        if connection.sasl.user is not None:
            connection.principal = f"User:{connection.sasl.user}"
            connection.is_logged_in, connection.sasl = True, None
        respond(request.answered(wire.SaslAuthenticateResponse(auth_bytes=answer)))
