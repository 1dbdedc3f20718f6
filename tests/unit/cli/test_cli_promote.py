"""``logstore promote``: what it says, and its exit codes (X-180)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from logstore.manager import LogManager
from logstore.storage.local import LocalStorage
from replication import serve
from replication.mirror.identity import MirrorFile, MirrorIdentity
from tests.support.commands import logstore, logstore_json


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A restored directory of two topics."""
    found = tmp_path / "restored"
    with LogManager(found) as manager:
        for topic, partitions in (("orders", 2), ("bills", 1)):
            for log in manager.create_topic(topic, partitions, {"retention.ms": "-1"}):
                log.append([(b"k", topic.encode())])
    return found


def test_a_directory_is_promoted_and_served(directory: Path, tmp_path: Path) -> None:
    tried = logstore_json("promote", str(directory), "--dry-run", "--for-kafka")
    assert tried["promoted"] is False
    assert not (directory / "server.properties").exists()
    said = logstore("promote", str(directory), "--for-kafka", "--listener", "[::1]:19092").stdout
    assert "promoted: " in said
    assert "2 topics, 3 of 3 partitions" in said
    assert f"start: kafka-server-start.sh {directory}/server.properties" in said
    lines = (directory / "server.properties").read_text().splitlines()
    assert "listeners=PLAINTEXT\\://[\\:\\:1]\\:19092,CONTROLLER\\://[\\:\\:1]\\:19093" in lines
    with serve(tmp_path / "new", adopt=directory) as kafka:
        assert [record.value for record in kafka.read_all("bills")[0]] == [b"bills"]


def test_a_part_is_refused_by_code_1_and_named(directory: Path) -> None:
    shutil.rmtree(directory / "orders-0")
    before = sorted(path.name for path in directory.iterdir())
    tried = logstore("promote", str(directory), "--dry-run", code=1).stdout
    said = logstore("promote", str(directory), code=1).stdout
    assert tried == said
    assert "missing: without a log: 1 partitions, offline" in said
    assert "(orders-0)" in said
    assert "not promoted, and nothing was changed: --partial leaves those offline" in said
    assert sorted(path.name for path in directory.iterdir()) == before
    partial = logstore_json("promote", str(directory), "--partial", code=1)
    assert (partial["promoted"], partial["offline"]) == (True, 1)
    assert [each["names"] for each in partial["findings"]] == [["orders-0"]]


def test_what_is_no_directory_to_promote_is_an_error(directory: Path, tmp_path: Path) -> None:
    assert "no such directory" in logstore("promote", str(tmp_path / "absent"), code=2).stderr
    (tmp_path / "empty").mkdir()
    assert "no log of a partition" in logstore("promote", str(tmp_path / "empty"), code=2).stderr
    given = ("promote", str(directory), "--cluster-id", "x")
    assert "is no cluster id" in logstore(*given, code=2).stderr
    assert "--for-kafka" in logstore("promote", str(directory), "--listener", "a:1", code=2).stderr
    for wrong in ("a", ":1", "a:0", "a:65535", "a:-1"):
        told = logstore("promote", str(directory), "--for-kafka", "--listener", wrong, code=2)
        assert "give HOST:PORT" in told.stderr
    with LogManager(directory):
        assert "restored" in logstore("promote", str(directory), code=2).stderr
    logstore("promote", str(directory))
    again = logstore("promote", str(directory), code=2).stderr
    assert "is the directory of a cluster already" in again


def test_a_second_promotion_claims_no_numbers(directory: Path) -> None:
    identity = MirrorIdentity("A" * 22, "host:9092", topics=("orders",))
    MirrorFile.of(str(directory), LocalStorage()).write(identity)
    first, second = (logstore_json("promote", str(directory)) for _ in range(2))
    assert (first["topics"], second["promotedBefore"]) == (2, True)
    assert "topics" not in second
    assert "nextProducerId" not in second
