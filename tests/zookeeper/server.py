"""One real ZooKeeper on loopback, from the jars that `logstore cluster` finds, or Maven's."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from types import TracebackType

from kazoo.client import KazooClient

from replication.supervisor.cluster_file import ServerPorts
from replication.supervisor.zookeeper import Jars, configuration, find_jars, server_command, serves
from tests.support.until import patience, until

MAVEN_COORDINATES = (
    "org.apache.zookeeper:zookeeper:3.9.3",
    # Its server needs these two, and its pom leaves them to whoever runs one.
    "io.dropwizard.metrics:metrics-core:4.1.12.1",
    "org.xerial.snappy:snappy-java:1.1.10.5",
)
CACHE = Path(__file__).resolve().parents[2] / ".cache" / "zookeeper"
TICK_MS = 100  # sessions of 200 ms and more, where the usual tick has 4 s
START_ATTEMPTS = 3  # each on another port: somebody may take one before the server listens

_POM = """<project><modelVersion>4.0.0</modelVersion>
<groupId>logstore.zookeeper</groupId><artifactId>zookeeper-classpath</artifactId><version>1</version>
<dependencies>{}</dependencies></project>
"""
_DEPENDENCY = """<dependency><groupId>{}</groupId><artifactId>{}</artifactId>
<version>{}</version></dependency>
"""


class ZooKeeperUnavailable(Exception):
    """This machine cannot run a ZooKeeper; the text says why, for a skip message."""


class ZooKeeperFailed(Exception):
    """The server did not do as told; the text holds the end of its log."""


@cache
def jars(timeout_s: float = 300) -> Jars:
    """The server's.

    Raises:
        ZooKeeperUnavailable: no Java, or neither this machine nor Maven has the jars.
    """
    if shutil.which("java") is None:
        raise ZooKeeperUnavailable("java is not on PATH")
    return find_jars(None, os.environ) or Jars("Maven", "", _from_maven(timeout_s))


def _from_maven(timeout_s: float) -> str:
    maven = shutil.which("mvn")
    dependencies = "".join(_DEPENDENCY.format(*each.split(":")) for each in MAVEN_COORDINATES)
    key = hashlib.sha256(dependencies.encode()).hexdigest()[:16]
    answer = CACHE / f"classpath-{key}.txt"
    if answer.exists() and all(Path(jar).exists() for jar in answer.read_text().split(os.pathsep)):
        return answer.read_text()
    if maven is None:
        raise ZooKeeperUnavailable("no jars are on this machine, and mvn is not on PATH")
    with tempfile.TemporaryDirectory(prefix="logstore-zookeeper-") as directory:
        pom, found = Path(directory, "pom.xml"), Path(directory, "classpath")
        pom.write_text(_POM.format(dependencies))
        goal = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:build-classpath"
        command = [maven, "-q", "-B", "-f", str(pom), goal, f"-Dmdep.outputFile={found}"]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=timeout_s, check=False
            )
        except subprocess.TimeoutExpired:
            reason = f"Maven did not resolve ZooKeeper within {timeout_s:.0f} s"
            raise ZooKeeperUnavailable(reason) from None
        if done.returncode != 0:
            reason = (done.stdout + done.stderr).strip()[:1000]
            raise ZooKeeperUnavailable(f"Maven could not resolve ZooKeeper: {reason}")
        CACHE.mkdir(parents=True, exist_ok=True)
        text = found.read_text()
        answer.write_text(text)
        return text


class ZooKeeperServer:
    """A standalone server. As a context manager it starts, and is killed at the end.

    Args:
        directory: holds the data, which a restart finds again, the configuration and the log.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.log_file = directory / "zookeeper.log"
        self.data = directory / "data"
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def hosts(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start, on the port of the last time if there was one, and wait until it serves.

        Raises:
            ZooKeeperUnavailable: as ``jars``.
            ZooKeeperFailed: it ended; it is not running then.
        """
        for _ in range(START_ATTEMPTS):
            process = self._launch(self.port or _free_port())
            try:
                until(lambda p=process: p.poll() is not None or self._serves(), "it serves")
            except BaseException:
                self.kill()
                raise
            if process.poll() is None:
                return
            self.kill()
            if self.port:
                break
        tail = self.log_file.read_text(errors="replace")[-4000:]
        raise ZooKeeperFailed(f"ZooKeeper did not start, see {self.log_file}:\n{tail}")

    def stop(self) -> None:
        """Stop in order."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Stop as a crash does."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Neither answer nor close connections, as a partitioned server; ``resume`` ends it."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        # On a busy machine its threads may go on for a while: wait until all have stopped.
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def put_back(self, copy: Path) -> None:
        """Restart with another copy of the data, as an operator who restores a backup."""
        self.kill()
        shutil.rmtree(self.data)
        shutil.copytree(copy, self.data)
        self.start()

    def expire(self, session_id: int, password: bytes) -> None:
        expire(self.hosts, session_id, password)

    def _launch(self, port: int) -> subprocess.Popen[bytes]:
        self.directory.mkdir(parents=True, exist_ok=True)
        config = self.directory / "zoo.cfg"
        config.write_text(configuration(str(self.data), ServerPorts(port), tick_ms=TICK_MS))
        self._candidate = port
        # No binding for slf4j is on the class path: what the server has to say goes to its death.
        command = server_command("java", jars(), str(config))
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )
        return self._process

    def _serves(self) -> bool:
        if not serves(self._candidate):
            return False
        self.port = self._candidate
        return True

    def _end(self, with_signal: int) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(with_signal)
            process.wait(patience())

    def __enter__(self) -> ZooKeeperServer:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()


def expire(hosts: str, session_id: int, password: bytes) -> None:
    """ZooKeeper's own way to test it: another client takes the session over and closes it."""
    thief = KazooClient(hosts, client_id=(session_id, password))
    thief.start(patience())
    thief.stop()
    thief.close()


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
