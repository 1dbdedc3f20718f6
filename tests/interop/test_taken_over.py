"""Groups and transactions of a real Kafka go on with ours, and ours with a real Kafka: offsets,
members, open and ended transactions. One Kafka and one cluster of ours for both, since each start
costs seconds."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import confluent_kafka as confluent
import pytest
from broker import PARTITION_METADATA, KafkaBroker
from confluent_kafka import admin

from checkpoints.clean_shutdown import CLEAN_SHUTDOWN
from checkpoints.types import TopicPartition
from logstore.log import ReplicaLog
from logstore.verify import Severity, verify
from replication.common.internal_topics import GROUP_METADATA, TRANSACTION_STATE
from replication.coordinators.transactions import records
from replication.coordinators.transactions.state import TransactionMetadata, TransactionState
from replication.server.serving import ServedCluster, serve
from tests.support.until import patience, until

pytestmark = [pytest.mark.slow, pytest.mark.essential]

T = TypeVar("T")
ORDERS, PAYMENTS = "orders", "payments"  # the groups', the transactions'
PARTITIONS = 3
TAKEN = (PAYMENTS, GROUP_METADATA, TRANSACTION_STATE)
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
    consumer.commit(offsets=offsets, asynchronous=False)
    consumer.close()


def _commit_as_member(bootstrap: str, group: str, offset: int) -> None:
    """A static member, which does not leave when it stops."""
    consumer = _consumer(bootstrap, group, **{"group.instance.id": "one"})
    consumer.subscribe([ORDERS])
    until(lambda: consumer.poll(0.1) is None and consumer.assignment(), "it has partitions")
    consumer.commit(offsets=[confluent.TopicPartition(ORDERS, 0, offset)], asynchronous=False)
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


def _offsets(bootstrap: str, group: str) -> list[tuple[int, str | None]]:
    consumer = _consumer(bootstrap, group)
    asked = [confluent.TopicPartition(ORDERS, number) for number in range(PARTITIONS)]
    found = _in_time(lambda: consumer.committed(asked, timeout=patience()))
    consumer.close()
    return [(each.offset, each.metadata) for each in found]


def _describe(bootstrap: str, group: str) -> tuple[str, list[tuple[str | None, int]]]:
    """The state, and of each member its instance and how much it has."""
    client = admin.AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    found = _in_time(lambda: client.describe_consumer_groups([group])[group].result(patience()))
    members = [
        (each.group_instance_id, len(each.assignment.topic_partitions)) for each in found.members
    ]
    return found.state.name, members


def _commit_all(bootstrap: str, offset: int, metadata: str) -> None:
    _commit(bootstrap, "simple", offset, metadata)
    _commit_as_member(bootstrap, "members", offset + 10)
    _commit_in_transaction(bootstrap, "done", offset + 20, commits=True)
    _commit_in_transaction(bootstrap, "undone", offset + 30, commits=False)


def _check_all(bootstrap: str, offset: int, metadata: str) -> None:
    simple = [(offset + number, metadata) for number in range(PARTITIONS)]
    assert _offsets(bootstrap, "simple") == simple
    assert _offsets(bootstrap, "members")[0][0] == offset + 10
    assert _offsets(bootstrap, "done")[0][0] == offset + 20
    assert _offsets(bootstrap, "undone")[0][0] == NONE
    assert _describe(bootstrap, "members") == ("STABLE", [("one", PARTITIONS)])


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


def _until_all_have_ended(ours: ServedCluster) -> None:
    for topic in (PAYMENTS, GROUP_METADATA):
        log = ours.replica(TopicPartition(topic, 0), 0).local_log()
        until(
            lambda log=log: log.snapshot.last_stable_offset == log.log_end_offset,
            f"markers of all transactions in {topic}",
        )


def _committed(ours: ServedCluster) -> list[bytes | None]:
    consumer = ours.consumer(TopicPartition(PAYMENTS, 0), isolation="read_committed")
    return [record.value for _, record in consumer.read_to_end()]


def _states(root: Path, copy: Path) -> dict[str, TransactionMetadata]:
    """What the last record of each id says, in a copy: looking may change what it looks at."""
    found: dict[str, TransactionMetadata] = {}
    shutil.copytree(root / f"{TRANSACTION_STATE}-0", copy / f"{TRANSACTION_STATE}-0")
    with ReplicaLog.open(copy / f"{TRANSACTION_STATE}-0") as log:
        for record in log.records():
            if record.key is None:
                continue
            decoded = records.decode(record.key, record.value)
            if decoded is not None and decoded[1] is not None:
                found[decoded[0]] = decoded[1]
    return found


def _alarms(directory: Path) -> list[str]:
    """What a verification says of a directory whose epochs began anew; it should be nothing."""
    return [str(f) for f in verify([directory]).findings if f.severity is not Severity.INFO]


# --- from one to the other -----------------------------------------------------------------------


def _ours(directory: Path) -> ServedCluster:
    config = {
        "offsets.topic.num.partitions": 1,
        "transaction.state.log.num.partitions": 1,
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
    }
    return serve(directory, config=config)


def _put_in(kafka: Path, ours: Path) -> None:
    """Only what Kafka's logs say: what is beside them we find out ourselves."""
    for name in TAKEN:
        target = ours / f"{name}-0"
        for old in target.iterdir():
            if old.name != PARTITION_METADATA:
                old.unlink()
        for log in (kafka / f"{name}-0").glob("*.log"):
            shutil.copy2(log, target / log.name)
    (ours / CLEAN_SHUTDOWN).unlink()


def test_there_and_back(kafka: str, tmp_path: Path) -> None:
    """Begun by Kafka, gone on with by ours, then by Kafka again."""
    broker = KafkaBroker(tmp_path / "kafka")
    with broker:
        _create_topics(broker.bootstrap)
        _commit(broker.bootstrap, "simple", 1)
        _write(broker.bootstrap, "done", "commit", 2)
        _write(broker.bootstrap, "done", "abort")
        _commit_all(broker.bootstrap, 10, "as it was sent")
        _write(broker.bootstrap, "open", "nothing")
    theirs = _states(broker.log_dir, tmp_path / "theirs")
    assert theirs["done"].state is TransactionState.COMPLETE_ABORT
    assert theirs["open"].state is TransactionState.ONGOING

    directory = tmp_path / "ours" / "broker-0"
    with _ours(directory.parent) as ours:
        _create_topics(ours.bootstrap_servers)
        _commit(ours.bootstrap_servers, "forgotten", 1)
        _write(ours.bootstrap_servers, "forgotten", "commit")
    _put_in(broker.log_dir, directory)
    with _ours(directory.parent) as ours:
        bootstrap = ours.bootstrap_servers
        assert [offset for offset, _ in _offsets(bootstrap, "forgotten")] == [NONE] * PARTITIONS
        _check_all(bootstrap, 10, "as it was sent")
        _until_all_have_ended(ours)  # what Kafka left open is aborted
        assert _committed(ours) == [b"done-commit-0", b"done-commit-1"]

        _write(bootstrap, "done", "commit")
        _write(bootstrap, "new", "commit")
        _commit_all(bootstrap, 50, "ours")
        _commit(bootstrap, "new", 90)
        _until_all_have_ended(ours)
        assert _committed(ours)[2:] == [b"done-commit-0", b"new-commit-0"]
    assert _alarms(directory) == []
    own = _states(directory, tmp_path / "own")
    assert own["open"].state is TransactionState.COMPLETE_ABORT
    assert own["open"].producer_epoch == theirs["open"].producer_epoch + 1
    assert own["new"].producer_id > max(each.producer_id for each in theirs.values())
    assert own["done"].producer_id == theirs["done"].producer_id
    assert own["done"].producer_epoch == theirs["done"].producer_epoch + 1

    for name in TAKEN:
        broker.adopt(name, {0: directory / f"{name}-0"}, unclean=True)
    with broker:
        bootstrap = broker.bootstrap
        _check_all(bootstrap, 50, "ours")
        assert [offset for offset, _ in _offsets(bootstrap, "new")] == [90, 91, 92]
        _write(bootstrap, "done", "commit")
        _write(bootstrap, "open", "commit")
    assert _alarms(broker.log_dir) == []
    again = _states(broker.log_dir, tmp_path / "again")
    for name in ("done", "open"):
        assert again[name].producer_id == own[name].producer_id
        assert again[name].producer_epoch == own[name].producer_epoch + 1
    assert again["new"].state is TransactionState.COMPLETE_COMMIT
