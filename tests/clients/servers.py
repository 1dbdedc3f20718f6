"""The broker under test: ours as a process of its own, or a real Kafka, behind one address."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Self

from replication.network import Listener
from replication.server.kafka_server import Exposure
from replication.server.serving import ServedCluster, serve
from tests.clients.suite import ClientSuite
from tests.clients.toolchain import SuiteUnavailable, interop_module
from tests.support.until import patience, until

ROOT = Path(__file__).resolve().parents[2]
READY = re.compile(r"^ready: ([^\s,]+)", re.MULTILINE)
USER, PASSWORD = "someone", "secret"

PROCESSES = 3
"""Brokers of ``processes``; what a suite creates has a replica on each unless it says otherwise."""

DEFAULTS: Mapping[str, str | int] = {
    "auto.create.topics.enable": "true",
    "num.partitions": 4,  # suites of others expect at least four
    "group.initial.rebalance.delay.ms": 0,
}


@contextlib.contextmanager
def running(
    server: str,
    directory: Path,
    settings: Mapping[str, str | int] | None = None,
    brokers: int = 1,
    has_login: bool = False,
) -> Iterator[str]:
    """Run a broker and give its bootstrap address.

    Args:
        server: ``logstore``, ``processes`` (each broker of ours in one of its own), ``kafka``, or
            the address of a broker that runs already.
        directory: for its files and logs.
        settings: broker settings by Kafka's names, over ``DEFAULTS``.
        brokers: of ours.
        has_login: whether ours wants ``USER`` and ``PASSWORD``, over SASL without TLS.
    Raises:
        SuiteUnavailable: this machine cannot run a real Kafka.
    """
    wanted = {**DEFAULTS, **(settings or {})}
    if server == "logstore":
        with ServedProcess(directory, wanted, brokers, has_login=has_login) as process:
            yield process.bootstrap
    elif server == "processes" and not has_login:
        replicated = {"default.replication.factor": PROCESSES, **wanted}
        with ServedProcess(directory, replicated, PROCESSES, apart=True) as process:
            yield process.bootstrap
    elif has_login:
        raise SuiteUnavailable("only a broker of ours is started with a login")
    elif server == "kafka":
        with _kafka(directory, wanted) as bootstrap:
            yield bootstrap
    else:
        yield server


def running_for(
    suite: ClientSuite, server: str, directory: Path
) -> contextlib.AbstractContextManager[str]:
    """``running``, as a suite wants it; no address for one that starts brokers of ours itself."""
    if suite.has_brokers and server == "logstore":
        return contextlib.nullcontext("")
    return running(server, directory, suite.settings, suite.brokers, suite.has_login)


@contextlib.contextmanager
def counted_from_one(
    directory: Path,
    settings: Mapping[str, str | int],
    brokers: int,
    *,
    listen: str,
    first_port: int,
    advertise: str,
    racks: Mapping[int, str] | None = None,
) -> Iterator[ServedCluster]:
    """Run brokers of ours in this process whose ids begin at 1, as some suites expect.

    Broker 0 is there too, and stopped.

    Args:
        listen: host of the listeners.
        first_port: that of broker 1; the next ones follow.
        advertise: host that clients are told.
        racks: by broker id.
    Raises:
        SuiteUnavailable: a port is taken.
    """
    try:
        cluster = serve(
            directory,
            brokers=1 + brokers,
            listeners=[Listener("PLAINTEXT", listen, first_port - 1)],
            config=settings,
            exposure=Exposure(advertise),
            racks=racks,
        )
    except OSError as error:
        raise SuiteUnavailable(f"ports from {first_port - 1} on: {error}") from None
    with cluster:
        cluster.stop(0)
        yield cluster


@contextlib.contextmanager
def _kafka(directory: Path, settings: Mapping[str, str | int]) -> Iterator[str]:
    broker, kafka_jars = interop_module("broker"), interop_module("kafka_jars")
    try:
        kafka_jars.helper_classes()
    except kafka_jars.KafkaUnavailable as error:
        raise SuiteUnavailable(f"no real Kafka: {error}") from None
    node = broker.KafkaBroker(directory / "kafka", overrides=settings)
    try:
        node.format()
        node.start()
        yield node.bootstrap
    finally:
        node.kill()


class ServedProcess:
    """``logstore serve`` as a process of its own. It may be killed and started again, at the same
    addresses with the same files.

    Args:
        directory: for its files and ``serve.log``.
        settings: broker settings by Kafka's names.
        has_login: whether it wants ``USER`` and ``PASSWORD``, over SASL without TLS.
        apart: each broker in a process of its own, as ``logstore cluster``.
    """

    def __init__(
        self,
        directory: Path,
        settings: Mapping[str, str | int],
        brokers: int = 1,
        *,
        has_login: bool = False,
        apart: bool = False,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        listen = f"127.0.0.1:{free_run(brokers)}"
        # As ``logstore serve``, in a source tree too that was never installed.
        name = "cluster" if apart else "serve"
        program = f"from replication.cli.{name} import {name}; {name}()"
        self._command = [sys.executable, "-c", program, "--dir", str(directory / "data")]
        self._command += ["--brokers", str(brokers)]
        if has_login:
            users = directory / "users"
            users.write_text(f"{USER}:{PASSWORD}\n")
            listen = f"SASL_PLAINTEXT://{listen}"
            self._command += ["--users", str(users)]
        self._command += ["--listen", listen]
        for key, value in settings.items():
            self._command += ["--config", f"{key}={value}"]
        self._log_file = directory / "serve.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.bootstrap = ""

    def start(self) -> None:
        """Start and return when all brokers are ready."""
        with self._log_file.open("wb") as log:
            process = self._process = subprocess.Popen(
                self._command,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

        def written() -> str:
            return self._log_file.read_text(errors="replace")

        until(
            lambda: process.poll() is not None or READY.search(written()), "logstore serve starts"
        )
        if process.poll() is not None:
            raise RuntimeError(f"logstore serve ended with {process.returncode}:\n{written()}")
        found = READY.search(written())
        assert found is not None
        self.bootstrap = found.group(1)

    def kill(self) -> None:
        """End it as ``kill -9`` does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """End it as an operator does, or kill it if that takes too long."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(patience())
            except subprocess.TimeoutExpired:
                self.kill()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *raised: object) -> None:
        self.stop()


def free_run(count: int) -> int:
    """The first of so many ports in a row that nobody listens on: brokers keep their addresses."""
    while True:
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError, OverflowError):
            first = 0
            for number in range(count):
                each = stack.enter_context(socket.socket())
                each.bind(("127.0.0.1", first + number if first else 0))
                first = first or each.getsockname()[1]
            return first
