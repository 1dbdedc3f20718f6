"""``logstore export`` and ``import``: all of a range or nothing, there and back exactly."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq
import pytest
from click.exceptions import Exit
from click.testing import CliRunner, Result

from logstore import LogConfig, LogManager
from logstore.cli import main
from logstore.cli.common.interrupts import Interrupts
from logstore.cli.records.files import (
    SCHEMA,
    Export,
    ExportFileError,
    Format,
    check_digest,
    exporting,
)
from logstore.directory.planning import plan_splits
from tests.support.cases import for_each
from tests.support.until import patience

GOLDEN = Path(__file__).parents[2] / "golden" / "data"
FORMATS = ["parquet", "arrow", "jsonl"]
HARD = [
    (None, None, 5),
    (b"", b"", -1),
    (b"k", None, 0, [("h", None), ("", b""), ("h", b"\xff\x00")]),
    (None, b"\xff\xfe" * 100, 2**62, [("ü", b"x")]),
    (b'\n\\"', b"\x1b[2J\n", 1_700_000_000_000),
]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [*map(str, arguments)])


def good(*arguments: object) -> str:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def make(directory: Path, records: list[Any], partitions: int = 1, **settings: Any) -> Path:
    config = LogConfig(retention_ms=-1, message_timestamp_after_max_ms=2**63 - 1, **settings)
    with LogManager([directory], config, background=False) as manager:
        logs = manager.create_topic("t", partitions)
        for at in range(0, len(records), 10):
            logs[at // 10 % partitions].append(records[at : at + 10])
    return directory


def records(directory: Path, topic: str = "t") -> list[dict[str, Any]]:
    lines = good("read", directory, topic, "--json").splitlines()
    return [{**json.loads(line), "topic": "t"} for line in lines]


def counted(count: int) -> list[Any]:
    return [(b"k%d" % i, b"v%d" % i, i) for i in range(count)]


# -- there and back --------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMATS)
def test_every_record_comes_back_as_it_was(tmp_path: Path, form: str) -> None:
    make(tmp_path / "a", HARD * 5, partitions=2)
    file = tmp_path / f"t.{form}"
    good("export", tmp_path / "a", "t", "--to", file)
    after = "message.timestamp.after.max.ms=" + str(2**63 - 1)
    good("import", tmp_path / "b", file, "--config", after)
    assert records(tmp_path / "b") == records(tmp_path / "a")
    assert len(records(tmp_path / "b")) == 25
    assert good("verify", tmp_path / "b").rstrip().endswith("clean")
    subprocess.run(["sha256sum", "--quiet", "-c", f"t.{form}.sha256"], cwd=tmp_path, check=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "b", f"t.{form}", f"t.{form}.sha256"]


@for_each("folder", sorted(GOLDEN.glob("v*")), at_once=6)
def test_logs_that_kafka_wrote(tmp_path: Path, folder: Path) -> None:
    shutil.copytree(folder, tmp_path / "a" / "t-0")
    shown = records(tmp_path / "a")
    good("export", tmp_path / "a", "t", "--to", tmp_path / "t.parquet")
    table = pq.read_table(tmp_path / "t.parquet")
    assert table.column("offset").to_pylist() == [record["offset"] for record in shown]
    assert table.schema.names == SCHEMA.names
    batches = [json.loads(line) for line in (folder / "batches.jsonl").read_text().splitlines()]
    kinds = set(table.column("timestampType").to_pylist())
    expected = {-1 if b["magic"] == 0 else int("LogAppend" in b["timestampType"]) for b in batches}
    assert kinds == expected or not shown
    if shown:
        good("import", tmp_path / "b", tmp_path / "t.parquet")
        for at, record in enumerate(records(tmp_path / "b")):
            assert record == shown[at] | {"offset": at}


def test_the_columns_are_those_of_the_spark_source() -> None:
    from logstore.spark.columns import DEFAULT_COLUMNS, HEADERS

    assert tuple(SCHEMA.names) == (*DEFAULT_COLUMNS, HEADERS)


@for_each(
    "options, offsets",
    [
        (["--from", "-3"], [97, 98, 99]),
        (["--from", "10", "--until", "12"], [10, 11]),
        (["--from", "@95"], [95, 96, 97, 98, 99]),
        (["--until", "@3"], [0, 1, 2]),
        (["--from", "15", "--until", "15"], []),
        (["--from", "70", "--until", "60"], []),
        (["--from", "5000"], []),
    ],
)
@pytest.mark.parametrize("form", FORMATS)
def test_ranges(tmp_path: Path, options: list[str], offsets: list[int], form: str) -> None:
    make(tmp_path / "a", counted(100), segment_bytes=700)
    told = json.loads(
        good("export", tmp_path / "a", "t", "--to", tmp_path / f"t.{form}", "--json", *options)
    )
    assert told["partitions"][0]["records"] == len(offsets)
    good("import", tmp_path / "b", tmp_path / f"t.{form}")
    found = records(tmp_path / "b") if offsets else []
    assert [record["timestamp"] for record in found] == offsets


def test_some_partitions_and_only_what_is_committed(tmp_path: Path) -> None:
    make(tmp_path / "a", counted(60), partitions=3)
    good(
        "export",
        tmp_path / "a",
        "t",
        "--to",
        tmp_path,
        "--format",
        "arrow",
        "--partition",
        "2",
        "--partition",
        "0",
    )
    assert "t-2: 20 records" in good("import", tmp_path / "b", tmp_path / "t.arrow")
    held = [(r["partition"], r["timestamp"]) for r in records(tmp_path / "b")]
    expected = [(r["partition"], r["timestamp"]) for r in records(tmp_path / "a")]
    assert held == [each for each in expected if each[0] != 1]
    assert (tmp_path / "b" / "t-1").is_dir()
    shutil.copytree(GOLDEN / "v2-txn", tmp_path / "c" / "t-0")
    good("export", tmp_path / "c", "t", "--to", tmp_path / "c.jsonl", "--committed")
    lines = (tmp_path / "c.jsonl").read_text().splitlines()
    committed = good("read", tmp_path / "c", "t", "--json", "--committed").splitlines()
    assert [json.loads(a)["offset"] for a in lines] == [json.loads(a)["offset"] for a in committed]
    assert 0 < len(lines) < len(records(tmp_path / "c"))


# -- no part passes for the whole ------------------------------------------------------------------


def test_damage_leaves_no_file(tmp_path: Path) -> None:
    make(tmp_path / "a", counted(100))
    path = tmp_path / "a" / "t-0" / f"{0:020}.log"
    data = bytearray(path.read_bytes())
    data[data.index(b"v55")] ^= 1
    path.write_bytes(data)
    result = run("export", tmp_path / "a", "t", "--to", tmp_path / "t.parquet")
    assert result.exit_code == 1
    assert result.stderr.startswith(f"corrupt: {path} at byte ")
    assert result.stderr.endswith("; nothing was exported\n")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a"]
    good("export", tmp_path / "a", "t", "--to", tmp_path / "t.parquet", "--until", "50")


def before_planning(monkeypatch: pytest.MonkeyPatch, act: Callable[[], Any]) -> None:
    """``act`` when the range is fixed, and the files that hold it are not."""

    def plan(*arguments: Any) -> Any:
        act()
        return plan_splits(*arguments)

    monkeypatch.setattr("logstore.directory.planning.plan_splits", plan)


def before_writing(monkeypatch: pytest.MonkeyPatch, act: Callable[[], Any]) -> None:
    """``act`` when the first rows have been read."""
    write = Export.write

    def act_then_write(self: Export, rows: Any) -> None:
        act()
        write(self, rows)

    monkeypatch.setattr(Export, "write", act_then_write)


@pytest.mark.parametrize(
    ("when", "at"), [(before_planning, 0), (before_planning, 1), (before_writing, 1)]
)
def test_a_segment_deleted_meanwhile_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: Callable[..., None], at: int
) -> None:
    make(tmp_path / "a", counted(100), segment_bytes=700)
    doomed = sorted((tmp_path / "a" / "t-0").glob("*.log"))[at]
    when(monkeypatch, lambda: doomed.unlink(missing_ok=True))
    result = run("export", tmp_path / "a", "t", "--to", tmp_path / "t.parquet")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "was deleted" in result.stderr
    assert doomed.name in result.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a"]


@pytest.mark.parametrize("when", [before_planning, before_writing])
def test_a_log_cut_meanwhile_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: Callable[..., None]
) -> None:
    make(tmp_path / "a", counted(100))
    path = tmp_path / "a" / "t-0" / f"{0:020}.log"
    size = path.stat().st_size // 2
    when(monkeypatch, lambda: os.truncate(path, size))
    result = run("export", tmp_path / "a", "t", "--to", tmp_path / "t.jsonl")
    assert result.exit_code == 2
    assert "was cut" in result.stderr or "replaced during the export" in result.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a"]


def test_what_is_appended_meanwhile_is_not_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = LogConfig(retention_ms=-1)
    with LogManager([tmp_path / "a"], config, background=False) as manager:
        log = manager.create_topic("t", 1)[0]
        log.append(counted(10))
        before_planning(monkeypatch, lambda: log.append(counted(10)))
        assert "10 records" in good("export", tmp_path / "a", "t", "--to", tmp_path / "t.arrow")


def test_an_existing_file_is_replaced_only_when_told(tmp_path: Path) -> None:
    make(tmp_path / "a", counted(20))
    file = tmp_path / "t.parquet"
    for there in (b"mine", None):
        if there is None:
            file.unlink()
            file.symlink_to("nowhere")
        else:
            file.write_bytes(there)
        result = run("export", tmp_path / "a", "t", "--to", file)
        assert (result.exit_code, result.stdout) == (2, "")
        assert "--overwrite replaces it" in result.stderr
    file.unlink()
    file.write_bytes(b"mine")
    good("export", tmp_path / "a", "t", "--to", file, "--overwrite")
    good("export", tmp_path / "a", "t", "--to", file, "--overwrite", "--until", "5")
    check_digest(str(file))
    assert pq.read_metadata(file).num_rows == 5


def test_a_file_that_came_meanwhile_stays(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    with exporting(str(path), Format.JSONL) as export:
        path.write_bytes(b"of another process")
        with pytest.raises(ExportFileError, match="was created by something else"):
            export.finish(overwrite=False)
    assert path.read_bytes() == b"of another process"
    assert list(tmp_path.iterdir()) == [path]


def test_rows_that_cannot_be_read_back_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path / "a", counted(20))
    monkeypatch.setattr("logstore.cli.records.files.count_rows", lambda path, form: 19)
    result = run("export", tmp_path / "a", "t", "--to", tmp_path / "t.parquet")
    assert result.exit_code == 2
    assert "19 rows can be read back, 20 were written" in result.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a"]


@pytest.mark.parametrize("form", FORMATS)
def test_any_part_and_any_damage_of_a_file_is_refused(tmp_path: Path, form: str) -> None:
    make(tmp_path / "a", counted(40))
    file = tmp_path / f"t.{form}"
    good("export", tmp_path / "a", "t", "--to", file)
    whole = file.read_bytes()
    lines = [at + 1 for at, byte in enumerate(whole) if byte == 10]
    for size in (0, 1, len(whole) // 2, *lines[:2], len(whole) - 1):
        file.write_bytes(whole[:size])
        assert_refused(tmp_path, file, "is damaged or not whole")
    for at in range(0, len(whole), max(1, len(whole) // 20)):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        assert_refused(tmp_path, file, "is damaged or not whole")
    file.write_bytes(whole)
    digest = Path(f"{file}.sha256")
    digest.write_bytes(b"\x1b[2J")
    assert_refused(tmp_path, file, "holds no SHA-256")
    digest.unlink()
    assert_refused(tmp_path, file, "is missing, so the file may not be whole")
    good("import", tmp_path / "b", file, "--unchecked")


@pytest.mark.parametrize("form", FORMATS)
def test_a_broken_file_without_its_checksum_is_told_in_one_line(tmp_path: Path, form: str) -> None:
    make(tmp_path / "a", counted(400))
    file = tmp_path / f"t.{form}"
    good("export", tmp_path / "a", "t", "--to", file)
    whole = file.read_bytes()
    for data in (b"", b"nothing of this kind\n", whole[:-3], whole[: len(whole) // 2 + 7]):
        file.write_bytes(data)
        if data:
            assert_refused(tmp_path, file, "", "--unchecked")
    file.unlink()
    assert_refused(tmp_path, file, "no such file", "--unchecked")


def assert_refused(tmp_path: Path, file: Path, message: str, *options: str) -> None:
    result = run("import", tmp_path / "b", file, *options)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert message in result.stderr
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert result.stderr.rstrip("\n").isprintable()
    assert not (tmp_path / "b" / "t-0").exists()


def write_arrow(path: Path, rows: pa.Table) -> Path:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, rows.schema) as writer:
        writer.write_table(rows)
    return path


def rows_of(count: int = 3, **columns: pa.Array) -> pa.Table:
    base = {
        "key": pa.array([None] * count, pa.binary()),
        "value": pa.array([b"v"] * count, pa.binary()),
        "topic": pa.array(["t"] * count),
        "partition": pa.array([0] * count, pa.int32()),
        "offset": pa.array(range(count), pa.int64()),
        "timestamp": pa.array([1] * count, SCHEMA.field("timestamp").type),
        "timestampType": pa.array([0] * count, pa.int32()),
        "headers": pa.array([None] * count, SCHEMA.field("headers").type),
    }
    return pa.table(base | columns)


@for_each(
    "rows, message",
    [
        (rows_of().drop(["value"]), "has no column value"),
        (rows_of(value=pa.array(["text"] * 3)), "column value is string, not binary"),
        (rows_of(topic=pa.array(["t", None, "t"])), "a row has no topic"),
        (rows_of(timestamp=pa.array([1, None, 1], pa.timestamp("ms", "UTC"))), "no timestamp"),
        (rows_of(partition=pa.array([0, -1, 0], pa.int32())), "a row has partition -1"),
        (rows_of(partition=pa.array([0, 2**31 - 1, 0], pa.int32())), "from 1 to 10000"),
        (rows_of(topic=pa.array(["t", "u", "t"])), "holds several topics: t, u"),
        (rows_of(topic=pa.array(["../x"] * 3)), "has characters outside"),
        (rows_of(topic=pa.array(["\x1b[2J"] * 3)), "has characters outside"),
        (rows_of(timestamp=pa.array([1, -9, 1], pa.timestamp("ms", "UTC"))), "offsets 0 to 2"),
        (
            rows_of(
                headers=pa.array(
                    [None, None, [{"key": None, "value": b""}]], SCHEMA.field("headers").type
                )
            ),
            "header without a name",
        ),
        (rows_of(value=pa.array([b"a", bytes(2 << 20), b"b"])), "RecordTooLargeError"),
    ],
)
def test_files_of_others(tmp_path: Path, rows: pa.Table, message: str) -> None:
    file = write_arrow(tmp_path / "t.arrow", rows)
    assert_refused(tmp_path, file, message, "--unchecked")
    with LogManager([tmp_path / "b"], background=False) as manager:
        assert manager.topics() == {}


# -- all or nothing in the log ---------------------------------------------------------------------


def exported(tmp_path: Path, count: int = 2000) -> Path:
    make(tmp_path / "a", counted(count), partitions=2)
    file = tmp_path / "t.parquet"
    good("export", tmp_path / "a", "t", "--to", file)
    return file


def break_in_the_middle(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> list[int]:
    """Batches that are appended before ``error``, counted in the list."""
    from logstore.cli.records import loading as _loading

    append, done = _loading._append, []

    def breaking(log: Any, batch: Any, compression: str) -> None:
        if len(done) == 3:
            raise error
        append(log, batch, compression)
        done.append(len(batch.keys))

    monkeypatch.setattr(_loading, "_append", breaking)
    monkeypatch.setattr(_loading, "_BATCH_RECORDS", 100)
    return done


@pytest.mark.parametrize("error", [OSError(28, "no space left"), KeyboardInterrupt()])
def test_a_new_topic_is_there_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    file = exported(tmp_path)
    done = break_in_the_middle(monkeypatch, error)
    assert run("import", tmp_path / "b", file).exit_code != 0
    assert len(done) == 3
    with LogManager([tmp_path / "b"], background=False) as manager:
        assert manager.topics() == {}
    assert not list((tmp_path / "b").glob("topic-creation-*"))


@pytest.mark.parametrize("error", [OSError(28, "no space left"), KeyboardInterrupt()])
def test_what_was_added_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    file = exported(tmp_path)
    good("import", tmp_path / "b", file)
    before = records(tmp_path / "b")
    with monkeypatch.context() as patched:
        done = break_in_the_middle(patched, error)
        assert run("import", tmp_path / "b", file, "--append").exit_code != 0
        assert len(done) == 3
    assert records(tmp_path / "b") == before
    assert good("verify", tmp_path / "b").rstrip().endswith("clean")
    good("import", tmp_path / "b", file, "--append")
    assert len(records(tmp_path / "b")) == 2 * len(before)


PIPES = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_process_that_ends_in_the_middle_leaves_no_topic(
    tmp_path: Path, how: signal.Signals
) -> None:
    file = exported(tmp_path, 1000)
    held = (
        "import sys; from logstore.cli import main\n"
        "from logstore.cli.records import loading as _loading; a = _loading._append\n"
        "def f(*x): a(*x); print('.', flush=True); sys.stdin.read()\n"
        "_loading._append = f; _loading._BATCH_RECORDS = 100; main(sys.argv[1:])"
    )
    command = [sys.executable, "-c", held, "import", str(tmp_path / "b"), str(file)]
    with subprocess.Popen(command, **PIPES) as process:
        assert process.stdout.readline() == b".\n"
        process.send_signal(how)  # and the end of its input lets it go on
        out, _ = process.communicate(timeout=patience())
    assert process.returncode != 0
    assert not out.strip(b".\n")
    with LogManager([tmp_path / "b"], background=False) as manager:
        assert manager.topics() == {}
    good("import", tmp_path / "b", file)
    assert len(records(tmp_path / "b")) == 1000


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_an_export_that_ends_in_the_middle_leaves_no_file(
    tmp_path: Path, how: signal.Signals
) -> None:
    make(tmp_path / "a", counted(50_000))
    held = (
        "import sys; from logstore.cli import main\n"
        "from logstore.cli.records import files as _files; w = _files.Export.write\n"
        "def f(*x): w(*x); print('.', flush=True); sys.stdin.read()\n"
        "_files.Export.write = f; main(sys.argv[1:])"
    )
    target = tmp_path / "t.jsonl"
    command = [sys.executable, "-c", held, "export", str(tmp_path / "a"), "t", "--to", str(target)]
    with subprocess.Popen(command, **PIPES) as process:
        assert process.stdout.readline() == b".\n"
        process.send_signal(how)  # and the end of its input lets it go on
        process.communicate(timeout=patience())
    assert process.returncode != 0
    assert not target.exists()
    left = [p.name for p in tmp_path.iterdir() if p.name != "a"]
    assert all(name.endswith(".part") for name in left)
    assert not left or how is signal.SIGKILL


def test_an_import_into_what_is_there(tmp_path: Path) -> None:
    file = exported(tmp_path, 20)
    result = run("import", tmp_path / "a", file)
    assert result.exit_code == 2
    assert "--append adds to it" in result.stderr
    for options, message in [
        (["--append", "--topic", "none"], "there is no topic 'none'"),
        (["--append", "--config", "segment.ms=1"], "are for a new topic"),
        (["--partitions", "1"], "the file has records of partition 1"),
        (["--topic", "no good"], "has characters outside"),
        (["--config", "message.timestamp.type=LogAppendTime", "--topic", "u"], "would be lost"),
    ]:
        result = run("import", tmp_path / "a", file, *options)
        assert result.exit_code == 2
        assert message in result.stderr
        assert result.stderr.count("\n") == 1
    with LogManager([tmp_path / "a"], background=False) as manager:
        assert manager.topics() == {"t": [0, 1]}
        result = run("import", tmp_path / "a", file, "--append")
        assert (result.exit_code, result.stdout) == (2, "")
        assert "is locked by" in result.stderr
    good("import", tmp_path / "a", file, "--topic", "u", "--partitions", "4")
    assert (tmp_path / "a" / "u-3").is_dir()


def test_an_export_without_records(tmp_path: Path) -> None:
    make(tmp_path / "a", [])
    for form in FORMATS:
        good("export", tmp_path / "a", "t", "--to", tmp_path / f"t.{form}")
        result = run("import", tmp_path / "b", tmp_path / f"t.{form}")
        assert (result.exit_code, result.stdout) == (0, "")
        assert result.stderr == f"note: {tmp_path}/t.{form} holds no records\n"
    assert not (tmp_path / "b").exists()


@for_each(
    "arguments, message",
    [
        (["none", "--to", "t.parquet"], "there is no topic 'none' in it"),
        (["t", "--to", "t.parquet", "--partition", "9"], "there is no partition 9 of 't'"),
        (["t", "--to", "t.parquet", "--partition", "9" * 30], "give a number from 0"),
        (["t", "--to", "t.xml"], "does not end in .parquet, .arrow or .jsonl"),
        (["t", "--to", "none/t.arrow"], "there is no directory none"),
        (["t", "--to", "t.arrow", "--from", "soon"], "give an offset, earliest, latest"),
        (["t", "--to", "t.arrow", "--until", "9" * 30], "no offset is above"),
        (["\x1b[2J", "--to", "t.arrow"], "there is no topic"),
    ],
)
def test_bad_arguments_of_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    make(tmp_path / "a", counted(10))
    monkeypatch.chdir(tmp_path)
    result = run("export", tmp_path / "a", *arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a"]


def test_an_interrupt_waits_for_the_next_look() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interrupts() as interrupts:
        interrupts.check()
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            interrupts.check()
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMATS)
def test_memory_does_not_grow_with_the_log(tmp_path: Path, form: str) -> None:
    """A log, and a larger one: the same memory, but for what the allocator keeps."""
    sizes = (64, 128) if form == "parquet" else (8, 40)  # a group of rows is collected in memory
    peaks, block = [], os.urandom(1_000_000)
    for size in sizes:
        directory = tmp_path / str(size)
        with LogManager([directory], background=False) as manager:
            log = manager.create_topic("t", 1)[0]
            for _ in range(size):
                log.append([(None, block[at : at + 1000]) for at in range(0, 1_000_000, 1000)])
        for arguments in (
            ["export", directory, "t", "--to", directory / f"t.{form}"],
            ["import", directory, directory / f"t.{form}", "--topic", "u"],
        ):
            peaks.append(peak_of([str(each) for each in arguments]))
    kept = (sizes[1] - sizes[0]) * 500_000
    assert peaks[2] < peaks[0] + kept
    assert peaks[3] < peaks[1] + kept


PEAK = """
from logstore.__main__ import run
try:
    run()
finally:
    (peak,) = (line for line in open("/proc/self/status") if line.startswith("VmHWM:"))
    print(peak)
"""


def peak_of(arguments: list[str]) -> int:
    """The most memory that the command had at once, in bytes."""
    command = [sys.executable, "-c", PEAK, *arguments]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return int(ended.stdout.split()[-2]) << 10  # VmHWM: 12345 kB


def test_an_import_leaves_the_high_watermarks_of_others(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    for directory in (source, target):
        with LogManager([directory], background=False) as manager:
            for topic in ("t", "u"):
                manager.get_or_create(topic, 0).append([(b"k", b"v")] * 4)
    marks = target / "replication-offset-checkpoint"
    marks.write_text("0\n2\nt 0 2\nu 0 2\n")
    file = tmp_path / "t.jsonl"
    assert run("export", source, "t", "--to", file).exit_code == 0
    for arguments in (["--append"], ["--topic", "new"]):
        assert run("import", target, file, *arguments).exit_code == 0
    assert sorted(marks.read_text().splitlines()[2:]) == ["new 0 4", "t 0 8", "u 0 2"]


# -- tables: what needs no Spark to be refused -----------------------------------------------------


@for_each(
    "options, said",
    [
        (["--overwrite"], "--overwrite is for a file, and not for a table"),
        (["--partition", "0"], "--partition is for a file"),
        (["--until", "9"], "--until is for a file"),
        (["--from", "-3"], "--from -3: a table begins at earliest or at a @TIME"),
        (["--from", "x"], "--from x"),
        (["--from-offsets", "x"], "--from-offsets x: give an offset for each partition"),
        (["--from-offsets", "{}"], "--from-offsets {}: give an offset for each partition"),
        (["--from", "@0", "--from-offsets", '{"0": 1}'], "exclude each other"),
    ],
)
def test_a_table_refuses(tmp_path: Path, options: list[str], said: str) -> None:
    result = run("export", tmp_path, "t", "--to", tmp_path / "x", "--format", "delta", *options)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr
    assert not (tmp_path / "x").exists()


@for_each(
    "options",
    [["--allow-data-loss"], ["--from-offsets", "{}"], ["--spark", "local"], ["--conf", "a=b"]],
)
def test_a_file_refuses(tmp_path: Path, options: list[str]) -> None:
    result = run("export", tmp_path, "t", "--to", tmp_path / "x.parquet", *options)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"error: {options[0]} is for --format delta\n"


def test_what_spark_raises_is_told_without_the_stack_of_its_jvm(monkeypatch, capsys):
    pytest.importorskip("pyspark")
    from py4j.protocol import Py4JError

    import logstore.spark
    from logstore.cli.common.spark_session import spark_session

    monkeypatch.setattr(logstore.spark, "session", lambda *_, **__: Mock())
    with pytest.raises(Exit), spark_session("local", (), "t"):
        raise Py4JError("failed.\n: java.io.IOException: No space left\n\tat a.b(c.java:1)")
    told = capsys.readouterr().err
    assert told.startswith("error: Spark: failed.")
    assert told.endswith("No space left\n")
