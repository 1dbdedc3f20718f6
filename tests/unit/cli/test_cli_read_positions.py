"""``logstore read``: places, templates and encodings."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from checkpoints.types import TopicPartition
from logstore import LogConfig, LogManager
from logstore.cli import main
from logstore.cli.records.format import BadTemplateError, Encoding, template
from logstore.cli.records.reading import PartitionReader
from logstore.common.types import Record
from logstore.directory.layout import LogDirFiles
from logstore.format.batch import encode_batch, end_transaction_marker
from logstore.format.control import ControlType
from logstore.segments.producer_state import AppendOrigin
from tests.support.cases import for_each

GOLDEN = Path(__file__).parents[2] / "golden" / "data"
NOON = 1_793_534_400_000  # 2026-11-01T12:00Z


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["read", *map(str, arguments)])


def read(*arguments: str | Path) -> bytes:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout_bytes


def offsets(*arguments: str | Path) -> list[int]:
    return [int(line) for line in read(*arguments, "--format", r"%o\n").splitlines()]


def make_log(directory: Path, records: list[Any], batch: int = 10, **config: Any) -> None:
    settings = LogConfig(retention_ms=-1, message_timestamp_after_max_ms=2**60, **config)
    with LogManager([directory], settings, background=False) as manager:
        log = manager.get_or_create("t", 0)
        for start in range(0, len(records), batch):
            log.append(records[start : start + batch])


@pytest.fixture
def counted(tmp_path: Path) -> Path:
    """100 records in several segments; each a minute after the other, from noon on."""
    make_log(
        tmp_path,
        [(b"k%d" % i, b"v%d" % i, NOON + 60_000 * i) for i in range(100)],
        segment_bytes=500,
    )
    assert len(list((tmp_path / "t-0").glob("*.log"))) > 3
    return tmp_path


@for_each(
    "start, first",
    [
        ("-1", 99),
        ("-10", 90),
        ("-11", 89),
        ("-99", 1),
        ("-100", 0),
        ("-5000", 0),
        (f"@{NOON + 1}", 1),
        ("@2026-11-01T12:30", 30),
        ("@2026-11-01 12:30:00.001", 31),
        ("@2026-11-01T13:30+01:00", 30),
        ("@2026-11-01T12:30Z", 30),
        ("@2026-11-01", 0),
        ("@0", 0),
        ("42", 42),
    ],
)
def test_where_to_begin(counted: Path, start: str, first: int) -> None:
    assert offsets(counted, "t", "--from", start) == list(range(first, 100))


@for_each(
    "end, last",
    [
        ("-10", 90),
        ("7", 7),
        ("latest", 100),
        ("earliest", 0),
        ("@2026-11-01T12:05", 5),
        ("9000", 100),
    ],
)
def test_where_to_stop(counted: Path, end: str, last: int) -> None:
    assert offsets(counted, "t", "--to", end) == list(range(last))


def test_the_last_ones_before_an_end(counted: Path) -> None:
    assert offsets(counted, "t", "--from", "-3", "--to", "55") == [52, 53, 54]


def test_the_last_ones_count_records_and_not_offsets(tmp_path: Path) -> None:
    """Holes of a compaction and control records have offsets, but are no records."""
    for folder in ("v2-compacted-none", "v2-txn", "v1-gzip"):
        log_dir = tmp_path / folder
        shutil.copytree(GOLDEN / folder, log_dir / "t-0")
        everything = offsets(log_dir, "t")
        for count in (1, 2, 7, 50, len(everything) - 1, len(everything), len(everything) + 1):
            assert offsets(log_dir, "t", "--from", f"-{count}") == everything[-count:]


def test_the_last_committed_ones(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "v2-txn", tmp_path / "t-0")
    committed = offsets(tmp_path, "t", "--committed")
    for count in (1, 3, 10, len(committed)):
        assert offsets(tmp_path, "t", "--committed", "--from", f"-{count}") == committed[-count:]


def test_the_last_ones_below_the_log_start(tmp_path: Path) -> None:
    with LogManager([tmp_path], background=False) as manager:
        log = manager.get_or_create("t", 0)
        log.append([(None, b"%d" % i) for i in range(10)])
        log.delete_records(4)
    assert offsets(tmp_path, "t", "--from", "-100") == [4, 5, 6, 7, 8, 9]
    assert offsets(tmp_path, "t", "--from", "-6") == [4, 5, 6, 7, 8, 9]


def test_a_log_cut_between_the_two_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment that lost its batches after they were counted gives what is left: nothing."""
    make_log(tmp_path, [(None, b"%d" % i) for i in range(20)])
    reader = PartitionReader(LogDirFiles(str(tmp_path)), TopicPartition("t", 0), pytest.fail)
    held, looks = reader._held, []

    def cut_later(*segment: Any) -> Any:
        looks.append(segment)
        if len(looks) == 2:
            os.truncate(tmp_path / "t-0" / f"{0:020}.log", 0)
        return held(*segment)

    monkeypatch.setattr(reader, "_held", cut_later)
    assert reader.last(5) == 0
    assert len(looks) == 2


@for_each("option", ["--from", "--to"])
@for_each(
    "text",
    [
        "soon",
        "@soon",
        "@",
        "@2026-13-01",
        "9" * 30,
        "@" + "9" * 30,
        "-" + "9" * 30,
        "9" * 5000,
        "@" + "9" * 5000,
        "1e3",
        "@-1",
        "\x1b[2J",
        "+5",
        "٣",
    ],
)
def test_what_is_no_place_is_refused_in_one_line(tmp_path: Path, option: str, text: str) -> None:
    make_log(tmp_path, [(None, b"a")])
    result = run(tmp_path, "t", f"{option}={text}")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith(f"error: {option} ")
    assert result.stderr.count("\n") == 1
    assert result.stderr.rstrip("\n").isprintable()


# -- templates -------------------------------------------------------------------------------------


def test_every_field_of_a_template(tmp_path: Path) -> None:
    make_log(
        tmp_path,
        [
            (b"k", b"v", 5, [("h", b"x"), ("n", None)]),
            (None, None, 6),
            (b"", b"", 7),
        ],
    )
    form = r"%t %p %o %T %k %K %s %S %h%%\n"
    assert read(tmp_path, "t", "--format", form) == (
        b"t 0 0 5 k 1 v 1 h=x,n=null%\nt 0 1 6 null -1 null -1 %\nt 0 2 7  0  0 %\n"
    )


def test_escapes_of_a_template() -> None:
    made = template(r"\n\t\r\0\e\x41\\ü%%", Encoding.RAW)
    assert made(Record(0, 0, None, None), TopicPartition("t", 0)) == ("\n\t\r\0\x1bA\\ü%".encode())


@pytest.mark.parametrize("text", ["%z", "%", "%s %", r"%s\q", "%s\\", r"%s\x4"])
def test_what_means_nothing_in_a_template(tmp_path: Path, text: str) -> None:
    with pytest.raises(BadTemplateError, match="means nothing"):
        template(text, Encoding.RAW)
    make_log(tmp_path, [(None, b"a")])
    result = run(tmp_path, "t", "--format", text)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1


def test_a_format_that_is_neither(tmp_path: Path) -> None:
    make_log(tmp_path, [(None, b"a")])
    result = run(tmp_path, "t", "--format", "xml")
    assert result.stderr == "error: --format xml: lines, json, raw, or a template with % in it\n"


@pytest.mark.parametrize(
    ("encoding", "shown"),
    [
        ("raw", b"\xff\x1b\\\n"),
        ("utf-8", b"\\xff\\x1b\\\\\\n"),
        ("hex", b"ff1b5c0a"),
        ("base64", b"/xtcCg=="),
    ],
)
def test_encodings(tmp_path: Path, encoding: str, shown: bytes) -> None:
    make_log(tmp_path, [(b"\xff\x1b\\\n", b"\xff\x1b\\\n", 1, [("h", b"\xff\x1b\\\n")])])
    found = read(tmp_path, "t", "--encoding", encoding, "--format", "%k,%s,%h")
    assert found == shown + b"," + shown + b",h=" + shown
    found = read(tmp_path, "t", "--encoding", encoding, "--key-separator", ":")
    assert found == shown + b":" + shown + b"\n"


def test_encodings_in_json(tmp_path: Path) -> None:
    make_log(tmp_path, [("ü\n".encode(), b"\xff", 1, [("h", None)])])
    record = json.loads(read(tmp_path, "t", "--json", "--encoding", "utf-8"))
    assert (record["key"], record["value"]) == ("ü\n", {"base64": "/w=="})
    assert record["headers"] == [["h", None]]
    assert json.loads(read(tmp_path, "t", "--json", "--encoding", "hex"))["value"] == "ff"
    assert read(tmp_path, "t", "--json") == read(tmp_path, "t", "--format", "json")


def test_a_value_breaks_no_line_on_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_log(tmp_path, [(b"\x1b[2J\n", b"a\tb", 1, [("\x1b\n", b"\n")])])
    monkeypatch.setattr("logstore.terminal.is_terminal", lambda: True)
    found = read(tmp_path, "t", "--format", r"%k|%s|%h\t.\n\e")
    assert found == b"\\x1b[2J\\n|a\\tb|\\x1b\\n=\\n\t.\n\\x1b"


# -- logs that change or are not ours --------------------------------------------------------------


def test_the_metadata_log_of_kraft(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / "v2-kraft-control", tmp_path / "__cluster_metadata-0")
    (tmp_path / "__cluster_metadata-0" / f"{100:020}-{1:010}.checkpoint").write_bytes(b"x")
    (tmp_path / "__cluster_metadata-0" / "quorum-state").write_text("{}")
    found = offsets(tmp_path, "__cluster_metadata", "--from", "-3")
    assert found == offsets(tmp_path, "__cluster_metadata")[-3:]


def test_committed_with_a_producer_that_comes_back(tmp_path: Path) -> None:
    """A transaction that was aborted hides its own records, and not those of the next one."""

    def data(value: bytes, sequence: int) -> bytearray:
        return encode_batch(
            [(None, value, 1)],
            producer_id=7,
            producer_epoch=0,
            base_sequence=sequence,
            transactional=True,
        )

    def end(kind: ControlType) -> bytearray:
        return end_transaction_marker(
            kind, producer_id=7, producer_epoch=0, coordinator_epoch=0, timestamp=1
        )

    with LogManager([tmp_path], background=False) as manager:
        log = manager.get_or_create("t", 0)
        for value, sequence, kind in (
            (b"no", 0, ControlType.ABORT),
            (b"yes", 1, ControlType.COMMIT),
        ):
            log.append_as_leader(data(value, sequence), 0)
            log.append_as_leader(end(kind), 0, AppendOrigin.COORDINATOR)
    assert read(tmp_path, "t", "--committed", "--from", "-2") == b"yes\n"
