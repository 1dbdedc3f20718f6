"""From the network threads to the handler threads: a bounded queue (Kafka's ``RequestChannel``)."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from checkpoints.loggers import get_logger
from logstore.common.clock import Clock
from logstore.common.errors import LogstoreError
from replication.common.limited_log import LimitedLogger
from replication.network.limits import MemoryPool
from replication.network.requests import CLOSE, Answer, ReceivedRequest, RequestHandler

logger = get_logger(__name__)
limited = LimitedLogger(logger)


class Exchange:
    """One request on its way to its answer; calling it answers.

    Attributes:
        deliver: gives the answer to the network thread of the connection, and never blocks.
        channel: of the connection; the network thread's business.
        number: of the request within its connection.
        reserved: bytes of memory to release when the handler returns.
        received_ns, begun_ns, ended_ns, answered_ns, taken_ns: monotonic, for metrics: when it was
            whole, when its handler began and returned (0 before), when it was answered, and when
            the network thread had the answer.
        answer: what is being sent.
    """

    __slots__ = (
        "answer",
        "answered_ns",
        "api_key",
        "api_version",
        "begun_ns",
        "channel",
        "deliver",
        "ended_ns",
        "number",
        "received_ns",
        "request",
        "reserved",
        "taken_ns",
    )
    # No defaults here: each is set before it is read, and a request costs less.
    answered_ns: int
    taken_ns: int
    answer: Answer | None

    def __init__(
        self,
        deliver: Callable[[Exchange, Answer], None],
        channel: object,
        number: int,
        request: ReceivedRequest,
        reserved: int = 0,
    ) -> None:
        self.deliver, self.channel, self.number = deliver, channel, number
        self.request: ReceivedRequest | None = request
        self.reserved = reserved
        self.api_key, self.api_version = request.api_key, request.api_version
        self.received_ns = self.begun_ns = request.received_ns
        self.ended_ns = 0

    def __call__(self, answer: Answer) -> None:
        self.deliver(self, answer)

    def run(self, handler: RequestHandler, memory: MemoryPool) -> None:
        """Call the handler. An exception that it raises closes the connection."""
        request, self.request = self.request, None  # a handler that answers later needs no body
        assert request is not None
        try:
            handler(request, self)
        except LogstoreError as error:
            logger.info("a request of %s is refused: %s", request.connection.peer_host, error)
            self(CLOSE)
        except Exception:
            limited.exception(
                "the handler of API %d, version %d, failed",
                request.api_key,
                request.api_version,
                about=request.api_key,
            )
            self(CLOSE)
        finally:
            if self.reserved:
                memory.release(self.reserved)


class RequestChannel:
    """A queue and the threads that empty it. A thread is started when there is work for it.

    Args:
        on_room: called when there is room again after an offer was refused. It does not block.
    """

    def __init__(
        self,
        name: str,
        handler: RequestHandler,
        memory: MemoryPool,
        capacity: int,
        max_threads: int,
        clock: Clock,
        on_room: Callable[[], None],
    ) -> None:
        self._name = name
        self._handler = handler
        self._memory = memory
        self._capacity = capacity
        self._max_threads = max_threads
        self._now_ns = clock.monotonic_ns
        self._on_room = on_room
        self._changed = threading.Condition()
        self._queue: deque[Exchange] = deque()
        self._idle = 0  # threads that wait
        self._refused = False
        self._closed = False
        self._threads: list[threading.Thread] = []

    @property
    def size(self) -> int:
        """Requests in the queue."""
        return len(self._queue)

    def offer(self, exchange: Exchange) -> bool:
        """Queue a request. False: there is no room, and ``on_room`` will be called."""
        with self._changed:
            if len(self._queue) >= self._capacity:
                self._refused = True
                return False
            self._queue.append(exchange)
            if self._idle >= len(self._queue):
                self._changed.notify()
            elif len(self._threads) < self._max_threads and not self._closed:
                thread = threading.Thread(
                    target=self._run, name=f"{self._name}-io-{len(self._threads)}", daemon=True
                )
                self._threads.append(thread)
                thread.start()
        return True

    def _run(self) -> None:
        while (exchange := self._next_exchange()) is not None:
            exchange.begun_ns = self._now_ns()
            exchange.run(self._handler, self._memory)
            exchange.ended_ns = self._now_ns()
            del exchange  # what it holds should not live until the next one comes

    def _next_exchange(self) -> Exchange | None:
        with self._changed:
            while not self._queue:
                if self._closed:
                    return None
                self._idle += 1
                self._changed.wait()
                self._idle -= 1
            exchange = self._queue.popleft()
            notify, self._refused = self._refused, False
        if notify:
            self._on_room()
        return exchange

    def close(self, timeout_s: float) -> None:
        """Drop the queued requests and wait for the threads, which finish the requests they have.

        Args:
            timeout_s: a handler that takes longer is left alone.
        """
        with self._changed:
            self._closed = True
            dropped = list(self._queue)
            self._queue.clear()
            self._changed.notify_all()
            threads = list(self._threads)
        for exchange in dropped:
            if exchange.reserved:
                self._memory.release(exchange.reserved)
        for thread in threads:
            thread.join(timeout_s)
            if thread.is_alive():
                logger.error("thread %s does not end; it is left alone", thread.name)
