"""The transactions of a real Kafka go on with ours, and ours with a real Kafka."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from broker import PARTITION_METADATA, KafkaBroker

from checkpoints.clean_shutdown import CLEAN_SHUTDOWN
from checkpoints.types import TopicPartition
from logstore.log import ReplicaLog
from replication.common.internal_topics import TRANSACTION_STATE
from replication.coordinators.transactions import records
from replication.coordinators.transactions.state import TransactionMetadata, TransactionState
from replication.server.serving import ServedCluster, serve
from tests.support.until import patience, until

pytestmark = [pytest.mark.kafka, pytest.mark.essential]

confluent = pytest.importorskip("confluent_kafka")
admin = pytest.importorskip("confluent_kafka.admin")

TOPIC = "orders"
LOGS = (f"{TOPIC}-0", f"{TRANSACTION_STATE}-0")


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


def _write(bootstrap: str, name: str, end: str, count: int = 2) -> None:
    """One transaction of a new producer, which commits, aborts, or leaves it open.

    A broker answers when the end is decided (W-154); readers see it when the marker is written.
    """
    producer = _producer(bootstrap, name)
    producer.begin_transaction()
    for number in range(count):
        producer.produce(TOPIC, f"{name}-{end}-{number}", partition=0)
    producer.flush(patience())
    if end == "commit":
        producer.commit_transaction(patience())
    elif end == "abort":
        producer.abort_transaction(patience())


def _create_topic(bootstrap: str) -> None:
    client = admin.AdminClient({"bootstrap.servers": bootstrap})
    for created in client.create_topics([admin.NewTopic(TOPIC, 1, 1)]).values():
        created.result(patience())


def _states(root: Path) -> dict[str, TransactionMetadata]:
    """What the last record of each id says."""
    found: dict[str, TransactionMetadata] = {}
    with ReplicaLog.open(root / LOGS[1]) as log:
        for record in log.records():
            if record.key is None:
                continue
            decoded = records.decode(record.key, record.value)
            if decoded is not None and decoded[1] is not None:
                found[decoded[0]] = decoded[1]
    return found


def _copy_of(root: Path, to: Path) -> Path:
    """So that looking does not change what the broker goes on with."""
    return Path(shutil.copytree(root, to))


def _ours(directory: Path) -> ServedCluster:
    config = {
        "transaction.state.log.num.partitions": 1,
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
    }
    return serve(directory, config=config)


def _committed(kafka: ServedCluster) -> list[bytes | None]:
    consumer = kafka.consumer(TopicPartition(TOPIC, 0), isolation="read_committed")
    return [record.value for _, record in consumer.read_to_end()]


def _put_in(kafka: Path, ours: Path) -> None:
    for name in LOGS:
        for old in (ours / name).iterdir():
            if old.name != PARTITION_METADATA:
                old.unlink()
        for log in (kafka / name).glob("*.log"):
            shutil.copy2(log, ours / name / log.name)
    (ours / CLEAN_SHUTDOWN).unlink()


def test_there_and_back(kafka: str, tmp_path: Path) -> None:
    broker = KafkaBroker(tmp_path / "kafka")
    with broker:
        _create_topic(broker.bootstrap)
        _write(broker.bootstrap, "done", "commit")
        _write(broker.bootstrap, "done", "abort")
        _write(broker.bootstrap, "open", "nothing")
    theirs = _states(_copy_of(broker.log_dir, tmp_path / "theirs"))
    assert theirs["done"].state is TransactionState.COMPLETE_ABORT
    assert theirs["open"].state is TransactionState.ONGOING

    directory = tmp_path / "ours"
    with _ours(directory) as ours:
        _create_topic(ours.bootstrap_servers)
        _write(ours.bootstrap_servers, "forgotten", "commit")
    _put_in(broker.log_dir, directory / "broker-0")
    with _ours(directory) as ours:
        log = ours.replica(TopicPartition(TOPIC, 0), 0).local_log()

        def nothing_is_open() -> bool:
            return log.snapshot.last_stable_offset == log.log_end_offset

        until(nothing_is_open, "what Kafka left open is aborted")
        assert _committed(ours) == [b"done-commit-0", b"done-commit-1"]
        _write(ours.bootstrap_servers, "done", "commit", 1)
        _write(ours.bootstrap_servers, "new", "commit", 1)
        until(nothing_is_open, "the markers of both are written")
        assert _committed(ours)[2:] == [b"done-commit-0", b"new-commit-0"]
    own = _states(_copy_of(directory / "broker-0", tmp_path / "own"))
    assert own["open"].state is TransactionState.COMPLETE_ABORT
    assert own["open"].producer_epoch == theirs["open"].producer_epoch + 1
    assert own["new"].producer_id > max(each.producer_id for each in theirs.values())
    assert own["done"].producer_id == theirs["done"].producer_id
    assert own["done"].producer_epoch == theirs["done"].producer_epoch + 1

    adopted = {name: directory / "broker-0" / f"{name}-0" for name in (TOPIC, TRANSACTION_STATE)}
    for name, source in adopted.items():
        broker.adopt(name, {0: source}, unclean=True)
    with broker:
        _write(broker.bootstrap, "done", "commit", 1)
        _write(broker.bootstrap, "open", "commit", 1)
    again = _states(_copy_of(broker.log_dir, tmp_path / "again"))
    assert again["done"].producer_id == own["done"].producer_id
    assert again["done"].producer_epoch == own["done"].producer_epoch + 1
    assert again["open"].producer_id == own["open"].producer_id
    assert again["open"].producer_epoch == own["open"].producer_epoch + 1
    assert again["new"].state is TransactionState.COMPLETE_COMMIT
