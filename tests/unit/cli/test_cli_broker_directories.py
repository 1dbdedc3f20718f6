"""The directory of ``logstore serve``, given where a log directory is wanted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from checkpoints.types import TopicPartition
from logstore.cli import main
from logstore.directory.layout import list_partitions
from logstore.storage.broker_directories import broker_directories
from logstore.storage.local import LocalStorage
from logstore.verify import verify
from replication.embedded.cluster import Cluster
from tests.support.until import until

TOPIC = "orders"
TP = TopicPartition(TOPIC, 0)


def high_watermark(cluster: Cluster, broker: int) -> int:
    log = cluster.replica(TP, broker).log
    return -1 if log is None else log.high_watermark


def cluster_in(directory: Path, brokers: int) -> str:
    with Cluster(brokers, directory) as cluster:
        cluster.create_topic(TOPIC, 1, replication_factor=brokers)
        cluster.produce(TOPIC, b"first")
        until(lambda: all(high_watermark(cluster, each) == 1 for each in cluster.broker_ids))
    return str(directory)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> str:
    return cluster_in(tmp_path_factory.mktemp("one") / "kafka", 1)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> str:
    return cluster_in(tmp_path_factory.mktemp("three") / "kafka", 3)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def test_verify_checks_every_broker_and_compares_them(three: str) -> None:
    apart = verify([f"{three}/broker-{broker}" for broker in range(3)])
    found = run("verify", "--json", three)
    assert found.exit_code == 0
    assert json.loads(found.output)["files"] == apart.files > 3
    # The same directory twice is one.
    assert verify([three, f"{three}/broker-1"]).files == apart.files


def test_verify_finds_damage_in_any_broker(tmp_path: Path) -> None:
    root = cluster_in(tmp_path / "kafka", 2)
    (log,) = Path(root, "broker-1", f"{TOPIC}-0").glob("*.log")
    data = bytearray(log.read_bytes())
    data[70] ^= 1
    log.write_bytes(data)
    found = run("verify", root)
    assert found.exit_code == 1
    assert "broker-1" in found.output


def test_ls_shows_every_replica(three: str) -> None:
    found = json.loads(run("ls", "--json", three).output)
    assert len(found["directories"]) == 3
    assert run("ls", three).output.count(f"{TOPIC}-0") == 3


def test_commands_of_one_directory_take_the_only_broker(one: str, tmp_path: Path) -> None:
    assert run("read", one, TOPIC).output == "first\n"
    assert run("export", one, TOPIC, "--to", str(tmp_path / "x.jsonl")).exit_code == 0
    assert f"{TOPIC}-0" in run("recover", "--dry-run", one).output
    assert run("compact", "--dry-run", one, TOPIC).exit_code == 0


@pytest.mark.parametrize(
    "command",
    [
        ("read", TOPIC),
        ("create", TOPIC),
        ("append", TOPIC),
        ("delete", TOPIC),
        ("alter", TOPIC, "--partitions", "2"),
        ("recover",),
        ("compact",),
        ("export", TOPIC, "--to", "x.parquet"),
    ],
)
def test_with_several_brokers_they_ask_which(three: str, command: tuple[str, ...]) -> None:
    before = sorted(Path(three).rglob("*"))
    found = run(command[0], three, *command[1:])
    assert found.exit_code == 2
    for broker in range(3):
        assert f"{three}/broker-{broker}" in found.output
    assert sorted(Path(three).rglob("*")) == before


def test_spark_reads_the_partitions_of_all_brokers(one: str, three: str) -> None:
    (found,) = list_partitions([one])
    assert found.topic == TOPIC
    assert len(list_partitions([three], replicas=True)) == 3
    assert [each.broker for each in list_partitions([three], broker="1")] == ["1"]


def test_the_same_directory_twice_is_one(three: str) -> None:
    again = run("ls", "--json", three, f"{three}/broker-1/", f"{three}/../kafka/broker-0")
    assert again.output == run("ls", "--json", three).output


def test_a_broker_has_one_directory(tmp_path: Path) -> None:
    for name in ("broker-0", "broker-00"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "meta.properties").touch()
    assert broker_directories(LocalStorage(), str(tmp_path)) == ["broker-0"]


def test_a_topic_with_such_a_name_is_a_topic(tmp_path: Path) -> None:
    assert run("create", str(tmp_path / "kafka"), "broker").exit_code == 0
    assert broker_directories(LocalStorage(), str(tmp_path / "kafka")) == []
    (tmp_path / "kafka" / "meta.properties").unlink()
    assert broker_directories(LocalStorage(), str(tmp_path / "kafka")) == []
    assert "broker-0" in run("ls", str(tmp_path / "kafka")).output
