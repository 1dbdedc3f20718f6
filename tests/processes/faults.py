"""What happens to a cluster of processes, drawn by a seed: one fault after the other.

A fault strikes one broker, one way or the engine, and is mended after a drawn time. At most one
broker is out of reach at a time, so that every partition keeps two of its three replicas: only then
is there a bound for how long it may be away.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import Enum
from typing import NamedTuple

from tests.processes.nodes import ENGINE, Node, Nodes


class Kind(Enum):
    KILL = "kill -9"
    STOP = "an orderly stop"
    PAUSE = "SIGSTOP"
    CUT_ONE = "one direction is cut"
    CUT_BOTH = "both directions are cut"
    ISOLATE = "a broker is cut from the engine and all others"
    RESET = "all connections of a broker are reset"
    SLOW = "a broker's answers take their time"
    ENGINE = "kill -9 of the engine"
    CLOCK = "the wall clock is moved"

    @property
    def leaves_two(self) -> bool:
        """Whether a leader may go on beside the next one, and answer with what was (X-83)."""
        return self not in (Kind.KILL, Kind.STOP, Kind.RESET, Kind.ENGINE, Kind.CLOCK)


class Strike(NamedTuple):
    """A fault as it came.

    Attributes:
        target: a broker, a way, or the engine.
        seconds: until it is mended.
        blocks: whether a partition may be away for as long. Where a leader cannot reach the
            controller, nobody shrinks its ISR; if the controller is its follower, too, one cut way
            takes both from it.
    """

    kind: Kind
    target: str
    seconds: float
    blocks: bool = False

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.target}, {self.seconds:.1f} s"


Mend = Callable[[], None]


class Faults:
    """Draws and carries out.

    Args:
        longest_s: of a fault; SIGSTOP and cuts last from 1 s up to that.
        kinds: the weights of what is drawn.
    """

    WEIGHTS: Mapping[Kind, float] = {
        Kind.KILL: 4,
        Kind.STOP: 1,
        Kind.PAUSE: 4,
        Kind.CUT_ONE: 3,
        Kind.CUT_BOTH: 3,
        Kind.ISOLATE: 2,
        Kind.RESET: 1,
        Kind.SLOW: 1,
        Kind.ENGINE: 2,
        Kind.CLOCK: 2,
    }

    def __init__(
        self,
        nodes: Nodes,
        seed: int,
        longest_s: float = 30.0,
        weights: Mapping[Kind, float] | None = None,
    ) -> None:
        self.nodes = nodes
        self.rng = random.Random(seed)
        self._longest_s = longest_s
        self._weights = dict(weights or self.WEIGHTS)
        self._doers: Mapping[Kind, Callable[[], tuple[str, Mend]]] = {
            Kind.KILL: self._kill,
            Kind.STOP: self._stop,
            Kind.PAUSE: self._pause,
            Kind.CUT_ONE: self._cut_one,
            Kind.CUT_BOTH: self._cut_both,
            Kind.ISOLATE: self._isolate,
            Kind.RESET: self._reset,
            Kind.SLOW: self._slow,
            Kind.ENGINE: self._kill_engine,
            Kind.CLOCK: self._move_clock,
        }
        if not nodes.clocks:
            self._weights.pop(Kind.CLOCK, None)

    def draw(self) -> Kind:
        kinds = list(self._weights)
        return self.rng.choices(kinds, [self._weights[kind] for kind in kinds])[0]

    def strike(self, kind: Kind) -> tuple[Strike, Mend]:
        """Let it happen; the caller calls what mends it when its time is over."""
        seconds = self.rng.uniform(1.0, self._longest_s)
        if kind in (Kind.KILL, Kind.STOP, Kind.ENGINE, Kind.RESET):
            seconds = self.rng.uniform(0.0, min(10.0, self._longest_s))
        cuts = kind in (Kind.CUT_ONE, Kind.CUT_BOTH)
        controller = f"broker-{self._controller()}" if cuts else ""
        target, mend = self._doers[kind]()
        blocks = cuts and ENGINE not in target and controller in target
        return Strike(kind, target, seconds, blocks), mend

    def _controller(self) -> int:
        with suppress(Exception):  # the engine has none just now
            return self.nodes.controller
        return -1

    def _broker(self) -> Node:
        """The controller in a third of the cases, otherwise any."""
        nodes = self.nodes
        if self.rng.random() < 1 / 3 and (controller := self._controller()) >= 0:
            return nodes.brokers[controller]
        return self.rng.choice([*nodes.brokers.values()])

    def _kill(self) -> tuple[str, Mend]:
        node = self._broker()
        node.kill()
        return node.name, node.launch

    def _stop(self) -> tuple[str, Mend]:
        node = self._broker()
        node.stop()
        return node.name, node.launch

    def _pause(self) -> tuple[str, Mend]:
        node = self._broker()
        node.pause()
        return node.name, node.resume

    def _link(self) -> tuple[str, str]:
        names = [ENGINE, *(node.name for node in self.nodes.brokers.values())]
        one, other = self.rng.sample(names, 2)
        return one, other

    def _cut_one(self) -> tuple[str, Mend]:
        way, _ = self.nodes.ways(*self._link())
        self.nodes.relay.cut(way)
        return " -> ".join(way), lambda: self.nodes.relay.heal(way)

    def _cut_both(self) -> tuple[str, Mend]:
        ways = self.nodes.ways(*self._link())
        self.nodes.relay.cut(*ways)
        return " <-> ".join(ways[0]), lambda: self.nodes.relay.heal(*ways)

    def _isolate(self) -> tuple[str, Mend]:
        node = self._broker()
        ways = self.nodes.all_ways(node.name)
        self.nodes.relay.cut(*ways)
        return node.name, lambda: self.nodes.relay.heal(*ways)

    def _reset(self) -> tuple[str, Mend]:
        node = self._broker()
        self.nodes.relay.reset(*self.nodes.all_ways(node.name))
        return node.name, lambda: None

    def _slow(self) -> tuple[str, Mend]:
        node = self._broker()
        ways = [way for way in self.nodes.all_ways(node.name) if way.source == node.name]
        for way in ways:
            self.nodes.relay.delay(way, 0.2)

        def mend() -> None:
            for way in ways:
                self.nodes.relay.delay(way, 0.0)

        return node.name, mend

    def _kill_engine(self) -> tuple[str, Mend]:
        self.nodes.engine.kill()
        return ENGINE, self.nodes.engine.start

    def _move_clock(self) -> tuple[str, Mend]:
        broker_id = self.rng.choice([*self.nodes.clocks])
        # Less than the days after which a topic's records and a group's offsets are due.
        offset = self.rng.choice([-1, 1]) * 10 ** self.rng.uniform(0, 5.5)
        clock = self.nodes.clocks[broker_id]
        clock.set(offset)
        return f"broker-{broker_id} by {offset:+.0f} s", lambda: clock.set(0.0)


def rest(seconds: float, look: Callable[[], None]) -> None:
    """Wait, and look after the clients meanwhile."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        look()
        time.sleep(min(left, 0.5))
