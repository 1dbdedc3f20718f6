"""One connection to a broker: a request goes out, its answer comes back.

For commands and tests, which ask one thing after the other. No byte that comes is trusted: the
size of an answer is bounded, and one that cannot be read ends the connection.
"""

from __future__ import annotations

import itertools
import socket
import ssl
import struct
from typing import Any, Self

from logstore.common.clock import SystemClock
from logstore.common.errors import LogstoreError
from logstore.common.version import __version__
from replication.common.error_codes import ErrorCode
from replication.common.errors import SaslAuthenticationError
from replication.protocol import (
    ApiKey,
    MalformedMessageError,
    VersionRange,
    decode_response,
    encode_request,
    parse_response_header,
    request_header,
    schema,
)
from replication.protocol import messages as wire
from replication.security.config import ClientConfig
from replication.security.login import LoginSteps
from replication.security.login import login as begin_login
from replication.security.tls import client_context

TIMEOUT_S = 30.0
MAX_RESPONSE_BYTES = 100 << 20
_CHUNK = 1 << 16
_LENGTH = struct.Struct(">i")
_TLS_ALERT = 0x1503  # how a record begins in which a server refuses what is no TLS
_UNTRUSTED = (18, 19, 20)  # OpenSSL's codes: nobody whom this side trusts has signed it
_BEFORE_LOGINS = (ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)
_ASKING = 3  # the version of the first ApiVersions request; every broker answers it, some in v0


class WireError(LogstoreError):
    """A broker cannot be asked: it does not answer, or not as the protocol says."""


class UnservedApiError(WireError):
    """The broker is too old, or too new, for what is asked."""


class Connector:
    """Opens connections to brokers of one cluster, all in one way.

    Raises:
        ConfigError: TLS cannot be set up.
    """

    def __init__(self, config: ClientConfig | None = None) -> None:
        self.config = config = config or ClientConfig()
        self._context = client_context(config)

    def __call__(self, host: str, port: int) -> WireConnection:
        """
        Raises:
            WireError: as ``WireConnection``.
        """
        return WireConnection(
            host,
            port,
            client_id=self.config.client_id,
            timeout_s=self.config.request_timeout_ms / 1000,
            setup_timeout_s=self.config.socket_connection_setup_timeout_ms / 1000,
            context=self._context,
            login=begin_login(self.config) if self.config.uses_sasl else None,
        )


class WireConnection:
    """Use as a context manager, or call ``close``. For one thread at a time.

    Args:
        host, port: of the broker.
        client_id: what quotas and logs of the broker name.
        context: for TLS; None speaks in the open.
        login: to be carried out before anything else is asked.
    Raises:
        WireError: nobody is there, or it is no Kafka broker, or not one that takes this client.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        client_id: str = "logstore",
        timeout_s: float = TIMEOUT_S,
        setup_timeout_s: float = TIMEOUT_S,
        context: ssl.SSLContext | None = None,
        login: LoginSteps | None = None,
    ) -> None:
        self.peer = f"{host}:{port}"
        self.broker_id = -1  # not known
        self._client_id = client_id
        self._correlation = itertools.count()
        self._timeout_s = timeout_s
        protocol = f"{'SASL_' if login else ''}{'SSL' if context else 'PLAINTEXT'}"
        self._hint = f"; is {protocol} its security.protocol?"
        self._is_open = False  # it has answered something that only those get who may ask
        try:
            connection = socket.create_connection((host, port), min(timeout_s, setup_timeout_s))
        except (OSError, UnicodeError) as error:  # the latter for a name that is none, such as a..b
            raise WireError(f"{self.peer}: {self._reason(error)}") from error
        try:
            connection.settimeout(timeout_s)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if context is not None:
                connection = context.wrap_socket(connection, server_hostname=host)
            self._socket = connection
            self.versions = self._ask_versions()
            if login is not None:
                self._log_in(login)
        except BaseException as error:
            connection.close()
            if isinstance(error, OSError | SaslAuthenticationError):
                raise WireError(f"{self.peer}: {self._reason(error)}") from error
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def is_of(self, broker_id: int) -> None:
        self.broker_id = broker_id

    def _log_in(self, login: LoginSteps) -> None:
        answer = None
        try:
            while True:
                answer = self.call(*login.send(answer))
        except StopIteration:
            return

    def _ask_versions(self) -> dict[int, VersionRange]:
        request = wire.ApiVersionsRequest(
            client_software_name="logstore", client_software_version=__version__
        )
        answer = self.send(ApiKey.API_VERSIONS, request, _ASKING)
        if answer.error_code == ErrorCode.UNSUPPORTED_VERSION:  # Kafka before 2.4 says no more
            answer = self.send(ApiKey.API_VERSIONS, wire.ApiVersionsRequest(), 0)
        if answer.error_code:
            raise WireError(f"{self.peer} answers ApiVersions with error {answer.error_code}")
        return {
            each.api_key: VersionRange(each.min_version, each.max_version)
            for each in answer.api_keys
        }

    def version(self, api_key: ApiKey, at_most: int = 1 << 15) -> int:
        """The latest version that both sides have, up to ``at_most``.

        Raises:
            WireError: there is none.
        """
        ours, theirs = schema.APIS[api_key].versions, self.versions.get(api_key)
        if theirs is not None:
            latest = min(ours.last, theirs.last, at_most)
            if latest >= max(ours.first, theirs.first):
                return latest
        raise UnservedApiError(
            f"{self.peer} does not serve {api_key.name} as this client asks for it"
        )

    def call(self, api_key: ApiKey, request: Any) -> Any:
        """The answer to ``request``, both in the latest version that both sides have.

        Raises:
            WireError: there is none; the connection is of no use any more.
            UnencodableMessageError: the broker is too old for a field of the request.
        """
        return self.send(api_key, request, self.version(api_key))

    def send(self, api_key: ApiKey, request: Any, version: int, wait_s: float = 0.0) -> Any:
        """As ``call``, in a version of the caller's choice.

        Args:
            wait_s: how long the broker itself may wait before it answers.
        """
        correlation_id = next(self._correlation) & 0x7FFFFFFF
        header = request_header(api_key, version, correlation_id, self._client_id)
        body = encode_request(request, version)
        self._deadline_ns = SystemClock.monotonic_ns() + int((self._timeout_s + wait_s) * 1e9)
        try:
            self._socket.settimeout(self._timeout_s)
            self._socket.sendall(b"".join((_LENGTH.pack(len(header) + len(body)), header, body)))
            frame = self._receive()
        except OSError as error:
            raise WireError(f"{self.peer}: {self._reason(error)}") from error
        self._is_open |= api_key not in _BEFORE_LOGINS
        try:
            answered, start = parse_response_header(frame, api_key, version)
            if answered != correlation_id:
                raise WireError(f"{self.peer} answers request {answered}, not {correlation_id}")
            return self._decode(api_key, version, frame[start:])
        except MalformedMessageError as error:
            raise WireError(f"{self.peer}: {error}") from error

    def _decode(self, api_key: ApiKey, version: int, body: memoryview) -> Any:
        """A broker that does not know the version of ApiVersions answers in version 0 (W-11)."""
        if api_key is ApiKey.API_VERSIONS and version > 0:
            try:
                return decode_response(api_key, version, body)
            except MalformedMessageError:
                answer = decode_response(api_key, 0, body)
                return answer._replace(error_code=0) if answer.api_keys else answer
        return decode_response(api_key, version, body)

    def _receive(self) -> memoryview:
        (size,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        if size >> 16 == _TLS_ALERT:
            raise WireError(
                f"{self.peer} answers in TLS: security.protocol is to be SSL or SASL_SSL"
            )
        if not 0 < size <= MAX_RESPONSE_BYTES:
            raise WireError(f"{self.peer} announces an answer of {size} bytes")
        return memoryview(self._exactly(size))

    def _exactly(self, size: int) -> bytearray:
        """Receive exactly so many bytes. Memory grows with what came, not with ``size``."""
        received = bytearray()
        while len(received) < size:
            # Of the whole answer: who sends a byte now and then is not waited for.
            left_s = (self._deadline_ns - SystemClock.monotonic_ns()) / 1e9
            self._socket.settimeout(max(left_s, 0.001))
            chunk = self._socket.recv(min(_CHUNK, size - len(received)))
            if not chunk:
                hint = "" if self._is_open else self._hint
                raise WireError(f"{self.peer} closed the connection{hint}")
            received += chunk
        return received

    def _reason(self, error: Exception) -> str:
        """In one line, with a hint where one side speaks TLS and the other does not."""
        if isinstance(error, ssl.SSLCertVerificationError):
            hint = "; ssl.truststore.location names whom to trust"
            told = hint if error.verify_code in _UNTRUSTED else ""
            return f"its certificate is not accepted: {error.verify_message}{told}"
        if isinstance(error, ssl.SSLError):
            return f"no TLS: {(error.reason or str(error)).replace('_', ' ').lower()}{self._hint}"
        text = error.strerror if isinstance(error, OSError) else None
        return (text or str(error)) + (
            self._hint if isinstance(error, ConnectionResetError) else ""
        )
