"""A ``server.properties`` of Kafka's makes a broker in a process of its own."""

from __future__ import annotations

import pytest

from logstore.common.errors import ConfigError
from replication.network import Listener, SecurityProtocol
from replication.server.config import process_config

DEFAULT = [Listener("PLAINTEXT", "127.0.0.1", 9092)]

AS_IT_COMES = {  # the file of Kafka 3.9, without its comments
    "broker.id": "0",
    "num.network.threads": "3",
    "num.io.threads": "8",
    "socket.send.buffer.bytes": "102400",
    "socket.receive.buffer.bytes": "102400",
    "socket.request.max.bytes": "104857600",
    "log.dirs": "/tmp/kafka-logs",
    "num.partitions": "1",
    "num.recovery.threads.per.data.dir": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "log.retention.hours": "168",
    "log.retention.check.interval.ms": "300000",
    "zookeeper.connect": "localhost:2181",
    "zookeeper.connection.timeout.ms": "18000",
    "group.initial.rebalance.delay.ms": "0",
}


def test_the_file_that_comes_with_kafka_is_taken() -> None:
    own, config, ignored = process_config(AS_IT_COMES)
    assert config.node.first_id == 0
    assert config.log.retention_ms == 168 * 3_600_000
    assert own.directories == ("/tmp/kafka-logs",)
    assert own.zookeeper_connect == "localhost:2181"
    assert ignored == ["zookeeper.connection.timeout.ms"]
    assert own.parse_listeners(DEFAULT, "") == [DEFAULT[0]._replace(is_inter_broker=True)]


def test_the_smallest_unit_counts() -> None:
    in_minutes = {"log.retention.hours": 9, "log.retention.minutes": "2"}
    assert process_config(in_minutes)[1].log.retention_ms == 120_000
    assert process_config({**in_minutes, "log.retention.ms": 5})[1].log.retention_ms == 5
    assert process_config({"log.retention.hours": "-1"})[1].log.retention_ms == -1


TWO = "CLIENT://:9092,INTERNAL://127.0.0.1:9093"
MAP = "CLIENT:SASL_SSL,INTERNAL:PLAINTEXT"


@pytest.mark.parametrize(
    ("properties", "name", "chosen"),
    [
        ({}, "INTERNAL", "INTERNAL"),
        ({}, "", "CLIENT"),
        ({"security.inter.broker.protocol": "PLAINTEXT"}, "", "INTERNAL"),
    ],
)
def test_one_listener_is_that_of_the_brokers(
    properties: dict[str, str], name: str, chosen: str
) -> None:
    given = {"listeners": TWO, "listener.security.protocol.map": MAP, **properties}
    found = process_config(given)[0].parse_listeners(DEFAULT, name)
    assert [each.name for each in found if each.is_inter_broker] == [chosen]
    assert found[0].security_protocol is SecurityProtocol.SASL_SSL


@pytest.mark.parametrize(
    ("properties", "named"),
    [
        ({"log.dirs": "/a,/b", "log.dir": "/c"}, "log.dirs"),
        ({"log.retention.hours": "many"}, "log.retention.hours"),
        ({"log.retention.day": "1"}, "log.retention.day"),
        ({"authorizer.class.name": "kafka.security.authorizer.AclAuthorizer"}, "authorizer"),
        ({"security.inter.broker.protocol": "SSL"}, "security.inter.broker.protocol"),
        ({"listeners": "INTERNAL://:9092"}, "INTERNAL"),
    ],
)
def test_what_cannot_be_done_is_named(properties: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        process_config(properties)[0].parse_listeners(DEFAULT, "")
