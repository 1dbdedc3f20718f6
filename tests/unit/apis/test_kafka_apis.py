"""A request is answered once, whatever its handler does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from replication.apis import KafkaApis
from replication.common.error_codes import ErrorCode
from replication.common.errors import NotControllerError
from replication.network import (
    CLOSE,
    NO_RESPONSE,
    Answer,
    ConnectionInfo,
    Listener,
    ReceivedRequest,
    SecurityProtocol,
    Send,
)
from replication.protocol import (
    ApiKey,
    decode_response,
    encode_request,
    parse_response_header,
)
from replication.protocol import messages as wire

HEARTBEAT = ApiKey.HEARTBEAT
VERSION = 4
GOOD = wire.HeartbeatResponse(error_code=ErrorCode.ILLEGAL_GENERATION)


def received(
    key: int = HEARTBEAT, version: int = VERSION, body: bytes | None = None, **listener: Any
) -> ReceivedRequest:
    if body is None:
        body = bytes(encode_request(wire.HeartbeatRequest("g", 1, "m"), version))
    info = ConnectionInfo(1, "127.0.0.1", 5, Listener(**listener))
    return ReceivedRequest(key, version, 77, "me", memoryview(body), info, 0)


def answers(handler: Callable[..., None] | None, request: ReceivedRequest) -> list[Answer]:
    found: list[Answer] = []
    apis = KafkaApis({} if handler is None else {HEARTBEAT: handler})
    apis.handle(request, found.append)
    return found


def message(answer: Answer, key: ApiKey = HEARTBEAT, version: int = VERSION) -> Any:
    assert isinstance(answer, Send)
    frame = memoryview(b"".join(bytes(part) for part in answer.buffers))  # type: ignore[arg-type]
    number, position = parse_response_header(frame, key, version)
    assert number == 77
    return decode_response(key, version, frame[position:])


class TestAnswers:
    def test_a_message(self) -> None:
        (answer,) = answers(lambda received, request, reply: reply(GOOD), received())
        assert message(answer) == GOOD

    def test_the_handler_gets_the_request(self) -> None:
        seen: list[Any] = []
        answers(
            lambda received, request, reply: seen.append((received.client_id, request)), received()
        )
        assert seen == [("me", wire.HeartbeatRequest("g", 1, "m"))]

    @pytest.mark.parametrize("quiet", [CLOSE, NO_RESPONSE])
    def test_none_at_all(self, quiet: Answer) -> None:
        assert answers(lambda received, request, reply: reply(quiet), received()) == [quiet]

    def test_later_from_another_thread(self) -> None:
        kept: list[Any] = []
        found = answers(lambda received, request, reply: kept.append(reply), received())
        assert found == []
        thread = threading.Thread(target=kept[0], args=(GOOD,))
        thread.start()
        thread.join()
        assert message(found[0]) == GOOD

    def test_only_the_first_counts(self) -> None:
        def twice(received: Any, request: Any, reply: Any) -> None:
            reply(GOOD)
            reply(CLOSE)
            raise RuntimeError("made for a test")

        (answer,) = answers(twice, received())
        assert message(answer) == GOOD

    def test_of_many_threads_only_one_answers(self) -> None:
        kept: list[Any] = []
        found = answers(lambda received, request, reply: kept.append(reply), received())
        start = threading.Barrier(8)

        def answer() -> None:
            start.wait()
            kept[0](GOOD)

        threads = [threading.Thread(target=answer) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 1

    def test_the_throttle_time_is_the_networks_too(self) -> None:
        throttled = GOOD._replace(throttle_time_ms=250)
        (answer,) = answers(lambda received, request, reply: reply(throttled), received())
        assert isinstance(answer, Send)
        assert answer.throttle_ms == 250


class TestFailures:
    @pytest.mark.parametrize(
        ("error", "code"),
        [
            (RuntimeError("x"), ErrorCode.UNKNOWN_SERVER_ERROR),
            (NotControllerError("x"), ErrorCode.NOT_CONTROLLER),
        ],
    )
    def test_of_a_handler(self, error: Exception, code: ErrorCode) -> None:
        def fail(received: Any, request: Any, reply: Any) -> None:
            raise error

        (answer,) = answers(fail, received())
        assert message(answer) == wire.HeartbeatResponse(error_code=code)

    def test_what_cannot_be_encoded_closes(self) -> None:
        huge = wire.HeartbeatResponse(error_code=1 << 20)
        assert answers(lambda received, request, reply: reply(huge), received()) == [CLOSE]

    @pytest.mark.parametrize(
        "request_",
        [
            received(key=ApiKey.FETCH, body=b""),
            received(key=999),
            received(key=-1),
            received(version=5, body=b""),
            received(version=-1, body=b""),
            received(body=b""),
            received(body=b"\xff" * 40),
        ],
        ids=["no handler", "no such API", "negative", "too new", "too old", "no body", "bad body"],
    )
    def test_what_has_no_answer_closes(self, request_: ReceivedRequest) -> None:
        def handler(received: Any, request: Any, reply: Any) -> None:
            raise AssertionError("not for a handler")

        assert answers(handler, request_) == [CLOSE]


class TestTable:
    def test_a_key_has_one_handler(self) -> None:
        area = {HEARTBEAT: lambda received, request, reply: reply(GOOD)}
        with pytest.raises(ValueError, match="two handlers"):
            KafkaApis(area, area)

    @pytest.mark.parametrize(
        ("protocol", "extra"),
        [
            (SecurityProtocol.PLAINTEXT, set()),
            (SecurityProtocol.SSL, set()),
            (SecurityProtocol.SASL_PLAINTEXT, {ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}),
            (SecurityProtocol.SASL_SSL, {ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}),
        ],
    )
    def test_what_is_served_is_advertised(
        self, protocol: SecurityProtocol, extra: set[ApiKey]
    ) -> None:
        request = received(ApiKey.API_VERSIONS, 0, b"", security_protocol=protocol)
        (answer,) = answers(lambda received, request, reply: reply(GOOD), request)
        response = message(answer, ApiKey.API_VERSIONS, 0)
        assert {each.api_key for each in response.api_keys} == {
            ApiKey.API_VERSIONS,
            HEARTBEAT,
            *extra,
        }
