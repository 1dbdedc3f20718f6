"""Kafka's broker-wide keys reach the part that knows them."""

from __future__ import annotations

from collections import Counter

import pytest

from logstore.common.errors import ConfigError
from replication.apis.configs import broker_configs
from replication.network import Listener
from replication.server.config import ServerConfig
from replication.server.kafka_server import Exposure, KafkaServer, RequestListeners
from replication.server.serving import serve

ANYONE = Exposure(allow_plaintext=True)


def test_each_key_for_its_part() -> None:
    config = ServerConfig.from_properties(
        {
            "log.retention.ms": "5",
            "message.max.bytes": 6,
            "min.insync.replicas": 2,
            "log.retention.check.interval.ms": 7,
            "num.partitions": "8",
            "num.network.threads": 3,
            "auto.create.topics.enable": "false",
            "group.max.size": 9,
            "transactional.id.expiration.ms": 10,
        }
    )
    assert config.log.retention_ms == 5
    assert config.log.max_message_bytes == 6
    assert config.log.min_insync_replicas == 2
    assert config.broker.log_retention_check_interval_ms == 7
    assert config.replication.num_partitions == 8
    assert config.network.num_network_threads == 3
    assert not config.apis.auto_create_topics_enable
    assert config.groups.group_max_size == 9
    assert ServerConfig.from_properties({}) == ServerConfig()


@pytest.mark.parametrize(
    "properties",
    [
        {"retention.ms": "5"},  # a topic's own name
        {"leader.replication.throttled.replicas": "*"},
        {"no.such.key": "1"},
        {"num.partitions": "0"},
        {"num.partitions": "many"},
        {"auto.create.topics.enable": "maybe"},
    ],
)
def test_what_no_part_takes(properties: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        ServerConfig.from_properties(properties)


def test_no_key_is_known_to_two_parts() -> None:
    names = Counter(each.name for each in broker_configs(ServerConfig()))
    assert [name for name, count in names.items() if count > 1] == []


def test_a_broker_keeps_its_ports() -> None:
    doors = RequestListeners([Listener("A"), Listener("B")], [4, 5], ServerConfig())
    first, other = doors(4), doors(5)
    endpoints = first.endpoints
    first.close(0)
    again = doors(4)
    assert again.endpoints == endpoints
    assert [each.listener for each in endpoints] == ["A", "B"]
    assert len({each.port for each in (*endpoints, *other.endpoints)}) == 4
    again.close(0)
    other.close(0)


def test_brokers_have_the_ids_and_addresses_that_they_are_given() -> None:
    """Behind a port that is mapped: clients use the address outside."""
    config = ServerConfig.from_properties(
        {"node.id": "1", "broker.id": "1", "advertised.listeners": "PLAINTEXT://outside:29092"}
    )
    assert config.node.first_id == 1
    listeners = [Listener("PLAINTEXT", "0.0.0.0"), Listener("SSL")]
    doors = RequestListeners(listeners, [1, 2], config, ANYONE)
    found = {}
    for broker_id in (1, 2):
        server = doors(broker_id)
        for each in server.endpoints:
            is_outside = each.listener == "PLAINTEXT"
            found[broker_id, each.listener] = (each.host, each.port if is_outside else 0)
        server.close(0)
    assert found == {
        (1, "PLAINTEXT"): ("outside", 29092),
        (2, "PLAINTEXT"): ("outside", 29093),
        (1, "SSL"): ("127.0.0.1", 0),
        (2, "SSL"): ("127.0.0.1", 0),
    }


@pytest.mark.parametrize(
    "properties",
    [
        {"node.id": "1", "broker.id": "2"},
        {"node.id": "-2"},
        {"advertised.listeners": "here:9092"},
        {"advertised.listeners": "PLAINTEXT://here"},
        {"advertised.listeners": "PLAINTEXT://here:0"},
        {"advertised.listeners": "PLAINTEXT://:9092"},
        {"advertised.listeners": "PLAINTEXT://here:" + "9" * 5000},
        {"advertised.listeners": "A://here:1,A://here:2"},
    ],
)
def test_who_nobody_can_be(properties: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        ServerConfig.from_properties(properties)


def test_what_is_advertised_is_a_listener() -> None:
    config = ServerConfig.from_properties({"advertised.listeners": "SSL://outside:1"})
    with pytest.raises(ConfigError, match="SSL"):
        RequestListeners([Listener("A")], [0], config)(0)


def test_a_listener_of_any_name_is_advertised() -> None:
    config = ServerConfig.from_properties({"advertised.listeners": "OUTSIDE://outside:29092"})
    server = RequestListeners([Listener("OUTSIDE")], [0], config)(0)
    server.close(0)
    assert [(each.host, each.port) for each in server.endpoints] == [("outside", 29092)]


@pytest.mark.parametrize(
    ("listeners", "advertised", "complaint"),
    [
        ([Listener("A", port=65_534)], "", "there are not 3 ports"),
        ([Listener("A")], "A://outside:65534", "there are not 3 ports"),
        ([Listener("A"), Listener("B")], "A://outside:1,B://outside:3", "one address"),
    ],
)
def test_brokers_without_ports_of_their_own(
    listeners: list[Listener], advertised: str, complaint: str
) -> None:
    config = ServerConfig.from_properties({"advertised.listeners": advertised})
    with pytest.raises(ConfigError, match=complaint):
        RequestListeners(listeners, [0, 1, 2], config)


def test_brokers_without_ids_of_their_own() -> None:
    with pytest.raises(ConfigError, match="there are not 2 ids"):
        serve(brokers=2, config={"node.id": 2**31 - 1})


def test_all_addresses_need_one_to_advertise() -> None:
    with pytest.raises(ConfigError, match="all addresses"):
        KafkaServer(0, [Listener("A", "0.0.0.0")], ServerConfig())


@pytest.mark.parametrize("name", ["http", "registry"])
def test_a_port_alone_is_no_place_to_serve_http(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}=8080: give an HttpListener"):
        serve(**{name: 8080})
