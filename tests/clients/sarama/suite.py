"""sarama's own functional tests: five brokers, each behind a proxy that fails as it is told."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import Client, Listener
from pathlib import Path

from replication.server.serving import ServedCluster
from tests.clients import servers, toolchain
from tests.clients.go_suite import GoSuite
from tests.clients.suite import CaseResult
from tests.support.until import until

BROKERS = range(1, 6)
FIRST_PORT = 29091
TOXIPROXY = "github.com/Shopify/toxiproxy/v2@v2.5.0"
SETTINGS: Mapping[str, str | int] = {
    "default.replication.factor": 2,
    "offsets.topic.replication.factor": 2,
    "transaction.state.log.replication.factor": 2,
    "transaction.state.log.min.isr": 1,
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": 0,
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
}


class SaramaSuite(GoSuite):
    """Producers, members of groups, transactions and admin requests, while proxies break them off.

    The brokers listen at an address of their own and advertise those of the proxies. What the tests
    ask of ``docker compose`` is done to the brokers: ``stop`` and ``start``.
    """

    name = "sarama"
    module = "github.com/IBM/sarama"
    version = "1.61.1"
    tags = "functional"
    pinned = f"sarama {version}, with toxiproxy 2.5.0"
    quick = ()
    most_left_out = 5
    has_brokers = True

    def ready(self) -> bool:
        return super().ready() and toolchain.is_built("toxiproxy", TOXIPROXY)

    def prepare(self) -> None:
        def build(directory: Path) -> None:
            module, _, version = TOXIPROXY.partition("@")
            go = toolchain.tool("go")
            (directory / "go.mod").write_text("module scratch\n\ngo 1.24\n")
            toolchain.run([go, "get", f"{module}/cmd/server@{version}"], directory)
            toolchain.run([go, "build", "-o", "toxiproxy", f"{module}/cmd/server"], directory)

        super().prepare()
        self._toxiproxy = toolchain.built("toxiproxy", TOXIPROXY, build) / "toxiproxy"

    def is_case(self, source: str, function: str) -> bool:
        return source.startswith("//go:build functional")

    def environment_for(self, bootstrap: str) -> Mapping[str, str]:
        return self._environment

    def run(self, cases: Sequence[str], bootstrap: str, directory: Path) -> Iterator[CaseResult]:
        if bootstrap:
            raise toolchain.SuiteUnavailable("its tests stop and start brokers of ours")
        cluster = servers.counted_from_one(
            directory / "brokers",
            SETTINGS,
            len(BROKERS),
            listen="127.0.0.2",
            first_port=FIRST_PORT,
            advertise="127.0.0.1",
            racks={broker: str(broker) for broker in BROKERS},
        )
        with (
            cluster as brokers,
            self._proxies(directory) as proxies,
            _docker(brokers, directory) as path,
        ):
            self._environment = {
                "TOXIPROXY_ADDR": proxies,
                "KAFKA_VERSION": "4.3.1",
                "PATH": f"{path}{os.pathsep}{os.environ['PATH']}",
            }
            yield from super().run(cases, bootstrap, directory)

    @contextlib.contextmanager
    def _proxies(self, directory: Path) -> Iterator[str]:
        port = servers.free_run(1)
        url = f"http://127.0.0.1:{port}"
        with (directory / "toxiproxy.log").open("wb") as log:
            process = subprocess.Popen(
                [self._toxiproxy, "-host", "127.0.0.1", "-port", str(port)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            until(lambda: _ask(f"{url}/proxies"), "toxiproxy starts")
            for broker in BROKERS:
                at = FIRST_PORT - 1 + broker
                proxy = {"name": f"kafka{broker}", "enabled": True}
                proxy |= {"listen": f"127.0.0.1:{at}", "upstream": f"127.0.0.2:{at}"}
                if not _ask(f"{url}/proxies", proxy):
                    raise toolchain.SuiteUnavailable(f"toxiproxy cannot have the port {at}")
            yield url
        finally:
            process.terminate()
            process.wait()


def _ask(url: str, body: object = None) -> bool:
    """Whether an address answers."""
    data = None if body is None else json.dumps(body).encode()
    with contextlib.suppress(OSError), urllib.request.urlopen(url, data):
        return True
    return False


_DOCKER = """#!{python}
import sys
from multiprocessing.connection import Client
with Client({address!r}) as caller:
    caller.send(sys.argv[1:])
    said = caller.recv()
sys.exit(said)
"""


@contextlib.contextmanager
def _docker(cluster: ServedCluster, directory: Path) -> Iterator[Path]:
    """A program ``docker`` in a directory for ``PATH``: ``docker compose stop kafka-1``, or
    ``start``."""
    actions = {"stop": cluster.stop, "start": cluster.start}

    def act(words: list[str]) -> str | None:
        with contextlib.suppress(ValueError, KeyError):
            _, action, service = words
            actions[action](int(service.removeprefix("kafka-")))
            return None
        return f"there is no docker here: {words}"

    def serve_calls() -> None:
        while True:
            with listener.accept() as caller:
                words = caller.recv()
                if not words:
                    return
                caller.send(act(words))

    path = directory / "bin"
    path.mkdir()
    program = path / "docker"
    with Listener(str(path / "socket")) as listener:
        program.write_text(_DOCKER.format(python=sys.executable, address=listener.address))
        program.chmod(0o755)
        thread = threading.Thread(target=serve_calls, daemon=True)
        thread.start()
        try:
            yield path
        finally:
            with Client(listener.address) as caller:
                caller.send([])
            thread.join()
