"""One connection to a broker, as a state machine: frames in, answers out; no socket and no clock.

A lane asks which versions the broker serves, logs in if it has to, and then sends each request in
the latest version of both sides (X-53), as many at once as its purpose allows. Answers come in the
order of requests, and each has the correlation id of its request: anything else ends the lane, as
does whatever cannot be read.
"""

from __future__ import annotations

import ssl
import struct
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from logstore.common.errors import LogstoreError
from logstore.common.types import Buffer
from logstore.common.version import __version__
from replication.common.error_codes import ErrorCode
from replication.common.errors import BrokerUnavailableError
from replication.common.messages import Response
from replication.network.framing import FrameReader
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
from replication.security.sasl import LoginSteps
from replication.wire.calls import Translation

ASKING = 3  # the version of the first ApiVersions request; every broker answers it, some in v0
MAX_CORRELATION_ID = 2**31 - 1
WHICH_VERSIONS = wire.ApiVersionsRequest(
    client_software_name="logstore", client_software_version=__version__
)
_TLS_ALERT = 0x1503  # how a TLS server's refusal of something else begins
_UNTRUSTED = (18, 19, 20)  # OpenSSL's codes: nobody whom this side trusts has signed it
_LENGTH = struct.Struct(">i")


class LaneError(BrokerUnavailableError):
    """A broker cannot be spoken to; the text says what it did."""


class LaneState(Enum):
    CONNECTING = "connecting"  # the socket, and TLS
    ASKING = "asking"  # for the versions that the broker serves
    LOGGING_IN = "logging in"
    READY = "ready"
    CLOSED = "closed"


@dataclass(slots=True, eq=False)
class OpenCall:
    """A request with the callback for its answer.

    Attributes:
        correlation_id: below 0 until it is sent.
        failure: why there is no answer, if there is none.
        reports_failure: its caller says why; so no log has to.
    """

    request: Any
    translation: Translation
    on_reply: Callable[[Response | None], None]
    deadline_ms: int = 0
    version: int = -1
    correlation_id: int = -1
    failure: LogstoreError | None = None
    reports_failure: bool = False


class BrokerLane:
    """For one thread at a time. What it wants to send is in ``out``; call ``sent`` for it.

    Attributes:
        has_answered: to a request that takes a login, at least once.
        calls: those that are sent and have no answer, in order.
    """

    def __init__(self, client_id: str, login: LoginSteps | None, in_flight: int = 1 << 31) -> None:
        """``in_flight``: how many requests may be under way at once."""
        self.state = LaneState.CONNECTING
        self.out: deque[Buffer] = deque()
        self.head_offset = 0  # what is sent of the first of them
        self.versions: Mapping[int, VersionRange] = {}
        self.has_answered = False
        self.calls: deque[OpenCall] = deque()
        self._waiting: deque[OpenCall] = deque()
        self._client_id, self._login, self._in_flight = client_id, login, in_flight
        self._last_id = -1
        self._asked: tuple[ApiKey, int, int] | None = None  # before READY
        self._unanswered: deque[tuple[int, OpenCall]] = deque()  # with the end of their bytes
        self._queued = self._sent = 0  # bytes in all

    @property
    def is_idle(self) -> bool:
        return not self.load

    @property
    def load(self) -> int:
        """The number of requests that are not done."""
        return len(self.calls) + len(self._waiting) + len(self._unanswered)

    def open_calls(self) -> list[OpenCall]:
        return [*self.calls, *(call for _, call in self._unanswered), *self._waiting]

    def close(self) -> list[OpenCall]:
        """Close the lane. Returns the requests that get no answer any more, once."""
        self.state, left = LaneState.CLOSED, self.open_calls()
        for queue in (self.calls, self._unanswered, self._waiting):
            queue.clear()
        return left

    # -- requests ------------------------------------------------------------------------------

    def connected(self) -> None:
        """The socket is there, and TLS is spoken if it has to be."""
        self.state = LaneState.ASKING
        self._write_own(ApiKey.API_VERSIONS, WHICH_VERSIONS, ASKING)

    def call(self, call: OpenCall) -> None:
        """Send a request in its turn: once the lane is ready, and those before it are answered as
        far as there may be no more at once. ``release`` says which cannot be sent."""
        self._waiting.append(call)

    def _send(self, call: OpenCall) -> None:
        translation, request = call.translation, call.request
        call.version = common_version(
            self.versions, translation.api_key, translation.latest_version(request)
        )
        message = translation.request_to(request, call.version)
        body = encode_request(message, call.version)
        call.correlation_id = self._write(translation.api_key, call.version, body)
        if translation.unanswered(request) is None:
            self.calls.append(call)
        else:
            self._unanswered.append((self._queued, call))

    def _write_own(self, key: ApiKey, message: Any, version: int) -> None:
        number = self._write(key, version, encode_request(message, version))
        self._asked = key, version, number

    def _write(self, key: ApiKey, version: int, body: bytes) -> int:
        """The correlation id."""
        self._last_id = 0 if self._last_id == MAX_CORRELATION_ID else self._last_id + 1
        header = request_header(key, version, self._last_id, self._client_id)
        frame = b"".join((_LENGTH.pack(len(header) + len(body)), header, body))
        self.out.append(frame)
        self._queued += len(frame)
        return self._last_id

    def sent(self, count: int) -> list[tuple[OpenCall, Response]]:
        """``count`` bytes of ``out`` are sent. Returns requests that get no answer: done."""
        self._sent += count
        self.head_offset += count
        while self.out and self.head_offset >= len(self.out[0]):
            self.head_offset -= len(self.out.popleft())
        done = []
        while self._unanswered and self._unanswered[0][0] <= self._sent:
            _, call = self._unanswered.popleft()
            response = call.translation.unanswered(call.request)
            assert response is not None
            done.append((call, response))
        return done

    # -- answers -------------------------------------------------------------------------------

    def received(self, frame: memoryview) -> tuple[OpenCall, Response] | None:
        """Take an answer. Returns its request with it, unless the lane itself has asked.

        Raises:
            LogstoreError: the answer is none, or the broker refuses. Close the lane.
        """
        if self.state is not LaneState.READY:
            self._prepare(frame)
            return None
        if not self.calls:
            raise LaneError("it answers what was not asked")
        call = self.calls[0]
        key = call.translation.api_key
        body = _body(frame, key, call.version, call.correlation_id)
        message = decode_response(key, call.version, body)
        response = call.translation.response_from(call.request, message, call.version)
        self.calls.popleft()
        self.has_answered |= key is not ApiKey.API_VERSIONS  # which takes no login
        return call, response

    def _prepare(self, frame: memoryview) -> None:
        """Take an answer before the lane is ready, and ask on."""
        if self._asked is None:
            raise LaneError("it speaks before it was asked")
        key, version, number = self._asked
        body = _body(frame, key, version, number)
        if self.state is LaneState.ASKING:
            found = _versions_in(body, version)
            if found is None:
                self._write_own(ApiKey.API_VERSIONS, wire.ApiVersionsRequest(), 0)
                return
            self.versions = found
            self.state = LaneState.LOGGING_IN
            message = None
        else:
            message = decode_response(key, version, body)
            self.has_answered |= key is ApiKey.METADATA
        self._asked = None
        if self._login is not None:
            try:
                key, request = self._login.send(message)
            except StopIteration:
                self._login = None
            else:
                self._write_own(key, request, common_version(self.versions, key))
                return
        self.state = LaneState.READY

    def release(self) -> list[tuple[OpenCall, Exception]]:
        """Send those whose turn it is. Returns those that this broker cannot be sent: it does not
        serve them, or, without a LogstoreError, nobody can write them."""
        failed = []
        while self._waiting and self.state is LaneState.READY and len(self.calls) < self._in_flight:
            call = self._waiting.popleft()
            try:
                self._send(call)
            except Exception as error:
                failed.append((call, error))
        return failed

    def expire(self, now_ms: int) -> list[OpenCall]:
        """Give up those that were not sent in time. Returns them."""
        late = [call for call in self._waiting if call.deadline_ms <= now_ms]
        for call in late:
            self._waiting.remove(call)
        return late

    def frames(self, reader: FrameReader, count: int) -> Iterator[memoryview]:
        """The whole answers, once ``count`` bytes were put into the window of ``reader``.

        Raises:
            LogstoreError: the connection is closed, or carries no frames. Close the lane.
        """
        reader.received(count)
        if not count:
            raise LaneError(self._why_closed())
        if reader.announced_size >> 16 == _TLS_ALERT and not self.versions:
            raise LaneError("it answers in TLS: security.protocol is to be SSL or SASL_SSL")
        while (frame := reader.next_frame()) is not None:
            yield frame
        if reader.large_header() is not None:
            reader.begin_large()
        if reader.growth:
            reader.grow()

    def reason(self, error: Exception) -> str:
        """The cause of a failed connection, in one line."""
        if isinstance(error, ConnectionResetError | BrokenPipeError):
            return self._why_closed()
        cause = error.__cause__ or error
        if isinstance(cause, ssl.SSLCertVerificationError):
            hint = "; ssl.truststore.location names whom to trust"
            advice = hint if cause.verify_code in _UNTRUSTED else ""
            return f"its certificate is not accepted: {cause.verify_message}{advice}"
        if isinstance(cause, ssl.SSLError):
            words = (cause.reason or str(cause)).replace("_", " ").lower()
            return f"no TLS: {words}: does it take this security.protocol?"
        return (cause.strerror if isinstance(cause, OSError) else None) or str(error)

    def _why_closed(self) -> str:
        if self.state is LaneState.CONNECTING:
            return "it ends the TLS handshake: does it take this security.protocol?"
        if self.state is LaneState.ASKING:
            return "it closed the connection at once: it may expect TLS (security.protocol=SSL)"
        if self.state is LaneState.LOGGING_IN:
            return "it closed the connection before the first request"
        if not self.has_answered:
            return (
                "it closed the connection at the first request: it may expect a login "
                "(security.protocol, sasl.mechanism)"
            )
        return "it closed the connection"


def common_version(
    versions: Mapping[int, VersionRange], key: ApiKey, latest: int | None = None
) -> int:
    """The latest version that we and a broker have, up to ``latest``.

    Args:
        versions: those of the broker, by API.
    Raises:
        LaneError: there is none.
    """
    ours, theirs = schema.APIS[key].versions, versions.get(key)
    if theirs is not None:
        version = min(ours.last, theirs.last, ours.last if latest is None else latest)
        if version >= max(ours.first, theirs.first):
            return version
    served = "nothing of it" if theirs is None else f"versions {theirs.first} to {theirs.last}"
    raise LaneError(
        f"{key.name} is spoken here in versions {ours.first} to {ours.last}, "
        f"and the broker serves {served}"
    )


def versions_in(answer: wire.ApiVersionsResponse) -> dict[int, VersionRange]:
    return {
        each.api_key: VersionRange(each.min_version, each.max_version) for each in answer.api_keys
    }


def _body(frame: memoryview, key: ApiKey, version: int, number: int) -> memoryview:
    answered, start = parse_response_header(frame, key, version)
    if answered != number:
        raise LaneError(f"it answers request {answered}, not {number}")
    return frame[start:]


def _versions_in(body: memoryview, version: int) -> dict[int, VersionRange] | None:
    """None: the broker does not know the version of the question, says so in version 0 (W-11), and
    nothing more before Kafka 2.4."""
    try:
        answer = decode_response(ApiKey.API_VERSIONS, version, body)
    except MalformedMessageError:
        answer = decode_response(ApiKey.API_VERSIONS, 0, body)
    if answer.error_code == ErrorCode.UNSUPPORTED_VERSION and version > 0:
        return None
    if answer.error_code:
        raise LaneError(f"it answers ApiVersions with error {answer.error_code}")
    return versions_in(answer)
