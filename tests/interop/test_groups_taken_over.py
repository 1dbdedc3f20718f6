"""The groups of a real Kafka go on with ours, and ours with a real Kafka: offsets, members and
transactions in ``__consumer_offsets``."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
from broker import PARTITION_METADATA, KafkaBroker

from checkpoints.clean_shutdown import CLEAN_SHUTDOWN
from replication.common.internal_topics import GROUP_METADATA
from replication.server.serving import ServedCluster, serve

pytestmark = pytest.mark.kafka

confluent = pytest.importorskip("confluent_kafka")
admin = pytest.importorskip("confluent_kafka.admin")

T = TypeVar("T")
TOPIC = "orders"
PARTITIONS = 3
TIMEOUT_S = 60


def _consumer(bootstrap: str, group: str, **options: object) -> confluent.Consumer:
    return confluent.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 45_000,
            "log_level": 0,
            **options,
        }
    )


def _in_time(ask: Callable[[], T]) -> T:
    """A broker that has just started sends clients away for a moment."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            return ask()
        except confluent.KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def _create_topic(bootstrap: str) -> None:
    client = admin.AdminClient({"bootstrap.servers": bootstrap})
    for created in client.create_topics([admin.NewTopic(TOPIC, PARTITIONS, 1)]).values():
        created.result(TIMEOUT_S)


def _commit(bootstrap: str, group: str, offset: int, metadata: str = "") -> None:
    """Of nobody: for every partition another offset."""
    consumer = _consumer(bootstrap, group)
    offsets = [
        confluent.TopicPartition(TOPIC, number, offset + number, metadata)
        for number in range(PARTITIONS)
    ]
    consumer.commit(offsets=offsets, asynchronous=False)
    consumer.close()


def _committed(bootstrap: str, group: str) -> list[tuple[int, str | None]]:
    """−1001 where there is none."""
    consumer = _consumer(bootstrap, group)
    asked = [confluent.TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
    found = _in_time(lambda: consumer.committed(asked, timeout=TIMEOUT_S))
    consumer.close()
    return [(each.offset, each.metadata) for each in found]


def _commit_as_member(bootstrap: str, group: str, offset: int) -> None:
    """A static member, which does not leave when it stops."""
    consumer = _consumer(bootstrap, group, **{"group.instance.id": "one"})
    consumer.subscribe([TOPIC])
    while not consumer.assignment():
        consumer.poll(0.1)
    consumer.commit(offsets=[confluent.TopicPartition(TOPIC, 0, offset)], asynchronous=False)
    consumer.close()


def _commit_in_transaction(bootstrap: str, group: str, offset: int, *, commits: bool) -> None:
    producer = confluent.Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": f"of-{group}"}
    )
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    consumer = _consumer(bootstrap, group)
    producer.send_offsets_to_transaction(
        [confluent.TopicPartition(TOPIC, 0, offset)],
        consumer.consumer_group_metadata(),
        TIMEOUT_S,
    )
    (producer.commit_transaction if commits else producer.abort_transaction)(TIMEOUT_S)
    consumer.close()


def _describe(bootstrap: str, group: str) -> tuple[str, list[tuple[str | None, int]]]:
    """The state, and of each member its instance and how much it has."""
    client = admin.AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    found = _in_time(lambda: client.describe_consumer_groups([group])[group].result(TIMEOUT_S))
    members = [
        (each.group_instance_id, len(each.assignment.topic_partitions)) for each in found.members
    ]
    return found.state.name, members


def _groups_log(root: Path) -> Path:
    return root / f"{GROUP_METADATA}-0"


def _ours(directory: Path) -> ServedCluster:
    return serve(directory, config={"offsets.topic.num.partitions": 1})


def _put_in(kafka: Path, ours: Path) -> None:
    """Only what Kafka's log says: what is beside it we find out ourselves."""
    target = _groups_log(ours)
    for old in target.iterdir():
        if old.name != PARTITION_METADATA:
            old.unlink()
    for log in _groups_log(kafka).glob("*.log"):
        shutil.copy2(log, target / log.name)
    (ours / CLEAN_SHUTDOWN).unlink()


def test_there_and_back(kafka: str, tmp_path: Path) -> None:
    """One log: begun by Kafka, gone on with by ours, then by Kafka again."""
    broker = KafkaBroker(tmp_path / "kafka")
    with broker:
        bootstrap = broker.bootstrap
        _create_topic(bootstrap)
        _commit(bootstrap, "simple", 10, "as it was sent")
        _commit(bootstrap, "simple", 20, "as it was sent")
        _commit_as_member(bootstrap, "members", 30)
        _commit_in_transaction(bootstrap, "done", 40, commits=True)
        _commit_in_transaction(bootstrap, "undone", 50, commits=False)
        assert _describe(bootstrap, "members") == ("STABLE", [("one", PARTITIONS)])

    with _ours(tmp_path / "ours") as ours:
        _create_topic(ours.bootstrap_servers)
        _commit(ours.bootstrap_servers, "forgotten", 1)
    _put_in(broker.log_dir, tmp_path / "ours" / "broker-0")
    with _ours(tmp_path / "ours") as ours:
        bootstrap = ours.bootstrap_servers
        assert [offset for offset, _ in _committed(bootstrap, "forgotten")] == [-1001] * PARTITIONS
        simple = [(20 + number, "as it was sent") for number in range(PARTITIONS)]
        assert _committed(bootstrap, "simple") == simple
        assert _committed(bootstrap, "members")[0][0] == 30
        assert _committed(bootstrap, "done")[0][0] == 40
        assert _committed(bootstrap, "undone")[0][0] == -1001
        assert _describe(bootstrap, "members") == ("STABLE", [("one", PARTITIONS)])

        _commit(bootstrap, "simple", 60, "ours")
        _commit_as_member(bootstrap, "members", 70)
        _commit(bootstrap, "new", 80)
        _commit_in_transaction(bootstrap, "done", 90, commits=True)
        _commit_in_transaction(bootstrap, "undone", 100, commits=False)

    broker.adopt(GROUP_METADATA, {0: _groups_log(tmp_path / "ours" / "broker-0")}, unclean=True)
    with broker:
        bootstrap = broker.bootstrap
        simple = [(60 + number, "ours") for number in range(PARTITIONS)]
        assert _committed(bootstrap, "simple") == simple
        assert _committed(bootstrap, "members")[0][0] == 70
        assert [offset for offset, _ in _committed(bootstrap, "new")] == [80, 81, 82]
        assert _committed(bootstrap, "done")[0][0] == 90
        assert _committed(bootstrap, "undone")[0][0] == -1001
        assert _describe(bootstrap, "members") == ("STABLE", [("one", PARTITIONS)])
