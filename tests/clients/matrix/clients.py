"""The clients of the matrix: what each can do, and how its driver is started."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.clients import toolchain
from tests.support.until import patience

DRIVERS = Path(__file__).resolve().parent / "drivers"
ALL_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

Step = Mapping[str, Any]
Answer = dict[str, Any]


class DriverFailed(Exception):
    """A driver ended with an error; the text has its last words."""


@dataclass(frozen=True)
class MatrixClient:
    """A client by name and version, with what it cannot do."""

    name: str
    cheap: bool = False
    """Whether its packages come in seconds, so that every run of the tests may fetch them."""
    codecs: tuple[str, ...] = ALL_CODECS
    lacks: frozenset[str] = frozenset()
    packages: tuple[str, ...] = ()

    def command(self, bootstrap: str, steps: Sequence[Step]) -> list[str]:
        """Return the command that carries out ``steps``; fetches what it needs.

        Raises:
            SuiteUnavailable: a tool or a registry is missing.
        """
        raise NotImplementedError

    def environment(self) -> Mapping[str, str]:
        return os.environ


class PythonClient(MatrixClient):
    """A client in Python, with an interpreter of its own."""

    def command(self, bootstrap: str, steps: Sequence[Step]) -> list[str]:
        python = toolchain.python_with(*self.packages)
        driver = DRIVERS / f"{self.name.partition(' ')[0].replace('-', '_')}_driver.py"
        return [str(python), str(driver), bootstrap, json.dumps(steps)]


class KcatClient(MatrixClient):
    """The command line of librdkafka, whose driver needs no package."""

    def command(self, bootstrap: str, steps: Sequence[Step]) -> list[str]:
        toolchain.tool("kcat")
        return [sys.executable, str(DRIVERS / "kcat_driver.py"), bootstrap, json.dumps(steps)]


class JavaClient(MatrixClient):
    """Kafka's own client, compiled against and run with its jars of one version."""

    def command(self, bootstrap: str, steps: Sequence[Step]) -> list[str]:
        jars = toolchain.java_classpath(*self.packages)
        source = DRIVERS / "JavaDriver.java"

        def build(directory: Path) -> None:
            javac = [toolchain.tool("javac"), "--release", "11", "-cp", jars, "-d", directory]
            toolchain.run([*javac, source], directory)

        recipe = "\n".join(self.packages) + source.read_text()
        classes = toolchain.built("java-driver", recipe, build)
        words = [",".join(f"{name}={_word(value)}" for name, value in s.items()) for s in steps]
        path = f"{classes}{os.pathsep}{jars}"
        options = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        return [toolchain.tool("java"), *options, "-cp", path, "JavaDriver", bootstrap, *words]


class NodeClient(MatrixClient):
    """A client in JavaScript."""

    def _modules(self) -> Path:
        def build(directory: Path) -> None:
            npm = [toolchain.tool("npm"), "install", "--silent", "--no-audit", "--no-fund"]
            toolchain.run([*npm, *self.packages], directory)

        return toolchain.built("node", "\n".join(self.packages), build) / "node_modules"

    def command(self, bootstrap: str, steps: Sequence[Step]) -> list[str]:
        node, driver = toolchain.tool("node"), DRIVERS / "kafkajs_driver.js"
        return [node, str(driver), bootstrap, json.dumps(steps)]

    def environment(self) -> Mapping[str, str]:
        warning = {"KAFKAJS_NO_PARTITIONER_WARNING": "1"}
        return {**os.environ, **warning, "NODE_PATH": str(self._modules())}


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


_LOGGER = "org.slf4j:slf4j-nop:1.7.36"
CLIENTS: tuple[MatrixClient, ...] = (
    PythonClient("confluent-kafka 2.16.1", True, packages=("confluent-kafka==2.16.1",)),
    PythonClient(
        "kafka-python 3.0.12",
        True,
        packages=(
            "kafka-python==3.0.12",
            "python-snappy==0.7.3",
            "lz4==4.4.4",
            "zstandard==0.25.0",
        ),
        # It forgets a request of a transaction whose coordinator goes away just then, and waits.
        lacks=frozenset({"transactions in crashes"}),
    ),
    PythonClient("aiokafka 0.14.0", True, packages=("aiokafka==0.14.0", "cramjam==2.11.0")),
    JavaClient("Java 4.3.1", packages=("org.apache.kafka:kafka-clients:4.3.1", _LOGGER)),
    JavaClient("Java 3.9.1", packages=("org.apache.kafka:kafka-clients:3.9.1", _LOGGER)),
    NodeClient("kafkajs 2.2.4", codecs=("none", "gzip"), packages=("kafkajs@2.2.4",)),
    # It ends itself when each broker was away once, though never all of them at a time.
    KcatClient("kcat", lacks=frozenset({"transactions", "admin", "timestamps", "patience"})),
)


@dataclass
class DriverProcess:
    """A driver that runs: its answers so far, in order."""

    client: MatrixClient
    process: subprocess.Popen[str]
    answers: list[Answer] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.more = threading.Condition()
        self._readers = [
            threading.Thread(target=self._collect, daemon=True),
            threading.Thread(target=self._listen, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def _collect(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self.more:
                self.answers.append(json.loads(line))
                self.more.notify_all()
        with self.more:
            self.more.notify_all()

    def _listen(self) -> None:
        assert self.process.stderr is not None
        self.errors.extend(self.process.stderr)

    def wait_for(self, count: int, kind: str) -> None:
        """Return when that many answers of a kind are there.

        Raises:
            DriverFailed: it ended, or was not that far in time.
        """

        def enough() -> bool:
            return sum(kind in answer for answer in self.answers) >= count

        with self.more:
            reached = self.more.wait_for(lambda: enough() or not self._running, patience())
        if not reached or not enough():
            self.process.kill()
            raise DriverFailed(f"{self.client.name}: too few answers {kind!r}; {self._words()}")

    @property
    def _running(self) -> bool:
        return self.process.poll() is None

    def stop(self) -> None:
        """End its input, which ends a group step that has no count."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def finish(self) -> list[Answer]:
        """Wait for its end and return all answers.

        Raises:
            DriverFailed: it failed, or did not end in time.
        """
        try:
            status = self.process.wait(2 * patience())
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise DriverFailed(f"{self.client.name}: did not end; {self._words()}") from None
        for reader in self._readers:
            reader.join(patience())
        if status != 0:
            raise DriverFailed(f"{self.client.name}: ended with {status}; {self._words()}")
        return self.answers

    def _words(self) -> str:
        return f"last answers {self.answers[-3:]}\n{''.join(self.errors)[-3000:]}"

    def close(self) -> None:
        """Kill it, if it runs."""
        if self._running:
            self.process.kill()
        self.process.wait()
        for reader in self._readers:
            reader.join(patience())
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


def start(client: MatrixClient, bootstrap: str, *steps: Step) -> DriverProcess:
    """Start a driver with these steps."""
    return DriverProcess(
        client,
        subprocess.Popen(
            client.command(bootstrap, steps),
            env=client.environment(),
            cwd=DRIVERS,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        ),
    )


def carry_out(client: MatrixClient, bootstrap: str, *steps: Step) -> list[Answer]:
    """Run steps to their end and return all answers."""
    process = start(client, bootstrap, *steps)
    try:
        return process.finish()
    finally:
        process.close()


def answered(answers: Sequence[Answer], kind: str) -> Iterator[Any]:
    """Give the values of one kind of answer, in order."""
    return (answer[kind] for answer in answers if kind in answer)
