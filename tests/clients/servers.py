"""The broker under test: ours as a process of its own, or a real Kafka, behind one address."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.clients.suite import ClientSuite
from tests.clients.toolchain import SuiteUnavailable, interop_module
from tests.support.until import patience, until

ROOT = Path(__file__).resolve().parents[2]
READY = re.compile(r"\b(\d{1,3}(?:\.\d{1,3}){3}:\d+)\b")
USER, PASSWORD = "someone", "secret"

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
        server: ``logstore``, ``kafka``, or the address of a broker that runs already.
        directory: for its files and logs.
        settings: broker settings by Kafka's names, over ``DEFAULTS``.
        brokers: of ours.
        has_login: whether ours wants ``USER`` and ``PASSWORD``, over SASL without TLS.
    Raises:
        SuiteUnavailable: this machine cannot run a real Kafka.
    """
    wanted = {**DEFAULTS, **(settings or {})}
    if server == "logstore":
        with _logstore(directory, wanted, brokers, has_login) as bootstrap:
            yield bootstrap
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
    """``running``, as a suite wants it."""
    return running(server, directory, suite.settings, suite.brokers, suite.has_login)


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


@contextlib.contextmanager
def _logstore(
    directory: Path, settings: Mapping[str, str | int], brokers: int, has_login: bool
) -> Iterator[str]:
    directory.mkdir(parents=True, exist_ok=True)
    # As ``logstore serve``, in a source tree too that was never installed.
    program = "from replication.cli.serve import serve; serve()"
    command = [sys.executable, "-c", program, "--dir", str(directory / "data")]
    command += ["--brokers", str(brokers)]
    if has_login:
        users = directory / "users"
        users.write_text(f"{USER}:{PASSWORD}\n")
        command += ["--listen", "SASL_PLAINTEXT://127.0.0.1:0", "--users", str(users)]
    else:
        command += ["--listen", "127.0.0.1:0"]
    for name, value in settings.items():
        command += ["--config", f"{name}={value}"]
    log_file = directory / "serve.log"
    with log_file.open("wb") as log:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        yield _address(process, log_file)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(patience())
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _address(process: subprocess.Popen[bytes], log_file: Path) -> str:
    def written() -> str:
        return log_file.read_text(errors="replace")

    until(lambda: process.poll() is not None or READY.search(written()), "logstore serve starts")
    if process.poll() is not None:
        raise RuntimeError(f"logstore serve ended with {process.returncode}:\n{written()}")
    found = READY.search(written())
    assert found is not None
    return found.group(1)
