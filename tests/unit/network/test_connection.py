"""The machine of a connection: any split of the bytes gives the same requests, in order."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.common.errors import LogstoreError
from logstore.storage.file_slice import FileSlice
from replication.network import CLOSE, NO_RESPONSE, Listener, NetworkConfig, Send
from replication.network.connection import Connection, ConnectionState, Rules
from replication.network.framing import SHARED_BYTES, FrameError, FrameReader, RequestRefusedError
from replication.network.limits import MemoryPool
from replication.network.metrics import CloseReason
from replication.network.requests import ConnectionInfo, ReceivedRequest
from tests.support.network import frame_of, parse_header

MS = 1_000_000


def make(pool: int = -1, **keys: int) -> tuple[Connection, MemoryPool]:
    config = NetworkConfig(**keys)  # type: ignore[arg-type]
    memory = MemoryPool(pool, lambda: None)
    rules = Rules(config, memory, parse_header, lambda key, version, listener: key < 100)
    info = ConnectionInfo(1, "127.0.0.1", 4711, Listener())
    return Connection(info, rules, 0), memory


SHARED = memoryview(bytearray(SHARED_BYTES))


def feed(connection: Connection, data: bytes, now_ms: int = 0) -> int:
    """As a socket would: how much of ``data`` one receive takes."""
    assert connection.make_room()
    window = connection.reader.window(SHARED)
    count = min(len(window), len(data))
    window[:count] = data[:count]
    connection.received(count, now_ms)
    return count


def run(connection: Connection, pieces: list[bytes]) -> list[ReceivedRequest]:
    """Each request is answered before the next is asked for."""
    requests = []
    for piece in pieces:
        while piece:
            piece = piece[feed(connection, piece) :]
            while (request := connection.next_request(0)) is not None:
                requests.append(request)
                connection.take_reservation()
                assert connection.answer(NO_RESPONSE, connection.number, 0)
    return requests


bodies = st.lists(
    st.one_of(
        st.binary(max_size=40),
        st.integers(SHARED_BYTES - 40, SHARED_BYTES + 40).map(bytes),
        st.integers(3 * SHARED_BYTES, 5 * SHARED_BYTES).map(lambda size: b"\x07" * size),
    ),
    max_size=5,
)


@pytest.mark.parametrize("size", [0, -1, -(1 << 31), 101, (1 << 31) - 1])
def test_a_length_out_of_bounds(size: int) -> None:
    reader = FrameReader(100)
    reader.window(SHARED)[:4] = struct.pack(">i", size)
    reader.received(4)
    assert reader.has_next
    with pytest.raises(FrameError):
        reader.next_frame()


@given(bodies=bodies, data=st.data())
def test_any_split_gives_the_same_requests(bodies: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(frame_of(body, correlation_id=number) for number, body in enumerate(bodies))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    connection, _ = make()
    requests = run(connection, pieces)
    assert [bytes(request.body) for request in requests] == bodies
    assert [request.correlation_id for request in requests] == list(range(len(bodies)))
    assert {request.client_id for request in requests} <= {"me"}
    assert not connection.reader.is_inside_frame


def test_byte_by_byte() -> None:
    stream = frame_of(b"one") + frame_of(b"two")
    requests = run(make()[0], [stream[n : n + 1] for n in range(len(stream))])
    assert [bytes(request.body) for request in requests] == [b"one", b"two"]


def test_the_next_request_waits_for_the_answer_to_the_former() -> None:
    connection, _ = make()
    feed(connection, frame_of(b"one") + frame_of(b"two"))
    assert connection.next_request(0) is not None
    assert connection.next_request(0) is None
    assert not connection.may_receive
    connection.answer(Send([b"1234"]), 1, 0)
    assert connection.state is ConnectionState.SENDING
    assert connection.next_request(0) is None
    connection.sent(7, 0)
    assert connection.next_request(0) is None
    connection.sent(1, 0)
    second = connection.next_request(0)
    assert second is not None
    assert bytes(second.body) == b"two"


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">i", 0),
        struct.pack(">i", -1),
        struct.pack(">i", 1001),
        b"GET / HTTP/1.1\r\nHost: kafka\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # a TLS hello
        struct.pack(">i", 5) + b"short",
    ],
)
def test_what_is_no_frame_raises(data: bytes) -> None:
    connection, _ = make(socket_request_max_bytes=1000)
    feed(connection, data)
    with pytest.raises(LogstoreError):
        connection.next_request(0)


@pytest.mark.parametrize("size", [20, 10 * SHARED_BYTES])
def test_an_api_that_is_not_served_is_refused_before_it_takes_memory(size: int) -> None:
    connection, memory = make()
    feed(connection, frame_of(bytes(size), key=100)[:SHARED_BYTES])
    with pytest.raises(RequestRefusedError):
        connection.next_request(0)
    assert memory.used == 0


def test_a_large_frame_takes_memory_as_it_comes() -> None:
    """Announced are 100 MiB; a tenth comes."""
    connection, memory = make()
    size = 100 << 20
    feed(connection, struct.pack(">i", size) + frame_of(b"")[4:])
    assert connection.next_request(0) is None
    received, piece = 0, bytes(1 << 20)
    while received < size // 10:
        received += feed(connection, piece)
        frame = connection.reader._frame
        assert frame is not None
        assert len(frame) == memory.used <= 2 * received + 100
    connection.close(CloseReason.SHUTDOWN)
    assert memory.used == 0


def begin_large(connection: Connection) -> None:
    feed(connection, frame_of(bytes(2 * SHARED_BYTES))[:1000])
    assert connection.next_request(0) is None
    assert connection.reader.is_large


def test_a_large_frame_waits_for_room_and_small_ones_do_not() -> None:
    first, memory = make(pool=5000)
    second, third = (Connection(first.info, first._rules, 0) for _ in range(2))
    begin_large(first)
    begin_large(second)
    for _ in range(4):  # the first one may always go on
        feed(first, bytes(5000), 10)
    assert memory.used > 5000
    assert not second.make_room()
    assert second.state is ConnectionState.STARVED
    feed(third, frame_of(bytes(50_000)))
    assert third.next_request(0) is not None
    first.close(CloseReason.SHUTDOWN)
    second.feed()
    for _ in range(4):  # now it is the first one
        feed(second, bytes(5000))
    assert memory.used > 5000
    second.close(CloseReason.SHUTDOWN)
    assert memory.used == 0


def test_all_large_frames_wait_for_those_in_process() -> None:
    first, memory = make(pool=200_000)
    data = frame_of(bytes(150_000))
    while data:
        data = data[feed(first, data) :]
        request = first.next_request(0)
    assert request is not None
    reserved = first.take_reservation()
    second = Connection(first.info, first._rules, 0)
    data = frame_of(bytes(150_000))
    while second.make_room():
        data = data[feed(second, data) :]
        assert second.next_request(0) is None
    assert memory.used <= 200_000 + SHARED_BYTES
    memory.release(reserved)
    second.feed()
    assert second.make_room()
    second.close(CloseReason.SHUTDOWN)
    assert memory.used == 0


def test_a_frame_that_gets_no_room_is_closed() -> None:
    """The client's own timeout is over by then; it may come again."""
    first, memory = make(pool=1000)
    second = Connection(first.info, first._rules, 0)
    begin_large(first)
    begin_large(second)
    assert not second.make_room()
    second.feed()
    assert not second.make_room()
    second.on_deadline(29_999)
    assert second.state is ConnectionState.STARVED
    second.on_deadline(30_000)
    assert second.state is ConnectionState.CLOSED
    first.close(CloseReason.SHUTDOWN)
    assert memory.used == 0


def test_the_memory_of_a_large_request_is_released_by_its_handler() -> None:
    connection, memory = make(pool=1 << 20)
    data = frame_of(bytes(2 * SHARED_BYTES))
    while data:
        data = data[feed(connection, data) :]
        request = connection.next_request(0)
    assert request is not None
    assert connection.take_reservation() == memory.used == request.body.nbytes + 12
    connection.close(CloseReason.SHUTDOWN)
    assert memory.used == request.body.nbytes + 12


@pytest.fixture
def make_slice(tmp_path: Path) -> Callable[[int], FileSlice]:
    def make(size: int) -> FileSlice:
        with (tmp_path / "segment").open("wb") as file:
            return FileSlice("segment", file.fileno(), 100, size)

    return make


def test_an_answer_that_is_not_awaited_is_released(make_slice: Callable[[int], FileSlice]) -> None:
    connection, _ = make()
    slices = [make_slice(3) for _ in range(3)]
    assert not connection.answer(Send([slices[0]]), 1, 0)
    feed(connection, frame_of(b""))
    connection.next_request(0)
    assert not connection.answer(Send([slices[1]]), 7, 0)
    assert connection.answer(Send([b"x", slices[2]]), 1, 0)
    assert [each.fileno() < 0 for each in slices] == [True, True, False]
    connection.close(CloseReason.SHUTDOWN)
    connection.close(CloseReason.SHUTDOWN)
    assert slices[2].fileno() < 0


def test_a_delayed_answer_of_a_connection_that_is_closed_is_released(
    make_slice: Callable[[int], FileSlice],
) -> None:
    connection, _ = make()
    feed(connection, frame_of(b""))
    connection.next_request(0)
    part = make_slice(1)
    connection.answer(Send([part], delay_ms=100), 1, 0)
    connection.close(CloseReason.SHUTDOWN)
    assert part.fileno() < 0


def test_a_file_is_released_when_its_last_byte_has_left(
    make_slice: Callable[[int], FileSlice],
) -> None:
    connection, _ = make()
    feed(connection, frame_of(b""))
    connection.next_request(0)
    part = make_slice(1000)
    connection.answer(Send([b"head", part, b"tail"]), 1, 0)
    assert connection.outbox[0] == struct.pack(">i", 1008)
    connection.sent(8, 0)
    connection.sent(999, 0)
    assert connection.head_offset == 999
    assert part.fileno() >= 0
    connection.sent(1, 0)
    assert part.fileno() < 0
    connection.sent(4, 0)
    assert connection.state is ConnectionState.READING


class TestTime:
    def test_an_idle_connection_is_closed(self) -> None:
        connection, _ = make()
        assert connection.deadline_ms() == 600_000
        connection.on_deadline(599_999)
        assert connection.state is ConnectionState.READING
        connection.on_deadline(600_000)
        assert connection.state is ConnectionState.CLOSED

    def test_a_request_in_process_has_the_time_of_a_quiet_connection(self) -> None:
        connection, _ = make()
        feed(connection, frame_of(b""))
        connection.next_request(0)
        connection.on_deadline(599_999)
        assert connection.state is ConnectionState.IN_PROCESS
        connection.on_deadline(600_000)
        assert connection.state is ConnectionState.CLOSED
        assert not connection.answer(Send([b"late"]), 1, 600_001)

    def test_an_opened_frame_must_go_on(self) -> None:
        connection, _ = make()
        feed(connection, frame_of(b"hello")[:9], 1000)
        assert connection.next_request(1000 * MS) is None
        assert connection.deadline_ms() == 31_000
        connection.on_deadline(31_000)
        assert connection.state is ConnectionState.CLOSED

    def test_a_frame_that_drips_has_an_end(self) -> None:
        """A byte every 20 s is progress, but not for ever."""
        connection, _ = make()
        frame = frame_of(bytes(1 << 20))
        for now_ms in range(0, 10_000_000, 20_000):
            connection.on_deadline(now_ms)
            if connection.state is ConnectionState.CLOSED:
                break
            frame = frame[feed(connection, frame[:1], now_ms) :]
            connection.next_request(now_ms * MS)
        assert connection.state is ConnectionState.CLOSED
        assert now_ms <= 30_000 + 13 * 20_000 + (1 << 20) // 64 + 20_000

    def test_a_reader_that_takes_nothing_is_closed(self) -> None:
        connection, _ = make()
        feed(connection, frame_of(b""))
        connection.next_request(0)
        connection.answer(Send([bytes(100)]), 1, 1000)
        connection.sent(50, 30_000)
        assert connection.deadline_ms() == 61_001
        connection.on_deadline(61_001)
        assert connection.state is ConnectionState.CLOSED

    def test_a_throttled_connection_is_answered_at_once_and_not_read_for_a_while(self) -> None:
        connection, _ = make()
        feed(connection, frame_of(b"one") + frame_of(b"two"), 0)
        connection.next_request(0)
        connection.answer(Send([b"x"], throttle_ms=500), 1, 1000)
        assert connection.state is ConnectionState.SENDING
        connection.sent(5, 1001)
        assert connection.state is ConnectionState.THROTTLED
        assert connection.next_request(1400 * MS) is None
        assert connection.deadline_ms() == 1500
        connection.on_deadline(1500)
        assert connection.next_request(1500 * MS) is not None

    def test_a_throttle_without_an_answer(self) -> None:
        """As for Produce with acks=0."""
        connection, _ = make()
        feed(connection, frame_of(b""))
        connection.next_request(0)
        connection.answer(Send([], throttle_ms=500), 1, 0)
        assert not connection.outbox
        assert connection.state is ConnectionState.THROTTLED
        assert connection.deadline_ms() == 500

    def test_an_answer_may_wait_and_then_close(self) -> None:
        connection, _ = make()
        feed(connection, frame_of(b""))
        connection.next_request(0)
        connection.answer(Send([b"no"], close_after=True, delay_ms=100), 1, 0)
        assert not connection.outbox
        connection.on_deadline(99)
        assert connection.state is ConnectionState.DELAYED
        connection.on_deadline(100)
        connection.sent(6, 100)
        assert connection.state is ConnectionState.CLOSED


def test_close_and_the_end_of_the_other_side() -> None:
    connection, _ = make()
    feed(connection, frame_of(b"one") + frame_of(b"two"))
    connection.peer_ended()
    assert connection.next_request(0) is not None
    connection.answer(NO_RESPONSE, 1, 0)
    assert connection.next_request(0) is not None
    connection.answer(NO_RESPONSE, 2, 0)
    assert connection.next_request(0) is None
    assert connection.state is ConnectionState.CLOSED
    other, _ = make()
    feed(other, frame_of(b""))
    other.next_request(0)
    other.answer(CLOSE, 1, 0)
    assert other.state is ConnectionState.CLOSED
