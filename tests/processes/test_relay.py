"""The relay itself: what it does to connections is what the faults of the other tests mean."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.processes.relay import Relay, Way
from tests.support.until import patience, until

THERE, HERE = Way("a", "b"), Way("b", "a")


class Pair:
    """A connection from a to b through a relay, and its two ends."""

    def __init__(self, relay: Relay, stack: ExitStack) -> None:
        self.relay, self._stack = relay, stack
        self.listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.listening.settimeout(patience())
        self.link = relay.link("b", self.listening.getsockname()[1])
        self.a = self.dial()
        self.b = self._kept(self.listening.accept()[0])
        until(lambda: relay.connections == 1)

    def dial(self) -> socket.socket:
        return self._kept(socket.create_connection(("127.0.0.1", self.link.port)))

    def _kept(self, end: socket.socket) -> socket.socket:
        end.settimeout(patience())
        return self._stack.enter_context(end)


@pytest.fixture
def pair() -> Iterator[Pair]:
    with ExitStack() as stack:
        yield Pair(stack.enter_context(Relay(lambda port: "a")), stack)


def _is_silent(end: socket.socket) -> bool:
    end.setblocking(False)
    try:
        end.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return True
    finally:
        end.settimeout(patience())
    return False


def test_one_direction_is_cut_and_what_was_held_back_arrives_late(pair: Pair) -> None:
    pair.relay.cut(THERE)
    pair.a.sendall(b"request")
    pair.b.sendall(b"still passes")
    assert pair.a.recv(100) == b"still passes"
    assert _is_silent(pair.b)
    pair.relay.heal()
    assert pair.b.recv(100) == b"request"


def test_the_end_of_a_connection_is_held_back_too(pair: Pair) -> None:
    """Half-open: one side is gone, and the other one does not hear of it."""
    pair.relay.cut(THERE)
    pair.a.close()
    pair.b.sendall(b"to nobody")
    assert _is_silent(pair.b)
    pair.relay.heal(THERE)
    assert pair.b.recv(100) == b""


def test_a_connection_over_a_cut_is_made_when_it_heals(pair: Pair) -> None:
    pair.relay.cut(HERE)
    late = pair.dial()
    late.sendall(b"hello")
    pair.listening.setblocking(False)
    with pytest.raises(BlockingIOError):
        pair.listening.accept()
    pair.listening.settimeout(patience())
    pair.relay.heal()
    accepted, _ = pair.listening.accept()
    with accepted:
        assert accepted.recv(100) == b"hello"


def test_a_cut_is_of_two_nodes_and_not_of_their_neighbours(pair: Pair) -> None:
    pair.relay.cut(Way("c", "b"), Way("b", "c"))
    pair.a.sendall(b"request")
    assert pair.b.recv(100) == b"request"


def test_reset_ends_both_sides(pair: Pair) -> None:
    pair.relay.reset(THERE)
    for end in (pair.a, pair.b):
        with pytest.raises(ConnectionResetError):
            end.recv(1)


def test_nobody_there_ends_the_connection(pair: Pair) -> None:
    pair.listening.close()
    late = pair.dial()
    with pytest.raises(ConnectionResetError):
        late.recv(1)
    until(lambda: pair.relay.connections == 1)


def test_a_piece_that_takes_its_time(pair: Pair) -> None:
    pair.relay.delay(THERE, 0.01)
    pair.a.sendall(b"request")
    assert pair.b.recv(100) == b"request"
