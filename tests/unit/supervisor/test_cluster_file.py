"""``cluster.toml``: what is written is read again, and what is no such file is refused."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from logstore.common.errors import ConfigError
from replication.supervisor.cluster_file import (
    BrokerEntry,
    ClusterFile,
    EngineEntry,
    ServerPorts,
    file_in,
    parse,
    read_cluster,
    render,
    write_cluster,
)

ZOOKEEPER = EngineEntry((ServerPorts(2181),), jars="/usr/share/jars")
ENSEMBLE = EngineEntry(
    (ServerPorts(2181, 2888, 3888), ServerPorts(2182, 2889, 3889), ServerPorts(2183, 2890, 3890))
)


def broker(broker_id: int, **config: str) -> BrokerEntry:
    port = 9092 + broker_id
    return BrokerEntry(
        broker_id,
        f"PLAINTEXT://127.0.0.1:{port},INTERNAL://127.0.0.1:{port + 10_000}",
        f"127.0.0.1:{port + 20_000}",
        f"broker-{broker_id}",
        ("/etc/server.properties",) if config else (),
        config,
        "/etc/users" if config else "",
        "/etc/password" if config else "",
    )


CLUSTER = ClusterFile(
    ZOOKEEPER, (broker(0), broker(1, **{"num.partitions": "4", "rack": 'a"\\ü\n'}))
)


@pytest.mark.parametrize(
    "engine",
    [
        ZOOKEEPER,
        ENSEMBLE,
        EngineEntry(tree_port=2181),
        EngineEntry(foreign_url="zookeeper://z:1/k"),
    ],
    ids=["one", "three", "tree", "url"],
)
def test_it_is_read_as_it_was_written(tmp_path: Path, engine: EngineEntry) -> None:
    cluster = replace(CLUSTER, engine=engine, http="[::1]:8080" if engine.tree_port else "")
    assert read_cluster(str(tmp_path)) is None
    write_cluster(str(tmp_path), cluster)
    assert read_cluster(str(tmp_path)) == cluster
    assert Path(file_in(str(tmp_path))).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("engine", "url", "ports"),
    [
        (ZOOKEEPER, "zookeeper://127.0.0.1:2181", (2181,)),
        (
            ENSEMBLE,
            "zookeeper://127.0.0.1:2181,127.0.0.1:2182,127.0.0.1:2183",
            (2181, 2888, 3888, 2182, 2889, 3889, 2183, 2890, 3890),
        ),
        (EngineEntry(tree_port=7), "zookeeper://127.0.0.1:7", (7,)),
        (EngineEntry(foreign_url="kraft://a:1"), "kraft://a:1", ()),
    ],
)
def test_where_brokers_meet(engine: EngineEntry, url: str, ports: tuple[int, ...]) -> None:
    assert (engine.url, engine.ports) == (url, ports)


def test_a_person_may_write_numbers_and_truths() -> None:
    text = render(ClusterFile(ZOOKEEPER, (broker(0, a="b"),)))
    text = text.replace('{ "a" = "b" }', '{ "num.partitions" = 4, "auto" = true, "x" = 0.5 }')
    (found,) = parse(text).brokers
    assert found.config == {"num.partitions": "4", "auto": "true", "x": "0.5"}


GOOD = render(ClusterFile(ZOOKEEPER, (broker(0), broker(1))))


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (GOOD, "", "the file has no engine"),
        (GOOD, "[", "at end of document"),
        ('kind = "zookeeper"', 'kind = "etcd"', "kind is zookeeper or tree, not 'etcd'"),
        ("[[2181]]", "[2181]", "servers is a list of one or three lists of ports"),
        ("[[2181]]", "[[2181], [2182]]", "servers is a list of one or three lists of ports"),
        ("[[2181]]", "[[2181, 1, 2]]", "each of 1 servers has 1 ports"),
        ("[[2181]]", "[[0]]", "0 is no port from 1 to 65535"),
        ("[[2181]]", "[[true]]", "True is no port from 1 to 65535"),
        ("id = 1", "id = 0", "two brokers have the id 0"),
        ("id = 1", "id = -1", "give an id from 0 to"),
        ("id = 1", "id = true", "a broker: id is no int"),
        ("id = 1", "", "a broker has no id"),
        ("id = 1", "id = 1\nrack = 'a'", "broker 1 has a key that is not known: rack"),
        ("127.0.0.1:29093", "127.0.0.1:29092", "broker 1 and broker 0 have one address"),
        ("127.0.0.1:29093", "127.0.0.1:2181", "broker 1 and zookeeper have one address"),
        ("127.0.0.1:29093", "nowhere", "broker 1: listeners and http are addresses"),
        ("127.0.0.1:29093", "127.0.0.1:0", "0 is no port"),
        ("\n[[broker]]\nid = 0", "http = 1\n[[broker]]\nid = 0", "the file: http is no str"),
        ("\n[[broker]]\nid = 0", "http = 'x'\n[[broker]]\nid = 0", "0 is no port"),
        (
            "\n[[broker]]\nid = 0",
            "http = '127.0.0.1:2181'\n[[broker]]\nid = 0",
            "the page and zookeeper have one",
        ),
        ("[[broker]]", "[[brokers]]", "the file has no broker"),
        ('dir = "broker-1"', "dir = 1", "broker 1: dir is no str"),
        ('dir = "broker-1"', 'dir = "x"\nconfig = { a = [] }', "config a is no text"),
    ],
)
def test_what_is_no_such_file_is_refused(tmp_path: Path, old: str, new: str, reason: str) -> None:
    assert old in GOOD
    path = Path(file_in(str(tmp_path)))
    path.write_text(GOOD.replace(old, new))
    with pytest.raises(ConfigError, match=f"^{re.escape(str(path))}: .*{reason}"):
        read_cluster(str(tmp_path))


@pytest.mark.parametrize("content", [b"\xff", b"[" * 100_000, b"#" * (1 << 21)])
def test_hostile_files(tmp_path: Path, content: bytes) -> None:
    Path(file_in(str(tmp_path))).write_bytes(content)
    with pytest.raises(ConfigError):
        read_cluster(str(tmp_path))


def test_a_directory_in_its_place(tmp_path: Path) -> None:
    Path(file_in(str(tmp_path))).mkdir()
    with pytest.raises(ConfigError, match="is a directory"):
        read_cluster(str(tmp_path))


def test_brokers_come_and_go() -> None:
    third = broker(2)
    assert CLUSTER.with_broker(third).without(0).brokers == (CLUSTER.brokers[1], third)
    assert CLUSTER.broker(1) == CLUSTER.brokers[1]
    assert CLUSTER.broker(7) is None
