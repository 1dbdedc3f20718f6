"""Groups and transactions of a real Kafka go on with ours, and ours with a real Kafka: offsets,
members, open, prepared and ended transactions, over the 50 partitions that Kafka has by default.
One Kafka and one cluster of ours for both, since each start costs seconds."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import confluent_kafka as confluent
import pytest
from broker import CLEAN_SHUTDOWN, RECOVERY_POINTS, KafkaBroker, replace_files
from confluent_kafka import admin

from checkpoints.types import TopicPartition
from logstore.format.filenames import LEADER_EPOCH_CHECKPOINT
from logstore.format.reader import iter_batches
from logstore.log import PartitionLog
from logstore.verify import Severity, verify
from replication.common.error_codes import ErrorCode
from replication.common.internal_topics import (
    GROUP_METADATA,
    TRANSACTION_STATE,
    java_hash,
    partition_for,
)
from replication.coordinators.transactions import records
from replication.coordinators.transactions.state import TransactionMetadata, TransactionState
from replication.protocol import ApiKey
from replication.protocol import messages as wire
from replication.server.serving import ServedCluster, serve
from tests.support.served import batch, produce
from tests.support.until import patience, until
from tests.support.wire_client import WireClient

pytestmark = pytest.mark.slow

T = TypeVar("T")
ORDERS, PAYMENTS = "orders", "payments"  # the groups', the transactions'
PARTITIONS = 3
LOG_STARTS = "log-start-offset-checkpoint"
CHECKPOINTS = (
    CLEAN_SHUTDOWN,
    RECOVERY_POINTS,
    "replication-offset-checkpoint",
    "cleaner-offset-checkpoint",
)
TAKEN = (PAYMENTS, GROUP_METADATA, TRANSACTION_STATE)
COORDINATORS = 50
# Their hashes are of both signs, and most of them lie elsewhere by ``(hash & 0x7fffffff) % 50``.
SIMPLE = [f"{word}-{number}" for word in ("audit", "billing", "simple") for number in range(4)]
MEMBERS = ["members", "orders"]
SIZES = {
    "offsets.topic.num.partitions": COORDINATORS,
    "transaction.state.log.num.partitions": COORDINATORS,
    "log.index.size.max.bytes": 65_536,
}
OUR_CONFIG = {**SIZES, "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500}
KAFKA_CONFIG = {
    **OUR_CONFIG,
    "log.cleaner.backoff.ms": 100,
    "broker.session.timeout.ms": 3000,  # so long a start waits for the end of one that was killed
    "broker.heartbeat.interval.ms": 500,
}
NONE = -1001  # the client's word for no offset


def _create_topics(bootstrap: str) -> None:
    client = admin.AdminClient({"bootstrap.servers": bootstrap})
    topics = [admin.NewTopic(ORDERS, PARTITIONS, 1), admin.NewTopic(PAYMENTS, 1, 1)]
    for created in client.create_topics(topics).values():
        created.result(patience())


def _in_time(ask: Callable[[], T]) -> T:
    """A broker that has just started sends clients away for a moment."""

    def answer() -> list[T]:
        try:
            return [ask()]
        except confluent.KafkaException:
            return []

    return until(answer, "an answer without an error")[0]


# --- groups --------------------------------------------------------------------------------------


def _consumer(bootstrap: str, group: str, **options: object) -> confluent.Consumer:
    return confluent.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            # A static member is still there when the last broker is asked for it.
            "session.timeout.ms": 600_000,
            "max.poll.interval.ms": 600_000,
            "log_level": 0,
            **options,
        }
    )


def _commit(bootstrap: str, group: str, offset: int, metadata: str = "") -> None:
    """Of nobody: for every partition another offset."""
    consumer = _consumer(bootstrap, group)
    offsets = [
        confluent.TopicPartition(ORDERS, number, offset + number, metadata)
        for number in range(PARTITIONS)
    ]
    _in_time(lambda: consumer.commit(offsets=offsets, asynchronous=False))
    consumer.close()


def _commit_as_member(bootstrap: str, group: str, offset: int) -> None:
    """A static member, which does not leave when it stops."""
    consumer = _consumer(bootstrap, group, **{"group.instance.id": "one"})
    consumer.subscribe([ORDERS])
    until(lambda: consumer.poll(0.1) is None and consumer.assignment(), "it has partitions")
    offsets = [confluent.TopicPartition(ORDERS, 0, offset)]
    _in_time(lambda: consumer.commit(offsets=offsets, asynchronous=False))
    consumer.close()


def _commit_in_transaction(bootstrap: str, group: str, offset: int, *, commits: bool) -> None:
    producer = _producer(bootstrap, f"of-{group}")
    producer.begin_transaction()
    consumer = _consumer(bootstrap, group)
    producer.send_offsets_to_transaction(
        [confluent.TopicPartition(ORDERS, 0, offset)],
        consumer.consumer_group_metadata(),
        patience(),
    )
    (producer.commit_transaction if commits else producer.abort_transaction)(patience())
    consumer.close()


def _offsets(bootstrap: str, group: str) -> list[tuple[int, str]]:
    consumer = _consumer(bootstrap, group)
    asked = [confluent.TopicPartition(ORDERS, number) for number in range(PARTITIONS)]
    found = _in_time(lambda: consumer.committed(asked, timeout=patience()))
    consumer.close()
    return [(each.offset, each.metadata or "") for each in found]


def _describe(bootstrap: str, group: str) -> tuple[str, list[tuple[str | None, int]]]:
    """The state, and of each member its instance and how much it has."""
    client = admin.AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    found = _in_time(lambda: client.describe_consumer_groups([group])[group].result(patience()))
    members = [
        (each.group_instance_id, len(each.assignment.topic_partitions)) for each in found.members
    ]
    return found.state.name, members


def _commit_all(bootstrap: str, offset: int, metadata: str) -> None:
    for at, group in enumerate(SIMPLE):
        _commit(bootstrap, group, offset + 100 * at, metadata)
    for group in MEMBERS:
        _commit_as_member(bootstrap, group, offset + 10)
    _commit_in_transaction(bootstrap, "done", offset + 20, commits=True)
    _commit_in_transaction(bootstrap, "undone", offset + 30, commits=False)


def _check_all(bootstrap: str, offset: int, metadata: str) -> None:
    for at, group in enumerate(SIMPLE):
        simple = [(offset + 100 * at + number, metadata) for number in range(PARTITIONS)]
        assert _offsets(bootstrap, group) == simple, group
    for group in MEMBERS:
        assert _offsets(bootstrap, group)[0][0] == offset + 10
        assert _describe(bootstrap, group) == ("STABLE", [("one", PARTITIONS)])
    assert _offsets(bootstrap, "done")[0][0] == offset + 20
    assert _offsets(bootstrap, "undone")[0][0] == NONE


# --- transactions --------------------------------------------------------------------------------


def _producer(bootstrap: str, name: str) -> confluent.Producer:
    settings = {
        "bootstrap.servers": bootstrap,
        "transactional.id": name,
        "transaction.timeout.ms": 6000,
        "log_level": 0,
    }
    producer = confluent.Producer(settings)
    producer.init_transactions(patience())
    return producer


def _write(bootstrap: str, name: str, end: str, count: int = 1) -> None:
    """One transaction of a new producer, which commits, aborts, or leaves it open.

    A broker answers when the end is decided (W-154); readers see it when the marker is written.
    """
    producer = _producer(bootstrap, name)
    producer.begin_transaction()
    for number in range(count):
        producer.produce(PAYMENTS, f"{name}-{end}-{number}", partition=0)
    producer.flush(patience())
    if end == "commit":
        producer.commit_transaction(patience())
    elif end == "abort":
        producer.abort_transaction(patience())


def _idempotent_batch(bootstrap: str) -> bytes:
    """The first one of a producer without transactions."""
    with _connect(bootstrap) as client:
        request = wire.InitProducerIdRequest(None, 1000)
        made = until(
            lambda: (
                not (answer := client.ask(ApiKey.INIT_PRODUCER_ID, 4, request)).error_code
                and answer
            ),
            "a producer id",
        )
    return batch(b"once", producer_id=made.producer_id, producer_epoch=0, base_sequence=0)


def _send(bootstrap: str, records: bytes) -> int:
    """The offset of the batch, that of the first time if it is a retry."""
    with _connect(bootstrap) as client:

        def sent() -> Any:
            part = produce(client, TopicPartition(PAYMENTS, 0), records)
            return None if part.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER else part

        part = until(sent, "the broker knows that it leads")
    assert part.error_code == 0
    return int(part.base_offset)


def _connect(bootstrap: str) -> WireClient:
    host, _, port = bootstrap.partition(":")
    return WireClient(host, int(port))


def _until_all_have_ended(ours: ServedCluster) -> None:
    groups = [TopicPartition(GROUP_METADATA, number) for number in range(COORDINATORS)]
    for tp in (TopicPartition(PAYMENTS, 0), *groups):
        log = ours.replica(tp, 0).local_log()
        until(
            lambda log=log: log.snapshot.last_stable_offset == log.log_end_offset,
            f"markers of all transactions in {tp}",
        )


def _committed(ours: ServedCluster) -> list[bytes | None]:
    consumer = ours.consumer(TopicPartition(PAYMENTS, 0), isolation="read_committed")
    return [record.value for _, record in consumer.read_to_end()]


def _states(root: Path, copy: Path) -> dict[str, TransactionMetadata]:
    """What the last record of each id says, in a copy: looking may change what it looks at."""
    found: dict[str, TransactionMetadata] = {}
    for directory in root.glob(f"{TRANSACTION_STATE}-*"):
        if not any(each.stat().st_size for each in directory.glob("*.log")):
            continue
        shutil.copytree(directory, copy / directory.name)
        with PartitionLog.open(copy / directory.name) as log:
            for record in log.records():
                if record.key is None:
                    continue
                decoded = records.decode(record.key, record.value)
                if decoded is not None and decoded[1] is not None:
                    assert directory.name == _place(decoded[0])
                    found[decoded[0]] = decoded[1]
    return found


def _alarms(directory: Path) -> list[str]:
    """What a verification says of a directory whose epochs began anew; it should be nothing."""
    return [str(f) for f in verify([directory]).findings if f.severity is not Severity.INFO]


def _place(transactional_id: str) -> str:
    return f"{TRANSACTION_STATE}-{partition_for(transactional_id, COORDINATORS)}"


def _prepare(root: Path, known: TransactionMetadata) -> None:
    """As if the broker had been killed between this record and the markers."""
    prepared = replace(known, state=TransactionState.PREPARE_COMMIT)
    record = records.encode(prepared)
    with PartitionLog.open(root / _place(known.transactional_id)) as log:
        log.append([(record.key, record.value)], leader_epoch=log.epochs.latest)


# --- from one to the other -----------------------------------------------------------------------


def _ours(directory: Path) -> ServedCluster:
    return serve(directory, config=OUR_CONFIG)


def _partitions(root: Path, topic: str) -> list[Path]:
    return [each for each in root.glob(f"{topic}-*") if each.name[len(topic) + 1 :].isdigit()]


def _put_in(kafka: Path, ours: Path, topics: Sequence[str] = TAKEN) -> None:
    """As docs/copies.md says."""
    for name in topics:
        partitions = _partitions(kafka, name)
        assert len(partitions) == len(_partitions(ours, name))
        for source in partitions:
            replace_files(source, ours / source.name)
    for name in CHECKPOINTS:
        (ours / name).unlink(missing_ok=True)
    shutil.copy2(kafka / LOG_STARTS, ours / LOG_STARTS)


def _give_back(broker: KafkaBroker, ours: Path, topics: Sequence[str] = TAKEN) -> None:
    for name in topics:
        partitions = {int(each.name.rpartition("-")[2]): each for each in _partitions(ours, name)}
        broker.adopt(name, partitions, unclean=True)


@pytest.fixture
def broker(kafka: str, tmp_path: Path) -> Iterator[KafkaBroker]:
    """Formatted, not started."""
    broker = KafkaBroker(tmp_path / "kafka", overrides=KAFKA_CONFIG)
    broker.format()
    yield broker
    broker.kill()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Of a broker of ours that has the topics, and forgets what it had of groups and ids."""
    with _ours(tmp_path / "ours") as ours:
        _create_topics(ours.bootstrap_servers)
        _commit(ours.bootstrap_servers, "forgotten", 1)
        _write(ours.bootstrap_servers, "forgotten", "commit")
    return tmp_path / "ours" / "broker-0"


@pytest.mark.essential
def test_there_and_back(broker: KafkaBroker, tmp_path: Path, directory: Path) -> None:
    """Begun by Kafka, which is killed; gone on with by ours, then by Kafka again (W-100)."""
    assert {java_hash(name) < 0 for name in SIMPLE} == {True, False}
    assert {java_hash(name) < 0 for name in MEMBERS} == {True, False}
    broker.start()
    _create_topics(broker.bootstrap)
    once = _idempotent_batch(broker.bootstrap)
    offset = _send(broker.bootstrap, once)
    _commit(broker.bootstrap, SIMPLE[0], 1)
    _write(broker.bootstrap, "done", "commit", 2)
    _write(broker.bootstrap, "done", "abort")
    _commit_all(broker.bootstrap, 10, "as it was sent")
    _write(broker.bootstrap, "prepared", "nothing")
    _write(broker.bootstrap, "open", "nothing")
    broker.kill()
    theirs = _states(broker.log_dir, tmp_path / "theirs")
    assert theirs["done"].state is TransactionState.COMPLETE_ABORT
    assert theirs["open"].state is TransactionState.ONGOING

    _put_in(broker.log_dir, directory)
    _prepare(directory, theirs["prepared"])
    with _ours(directory.parent) as ours:
        bootstrap = ours.bootstrap_servers
        assert [offset for offset, _ in _offsets(bootstrap, "forgotten")] == [NONE] * PARTITIONS
        _check_all(bootstrap, 10, "as it was sent")
        _until_all_have_ended(ours)  # what Kafka left open is aborted
        assert _send(bootstrap, once) == offset
        first = [b"once", b"done-commit-0", b"done-commit-1", b"prepared-nothing-0"]
        assert _committed(ours) == first

        _write(bootstrap, "done", "commit")
        _write(bootstrap, "new", "commit")
        _commit_all(bootstrap, 50, "ours")
        _commit(bootstrap, "new", 90)
        _until_all_have_ended(ours)
        assert _committed(ours)[len(first) :] == [b"done-commit-0", b"new-commit-0"]
    assert _alarms(directory) == []
    own = _states(directory, tmp_path / "own")
    assert own["open"].state is TransactionState.COMPLETE_ABORT
    assert own["open"].producer_epoch == theirs["open"].producer_epoch + 1
    assert own["new"].producer_id > max(each.producer_id for each in theirs.values())
    assert own["done"].producer_id == theirs["done"].producer_id
    assert own["done"].producer_epoch == theirs["done"].producer_epoch + 1

    _give_back(broker, directory)
    with broker:
        bootstrap = broker.bootstrap
        _check_all(bootstrap, 50, "ours")
        assert _send(bootstrap, once) == offset
        assert [offset for offset, _ in _offsets(bootstrap, "new")] == [90, 91, 92]
        _write(bootstrap, "done", "commit")
        _write(bootstrap, "open", "commit")
    assert _alarms(broker.log_dir) == []
    again = _states(broker.log_dir, tmp_path / "again")
    for name in ("done", "open"):
        assert again[name].producer_id == own[name].producer_id
        assert again[name].producer_epoch == own[name].producer_epoch + 1
    assert again["new"].state is TransactionState.COMPLETE_COMMIT


# --- eight kills each way ------------------------------------------------------------------------

KILLS = 8
WRITES = 20  # into the compacted topic, in each round
RETAINED = "retained"  # compacted
COMPACTION = {
    "cleanup.policy": "compact",
    "segment.ms": 100,
    "min.cleanable.dirty.ratio": 0.001,
    "delete.retention.ms": 0,
}


def _create_retained(bootstrap: str) -> None:
    client = admin.AdminClient({"bootstrap.servers": bootstrap})
    topic = admin.NewTopic(RETAINED, 1, 1, config={k: str(v) for k, v in COMPACTION.items()})
    client.create_topics([topic])[RETAINED].result(patience())


def _live(bootstrap: str, round_: int, *, undecided: bool) -> None:
    """What happens between two kills. ``undecided``: one transaction is open at the end, and the
    markers of another one are on their way."""
    for at, group in enumerate(SIMPLE):
        _commit(bootstrap, group, 1000 * round_ + 100 * at, f"round {round_}")
    for group in MEMBERS:
        _commit_as_member(bootstrap, group, round_)
    plain = confluent.Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for number in range(WRITES):
        plain.produce(RETAINED, f"{round_}-{number}", key=_key(round_, number))
        plain.flush(patience())
    _write(bootstrap, "known", "commit")
    _write(bootstrap, f"aborted-{round_}", "abort")
    _commit_in_transaction(bootstrap, "done", round_, commits=True)
    if undecided:
        _write(bootstrap, f"open-{round_}", "nothing")
    _write(bootstrap, "prepared", "commit")
    if not undecided:
        _until_decided(bootstrap)


def _key(round_: int, number: int) -> str:
    return f"{number % (5 + round_)}"


def _records(bootstrap: str, topic: str) -> list[tuple[bytes | None, bytes | None]]:
    """Keys and values of those that are committed."""
    consumer = _consumer(bootstrap, "reader", **{"isolation.level": "read_committed"})
    tp = confluent.TopicPartition(topic, 0)
    low, end = _in_time(lambda: consumer.get_watermark_offsets(tp, patience()))
    tp.offset = low
    consumer.assign([tp])
    found: list[tuple[bytes | None, bytes | None]] = []

    def read() -> bool:
        for message in consumer.consume(500, 0.2):
            assert message.error() is None
            found.append((message.key(), message.value()))
        return bool(consumer.position([tp])[0].offset >= end)

    until(read, f"the end of {topic}")
    consumer.close()
    return found


def _until_decided(bootstrap: str) -> None:
    """A reader of committed records gets to the end of what there is."""
    tp = confluent.TopicPartition(PAYMENTS, 0)

    def end(isolation: str) -> int:
        consumer = _consumer(bootstrap, "reader", **{"isolation.level": isolation})
        found: int = _in_time(lambda: consumer.get_watermark_offsets(tp, patience())[1])
        consumer.close()
        return found

    until(lambda: end("read_committed") == end("read_uncommitted"), "the ends of transactions")


class _Seen(NamedTuple):
    """What clients see of a broker."""

    offsets: dict[str, list[tuple[int, str]]]
    members: dict[str, tuple[str, list[tuple[str | None, int]]]]
    payments: list[bytes | None]
    retained: dict[bytes | None, bytes | None]


def _expected(last: int) -> _Seen:
    """After this round."""
    simple = {
        group: [(1000 * last + 100 * at + n, f"round {last}") for n in range(PARTITIONS)]
        for at, group in enumerate(SIMPLE)
    }
    rounds = range(last + 1)
    retained = {_key(r, n).encode(): f"{r}-{n}".encode() for r in rounds for n in range(WRITES)}
    others = [(last, ""), *[(NONE, "")] * (PARTITIONS - 1)]
    return _Seen(
        {**simple, **dict.fromkeys((*MEMBERS, "done"), others)},
        dict.fromkeys(MEMBERS, ("STABLE", [("one", PARTITIONS)])),
        [b"known-commit-0", b"prepared-commit-0"] * (last + 1),
        retained,
    )


def _look(bootstrap: str) -> _Seen:
    _until_decided(bootstrap)
    return _Seen(
        {group: _offsets(bootstrap, group) for group in (*SIMPLE, *MEMBERS, "done")},
        {group: _describe(bootstrap, group) for group in MEMBERS},
        [value for _, value in _records(bootstrap, PAYMENTS)],
        dict(_records(bootstrap, RETAINED)),
    )


class _OurProcess:
    """``logstore serve`` in a process of its own."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.bootstrap = ""

    def start(self) -> None:
        command = [sys.executable, "-m", "logstore", "serve", "--dir", str(self._directory)]
        command += ["--listen", "127.0.0.1:0", "--json"]
        for key, value in OUR_CONFIG.items():
            command += ["--config", f"{key}={value}"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        said = json.loads(self._process.stdout.readline())
        [self.bootstrap] = said["bootstrapServers"]

    def kill(self) -> None:
        with self._process:
            self._process.kill()


def _last_epochs(root: Path) -> list[int]:
    found = []
    for directory in (each for topic in TAKEN for each in _partitions(root, topic)):
        entries = (directory / LEADER_EPOCH_CHECKPOINT).read_text().splitlines()[2:]
        found += [int(entry.split()[0]) for entry in entries[-1:]]
    return found


@pytest.mark.long
def test_there_and_back_after_kills(broker: KafkaBroker, directory: Path) -> None:
    """Each end of a process is a SIGKILL.

    Only the last kill of Kafka meets undecided transactions: if a start finds no leader of their
    partition yet, Kafka takes it for deleted, and they get no marker.
    """
    with _ours(directory.parent) as ours:
        _create_retained(ours.bootstrap_servers)
    for round_ in range(KILLS):
        broker.start()
        if not round_:
            _create_topics(broker.bootstrap)
            _create_retained(broker.bootstrap)
        _live(broker.bootstrap, round_, undecided=round_ == KILLS - 1)
        broker.kill()
    taken = (*TAKEN, RETAINED)
    _put_in(broker.log_dir, directory, taken)
    assert _count(directory / f"{RETAINED}-0") < KILLS * WRITES

    process = _OurProcess(directory.parent)
    for round_ in range(KILLS, 2 * KILLS):
        process.start()
        assert _look(process.bootstrap) == _expected(round_ - 1)
        _live(process.bootstrap, round_, undecided=True)
        process.kill()

    while min(_last_epochs(broker.log_dir)) <= max(_last_epochs(directory)):  # see docs/copies.md
        broker.start()
        broker.stop()
    _give_back(broker, directory, taken)
    with broker:
        assert _look(broker.bootstrap) == _expected(2 * KILLS - 1)
        _write(broker.bootstrap, "known", "commit")
        _until_decided(broker.bootstrap)


def _count(directory: Path) -> int:
    batches = (batch for log in directory.glob("*.log") for batch in iter_batches(log.read_bytes()))
    return sum(each.record_count for each in batches)
