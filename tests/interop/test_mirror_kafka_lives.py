"""A mirror while a real Kafka lives: topics deleted and made anew, records deleted and expired, a
compaction, more partitions, other configurations, a quota, and rights to read alone."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import confluent_kafka as confluent
import kafka_jars
import kafka_tools
import pytest
from broker import KafkaBroker
from confluent_kafka import admin
from kafka_tools import DeleteRecords, ProduceRecords
from mirroring import compare, create, delete, mirroring

from checkpoints.types import TopicPartition
from tests.support.mirrored import (
    batches_of,
    check_verifies,
    report_of,
    reported,
)
from tests.support.mirrors import caught_up
from tests.support.scripted_source import header_of
from tests.support.until import patience, until

pytestmark = pytest.mark.slow

ORDERS = TopicPartition("orders", 0)
EAGER: Mapping[str, str | int] = {
    "log.retention.check.interval.ms": 200,
    "log.initial.task.delay.ms": 100,
    "log.cleaner.backoff.ms": 100,
    "file.delete.delay.ms": 100,
    "log.cleaner.min.compaction.lag.ms": 0,
}


def _write(node: KafkaBroker, topic: str, count: int, seed: int = 1, partition: int = 0) -> None:
    kafka_tools.produce(
        node.bootstrap, ProduceRecords(topic, count, partition=partition, seed=seed)
    )


@pytest.fixture
def node(kafka: str, tmp_path: Path) -> Iterator[KafkaBroker]:
    broker = KafkaBroker(tmp_path / "node", overrides=EAGER, heap="384m")
    try:
        broker.__enter__()
        yield broker
    finally:
        broker.kill()


@pytest.mark.essential
def test_topics_and_records_come_and_go(node: KafkaBroker, tmp_path: Path) -> None:
    """A topic made anew under its name; records deleted while the mirror runs, and while not."""
    directory = tmp_path / "mirror"
    for topic in ("orders", "deleted", "grown"):
        create(node.bootstrap, topic)
        _write(node, topic, 100)
    with mirroring(node.bootstrap, directory) as mirror:
        caught_up(mirror)
        first = batches_of(directory, ORDERS)
        delete(node.bootstrap, "orders")
        create(node.bootstrap, "orders")
        _write(node, "orders", 30, seed=2)
        client = admin.AdminClient({"bootstrap.servers": node.bootstrap})
        for made in client.create_partitions([admin.NewPartitions("grown", 3)]).values():
            made.result(patience())
        _write(node, "grown", 10, partition=2)
        _alter(node, "grown", "segment.ms", "123456")
        kafka_tools.produce(node.bootstrap, DeleteRecords("deleted", 60))
        until(
            lambda: header_of(batches_of(directory, ORDERS)[-1]).last == 29, "the new one is here"
        )
        until(lambda: batches_of(directory, TopicPartition("grown", 2)), "so are new partitions")
        caught_up(mirror)
    kafka_tools.produce(node.bootstrap, ProduceRecords("deleted", 50, seed=3))
    kafka_tools.produce(node.bootstrap, DeleteRecords("deleted", 140))
    kafka_tools.produce(node.bootstrap, ProduceRecords("deleted", 10, seed=4))
    with mirroring(node.bootstrap, directory) as mirror:
        caught_up(mirror)
        properties = directory / "grown-0" / "topic.properties"
        until(lambda: "123456" in properties.read_text(), "the configuration is here")
    node.stop()
    compare(directory, node.log_dir, whole=False)
    (aside,) = [path for path in directory.iterdir() if path.name.endswith("-stray")]
    kept = b"".join(path.read_bytes() for path in sorted(aside.glob("*.log")))
    assert kept == b"".join(first)
    lost = reported(directory, TopicPartition("deleted", 0))
    assert "140" in str(lost) or "139" in str(lost), report_of(directory)
    check_verifies(directory)


def _alter(node: KafkaBroker, topic: str, key: str, value: str) -> None:
    client = admin.AdminClient({"bootstrap.servers": node.bootstrap})
    operation = admin.AlterConfigOpType.SET
    resource = admin.ConfigResource(
        admin.ConfigResource.Type.TOPIC,
        topic,
        incremental_configs=[admin.ConfigEntry(key, value, incremental_operation=operation)],
    )
    for done in client.incremental_alter_configs([resource]).values():
        done.result(patience())


def test_retention_is_faster_than_the_mirror(node: KafkaBroker, tmp_path: Path) -> None:
    """What expired unread is reported, range by range, and nothing else is missing."""
    directory = tmp_path / "mirror"
    create(node.bootstrap, "orders", retention_bytes=60_000, internal_segment_bytes=20_000)
    with mirroring(node.bootstrap, directory, rate_bytes_per_s=200_000) as mirror:
        for seed in range(8):
            _write(node, "orders", 1500, seed=seed)
        caught_up(mirror)
    node.stop()
    compare(directory, node.log_dir, whole=False)
    ours = [header_of(each) for each in batches_of(directory, ORDERS)]
    gaps = [
        (before.last + 1, after.base)
        for before, after in itertools.pairwise(ours)
        if after.base != before.last + 1
    ]
    text = str(reported(directory, ORDERS))
    for start, end in gaps:
        assert str(start) in text, (start, text)
        assert str(end) in text or str(end - 1) in text, (end, text)
    check_verifies(directory)


def test_a_compaction_runs(node: KafkaBroker, tmp_path: Path) -> None:
    """Batches that the cleaner has shortened before they were read are taken as they are."""
    directory = tmp_path / "mirror"
    create(
        node.bootstrap,
        "orders",
        cleanup_policy="compact",
        min_cleanable_dirty_ratio="0.01",
        internal_segment_bytes=20_000,
    )
    stop = threading.Event()

    def write() -> None:
        producer = confluent.Producer({"bootstrap.servers": node.bootstrap, "log_level": 0})
        at = 0
        while not stop.is_set():
            for _ in range(200):
                producer.produce("orders", b"v" * 100, f"key-{at % 50}")
                at += 1
            producer.flush(patience())

    writer = threading.Thread(target=write)
    writer.start()
    try:
        until(lambda: node.log_file.read_text().count("Cleaner 0") > 1, "the cleaner has run")
        with mirroring(node.bootstrap, directory) as mirror:
            caught_up(mirror)
            cleaned = node.log_file.read_text().count("Log cleaner thread")
            until(
                lambda: node.log_file.read_text().count("Log cleaner thread") > cleaned + 2,
                "it runs on",
            )
            stop.set()
            writer.join(patience())
            caught_up(mirror)
    finally:
        stop.set()
    node.stop()
    ours, theirs = batches_of(directory, ORDERS), batches_of(node.log_dir, ORDERS)
    assert header_of(ours[-1]).last == header_of(theirs[-1]).last
    check_verifies(directory)


@pytest.mark.parametrize("is_live", [True, False], ids=["live", "stopped"])
def test_a_copied_directory_is_gone_on_with(
    node: KafkaBroker, is_live: bool, tmp_path: Path
) -> None:
    """Only what is not in the copy goes over the wire, whatever the copy was taken of (X-174)."""
    directory = tmp_path / "mirror"
    create(node.bootstrap, "orders")
    _write(node, "orders", 3000)
    with _writing(node, "orders") if is_live else contextlib.nullcontext():
        if not is_live:
            node.stop()
        shutil.copytree(node.log_dir, directory, ignore=shutil.ignore_patterns(".lock", "*.tmp"))
    if not is_live:
        node.start()
    copied = sum(map(len, batches_of(directory, ORDERS)))
    assert copied > 300_000
    _write(node, "orders", 100, seed=2)
    with mirroring(node.bootstrap, directory) as mirror:
        caught_up(mirror)
        received = mirror.status.partitions[ORDERS].bytes
    node.stop()
    compare(directory, node.log_dir)
    assert received == sum(map(len, batches_of(node.log_dir, ORDERS))) - copied
    assert not reported(directory, ORDERS)
    check_verifies(directory)


@contextlib.contextmanager
def _writing(node: KafkaBroker, topic: str) -> Iterator[None]:
    """Somebody writes all the time."""
    producer = confluent.Producer({"bootstrap.servers": node.bootstrap, "log_level": 0})
    stop, written = threading.Event(), threading.Event()

    def write() -> None:
        while not stop.is_set():
            for at in range(50):
                producer.produce(topic, b"meanwhile %d" % at * 20, partition=0)
            assert producer.flush(patience()) == 0
            written.set()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert written.wait(patience())
        yield
    finally:
        stop.set()
        writer.join()


def test_a_quota_of_the_source(node: KafkaBroker, tmp_path: Path) -> None:
    """The mirror waits as it is told, and gets there."""
    directory = tmp_path / "mirror"
    create(node.bootstrap, "orders")
    _write(node, "orders", 3000)
    kafka_jars.run_java(
        "kafka.admin.ConfigCommand",
        "--bootstrap-server",
        node.bootstrap,
        "--alter",
        "--add-config",
        "consumer_byte_rate=100000",
        "--entity-type",
        "clients",
        "--entity-default",
    )
    with mirroring(node.bootstrap, directory) as mirror:
        caught_up(mirror)
    node.stop()
    compare(directory, node.log_dir)
    check_verifies(directory)


class SecuredBroker(KafkaBroker):
    """Clients log in, and may do what somebody has allowed them."""

    def properties(self) -> dict[str, str | int]:
        own = super().properties()
        broker, controller = self._ports
        users = " ".join(f'user_{name}="{name}-password"' for name in ("admin", "mirror"))
        return own | {
            "listeners": f"SASL_PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"SASL_PLAINTEXT://127.0.0.1:{broker}",
            "listener.security.protocol.map": (
                "SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT"
            ),
            "inter.broker.listener.name": "SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
                "org.apache.kafka.common.security.plain.PlainLoginModule required "
                f'username="admin" password="admin-password" {users};'
            ),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:admin;User:ANONYMOUS",
        }


def _login(user: str) -> dict[str, str]:
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": f"{user}-password",
    }


def _allow(node: KafkaBroker, topic: str, *operations: admin.AclOperation) -> None:
    client = admin.AdminClient({"bootstrap.servers": node.bootstrap, **_login("admin")})
    bindings = [
        admin.AclBinding(
            admin.ResourceType.TOPIC,
            topic,
            admin.ResourcePatternType.LITERAL,
            "User:mirror",
            "*",
            operation,
            admin.AclPermissionType.ALLOW,
        )
        for operation in operations
    ]
    for made in client.create_acls(bindings).values():
        made.result(patience())


@pytest.mark.essential
def test_rights_to_read_alone(kafka: str, tmp_path: Path) -> None:
    """READ implies DESCRIBE: batches come, configurations do not, and the report says so. A topic
    that may not be read is no topic; once it may, it is mirrored."""
    directory = tmp_path / "mirror"
    node = SecuredBroker(tmp_path / "node", heap="384m")
    try:
        node.__enter__()
        everything = {"bootstrap.servers": node.bootstrap, **_login("admin")}
        client = admin.AdminClient(everything)
        names = ("orders", "secret", "shown")
        config = {"retention.ms": "777777777777"}
        topics = [admin.NewTopic(name, 1, 1, config=config) for name in names]
        for made in client.create_topics(topics).values():
            made.result(patience())
        producer = confluent.Producer({**everything, "log_level": 0})
        for name in names:
            for at in range(50):
                producer.produce(name, b"v%d" % at)
        assert producer.flush(patience()) == 0
        _allow(node, "orders", admin.AclOperation.READ)
        _allow(node, "shown", admin.AclOperation.DESCRIBE)
        with mirroring(node.bootstrap, directory, login=_login("mirror")) as mirror:
            until(lambda: len(batches_of(directory, ORDERS)) > 0, "what may be read is mirrored")
            assert not (directory / "secret-0").exists()
            assert not batches_of(directory, TopicPartition("shown", 0))
            _allow(node, "secret", admin.AclOperation.READ, admin.AclOperation.DESCRIBE_CONFIGS)
            _allow(node, "shown", admin.AclOperation.READ)
            caught_up(mirror)
            until(lambda: batches_of(directory, TopicPartition("shown", 0)), "rights were given")
            until(lambda: batches_of(directory, TopicPartition("secret", 0)), "rights were given")
            caught_up(mirror)
        node.stop()
    finally:
        node.kill()
    compare(directory, node.log_dir)
    assert "777777777777" in (directory / "secret-0" / "topic.properties").read_text()
    assert any("orders" in str(each) for each in report_of(directory)), report_of(directory)
    check_verifies(directory)
