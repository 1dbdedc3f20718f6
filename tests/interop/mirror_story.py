"""The actors of ``test_mirror_story``: README's commands, a group, a transactional producer, and a
Kafka that starts on a directory which was made for it."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import confluent_kafka as confluent
from broker import KafkaBroker

from examples.demo.flights import Rows
from tests.support.until import patience, until

ROOT = Path(__file__).resolve().parents[2]
HEADING = "## A copy of a running Kafka\n"
TRANSACTION_MS = 900_000  # the longest that a broker allows: nobody but the story ends one
COMMAND = re.compile(r"logstore ((?:mirror|backup) check|[a-z]+)")

Positions = dict[int, int]


def readme() -> tuple[dict[str, str], str]:
    """Its commands in the order of the page, by the words that name them, and its Python."""
    section = (ROOT / "README.md").read_text().split(HEADING)[1].split("\n## ")[0]
    shell, python = re.findall(r"^```\w*\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
    lines = [line.partition("  #")[0].strip() for line in shell.splitlines()]
    named = [(COMMAND.match(line), line) for line in lines]
    return {found[1]: line for found, line in named if found}, python


@dataclass(frozen=True)
class Page:
    """README's commands and Python, with the words that a reader replaces by his own.

    Attributes:
        place: where they are given; what they make is there.
    """

    place: Path
    replaced: Mapping[str, str]

    def mine(self, text: str) -> str:
        for word, own in self.replaced.items():
            text = text.replace(word, own)
        return text

    def words(self, command: str) -> list[str]:
        _, *words = shlex.split(self.mine(command))
        return [sys.executable, "-m", "logstore", *words]

    def run(self, command: str, status: int = 0) -> str:
        """What it printed; fails unless it ends with ``status``."""
        ended = subprocess.run(
            self.words(command),
            cwd=self.place,
            env=_environment(),
            capture_output=True,
            text=True,
            timeout=2 * patience(),
            check=False,
        )
        assert ended.returncode == status, (command, ended.returncode, ended.stdout, ended.stderr)
        return ended.stdout + ended.stderr

    @contextmanager
    def running(self, command: str) -> Iterator[subprocess.Popen[bytes]]:
        """Until the block ends; then as Ctrl-C on a service does: SIGTERM, and status 0."""
        path = self.place / "running.txt"
        with path.open("wb") as told:
            process = subprocess.Popen(
                self.words(command), cwd=self.place, env=_environment(), stdout=told, stderr=told
            )
        try:
            yield process
            process.send_signal(signal.SIGTERM)
            assert process.wait(patience()) == 0, path.read_text()
        finally:
            process.kill()
            process.wait()

    def ends(self, directory: str) -> dict[str, Positions]:
        """End offsets by topic and partition, of files that someone else may write."""
        found: dict[str, Positions] = {}
        for each in json.loads(self.run(f"logstore ls {directory} --json"))["partitions"]:
            if each["topic"] != "__cluster_metadata":
                found.setdefault(each["topic"], {})[each["partition"]] = each["logEndOffset"]
        return found


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


# --- clients -------------------------------------------------------------------------------------


def produce(bootstrap: str, topic: str, rows: Sequence[Rows]) -> None:
    """The rows of each partition, in their order."""
    producer = confluent.Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 20,
            "log_level": 0,
        }
    )
    failed: list[object] = []

    def told(error: object, _: object) -> None:
        if error is not None:
            failed.append(error)

    for partition, mine in enumerate(rows):
        for row in zip(mine.keys, mine.values, mine.timestamps, strict=True):
            while True:
                try:
                    producer.produce(topic, row[1], row[0], partition, told, timestamp=row[2])
                    break
                except BufferError:
                    producer.poll(0.05)
    assert producer.flush(patience()) == 0
    assert failed == []


def transactional(bootstrap: str, name: str) -> confluent.Producer:
    producer = confluent.Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": name,
            "transaction.timeout.ms": TRANSACTION_MS,
            "log_level": 0,
        }
    )
    producer.init_transactions(patience())
    return producer


def in_transaction(producer: confluent.Producer, topic: str, value: str, end: str) -> None:
    """One record; ``end`` is ``commit``, ``abort``, or nothing."""
    producer.begin_transaction()
    producer.produce(topic, value)
    assert producer.flush(patience()) == 0
    if end:
        getattr(producer, f"{end}_transaction")(patience())


def consumer(bootstrap: str, group: str, **more: object) -> confluent.Consumer:
    return confluent.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",  # a group that has lost its place must not begin anew
            "log_level": 0,
            **more,
        }
    )


@dataclass(frozen=True)
class Read:
    """What one life of a consumer has read: records by partition, in their order."""

    rows: Sequence[Rows]
    first: Positions
    committed: Positions


def read(
    bootstrap: str, group: str, topic: str, partitions: int, least: int, **more: object
) -> Read:
    """As a member of the group, until there are ``least`` records; then it commits and leaves."""
    rows, first = [Rows() for _ in range(partitions)], Positions()
    reader = consumer(bootstrap, group, **more)
    reader.subscribe([topic])

    def has_them() -> bool:
        for message in reader.consume(10_000, 0.5):
            assert message.error() is None, message.error()
            partition = message.partition()
            first.setdefault(partition, message.offset())
            rows[partition].keys.append(message.key())
            rows[partition].values.append(message.value())
            rows[partition].timestamps.append(message.timestamp()[1])
        return sum(map(len, rows)) >= least

    until(has_them, f"{least} records")
    asked = [confluent.TopicPartition(topic, number) for number in range(partitions)]
    reached = {each.partition: max(0, each.offset) for each in reader.committed(asked, patience())}
    reached |= {partition: at + len(rows[partition]) for partition, at in first.items()}
    reader.commit(
        offsets=[confluent.TopicPartition(topic, *each) for each in reached.items()],
        asynchronous=False,
    )
    reader.close()
    return Read(rows, first, reached)


def values(bootstrap: str, topic: str, count: int) -> list[str]:
    """Of committed records of the one partition, in their order; to the end, which is reached."""
    more = {"isolation.level": "read_committed", "enable.partition.eof": True}
    reader = consumer(bootstrap, "auditor", **more)
    reader.assign([confluent.TopicPartition(topic, 0, 0)])
    found: list[str] = []

    def at_end() -> bool:
        for message in reader.consume(100, 0.5):
            if message.error() is not None:
                return True
            found.append(message.value().decode())
        return False

    until(at_end, f"the end of {topic}")
    reader.close()
    assert len(found) == count, found
    return found


# --- brokers -------------------------------------------------------------------------------------


class Promoted(KafkaBroker):
    """A real Kafka on a directory that ``promote --for-kafka`` has made ready."""

    def __init__(self, log_dir: Path, scratch: Path) -> None:
        super().__init__(scratch)
        scratch.mkdir()
        self.log_dir = log_dir
        self._written = log_dir / "server.properties"

    @property
    def bootstrap(self) -> str:
        written = self._written.read_text().replace("\\:", ":")
        listeners = re.search(r"^listeners=PLAINTEXT://([^,]+),", written, re.MULTILINE)
        assert listeners is not None, written
        return listeners[1]

    def _write_properties(self) -> Path:
        return self._written


def two_ports() -> int:
    """The first of two neighbours that are free: of a broker and of its controller."""

    def pair() -> int:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = int(first.getsockname()[1])
            try:
                second.bind(("127.0.0.1", port + 1))
            except (OSError, OverflowError):
                return 0
            return port

    return until(pair, "two free ports")


def flip(path: Path) -> int:
    """Turn round one bit in the middle of a file; where."""
    data = bytearray(path.read_bytes())
    at = len(data) // 2
    data[at] ^= 0x10
    path.write_bytes(data)
    return at
