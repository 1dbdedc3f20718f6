"""A broker's lanes to other brokers: for each purpose, to the address of the moment."""

from __future__ import annotations

import gc
import os
import re
import socket
import struct
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

import pytest

from logstore.testing import ManualClock
from replication.common.messages import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    FetchPartition,
    FetchRequest,
    ListOffsetsPartition,
    ListOffsetsRequest,
    MetadataRequest,
    Request,
    Response,
)
from replication.common.retrying import Backoff
from replication.common.runtime import ThreadRuntime
from replication.common.transport import OnReply
from replication.protocol import ApiKey
from replication.protocol import messages as wire
from replication.wire.access import ClusterAccess, Peers
from replication.wire.calls import LANE_RULES, TRANSLATIONS, LanePurpose
from replication.wire.lane import OpenCall
from replication.wire.transport import TcpTransport
from tests.support.leftovers import nothing_left
from tests.support.peers import Peer, scripted
from tests.support.until import patience, until
from tests.unit.wire.test_tcp_transport import TP, answering, described

OWN, OTHER = 1, 2
ASKED = MetadataRequest()
KNOWN = described((9, "h", 1))


class Sender:
    """A broker, where it looks for the others, and what it was asked by itself."""

    def __init__(self, access: ClusterAccess, clock: ManualClock | None) -> None:
        self.addresses: dict[int, tuple[str, int]] = {}
        self.own: list[tuple[Request, OnReply]] = []
        self.runtime = ThreadRuntime("test")
        peers = Peers.of(OWN, self.runtime, self.find, lambda *asked: self.own.append(asked))
        self.transport = TcpTransport(access, clock, peers)

    def find(self, broker_id: int) -> tuple[str, int] | None:
        return self.addresses.get(broker_id)

    def begin(
        self, request: Request, purpose: LanePurpose | None = None, timeout_ms: int = 10**7
    ) -> Callable[[], Any]:
        answers: SimpleQueue[Response | None] = SimpleQueue()
        if purpose is None:
            self.transport.send(OTHER, request, answers.put, timeout_ms)
        else:
            translation = TRANSLATIONS[type(request)]._replace(purpose=purpose)
            call = OpenCall(request, translation, answers.put)
            self.transport.call(OTHER, call, timeout_ms)
        return lambda: answers.get(timeout=patience())

    def ask(self, request: Request = ASKED, **options: Any) -> Any:
        return self.begin(request, **options)()

    @property
    def reason(self) -> str:
        return "; ".join(map(str, self.transport.failures()))


@contextmanager
def sending(
    address: tuple[str, int] | None = None, clock: ManualClock | None = None, **options: Any
) -> Iterator[Sender]:
    with nothing_left():
        sender = Sender(ClusterAccess(**options), clock)
        if address is not None:
            sender.addresses[OTHER] = address
        try:
            yield sender
        finally:
            sender.transport.close()
            sender.runtime.close()


def about(topic: str) -> MetadataRequest:
    return MetadataRequest((topic,))


def test_a_broker_without_an_address_fails_at_once() -> None:
    with sending() as sender:
        assert sender.ask() is None
        assert sender.ask(FetchRequest((FetchPartition(TP, 0),))) is None


def test_whoever_knows_the_addresses_may_fail() -> None:
    with scripted(answering(KNOWN)) as address, sending() as sender:
        sender.addresses = None  # type: ignore[assignment]
        assert sender.ask() is None
        sender.addresses = {OTHER: address}
        assert sender.ask() is not None


def test_a_broker_comes_back_on_another_port() -> None:
    """It is looked for where it is now (X-56), although it was left alone for a while; the lane to
    its earlier place ends with what is under way there."""
    held, ended, clock = threading.Event(), threading.Event(), ManualClock()

    def before(peer: Peer, number: int) -> None:
        if not number:
            peer.greet()
            header, _ = peer.receive()
            held.wait(patience())
            peer.answer(header, KNOWN)
            with pytest.raises(ConnectionError):
                peer.receive()
            ended.set()

    with (
        scripted(before) as old,
        scripted(answering(KNOWN)) as new,
        sending(old, clock) as sender,
    ):
        waits = sender.begin(MetadataRequest(), LanePurpose.FORWARD)
        until(lambda: sender.transport._channels, "it connects")
        assert sender.ask(about("lost"), purpose=LanePurpose.CONTROL) is None
        assert sender.ask(about("paused"), purpose=LanePurpose.CONTROL) is None
        sender.addresses[OTHER] = new
        assert sender.ask(purpose=LanePurpose.CONTROL) is not None
        assert not ended.is_set()
        held.set()
        assert waits() is not None
        assert ended.wait(patience())


def test_an_idle_lane_to_a_former_address_ends() -> None:
    ended = threading.Event()

    def before(peer: Peer, number: int) -> None:
        answering(KNOWN)(peer, number) if number else _once(peer)
        ended.set()

    def _once(peer: Peer) -> None:
        peer.greet()
        header, _ = peer.receive()
        peer.answer(header, KNOWN)
        with pytest.raises(ConnectionError):
            peer.receive()

    with scripted(before) as old, sending(old) as sender:
        assert sender.ask() is not None
        del sender.addresses[OTHER]
        assert sender.ask() is None
        assert ended.wait(patience())


def test_what_a_peer_says_of_addresses_is_not_believed() -> None:
    """A broker finds its peers in the metadata of its own controller."""
    with scripted(answering(described((OTHER, "127.0.0.1", 1)))) as address, sending(address) as it:
        assert it.ask() is not None
        assert it.ask() is not None


# -- the broker itself ------------------------------------------------------------------------


def test_requests_to_itself_go_over_no_socket() -> None:
    """Also those that no wire carries. Without an answer there is none after the time-out."""
    with sending() as sender:
        answers: SimpleQueue[Response | None] = SimpleQueue()
        request, answer = DeleteRecordsRequest((), 0), DeleteRecordsResponse(())
        sender.transport.send(OWN, request, answers.put)
        ((asked, reply),) = sender.own
        assert asked is request
        reply(answer)
        reply(answer)
        assert answers.get(timeout=patience()) is answer
        sender.transport.send(OWN, request, answers.put, 1)
        assert answers.get(timeout=patience()) is None
        assert answers.empty()


def test_what_goes_over_no_wire() -> None:
    with sending() as sender, pytest.raises(TypeError, match="object"):
        sender.begin(object())  # type: ignore[arg-type]


# -- purposes ---------------------------------------------------------------------------------


class Held:
    """A peer that keeps what is asked until it is told to answer."""

    def __init__(self) -> None:
        self.asked: SimpleQueue[tuple[int, ApiKey, Any]] = SimpleQueue()
        self.go = threading.Semaphore(0)

    def script(self, peer: Peer, number: int) -> None:
        peer.greet()
        while True:
            header, request = peer.receive()
            self.asked.put((number, header.api_key, request))
            assert self.go.acquire(timeout=patience())
            peer.answer(header, KNOWN if header.api_key is ApiKey.METADATA else FETCHED)

    def next(self) -> tuple[int, ApiKey, Any]:
        return self.asked.get(timeout=patience())


FETCHED = wire.FetchResponse()


@pytest.mark.parametrize("purpose", [LanePurpose.CONTROL, LanePurpose.CONTROLLER])
def test_what_has_an_order_keeps_it(purpose: LanePurpose) -> None:
    """One request at a time on one connection: the next one is sent when it is answered (X-50)."""
    peer = Held()
    with scripted(peer.script) as address, sending(address) as sender:
        waiting = [sender.begin(about(f"t{n}"), purpose) for n in range(4)]
        for n, answer in enumerate(waiting):
            number, _, request = peer.next()
            assert (number, request.topics[0].name) == (0, f"t{n}")
            assert peer.asked.empty()
            peer.go.release()
            assert answer() is not None


@pytest.mark.parametrize(
    "purpose", [LanePurpose.FETCH, LanePurpose.FORWARD, LanePurpose.TRANSACTIONS]
)
def test_what_may_wait_has_a_lane_for_each(purpose: LanePurpose) -> None:
    peer, lanes = Held(), LANE_RULES[purpose].lanes
    with scripted(peer.script) as address, sending(address) as sender:
        waiting = [sender.begin(about(f"t{n}"), purpose) for n in range(lanes + 2)]
        assert {peer.next()[0] for _ in range(lanes)} == {*range(lanes)}
        for _ in waiting:
            peer.go.release()
        assert all(answer() is not None for answer in waiting)
        assert len([peer.next() for _ in range(2)]) == 2


def test_no_purpose_waits_for_another() -> None:
    """While a fetch waits, and an Envelope, and a marker, the controller gets through (X-51)."""
    peer, seen = Held(), []
    with scripted(peer.script) as address, sending(address) as sender:
        waiting = []
        for purpose in LanePurpose:
            waiting.append(sender.begin(about(purpose.value), purpose))
            number, _, request = peer.next()
            seen.append((number, request.topics[0].name))
        assert seen == [(at, purpose.value) for at, purpose in enumerate(LanePurpose)]
        for _ in waiting:
            peer.go.release()
        assert all(answer() is not None for answer in waiting)


def test_who_waits_in_a_queue_gives_up_alone() -> None:
    """It was not sent, so the lane bears what is under way on."""
    peer, clock = Held(), ManualClock()
    with scripted(peer.script) as address, sending(address, clock) as sender:
        first = sender.begin(about("first"), LanePurpose.CONTROL)
        peer.next()
        hasty = sender.begin(about("hasty"), LanePurpose.CONTROL, timeout_ms=50)
        third = sender.begin(about("third"), LanePurpose.CONTROL)
        clock.advance(51)
        sender.transport.wake()
        assert hasty() is None
        peer.go.release()
        assert first() is not None
        assert peer.next()[2].topics[0].name == "third"
        peer.go.release()
        assert third() is not None


def test_a_broken_fetch_leaves_the_controllers_lane() -> None:
    """Nor is the peer left alone where a lane to it stands."""

    def script(peer: Peer, number: int) -> None:
        peer.greet()
        while True:
            header, _ = peer.receive()
            if header.api_key is ApiKey.FETCH:
                return
            peer.answer(header, KNOWN)

    with scripted(script) as address, sending(address, ManualClock()) as sender:
        assert sender.ask(purpose=LanePurpose.CONTROL) is not None
        assert sender.ask(FetchRequest((FetchPartition(TP, 0),))) is None
        assert sender.ask(FetchRequest((FetchPartition(TP, 0),))) is None
        assert sender.ask(purpose=LanePurpose.CONTROL) is not None


def test_who_may_wait_for_a_disk_is_answered_on_another_thread() -> None:
    threads = SimpleQueue[str]()

    def note(response: Response | None) -> None:
        assert response is not None
        threads.put(threading.current_thread().name)

    with scripted(answering(KNOWN)) as address, sending(address) as sender:
        patched = TRANSLATIONS[MetadataRequest]._replace(purpose=LanePurpose.TRANSACTIONS)
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(TRANSLATIONS, MetadataRequest, patched)
            sender.transport.send(OTHER, MetadataRequest(), note)
            assert threads.get(timeout=patience()) == "broker-1-answers"
        sender.transport.send(OTHER, MetadataRequest(), note)
        assert threads.get(timeout=patience()) == "broker-1-io"


def test_the_thread_of_io_runs_no_task_that_it_offers() -> None:
    """A fetcher offers the append of few records to its caller, where it might wait for a disk."""
    threads = SimpleQueue[str]()
    with scripted(answering(KNOWN)) as address, sending(address) as sender:
        actor = sender.runtime.actor("fetcher")

        def offer(response: Response | None) -> None:
            actor.offer(lambda: threads.put(threading.current_thread().name))

        sender.transport.send(OTHER, MetadataRequest(), offer)
        assert threads.get(timeout=patience()) == "fetcher"
        actor.close(wait=True)


# -- versions ---------------------------------------------------------------------------------


def test_what_a_peer_lacks_is_told_with_both_ranges(caplog: pytest.LogCaptureFixture) -> None:
    """And not once for each try (X-53)."""
    kind = wire.ApiVersionsResponse

    def script(peer: Peer, number: int) -> None:
        header, _ = peer.receive()
        few = (kind.ApiVersion(ApiKey.METADATA, 0, 9), kind.ApiVersion(ApiKey.LIST_OFFSETS, 90, 99))
        peer.answer(header, kind(api_keys=few))
        while True:
            header, _ = peer.receive()
            peer.answer(header, KNOWN)

    question = ListOffsetsRequest((ListOffsetsPartition(TP, -1),))
    with scripted(script) as address, sending(address) as sender:
        assert sender.ask(question) is None
        assert sender.reason.startswith(
            f"{address[0]}:{address[1]}: LIST_OFFSETS is spoken here in"
        )
        assert "the broker serves versions 90 to 99" in sender.reason
        assert sender.ask(question) is None
        assert sender.ask() is not None
    assert len(caplog.messages) == 1


def test_a_request_that_nobody_can_write_is_answered_and_harms_no_other() -> None:
    with scripted(answering(KNOWN)) as address, sending(address) as sender:
        assert sender.ask(MetadataRequest((3,)), purpose=LanePurpose.CONTROL) is None  # type: ignore[arg-type]
        assert sender.ask(purpose=LanePurpose.CONTROL) is not None


def test_what_can_only_greet_is_left_alone_for_longer_each_time() -> None:
    greeted: list[int] = []
    clock = ManualClock()

    def script(peer: Peer, number: int) -> None:
        peer.greet()
        greeted.append(number)
        peer.receive()
        peer.send(b"\0" * 8)

    with scripted(script) as address, sending(address, clock) as sender:
        for waited_ms in (60, 120, 240):  # 50, 100 and 200 with a fifth of jitter
            assert sender.ask() is None
            clock.advance(waited_ms // 2 - 20)
            assert sender.ask() is None
            clock.advance(waited_ms)
        assert greeted == [0, 1, 2]


def test_a_close_in_the_middle_answers_nothing() -> None:
    peer, answers = Held(), list[Response | None]()
    with scripted(peer.script) as address, sending(address) as sender:
        for purpose in LanePurpose:
            sender.begin(MetadataRequest(), purpose)
            translation = TRANSLATIONS[MetadataRequest]._replace(purpose=purpose)
            call = OpenCall(MetadataRequest(), translation, answers.append)
            sender.transport.call(OTHER, call, 10**7)
            peer.next()
        sender.transport.close()
        sender.transport.send(OTHER, MetadataRequest(), answers.append)
        assert answers == []
        for _ in range(20):
            peer.go.release()


# -- answers to fetches -----------------------------------------------------------------------


@pytest.mark.parametrize("size", [100, 200_000])
def test_records_stay_as_they_are_while_the_lane_goes_on(size: int) -> None:
    """They are views of what was received, and nothing is received into it meanwhile (X-58)."""
    kind = wire.FetchResponse

    def script(peer: Peer, number: int) -> None:
        peer.greet()
        for fill in range(4):
            header, _ = peer.receive()
            part = kind.PartitionData(0, 0, records=bytes([fill]) * size)
            topic = kind.FetchableTopicResponse("orders", partitions=(part,))
            peer.answer(header, kind(responses=(topic,)))
        peer.receive()

    with scripted(script) as address, sending(address) as sender:
        answers = [sender.ask(FetchRequest((FetchPartition(TP, 0),))) for _ in range(4)]
        for fill, answer in enumerate(answers):
            (part,) = answer.partitions
            assert isinstance(part.records, memoryview)
            assert bytes(part.records) == bytes([fill]) * size
            # No second copy: the view is one of the whole answer.
            assert size < len(memoryview(part.records.obj)) < size + 300


# -- time -------------------------------------------------------------------------------------


def test_a_connection_may_take_longer_after_each_failure() -> None:
    """Up to a bound: a peer behind a slow line is reached in the end (X-54)."""
    clock, heard, over = ManualClock(), SimpleQueue[int](), threading.Event()

    def script(peer: Peer, number: int) -> None:
        peer.receive()
        heard.put(number)
        over.wait(patience())

    limits = {"setup_timeout": Backoff(100, 300, jitter=0), "reconnect": Backoff(10, 10)}
    with scripted(script) as address, sending(address, clock, **limits) as sender:
        for allowed_ms in (100, 200, 300, 300):
            answer = sender.begin(ASKED)
            heard.get(timeout=patience())
            clock.advance(allowed_ms - 1)
            sender.transport.wake()
            until(lambda: not sender.transport._inbox, "it has looked")
            assert sender.transport._open
            clock.advance(1)
            sender.transport.wake()
            assert answer() is None
            assert "cannot be reached in time" in sender.reason
            clock.advance(12)
        over.set()


def test_lanes_that_never_end_of_themselves() -> None:
    with scripted(answering(KNOWN)) as address, sending(address, idle_ms=-1) as sender:
        assert sender.ask() is not None
        (channel,) = sender.transport._open
        assert sender.ask() is not None
        assert sender.transport._open == {channel}


def test_whose_other_side_vanishes() -> None:
    """The kernel ends a connection whose other side acknowledges nothing, neither what is sent nor,
    while nothing is, its questions whether somebody is there (X-55)."""
    with scripted(answering(KNOWN)) as address, sending(address, silence_ms=12_000) as sender:
        assert sender.ask() is not None
        (channel,) = sender.transport._open
        assert channel.sock is not None
        options = {
            name: channel.sock.getsockopt(socket.IPPROTO_TCP, getattr(socket, name))
            for name in ("TCP_USER_TIMEOUT", "TCP_KEEPIDLE", "TCP_KEEPINTVL")
        }
        assert options == {"TCP_USER_TIMEOUT": 12_000, "TCP_KEEPIDLE": 4, "TCP_KEEPINTVL": 4}
        assert channel.sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


# -- strangers --------------------------------------------------------------------------------


def no_greeting(frame: bytes) -> Callable[[Peer, int], None]:
    def script(peer: Peer, number: int) -> None:
        peer.receive()
        peer.socket.sendall(frame)
        peer.receive()

    return script


def after_greeting(answer: bytes) -> Callable[[Peer, int], None]:
    def script(peer: Peer, number: int) -> None:
        peer.greet()
        peer.receive()
        peer.socket.sendall(answer)
        peer.receive()

    return script


def of_another_request(peer: Peer, number: int) -> None:
    peer.greet()
    header, _ = peer.receive()
    peer.answer(header, KNOWN, shift=1)
    peer.receive()


def endless(peer: Peer, number: int) -> None:
    """A frame that goes on for as long as somebody reads it."""
    peer.greet()
    peer.receive()
    peer.socket.sendall(struct.pack(">i", 16 << 20))
    while True:
        peer.socket.sendall(bytes(100_000))


STRANGERS = [
    pytest.param(no_greeting(b"HTTP/1.1 400 Bad\r\n"), "a frame of 1213486160 bytes", id="HTTP"),
    pytest.param(no_greeting(bytes([21, 3, 3, 0, 2, 2, 80])), "it answers in TLS", id="TLS"),
    pytest.param(no_greeting(struct.pack(">i", 2 << 20)), "2097152 bytes", id="a long greeting"),
    pytest.param(no_greeting(b"\0\0\0\4\0\0\0\0"), "ApiVersionsResponse", id="garbage"),
    pytest.param(
        after_greeting(b"\0\0\0\5\xff\xff\xff\xff\0"), "answers request -1", id="another's"
    ),
    pytest.param(of_another_request, "answers request 2, not 1", id="of another request"),
    pytest.param(
        after_greeting(struct.pack(">i", 100 << 20)), "a frame of 104857600 bytes", id="large"
    ),
    pytest.param(endless, "answers request 0, not 1", id="endless"),
]


@pytest.mark.parametrize(("script", "reason"), STRANGERS)
def test_a_stranger_on_the_port_of_a_peer(script: Callable[[Peer, int], None], reason: str) -> None:
    """The error names the peer and what it did; the next try waits, and nobody else does."""
    clock, third = ManualClock(), 3
    with (
        scripted(script) as strange,
        scripted(answering(KNOWN)) as good,
        sending(strange, clock) as sender,
    ):
        sender.addresses[third] = good
        for tries in (1, 2):
            answer = sender.begin(ASKED, LanePurpose.CONTROL)
            answers: SimpleQueue[Response | None] = SimpleQueue()
            sender.transport.send(third, ASKED, answers.put)
            assert answers.get(timeout=patience()) is not None
            assert answer() is None
            (told,) = map(str, sender.transport.failures())
            assert told.startswith(f"{strange[0]}:{strange[1]}: ")
            assert re.search(reason, told), told
            assert sender.transport._nodes[OTHER].failures == tries
            clock.advance(1000)


def test_a_silent_stranger_disturbs_nobody() -> None:
    clock, heard = ManualClock(), threading.Event()

    def silent(peer: Peer, number: int) -> None:
        peer.receive()
        heard.set()
        peer.receive()

    with (
        scripted(silent) as strange,
        scripted(answering(KNOWN)) as good,
        sending(strange, clock) as sender,
    ):
        answer = sender.begin(ASKED, timeout_ms=5000)
        assert heard.wait(patience())
        sender.addresses[3] = good
        answers: SimpleQueue[Response | None] = SimpleQueue()
        for _ in range(3):
            sender.transport.send(3, ASKED, answers.put, 1000)
            assert answers.get(timeout=patience()) is not None
        clock.advance(5001)
        sender.transport.wake()
        assert answer() is None
        assert "cannot be reached in time" in sender.reason


def test_a_fetch_may_be_as_large_as_its_bound() -> None:
    kind = wire.FetchResponse

    def script(peer: Peer, number: int) -> None:
        peer.greet()
        for size in (99_000, 101_000):
            header, _ = peer.receive()
            part = kind.PartitionData(0, 0, records=bytes(size))
            peer.answer(
                header, kind(responses=(kind.FetchableTopicResponse("orders", partitions=(part,)),))
            )
        peer.receive()

    fetch = FetchRequest((FetchPartition(TP, 0),))
    with scripted(script) as address, sending(address, max_fetch_bytes=100_000) as sender:
        (part,) = sender.ask(fetch).partitions
        assert len(part.records) == 99_000
        assert sender.ask(fetch) is None
        assert re.search(r"a frame of 101\d\d\d bytes; at most 100000", sender.reason)


@pytest.mark.slow
def test_a_thousand_connections_leave_nothing() -> None:
    """Neither a descriptor nor memory, of the peer's failures either."""
    clock = ManualClock()

    def script(peer: Peer, number: int) -> None:
        peer.greet()
        peer.receive()

    def attempt() -> None:
        assert sender.ask() is None
        clock.advance(2000)

    def ours() -> int:
        gc.collect()
        taken = tracemalloc.take_snapshot()
        found = taken.filter_traces([tracemalloc.Filter(True, "*/replication/*")])
        return sum(each.size for each in found.statistics("filename"))

    with scripted(script) as address, sending(address, clock) as sender:
        tracemalloc.start()
        for _ in range(20):
            attempt()
        before = len(os.listdir("/proc/self/fd")), ours()
        for _ in range(1000):
            attempt()
        transport = sender.transport
        until(lambda: not (transport._open or transport._channels), "all are closed")
        assert sum(len(node.lanes) for node in transport._nodes.values()) == 0
        assert len(os.listdir("/proc/self/fd")) <= before[0] + 5
        # The sockets themselves are kept by the check that they are closed, with 90 bytes each.
        assert ours() <= before[1] + 130_000
        tracemalloc.stop()
