"""Mirrors beside each other, of each other, of copied directories, under paths that move, and of
many partitions."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from checkpoints.types import TopicPartition
from logstore.storage.local import LocalStorage
from logstore.storage.memory import MemoryStorage
from replication.mirror import (
    MIRROR_JSON,
    MirrorFile,
    MirrorIdentity,
    MirrorRefusedError,
    promote,
)
from replication.server.serving import ServedCluster, serve
from tests.support.builders import batch
from tests.support.mirrored import (
    batches_of,
    check_holds,
    check_verifies,
    grow,
    log_of,
    mirroring,
    one_partition,
    reported,
    until_equal,
)
from tests.support.mirrors import DIRECTORY, caught_up, mirror_of
from tests.support.scripted_source import ScriptedSource, SourceLog, SourceTopic, header_of
from tests.support.until import until

ORDERS, OTHERS = TopicPartition("orders", 0), TopicPartition("others", 0)
MANY = 1000


def _source() -> ScriptedSource:
    topics = {
        "orders": one_partition(log_of((3, 0), (3, 1), word="o")),
        "others": one_partition(log_of((2, 0), word="x")),
    }
    return ScriptedSource(topics)


def test_two_mirrors_of_one_source(tmp_path: Path) -> None:
    """Neither is a member of anything, so neither knows of the other."""
    one, two = tmp_path / "one", tmp_path / "two"
    with _source() as source:
        with mirroring(source, one), mirroring(source, two):
            until_equal(source, one)
            until_equal(source, two)
            source.change(lambda: grow(source.log("orders"), 3))
            until_equal(source, one)
            until_equal(source, two)
        source.change(lambda: grow(source.log("orders")))
        with mirroring(source, two):
            until_equal(source, two)
    for directory in (one, two):
        check_holds(directory, source.logs())
        check_verifies(directory)


def _follow(kafka: ServedCluster, directory: Path, holds: Callable[[], bool]) -> None:
    where, topics = str(directory), ("orders", "others")
    with mirror_of(kafka, LocalStorage(), directory=where, topics=topics) as mirror:
        mirror.start()
        caught_up(mirror)
        until(holds, "the second mirror has all")


def test_a_mirror_of_a_mirror(tmp_path: Path) -> None:
    """The first is served as it lies, and neither its source nor itself is changed by that."""
    first, second = tmp_path / "first", tmp_path / "second"
    with _source() as source:
        with mirroring(source, first):
            until_equal(source, first)
        with serve(adopt=first, read_only=True) as kafka:
            _follow(kafka, second, lambda: _equal(first, second))
            assert _of(second) == {tp: log.batches for tp, log in source.logs().items()}
        source.change(lambda: grow(source.log("orders"), 2))
        with mirroring(source, first):
            until_equal(source, first)
        with serve(adopt=first, read_only=True) as kafka:
            _follow(kafka, second, lambda: _equal(first, second))
    assert not reported(second, ORDERS)
    for directory in (first, second):
        check_verifies(directory)


def _of(directory: Path) -> dict[TopicPartition, list[bytes]]:
    return {tp: batches_of(directory, tp) for tp in (ORDERS, OTHERS)}


def _equal(first: Path, second: Path) -> bool:
    return _of(first) == _of(second)


def test_a_mirror_of_a_promoted_one(tmp_path: Path) -> None:
    """It is another cluster with the same topics, so it has a mirror of its own."""
    first, second = tmp_path / "first", tmp_path / "second"
    with _source() as source, mirroring(source, first):
        until_equal(source, first)
    promote(first)
    with serve(tmp_path / "home", adopt=first) as kafka:
        _follow(kafka, second, lambda: _equal(first, second))
        kafka.produce("orders", b"of the new cluster")
        _follow(kafka, second, lambda: _equal(first, second))
    last = header_of(batches_of(second, ORDERS)[-1])
    assert last.base == source.log("orders").end
    assert last.epoch > source.log("orders").leader_epoch
    check_verifies(second)


def test_a_path_is_that_of_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process may go elsewhere; what it writes later is still in the one place."""
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    home.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(home)
    with _source() as source, mirroring(source, Path("mirror")):
        until_equal(source, home / "mirror")
        monkeypatch.chdir(elsewhere)

        def change() -> None:
            grow(source.log("orders"))
            source.topics["later"] = one_partition(log_of((1, 0), word="l"))

        source.change(change)
        until_equal(source, home / "mirror")
    assert [each.name for each in tmp_path.iterdir() if [*each.iterdir()]] == ["home"]
    check_verifies(home / "mirror")


# -- copied directories ----------------------------------------------------------------------------

RECORD = b"copied " * 150


def _copy(original: Path, copied: Path) -> None:
    """As of a Kafka's directory: it has nothing of a mirror."""
    shutil.copytree(original, copied, ignore=shutil.ignore_patterns("mirror*", ".lock", "*.tmp"))


def _tear(directory: Path) -> None:
    """A copy that was taken in the middle of an append."""
    path = sorted((directory / "orders-0").glob("*.log"))[-1]
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 300)


def _until_alone(source: ScriptedSource) -> None:
    """What waits for records of another mirror would be sent as well."""
    until(lambda: not source.connections, "connections end")


@pytest.mark.parametrize("is_live", [True, False], ids=["live", "stopped"])
def test_only_the_rest_of_a_copy_goes_over_the_wire(is_live: bool, tmp_path: Path) -> None:
    """Counted on the sockets (X-174)."""
    original, copied = tmp_path / "original", tmp_path / "copied"
    log = SourceLog(leader_epoch=1)
    big = [batch(at, 1, epoch=1, value=RECORD + b"%d" % at) for at in range(300)]
    log.batches += big[:250]
    with ScriptedSource({"orders": one_partition(log)}) as source:
        with mirroring(source, original):
            until_equal(source, original)
            if is_live:
                _copy(original, copied)
        if is_live:
            _tear(copied)
        else:
            _copy(original, copied)
        assert not (copied / MIRROR_JSON).exists()
        _until_alone(source)
        source.change(lambda: log.batches.extend(big[250:]))
        before = source.sent_bytes
        with mirroring(source, copied):
            until_equal(source, copied)
            sent = source.sent_bytes - before
    rest = sum(map(len, big[250 - is_live :]))
    assert rest <= sent < rest + 20_000
    assert batches_of(copied, ORDERS) == big
    assert not reported(copied, ORDERS)
    check_verifies(copied)


# -- many partitions -------------------------------------------------------------------------------


class Used(NamedTuple):
    descriptors: int
    threads: int


def _used() -> Used:
    return Used(len(os.listdir("/proc/self/fd")), threading.active_count())


def _is_back_at(before: Used) -> bool:
    now = _used()
    return now.descriptors <= before.descriptors and now.threads <= before.threads


@pytest.mark.slow
def test_thousands_of_partitions_begin_and_end(tmp_path: Path) -> None:
    """Nothing is left when a mirror is closed; and no partition takes a thread or a connection."""
    logs = {number: log_of((1, 0), word=f"p{number}-") for number in range(MANY)}
    with ScriptedSource({"orders": SourceTopic(logs)}) as source:
        with mirroring(source, tmp_path / "warm", ("nothing",)):
            pass
        threads = []
        for _ in range(3):
            _until_alone(source)
            before = _used()
            with mirroring(source, tmp_path / "mirror") as mirror:
                caught_up(mirror)
                threads.append(_used().threads - before.threads)
            _until_alone(source)
            until(partial(_is_back_at, before), "nothing is left")
        until_equal(source, tmp_path / "mirror", TopicPartition("orders", MANY - 1))
    assert max(threads) < 20, threads
    check_holds(tmp_path / "mirror", source.logs())


@pytest.mark.parametrize(
    ("put", "where", "text"),
    [
        ("docs/file.txt", "", "other things are in it, as docs"),
        ("logstore-backup/00000000000000000001.json", "", "as logstore-backup"),
        ("00000000000000000000.log", "", "the directory of one partition"),
        ("meta.properties", "orders-0", "it lies in the log directory"),
        ("mirror.json", "new", "it lies in the log directory"),
    ],
)
def test_where_no_mirror_begins(put: str, where: str, text: str, tmp_path: Path) -> None:
    (tmp_path / put).parent.mkdir(exist_ok=True)
    (tmp_path / put).write_bytes(b"")
    refused = pytest.raises(MirrorRefusedError, match=text)
    with _source() as source, refused, mirroring(source, tmp_path / where):
        pass
    assert {each.name for each in tmp_path.rglob("*") if each.is_file()} == {Path(put).name}


def test_a_mirror_begins_on_an_empty_disk(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    with _source() as source, mirroring(source, tmp_path):
        until_equal(source, tmp_path)


def test_where_a_source_was_found_is_kept_as_clients_take_it() -> None:
    """An IPv6 address has its brackets, so that it can be given again."""
    storage = MemoryStorage()
    storage.make_dir(DIRECTORY)
    file = MirrorFile.of(DIRECTORY, storage)
    file.write(MirrorIdentity("A" * 22, "kafka:9092"))
    with mirror_of("[::1]:1,127.0.0.1:1", storage) as mirror:
        mirror.start()
        found = file.read()
    assert found is not None
    assert found.bootstrap == "[::1]:1,127.0.0.1:1"
