"""One real Kafka broker on loopback, and the procedure that makes it serve files we wrote."""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

import kafka_jars
import kafka_tools

from tests.support.until import patience, until

CLUSTER_ID = "bG9nc3RvcmUtaW50ZXJvcA"  # any 16 bytes in URL-safe base64
READY_LINES = ("Kafka Server started", "[KafkaServer id=1] started")  # KRaft, ZooKeeper
BIND_FAILURE = "failed to bind"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
PARTITION_METADATA = "partition.metadata"

START_ATTEMPTS = 3  # each with other ports: another process may take one before we listen on it


class BrokerFailed(Exception):
    """The broker did not do as told; the text names its log file and holds the end of it."""


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def replace_files(source: Path, target: Path) -> None:
    """Of a partition, by those of another one; it keeps the id of its topic."""
    for old in target.iterdir():
        if old.name != PARTITION_METADATA:
            old.unlink()
    for new in source.iterdir():
        if new.name != PARTITION_METADATA:
            shutil.copy2(new, target / new.name)


class KafkaBroker:
    """A broker that is its own KRaft controller, with one log directory, on 127.0.0.1.

    As a context manager it formats the directory if need be, starts, and stops cleanly; an
    exception inside kills it instead. It cannot outlive this process, however that ends.

    Args:
        directory: holds ``data`` (the log directory), ``server.properties`` and ``broker.log``.
            One directory may be used by several brokers one after the other.
        overrides: broker configs by Kafka's names, over those of ``properties``.
        heap: the JVM's ``-Xmx``.
        jvm_options: its others; by default those of a process that ends soon.
        pom: which Kafka.
    """

    def __init__(
        self,
        directory: Path,
        *,
        overrides: Mapping[str, str | int] | None = None,
        heap: str = "512m",
        jvm_options: Sequence[str] = kafka_jars.SHORT_JVM,
        pom: Path = kafka_jars.POM,
    ) -> None:
        self.directory = directory
        self.log_dir = directory / "data"
        self.log_file = directory / "broker.log"
        self._overrides = dict(overrides or {})
        self._jvm_options = (*jvm_options, f"-Xmx{heap}")  # the later -Xmx counts
        self._pom = pom
        self.ready_lines: Sequence[str] = READY_LINES
        self._ports = free_ports(2)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        """Address for clients; may change with each ``start``."""
        return f"127.0.0.1:{self._ports[0]}"

    @property
    def pid(self) -> int:
        """Of the process that runs."""
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def partition_dir(self, topic: str, partition: int = 0) -> Path:
        return self.log_dir / f"{topic}-{partition}"

    def properties(self) -> dict[str, str | int]:
        """Return the broker's configuration: small, and without surprises by the clock."""
        broker, controller = self._ports
        return {
            "process.roles": "broker,controller",
            "node.id": 1,
            "listeners": f"PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{broker}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "controller.listener.names": "CONTROLLER",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "log.dirs": str(self.log_dir),
            "auto.create.topics.enable": "false",
            # Records bear fixed timestamps years back, which retention would delete.
            "log.retention.ms": -1,
            # Room for two logs' buffers; the default of 128 MB would fill a small heap.
            "log.cleaner.dedupe.buffer.size": 8 * 1024 * 1024,
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "transaction.state.log.num.partitions": 1,
            "share.coordinator.state.topic.replication.factor": 1,
            "share.coordinator.state.topic.min.isr": 1,
            "share.coordinator.state.topic.num.partitions": 1,
            "group.initial.rebalance.delay.ms": 0,
            **self._overrides,
        }

    def _write_properties(self) -> Path:
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self.directory / "server.properties"
        lines = [f"{name}={value}\n" for name, value in self.properties().items()]
        path.write_text("".join(lines))
        return path

    def format(self) -> None:
        """Make the log directory that of an empty cluster; fails when it is formatted already."""
        kafka_jars.run_java(
            "kafka.tools.StorageTool",
            "format",
            "-t",
            CLUSTER_ID,
            "-c",
            str(self._write_properties()),
            pom=self._pom,
        )

    def start(self) -> None:
        """Start and return when the broker serves requests, after recovery of all its logs.

        Raises:
            BrokerFailed: it ended, or was not ready in time; it is not running then.
        """
        if self.running:
            raise BrokerFailed("already running")
        for attempt in range(1, START_ATTEMPTS + 1):
            output = self._launch()
            if output is None:
                return
            if BIND_FAILURE not in output or attempt == START_ATTEMPTS:
                raise self._failure("did not start")
            self._ports = free_ports(2)

    def _launch(self) -> str | None:
        """Start once; return ``None`` when ready, or what the broker wrote before it ended."""
        command = kafka_jars.java_command(
            f"{kafka_tools.PACKAGE}.GuardedBroker",
            str(self._write_properties()),
            classes=kafka_jars.helper_classes(),
            jvm_options=self._jvm_options,
            log_level="info",
            pom=self._pom,
        )
        with self.log_file.open("ab") as log:
            begin = log.tell()
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT
            )

        def said() -> str:
            with self.log_file.open("rb") as log:
                log.seek(begin)
                return log.read().decode(errors="replace")

        try:
            until(lambda: not self.running or any(line in said() for line in self.ready_lines))
        except AssertionError:
            self.kill()
            raise self._failure("was not ready in time") from None
        if self.running:
            return None
        self._reap()
        return said()

    def _failure(self, what: str) -> BrokerFailed:
        tail = self.log_file.read_text(errors="replace")[-4000:]
        return BrokerFailed(f"broker {what}, see {self.log_file}:\n{tail}")

    def _reap(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.wait()
            if process.stdin is not None:
                process.stdin.close()

    def stop(self) -> None:
        """Stop as an operator does, which leaves the marker of a clean shutdown.

        Raises:
            BrokerFailed: it did not end in time and was killed, or left no marker.
        """
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(patience())
        except subprocess.TimeoutExpired:
            self.kill()
            raise self._failure("did not stop in time") from None
        self._reap()
        if not (self.log_dir / CLEAN_SHUTDOWN).exists():
            raise self._failure("left no marker of a clean shutdown")

    def kill(self) -> None:
        """End with SIGKILL, as a crash of the process does; what it wrote stays in the files."""
        if self._process is not None:
            self._process.kill()
            self._reap()

    def create_topic(
        self, topic: str, partitions: int = 1, configs: Mapping[str, str | int] | None = None
    ) -> str:
        """Create ``topic`` and return its id."""
        step = kafka_tools.CreateTopic(topic, partitions, dict(configs or {}))
        return str(kafka_tools.produce(self.bootstrap, step)[0]["topicId"])

    def adopt(self, topic: str, partitions: Mapping[int, Path], *, unclean: bool = False) -> None:
        """Replace the files of partitions of a stopped broker by those of other directories.

        The order is: ``start``, ``create_topic``, ``stop``, ``adopt``, ``start``. The topic must
        exist, since the cluster's metadata names its id; of the old directory only
        ``partition.metadata`` stays, which holds that id. A high watermark of 0 in the broker's
        checkpoint does no harm: the only replica raises it to the log's end as it becomes leader.

        After the clean stop the broker trusts our indexes, epoch checkpoint and producer snapshots
        as they are. Batches may have any leader epoch; the broker goes on with its own, which is
        as a rule lower and then evicts ours from the epoch checkpoint.

        Args:
            partitions: directory whose files to copy, by partition.
            unclean: delete the marker of the clean shutdown and the recovery points, so that the
                broker recovers every log from its ``.log`` files and rebuilds all indexes.
        """
        if self.running:
            raise BrokerFailed("must be stopped before it adopts files")
        for partition, source in partitions.items():
            replace_files(source, self.partition_dir(topic, partition))
        if unclean:
            for name in (CLEAN_SHUTDOWN, RECOVERY_POINTS):
                (self.log_dir / name).unlink(missing_ok=True)

    def __enter__(self) -> KafkaBroker:
        if not (self.log_dir / "meta.properties").exists():
            self.format()
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.stop()
        else:
            self.kill()
