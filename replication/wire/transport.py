"""``TcpTransport``: the requests of a client, or of a broker, go to brokers over TCP and over TLS.

One thread does the I/O of all connections (X-57). A broker's address is looked up at each connect
and kept nowhere else: a broker may come back on another port (X-56). One that cannot be reached is
left alone for a pause that grows with its failures; a request that takes a new connection fails at
once meanwhile, and its sender knows when to try again.

Requests to one broker go by lanes, one or some for each purpose (X-51): an answer that waits for
records does not hold up another request, and what has to stay in order has a lane for itself.
"""

from __future__ import annotations

import errno
import os
import random
import select
import socket
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from checkpoints.loggers import get_logger
from logstore.common.clock import Clock, SystemClock
from logstore.common.errors import LogstoreError
from replication.common.addresses import address_of
from replication.common.errors import SaslAuthenticationError
from replication.common.limited_log import LimitedLogger
from replication.common.messages import MetadataResponse, Request, Response
from replication.common.runtime import Task, never_a_guest
from replication.common.transport import DEFAULT_TIMEOUT_MS, OnReply
from replication.network import framing, wakeup
from replication.network.tls import TlsTransportLayer
from replication.network.transport_layer import PlaintextTransportLayer, TransportLayer
from replication.wire.access import ClusterAccess, Peers
from replication.wire.calls import LANE_RULES, TRANSLATIONS, LanePurpose
from replication.wire.lane import BrokerLane, LaneError, LaneState, OpenCall

logger = get_logger(__name__)

NEVER_MS = 1 << 60
MAX_POLL_S = 3600  # the kernel has a bound
MAX_PROBE_S = 32_767  # the kernel's bound
MAX_GREETING_BYTES = 1 << 20  # of an answer before the first request is sent
WARN_FAILURES = 2  # in a row: the first one is its caller's to report
FIRST_BOOTSTRAP_ID = -1000  # downwards: stands for an address whose broker id is not known
_READ, _WRITE = select.EPOLLIN, select.EPOLLOUT


class _Node:
    """A broker at one address, or an address that was given for one.

    Attributes:
        is_former: the broker has another address by now, or none.
    """

    def __init__(self, node_id: int, host: str, port: int) -> None:
        self.id, self.host, self.port = node_id, host, port
        self.answers_at: Any = None  # of the addresses of its name
        self.lanes: list[_Channel] = []
        self.failures = self.retry_at_ms = 0
        self.is_former = False
        self.reason: LogstoreError | None = None  # of the last failure

    @property
    def address(self) -> str:
        return address_of(self.host, self.port)


class _Channel:
    """A lane and its socket."""

    def __init__(
        self, node: _Node, lane: BrokerLane, purpose: LanePurpose, max_bytes: int, now_ms: int
    ) -> None:
        self.node, self.lane, self.purpose = node, lane, purpose
        self.addresses: deque[tuple[Any, ...]] = deque()  # to be tried
        self.address: Any = None
        self.sock: socket.socket | None = None
        self.layer: TransportLayer | None = None
        self.max_bytes = max_bytes
        self.reader = framing.FrameReader(MAX_GREETING_BYTES, keeps_buffer=True)
        self.interest = -1  # what epoll watches for
        self.setup_by_ms = self.used_ms = now_ms
        self.setup_ms = self.idle_ms = 0


class TcpTransport:
    """A `Transport` of a client, or of a broker.

    Call ``close`` at the end: nothing is answered after it. ``on_reply`` is called on the thread of
    the transport, where it must not wait.

    Args:
        peers: of a broker. A client finds brokers by ``access`` and by what these name.
    """

    def __init__(
        self, access: ClusterAccess, clock: Clock | None = None, peers: Peers | None = None
    ) -> None:
        self._access, self._peers = access, peers
        self._owner = "client" if peers is None else f"broker-{peers.broker_id}"
        self._clock = clock or SystemClock()
        self._log = LimitedLogger(logger, self._clock)
        self._random = random.Random()
        self._bootstrap = [
            _Node(FIRST_BOOTSTRAP_ID - at, host, port)
            for at, (host, port) in enumerate(access.servers)
        ]
        self._nodes = {node.id: node for node in self._bootstrap}
        self._known: list[int] = []  # of the last metadata
        self._open: set[_Channel] = set()
        self._channels: dict[int, _Channel] = {}  # those with a socket, by descriptor
        self._inbox: deque[Callable[[], None]] = deque()
        self._due_ms: int | None = None  # of the first deadline, or earlier
        self._shared = memoryview(bytearray(framing.SHARED_BYTES))
        self._closing = False
        self._epoll = select.epoll()
        self._wakeup = wakeup.Wakeup(self._epoll)
        self._sleeping = False
        self._thread = threading.Thread(target=self._run, name=f"{self._owner}-io", daemon=True)
        self._thread.start()

    # -- from any thread -----------------------------------------------------------------------

    def send(
        self,
        broker_id: int,
        request: Request,
        on_reply: OnReply,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
    ) -> None:
        peers = self._peers
        if peers is not None and broker_id == peers.broker_id:
            peers.send_to_own(request, on_reply, timeout_ms)
            return
        translation = TRANSLATIONS.get(type(request))
        if translation is None:
            raise TypeError(f"{type(request).__name__} is not sent over a wire")
        if peers is not None and LANE_RULES[translation.purpose].hands_over:
            on_reply = partial(_hand_over, peers.hand_over, on_reply)
        self.call(broker_id, OpenCall(request, translation, on_reply), timeout_ms)

    def call(self, broker_id: int, call: OpenCall, timeout_ms: int) -> None:
        """As ``send`` to another broker. Without an answer the call says why."""
        call.deadline_ms = self._now_ms() + timeout_ms
        self._post(partial(self._send, broker_id, call))

    @property
    def bootstrap(self) -> list[int]:
        """Ids that stand for the addresses that were given."""
        return [node.id for node in self._bootstrap]

    def brokers(self) -> list[int]:
        """Those that may be asked for metadata: the known ones, and if none of them can be reached
        also the addresses that were given, because all brokers may have moved."""
        now_ms = self._now_ms()
        nodes = [self._nodes[each] for each in self._known]
        reachable = [node.id for node in nodes if not node.failures or node.retry_at_ms <= now_ms]
        if any(not node.failures for node in nodes):
            return reachable
        return [*reachable, *(node.id for node in self._bootstrap)]

    def set_addresses(self, brokers: Mapping[int, tuple[str, int]]) -> None:
        """Take the addresses of brokers, as the latest metadata name them."""
        self._post(partial(self._take_addresses, brokers))

    def failures(self) -> list[LogstoreError]:
        """Return why brokers cannot be reached now."""
        return [node.reason for node in [*self._nodes.values()] if node.reason is not None]

    def close(self) -> None:
        """Close all connections. What waits for an answer gets none. Idempotent."""
        self._closing = True
        self._post(_nothing)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def wake(self) -> None:
        """Look at the clock again. For tests, which move it by hand."""
        self._post(self._expire)

    def _now_ms(self) -> int:
        return self._clock.monotonic_ns() // 1_000_000

    def _post(self, task: Callable[[], None]) -> None:
        self._inbox.append(task)
        if self._sleeping:
            self._sleeping = False
            self._wakeup.set()

    # -- the loop ------------------------------------------------------------------------------

    def _run(self) -> None:
        never_a_guest()
        try:
            while not self._closing:
                self._turn()
        except BaseException:
            logger.exception("the network thread of %s failed", self._owner)
            raise
        finally:
            for channel in [*self._open]:
                self._shut(channel)
            self._wakeup.close()
            self._epoll.close()

    def _turn(self) -> None:
        self._sleeping = True
        # The flag is set before the inbox is looked at, so any later post wakes the poll.
        timeout_s = -1.0
        if self._inbox:
            timeout_s = 0
        elif self._due_ms is not None:
            timeout_s = min(MAX_POLL_S, max(0, self._due_ms - self._now_ms()) / 1000)
        events = self._epoll.poll(timeout_s)
        self._sleeping = False
        for descriptor, event in events:
            if descriptor == self._wakeup.descriptor:
                self._wakeup.clear()
            elif (channel := self._channels.get(descriptor)) is not None:
                self._guarded(channel, partial(self._io, channel, event))
        while self._inbox:
            try:
                self._inbox.popleft()()
            except Exception:  # an error of ours, which must not end the thread
                logger.exception("a task of %s failed", self._owner)
        if self._due_ms is not None and self._due_ms <= self._now_ms():
            self._expire()

    def _guarded(self, channel: _Channel, step: Callable[[], None]) -> None:
        """Run a step of one connection. Its failure closes it and no other."""
        try:
            step()
        except (OSError, LogstoreError) as error:
            self._lose(channel, error)
        except Exception as error:  # an error of ours: the other connections go on
            logger.exception("a connection to %s failed", channel.node.address)
            self._lose(channel, error)

    def _due(self, at_ms: int) -> None:
        if self._due_ms is None or at_ms < self._due_ms:
            self._due_ms = at_ms

    def _expire(self) -> None:
        """Give up what took too long, and close what is not used."""
        now_ms, self._due_ms = self._now_ms(), None
        for channel in [*self._open]:
            lane = channel.lane
            if lane.state is LaneState.READY:
                for call in lane.expire(now_ms):
                    _fail(call, LaneError(f"{channel.node.address}: it is busy with others"))
            deadlines = [call.deadline_ms for call in lane.open_calls()]
            is_ready = lane.state is LaneState.READY
            if not is_ready:
                if channel.setup_by_ms <= now_ms and channel.layer is None and channel.addresses:
                    channel.setup_by_ms = now_ms + channel.setup_ms
                    self._guarded(channel, partial(self._next_address, channel, errno.ETIMEDOUT))
                    if lane.state is LaneState.CLOSED:
                        continue
                deadlines.append(channel.setup_by_ms)
            idle_at_ms = channel.used_ms + channel.idle_ms
            if deadlines and min(deadlines) <= now_ms:
                # An answer that comes later must not be taken for another's.
                what = "does not answer in time" if is_ready else "cannot be reached in time"
                self._lose(channel, LaneError(f"it {what}"))
            elif lane.is_idle and idle_at_ms <= now_ms:
                self._shut(channel)
            else:
                self._due(min([*deadlines, idle_at_ms] if lane.is_idle else deadlines))

    # -- requests ------------------------------------------------------------------------------

    def _send(self, broker_id: int, call: OpenCall) -> None:
        try:
            node = self._node(broker_id)
        except Exception as error:  # of whoever knows the addresses
            logger.exception("the address of broker %d is not found", broker_id)
            _fail(call, LaneError(f"the address of broker {broker_id} is not found: {error}"))
            return
        if node is None:
            _fail(call, LaneError(f"there is no broker {broker_id}"))
            return
        channel = self._channel_for(node, call.translation.purpose)
        if channel is None or channel.lane.state is LaneState.CLOSED:
            _fail(call, node.reason)
            return
        self._due(call.deadline_ms)
        channel.used_ms = self._now_ms()
        channel.lane.call(call)
        if channel.lane.state is LaneState.READY:
            self._guarded(channel, partial(self._flush, channel))

    def _node(self, broker_id: int) -> _Node | None:
        if self._peers is not None:
            self._set_address(broker_id, self._peers.find(broker_id))
        return self._nodes.get(broker_id)

    def _release(self, channel: _Channel) -> None:
        """Write the requests whose turn it is."""
        node = channel.node
        for call, error in channel.lane.release():
            reason = LaneError(f"{node.address}: {error}")
            node.reason = reason
            if not isinstance(error, LogstoreError):
                logger.error("a request cannot be written", exc_info=error)
            elif not call.reports_failure:
                about = node.id, call.translation.api_key
                self._log.warning("%s cannot be asked: %s", node.address, error, about=about)
            _fail(call, reason)

    def _channel_for(self, node: _Node, purpose: LanePurpose) -> _Channel | None:
        """An idle lane, a new one, or the one that has least to do. None while the broker is left
        alone."""
        rule, now_ms, access = LANE_RULES[purpose], self._now_ms(), self._access
        fitting = [each for each in node.lanes if each.purpose is purpose]
        best = min(fitting, key=lambda each: each.lane.load, default=None)
        if best is not None and (best.lane.is_idle or len(fitting) >= rule.lanes):
            return best
        if node.failures and now_ms < node.retry_at_ms:
            return best
        greeting = None if access.greet is None else access.greet()
        lane = BrokerLane(access.client_id, greeting, rule.in_flight)
        is_fetch = purpose is LanePurpose.FETCH
        max_bytes = access.max_fetch_bytes if is_fetch else rule.max_response_bytes
        channel = _Channel(node, lane, purpose, max_bytes, now_ms)
        # Less by a random part: lanes do not end all at once, nor while the broker ends them.
        idle_ms = int(access.idle_ms * self._random.uniform(0.9, 1))
        channel.idle_ms = idle_ms if access.idle_ms >= 0 else NEVER_MS
        channel.setup_ms = int(access.setup_timeout.delay_ms(node.failures + 1, self._random))
        channel.setup_by_ms += channel.setup_ms
        node.lanes.append(channel)
        self._open.add(channel)
        self._due(channel.setup_by_ms)
        self._guarded(channel, partial(self._look_up, channel))
        return channel

    def _look_up(self, channel: _Channel) -> None:
        """Find the addresses of a name, on a thread of its own where that may take long."""
        node = channel.node

        def look_up(flags: int = 0) -> None:
            found: Any
            try:
                found = socket.getaddrinfo(
                    node.host, node.port, type=socket.SOCK_STREAM, flags=flags
                )
            except (OSError, UnicodeError) as error:  # the latter for a..b, which is no name
                if flags:
                    raise
                found = error
            self._post(lambda: self._looked_up(channel, found))

        try:
            look_up(socket.AI_NUMERICHOST)
        except (OSError, UnicodeError):
            threading.Thread(target=look_up, name=f"{self._owner}-dns", daemon=True).start()

    def _looked_up(self, channel: _Channel, found: Any) -> None:
        if channel not in self._open:
            return  # given up meanwhile
        if isinstance(found, Exception):
            text = found.strerror if isinstance(found, OSError) else str(found)
            self._lose(channel, LaneError(f"the name cannot be found: {text}"))
            return
        # The one that answered before comes first: another may take its time each time.
        channel.addresses = deque(
            sorted(found, key=lambda each: each[-1] != channel.node.answers_at)
        )
        self._guarded(channel, lambda: self._connect(channel))

    def _connect(self, channel: _Channel) -> None:
        """Begin to connect to the next address."""
        family, kind, protocol, _, address = channel.addresses.popleft()
        channel.address = address
        sock = channel.sock = socket.socket(family, kind, protocol)
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._notice_silence(sock)
        code = sock.connect_ex(address)
        if code not in (0, errno.EINPROGRESS):
            self._next_address(channel, code)
            return
        self._channels[sock.fileno()] = channel
        self._watch(channel, _WRITE)

    def _notice_silence(self, sock: socket.socket) -> None:
        """End the connection if the other side vanishes, also while nothing is sent (X-55)."""
        silence_ms = self._access.silence_ms
        probe_s = max(1, silence_ms // 3000)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, silence_ms)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, min(probe_s, MAX_PROBE_S))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, min(probe_s, MAX_PROBE_S))

    def _next_address(self, channel: _Channel, code: int) -> None:
        self._unwatch(channel)
        if not channel.addresses:
            raise OSError(code, os.strerror(code))
        self._connect(channel)

    # -- one connection ------------------------------------------------------------------------

    def _io(self, channel: _Channel, event: int) -> None:
        if channel.layer is None:
            assert channel.sock is not None
            code = channel.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                self._next_address(channel, code)
                return
            channel.node.answers_at = channel.address
            self._begin(channel)
        elif event & ~_WRITE or channel.layer.wants_write:
            self._receive(channel)
        self._flush(channel)

    def _begin(self, channel: _Channel) -> None:
        """Speak over a socket that is connected."""
        context, sock, lane = self._access.context, channel.sock, channel.lane
        assert sock is not None
        if context is None:
            channel.layer = PlaintextTransportLayer(sock)
            lane.connected()
            return
        # The certificate has to be for the name that was asked for.
        name = channel.node.host
        channel.layer = TlsTransportLayer(sock, context, lambda _: lane.connected(), name)
        channel.sock = channel.layer.socket
        self._receive(channel)

    def _receive(self, channel: _Channel) -> None:
        layer, reader = channel.layer, channel.reader
        assert layer is not None
        while True:
            count = layer.receive_into(reader.window(self._shared))
            if count is None:
                reader.received(0)
            else:
                for frame in channel.lane.frames(reader, count):
                    self._receive_frame(channel, frame)
            if not layer.has_buffered:
                return

    def _receive_frame(self, channel: _Channel, frame: memoryview) -> None:
        lane, node = channel.lane, channel.node
        answered = lane.received(frame)
        channel.used_ms = self._now_ms()
        if answered is None:
            if lane.state is LaneState.READY:
                channel.reader.max_size = channel.max_bytes
            return
        # Not before: what can do no more than greet is left alone for longer each time.
        node.failures, node.reason = 0, None
        call, response = answered
        if isinstance(response, MetadataResponse) and self._peers is None:
            live = [each.registration for each in response.brokers]
            self._take_addresses({each.broker_id: (each.host, each.port) for each in live})
        _answer(call, response)

    def _flush(self, channel: _Channel) -> None:
        """Send what fits into the socket, and watch for what is needed next."""
        layer, lane = channel.layer, channel.lane
        assert layer is not None
        self._release(channel)
        while lane.out:
            count = layer.send(lane.out, lane.head_offset)
            if count is None:
                break
            for call, response in lane.sent(count):
                _answer(call, response)
        if lane.is_idle and lane.state is LaneState.READY:
            if channel.node.is_former:
                self._shut(channel)
                return
            self._due(channel.used_ms + channel.idle_ms)
        self._watch(channel, _READ | _WRITE if lane.out or layer.wants_write else _READ)

    def _watch(self, channel: _Channel, interest: int) -> None:
        if interest != channel.interest:
            sock = channel.sock
            assert sock is not None
            change = self._epoll.register if channel.interest == -1 else self._epoll.modify
            change(sock.fileno(), interest)
            channel.interest = interest

    def _unwatch(self, channel: _Channel) -> None:
        """Close the socket."""
        sock, layer, channel.sock, channel.layer = channel.sock, channel.layer, None, None
        if sock is None:
            return
        self._channels.pop(sock.fileno(), None)
        channel.interest = -1
        with suppress(OSError):
            (layer or sock).close()

    def _shut(self, channel: _Channel) -> list[OpenCall]:
        """Close a connection. Returns the requests without an answer."""
        self._open.discard(channel)
        self._unwatch(channel)
        if channel in channel.node.lanes:
            channel.node.lanes.remove(channel)
        return channel.lane.close()

    def _lose(self, channel: _Channel, error: Exception) -> None:
        """Close a connection that failed. If nothing was under way, its broker only tidied up."""
        node, lane = channel.node, channel.lane
        was_idle = lane.state is LaneState.READY and lane.is_idle
        # One of a login keeps its class, which ends more than this connection.
        kind = SaslAuthenticationError if isinstance(error, SaslAuthenticationError) else LaneError
        reason = kind(f"{node.address}: {lane.reason(error)}")
        calls = self._shut(channel)
        if not was_idle:
            node.failures += 1
            pause_ms = self._access.reconnect.delay_ms(node.failures, self._random)
            node.retry_at_ms = self._now_ms() + max(1, int(pause_ms))
            node.reason = reason
            if node.failures == WARN_FAILURES and not all(each.reports_failure for each in calls):
                self._log.warning("%s; it is tried again", reason, about=node.id)
        for call in calls:
            _fail(call, reason)

    def _take_addresses(self, brokers: Mapping[int, tuple[str, int]]) -> None:
        """Take the addresses of brokers, as a client hears of them."""
        live = {broker_id: address for broker_id, address in brokers.items() if broker_id >= 0}
        for broker_id, address in live.items():
            self._set_address(broker_id, address)
        self._known = [*live] or self._known

    def _set_address(self, broker_id: int, address: tuple[str, int] | None) -> None:
        """Take the present address of a broker. Lanes to an earlier one end when they are idle."""
        node = self._nodes.get(broker_id)
        if node is not None:
            if (node.host, node.port) == address:
                return
            node.is_former = True
            del self._nodes[broker_id]
            for channel in [*node.lanes]:
                if channel.lane.is_idle:
                    self._shut(channel)
        if address is not None:
            self._nodes[broker_id] = _Node(broker_id, *address)


def _nothing() -> None:
    pass


def _hand_over(run: Callable[[Task], None], on_reply: OnReply, response: Response | None) -> None:
    run(partial(on_reply, response))


def _fail(call: OpenCall, reason: LogstoreError | None) -> None:
    call.failure = reason
    _answer(call, None)


def _answer(call: OpenCall, response: Response | None) -> None:
    try:
        call.on_reply(response)
    except Exception:
        logger.exception("the sender of a request failed over its answer")
