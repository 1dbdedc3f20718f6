"""Commands read a store of segments as they read the directory that it was made from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from replication import serve
from tests.support import stores
from tests.support.backups import flip
from tests.support.commands import logstore, logstore_json
from tests.support.stores import Chunking

KINDS = ("backup", "uri of a backup", "plain", "compressed", "local tiered")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stores.make_directory(tmp_path_factory.mktemp("source") / "data")


@pytest.fixture(scope="module", params=KINDS)
def store(
    request: pytest.FixtureRequest, source: Path, tmp_path_factory: pytest.TempPathFactory
) -> str:
    """Where a command finds one; its paths have blanks, and what a URI quotes."""
    root = tmp_path_factory.mktemp("a store#") / "orders 100%"
    if "backup" in request.param:
        stores.put_backup(root, source)
    for partition in sorted(source.glob("orders-*")):
        segments = stores.segments_of(partition)
        if request.param == "local tiered":
            stores.put_local_tiered(root, partition, segments)
        elif "backup" not in request.param:
            compression = request.param == "compressed"
            chunking = Chunking(700, compression) if compression else Chunking()
            stores.put_tiered(root, partition, segments, chunking)
    return root.as_uri() if "uri" in request.param else str(root)


def test_read(store: str, source: Path) -> None:
    for options in (
        ("--format", "json"),
        ("--from", "120", "--to", "130"),
        ("--from", "-7"),
        ("--from", "@1700000000300"),
        ("--committed",),
    ):
        there = logstore("read", str(source), "orders", *options).stdout
        assert there
        assert logstore("read", store, "orders", *options).stdout == there


def test_ls(store: str, source: Path) -> None:
    ours, theirs = (logstore_json("ls", path)["partitions"] for path in (store, str(source)))
    names = ("topic", "partition", "topicId", "logStartOffset", "logEndOffset", "leaderEpoch")
    assert [[p[n] for n in names] for p in ours] == [[p[n] for n in names] for p in theirs]


def test_dump(store: str, source: Path) -> None:
    assert (
        logstore("dump", "--format", "json", store).stdout
        == logstore("dump", "--format", "json", str(source)).stdout
    )
    told = logstore("dump", store).stdout
    assert f"{0:020d}.timeindex" in told
    assert "partition.metadata" in told


def test_verify(store: str) -> None:
    told = logstore_json("verify", store)
    assert told["findings"] == []
    assert sum(each["records"] for each in told["partitions"]) == 190


def test_what_writes_directories_leads_to_restore(store: str, tmp_path: Path) -> None:
    if "://" in store:  # neither takes a URI
        return
    for command in (("rescue", store, "--to", str(tmp_path / "new")), ("recover", store)):
        refused = logstore(*command, code=2)
        assert "logstore restore" in refused.stderr + refused.stdout
    assert not (tmp_path / "new").exists()


def test_verify_of_a_damaged_store_leads_to_restore(source: Path, tmp_path: Path) -> None:
    stores.put_backup(tmp_path, source)
    flip(sorted(tmp_path.glob("orders-*/0/*.log"))[0])
    told = logstore("verify", str(tmp_path), code=None).stdout
    assert f"logstore restore {tmp_path} --lossy --to DST" in told
    assert "logstore rescue" not in told


def test_export(store: str, source: Path, tmp_path: Path) -> None:
    for name, path in (("store", store), ("source", str(source))):
        logstore("export", path, "orders", "--to", str(tmp_path / f"{name}.jsonl"))
    rows = [(tmp_path / f"{name}.jsonl").read_text() for name in ("store", "source")]
    assert rows[0] == rows[1]
    assert len(rows[0].splitlines()) == 138 + 52 - _markers(source)


def _markers(source: Path) -> int:
    batches = (
        batch
        for partition in source.glob("orders-*")
        for segment in stores.segments_of(partition)
        for batch in stores.batches_of(segment.log)
    )
    return sum(batch[22] >> 5 & 1 for batch in batches)


def test_one_partition_and_one_file_by_their_names(store: str, source: Path) -> None:
    name = f"orders-0/{114:020d}.log"
    base = (
        f"{store}/kafka-tiered-storage"
        if (Path(store) / "kafka-tiered-storage").is_dir()
        else store
    )
    ours = logstore("dump", "--format", "hex", f"{base}/{name}").stdout
    assert ours == logstore("dump", "--format", "hex", str(source / name)).stdout
    assert logstore_json("verify", f"{base}/orders-1")["partitions"][0]["partition"] == 1


def test_what_is_not_there_is_said(store: str) -> None:
    assert "no topic" in logstore("read", store, "payments", code=2).output
    assert "no such" in logstore("ls", f"{store}/nothing", code=2).output
    assert "no such" in logstore("read", f"{store}/nothing", "orders", code=2).output


def test_a_store_without_a_whole_backup(tmp_path: Path) -> None:
    (tmp_path / "logstore-backup").mkdir()
    for command in (("ls",), ("verify",), ("dump",), ("read",)):
        more = ("orders",) if command == ("read",) else ()
        told = logstore(*command, str(tmp_path), *more, code=2).output
        assert "has no backup yet" in told, command


def test_a_hole_is_told_by_every_command(source: Path, tmp_path: Path) -> None:
    commit = stores.put_backup(tmp_path, source)
    first = commit["topics"][0]["partitions"][0]["segments"][0]
    first["end"] = 100
    stores.put_commit(tmp_path, 1, commit)
    reason = "offsets 100 to 113 are not in this backup"
    assert reason in logstore("read", str(tmp_path), "orders", code=2).output
    told = logstore("verify", str(tmp_path), "--json", code=2).stdout
    assert reason in str(json.loads(told))
    assert reason in logstore("ls", str(tmp_path), code=None).output
    assert reason in logstore("dump", str(tmp_path), code=None).output


@pytest.mark.slow
def test_brokers_serve_a_backup_read_only(source: Path, tmp_path: Path) -> None:
    stores.put_backup(tmp_path, source)
    with serve(adopt=[str(tmp_path)], read_only=True) as served:
        told = logstore(
            "consume",
            "orders",
            "--bootstrap-server",
            served.bootstrap_servers,
            "--from-beginning",
            "--exit",
            "--format",
            "%p %o %k %s\n",
        ).stdout
    there = logstore("read", str(source), "orders", "--format", "%p %o %k %s\n").stdout
    assert sorted(told.splitlines()) == sorted(there.splitlines())
    assert len(there.splitlines()) > 150
