"""A network thread: carries out the connections given to it (Kafka's ``Processor``).

A connection belongs to one network thread for its life. Other threads reach it only through the
inbox, which wakes the network thread if it sleeps.
"""

from __future__ import annotations

import heapq
import itertools
import select
import threading
from collections import deque
from collections.abc import Callable
from struct import Struct

from checkpoints.loggers import get_logger
from logstore.common.clock import Clock
from logstore.common.errors import LogstoreError
from replication.common.limited_log import LimitedLogger
from replication.network.connection import (
    CLOSED,
    DELAYED,
    IN_PROCESS,
    NEVER,
    READING,
    SENDING,
    STARVED,
    Connection,
    Rules,
)
from replication.network.framing import SHARED_BYTES
from replication.network.limits import QUICK_NS, SlowApis
from replication.network.metrics import CloseReason, ListenerMetrics, RequestMetrics
from replication.network.request_channel import Exchange, RequestChannel
from replication.network.requests import (
    Answer,
    ReceivedRequest,
    RequestHandler,
    Send,
)
from replication.network.spinning import Spin
from replication.network.transport_layer import (
    MAX_TURN_BYTES,
    PlaintextTransportLayer,
    TransportLayer,
)
from replication.network.wakeup import Wakeup

logger = get_logger(__name__)
limited = LimitedLogger(logger)

_READ = select.EPOLLIN
_WRITE = select.EPOLLOUT
_GONE = select.EPOLLHUP | select.EPOLLERR
_UNKNOWN = -1  # to epoll
_NOTHING = memoryview(b"")
_HEAD = Struct(">ihhi")  # of a request: size, API key, version, correlation id
_STALE_DEADLINES = 1000  # of closed connections, kept until there are more


class Channel:
    """A connection and its socket (Kafka's ``KafkaChannel``)."""

    __slots__ = (
        "connection",
        "descriptor",
        "due_ms",
        "exchange",
        "interest",
        "is_ready",
        "metrics",
        "transport",
    )

    def __init__(
        self, transport: TransportLayer, connection: Connection, metrics: ListenerMetrics
    ) -> None:
        self.transport, self.connection, self.metrics = transport, connection, metrics
        self.exchange: Exchange | None = None  # whose answer is on its way
        self.descriptor = transport.socket.fileno()
        self.interest = _UNKNOWN  # what epoll watches for
        self.due_ms = NEVER  # of its entry among the deadlines that counts
        self.is_ready = False  # it is in the list of those to be looked at without an event


class Processor:
    """One network thread.

    Args:
        is_quick: the handler usually answers such a request at once, so it runs here. If one takes
            long, those of its API go to the handler threads for a while.
        on_closed: called for each connection that was added, once it is closed.
    Attributes:
        metrics, listeners: what this thread has counted; listeners by name.
    """

    def __init__(
        self,
        name: str,
        rules: Rules,
        handler: RequestHandler,
        is_quick: Callable[[ReceivedRequest], bool],
        requests: RequestChannel,
        clock: Clock,
        on_closed: Callable[[Connection], None],
    ) -> None:
        self._rules = rules
        self._handler = handler
        self._is_quick = is_quick
        self._requests = requests
        self._now_ns = clock.monotonic_ns
        self._on_closed = on_closed
        self.metrics = RequestMetrics()
        self.listeners: dict[str, ListenerMetrics] = {}
        self._channels: dict[int, Channel] = {}
        self._inbox: deque[Callable[[], None] | tuple[Exchange, Answer]] = deque()
        self._ready: deque[Channel] = deque()
        self._timeout_s: float | None = None  # of the next poll
        self._starved: dict[Channel, None] = {}  # they wait for room in memory, or in the queue
        self._unqueued: deque[Exchange] = deque()  # for which the queue had no room
        self._deadlines: list[tuple[int, int, Channel]] = []
        self._tie = itertools.count()
        self._shared = memoryview(bytearray(SHARED_BYTES))
        self._slow = SlowApis()  # of those that are quick otherwise
        self._stopping = False
        self._stopped = False
        self._ended = False  # the thread
        self._sleeping = False
        self._epoll = select.epoll()
        self._wakeup = Wakeup(self._epoll)
        self._spin = Spin(self._epoll, clock.monotonic_ns)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    # ----------------------------------------------------------------------- from any thread

    def start(self) -> None:
        self._thread.start()

    def add(self, transport: TransportLayer, connection: Connection) -> None:
        self._post(lambda: self._register(transport, connection))

    def deliver(self, exchange: Exchange, answer: Answer) -> None:
        exchange.answered_ns = self._now_ns()
        self._inbox.append((exchange, answer))
        if self._sleeping or self._ended:
            self._rouse()

    def resume(self) -> None:
        """Tell the thread that there is room in memory or in the queue again."""
        self._post(self._feed)

    def stop(self) -> None:
        """Close quiet connections now, the others once they are answered; then end the thread."""
        self._post(self._begin_stop)

    def abort(self) -> None:
        """Close everything now."""
        self._post(self._close_all)

    def discard(self) -> None:
        """Give back the descriptors of a thread that was never started."""
        self._wakeup.close()
        self._epoll.close()

    def disown(self) -> None:
        """In a forked child, close the copies of the descriptors. A shutdown, or an entry that is
        taken out of epoll, would end what the parent serves."""
        for channel in self._channels.values():
            channel.transport.socket.close()
        self.discard()

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for the thread. Returns whether it has ended."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _post(self, item: Callable[[], None]) -> None:
        self._inbox.append(item)
        if self._sleeping or self._ended:
            self._rouse()

    def _rouse(self) -> None:
        if self._sleeping:
            self._sleeping = False
            self._wakeup.set()
        elif self._ended:
            self._drain()  # it comes after the end, and nobody else would release its files

    # --------------------------------------------------------------------------------- the loop

    def _run(self) -> None:
        try:
            while not self._stopped:
                self._turn()
        except BaseException:
            logger.exception("a network thread failed")
            raise
        finally:
            self._close_all()
            self._ended, self._sleeping = True, False
            self._drain()
            self.discard()

    def _turn(self) -> None:
        spin, is_busy = self._spin, self._inbox or self._ready
        events = spin.look(self._inbox) if spin.is_due and not is_busy else None
        if not events:
            self._sleeping = True
            # The flag is set before the inbox is looked at, so any later post wakes the poll.
            events = self._epoll.poll(0 if self._inbox or self._ready else self._timeout_s)
            self._sleeping = False
            if spin.is_due and not is_busy:
                spin.woken()
        for descriptor, event in events:
            if descriptor == self._wakeup.descriptor:
                self._wakeup.clear()
                continue
            channel = self._channels.get(descriptor)
            if channel is not None:
                self._guarded(self._on_event, channel, event)
                if self._inbox:
                    self._drain()
        if self._inbox:
            self._drain()
        for _ in range(len(self._ready)):
            channel = self._ready.popleft()
            channel.is_ready = False
            if channel.connection.state is READING:
                self._guarded(self._on_event, channel, _READ)
            if self._inbox:
                self._drain()
        self._timeout_s = self._expire() if self._deadlines else None
        if self._stopping and not self._channels:
            self._stopped = True

    def _drain(self) -> None:
        inbox = self._inbox
        while inbox:
            try:
                item = inbox.popleft()
            except IndexError:  # two late answers at the end
                return
            if isinstance(item, tuple):
                self._take_answer(*item)
            else:
                item()

    def _guarded(self, react: Callable[[Channel, int], None], channel: Channel, event: int) -> None:
        """Run a step of one connection. Its failure closes it and no other."""
        try:
            react(channel, event)
        except OSError as error:
            logger.debug("connection %d is gone: %s", channel.connection.info.id, error)
            self._close(channel, CloseReason.CLIENT)
        except LogstoreError as error:
            info = channel.connection.info
            logger.info("closing connection %d from %s: %s", info.id, info.peer_host, error)
            self._close(channel, CloseReason.REFUSED)
        except Exception:
            limited.exception("closing connection %d", channel.connection.info.id)
            self._close(channel, CloseReason.FAILURE)

    # --------------------------------------------------------------------------- one connection

    def _register(self, transport: TransportLayer, connection: Connection) -> None:
        metrics = self.listeners.setdefault(connection.info.listener.name, ListenerMetrics())
        metrics.opened += 1
        channel = Channel(transport, connection, metrics)
        if self._stopping or self._ended:
            self._discard(channel, CloseReason.SHUTDOWN)
            return
        self._channels[channel.descriptor] = channel
        self._guarded(self._update_channel, channel, 0)

    def _on_event(self, channel: Channel, event: int) -> None:
        state = channel.connection.state
        if state is READING:
            if self._read(channel):
                return
            if channel.connection.state is IN_PROCESS and channel.due_ms != NEVER:
                return  # it is looked at then, and with the answer
        elif state is SENDING:
            self._send(channel)
        elif event & _GONE:
            # epoll cannot mask this event. What the other side sent before it is still read.
            self._epoll.unregister(channel.descriptor)
            channel.interest = _UNKNOWN
        else:
            self._watch(channel, 0)  # muted late: most clients send nothing before the answer
        self._update_channel(channel)

    def _read(self, channel: Channel) -> bool:
        """Receive once at most and take one request at most, so that others have their turn.

        True: nothing is left that epoll, the lists or the deadlines should know.
        """
        connection = channel.connection
        reader = connection.reader
        if reader.is_inside_frame:
            if self._next_request(channel, self._now_ns()) or not connection.may_receive:
                return False
            if reader.is_large and not connection.make_room():
                return False
        if self._unqueued and not reader.is_large:
            connection.starve()
            return False
        window = reader.window(self._shared)
        count = channel.transport.receive_into(window)
        now_ns = self._now_ns()
        channel.metrics.bytes_in += count or 0
        is_fresh = count and window is self._shared
        if is_fresh and self._took_fast_path(channel, window[:count], now_ns):
            return connection.state is READING and channel.interest == _READ
        connection.received(count or 0, now_ns // 1_000_000)
        if count == 0:
            connection.peer_ended()
        self._next_request(channel, now_ns, count or 0)
        return False

    def _took_fast_path(
        self, channel: Channel, frame: memoryview, now_ns: int, *, is_kept: bool = False
    ) -> bool:
        """Answer ``frame``, if it is a whole request with its length that a fast path takes.

        False if not: then nothing was done. A connection with TLS has no fast path, as its socket
        may hold bytes that nobody is told of.
        """
        connection, transport = channel.connection, channel.transport
        if len(frame) < _HEAD.size:
            return False
        size, key, version, correlation_id = _HEAD.unpack_from(frame)
        fast_path = self._rules.fast_paths.get(key)
        if (
            fast_path is None
            or size + 4 != len(frame)
            or size > connection.reader.max_size
            or not connection.info.is_logged_in
            or self._stopping
            or type(transport) is not PlaintextTransportLayer
            or self._slow.has(key, now_ns)
        ):
            return False
        answer = fast_path(frame, version, correlation_id, connection.info)
        if answer is None:
            return False
        if is_kept:
            connection.reader.drop_frame()
        answered_ns = self._now_ns()
        if answered_ns - now_ns > QUICK_NS or self._slow.strikes:
            self._slow.note(key, answered_ns - now_ns, answered_ns)
        sent = 0
        if type(answer) is bytes:
            sent = transport.send((answer,), 0) or 0
            channel.metrics.bytes_out += sent
            if sent == len(answer):
                sent_ns = self._now_ns()
                self.metrics.record_fast_path(key, version, now_ns, answered_ns, sent_ns)
                connection.served(sent_ns // 1_000_000)
                self._spin.is_due = True
                return True
        about = key, version, correlation_id, "", _NOTHING, connection.info, now_ns
        exchange = Exchange(self.deliver, channel, connection.begin(), ReceivedRequest(*about))
        exchange.ended_ns = exchange.answered_ns = answered_ns
        if isinstance(answer, bytes):
            self._take_answer(exchange, Send([memoryview(answer)[4:]]), sent)
        else:
            answer(exchange)
        return True

    def _next_request(self, channel: Channel, now_ns: int, refused_size: int = 0) -> bool:
        """Begin the next request, if it is whole. No fast path takes a frame of ``refused_size``:
        it is the one that was tried."""
        connection = channel.connection
        if self._rules.fast_paths:
            frame = connection.reader.whole_frame
            if (
                frame is not None
                and len(frame) != refused_size
                and self._took_fast_path(channel, frame, now_ns, is_kept=True)
            ):
                return True
        request = connection.next_request(now_ns)
        if request is None:
            return False
        reserved = connection.take_reservation()
        exchange = Exchange(self.deliver, channel, connection.number, request, reserved)
        key = request.api_key
        if self._is_quick(request) and not self._slow.has(key, now_ns):
            exchange.run(self._handler, self._rules.memory)
            exchange.ended_ns = end_ns = self._now_ns()
            if end_ns - now_ns > QUICK_NS or self._slow.strikes:
                self._slow.note(key, end_ns - now_ns, end_ns)
            return True
        if self._unqueued or not self._requests.offer(exchange):
            self._unqueued.append(exchange)
        return True

    def _take_answer(self, exchange: Exchange, answer: Answer, sent: int = 0) -> None:
        """``sent`` bytes of it have been handed to the socket, with its length."""
        channel = exchange.channel
        assert isinstance(channel, Channel)
        connection = channel.connection
        now_ns = self._now_ns()
        if not connection.answer(answer, exchange.number, now_ns // 1_000_000):
            if connection.state is not CLOSED:
                limited.error("a request of connection %d was answered twice", connection.info.id)
            return
        exchange.taken_ns, exchange.answer, channel.exchange = now_ns, answer, exchange
        state = connection.state
        if state is SENDING:
            if sent:
                connection.sent(sent, now_ns // 1_000_000)
            self._guarded(self._send_and_settle, channel, 0)
            return
        if state is not DELAYED:  # nothing is to be sent
            self._record(channel, now_ns)
        self._guarded(self._update_channel, channel, 0)

    def _send_and_settle(self, channel: Channel, event: int) -> None:
        self._send(channel)
        self._update_channel(channel)

    def _send(self, channel: Channel) -> None:
        """Send until the socket is full or the turn is over."""
        connection, transport = channel.connection, channel.transport
        left = MAX_TURN_BYTES
        while connection.state is SENDING and left > 0:
            count = transport.send(connection.outbox, connection.head_offset)
            if count is None:
                return
            left -= count
            channel.metrics.bytes_out += count
            now_ns = self._now_ns()
            connection.sent(count, now_ns // 1_000_000)
            if connection.state is not SENDING:
                self._record(channel, now_ns)

    def _record(self, channel: Channel, now_ns: int) -> None:
        """Count a request whose answer has left."""
        exchange, channel.exchange = channel.exchange, None
        assert exchange is not None
        self.metrics.record(exchange, now_ns)
        exchange.answer = None

    def _update_channel(self, channel: Channel, event: int = 0) -> None:
        """Bring epoll, the lists and the deadlines in line with the state."""
        connection = channel.connection
        if self._stopping and connection.is_quiet:
            connection.close(CloseReason.SHUTDOWN)
        state = connection.state
        if state is READING:
            if connection.reader.has_next or channel.transport.has_buffered:
                self._look_again(channel)
            self._watch(channel, _READ | _WRITE if channel.transport.wants_write else _READ)
        elif state is SENDING:
            self._watch(channel, _WRITE)
        elif state is CLOSED:
            self._close(channel, connection.close_reason)
            return
        elif state is STARVED:
            self._starved[channel] = None
            self._watch(channel, 0)
        due_ms = connection.deadline_ms()
        if due_ms < channel.due_ms:
            channel.due_ms = due_ms
            heapq.heappush(self._deadlines, (due_ms, next(self._tie), channel))

    def _watch(self, channel: Channel, interest: int) -> None:
        if channel.interest == interest:
            return
        if channel.interest == _UNKNOWN:
            self._epoll.register(channel.descriptor, interest)
        else:
            self._epoll.modify(channel.descriptor, interest)
        channel.interest = interest

    def _look_again(self, channel: Channel) -> None:
        if not channel.is_ready:
            channel.is_ready = True
            self._ready.append(channel)

    # ----------------------------------------------------------------------------- all of them

    def _expire(self) -> float | None:
        """Do what is due. Returns for how many seconds the next poll may wait."""
        deadlines, now_ms = self._deadlines, self._now_ns() // 1_000_000
        while deadlines and deadlines[0][0] <= now_ms:
            due_ms, _, channel = heapq.heappop(deadlines)
            if due_ms == channel.due_ms:
                channel.due_ms = NEVER
                self._guarded(self._on_deadline, channel, now_ms)
        if self._inbox:
            self._drain()
        if not deadlines:
            return None
        return max(0, deadlines[0][0] - now_ms) / 1000 + 0.001  # epoll counts whole ms

    def _on_deadline(self, channel: Channel, now_ms: int) -> None:
        connection = channel.connection
        before = connection.state
        connection.on_deadline(now_ms)
        if connection.state is CLOSED:
            logger.info(
                "connection %d from %s ran out of time while %s",
                connection.info.id,
                connection.info.peer_host,
                before.value,
            )
        if before is DELAYED and connection.state is not SENDING:  # nothing was to be sent
            self._record(channel, now_ms * 1_000_000)
        self._send(channel)
        self._update_channel(channel)

    def _feed(self) -> None:
        unqueued = self._unqueued
        while unqueued and self._requests.offer(unqueued[0]):
            unqueued.popleft()
        if unqueued:
            return
        starved, self._starved = self._starved, {}
        for channel in starved:
            channel.connection.feed()
            self._look_again(channel)

    def _begin_stop(self) -> None:
        self._stopping = True
        for channel in list(self._channels.values()):
            self._guarded(self._update_channel, channel, 0)

    def _close_all(self) -> None:
        self._stopping = True
        for channel in list(self._channels.values()):
            self._close(channel, CloseReason.SHUTDOWN)

    def _close(self, channel: Channel, reason: CloseReason) -> None:
        if self._channels.get(channel.descriptor) is not channel:
            return
        if channel.interest != _UNKNOWN:
            self._epoll.unregister(channel.descriptor)
            channel.interest = _UNKNOWN
        del self._channels[channel.descriptor]
        self._starved.pop(channel, None)
        channel.due_ms = NEVER
        if len(self._deadlines) > 2 * len(self._channels) + _STALE_DEADLINES:
            self._deadlines = [entry for entry in self._deadlines if entry[0] == entry[2].due_ms]
            heapq.heapify(self._deadlines)
        self._discard(channel, reason)

    def _discard(self, channel: Channel, reason: CloseReason) -> None:
        channel.connection.close(reason)
        channel.metrics.closed[channel.connection.close_reason] += 1
        channel.transport.close()
        self._on_closed(channel.connection)
