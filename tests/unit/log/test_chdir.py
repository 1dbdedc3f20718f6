"""Each public call after the process went to another directory: a log stays where it was opened."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from logstore.common.errors import ConfigError
from logstore.log import PartitionLog
from logstore.log.reading.directory_reader import DirectoryReader, follow_directory
from logstore.manager import LogManager
from logstore.spark.options import Options, SourceOptions
from logstore.storage.local import LocalStorage
from logstore.storage.memory import MemoryStorage
from logstore.storage.overlay import OverlayStorage
from logstore.storage.paths import absolute_path
from logstore.testing import FaultyStorage
from tests.support.cases import for_each
from tests.support.public_calls import (
    CALLS,
    Effect,
    PublicCall,
    open_again,
    open_stage,
    unharmed,
    values,
)


@pytest.mark.parametrize("call", CALLS, ids=str)
def test_a_call_works_where_the_log_was_opened(
    call: PublicCall, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    monkeypatch.chdir(here)
    opened = open_stage("logs", call)
    monkeypatch.chdir(there)

    assert call.returns(call.run(opened))

    if not call.closes:
        if call.effect is Effect.CHANGES and not call.deletes:
            opened.log.roll()
        opened.close()
    assert list(there.iterdir()) == []
    if not call.deletes:
        again = open_again(here / "logs", call.owner)
        assert call.closes or again.log.recovery_report.clean
        unharmed(call, values(again.log))
        again.close()


def test_a_log_of_the_same_name_elsewhere_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("here", "there"):
        with PartitionLog.open(tmp_path / name / "orders-0") as log:
            log.append([(None, name.encode())])
    monkeypatch.chdir(tmp_path / "here")
    with PartitionLog.open("orders-0") as log:
        monkeypatch.chdir(tmp_path / "there")
        log.append([(None, b"more")])
        log.roll()
        log.append([(None, b"and more")], sync=True)
        with PartitionLog.open("orders-0") as other:
            assert list(values(other).values()) == [b"there"]
    with PartitionLog.open(tmp_path / "here/orders-0") as log:
        assert list(values(log).values()) == [b"here", b"more", b"and more"]


def test_readers_of_a_directory_stay_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "there").mkdir()
    with PartitionLog.open(tmp_path / "orders-0") as log:
        log.append([(None, b"0")])
        monkeypatch.chdir(tmp_path)
        readers = [
            DirectoryReader("orders-0").follow(timeout=0),
            PartitionLog.open_reader(Path("orders-0")).follow(timeout=0),
            follow_directory(".", "orders", 0, timeout=0),
        ]
        monkeypatch.chdir(tmp_path / "there")
        for reader in readers:
            assert [record.value for record in reader] == [b"0"]


def test_a_directory_that_is_created_later_is_not_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with LogManager(["logs", "./more/"]) as manager:
        monkeypatch.chdir("/")
        assert manager.live_directories == [f"{tmp_path}/logs", f"{tmp_path}/more"]
        manager.create_topic("orders", 4)
    assert sorted(path.name for path in tmp_path.glob("*/orders-*")) == [
        f"orders-{number}" for number in range(4)
    ]


@for_each(
    "path, expected",
    [
        ("logs", "{cwd}/logs"),
        ("./logs//orders-0/", "{cwd}/logs/orders-0"),
        (".", "{cwd}"),
        ("../logs", "{cwd}/../logs"),
        ("link/../logs", "{cwd}/link/../logs"),  # where a link leads only the disk knows
        ("/logs/../logs", "/logs/../logs"),
        ("/logs/", "/logs/"),
        ("s3://bucket/logs", "s3://bucket/logs"),
    ],
)
def test_the_absolute_path(
    path: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for storage in (LocalStorage(), OverlayStorage(LocalStorage())):
        assert absolute_path(storage, path) == expected.format(cwd=tmp_path)
    for storage in (MemoryStorage(), FaultyStorage()):
        assert absolute_path(storage, path) == path


def test_a_working_directory_that_is_gone(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    before = os.getcwd()
    os.chdir(gone)
    try:
        gone.rmdir()
        with pytest.raises(ConfigError, match=r"orders-0: .*working directory"):
            PartitionLog.open("orders-0")
        with PartitionLog.open(tmp_path / "orders-0") as log:
            log.append([(None, b"0")])
    finally:
        os.chdir(before)


def test_tasks_of_spark_are_told_absolute_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = {"paths": '["logs", "s3://bucket/logs"]', "path": "/data", "broker": "logs"}
    read = SourceOptions.parse(Options(given))
    assert read.paths == (f"{tmp_path}/logs", "s3://bucket/logs", "/data")
    assert read.broker == f"{tmp_path}/logs"
    assert SourceOptions.parse(Options({"path": "/data", "broker": "3"})).broker == "3"
