"""``logstore topics`` and ``logstore groups`` on a real Kafka, beside Kafka's own tools."""

from __future__ import annotations

import re
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import kafka_jars
import kafka_tools
import pytest
from broker import KafkaBroker

from tests.support.certificates import make_certificates, needs_openssl
from tests.support.commands import logstore, logstore_json
from tests.support.until import patience, until

pytestmark = [pytest.mark.slow, needs_openssl]

PASSWORD = "wonder=land,"
TOPICS = "org.apache.kafka.tools.TopicCommand"
OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"


class SecureBroker(KafkaBroker):
    """With a listener of TLS and logins beside the plain one."""

    def __init__(self, directory: Path, certificates: Path) -> None:
        super().__init__(directory)
        self._certificates = certificates
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.secure = f"127.0.0.1:{free.getsockname()[1]}"

    def properties(self) -> dict[str, str | int]:
        found = super().properties()
        tls = "listener.name.secure."
        return {
            **found,
            "listeners": f"{found['listeners']},SECURE://{self.secure}",
            "advertised.listeners": f"{found['advertised.listeners']},SECURE://{self.secure}",
            "listener.security.protocol.map": f"{found['listener.security.protocol.map']},"
            "SECURE:SASL_SSL",
            "sasl.enabled.mechanisms": "SCRAM-SHA-512",
            tls + "scram-sha-512.sasl.jaas.config": (
                "org.apache.kafka.common.security.scram.ScramLoginModule required;"
            ),
            tls + "ssl.keystore.type": "PEM",
            tls + "ssl.keystore.location": str(self._certificates / "server.pem"),
        }


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def broker(
    kafka: str, certificates: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SecureBroker]:
    with SecureBroker(tmp_path_factory.mktemp("kafka"), certificates) as broker:
        yield broker


def kafkas(broker: KafkaBroker, tool: str, *words: str) -> list[list[str]]:
    """The lines of a table as words."""
    told = kafka_jars.run_java(tool, "--bootstrap-server", broker.bootstrap, *words)
    return [line.split() for line in told.stdout.splitlines() if line.strip()]


def test_topics(broker: SecureBroker) -> None:
    at = ("--bootstrap-server", broker.bootstrap)
    logstore("topics", "create", "orders", "--partitions", "50", *at)
    logstore("topics", "create", "orders", *at, code=1)
    logstore("topics", "create", "small", *at)
    config = ("--config", "retention.ms=-1", "--config", "segment.bytes=1048576")
    logstore("topics", "alter", "small", *config, "--partitions", "3", *at)
    logstore("topics", "alter", "small", "--delete-config", "segment.bytes", *at)
    kafka_tools.produce(broker.bootstrap, kafka_tools.ProduceRecords("small", 20, 1))
    kafka_tools.produce(broker.bootstrap, kafka_tools.DeleteRecords("small", 5, 1))

    head, *parts = kafkas(broker, TOPICS, "--describe", "--topic", "small")
    (ours,) = logstore_json("topics", "describe", "small", *at)
    facts = dict(zip(head[::2], head[1::2], strict=False))
    assert facts["TopicId:"] == ours["topicId"]
    assert facts["PartitionCount:"] == str(ours["partitionCount"]) == "3"
    assert facts["ReplicationFactor:"] == str(ours["replicationFactor"]) == "1"
    theirs = facts["Configs:"].split(",")
    assert theirs == [f"{key}={value}" for key, value in ours["configs"].items()]
    for part, own in zip(parts, ours["partitions"], strict=True):
        facts = dict(zip(part[::2], part[1::2], strict=False))
        assert [facts[f"{key}:"] for key in ("Partition", "Leader", "Replicas", "Isr")] == [
            str(own["partition"]),
            str(own["leader"]),
            *(",".join(map(str, own[key])) for key in ("replicas", "isr")),
        ]
    for time, key in (("-1", "highWatermark"), ("-2", "logStartOffset")):
        lines = kafkas(broker, OFFSETS, "--topic", "small", "--time", time)
        assert [line[0] for line in lines] == [
            f"small:{own['partition']}:{own[key]}" for own in ours["partitions"]
        ]
    assert {topic["name"] for topic in logstore_json("topics", "list", *at)} >= {"orders", "small"}
    told = logstore("topics", "describe", "orders", *at)
    assert told.stdout.count("orders-") == 50
    told = logstore("topics", "delete", "orders", "none-such", *at, code=1)
    assert told.stdout == "deleted orders\n"
    assert told.stderr.startswith("error: none-such: UNKNOWN_TOPIC_OR_PARTITION")


@contextmanager
def reading(broker: KafkaBroker, group: str, topic: str, protocol: str) -> Iterator[None]:
    """Kafka's own consumer, which commits what it has read, until it leaves."""
    command = kafka_jars.java_command(
        "org.apache.kafka.tools.VerifiableConsumer",
        *("--bootstrap-server", broker.bootstrap, "--topic", topic, "--group-id", group),
        *("--group-protocol", protocol),
    )
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as consumer:
        try:
            yield
        finally:
            consumer.terminate()
            consumer.wait(patience())


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_groups(broker: SecureBroker, protocol: str) -> None:
    at = ("--bootstrap-server", broker.bootstrap)
    group, topic = f"billing-{protocol}", f"read-{protocol}"
    logstore("topics", "create", topic, "--partitions", "2", *at)
    kafka_tools.produce(broker.bootstrap, kafka_tools.ProduceRecords(topic, 100, 0))

    def described() -> Any:
        return logstore_json("groups", "describe", group, *at, code=None)

    def has_read() -> Any:
        return [g for g in described() if [o["lag"] for o in g["offsets"]] == [0, None]]

    with reading(broker, group, topic, protocol):
        (ours,) = until(has_read)
        table = kafkas(broker, GROUPS, "--describe", "--group", group)[1:]
        assert {
            (line[1], line[2], line[3], line[4], line[5], line[6], line[7]) for line in table
        } == {
            (
                topic,
                str(each["partition"]),
                "-" if each["committed"] < 0 else str(each["committed"]),
                str(each["highWatermark"]),
                "-" if each["lag"] is None else str(each["lag"]),
                member["memberId"],
                member["host"],
            )
            for member in ours["members"]
            for each in ours["offsets"]
        }
        (listed,) = [g for g in logstore_json("groups", "list", *at) if g["groupId"] == group]
        assert (listed["state"], len(listed["members"])) == ("Stable", 1)
        told = logstore("groups", "delete", group, *at, code=1)
        assert told.stderr.startswith(f"error: {group}: NON_EMPTY_GROUP")
        told = logstore("groups", "delete-offsets", group, "--topic", topic, *at, code=1)
        assert told.stderr.count("GROUP_SUBSCRIBED_TO_TOPIC") == 2
        reset = ("groups", "reset-offsets", group, *at)
        told = logstore(*reset, "--topic", topic, "--to-earliest", "--execute", code=1)
        assert "is Stable" in told.stderr
    until(lambda: described()[0]["state"] == "Empty")
    logstore(*reset, "--topic", f"{topic}:0", "--to-offset", "40", "--execute")
    logstore(*reset, "--topic", f"{topic}:0", "--shift-by", "-10")
    (line,) = (
        line
        for line in kafkas(broker, GROUPS, "--describe", "--group", group)[1:]
        if line[2] == "0"
    )
    assert line[3:6] == ["40", "100", "60"]
    plan = logstore_json(*reset, "--topic", f"{topic}:0", "--to-datetime", "1700000000500")
    (theirs,) = [
        line[3]
        for line in kafkas(
            broker,
            GROUPS,
            *("--reset-offsets", "--group", group, "--topic", f"{topic}:0", "--dry-run"),
            *("--to-datetime", "2023-11-14T22:13:20.500"),
        )
        if line[0] == group
    ]
    assert theirs == str(plan[0]["newOffset"]) == "50"
    logstore("groups", "delete-offsets", group, "--topic", f"{topic}:0", *at)
    logstore("groups", "delete", group, *at)
    assert group not in logstore("groups", "list", *at).stdout


def test_tls_and_scram(broker: SecureBroker, certificates: Path, tmp_path: Path) -> None:
    kafkas(
        broker,
        "kafka.admin.ConfigCommand",
        *("--alter", "--entity-type", "users", "--entity-name", "alice"),
        *("--add-config", f"SCRAM-SHA-512=[password={PASSWORD}]"),
    )
    properties = tmp_path / "client.properties"
    properties.write_text(
        f"bootstrap.servers={broker.secure}\n"
        "security.protocol=SASL_SSL\n"
        "sasl.mechanism=SCRAM-SHA-512\n"
        "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required "
        f'username="alice" password="{PASSWORD}";\n'
        "ssl.truststore.type=PEM\n"
        f"ssl.truststore.location={certificates / 'ca.pem'}\n"
    )
    by = ("--command-config", str(properties))
    logstore("topics", "create", "secret", *by)
    assert "secret-0" in logstore("status", *by).stdout
    told = logstore(
        "status",
        *by,
        "-X",
        "sasl.jaas.config=",
        "-X",
        "sasl.username=alice",
        "-X",
        "sasl.password=wr0ng",
        code=2,
    )
    assert re.match(
        r"error: .*: the login of 'alice' is refused: Authentication failed", told.stderr
    )
    for words, code in (
        (["--bootstrap-server", broker.bootstrap], 2),
        (["-X", "security.protocol=PLAINTEXT"], 2),
        (["-X", "ssl.truststore.location="], 2),
    ):
        told = logstore("topics", "list", *by, *words, code=code)
        assert told.stderr.startswith("error: 127.0.0.1:")
        assert told.stderr.count("\n") == 1
