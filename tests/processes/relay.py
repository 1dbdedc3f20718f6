"""Links that can be cut: every connection between two nodes runs through here.

A link copies bytes. What a cut holds back arrives when it is healed, late, as packets that TCP
sends again; so do the ends of connections, whose other side stays half-open until then. It works
without rights. What the kernel alone can do, such as an unanswered SYN, is in ``namespaces``.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
import threading
from collections.abc import Callable, Coroutine, Iterable
from types import TracebackType
from typing import Any, NamedTuple, Self

from tests.support.until import patience

CHUNK = 1 << 16
STRANGER = "stranger"
"""Who connects and is no node."""

_AT_ONCE = struct.pack("ii", 1, 0)  # SO_LINGER: closing discards what is unsent, and resets

Sources = Callable[[int], str]
"""From the local port of who connected to its name."""


class Way(NamedTuple):
    """One direction between two nodes. It holds for the connections that either of them opened."""

    source: str
    destination: str

    @property
    def back(self) -> Way:
        return Way(self.destination, self.source)


class Link(NamedTuple):
    """A port of loopback that leads to ``destination``."""

    destination: str
    port: int


class Relay:
    """All links, on one thread.

    Args:
        source_of: who opened a connection; called on the relay's thread.
        seed: of the delays.
    """

    def __init__(self, source_of: Sources, seed: int = 0) -> None:
        self._source_of = source_of
        self._rng = random.Random(seed)
        self._cut: set[Way] = set()
        self._delays: dict[Way, float] = {}
        self._changed = asyncio.Condition()
        self._tasks: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server] = []
        self._writers: dict[asyncio.StreamWriter, Way] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="relay", daemon=True)
        self._thread.start()

    def _do(self, call: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result(patience())

    # -- what a test does --------------------------------------------------------------------------

    def link(
        self,
        destination: str,
        port: int,
        source: str | None = None,
        host: str = "127.0.0.1",
    ) -> Link:
        """A new way to ``port``: whoever connects there talks to ``destination``.

        Args:
            source: who will connect, if it is known.
            host: to listen at.
        """

        async def listen() -> Link:
            async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                name = source or self._source_of(writer.get_extra_info("peername")[1])
                await self._connected(Way(name, destination), port, reader, writer)

            server = await asyncio.start_server(accept, host, 0)
            self._servers.append(server)
            return Link(destination, server.sockets[0].getsockname()[1])

        found: Link = self._do(listen())
        return found

    def cut(self, *ways: Way) -> None:
        """Nothing arrives that way any more, until ``heal``."""
        self._do(self._set(cut=ways))

    def heal(self, *ways: Way) -> None:
        """What was held back arrives; without arguments, on all links."""
        self._do(self._set(healed=ways or tuple(self._cut)))

    def delay(self, way: Way, longest_s: float) -> None:
        """Each piece that goes that way takes up to so long; 0 ends it."""
        self._delays[way] = longest_s

    def reset(self, *ways: Way) -> None:
        """End the connections between these nodes, at both sides at once, in mid-request."""

        async def abort() -> None:
            for writer, way in [*self._writers.items()]:
                if way in ways or way.back in ways:
                    _reset(writer)

        self._do(abort())

    @property
    def connections(self) -> int:
        return len(self._writers) // 2

    # -- the relay's thread ------------------------------------------------------------------------

    async def _set(self, cut: Iterable[Way] = (), healed: Iterable[Way] = ()) -> None:
        async with self._changed:
            self._cut.update(cut)
            self._cut.difference_update(healed)
            self._changed.notify_all()

    async def _passes(self, *ways: Way) -> None:
        if self._cut.isdisjoint(ways):
            return
        async with self._changed:
            await self._changed.wait_for(lambda: self._cut.isdisjoint(ways))

    async def _connected(
        self,
        way: Way,
        port: int,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers[writer] = way.back
        other: asyncio.StreamWriter | None = None
        try:
            await self._passes(way, way.back)  # a handshake needs both
            there, other = await asyncio.open_connection("127.0.0.1", port)
            self._writers[other] = way
            await asyncio.gather(
                self._copy(reader, other, way), self._copy(there, writer, way.back)
            )
        except (OSError, asyncio.CancelledError):
            pass  # the other side is gone, or this relay: the same to who connected
        finally:
            for each in filter(None, (writer, other)):
                self._writers.pop(each, None)
                _reset(each)
            self._tasks.discard(task)

    async def _copy(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Way
    ) -> None:
        while True:
            try:
                data = await reader.read(CHUNK)
            except OSError:
                await self._passes(way)
                raise
            if longest := self._delays.get(way):
                await asyncio.sleep(self._rng.uniform(0.0, longest))
            await self._passes(way)
            if not data:
                with contextlib.suppress(OSError):  # it has ended both directions already
                    writer.write_eof()
                return
            writer.write(data)
            await writer.drain()

    def close(self) -> None:
        async def stop() -> None:
            for server in self._servers:
                server.close()
            for task in [*self._tasks]:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

        self._do(stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(patience())
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _reset(writer: asyncio.StreamWriter) -> None:
    raw = writer.get_extra_info("socket")
    if raw.fileno() != -1:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
    writer.transport.abort()
