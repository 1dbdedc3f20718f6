"""Kafka Streams, Connect and MirrorMaker, unmodified: each promises more than one request can.

A case feeds a framework, kills it or brokers in the middle, and compares what is there in the end.
"""

from __future__ import annotations

import functools
import json
import os
import re
import signal
import subprocess
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import confluent_kafka as ck
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic

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
SETTINGS: Mapping[str, str | int] = {
    # A transaction whose producer was killed holds readers back until it has timed out.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1000,
}
TRANSACTION_MS = 5000
REPLICATED: Mapping[str, str | int] = {
    **SETTINGS,
    "default.replication.factor": BROKERS,
    "min.insync.replicas": 2,
    "group.initial.rebalance.delay.ms": 0,
    "replica.lag.time.max.ms": 2000,
}
CRASHES = 6
WORDS = 30
FILE = "org.apache.kafka.connect.file.FileStream"
MIRRORED = "from.orders"
RETENTION_MS = "7200000"
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

    def __enter__(self) -> Self:
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


def _create(
    bootstrap: str, replicas: int, config: Mapping[str, str] | None = None, **partitions: int
) -> None:
    topics = [
        NewTopic(name, count, replicas, config=dict(config or {}))
        for name, count in partitions.items()
    ]
    admin = _admin(bootstrap)
    for made in admin.create_topics(topics).values():
        made.result(patience())


def _produce(bootstrap: str, topic: str, records: Iterable[Mapping[str, Any]]) -> None:
    """Write records, given as arguments of ``produce``; all are acknowledged, each once there."""
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
    return sorted(records, key=lambda message: (message.partition(), message.offset()))


def _admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 3})


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
        tps = [TopicPartition(topic, n) for topic in ("words", "counts") for n in range(4)]
        crash = functools.partial(_crash, cluster, tps)
        _count_words(cluster.bootstrap_servers, directory, BROKERS, crash)


def _crash(
    cluster: ServedCluster, tps: Sequence[TopicPartition], number: int, program: Program
) -> None:
    """Crash one broker after the other, each when the last one is back in sync."""
    broker = number % BROKERS
    cluster.crash(broker)
    for tp in tps:
        cluster.wait_for_leader(tp, not_broker=broker)
    cluster.start(broker)
    for tp in tps:
        cluster.wait_for_isr(tp, set(range(BROKERS)), timeout_s=patience())


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


# --- Connect --------------------------------------------------------------------------------------


class Worker(Program):
    """A distributed worker of Connect, whose sources write exactly once."""

    def __init__(self, bootstrap: str, directory: Path, replicas: int) -> None:
        self._url = f"http://127.0.0.1:{servers.free_run(1)}"
        string = "org.apache.kafka.connect.storage.StringConverter"
        settings: dict[str, object] = {
            "bootstrap.servers": bootstrap,
            "group.id": "connect",
            "key.converter": string,
            "value.converter": string,
            "exactly.once.source.support": "enabled",
            "consumer.isolation.level": "read_committed",
            "listeners": self._url,
            "plugin.discovery": "service_load",
            # What was killed is missed after seconds, not after Kafka's 45.
            "session.timeout.ms": 6000,
            "consumer.session.timeout.ms": 6000,
            "producer.transaction.timeout.ms": TRANSACTION_MS,
            "scheduled.rebalance.max.delay.ms": 0,
            "offset.flush.interval.ms": 1000,
        }
        for what in ("config", "offset", "status"):
            settings[f"{what}.storage.topic"] = f"connect-{what}"
            settings[f"{what}.storage.replication.factor"] = replicas
        file = _properties(directory / "worker.properties", settings)
        super().__init__(directory, "org.apache.kafka.connect.cli.ConnectDistributed", file)

    def connect(self, name: str, kind: str, **settings: object) -> None:
        """Make a connector, as soon as the worker takes it."""
        config = {"name": name, "connector.class": kind, "tasks.max": 1}
        config |= {key.replace("_", "."): value for key, value in settings.items()}
        request = urllib.request.Request(
            f"{self._url}/connectors/{name}/config",
            json.dumps({key: str(value) for key, value in config.items()}).encode(),
            {"Content-Type": "application/json"},
            method="PUT",
        )

        def taken() -> bool:
            self.check()
            try:
                with urllib.request.urlopen(request, timeout=patience()):
                    return True
            except urllib.error.HTTPError as error:
                if error.code not in (404, 409, 500, 503):
                    raise ProgramFailed(error.read().decode(errors="replace")) from None
            except OSError:
                pass  # it does not listen yet
            return False

        until(taken, f"Connect makes {name}")


def _properties(file: Path, settings: Mapping[str, object]) -> Path:
    file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return file


def _copy_lines(
    bootstrap: str,
    directory: Path,
    replicas: int,
    happen: Callable[[int, Program], None],
    rounds: int,
) -> None:
    """A file into a topic and on into a file, while something happens in each round.

    In the topic each line is once, in order; a sink may write some lines twice.
    """
    _create(bootstrap, replicas, lines=1)
    source, sink = directory / "source.txt", directory / "sink.txt"
    source.touch()
    lines: list[str] = []
    worker = Worker(bootstrap, directory, replicas)

    def append(number: int) -> None:
        more = [f"line {n} of round {number}" for n in range(CHUNK)]
        with source.open("a") as file:
            file.writelines(f"{line}\n" for line in more)
        lines.extend(more)

    def copied(least: int) -> bool:
        worker.check()
        return len(_read(bootstrap, "lines", 1)) >= least

    with worker:
        # Many small transactions.
        worker.connect(
            "source", f"{FILE}SourceConnector", file=source, topic="lines", batch_size=20
        )
        worker.connect("sink", f"{FILE}SinkConnector", file=sink, topics="lines")
        for number in range(rounds):
            before = len(lines)
            append(number)
            until(functools.partial(copied, before + 1), f"round {number} is copied")
            happen(number, worker)
        # The source keeps what it read beyond a full batch until the file grows again.
        wanted = len(lines)
        append(rounds)
        until(functools.partial(copied, wanted), "all lines are copied")
        found = [message.value().decode() for message in _read(bootstrap, "lines", 1)]
        equal(lines[: len(found)], found)
        # A part of a line may be there too, from when the worker was killed, with no end of line.
        line = re.compile(r"line \d+ of round \d+")
        until(lambda: set(found) <= set(line.findall(sink.read_text())), "the sink has all lines")


@_case
def connect_whose_worker_is_killed(place: Place) -> None:
    """The next one fences its transactions and reads where the last committed one ended."""

    def happen(number: int, program: Program) -> None:
        program.kill()
        program.start()

    _copy_lines(place.bootstrap, place.below("connect-killed"), 1, happen, rounds=3)


@_case
def connect_while_brokers_crash(place: Place) -> None:
    """Leaders of lines and of Connect's own topics, and coordinators."""
    directory = place.below("connect-crashed")
    with serve(directory / "data", brokers=BROKERS, config=REPLICATED) as cluster:
        crash = functools.partial(_crash, cluster, [TopicPartition("lines", 0)])
        _copy_lines(cluster.bootstrap_servers, directory, BROKERS, crash, CRASHES)


# --- MirrorMaker ----------------------------------------------------------------------------------


def _mirror_settings(source: str, target: str) -> dict[str, object]:
    settings: dict[str, object] = {
        "clusters": "from, to",
        "from.bootstrap.servers": source,
        "to.bootstrap.servers": target,
        "from->to.enabled": "true",
        "from->to.topics": "orders.*",
        "from->to.sync.group.offsets.enabled": "true",
        "replication.factor": 1,
        "tasks.max": 2,
        "to.exactly.once.source.support": "enabled",
        "to.producer.transaction.timeout.ms": TRANSACTION_MS,
        "plugin.discovery": "service_load",
        "dedicated.mode.enable.internal.rest": "true",
        "listeners": f"http://127.0.0.1:{servers.free_run(1)}",
        # Translated as often as can be; by default once a minute, and for each hundredth record.
        "offset.lag.max": 0,
    }
    for what in ("offset-syncs", "checkpoints", "heartbeats"):
        settings[f"{what}.topic.replication.factor"] = 1
    for what in ("config", "offset", "status"):
        settings[f"{what}.storage.replication.factor"] = 1
    for what in (
        *("refresh.topics", "refresh.groups", "sync.topic.configs"),
        *("emit.checkpoints", "sync.group.offsets", "emit.heartbeats"),
    ):
        settings[f"{what}.interval.seconds"] = 1
    return settings


class Mirror(Program):
    """MirrorMaker from one cluster to another, exactly once."""

    def __init__(self, source: str, target: str, directory: Path) -> None:
        self.source, self.target = source, target
        file = _properties(directory / "mirror.properties", _mirror_settings(source, target))
        super().__init__(directory, "org.apache.kafka.connect.mirror.MirrorMaker", file)

    def mirrored(self, partitions: int, least: int) -> bool:
        """Whether so many records are there."""
        self.check()
        return self.partitions() == partitions and least <= len(
            _read(self.target, MIRRORED, partitions)
        )

    def partitions(self) -> int:
        topics = _admin(self.target).list_topics().topics
        return len(topics[MIRRORED].partitions) if MIRRORED in topics else 0

    def retention(self) -> str:
        resource = ConfigResource(ConfigResource.Type.TOPIC, MIRRORED)
        admin = _admin(self.target)
        return str(admin.describe_configs([resource])[resource].result()["retention.ms"].value)


def _orders(start: int, partitions: int) -> Iterator[dict[str, Any]]:
    for n in range(start, start + CHUNK):
        yield {
            "partition": n % partitions,
            "key": None if n % 5 == 0 else f"k{n % 70}",
            "value": None if n % 7 == 0 else f"order {n}",
            "headers": [("n", str(n).encode()), ("none", None), ("n", b"")][: n % 4],
            "timestamp": 1_700_000_000_000 + n,
        }


def _contents(messages: Iterable[ck.Message]) -> list[tuple[object, ...]]:
    return [(m.partition(), m.key(), m.value(), m.headers(), m.timestamp()) for m in messages]


def _times(messages: Iterable[ck.Message]) -> set[int]:
    """Which records of ``_orders`` they are."""
    return {message.timestamp()[1] for message in messages}


def _commit(bootstrap: str, topic: str, offsets: Mapping[int, int]) -> None:
    """Commit offsets for the group ``billing``."""
    consumer = ck.Consumer({"bootstrap.servers": bootstrap, "group.id": "billing"})
    wanted = [ck.TopicPartition(topic, *each) for each in offsets.items()]
    try:
        committed = consumer.commit(offsets=wanted, asynchronous=False)
        equal([None] * len(wanted), [each.error for each in committed])
    finally:
        consumer.close()


def _go_on(bootstrap: str, topic: str, count: int) -> list[ck.Message]:
    """Read so many records as a member of ``billing``, from its offsets on, in any order."""
    settings = {"group.id": "billing", "auto.offset.reset": "earliest"}
    consumer = ck.Consumer({"bootstrap.servers": bootstrap, **settings})
    consumer.subscribe([topic])
    found: list[ck.Message] = []

    def enough() -> bool:
        found.extend(consumer.consume(count - len(found), 0.1))
        return len(found) == count

    try:
        until(enough, f"{topic} is read by a group")
    finally:
        consumer.close()
    equal({None}, {message.error() for message in found})
    return found


def _translated(bootstrap: str, topic: str, partitions: int) -> dict[int, int]:
    """The offsets of the group ``billing``, once there is one for each partition."""
    admin = _admin(bootstrap)
    group = ck.ConsumerGroupTopicPartitions("billing")
    (future,) = admin.list_consumer_group_offsets([group]).values()
    found = future.result(patience()).topic_partitions
    offsets = {each.partition: each.offset for each in found if each.topic == topic}
    return offsets if len(offsets) == partitions else {}


@_case
def mirror_maker_whose_process_is_killed(place: Place) -> None:
    """Records with all that they have, settings and new partitions of a topic, a group's offsets.

    From the broker of the suite, which may be a real Kafka, to one of ours.
    """
    source, directory = place.bootstrap, place.below("mirror")
    _create(source, 1, {"retention.ms": RETENTION_MS}, orders=2)
    admin = _admin(source)
    with (
        # Without topics that a question makes: MirrorMaker makes them with as many partitions.
        servers.ServedProcess(
            directory / "target", {**SETTINGS, "auto.create.topics.enable": "false"}
        ) as to,
        Mirror(source, to.bootstrap, directory) as mirror,
    ):
        target, sent = to.bootstrap, 0
        for number in range(2):
            _produce(source, "orders", _orders(sent, 2))
            until(functools.partial(mirror.mirrored, 2, sent + 1), f"round {number} is mirrored")
            sent += CHUNK
            mirror.kill()
            mirror.start()
        (grown,) = admin.create_partitions([NewPartitions("orders", 3)]).values()
        grown.result(patience())
        _produce(source, "orders", _orders(sent, 3))
        sent += CHUNK
        until(functools.partial(mirror.mirrored, 3, sent), "all is mirrored")
        there, here = _read(source, "orders", 3), _read(target, MIRRORED, 3)
        equal(sent, len(there))
        equal(_contents(there), _contents(here))
        equal(RETENTION_MS, mirror.retention())
        middle = sorted(m.timestamp() for m in there)[sent // 2]
        done = [m for m in there if m.timestamp() < middle]
        _commit(source, "orders", {m.partition(): m.offset() + 1 for m in done})
        offsets = until(
            lambda: _translated(target, MIRRORED, len({m.partition() for m in done})),
            "the group's offsets are translated",
        )
        mirror.end()
        # The group may read again what it has read, and misses nothing.
        rest = [m for m in here if m.offset() >= offsets.get(m.partition(), 0)]
        equal(set(), _times(there) - _times(done) - _times(rest))
        equal(_times(rest), _times(_go_on(target, MIRRORED, len(rest))))
        # Translated, not just begun again.
        equal(True, len(rest) < sent)


class FrameworksSuite(ScriptedSuite):
    """Streams with exactly-once, Connect's exactly-once sources, MirrorMaker 2."""

    name = "kafka-frameworks"
    pinned = f"Apache Kafka {VERSION}: kafka-streams, connect-runtime, connect-file, connect-mirror"
    quick = ("streams_while_brokers_crash",)
    most_left_out = 0
    cheap = False
    settings = SETTINGS
    scripts = _SCRIPTS
    tools = Place

    def ready(self) -> bool:
        return toolchain.is_built("maven", "\n".join(JARS))

    def prepare(self) -> None:
        _classes()
