"""The network of a simulation: delays, losses, repetitions, cuts (the kinds of the group ``net``).

Each message travels alone. A request that is lost, or whose answer is lost, ends with None after
the sender's socket timeout. A request to a process that is down, or that dies, ends soon.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from logstore.format.header import HEADER_SIZE
from replication.common.messages import FetchResponse, Request, Response
from replication.common.transport import DEFAULT_TIMEOUT_MS, Handler, OnReply
from replication.simulator.world.scheduler import US_PER_MS, Event, Process, Scheduler
from replication.simulator.world.wire import SimLane, SimWire

SOCKET_TIMEOUT_MS = 500
Link = tuple[int, int]  # (from, to)


@dataclass(slots=True)
class Weather:
    """The present faults for messages. Rates are likelihoods for a single message."""

    delay_us: int = 400  # the longest delay of a message without faults
    rates: dict[str, float] = field(default_factory=dict)  # fault kind → rate
    cut: dict[Link, str] = field(default_factory=dict)  # → the fault kind
    clogged: dict[Link, int] = field(default_factory=dict)  # → until when, µs
    slow: dict[int, int] = field(default_factory=dict)  # node → additional µs for each answer to it
    held: dict[Link, int] = field(default_factory=dict)  # → when the last late one arrives, µs


class SimCall:
    """One request under way. It is answered exactly once while its sender lives.

    Attributes:
        lane: that carries its bytes; None once it does not, or if it goes as a value.
        respond: makes bytes of the answer.
    """

    __slots__ = (
        "deadline_us",
        "lane",
        "on_reply",
        "open",
        "receiver",
        "respond",
        "sender",
        "timeout",
    )

    def __init__(self, sender: Process, receiver: int, on_reply: OnReply) -> None:
        self.sender, self.receiver, self.on_reply = sender, receiver, on_reply
        self.open = True
        self.deadline_us = 0
        self.timeout: Event | None = None
        self.lane: SimLane | None = None
        self.respond: OnReply | None = None

    def finish(self, response: Response | None) -> None:
        if self.open:
            self.open = False
            if self.timeout is not None:
                self.timeout.cancel()
            self.on_reply(response)


class SimMessage(NamedTuple):
    """A request or an answer that is about to leave. ``go`` or ``lose`` may be called later."""

    source: int
    target: int
    content: Request | Response | None
    go: Callable[[Request | Response | None], None]  # sends the content, or a replacement
    lose: Callable[[], None]  # breaks the connection, which the sender notices


class Network:
    """Carries requests between processes. ``struck`` counts faults that really happened.

    Attributes:
        on_send: called with every request.
        on_repeat: called with every request that arrives twice.
        on_answer: called with every answer, its sender and the request.
        must_be_in_time: whether a request is dropped that arrives after its sender has given up.
        gate: decides for every message whether and when it leaves; None lets all leave at once.
        socket_timeout_ms: the longest wait for an answer.
        wire: carries requests between brokers as bytes; None if all go as values.
    """

    def __init__(self, scheduler: Scheduler, struck: Counter[str]) -> None:
        self.weather = Weather()
        self.gate: Callable[[SimMessage], None] | None = None
        self.on_send: Callable[[Process, int, Request], None] = lambda *sent: None
        self.on_repeat: Callable[[Request], None] = lambda request: None
        self.on_answer: Callable[[int, Request, Response | None], None] = lambda *answered: None
        self.must_be_in_time: Callable[[Request], bool] = lambda request: False
        self.socket_timeout_ms = SOCKET_TIMEOUT_MS
        self.wire: SimWire | None = None
        self._scheduler = scheduler
        self._struck = struck
        self._bound: dict[int, tuple[Process, Handler]] = {}
        self._open: dict[int, dict[SimCall, None]] = {}  # by receiver, in order of arrival
        self._latest_us: dict[Link, int] = {}

    def bind(self, process: Process, handler: Handler) -> None:
        self._bound[process.node] = (process, handler)
        self._open[process.node] = {}

    def unbind(self, node: int, *, silent: bool = False) -> None:
        """Note that a process is gone.

        Waiting senders notice it soon, or by a timeout if ``silent``.
        """
        self._bound.pop(node, None)
        calls = self._open.pop(node, {})
        if not silent:
            for call in calls:
                self.fail_soon(call)

    def reachable(self, node: int) -> bool:
        return node in self._bound

    def process_of(self, node: int) -> Process | None:
        """The present process of a broker."""
        return self._bound[node][0] if node in self._bound else None

    # -- faults --------------------------------------------------------------------------------

    @property
    def is_calm(self) -> bool:
        """Whether no fault is active, and no delayed message is still on its way."""
        weather, soon_us = self.weather, self._scheduler.now_us + self.weather.delay_us
        if weather.rates or weather.cut or weather.slow:
            return False
        links = (weather.clogged, weather.held, self._latest_us)
        return all(not late or max(late.values()) <= soon_us for late in links)

    def is_calm_between(self, one: int, other: int) -> bool:
        """As ``is_calm``, between two brokers."""
        weather, soon_us = self.weather, self._scheduler.now_us + self.weather.delay_us
        links = ((one, other), (other, one))
        return not weather.rates and not any(
            link in weather.cut
            or weather.clogged.get(link, 0) > soon_us
            or weather.held.get(link, 0) > soon_us
            or self._latest_us.get(link, 0) > soon_us
            or link[0] in weather.slow
            for link in links
        )

    def hold(self, message: SimMessage, delay_us: int) -> None:
        """Delay a message, so that later ones may pass it."""
        until_us = self._scheduler.now_us + delay_us
        self._note_late(message.source, message.target, until_us)
        label = f"late {type(message.content).__name__}"
        self._scheduler.at(until_us, None, label, lambda: message.go(message.content))

    def _note_late(self, source: int, target: int, until_us: int) -> None:
        held = self.weather.held
        held[source, target] = max(until_us, held.get((source, target), 0))

    def heal(self) -> None:
        self.weather = Weather(held=self.weather.held)  # messages on their way arrive

    def _hits(self, kind: str) -> bool:
        rate = self.weather.rates.get(kind, 0.0)
        if rate and self._scheduler.random.random() < rate:
            self._struck[kind] += 1
            return True
        return False

    def _late(self) -> int:
        """A delay that is usually short, and sometimes so long that the cluster has moved on."""
        scheduler = self._scheduler
        longest_ms = 2500 if scheduler.random.random() < 0.25 else 200
        return scheduler.below(longest_ms * US_PER_MS)

    def travel(self, source: int, target: int) -> int | None:
        """Draw the time at which a message that leaves now arrives; None for never."""
        weather, scheduler = self.weather, self._scheduler
        link = (source, target)
        at_us = scheduler.now_us + scheduler.below(weather.delay_us)
        if weather.cut and link in weather.cut:
            self._struck[weather.cut[link]] += 1
            return None
        if weather.rates:
            if self._hits("message-loss"):
                return None
            if self._hits("message-delay"):
                at_us += self._late()
        if weather.clogged:
            until = weather.clogged.get(link, 0)
            if until > at_us:
                self._struck["link-clog"] += 1
                at_us = until
        latest = self._latest_us.get(link, 0)
        if at_us < latest:
            if weather.rates.get("message-reorder"):
                self._struck["message-reorder"] += 1
                return at_us
            at_us = latest
        self._latest_us[link] = at_us
        return at_us

    # -- sending -------------------------------------------------------------------------------

    def send(
        self,
        sender: Process,
        receiver: int,
        request: Request,
        on_reply: OnReply,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
    ) -> None:
        scheduler = self._scheduler
        self.on_send(sender, receiver, request)
        call = SimCall(sender, receiver, on_reply)
        name = f"{sender.name}>{receiver} {type(request).__name__}"
        wait_us = min(timeout_ms, self.socket_timeout_ms) * US_PER_MS
        call.timeout = scheduler.after(
            wait_us, sender, f"{name} timed out", lambda: self._timed_out(call)
        )
        call.deadline_us = scheduler.now_us + wait_us
        if self.gate is None:
            self._leave(call, name, request)
        else:
            self.gate(
                SimMessage(
                    sender.node,
                    receiver,
                    request,
                    lambda content: self._leave(call, name, content),  # type: ignore[arg-type]
                    lambda: self.fail_soon(call),
                )
            )

    def _timed_out(self, call: SimCall) -> None:
        if self.wire is not None:
            self.wire.expired(call, self._scheduler.now_us)
        call.finish(None)

    def _leave(self, call: SimCall, name: str, request: Request) -> None:
        scheduler, receiver = self._scheduler, call.receiver
        if self.wire is not None and self.wire.carries(call, request):
            if call.open:  # else the lane has ended meanwhile that would have carried it
                self.wire.send(call, request)
            return
        at_us = self.travel(call.sender.node, receiver)
        if at_us is None:
            return
        if receiver not in self._bound:
            self.fail_soon(call)
            return
        process = self._bound[receiver][0]
        scheduler.at(at_us, process, name, lambda: self.arrive(call, request))
        if self.weather.rates and self._hits("message-twice"):
            self.on_repeat(request)
            again = at_us + self._late()
            self._note_late(call.sender.node, receiver, again)
            scheduler.at(again, process, f"{name} again", lambda: self.arrive(call, request))

    def arrive(self, call: SimCall, request: Request) -> None:
        if not call.open and self.must_be_in_time(request):
            return
        process, handler = self._bound[call.receiver]
        self._open[call.receiver][call] = None
        answered = False

        def reply(response: Response | None) -> None:
            nonlocal answered
            if answered:
                raise AssertionError(f"{type(request).__name__} was answered twice")
            answered = True
            self.on_answer(call.receiver, request, response)
            self._answer(call, process, response)

        handler(request, reply)

    def _answer(self, call: SimCall, process: Process, response: Response | None) -> None:
        if self._bound.get(call.receiver, (None,))[0] is not process:
            return
        self._open[call.receiver].pop(call, None)
        if not call.open:
            return
        if self.weather.rates:
            if self._hits("connection-reset"):
                if self.wire is not None and call.lane is not None:
                    self.wire.tear(call, response)
                else:
                    self.fail_soon(call)
                return
            if self._hits("half-open-peer"):
                return
        if self.gate is None:
            self._return(call, response)
        else:
            self.gate(
                SimMessage(
                    call.receiver,
                    call.sender.node,
                    response,
                    lambda content: self._return(call, content),  # type: ignore[arg-type]
                    lambda: self.fail_soon(call),
                )
            )

    def _return(self, call: SimCall, response: Response | None) -> None:
        at_us: int | None = self._scheduler.now_us
        if call.respond is None:
            at_us = self.travel(call.receiver, call.sender.node)
        if at_us is None:
            return
        if (
            self.weather.rates
            and _carries_records(response, call.sender.node)
            and self._hits("epoch-flip")
        ):
            assert isinstance(response, FetchResponse)
            response = with_flipped_header(response, self._scheduler.random)
        slow = self.weather.slow.get(call.sender.node)
        if slow:
            self._struck["slow-reader"] += 1
            at_us += slow
        label = f"{call.receiver}>{call.sender.name} {type(response).__name__}"
        if call.respond is None:
            self._scheduler.at(at_us, call.sender, label, lambda: call.finish(response))
        elif slow:
            respond, process = call.respond, self.process_of(call.receiver)
            self._scheduler.at(at_us, process, label, lambda: respond(response))
        else:
            call.respond(response)

    def fail_soon(self, call: SimCall) -> None:
        scheduler = self._scheduler
        delay_us = 200 + scheduler.below(1000)
        label = f"{call.receiver}>{call.sender.name} reset"
        scheduler.after(delay_us, call.sender, label, lambda: self._reset(call))

    def _reset(self, call: SimCall) -> None:
        if self.wire is not None and call.lane is not None:
            self.wire.lose(call.lane)
        call.finish(None)


def _carries_records(response: Response | None, node: int) -> bool:
    """Whether an answer has records for a follower, which can detect a flip. A consumer cannot."""
    return (
        node >= 0
        and isinstance(response, FetchResponse)
        and any(part.records for part in response.partitions)
    )


def with_flipped_header(response: FetchResponse, rng: random.Random) -> FetchResponse:
    """Flip one bit of the leader epoch of a batch, which the checksum does not cover, so that it
    exceeds every leader's. A lower epoch could not be detected, and neither could a higher base
    offset, since a compacted log has gaps.
    """
    parts = list(response.partitions)
    at = rng.choice([number for number, part in enumerate(parts) if part.records])
    data = bytearray(parts[at].batches)
    starts, position = [], 0
    while position + HEADER_SIZE <= len(data):
        starts.append(position)
        position += 12 + int.from_bytes(data[position + 8 : position + 12], "big")
    start = rng.choice(starts)
    data[start + rng.choice((12, 13, 14))] ^= 1 << rng.randrange(8)
    parts[at] = parts[at]._replace(records=bytes(data))
    return response._replace(partitions=tuple(parts))


class SimTransport:
    """The `Transport` of one process into the network."""

    def __init__(self, network: Network, process: Process) -> None:
        self._network, self._process = network, process

    def send(
        self,
        broker_id: int,
        request: Request,
        on_reply: Callable[..., None],
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
    ) -> None:
        self._network.send(self._process, broker_id, request, on_reply, timeout_ms)
