"""A client of ZooKeeper's protocol on a plain socket, which sends whatever a test wants.

It shares no code with the server, nor with kazoo. ``string``, ``buffer`` and ``number`` encode the
parts of a body.
"""

from __future__ import annotations

import socket
import struct
from typing import NamedTuple, Self

from tests.support.until import patience

CREATE, DELETE, EXISTS, GET_DATA, SET_DATA, GET_ACL, SET_ACL, GET_CHILDREN, SYNC = range(1, 10)
PING, GET_CHILDREN_2, CHECK, MULTI, CREATE_2 = range(11, 16)
CHECK_WATCHES, REMOVE_WATCHES, CREATE_CONTAINER = 17, 18, 19
AUTH, SET_WATCHES, SET_WATCHES_2, ADD_WATCH, CLOSE = 100, 101, 105, 106, -11
EPHEMERAL, SEQUENTIAL, CONTAINER = 1, 2, 4
EVENT_XID, PING_XID, AUTH_XID, SET_WATCHES_XID = -1, -2, -4, -8
NO_NODE, BAD_VERSION, NODE_EXISTS, NOT_EMPTY = -101, -103, -110, -111
CREATED, DELETED, CHANGED, CHILDREN = 1, 2, 3, 4
END = struct.pack(">i?i", -1, True, -1)


def number(value: int, kind: str = "i") -> bytes:
    return struct.pack(f">{kind}", value)


def buffer(value: bytes | None) -> bytes:
    return number(-1) if value is None else number(len(value)) + value


def string(text: str) -> bytes:
    return buffer(text.encode())


def strings(*texts: str) -> bytes:
    return number(len(texts)) + b"".join(map(string, texts))


ACLS = number(1) + number(31) + string("world") + string("anyone")


def creation(path: str, data: bytes | None = b"", flags: int = 0, acls: bytes = ACLS) -> bytes:
    return string(path) + buffer(data) + acls + number(flags)


def watched(path: str, watch: bool = True) -> bytes:
    return string(path) + number(watch, "?")


def versioned(path: str, version: int = -1) -> bytes:
    return string(path) + number(version)


def setting(path: str, data: bytes, version: int = -1) -> bytes:
    return string(path) + buffer(data) + number(version)


def multi(*ops: tuple[int, bytes]) -> bytes:
    return b"".join(struct.pack(">i?i", op, False, -1) + body for op, body in ops) + END


class Answer(NamedTuple):
    xid: int
    zxid: int
    error: int
    body: bytes


class Stat(NamedTuple):
    czxid: int
    mzxid: int
    ctime: int
    mtime: int
    version: int
    cversion: int
    aversion: int
    owner: int
    length: int
    children: int
    pzxid: int


def stat_of(body: bytes) -> Stat:
    """The stat at the end of an answer."""
    return Stat(*struct.unpack(">qqqqiiiqiiq", body[-68:]))


def data_of(body: bytes) -> bytes:
    (size,) = struct.unpack_from(">i", body)
    return body[4 : 4 + size] if size > 0 else b""


def strings_of(body: bytes) -> list[str]:
    (count,) = struct.unpack_from(">i", body)
    found, position = [], 4
    for _ in range(count):
        data = data_of(body[position:])
        found.append(data.decode())
        position += 4 + len(data)
    return found


class Expired(Exception):
    """The server does not know the session."""


class ZooKeeperClient:
    """One connection of a session.

    Args:
        session: id and password of one to go on with.
    Attributes:
        events: type and path of those that came.
    """

    def __init__(
        self,
        address: tuple[str, int],
        timeout_ms: int = 10_000,
        session: tuple[int, bytes] = (0, bytes(16)),
        seen_zxid: int = 0,
        tail: bytes = b"\0",
    ) -> None:
        self.socket = socket.create_connection(address, timeout=patience())
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.events: list[tuple[int, str]] = []
        self._xid = 0
        try:
            request = struct.pack(">iqiq", 0, seen_zxid, timeout_ms, session[0])
            self.send_frame(request + buffer(session[1]) + tail)
            self.welcome = self.receive_frame()
            _, self.timeout_ms, self.session_id = struct.unpack_from(">iiq", self.welcome)
            self.password = data_of(self.welcome[16:])
            if not self.session_id:
                raise Expired
        except BaseException:
            self.socket.close()
            raise

    @property
    def session(self) -> tuple[int, bytes]:
        return self.session_id, self.password

    def send_frame(self, payload: bytes) -> None:
        self.socket.sendall(number(len(payload)) + payload)

    def receive_frame(self) -> bytes:
        """
        Raises:
            EOFError: the server has closed the connection.
        """
        (size,) = struct.unpack(">i", self._receive(4))
        return self._receive(size)

    def _receive(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            try:
                more = self.socket.recv(size - len(found))
            except ConnectionError:
                more = b""
            if not more:
                raise EOFError(f"{len(found)} of {size} bytes")
            found += more
        return found

    def send(self, opcode: int, body: bytes = b"", xid: int | None = None) -> int:
        """Send a request; returns its xid."""
        if xid is None:
            self._xid = xid = self._xid + 1
        self.send_frame(number(xid) + number(opcode) + body)
        return xid

    def receive(self) -> Answer:
        """The next answer; events before it are noted."""
        while True:
            frame = self.receive_frame()
            answer = Answer(*struct.unpack_from(">iqi", frame), frame[16:])
            if answer.xid != EVENT_XID:
                return answer
            kind, state = struct.unpack_from(">ii", answer.body)
            assert state == 3
            self.events.append((kind, data_of(answer.body[8:]).decode()))

    def call(self, opcode: int, body: bytes = b"", xid: int | None = None) -> Answer:
        xid = self.send(opcode, body, xid)
        answer = self.receive()
        assert answer.xid == xid
        return answer

    def heard(self) -> list[tuple[int, str]]:
        """The events up to now, which are forgotten."""
        self.call(PING, xid=PING_XID)
        events, self.events = self.events, []
        return events

    def create(self, path: str, data: bytes = b"", flags: int = 0) -> int:
        """The zxid, which is the czxid too."""
        answer = self.call(CREATE, creation(path, data, flags))
        assert answer.error == 0, answer
        return answer.zxid

    def get(self, path: str) -> bytes | None:
        answer = self.call(GET_DATA, watched(path, False))
        return None if answer.error == NO_NODE else data_of(answer.body)

    def stat(self, path: str) -> Stat:
        return stat_of(self.call(EXISTS, watched(path, False)).body)

    def children(self, path: str) -> list[str]:
        return sorted(strings_of(self.call(GET_CHILDREN, watched(path, False)).body))

    def close_session(self) -> None:
        self.call(CLOSE)
        self.close()

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
