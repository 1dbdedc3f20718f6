"""What the network counts. Time is moved by hand, so every number is known."""

from __future__ import annotations

import struct
import threading
from math import inf

import pytest

from logstore.testing import ManualClock
from replication.network import (
    CLOSE,
    NO_RESPONSE,
    Answer,
    ConnectionInfo,
    Listener,
    NetworkConfig,
    ReceivedRequest,
    Respond,
    Send,
)
from replication.network.metrics import (
    BOUNDS_MS,
    OTHER_VERSION,
    ApiMetrics,
    CloseReason,
    Refusal,
    RequestMetrics,
    RequestPhase,
)
from replication.network.request_channel import Exchange
from replication.network.server import NetworkServer
from replication.protocol import ApiKey
from tests.support.network import RawClient, connection_count, frame_of, serving, wake
from tests.support.until import patience, until

QUICK, QUEUED = 3, 20
MS = 1_000_000


def spent_ms(api: ApiMetrics) -> dict[RequestPhase, float]:
    """The phases that took time."""
    return {
        phase: total_ns / MS
        for phase, total_ns in zip(RequestPhase, api.sums_ns, strict=True)
        if total_ns
    }


def api_of(server: NetworkServer, key: int) -> ApiMetrics:
    """Once a request of the API was counted. Its thread has ended then: it may have been in the
    middle of counting."""
    until(lambda: key in server.metrics().apis)
    server.close()
    return server.metrics().apis[key]


def test_a_quick_request_is_local() -> None:
    clock = ManualClock()

    def handler(request: ReceivedRequest, respond: Respond) -> None:
        clock.advance(3)
        respond(Send([b"x"], errors=[6, 6, 3]))
        clock.advance(2)  # nobody waits for it, except the next request

    with serving(handler, clock=clock) as server, RawClient(server) as client:
        client.send(b"", key=QUICK, version=4)
        client.receive()
        api = api_of(server, QUICK)
    assert spent_ms(api) == {
        RequestPhase.LOCAL: 3,
        RequestPhase.RESPONSE_QUEUE: 2,
        RequestPhase.TOTAL: 5,
    }
    assert api.versions == {4: 1}
    assert api.errors == {6: 2, 3: 1}


def test_a_queued_request_that_waits_for_others() -> None:
    clock = ManualClock()
    waiting: list[Respond] = []

    def handler(request: ReceivedRequest, respond: Respond) -> None:
        clock.advance(3)
        waiting.append(respond)

    with serving(handler, clock=clock) as server, RawClient(server) as client:
        client.send(b"", key=QUEUED)
        until(lambda: bool(waiting) and server._requests._idle == 1)
        clock.advance(40)
        waiting.pop()(Send([b"x"], throttle_ms=7))
        client.receive()
        api = api_of(server, QUEUED)
    assert spent_ms(api) == {
        RequestPhase.LOCAL: 3,
        RequestPhase.REMOTE: 40,
        RequestPhase.THROTTLE: 7,
        RequestPhase.TOTAL: 43,
    }


def test_a_request_waits_in_the_queue() -> None:
    """One handler thread; the second request comes while the first one has it."""
    clock, go = ManualClock(), threading.Event()

    def handler(request: ReceivedRequest, respond: Respond) -> None:
        go.wait(patience())
        respond(Send([b"x"]))

    config = NetworkConfig(num_io_threads=1)
    with (
        serving(handler, config, clock=clock) as server,
        RawClient(server) as first,
        RawClient(server) as second,
    ):
        first.send(b"", key=QUEUED)
        until(lambda: server._requests._threads != [] and server.metrics().queued == 0)
        second.send(b"", key=QUEUED + 1)
        until(lambda: server.metrics().queued == 1)
        clock.advance(30)
        go.set()
        second.receive()
        api = api_of(server, QUEUED + 1)
    assert spent_ms(api) == {RequestPhase.QUEUE: 30, RequestPhase.TOTAL: 30}


def test_versions_that_a_client_makes_up_are_counted_together() -> None:
    """Of ApiVersions every version is answered."""

    def handler(request: ReceivedRequest, respond: Respond) -> None:
        respond(Send([b"x"]))

    asked = (0, 4, 5, 77, 32767, -1, 5)
    with serving(handler) as server, RawClient(server) as client:
        for version in asked:
            client.send(b"", key=ApiKey.API_VERSIONS, version=version)
            client.receive()
        until(lambda: sum(server.metrics().apis[18].versions.values()) == len(asked))
        assert server.metrics().apis[18].versions == {0: 1, 4: 1, OTHER_VERSION: 5}


@pytest.mark.parametrize("answer", [NO_RESPONSE, CLOSE, Send([])])
def test_a_request_without_an_answer_counts_too(answer: Answer) -> None:
    def handler(request: ReceivedRequest, respond: Respond) -> None:
        respond(answer)

    with serving(handler) as server, RawClient(server) as client:
        client.send(b"", key=QUICK)
        assert api_of(server, QUICK).versions == {1: 1}


@pytest.mark.parametrize("answer", [Send([b"x"], delay_ms=100), Send([], delay_ms=100)])
def test_a_delayed_answer_counts_once_it_has_left(answer: Send) -> None:
    """Also one without bytes, to Produce with acks=0."""
    clock, answered = ManualClock(), threading.Event()

    def handler(request: ReceivedRequest, respond: Respond) -> None:
        respond(answer)
        answered.set()

    with serving(handler, clock=clock) as server, RawClient(server) as client:
        client.send(b"", key=QUICK)
        answered.wait(patience())
        assert server.metrics().apis == {}
        until(lambda: server._processors[0]._sleeping)
        clock.advance(100)
        wake(server)
        if answer.buffers:
            client.receive()
        assert spent_ms(api_of(server, QUICK))[RequestPhase.TOTAL] == 100


def test_connections_and_bytes() -> None:
    def handler(request: ReceivedRequest, respond: Respond) -> None:
        respond(CLOSE if request.api_key else Send([request.body]))

    with serving(handler) as server:
        with RawClient(server) as client, RawClient(server):
            client.send(b"12345", key=0)
            client.receive()
            until(lambda: server.metrics().listeners["PLAINTEXT"].bytes_out == 4 + 5)
            assert server.metrics().listeners["PLAINTEXT"].bytes_in == len(frame_of(b"12345"))
            client.send(b"", key=1)
            assert client.is_closed()
        with RawClient(server) as stranger:
            stranger.socket.sendall(struct.pack(">i", -1))
            assert stranger.is_closed()
        until(lambda: sum(server.metrics().listeners["PLAINTEXT"].closed.values()) == 3)
        with RawClient(server):
            until(lambda: server.metrics().listeners["PLAINTEXT"].opened == 4)
            server.close()
        found = server.metrics().listeners["PLAINTEXT"]
    assert found.opened == 4
    assert found.closed == {
        CloseReason.CLIENT: 1,
        CloseReason.REFUSED: 2,
        CloseReason.SHUTDOWN: 1,
    }


def test_why_connections_end() -> None:
    clock = ManualClock()

    def handler(request: ReceivedRequest, respond: Respond) -> None:
        if request.api_key:
            raise ZeroDivisionError
        respond(Send([b"no"], close_after=True))

    config = NetworkConfig(connections_max_idle_ms=1000)
    with serving(handler, config, clock=clock) as server:
        with RawClient(server) as idle:
            until(lambda: server.metrics().listeners["PLAINTEXT"].opened == 1)
            until(lambda: server._processors[0]._deadlines != [])
            clock.advance(1001)
            wake(server)
            assert idle.is_closed()
        for key in (0, 1):
            with RawClient(server) as client:
                client.send(b"", key=key)
                if not key:
                    client.receive()
                assert client.is_closed()
        until(lambda: sum(server.metrics().listeners["PLAINTEXT"].closed.values()) == 3)
        closed = server.metrics().listeners["PLAINTEXT"].closed
    assert closed == {CloseReason.EXPIRED: 1, CloseReason.LOGIN: 1, CloseReason.REFUSED: 1}


def test_refused_connections() -> None:
    clock = ManualClock()
    config = NetworkConfig(max_connections_per_ip=1)
    with serving(lambda request, respond: None, config, clock=clock) as server:
        with RawClient(server):
            until(lambda: connection_count(server) == 1)
            with RawClient(server) as second:
                assert second.is_closed()
        refused = server.metrics().refused
    assert refused == {Refusal.TOO_MANY: 1, Refusal.TOO_FAST: 0}


class Unused:
    def deliver(self, exchange: Exchange, answer: Answer) -> None:
        raise AssertionError


def answered(ns: int, answer: Answer) -> Exchange:
    """A request that was answered ``ns`` after it came, by its handler."""
    info = ConnectionInfo(1, "127.0.0.1", 1, Listener())
    request = ReceivedRequest(ApiKey.PRODUCE, 9, 1, "", memoryview(b""), info, 1000)
    exchange = Exchange(Unused(), None, 1, request, 0)
    exchange.answered_ns = exchange.ended_ns = exchange.taken_ns = 1000 + ns
    exchange.answer = answer
    return exchange


def test_buckets_have_every_request_and_never_shrink() -> None:
    metrics = RequestMetrics()
    spent = [0.02, 0.1, 0.100001, 0.25, 1, 29_999, 30_001]
    last = [0] * (len(BOUNDS_MS) + 1)
    for at, ms in enumerate(spent, 1):
        ns = round(ms * MS)
        metrics.record(answered(ns, NO_RESPONSE), 1000 + ns)
        for phase in range(len(RequestPhase)):
            counts = [count for _, count in metrics.apis[0].buckets(phase)]
            assert counts == sorted(counts)
            assert counts[-1] == at
        total = [count for _, count in metrics.apis[0].buckets(len(RequestPhase) - 1)]
        assert all(now >= before for now, before in zip(total, last, strict=True))
        last = total
    whole = ApiMetrics()
    whole.add(metrics.apis[0])
    whole.add(metrics.apis[0])
    found = dict(whole.buckets(list(RequestPhase).index(RequestPhase.TOTAL)))
    expected = {0.1: 4, 0.25: 8, 0.5: 8, 1: 10, 10_000: 10, 30_000: 12, inf: 14}
    assert expected.items() <= found.items()
    assert whole.versions == {9: 14}


def test_throttling_of_a_fast_request_is_in_its_buckets() -> None:
    metrics = RequestMetrics()
    metrics.record(answered(10, Send([], throttle_ms=200)), 1010)
    throttle = dict(metrics.apis[0].buckets(list(RequestPhase).index(RequestPhase.THROTTLE)))
    assert (throttle[100], throttle[250]) == (0, 1)
