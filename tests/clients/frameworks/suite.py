"""Kafka Streams, Connect and MirrorMaker, unmodified: each promises more than one request can.

A case feeds a framework, kills it or brokers in the middle, and compares what is there in the end.
"""

from __future__ import annotations

import functools
import os
import signal
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import confluent_kafka as ck
from confluent_kafka.admin import AdminClient, NewTopic

from checkpoints.types import TopicPartition
from replication.server.serving import ServedCluster, serve
from tests.clients import servers, toolchain
from tests.clients.scripted import ProgramFailed, Script, ScriptedSuite, equal, script
from tests.support.until import patience, until

VERSION = "4.3.1"
HERE = Path(__file__).resolve().parent
LOG_SETTINGS = toolchain.INTEROP / "kafka" / "log4j2.properties"
JARS = (
    *(
        f"org.apache.kafka:{name}:{VERSION}"
        for name in ("kafka-streams", "connect-runtime", "connect-mirror", "connect-file")
    ),
    "org.apache.logging.log4j:log4j-slf4j-impl:2.25.4",
)
BROKERS = 3
REPLICATED: Mapping[str, str | int] = {
    "default.replication.factor": BROKERS,
    "min.insync.replicas": 2,
    "group.initial.rebalance.delay.ms": 0,
    "replica.lag.time.max.ms": 2000,
}
CRASHES = 6
WORDS = 30
CHUNK = 1500  # records that go in before the next thing happens

_SCRIPTS: dict[str, Script] = {}
_case = script(_SCRIPTS)


def _classes() -> Path:
    source, jars = HERE / "CountWords.java", toolchain.java_classpath(*JARS)

    def build(directory: Path) -> None:
        javac = [toolchain.tool("javac"), "--release", "17", "-cp", jars, "-d", str(directory)]
        toolchain.run([*javac, source], directory)

    return toolchain.built("frameworks", "\n".join(JARS) + source.read_text(), build)


class Program:
    """A Java program with the frameworks on its class path, and its log."""

    def __init__(self, directory: Path, main: str, *arguments: object) -> None:
        self._log = directory / f"{main.rpartition('.')[2]}.log"
        self._command = [
            *(toolchain.tool("java"), "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
            f"-Dlog4j2.configurationFile={LOG_SETTINGS.as_uri()}",
            "-Dlogstore.log.level=info",
            *("-cp", f"{_classes()}{os.pathsep}{toolchain.java_classpath(*JARS)}"),
            *(main, *map(str, arguments)),
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )

    def check(self) -> None:
        """Raise if it ended by itself."""
        assert self._process is not None
        if self._process.poll() is not None:
            tail = self._log.read_text(errors="replace")[-3000:]
            raise ProgramFailed(f"ended with {self._process.returncode}:\n{tail}")

    def end(self, how: signal.Signals = signal.SIGTERM) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            try:
                self._process.wait(patience())
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def kill(self) -> None:
        self.end(signal.SIGKILL)

    def __enter__(self) -> Program:
        self.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.end(signal.SIGKILL if raised[0] else signal.SIGTERM)


class Place:
    """A broker, and a directory for what a case leaves."""

    def __init__(self, bootstrap: str, directory: Path) -> None:
        self.bootstrap = bootstrap
        self.directory = directory

    def below(self, name: str) -> Path:
        directory = self.directory / name
        directory.mkdir()
        return directory


def _create(bootstrap: str, replicas: int, **partitions: int) -> None:
    topics = [NewTopic(name, count, replicas) for name, count in partitions.items()]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for made in admin.create_topics(topics).values():
        made.result(patience())


def _produce(bootstrap: str, topic: str, records: Iterable[Mapping[str, Any]]) -> None:
    """Write records, given as arguments of ``produce``: all are acknowledged, each is there once."""
    outcomes: set[object] = set()
    producer = ck.Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5}
    )
    for record in records:
        producer.produce(topic, on_delivery=lambda error, _: outcomes.add(error), **record)
    equal(0, producer.flush(patience()))
    equal({None}, outcomes)


def _read(bootstrap: str, topic: str, partitions: int) -> list[ck.Message]:
    """All that is committed in a topic now, partition by partition in order."""
    consumer = ck.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    left, records = set(range(partitions)), []
    consumer.assign([ck.TopicPartition(topic, number, 0) for number in left])

    def ended() -> bool:
        for message in consumer.consume(1000, 0.1):
            if message.error() is None:
                records.append(message)
            elif message.error().code() == ck.KafkaError._PARTITION_EOF:
                left.discard(message.partition())
        return not left

    try:
        until(ended, f"{topic} is read to its ends")
    finally:
        consumer.close()
    return records


# --- Streams --------------------------------------------------------------------------------------


def _count_words(
    bootstrap: str,
    directory: Path,
    replicas: int,
    happen: Callable[[int, Program], None],
    rounds: int = CRASHES,
) -> None:
    """Count words while something happens in each round; each count of each word is there once.

    A word that was counted twice has a count too many; one that was lost lacks its last; a store
    that was restored to another state than the one committed repeats a count or leaves one out.
    """
    _create(bootstrap, replicas, words=4, counts=4)
    program = Program(directory, "CountWords", bootstrap, directory / "state", replicas)

    def counted(least: int) -> bool:
        program.check()
        return len(_read(bootstrap, "counts", 4)) >= least

    with program:
        sent = 0
        for number in range(rounds):
            _produce(bootstrap, "words", ({"value": f"w{n % WORDS}"} for n in range(CHUNK)))
            sent += CHUNK
            # Most of the round is under way as it happens.
            until(functools.partial(counted, sent - CHUNK + 1), f"round {number} is counted")
            happen(number, program)
        until(functools.partial(counted, sent), "all is counted")
    found = defaultdict(list)
    for message in _read(bootstrap, "counts", 4):
        found[message.key().decode()].append(int(message.value()))
    each = sent // WORDS
    for number in range(WORDS):
        equal([*range(1, each + 1)], found.pop(f"w{number}"))
    equal({}, found)


@_case
def streams_whose_application_is_killed(place: Place) -> None:
    """The next one fences it, restores its store from the changelog and goes on."""

    def happen(number: int, program: Program) -> None:
        program.kill()
        program.start()

    _count_words(place.bootstrap, place.below("killed"), 1, happen, rounds=3)


@_case
def streams_while_brokers_crash(place: Place) -> None:
    """Leaders, coordinators of the group and of its transactions, one after the other."""
    directory = place.below("crashed")
    with serve(directory / "data", brokers=BROKERS, config=REPLICATED) as cluster:

        def happen(number: int, program: Program) -> None:
            broker = number % BROKERS
            cluster.crash(broker)
            for tp in _led(cluster):
                cluster.wait_for_leader(tp, not_broker=broker)
            cluster.start(broker)
            for tp in _led(cluster):
                cluster.wait_for_isr(tp, set(range(BROKERS)), timeout_s=patience())

        _count_words(cluster.bootstrap_servers, directory, BROKERS, happen)


def _led(cluster: ServedCluster) -> list[TopicPartition]:
    return [TopicPartition(topic, n) for topic in ("words", "counts") for n in range(4)]


@_case
def streams_while_all_is_killed(place: Place) -> None:
    """The process of all brokers with ``kill -9``, and the application: their files remain."""
    directory = place.below("all-killed")
    with servers.ServedProcess(directory, REPLICATED, BROKERS) as process:

        def happen(number: int, program: Program) -> None:
            process.kill()
            program.kill()
            process.start()
            program.start()

        _count_words(process.bootstrap, directory, BROKERS, happen, rounds=4)


class FrameworksSuite(ScriptedSuite):
    """Streams with exactly-once, Connect's exactly-once sources, MirrorMaker 2."""

    name = "kafka-frameworks"
    pinned = f"Apache Kafka {VERSION}: kafka-streams, connect-runtime, connect-file, connect-mirror"
    quick = ()
    most_left_out = 0
    cheap = False
    scripts = _SCRIPTS
    tools = Place

    def ready(self) -> bool:
        return toolchain.is_built("maven", "\n".join(JARS))

    def prepare(self) -> None:
        _classes()
