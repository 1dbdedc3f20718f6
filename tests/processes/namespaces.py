"""Brokers in network namespaces of their own: what the kernel does where a way is cut.

Packets vanish by blackhole routes, one direction at a time, and nobody acknowledges them: unlike
with the relay, a sender finds that out. It takes root.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.processes.nodes import CHROOT, SERVE, Node, Nodes

_numbers = itertools.count()


def unavailable() -> str | None:
    """Why there are no namespaces here; None if there are."""
    if os.geteuid() != 0:
        return "network namespaces take root"
    if shutil.which("ip") is None:
        return "ip (iproute2) is not on PATH"
    name = f"lsprobe{os.getpid()}"
    done = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if done.returncode:
        return f"no network namespaces: {done.stderr.strip()}"
    _ip("netns", "delete", name)
    return None


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


class NamespacedNodes(Nodes):
    """As ``Nodes``, each broker at an address of its own. The engine is behind a relay; brokers and
    clients reach each other over a bridge."""

    def _open(self) -> None:
        number = next(_numbers)
        self._key = f"ls{os.getpid() % 100_000}{number}"
        self._net = f"10.{200 + os.getpid() % 50}.{number % 250}"
        bridge = self._key
        _ip("link", "add", bridge, "type", "bridge")
        self._opened.callback(_ip, "link", "delete", bridge)
        _ip("address", "add", f"{self._net}.1/24", "dev", bridge)
        _ip("link", "set", bridge, "up")
        super()._open()

    def _add(self, broker_id: int, library: Path | None) -> None:
        space, inside, outside = (f"{self._key}{kind}{broker_id}" for kind in "nio")
        host = self.host(broker_id)
        _ip("netns", "add", space)
        self._opened.callback(_ip, "netns", "delete", space)
        _ip("link", "add", outside, "type", "veth", "peer", "name", inside, "netns", space)
        _ip("link", "set", outside, "master", self._key, "up")
        _ip("-n", space, "link", "set", "lo", "up")
        _ip("-n", space, "address", "add", f"{host}/24", "dev", inside)
        _ip("-n", space, "link", "set", inside, "up")
        self._spaces = {**getattr(self, "_spaces", {}), broker_id: space}
        engine = self.relay.link("engine", self.engine.port, f"broker-{broker_id}", self.host(None))
        self.brokers[broker_id] = Node(
            broker_id,
            self.directory / f"broker-{broker_id}",
            f"zookeeper://{self.host(None)}:{engine.port}/{CHROOT}",
            self.config,
            ("ip", "netns", "exec", space, *SERVE),
            host=host,
        )

    def host(self, broker_id: int | None) -> str:
        """The address of a broker; without one, of the engine and all clients."""
        return f"{self._net}.{1 if broker_id is None else 10 + broker_id}"

    @contextmanager
    def blackhole(self, broker_id: int, *to: int | None) -> Iterator[None]:
        """What a broker sends to these brokers, or to engine and clients (None), vanishes."""
        route = ("-n", self._spaces[broker_id], "route")
        for other in to:
            _ip(*route, "add", "blackhole", f"{self.host(other)}/32")
        _ip(*route, "flush", "cache")
        try:
            yield
        finally:
            for other in to:
                _ip(*route, "delete", "blackhole", f"{self.host(other)}/32")
