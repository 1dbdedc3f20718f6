"""One connection to a broker: a request goes out, its answer comes back.

For commands and tests, which ask one thing after the other. No byte that comes is trusted: the
size of an answer is bounded, and one that cannot be read ends the connection.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Self

from logstore.common.clock import SystemClock
from logstore.common.errors import LogstoreError
from replication.common.addresses import address_of
from replication.network.framing import SHARED_BYTES, FrameReader
from replication.protocol import ApiKey, VersionRange
from replication.security.config import ClientConfig
from replication.security.sasl import LoginSteps
from replication.security.sasl import login as begin_login
from replication.security.tls import client_context
from replication.wire.calls import Translation
from replication.wire.lane import MAX_RESPONSE_BYTES, BrokerLane, LaneError, LaneState, OpenCall

TIMEOUT_S = 30.0


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
        self.peer = address_of(host, port)
        self.broker_id = -1  # not known
        self._timeout_s = timeout_s
        self._lane = BrokerLane(client_id, login)
        self._reader = FrameReader(MAX_RESPONSE_BYTES)
        self._shared = memoryview(bytearray(SHARED_BYTES))
        with ExitStack() as opened, self._told():
            self._socket = socket.create_connection((host, port), min(timeout_s, setup_timeout_s))
            opened.callback(self.close)
            self._socket.settimeout(timeout_s)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if context is not None:
                self._socket = context.wrap_socket(self._socket, server_hostname=host)
            self._lane.connected()
            while self._lane.state is not LaneState.READY:
                self._exchange()
            opened.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def is_of(self, broker_id: int) -> None:
        self.broker_id = broker_id

    @property
    def versions(self) -> Mapping[int, VersionRange]:
        """Those of the broker, by API."""
        return self._lane.versions

    def version(self, api_key: ApiKey, at_most: int = 1 << 15) -> int:
        """The latest version that both sides have, up to ``at_most``.

        Raises:
            UnservedApiError: there is none.
        """
        try:
            return self._lane.version(api_key, at_most)
        except LaneError as error:
            raise UnservedApiError(f"{self.peer}: {error}") from None

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
        as_it_is = Translation(
            api_key, lambda given, _: given, lambda _, answer, __: answer, lambda _: version
        )
        self._lane.call(OpenCall(request, as_it_is, _nobody, 0))
        with self._told():
            return self._exchange(wait_s)

    @contextmanager
    def _told(self) -> Iterator[None]:
        """What goes wrong inside is a WireError with a reason."""
        try:
            yield
        except (OSError, UnicodeError, LogstoreError) as error:  # UnicodeError: of a name like a..b
            raise WireError(f"{self.peer}: {self._lane.reason(error)}") from error

    def _exchange(self, wait_s: float = 0.0) -> Any:
        """Send what the lane says, and receive what is answered."""
        deadline_ns = SystemClock.monotonic_ns() + int((self._timeout_s + wait_s) * 1e9)
        data = b"".join(self._lane.out)
        self._socket.settimeout(self._timeout_s)
        self._socket.sendall(data)
        self._lane.sent(len(data))
        while True:
            # Of the whole answer: who sends a byte now and then is not waited for.
            left_s = (deadline_ns - SystemClock.monotonic_ns()) / 1e9
            self._socket.settimeout(max(left_s, 0.001))
            count = self._socket.recv_into(self._reader.window(self._shared))
            for frame in self._lane.frames(self._reader, count):
                answered = self._lane.received(frame)
                return answered and answered[1]


def _nobody(response: object) -> None:
    """Is told of an answer: ``send`` returns it."""
