"""``logstore ls``: topics, partitions and offsets of directories, from their files."""

from __future__ import annotations

import json
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from logstore import LogConfig, LogManager
from logstore.cli import main
from logstore.cli.common.listing import ListedReplica, compare
from logstore.common.types import TopicPartition
from logstore.log import run_inline
from logstore.manager import ManagerOwner

GOLDEN = Path(__file__).parents[2] / "golden" / "data"


def ls(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["ls", *map(str, arguments)])


def partitions(*arguments: str | Path) -> list[dict[str, Any]]:
    result = ls(*arguments, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)["partitions"]
    assert isinstance(found, list)
    return found


def fill(directory: Path, topic: str, count: int, **settings: Any) -> None:
    with LogManager([directory], LogConfig(**settings), background=False) as manager:
        log = manager.get_or_create(topic, 0)
        for _ in range(count):
            log.append([(None, bytes(100))])


def test_what_a_directory_holds(tmp_path: Path) -> None:
    config = LogConfig(segment_bytes=1000)
    with LogManager(
        [tmp_path], config, background=False, owner=ManagerOwner(run_later=run_inline)
    ) as manager:
        manager.create_topic("empty", 2)
        log = manager.get_or_create("t", 0)
        for _ in range(30):
            log.append([(None, bytes(100))])
        log.delete_records(12)
        for in_use in (True, False):
            found = partitions(tmp_path)
            assert [(p["topic"], p["partition"]) for p in found] == [
                ("empty", 0),
                ("empty", 1),
                ("t", 0),
            ]
            (held,) = partitions(tmp_path, "--topic", "t")
            assert held["logEndOffset"] == 30
            assert held["logStartOffset"] == 12 or in_use  # written from time to time
            assert held["segments"] == len(list((tmp_path / "t-0").glob("*.log*")))
            assert held["size"] == sum(p.stat().st_size for p in (tmp_path / "t-0").iterdir())
            assert (held["leaderEpoch"], held["offsetLag"], held["isLeader"]) == (0, None, None)
            manager.close()
    (held,) = partitions(tmp_path, "--topic", "t")
    assert held["highWatermark"] == 30


def test_nothing_is_written(tmp_path: Path) -> None:
    fill(tmp_path, "t", 3)
    before = {p: (p.stat().st_mtime_ns, p.stat().st_size) for p in tmp_path.rglob("*")}
    assert ls(tmp_path).exit_code == 0
    assert {p: (p.stat().st_mtime_ns, p.stat().st_size) for p in tmp_path.rglob("*")} == before


@pytest.mark.slow
def test_lag_and_leader_of_brokers(tmp_path: Path) -> None:
    for broker in range(3):
        with LogManager(
            [tmp_path / str(broker)],
            background=False,
            owner=ManagerOwner(node_id=broker, cluster_id="c"),
        ):
            pass
    with LogManager([tmp_path / "0"], background=False, owner=ManagerOwner(node_id=0)) as manager:
        log = manager.get_or_create("t", 0)
        log.append([(None, b"a")])
        shutil.copytree(tmp_path / "0" / "t-0", tmp_path / "1" / "t-0")
        log.append([(None, b"b"), (None, b"c")])
    shutil.copytree(tmp_path / "0" / "t-0", tmp_path / "2" / "t-0")
    with LogManager([tmp_path / "2"], background=False, owner=ManagerOwner(node_id=2)) as manager:
        manager.get("t", 0).append([(None, b"d")], leader_epoch=4)
    brokers = [tmp_path / str(broker) for broker in range(3)]
    shown = [(p["broker"], p["offsetLag"], p["isLeader"]) for p in partitions(*brokers)]
    assert shown == [("0", 1, False), ("1", 3, False), ("2", 0, True)]
    table = ls(*brokers).stdout
    assert "2*" in table
    assert table.splitlines()[-1].startswith("1 topic, 3 replicas, ")


@pytest.mark.parametrize(
    ("ranks", "leader"),
    [
        ([(1, 5), (1, 5)], None),
        ([(1, 5), (1, 4)], 0),
        ([(1, 9), (2, 4)], 1),  # elected, and the others have not cut yet
        ([(None, 0), (None, 0)], None),
        ([(None, 0), (0, 3)], 1),
        ([(2, 5), (2, 5), (1, 9)], None),
    ],
)
def test_who_leads(ranks: list[tuple[int | None, int]], leader: int | None) -> None:
    tp = TopicPartition("t", 0)
    group = [
        ListedReplica(tp, "", str(at), None, 0, end, None, epoch, 1, 0)
        for at, (epoch, end) in enumerate(ranks)
    ]
    compare(group)
    expected = [None if leader is None else at == leader for at in range(len(ranks))]
    assert [replica.is_leader for replica in group] == expected


def test_a_topic_made_anew_is_another_one(tmp_path: Path) -> None:
    for broker, count in ((0, 3), (1, 5)):
        with LogManager(
            [tmp_path / str(broker)], background=False, owner=ManagerOwner(node_id=broker)
        ) as manager:
            manager.create_topic("t", 1)[0].append([(None, b"a")] * count)
    assert [p["offsetLag"] for p in partitions(tmp_path / "0", tmp_path / "1")] == [None, None]


def test_a_log_and_its_backup_have_no_leader(tmp_path: Path) -> None:
    fill(tmp_path / "a", "t", 2)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    fill(tmp_path / "b", "t", 2)
    found = partitions(tmp_path / "a", tmp_path / "b")
    assert [(p["offsetLag"], p["isLeader"]) for p in found] == [(2, None), (0, None)]
    table = ls(tmp_path / "a", tmp_path / "b").stdout.replace("\n", "")
    assert str(tmp_path / "b")[-8:] in table


def test_directories_of_kafka(tmp_path: Path) -> None:
    for folder in ("v2-txn", "v0-gzip"):
        shutil.copytree(GOLDEN / folder, tmp_path / f"{folder}-0")
    shutil.copytree(GOLDEN / "v2-kraft-control", tmp_path / "__cluster_metadata-0")
    (tmp_path / "__cluster_metadata-0" / "quorum-state").write_text("{}")
    (tmp_path / "meta.properties").write_text("version=1\nnode.id=7\ncluster.id=abc\n")
    found = {p["topic"]: p for p in partitions(tmp_path)}
    assert set(found) == {"__cluster_metadata", "v0-gzip", "v2-txn"}
    for folder in ("v2-txn", "v0-gzip"):
        lines = (GOLDEN / folder / "batches.jsonl").read_text().splitlines()
        assert found[folder]["logEndOffset"] == json.loads(lines[-1])["lastOffset"] + 1
        assert found[folder]["broker"] == "7"


def test_hostile_names_and_files(tmp_path: Path) -> None:
    fill(tmp_path, "t", 2)
    for name in ("\x1b[2J-0", "a\nb-0", "t-00", "t-99999999999", "-0", "x" * 200 + "-1"):
        (tmp_path / name).mkdir()
    (tmp_path / "t-0.1234abcd-delete").mkdir()
    (tmp_path / "t-1.1234abcd-stray").mkdir()
    (tmp_path / "u-0").write_text("a file")
    (tmp_path / "v-0").mkdir()
    (tmp_path / "v-0" / f"{0:020}.log").mkdir()
    (tmp_path / "w-0").mkdir()
    os.mkfifo(tmp_path / "w-0" / f"{0:020}.log")
    (tmp_path / "t-0" / "leader-epoch-checkpoint").write_text("\x1b[2J")
    (tmp_path / "t-0" / "partition.metadata").write_bytes(b"\xff\n\xff")
    (tmp_path / "replication-offset-checkpoint").write_text("9\n9\n9\n")
    (tmp_path / "meta.properties").write_bytes(b"node.id=\\u12")
    result = ls(tmp_path)
    assert result.exit_code == 0
    for line in (*result.stdout.splitlines(), *result.stderr.splitlines()):
        assert line.isprintable()
    assert "1 -delete directory" in result.stderr
    assert result.stderr.count("taken as absent") == 4
    found = {p["topic"]: p for p in partitions(tmp_path)}
    assert set(found) == {"t", "v", "x" * 200}
    assert found["v"]["segments"] == 0
    assert (found["t"]["logEndOffset"], found["t"]["highWatermark"]) == (2, None)


@pytest.mark.slow
def test_a_directory_that_changes_meanwhile(tmp_path: Path) -> None:
    """Topics come, roll and go while it is listed: every answer is of some moment."""
    stop = threading.Event()
    with LogManager([tmp_path], LogConfig(segment_bytes=500), background=False) as manager:
        kept = manager.get_or_create("kept", 0)
        kept.append([(None, b"a")])

        def change() -> None:
            while not stop.is_set():
                log = manager.get_or_create("gone", 0)
                for _ in range(5):
                    log.append([(None, bytes(200))])
                    kept.append([(None, bytes(200))])
                manager.delete_topic("gone")

        changer = threading.Thread(target=change)
        changer.start()
        try:
            ends = []
            for _ in range(10):
                found = {p["topic"]: p for p in partitions(tmp_path)}
                ends.append(found["kept"]["logEndOffset"])
                if "gone" in found:
                    assert 0 <= found["gone"]["logEndOffset"] <= 5
        finally:
            stop.set()
            changer.join()
    assert ends == sorted(ends)


def test_what_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "none", tmp_path / "file"):
        result = ls(path)
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr == f"error: {path}: no such directory\n"
    assert ls(tmp_path).stdout == "0 topics, 0 partitions, 0 B\n"
