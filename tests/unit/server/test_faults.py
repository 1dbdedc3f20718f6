"""Each fault befalls the requests it is for, as often as it says, and leaves the others alone."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from replication.common.error_codes import ErrorCode
from replication.network import (
    CLOSE,
    NO_RESPONSE,
    Answer,
    ConnectionInfo,
    Listener,
    ReceivedRequest,
    Respond,
    Send,
)
from replication.protocol import (
    ApiKey,
    decode_response,
    encode_request,
    parse_response_header,
)
from replication.protocol import messages as wire
from replication.server.faults import RequestFaults

CARRIED_OUT = Send([b"carried out"])
HEARTBEAT = wire.HeartbeatRequest(group_id="g", generation_id=1, member_id="m")
PRODUCE = wire.ProduceRequest(
    acks=1,
    topic_data=(
        wire.ProduceRequest.TopicProduceData(
            name="t", partition_data=(wire.ProduceRequest.PartitionProduceData(3, b"records"),)
        ),
    ),
)


class Server:
    """A handler that counts, behind faults."""

    def __init__(self, broker: int = 0, answer: Answer = CARRIED_OUT) -> None:
        self.faults = RequestFaults()
        self.carried_out = 0
        self._answer = answer
        self._handle = self.faults.around(broker, self._carry_out)

    def _carry_out(self, received: ReceivedRequest, respond: Respond) -> None:
        self.carried_out += 1
        respond(self._answer)

    def ask(
        self, api: ApiKey = ApiKey.HEARTBEAT, message: Any = HEARTBEAT, version: int = 3
    ) -> Any:
        answers: list[Answer] = []
        body = memoryview(encode_request(message, version))
        listener = Listener("PLAINTEXT", "127.0.0.1", 0)
        connection = ConnectionInfo(1, "127.0.0.1", 1, listener)
        received = ReceivedRequest(api, version, 7, "client", body, connection, 0)
        self._handle(received, answers.append)
        assert len(answers) == 1
        return answers[0]


def test_without_a_fault_nothing_is_changed() -> None:
    server = Server()
    assert server.ask() is CARRIED_OUT


def test_a_late_answer_is_carried_out_at_once() -> None:
    server = Server()
    fault = server.faults.delay(ApiKey.HEARTBEAT, ms=300)
    assert server.ask() == CARRIED_OUT._replace(delay_ms=300)
    assert server.ask() is CARRIED_OUT
    assert (server.carried_out, fault.met) == (2, 1)


def test_no_response_has_nothing_to_delay() -> None:
    server = Server(answer=NO_RESPONSE)
    server.faults.delay(ms=300)
    assert server.ask() is NO_RESPONSE


def test_a_dropped_request_is_not_carried_out() -> None:
    server = Server()
    server.faults.drop(ApiKey.HEARTBEAT, times=2)
    assert [server.ask() for _ in range(3)] == [CLOSE, CLOSE, CARRIED_OUT]
    assert server.carried_out == 1


def test_a_lost_answer_was_carried_out() -> None:
    server = Server()
    server.faults.lose_answer(ApiKey.HEARTBEAT)
    assert server.ask() is CLOSE
    assert server.carried_out == 1


def test_a_refusal_is_in_the_schema_of_the_request() -> None:
    server = Server()
    server.faults.fail(error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    answer = server.ask(ApiKey.PRODUCE, PRODUCE, 9)
    frame = memoryview(b"".join(bytes(part) for part in answer.buffers))
    correlation_id, start = parse_response_header(frame, ApiKey.PRODUCE, 9)
    response = decode_response(ApiKey.PRODUCE, 9, frame[start:])
    assert correlation_id == 7
    (topic,) = response.responses
    (part,) = topic.partition_responses
    assert (topic.name, part.index, part.error_code) == ("t", 3, 6)
    assert server.carried_out == 0


def test_a_refusal_without_a_place_is_a_closed_connection() -> None:
    server = Server()
    server.faults.fail(error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert server.ask(ApiKey.PRODUCE, PRODUCE._replace(acks=0), 9) is CLOSE


def test_others_are_left_alone() -> None:
    server = Server(broker=1)
    server.faults.drop(ApiKey.PRODUCE, times=None)
    server.faults.drop(ApiKey.HEARTBEAT, times=None, broker=2)
    assert server.ask() is CARRIED_OUT
    server.faults.drop(times=None)
    versions = wire.ApiVersionsRequest(client_software_name="c", client_software_version="1")
    assert server.ask(ApiKey.API_VERSIONS, versions) is CARRIED_OUT
    assert server.ask() is CLOSE
    server.faults.clear()
    assert server.ask() is CARRIED_OUT


def test_a_fault_happens_as_often_as_it_says_from_many_threads() -> None:
    server = Server()
    fault = server.faults.drop(times=50)
    closed = []

    def ask() -> None:
        for _ in range(50):
            if server.ask() is CLOSE:
                closed.append(1)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(closed) == fault.met == 50


def test_a_fault_that_never_happens_is_refused() -> None:
    with pytest.raises(ValueError, match="times=0"):
        RequestFaults().drop(times=0)
