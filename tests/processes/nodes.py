"""A cluster of processes: an engine, brokers, and a relay on every way between them.

What a test starts here ends with it, also if the test is killed. What the processes had to say is
in their directory.
"""

from __future__ import annotations

import ctypes
import http.client
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import confluent_kafka as ck
import psutil
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from checkpoints.types import TopicPartition
from tests.processes.clock import MovedClock, build
from tests.processes.relay import STRANGER, Relay, Way
from tests.support.until import patience, until
from tests.zookeeper.server import ZooKeeperServer

ROOT = Path(__file__).resolve().parents[2]
ENGINE = "engine"
CHROOT = "logstore"
SERVE = (sys.executable, "-m", "logstore", "serve")
BROKERS = 3
SESSION_MS = 3000
CONTROLLER_S = 5.0
"""How long the engine may take to say who is the controller."""
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_LIBC = ctypes.CDLL(None)

CONFIG: Mapping[str, object] = {
    "zookeeper.session.timeout.ms": SESSION_MS,
    "min.insync.replicas": 2,
    "default.replication.factor": BROKERS,
    "offsets.topic.replication.factor": BROKERS,
    "offsets.topic.num.partitions": 4,
    "transaction.state.log.replication.factor": BROKERS,
    "transaction.state.log.min.isr": 2,
    "transaction.state.log.num.partitions": 4,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1000,
    "group.initial.rebalance.delay.ms": 0,
    "replica.lag.time.max.ms": 2000,
    "replica.socket.timeout.ms": 2000,
    "controller.socket.timeout.ms": 2000,
    "request.timeout.ms": 2000,
    "replica.fetch.backoff.ms": 100,
    "replica.high.watermark.checkpoint.interval.ms": 500,
    "log.message.timestamp.after.max.ms": 10**12,  # of brokers whose clock is moved back
}


SOON: Mapping[str, str | int] = {
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 500,
    "retry.backoff.ms": 50,
    "topic.metadata.refresh.interval.ms": 1000,
    "topic.metadata.refresh.fast.interval.ms": 50,
    "socket.timeout.ms": 3000,
    "log_level": 0,
}
"""Of clients, which shall hear soon of brokers that are gone."""


def free_port() -> int:
    """One that no connection takes by itself: it has to be free once more at each restart."""
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.SystemRandom().randrange(10_000, low)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def _end_with_parent() -> None:
    _LIBC.prctl(_DIE_WITH_PARENT, signal.SIGKILL)


class NodeFailed(Exception):
    """A broker did not do as told; the text holds the end of what it said."""


class Node:
    """One broker: its directory, its addresses, and the process, if it runs.

    Start it from a thread that lives as long as it: the kernel ends it with that thread.

    Args:
        command: of the process, without what depends on the node.
        coordinator: the URL of the engine, by way of the relay.
        host: where it listens; others than this machine reach it there if it is not loopback.

    Attributes:
        advertised_port: of the relay for other brokers; None: its own.
    """

    def __init__(
        self,
        broker_id: int,
        directory: Path,
        coordinator: str,
        config: Mapping[str, object],
        command: Collection[str] = SERVE,
        environment: Mapping[str, str] | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        self.broker_id = broker_id
        self.host = host
        self.directory = directory
        self.coordinator = coordinator
        self.config = dict(config)
        self.environment = dict(environment or {})
        self.log_file = directory.parent / f"{directory.name}.log"
        self.client_port, self.inner_port = free_port(), free_port()
        self.advertised_port: int | None = None
        self.ready: dict[str, Any] = {}
        self.starts = 0
        self._command = tuple(command)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def name(self) -> str:
        return f"broker-{self.broker_id}"

    @property
    def address(self) -> str:
        return f"{self.host}:{self.client_port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} does not run"
        return self._process.pid

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def command(self) -> list[str]:
        inner = self.advertised_port or self.inner_port
        config = {
            "inter.broker.listener.name": "INTERNAL",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INTERNAL:PLAINTEXT",
            "advertised.listeners": f"PLAINTEXT://{self.address},INTERNAL://{self.host}:{inner}",
            **self.config,
        }
        return [
            *self._command,
            f"--broker-id={self.broker_id}",
            f"--coordinator={self.coordinator}",
            f"--dir={self.directory}",
            f"--listen=PLAINTEXT://{self.address},INTERNAL://{self.host}:{self.inner_port}",
            f"--http={self.host}:0",
            *(() if self.host == "127.0.0.1" else ("--allow-plaintext",)),
            "--json",
            *(f"--config={key}={value}" for key, value in config.items()),
        ]

    def launch(self) -> None:
        """Start the process, and do not wait."""
        assert not self.runs
        self.starts += 1
        self.ready = {}
        self.directory.parent.mkdir(parents=True, exist_ok=True)
        process = subprocess.Popen(
            self.command(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self.directory.parent,
            env={**os.environ, "PYTHONPATH": str(ROOT), **self.environment},
            preexec_fn=_end_with_parent,
        )
        self._process = process
        for read in (self._read, self._log):
            threading.Thread(target=read, args=(process,), daemon=True).start()

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with process.stdout as lines:
            for line in lines:
                if process is self._process and line.startswith(b"{"):
                    self.ready = json.loads(line)

    def _log(self, process: subprocess.Popen[bytes]) -> None:
        """What it says, with seconds of one clock for all nodes."""
        assert process.stderr is not None
        with self.log_file.open("ab", buffering=0) as log, process.stderr as lines:
            log.write(b"%9.2f start %d\n" % (time.monotonic() % 1e5, self.starts))
            for line in lines:
                log.write(b"%9.2f %s" % (time.monotonic() % 1e5, line))

    def start(self) -> None:
        """Start, and wait for its one line: it is in the cluster.

        Raises:
            NodeFailed: it ended.
        """
        self.launch()
        self.wait_for(lambda: bool(self.ready), "it is in the cluster")

    def wait_for(self, condition: Any, what: str) -> None:
        """
        Raises:
            NodeFailed: the process ended before that, or it took too long.
        """
        try:
            until(lambda: condition() or not self.runs, f"{self.name}: {what}")
        except AssertionError as error:
            raise NodeFailed(f"{error}\n{self.said()}") from None
        if not condition():
            code = None if self._process is None else self._process.returncode
            raise NodeFailed(f"{self.name} ended with {code}, before {what}:\n{self.said()}")

    def wait_until_ready(self) -> None:
        """Until it says that its replicas are in sync."""
        self.wait_for(lambda: self.get("/ready")[0] == 200, "its replicas are in sync")

    def get(self, path: str) -> tuple[int, bytes]:
        """Status and body of an HTTP request; 0 if there is no answer."""
        url = self.ready.get("http")
        if not url:
            return 0, b""
        connection = http.client.HTTPConnection(
            url.removeprefix("http://").rstrip("/"), timeout=2.0
        )
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException):
            return 0, b""
        finally:
            connection.close()

    def said(self, length: int = 4000) -> str:
        return self.log_file.read_text(errors="replace")[-length:] if self.log_file.exists() else ""

    # -- faults ------------------------------------------------------------------------------------

    def kill(self) -> None:
        """As a crash does."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """In order.

        Raises:
            NodeFailed: it did not end well.
        """
        code = self._end(signal.SIGTERM)
        if code:
            raise NodeFailed(f"{self.name} ended with {code}:\n{self.said()}")

    def _end(self, number: int) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(number)
        try:
            return process.wait(patience())
        except subprocess.TimeoutExpired:
            # Where it hangs is what somebody wants to know.
            process.send_signal(signal.SIGABRT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(5)
            process.kill()
            process.wait()
            raise NodeFailed(f"{self.name} did not end:\n{self.said()}") from None

    def pause(self) -> None:
        """Neither answer nor close connections; ``resume`` ends it."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    # -- what it holds -----------------------------------------------------------------------------

    def held(self) -> tuple[int, int]:
        """How many descriptors and threads it has."""
        process = psutil.Process(self.pid)
        return process.num_fds(), process.num_threads()

    def rss_mib(self) -> float:
        """Memory that is resident, in MiB."""
        return float(psutil.Process(self.pid).memory_info().rss) / (1 << 20)


class Nodes:
    """Engine, brokers and relay; a context manager, which starts engine and brokers.

    Every broker has ways of its own to the engine and to each other broker, all through the relay;
    clients reach it without one.

    Args:
        directory: for all files.
        config: of all brokers, beside ``CONFIG``.
    """

    def __init__(
        self,
        directory: Path,
        *,
        brokers: int = BROKERS,
        config: Mapping[str, object] | None = None,
        seed: int = 0,
        command: Collection[str] = SERVE,
        start: bool = True,
    ) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self.config = {**CONFIG, **(config or {})}
        self.engine = ZooKeeperServer(directory / "zookeeper")
        self.brokers: dict[int, Node] = {}
        self.clocks: dict[int, MovedClock] = {}
        self._seed, self._count, self._command = seed, brokers, command
        self._starts = start
        self._opened = ExitStack()
        self._admin: AdminClient | None = None

    def __enter__(self) -> Self:
        try:
            self._open()
        except BaseException:
            self._opened.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            error.add_note(f"what the processes said is in {self.directory}")
        self._opened.close()

    def _open(self) -> None:
        self._opened.enter_context(self.engine)
        self.relay = self._opened.enter_context(Relay(self._source_of, self._seed))
        library = build(self.directory)
        for broker_id in range(self._count):
            self._add(broker_id, library)
        self._opened.callback(self.kill_all)
        if self._starts:
            for node in self.brokers.values():
                node.launch()
            for node in self.brokers.values():
                node.wait_for(lambda n=node: bool(n.ready), "it is in the cluster")

    def _add(self, broker_id: int, library: Path | None) -> None:
        environment: Mapping[str, str] = {}
        if library is not None:
            clock = MovedClock(library, self.directory / f"clock-{broker_id}")
            self._opened.callback(clock.close)
            self.clocks[broker_id] = clock
            environment = clock.environment
        engine = self.relay.link(ENGINE, self.engine.port, source=f"broker-{broker_id}")
        node = Node(
            broker_id,
            self.directory / f"broker-{broker_id}",
            f"zookeeper://127.0.0.1:{engine.port}/{CHROOT}",
            self.config,
            self._command,
            environment,
        )
        node.advertised_port = self.relay.link(node.name, node.inner_port).port
        self.brokers[broker_id] = node

    def kill_all(self) -> None:
        for node in self.brokers.values():
            if node.runs:
                node.kill()

    def _source_of(self, port: int) -> str:
        """Which broker has a connection from this port."""
        for node in [*self.brokers.values()]:
            with suppress(psutil.Error, AssertionError):
                found = psutil.Process(node.pid).net_connections("tcp4")
                if any(each.laddr.port == port for each in found):
                    return node.name
        return STRANGER

    # -- ways --------------------------------------------------------------------------------------

    def ways(self, one: str, other: str) -> tuple[Way, Way]:
        """Both directions between two nodes."""
        return Way(one, other), Way(other, one)

    def all_ways(self, name: str) -> list[Way]:
        """All directions to and from one node."""
        others = [ENGINE, *(node.name for node in self.brokers.values())]
        return [way for other in others if other != name for way in self.ways(name, other)]

    # -- the cluster, as its clients see it --------------------------------------------------------

    @property
    def bootstrap(self) -> str:
        return ",".join(node.address for node in self.brokers.values())

    @property
    def admin(self) -> AdminClient:
        if self._admin is None:
            self._admin = AdminClient({**SOON, "bootstrap.servers": self.bootstrap})
        return self._admin

    def create_topic(
        self,
        topic: str,
        partitions: int,
        config: Mapping[str, object] | None = None,
        among: Collection[int] = (),
    ) -> list[TopicPartition]:
        """Create it on all brokers, or on some, and wait until all its replicas are in sync."""
        own = {key: str(value) for key, value in (config or {}).items()}
        if among:
            assignment = [sorted(among)] * partitions
            new = NewTopic(topic, partitions, replica_assignment=assignment, config=own)
        else:
            new = NewTopic(topic, partitions, self._count, config=own)

        def created() -> bool:
            try:
                self.admin.create_topics([new], request_timeout=5.0)[topic].result()
            except ck.KafkaException as error:
                return bool(error.args[0].code() == ck.KafkaError.TOPIC_ALREADY_EXISTS)
            return True

        until(created, f"{topic} is created")
        self.wait_until_whole([topic])
        return [TopicPartition(topic, p) for p in range(partitions)]

    def described(self, broker_id: int | None = None) -> dict[TopicPartition, Any]:
        """Leader and ISR of each partition as one broker, or any, says; empty without an answer."""
        try:
            if broker_id is None:
                found = self.admin.list_topics(timeout=5)
            else:
                address = self.brokers[broker_id].address
                client = AdminClient({**SOON, "bootstrap.servers": address})
                found = client.list_topics(timeout=5)
        except ck.KafkaException:
            return {}
        return {
            TopicPartition(name, number): partition
            for name, topic in found.topics.items()
            for number, partition in topic.partitions.items()
        }

    def leader(self, tp: TopicPartition) -> int:
        """The leader of a partition, as soon as there is one."""

        def found() -> tuple[int] | None:
            each = self.described().get(tp)
            return None if each is None or each.leader < 0 else (int(each.leader),)

        answer = until(found, f"{tp} has a leader")
        assert answer is not None
        return answer[0]

    def wait_until_whole(self, topics: Collection[str] = ()) -> float:
        """Until every partition has a leader and all replicas in sync; returns the seconds."""
        began = time.monotonic()

        def whole() -> bool:
            found = self.described()
            partitions = [each for tp, each in found.items() if not topics or tp.topic in topics]
            return set(topics) <= {tp.topic for tp in found} and all(
                each.leader >= 0 and len(each.isrs) == len(each.replicas) for each in partitions
            )

        until(whole, "all replicas are in sync")
        return time.monotonic() - began

    def leaders(self, broker_id: int | None = None) -> dict[TopicPartition, int]:
        """The leader of each partition, as ``described`` has it."""
        return {tp: int(each.leader) for tp, each in self.described(broker_id).items()}

    @property
    def controller(self) -> int:
        """Which broker the engine says is the controller; -1 without one.

        Raises:
            KazooTimeoutError: the engine does not answer.
        """
        from kazoo.client import KazooClient
        from kazoo.exceptions import NoNodeError

        client = KazooClient(self.engine.hosts)
        client.start(CONTROLLER_S)
        try:
            return int(json.loads(client.get(f"/{CHROOT}/controller")[0])["brokerid"])
        except NoNodeError:
            return -1
        finally:
            client.stop()
            client.close()

    @contextmanager
    def asleep(self, broker_id: int) -> Iterator[None]:
        """A broker is stopped by SIGSTOP, and wakes at the end, longer than its session lasts."""
        node = self.brokers[broker_id]
        node.pause()
        began = time.monotonic()
        try:
            yield
            self.outlive_sessions(began)
        finally:
            node.resume()

    def outlive_sessions(self, since: float | None = None) -> None:
        """Wait until the sessions of who has been silent since then, or from now on, have ended."""
        end = (time.monotonic() if since is None else since) + 1.5 * SESSION_MS / 1000
        until(lambda: time.monotonic() > end)

    # -- the end -----------------------------------------------------------------------------------

    def stop_all(self) -> None:
        for node in self.brokers.values():
            if node.runs:
                node.stop()

    def verify(self, *more: str) -> dict[str, Any]:
        """What ``logstore verify`` says of the directories, replicas compared.

        Raises:
            NodeFailed: it found something, or could not read.
        """
        command = [sys.executable, "-m", "logstore", "verify", "--json", *more]
        paths = [str(node.directory) for node in self.brokers.values()]
        done = subprocess.run(
            [*command, *paths],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        if done.returncode:
            raise NodeFailed(
                f"verify: {done.returncode}\n{done.stdout[-8000:]}{done.stderr[-2000:]}"
            )
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def put_back(self, broker_id: int, copy: Path) -> None:
        """An older copy in the place of a broker's directory; the broker must not run."""
        node = self.brokers[broker_id]
        assert not node.runs
        shutil.rmtree(node.directory)
        shutil.copytree(copy, node.directory)
