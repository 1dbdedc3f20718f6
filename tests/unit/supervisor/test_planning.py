"""What a first start decides, and what a later one must not contradict (X-150)."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import pytest

from logstore.common.errors import ConfigError
from replication.server.config import process_config
from replication.supervisor import planning, supervisor, zookeeper
from replication.supervisor.cluster_file import ClusterFile, EngineEntry
from replication.supervisor.planning import (
    StartOptions,
    check,
    check_ports,
    first_plan,
    further_broker,
    with_page,
)

ELSEWHERE = "zookeeper://elsewhere:2181"
JARS = zookeeper.Jars("somewhere", "3.9", "a.jar")


@pytest.fixture(autouse=True)
def all_ports_are_free(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """But those in the set."""
    taken: set[int] = set()
    monkeypatch.setattr(planning, "problem_of", lambda host, port: "taken" if port in taken else "")
    return taken


def with_jars(monkeypatch: pytest.MonkeyPatch, jars: zookeeper.Jars | None) -> None:
    monkeypatch.setattr(zookeeper, "find_jars", lambda given, environment: jars)


def plan(directory: Path, **wanted: object) -> ClusterFile:
    return first_plan(str(directory), StartOptions(**{"engine": ELSEWHERE, **wanted}), {})


def test_the_ports_of_a_first_start(tmp_path: Path) -> None:
    first, second, third = plan(tmp_path).brokers
    assert first.listeners == "PLAINTEXT://127.0.0.1:9092,INTERNAL://127.0.0.1:19092"
    assert first.http == "127.0.0.1:29092"
    assert [each.broker_id for each in (first, second, third)] == [0, 1, 2]
    assert third.addresses == (
        ("127.0.0.1", 9094),
        ("127.0.0.1", 19094),
        ("127.0.0.1", 29094),
    )
    assert first.config == planning.CONFIG


def test_ports_that_nobody_asked_for_move_away(
    tmp_path: Path, all_ports_are_free: set[int]
) -> None:
    all_ports_are_free |= {19093, 29092, 9092}
    first, second = plan(tmp_path, brokers=2).brokers
    assert first.addresses[0][1] == 9092  # asked for: it will say who has it
    assert first.addresses[2][1] in planning.DRAWN
    assert second.addresses[1][1] in planning.DRAWN


def test_options_of_a_first_start(tmp_path: Path) -> None:
    found = plan(
        tmp_path,
        brokers=2,
        listen="SSL://[::1]:700",
        http="127.0.0.1:80",
        config={"num.partitions": "4"},
        config_files=("/etc/a.properties",),
    )
    first, second = found.brokers
    assert found.http == "127.0.0.1:80"
    assert second.listeners == "SSL://[::1]:701,INTERNAL://127.0.0.1:10701"
    assert (first.http, second.http) == ("127.0.0.1:20700", "127.0.0.1:20701")
    assert second.config["num.partitions"] == "4"
    assert second.config_files == ("/etc/a.properties",)


def test_any_port(tmp_path: Path) -> None:
    found = plan(tmp_path, listen="127.0.0.1:0", http="127.0.0.1:0")
    ports = [port for each in found.brokers for _, port in each.addresses]
    assert len({*ports, int(found.http.rpartition(":")[2])}) == 10
    assert all(port in planning.DRAWN for port in ports)


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        ({"listen": "127.0.0.1"}, "--listen 127.0.0.1: give HOST:PORT"),
        ({"listen": "127.0.0.1:70000"}, "give HOST:PORT"),
        ({"listen": "127.0.0.1:65535"}, "port 65536: there are none above"),
        ({"http": "x"}, "--http x: give HOST:PORT"),
        ({"http": "0.0.0.0:80"}, "--http 0.0.0.0:80: the page has no login"),
        ({"http": "127.0.0.1:9093"}, "port 9093 is wanted twice"),
        ({"engine": "etcd"}, "--engine etcd: give zookeeper, tree or a URL"),
        ({"servers": 3}, "--zookeeper and --zookeeper-jars do not go with --engine"),
    ],
)
def test_options_that_cannot_be(tmp_path: Path, wanted: dict[str, object], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        plan(tmp_path, **wanted)


def test_zookeeper_where_its_jars_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_jars(monkeypatch, JARS)
    engine = plan(tmp_path, engine=None).engine
    assert (engine.name, engine.ports) == ("zookeeper", (2181,))
    engine = plan(tmp_path, engine=None, servers=3).engine
    assert engine.ports == (2181, 2888, 3888, 2182, 2889, 3889, 2183, 2890, 3890)
    assert plan(tmp_path, engine="tree").engine == EngineEntry(tree_port=2181)
    assert plan(tmp_path, engine=None, listen="127.0.0.1:0").engine.ports[0] in planning.DRAWN


def test_a_tree_where_no_jars_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_jars(monkeypatch, None)
    assert plan(tmp_path, engine=None).engine == EngineEntry(tree_port=2181)
    for wanted in ({"engine": "zookeeper"}, {"engine": None, "servers": 1}):
        with pytest.raises(ConfigError, match="no ZooKeeper is on this machine"):
            plan(tmp_path, **wanted)


def served(directory: Path, *ids: int) -> None:
    """A directory as ``logstore serve`` leaves it."""
    (directory / "coordinator").mkdir()
    for broker_id in ids:
        (directory / f"broker-{broker_id}").mkdir()
        (directory / f"broker-{broker_id}" / "meta.properties").touch()


def test_a_directory_of_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps its tree and its ids."""
    with_jars(monkeypatch, JARS)
    served(tmp_path, 4, 5)
    found = plan(tmp_path, engine=None)
    assert found.engine.name == "tree"
    assert [each.broker_id for each in found.brokers] == [4, 5]
    assert [each.addresses[0][1] for each in found.brokers] == [9092, 9093]
    with pytest.raises(ConfigError, match=r"--brokers 3: .* has broker-4, broker-5"):
        plan(tmp_path, engine=None, brokers=3)
    with pytest.raises(ConfigError, match="has coordinator, where its brokers meet already"):
        plan(tmp_path, engine="zookeeper")


def test_without_an_engine_a_broker_stops_before_it_is_killed() -> None:
    config = process_config(planning.CONFIG)[1].replication
    tries, pause_ms = (
        config.controlled_shutdown_max_retries,
        config.controlled_shutdown_retry_backoff_ms,
    )
    assert tries * (config.controller_socket_timeout_ms + pause_ms) < supervisor.STOP_S * 1000


def test_a_further_broker(tmp_path: Path, all_ports_are_free: set[int]) -> None:
    found = plan(tmp_path, config={"num.partitions": "4"})
    all_ports_are_free.add(29095)
    entry = further_broker(found, 3)
    assert (entry.broker_id, entry.directory) == (3, "broker-3")
    assert [port for _, port in entry.addresses[:2]] == [9095, 19095]
    assert entry.addresses[2][1] in planning.DRAWN
    assert entry.config == found.brokers[0].config
    far = further_broker(found, 2_000_000_000)
    assert all(port in planning.DRAWN for _, port in far.addresses)


@pytest.mark.parametrize(
    ("wanted", "both"),
    [
        ({"brokers": 5}, "--brokers 5 contradicts .*cluster.toml, which has 3"),
        ({"engine": "tree"}, f"--engine tree contradicts .* has {ELSEWHERE}"),
        ({"servers": 3}, "--zookeeper 3 contradicts .* has none"),
        ({"jars": "/j"}, "--zookeeper-jars /j contradicts .* has none"),
        ({"listen": "127.0.0.1:1"}, "--listen 127.0.0.1:1 contradicts .* has 127.0.0.1:9092"),
        ({"http": "127.0.0.1:1"}, "--http 127.0.0.1:1 contradicts .* has 127.0.0.1:8080"),
        ({"config_files": ("/f",)}, "--config /f contradicts .* has broker 0: no file"),
        ({"users": "/u"}, "--users /u contradicts .* has broker 0: /users"),
        ({"password_file": "/u"}, "--inter-broker-password-file /u .* has broker 0: no file"),
        ({"config": {"a": "1"}}, "--config a=1 contradicts .* has broker 0: a=2"),
        ({"config": {"b": "1"}}, "--config b=1 contradicts .* has broker 0: no b"),
    ],
)
def test_a_later_start_that_contradicts(
    tmp_path: Path, wanted: dict[str, object], both: str
) -> None:
    found = plan(tmp_path, config={"a": "2"}, users="/users", http="127.0.0.1:8080")
    with pytest.raises(ConfigError, match=both):
        check(str(tmp_path), found, StartOptions(**wanted))


@pytest.mark.parametrize(
    "wanted",
    [
        {},
        {"brokers": 3, "engine": ELSEWHERE, "listen": "127.0.0.1:9092", "config": {"a": "2"}},
        {"listen": "PLAINTEXT://127.0.0.1:0"},
        {"http": "127.0.0.1:8080"},
    ],
)
def test_a_later_start_that_agrees(tmp_path: Path, wanted: dict[str, object]) -> None:
    found = plan(tmp_path, config={"a": "2"}, http="127.0.0.1:8080")
    check(str(tmp_path), found, StartOptions(**wanted))


def test_a_page_may_be_wanted_later(tmp_path: Path) -> None:
    found = plan(tmp_path)
    assert with_page(found, StartOptions()) is found
    wanted = StartOptions(http="127.0.0.1:8080")
    paged = with_page(found, wanted)
    assert (paged.http, paged.brokers) == ("127.0.0.1:8080", found.brokers)
    check(str(tmp_path), paged, wanted)
    assert with_page(paged, StartOptions(http="127.0.0.1:1")) is paged
    with pytest.raises(ConfigError, match="port 19093 is wanted twice"):
        with_page(found, StartOptions(http="127.0.0.1:19093"))


def test_a_port_that_is_taken_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    found = plan(tmp_path, brokers=2, listen="127.0.0.1:0")
    check_ports(found)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        broker = replace(found.brokers[1], http=f"127.0.0.1:{port}")
        with pytest.raises(
            ConfigError, match=f"^127.0.0.1:{port}, of broker 1: Address already in use"
        ):
            check_ports(found.with_broker(broker))
