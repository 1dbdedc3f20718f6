"""Bytes between the brokers of a simulation (X-120).

A request goes the way that it goes between processes: a lane writes it, its bytes are cut into
pieces at any place and arrive one by one, the connection of the other side makes a request of them,
the APIs decode it and ask the broker, and the answer comes back likewise. The network has its say
as ever: what it loses leaves a connection half-open until the sender gives up; what it resets ends
in the middle of a frame. Nothing arrives twice, because only messages of values can. Order holds on
a lane, and not between lanes.

Its choices come from a source of their own.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any, Protocol

from logstore.common.errors import LogstoreError
from replication.apis.brokers import BrokersApi
from replication.apis.common.config import ApisConfig
from replication.apis.controller_requests import OF_CONTROLLER, not_forwarding
from replication.apis.fetch import FetchApi
from replication.apis.kafka_apis import KafkaApis
from replication.apis.offsets import OffsetsApi
from replication.broker.broker import Broker
from replication.common.messages import Request, Response
from replication.common.transport import OnReply
from replication.network import (
    Answer,
    ConnectionInfo,
    Listener,
    NetworkConfig,
    Send,
)
from replication.network.connection import CLOSED, Connection, Rules
from replication.network.framing import SHARED_BYTES, FrameReader
from replication.network.limits import MemoryPool
from replication.network.metrics import CloseReason
from replication.protocol import ApiKey, parse_request_header
from replication.protocol import messages as wire
from replication.simulator.world.scheduler import Process, Scheduler
from replication.wire.calls import LANE_RULES, TRANSLATIONS
from replication.wire.lane import BrokerLane, LaneState, OpenCall

MAX_BYTES = 16 << 20  # of a frame
MAX_PIECES = 4
OLDER_RATE = 0.3  # the share of brokers that have the versions of an earlier release
OLDER = {ApiKey.FETCH: 15, ApiKey.LIST_OFFSETS: 7}  # the last ones there
LISTENER = Listener("BROKERS", is_inter_broker=True)


class Call(Protocol):
    """A call of the network; ``respond`` and ``lane`` are set here."""

    sender: Process
    receiver: int
    deadline_us: int
    respond: OnReply | None  # has the APIs answer
    lane: SimLane | None

    def finish(self, response: Response | None) -> None: ...


class Carrier(Protocol):
    """The part of the network that bytes need."""

    def travel(self, source: int, target: int) -> int | None:
        """When what leaves now arrives, µs; None for never."""
        ...

    def arrive(self, call: Any, request: Request) -> None:
        """Have the receiver carry a request out."""
        ...

    def process_of(self, node: int) -> Process | None:
        """The present process of a broker."""
        ...

    def fail_soon(self, call: Any) -> None: ...


class SimLane:
    """A lane with both of its ends."""

    def __init__(self, sender: Process, process: Process, in_flight: int, rules: Rules) -> None:
        self.sender, self.process = sender, process
        self.lane = BrokerLane(sender.name, None, in_flight)
        self.reader = FrameReader(MAX_BYTES)
        self.connection = Connection(ConnectionInfo(0, sender.name, 0, LISTENER), rules, 0)
        self.calls: dict[OpenCall, Call] = {}
        self.expected: deque[Call] = deque()  # of the requests that have not arrived
        self.latest_us = [0, 0]  # when the last bytes arrive: there, and back
        self.is_deaf = [False, False]  # nothing arrives any more
        self.tears = False  # the next answer is cut off


class _Front:
    """A broker as the APIs see it. What they ask it goes through the books of the network."""

    def __init__(self, broker: Broker, arrive: Callable[[Any, Request], None]) -> None:
        self._broker, self._arrive = broker, arrive
        self.call: Call | None = None  # whose request is being decoded

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)

    def handle(self, request: Request, reply: OnReply) -> None:
        call = self.call
        assert call is not None
        call.respond = reply
        self._arrive(call, request)


class Wire:
    """The lanes of all brokers.

    Args:
        seed: of all choices here.
    """

    def __init__(self, carrier: Carrier, scheduler: Scheduler, seed: int) -> None:
        self._carrier, self._scheduler = carrier, scheduler
        self._random = random.Random(f"wire {seed}")
        self._lanes: dict[tuple[Process, int, Any], list[SimLane]] = {}
        self._fronts: dict[Process, tuple[_Front, KafkaApis, bool]] = {}
        self._shared = memoryview(bytearray(SHARED_BYTES))

    def serve(self, process: Process, broker: Broker) -> None:
        """Let a broker be reached in its present life."""
        front: Any = _Front(broker, self._carrier.arrive)
        of_clients = dict.fromkeys(OF_CONTROLLER, lambda *asked: None)
        apis = KafkaApis(
            FetchApi(front, ApisConfig()).handlers,
            OffsetsApi(front).handlers,
            BrokersApi(front, lambda received, respond: None).handlers,
            not_forwarding(front, of_clients),
            is_ready=lambda: broker.metadata.is_complete,
        )
        for earlier in [each for each in self._fronts if each.node == process.node]:
            del self._fronts[earlier]
        self._fronts[process] = front, apis, self._random.random() < OLDER_RATE

    def carries(self, call: Call, request: Request) -> bool:
        """Whether a request goes as bytes: one of a broker to another one, of a kind that is served
        here."""
        process = self._carrier.process_of(call.receiver)
        if call.sender.node < 0 or call.sender.node == call.receiver or process not in self._fronts:
            return False
        translation = TRANSLATIONS.get(type(request))
        return translation is not None and translation.api_key in self._fronts[process][1].served

    # -- the sender ----------------------------------------------------------------------------

    def send(self, call: Call, request: Request) -> None:
        translation = TRANSLATIONS[type(request)]
        rule = LANE_RULES[translation.purpose]
        pool = self._lanes.setdefault((call.sender, call.receiver, translation.purpose), [])
        best = min(pool, key=lambda each: each.lane.load, default=None)
        if best is None or (not best.lane.is_idle and len(pool) < rule.lanes):
            process = self._carrier.process_of(call.receiver)
            assert process is not None
            best = SimLane(call.sender, process, rule.in_flight, self._rules(process))
            pool.append(best)
            best.lane.connected()
        open_call = OpenCall(request, translation, call.finish, call.deadline_us)
        best.calls[open_call] = call
        best.expected.append(call)
        call.lane = best
        best.lane.call(open_call)
        if best.process is not self._carrier.process_of(call.receiver):
            self._carrier.fail_soon(call)
        else:
            self._flush(best)

    def _rules(self, process: Process) -> Rules:
        served = self._fronts[process][1].served
        return Rules(
            NetworkConfig(),
            MemoryPool(-1, lambda: None),
            parse_request_header,
            lambda key, version, listener: version in served.get(ApiKey(key), ()),
        )

    def _flush(self, sim: SimLane) -> None:
        for open_call, error in sim.lane.release():
            if not isinstance(error, LogstoreError):
                raise error
            call = sim.calls.pop(open_call)
            sim.expected.remove(call)
            call.lane = None
            self._carrier.fail_soon(call)
        if sim.lane.out:
            data = b"".join(sim.lane.out)
            sim.lane.sent(len(data))
            self._carry(sim, 0, data)

    def expired(self, call: Call, now_us: int) -> None:
        """Its sender waits no longer: the lane ends, unless the request has not left."""
        sim = call.lane
        if sim is None:
            return
        if sim.lane.state is LaneState.READY:
            for open_call in sim.lane.expire(now_us):
                late = sim.calls.pop(open_call)
                sim.expected.remove(late)
                late.lane = None
                late.finish(None)
        if call.lane is sim:
            self.lose(sim)

    def lose(self, sim: SimLane) -> None:
        """End a lane, and all calls of it."""
        for pool in self._lanes.values():
            if sim in pool:
                pool.remove(sim)
        sim.is_deaf[1] = True
        lost = sim.lane.close()
        calls, sim.calls = sim.calls, {}
        for open_call in lost:
            calls[open_call].lane = None
            open_call.on_reply(None)

    def tear(self, call: Call, response: Response | None) -> None:
        """Cut the answer off in its middle, and reset the connection."""
        assert call.lane is not None
        assert call.respond is not None
        call.lane.tears = True
        call.respond(response)

    # -- bytes ---------------------------------------------------------------------------------

    def _carry(self, sim: SimLane, way: int, data: bytes) -> None:
        """Send bytes there (0) or back (1), in pieces that arrive one after the other."""
        if sim.is_deaf[way]:
            return
        ends = (sim.sender, sim.process)
        source, target = ends[way], ends[1 - way]
        at_us = self._carrier.travel(source.node, target.node)
        if at_us is None:
            sim.is_deaf[way] = True
            return
        now_us = self._scheduler.now_us
        begin_us = max(now_us, sim.latest_us[way])
        at_us = sim.latest_us[way] = max(at_us, begin_us)
        cuts = sorted(
            self._random.randrange(len(data) + 1) for _ in range(self._random.randrange(MAX_PIECES))
        )
        bounds = [0, *cuts, len(data)]
        pieces = [data[low:high] for low, high in pairwise(bounds)]
        take = (self._take_there, self._take_back)[way]
        label = f"{source.name}>{target.name} {len(data)} bytes"
        for number, piece in enumerate(pieces, 1):
            when_us = begin_us + (at_us - begin_us) * number // len(pieces)
            self._scheduler.at(when_us, target, label, partial(take, sim, piece))

    def _take_there(self, sim: SimLane, piece: bytes) -> None:
        connection, now_ms = sim.connection, self._scheduler.now_ms
        while piece and connection.state is not CLOSED:
            connection.make_room()
            count = self._fill(connection.reader, piece)
            connection.received(count, now_ms)
            piece = piece[count:]
            self._serve(sim)

    def _fill(self, reader: FrameReader, piece: bytes) -> int:
        window = reader.window(self._shared)
        count = min(len(window), len(piece))
        window[:count] = piece[:count]
        return count

    def _take_back(self, sim: SimLane, piece: bytes) -> None:
        while piece and sim.lane.state is not LaneState.CLOSED:
            count = self._fill(sim.reader, piece)
            for frame in sim.lane.frames(sim.reader, count):
                answered = sim.lane.received(frame)
                if answered is not None:
                    open_call, response = answered
                    sim.calls.pop(open_call).lane = None
                    open_call.on_reply(response)
            piece = piece[count:]
        if sim.lane.state is not LaneState.CLOSED:
            self._flush(sim)

    # -- the receiver --------------------------------------------------------------------------

    def _serve(self, sim: SimLane) -> None:
        """Carry out the next request, if it is whole and no other one is in process."""
        received = sim.connection.next_request(self._scheduler.now_us * 1000)
        if received is None:
            return
        front, apis, is_older = self._fronts[sim.process]
        number = sim.connection.number

        def respond(answer: Answer) -> None:
            self._respond(sim, number, answer)

        if received.api_key == ApiKey.API_VERSIONS and is_older:
            respond(received.answered(_older(apis)))
            return
        if received.api_key != ApiKey.API_VERSIONS:
            front.call = sim.expected.popleft()
        apis.handle(received, respond)
        front.call = None

    def _respond(self, sim: SimLane, number: int, answer: Answer) -> None:
        connection, now_ms = sim.connection, self._scheduler.now_ms
        connection.answer(answer, number, now_ms)
        if not isinstance(answer, Send):
            connection.close(CloseReason.REFUSED)
            self._reset(sim)
            return
        parts: Any = connection.outbox
        data = b"".join(parts)
        if sim.tears:
            self._carry(sim, 1, data[: self._random.randrange(len(data))])
            connection.close(CloseReason.REFUSED)
            self._reset(sim)
            return
        connection.sent(len(data), now_ms)
        self._carry(sim, 1, data)
        self._serve(sim)

    def _reset(self, sim: SimLane) -> None:
        """The other side hears of the end behind what was sent."""
        at_us = max(self._scheduler.now_us, sim.latest_us[1]) + 200
        label = f"{sim.process.name}>{sim.sender.name} reset"
        self._scheduler.at(at_us, sim.sender, label, partial(self.lose, sim))


def _older(apis: KafkaApis) -> wire.ApiVersionsResponse:
    """The versions of an earlier release."""
    kind = wire.ApiVersionsResponse
    return kind(
        api_keys=tuple(
            kind.ApiVersion(key, span.first, min(span.last, OLDER.get(key, span.last)))
            for key, span in sorted(apis.served.items())
        )
    )
