"""``TreeServer``: sockets, sessions and the disk of a served tree, on two threads.

The loop's thread has the tree to itself: a request is carried out as it comes. Its answer waits in
one queue, with all answers and events before and behind it, until what it may have seen is on the
disk (X-39). The other thread writes: what came during one sync shares the next one.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple

from checkpoints.loggers import get_logger
from logstore.common.clock import Clock, SystemClock
from logstore.common.errors import ConfigError
from logstore.common.forks import Ownership
from logstore.storage.base import Storage
from logstore.storage.local import LocalStorage
from replication.common.addresses import address_of, is_loopback
from replication.coordination.errors import CoordinatorUnavailableError
from replication.coordination.served import jute
from replication.coordination.served.connection import TreeConnection
from replication.coordination.served.database import TreeDatabase
from replication.coordination.served.operations import NOT_SERVED, KeeperCode, OpCode, Operations
from replication.coordination.served.sessions import Sessions, TreeSession

logger = get_logger(__name__)

TICK_MS = 2_000  # ZooKeeper's tickTime
HANDSHAKE_MS = 10_000  # for the first frame of a connection
BACKLOG = 1024
GOODBYE_S = 1.0  # for answers that are under way when the server is closed
PASSWORD_BYTES = 16

_CONNECT = ("i", "l", "i", "l", "b")  # protocol, last zxid, timeout, session id, password
_CONNECTED = ("i", "i", "l", "b")  # protocol, timeout, session id, password
_HEADER = ("i", "i")  # xid, opcode
_ANSWER = ("i", "l", "i")  # xid, zxid, error
# What an operator's tools ask for before they ask anything else. The version is that of the
# protocol: 3.6 brought watches that persist.
_VERSION = "3.6.0-logstore"


class Limits(NamedTuple):
    """What strangers may take."""

    connections: int = 2_000
    sessions: int = 10_000
    watch_bytes: int = 16 << 20  # of one connection, of each kind of watch


class TreeServer:
    """Serves the tree in ``directory`` to clients of ZooKeeper until ``close``.

    A single durable node: sessions survive its restart, and no other machine has what its disk
    has.

    Args:
        directory: of the tree, as a ``CoordinatorStore`` or a ``Cluster`` keeps it.
        host, port: where to listen; port 0 takes a free one (``address`` says which).
        allow_remote: serve on another address than loopback, though there is no login.
        tick_ms: timeouts of sessions are from 2 to 20 ticks.
    Raises:
        ConfigError: ``host`` is not loopback, and ``allow_remote`` is not set.
        CorruptStoreError, LogDirLockedError: as ``CoordinatorStore``.
        OSError: the disk failed, or the address cannot be bound; ``filename`` is the address.
    """

    def __init__(
        self,
        directory: str,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        allow_remote: bool = False,
        tick_ms: int = TICK_MS,
        limits: Limits | None = None,
        storage: Storage | None = None,
        clock: Clock | None = None,
    ) -> None:
        if not allow_remote and not is_loopback(host):
            raise ConfigError(
                f"the coordinator has no login, and {host or 'every address'} is not a loopback "
                "address: everyone who reaches it may change everything. Allow it by name"
            )
        self._ownership = Ownership(f"the coordinator at {address_of(host, port)}")
        self._clock = clock or SystemClock()
        self._limits = limits or Limits()
        self._tick_ms = tick_ms
        self._failure: BaseException | None = None
        self._database = TreeDatabase(directory, storage or LocalStorage(), self._clock)
        self._tree = self._database.tree
        self._operations = Operations(self._database, self._limits.watch_bytes)
        self._sessions = Sessions(self._tree.sessions.values(), tick_ms, self._now_ms())
        self._connections: set[TreeConnection] = set()
        self._held: deque[tuple[int, TreeConnection, bytes | None]] = deque()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
        except OSError as error:
            self._database.close()
            raise OSError(error.errno, error.strerror, address_of(host, port)) from error
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self._loop = asyncio.new_event_loop()
        self._disk = ThreadPoolExecutor(1, "coordinator-disk")
        self._stopping = asyncio.Event()
        self._dirty = asyncio.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="coordinator", daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """For ``open_coordinator``."""
        return f"zookeeper://{address_of(*self.address)}"

    def wait(self, timeout_s: float) -> None:
        """Wait for the end of the server, at most so long.

        Raises:
            CoordinatorUnavailableError: the disk failed; nothing is served any more.
        """
        self._ended.wait(timeout_s)
        if self._failure is not None:
            reason = f"{self._database.directory}: {self._failure}"
            raise CoordinatorUnavailableError(reason) from self._failure

    def close(self) -> None:
        """Close all connections and release the directory. Sessions go on at the next start.
        Idempotent."""
        if self._ownership.lost is not None:
            self._listener.close()
            return
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()

    # --- the thread of the loop

    def _now_ms(self) -> int:
        return self._clock.monotonic_ns() // 1_000_000

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        except BaseException as error:
            self._failure = error
            logger.error("the coordinator ends: %s", error)
        finally:
            for connection in self._connections:
                connection.abort()
            self._loop.run_until_complete(asyncio.sleep(0))
            self._disk.shutdown()
            self._loop.close()
            self._listener.close()
            with suppress(OSError):
                self._database.close()
            self._ended.set()

    async def _serve(self) -> None:
        serving = await self._loop.create_server(
            lambda: TreeConnection(self, self._now_ms()), sock=self._listener, backlog=BACKLOG
        )
        stopping = self._loop.create_task(self._stopping.wait())
        duties = [self._loop.create_task(each()) for each in (self._write, self._look)]
        await asyncio.wait([stopping, *duties], return_when=asyncio.FIRST_COMPLETED)
        serving.close()
        for task in (stopping, *duties):
            task.cancel()
        for ended in await asyncio.gather(stopping, *duties, return_exceptions=True):
            if isinstance(ended, Exception):  # a cancelled task is none
                raise ended
        for connection in self._connections:
            connection.finish()
        with suppress(TimeoutError):
            async with asyncio.timeout(GOODBYE_S):
                while self._connections:
                    await asyncio.sleep(0.01)

    async def _write(self) -> None:
        """Write what was changed, batch after batch. Cancelled, it ends after its batch."""
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            batch = self._database.take_batch()
            writing = self._loop.run_in_executor(self._disk, self._database.write, batch)
            try:
                await asyncio.shield(writing)
            except asyncio.CancelledError:
                await writing
                self._release(batch.zxid)
                raise
            self._release(batch.zxid)

    async def _look(self) -> None:
        """End silent sessions, and close connections that ask for none."""
        while True:
            await asyncio.sleep(self._tick_ms / 2000)
            now_ms = self._now_ms()
            for session in self._sessions.take_silent(now_ms):
                logger.info("session %#x has expired", session.session_id)
                self._end(session)
            for connection in list(self._connections):
                if not connection.session_id and now_ms - connection.begun_ms > HANDSHAKE_MS:
                    connection.abort()

    def _end(self, session: TreeSession) -> None:
        self._operations.end_session(session.session_id)
        self._dirty.set()
        if session.connection is not None:
            self.send(session.connection, None)

    # --- of connections

    def opened(self, connection: TreeConnection) -> None:
        self._connections.add(connection)
        if len(self._connections) > self._limits.connections:
            connection.refuse(f"there are {self._limits.connections} already")

    def closed(self, connection: TreeConnection) -> None:
        self._connections.discard(connection)
        self._operations.forget(connection)
        session = self._sessions.get(connection.session_id)
        if session is not None and session.connection is connection:
            session.connection = None

    def received(self, connection: TreeConnection, frame: bytes) -> None:
        """A whole frame came."""
        session = self._sessions.get(connection.session_id)
        try:
            if session is None:
                self._begin(connection, frame)
                return
            (xid, opcode), position = jute.read(_HEADER, frame)
        except jute.JuteError as error:
            connection.refuse(str(error))
            return
        session.touch(self._now_ms())
        code, body, ends = KeeperCode.OK, b"", False
        if opcode == OpCode.CLOSE_SESSION:
            ends = True
            if self._sessions.end(session):
                self._operations.end_session(session.session_id)
        elif opcode in (OpCode.AUTH, OpCode.SASL):  # there is no login
            code, ends = KeeperCode.AUTH_FAILED, True
        elif opcode not in _OPCODES:
            code, ends = KeeperCode.UNIMPLEMENTED, True
        elif opcode != OpCode.PING:
            code, body = self._operations.carry_out(connection, opcode, frame[position:])
        self.send(connection, jute.write(_ANSWER, (xid, self._tree.zxid, code)) + body)
        if ends:
            self.send(connection, None)

    def _begin(self, connection: TreeConnection, frame: bytes) -> None:
        """Give a connection its session: a new one, or that which it had before."""
        (_, seen_zxid, timeout_ms, session_id, password), end = jute.read(_CONNECT, frame)
        tree, now_ms = self._tree, self._now_ms()
        if seen_zxid > tree.zxid:
            # As ZooKeeper: without a word, so that it looks for a server that knows more.
            connection.refuse(f"it has seen {seen_zxid:#x}, and the tree is at {tree.zxid:#x}")
            return
        timeout_ms = self._sessions.negotiate(timeout_ms)
        session: TreeSession | None
        if session_id:
            session = self._sessions.find(session_id, password)
        elif len(self._sessions) >= self._limits.sessions:
            connection.refuse(f"there are {self._limits.sessions} sessions already")
            return
        else:
            session = self._sessions.begin(self._database.begin_session(timeout_ms), now_ms)
        answer = (0, 0, 0, bytes(PASSWORD_BYTES))
        if session is not None:
            if session.connection is not None:
                session.connection.abort()
            session.connection, connection.session_id = connection, session.session_id
            session.timeout_ms = timeout_ms
            session.touch(now_ms)
            answer = (0, timeout_ms, session.session_id, session.password)
        # A client that knows servers that are read-only says so in one byte more.
        read_only = b"\0" if len(frame) > end else b""
        self.send(connection, jute.write(_CONNECTED, answer) + read_only)
        if session is None:
            self.send(connection, None)

    def answer_word(self, word: str) -> bytes:
        """The answer to a four-letter word."""
        if word == "ruok":
            return b"imok"
        counts = {
            "num_alive_connections": len(self._connections),
            "outstanding_requests": len(self._held),
            "znode_count": len(self._tree.entries),
            "watch_count": self._operations.watch_count,
            "ephemerals_count": len(self._tree.ephemerals()),
            "global_sessions": len(self._sessions),
        }
        if word == "mntr":
            facts = {"version": _VERSION, "server_state": "standalone", **counts}
            return "".join(f"zk_{name}\t{value}\n" for name, value in facts.items()).encode()
        if word == "srvr":
            return (
                f"Zookeeper version: {_VERSION}\n"
                f"Connections: {counts['num_alive_connections']}\n"
                f"Outstanding: {counts['outstanding_requests']}\n"
                f"Zxid: {self._tree.zxid:#x}\n"
                "Mode: standalone\n"
                f"Node count: {counts['znode_count']}\n"
            ).encode()
        return f"{word} is not executed because it is not in the whitelist.\n".encode()

    # --- answers, in the order of what they saw

    def send(self, connection: TreeConnection, payload: bytes | None) -> None:
        """Send a frame as soon as all that is in the tree now is on the disk; None: close it."""
        if payload is None:
            connection.is_closing = True
        if not self._held and self._database.is_durable:
            self._let_go(connection, payload)
            return
        self._held.append((self._tree.zxid, connection, payload))
        connection.wait(payload or b"")
        self._dirty.set()

    def _release(self, zxid: int) -> None:
        """What came up to a transaction is durable."""
        self._database.durable_zxid = zxid
        held = self._held
        waited: set[TreeConnection] = set()
        while held and held[0][0] <= zxid:
            _, connection, payload = held.popleft()
            connection.waited(payload or b"")
            waited.add(connection)
            self._let_go(connection, payload)
        for connection in waited:
            if not connection.is_closing:
                connection.work()

    def _let_go(self, connection: TreeConnection, payload: bytes | None) -> None:
        if payload is None:
            connection.finish()
        else:
            connection.write_frame(payload)


_OPCODES = NOT_SERVED.union(OpCode)
