"""``logstore.spark.delta_log``: commits that are there whole and once."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from logstore.directory.errors import ExportRefusedError
from logstore.spark.delta_log import STATE, DeltaLog
from tests.support.cases import for_each


def info(**state: Any) -> dict[str, Any]:
    return {"commitInfo": {STATE: state}}


def add(path: str, **more: Any) -> dict[str, Any]:
    return {"add": {"path": path, "dataChange": True, **more}}


@pytest.fixture
def log(tmp_path: Path) -> DeltaLog:
    log = DeltaLog(str(tmp_path / "table"))
    with log.locked():
        log.commit(0, [info(at=0), add("a%20b"), add("c")])
    return log


def test_what_was_committed_is_found(log: DeltaLog) -> None:
    log.commit(1, [info(at=1), {"remove": {"path": "c"}}, add("d/e")])
    assert [os.path.relpath(path, log.table) for path in log.files()] == ["a b", "d/e"]
    assert (log.latest(), log.state(1), log.state(0)) == (1, (1, {"at": 1}), (0, {"at": 0}))


def test_a_number_is_taken_once(log: DeltaLog) -> None:
    with pytest.raises(ExportRefusedError, match="has made commit 0 meanwhile"):
        log.commit(0, [info(at=7)])
    assert log.state(0) == (0, {"at": 0})
    assert {path.name for path in Path(log.table, "_delta_log").iterdir()} == {
        ".lock",
        f"{0:020}.json",
    }


def test_a_file_system_without_hard_links(log: DeltaLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logstore.spark.delta_log.NamingStorage.link", lambda *_: False)
    with pytest.raises(ExportRefusedError, match="no hard links"):
        log.commit(1, [info(at=1)])
    assert log.latest() == 0


def test_one_export_at_a_time(log: DeltaLog) -> None:
    with (
        log.locked(),
        pytest.raises(ExportRefusedError, match="under way, in this process"),
        DeltaLog(log.table).locked(),
    ):
        pass
    with log.locked():
        pass


def test_what_was_never_committed_is_removed(log: DeltaLog) -> None:
    """Also of a run whose number another program has taken. A directory of an earlier commit
    stays, and what is not ours.
    """
    table = Path(log.table)
    kept = [f"{0:020}-{'a' * 32}", "mine", f"{1:020}-short"]
    left = [f"{1:020}-{'b' * 32}", f"{9:020}-{'c' * 32}"]
    for name in kept + left:
        (table / name).mkdir()
    (table / "_delta_log" / ".x.tmp").touch()
    log.commit(1, [add("d", dataChange=False)])
    name = log.data_directory(2, log.state(log.latest())[0])
    assert not (table / name).exists()
    assert {path.name for path in table.iterdir()} == {*kept, "_delta_log"}
    assert not (table / "_delta_log" / ".x.tmp").exists()


@for_each(
    "actions",
    [
        [add("x")],
        [{"add": 7}],
        [{"add": {"path": "x"}}],
        [{"remove": {"path": "c", "dataChange": True}}],
        [{"metaData": {}}],
        [{"protocol": {"minReaderVersion": 1}}],
    ],
)
def test_a_change_by_others(tmp_path: Path, actions: list[dict[str, Any]]) -> None:
    log = DeltaLog(str(tmp_path))
    with log.locked():
        log.commit(0, [info(at=0)])
    log.commit(1, actions)
    with pytest.raises(ExportRefusedError, match="commit 1 is of another program, and changed it"):
        log.state(1)


def test_packing_is_no_change(log: DeltaLog) -> None:
    remove = {"remove": {"path": "c", "dataChange": False}}
    log.commit(1, [{"commitInfo": {STATE: 7}}, remove, add("d", dataChange=False), {"txn": {}}])
    assert log.state(1) == (0, {"at": 0})
    log.commit(2, [{"commitInfo": {}}])
    assert log.state(2) == (0, {"at": 0})


@for_each(
    "text",
    [
        "{",
        "[1]",
        "[" * 100_000,
        "\xed\xa0\x80",
        *(json.dumps({"add": {"path": path}}) for path in ("../x", "/etc/x", "s3://x", 1)),
        '{"add": {"path": "%2e%2e/x"}}',
        '{"add": 1}',
        '{"remove": {}}',
        '{"protocol": {"minReaderVersion": 3}}',
        '{"protocol": {}}',
    ],
)
def test_a_commit_that_lies(tmp_path: Path, text: str) -> None:
    log = DeltaLog(str(tmp_path))
    with log.locked():
        pass
    (tmp_path / "_delta_log" / f"{0:020}.json").write_text(f"{text}\n", "latin-1")
    with pytest.raises(ExportRefusedError, match=r"commit 0 is malformed|changed the protocol"):
        log.files()


def test_a_log_that_was_cleaned(log: DeltaLog) -> None:
    log.commit(1, [info(at=1), add("d")])
    (Path(log.table) / "_delta_log" / f"{0:020}.json").unlink()
    assert log.state(1) == (1, {"at": 1})
    with pytest.raises(ExportRefusedError, match="commit 0 is not there any more"):
        log.files()


def test_a_table_that_no_export_has_made(tmp_path: Path) -> None:
    log = DeltaLog(str(tmp_path))
    with log.locked():
        assert (log.latest(), log.state(-1)) == (-1, (-1, None))
    log.commit(0, [{"commitInfo": {"operation": "WRITE"}}])
    with pytest.raises(ExportRefusedError, match="no commit of it is of an export"):
        log.state(0)
    assert json.loads((tmp_path / "_delta_log" / f"{0:020}.json").read_text()) == {
        "commitInfo": {"operation": "WRITE"}
    }
